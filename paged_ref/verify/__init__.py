"""Checks of the attention backends: oracle, grid of inputs, memory traffic, compiled code (chapters 3 and 5)."""
