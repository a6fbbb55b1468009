"""Run a learner's Triton kernel safely and show what it loads (chapter 5)."""
