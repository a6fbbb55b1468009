"""The engine: prompts in, tokens out (chapter 7)."""
