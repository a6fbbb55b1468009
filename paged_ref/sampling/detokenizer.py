"""Incremental detokenization: turn a growing list of tokens into text without decoding all of it at each step.

A token can be half of a character, and its text can depend on its neighbours (a leading space). So the last few tokens
are decoded again, and the difference is the new text; an unfinished character is held back:

    tokens    t0 t1 t2 t3 | t4 t5 | t6        text(t4..t6) minus text(t4..t5) is the text of t6
               emitted     context  new

Text that may be the beginning of a stop string is held back too, until the next tokens decide:

    stop "</end>"     emitted: "so it goes"       held back: "</e"
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

UNFINISHED = "\N{REPLACEMENT CHARACTER}"


class Detokenizer:
    """Turns one sequence's new tokens into text as they are generated. Without a tokenizer the text stays empty.

    Attributes:
        text: the text emitted so far.
        stopped: True if a stop string was found; the text ends before it, and nothing more is emitted.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str] = ()) -> None:
        self.tokenizer = tokenizer
        self.stop = tuple(stop)
        self.text = ""
        self.stopped = False
        self._held = ""
        self._tokens: list[int] = []
        self._context = 0
        self._given = 0

    def fork(self) -> Detokenizer:
        """Return a second detokenizer in the same state."""
        child = copy(self)
        child._tokens = list(self._tokens)
        return child

    def add(self, token_id: int) -> str:
        """Add a token and return the text that became certain with it."""
        self._tokens.append(token_id)
        return self._give(self._decode_new(final=False), final=False)

    def finish(self) -> str:
        """Return the text still held back at the end, including an unfinished character."""
        return self._give(self._decode_new(final=True), final=True)

    def _give(self, new: str, final: bool) -> str:
        if self.stopped:
            return ""
        self._held += new
        found = [at for string in self.stop if (at := self._held.find(string)) >= 0]
        self.stopped = bool(found)
        undecided = 0 if final else _longest_beginning(self._held, self.stop)
        end = min(found, default=len(self._held) - undecided)
        given, self._held = self._held[:end], self._held[end:]
        self.text += given
        return given

    def _decode_new(self, final: bool) -> str:
        if self.tokenizer is None:
            return ""
        before = self._decode(self._tokens[self._context : self._given])
        after = self._decode(self._tokens[self._context :])
        if len(after) <= len(before) or (after.endswith(UNFINISHED) and not final):
            return ""
        self._context, self._given = self._given, len(self._tokens)
        return after[len(before) :]

    def _decode(self, tokens: list[int]) -> str:
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return text


def _longest_beginning(text: str, strings: Sequence[str]) -> int:
    """Return the length of the longest suffix of `text` that is a proper prefix of one of the strings."""
    longest = 0
    for string in strings:
        for length in range(min(len(string) - 1, len(text)), longest, -1):
            if text.endswith(string[:length]):
                longest = length
                break
    return longest
