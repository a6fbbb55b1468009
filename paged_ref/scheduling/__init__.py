"""Requests, their blocks, and which of them run in the next step (chapter 6)."""
