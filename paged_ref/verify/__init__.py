"""Checks of the attention backends: oracle, input grid, memory traffic, compiled code (chapters 3 and 5)."""
