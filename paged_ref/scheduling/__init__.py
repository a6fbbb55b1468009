"""Requests, their blocks, and the scheduler that chooses each step's batch (chapter 6)."""
