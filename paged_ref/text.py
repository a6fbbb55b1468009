"""Text out of a growing list of tokens, without decoding all of it at each step.

A token can be half of a character, and how a token reads can depend on its neighbours (a leading space). So a little
of what was decoded before is decoded again, and the difference is the new text; an unfinished character is held back:

    tokens    t0 t1 t2 t3 | t4 t5 | t6        text(t4..t6) minus text(t4..t5) is what t6 adds
               given out   context  new
"""

from __future__ import annotations

from typing import Any

UNFINISHED = "\N{REPLACEMENT CHARACTER}"


class Detokenizer:
    """Turns one sequence's new tokens into text as they come. Without a tokenizer the text stays empty."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.text = ""
        self._tokens: list[int] = []
        self._context = 0
        self._given = 0

    def add(self, token_id: int) -> str:
        """Add a token; returns the text that is complete now and was not before."""
        self._tokens.append(token_id)
        return self._advance(final=False)

    def finish(self) -> str:
        """The text held back at the end, an unfinished character included."""
        return self._advance(final=True)

    def _advance(self, final: bool) -> str:
        if self.tokenizer is None:
            return ""
        before = self._decode(self._tokens[self._context : self._given])
        after = self._decode(self._tokens[self._context :])
        if len(after) <= len(before) or (after.endswith(UNFINISHED) and not final):
            return ""
        self._context, self._given = self._given, len(self._tokens)
        new = after[len(before) :]
        self.text += new
        return new

    def _decode(self, tokens: list[int]) -> str:
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return text
