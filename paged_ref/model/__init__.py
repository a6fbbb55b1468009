"""A transformers model on flat batches and block tables (chapter 7)."""
