"""The real scheduler run without a model, and estimates of time and cost (chapters 1 and 6)."""
