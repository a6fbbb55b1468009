"""Text out of a growing list of tokens, without decoding all of it at each step.

A token can be half of a character, and how a token reads can depend on its neighbours (a leading space). So a little
of what was decoded before is decoded again, and the difference is the new text; an unfinished character is held back:

    tokens    t0 t1 t2 t3 | t4 t5 | t6        text(t4..t6) minus text(t4..t5) is what t6 adds
               given out   context  new

Text that may be the beginning of a stop string is held back too, until the next tokens decide:

    stop "</end>"     given out: "so it goes"     held back: "</e"
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

UNFINISHED = "\N{REPLACEMENT CHARACTER}"


class Detokenizer:
    """Turns one sequence's new tokens into text as they come. Without a tokenizer the text stays empty.

    Attributes:
        text: what was given out so far.
        stopped: a stop string was found; the text ends before it, and nothing more is given out.
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
        """A second one in the same state."""
        child = copy(self)
        child._tokens = list(self._tokens)
        return child

    def add(self, token_id: int) -> str:
        """Add a token; returns the text that is certain now and was not before."""
        self._tokens.append(token_id)
        return self._give(self._decode_new(final=False), final=False)

    def finish(self) -> str:
        """The text held back at the end, an unfinished character included."""
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
    """Length of the longest end of `text` with which one of the strings begins; never a whole string."""
    longest = 0
    for string in strings:
        for length in range(min(len(string) - 1, len(text)), longest, -1):
            if text.endswith(string[:length]):
                longest = length
                break
    return longest
