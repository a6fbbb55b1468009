"""From logits to tokens to text. Nothing here depends on requests or blocks (chapter 7)."""
