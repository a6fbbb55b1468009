"""From logits to tokens to text. Nothing here knows requests or blocks (chapter 7)."""
