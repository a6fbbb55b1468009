"""The real scheduler driven without a model, and the arithmetic of time and money (chapters 1 and 6)."""
