"""The interview trainer: questions that adapt, in the terminal and in a notebook (chapter 8)."""
