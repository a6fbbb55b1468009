"""Incremental detokenization: turn a growing list of tokens into text without decoding all of it at each step.

A token can be half of a character, and its text can depend on its neighbours (a leading space). So the last few tokens
are decoded again, and the difference is the new text. Text that later tokens can still change is held back:

    tokens    t0 t1 t2 t3 | t4 t5 | t6        text(t4..t6) minus text(t4..t5) is the text of t6
               emitted     context  new

    the last character is U+FFFD              its bytes may be the beginning of a character
    a run of byte tokens, <0xE2> <0x82>       if one byte of the run is wrong, every byte of it becomes U+FFFD
    "it '" with clean-up of spaces            becomes "it's" if an s follows

Text that may be the beginning of a stop string is held back too, until the next tokens decide. Stop strings are
searched in the text *with* special tokens, which the emitted text leaves out:

    stop "</end>"     emitted: "so it goes"       held back: "</e"
"""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import Sequence
from copy import copy
from itertools import compress
from typing import Any

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")
# What transformers' clean-up of spaces replaces. " n ' t" takes two replacements.
CLEANED_UP = (" .", " ?", " !", " ,", " ' ", " n ' t", " n't", " 'm", " 's", " 've", " 're")


class Detokenizer:
    """Turns one sequence's new tokens into text as they are generated. Without a tokenizer the text stays empty.

    The emitted pieces together are `tokenizer.decode(tokens, skip_special_tokens=True)`, up to a stop string.

    Attributes:
        text: the text emitted so far.
        stopped: True if a stop string was found; the text ends before it, and nothing more is emitted.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str] = ()) -> None:
        self.tokenizer = tokenizer
        self.stop = tuple(stop)
        self.text = ""
        self.stopped = False
        self._cleans_up = _cleans_up(tokenizer)
        self._has_byte_tokens = _has_byte_tokens(tokenizer)
        self._special = _special_tokens(tokenizer) if stop or self._has_byte_tokens else {}
        self._held = ""
        self._shown: list[bool] = []  # for each character held: False in a special token
        self._tokens: list[int] = []
        self._run = b""  # the byte tokens at the end
        self._context = 0
        self._given = 0
        self._given_beyond = 0  # characters of tokens from `_given` on that were emitted in part

    def fork(self) -> Detokenizer:
        """Return a second detokenizer in the same state."""
        child = copy(self)
        child._tokens, child._shown = list(self._tokens), list(self._shown)
        return child

    def add(self, token_id: int) -> str:
        """Add a token and return the text that became certain with it."""
        if token_id in self._special:
            return self._give(self._special[token_id], shown=False)
        self._tokens.append(token_id)
        if self._has_byte_tokens:
            byte = BYTE_TOKEN.fullmatch(self.tokenizer.convert_ids_to_tokens(token_id) or "")
            self._run = self._run + bytes.fromhex(byte[1]) if byte else b""
        return self._give(self._decode_new(final=False))

    def finish(self) -> str:
        """Return the text still held back at the end, including an unfinished character."""
        return self._give(self._decode_new(final=True), final=True)

    def _give(self, new: str, shown: bool = True, final: bool = False) -> str:
        if self.stopped:
            return ""
        self._held += new
        self._shown += [shown] * len(new)
        found = [at for string in self.stop if (at := self._held.find(string)) >= 0]
        self.stopped = bool(found)
        undecided = 0 if final else _longest_beginning(self._held, self.stop)
        end = min(found, default=len(self._held) - undecided)
        given = "".join(compress(self._held[:end], self._shown))
        self._held, self._shown = self._held[end:], self._shown[end:]
        self.text += given
        return given

    def _decode_new(self, final: bool) -> str:
        if self.tokenizer is None:
            return ""
        before = self._decode(self._tokens[self._context : self._given])
        after = self._decode(self._tokens[self._context :])
        start = len(before) + self._given_beyond
        end = len(after) if final else self._certain_length(after)
        if end <= start:
            return ""
        self._given_beyond = end - len(before)
        # Runs of byte tokens are decoded as a whole. Clean-up looks far back, so then everything is decoded again.
        if end == len(after) and not self._run and not self._cleans_up:
            self._context, self._given, self._given_beyond = self._given, len(self._tokens), 0
        return after[start:end]

    def _certain_length(self, text: str) -> int:
        """Return how much of the decoded text no later token can change."""
        if self._run and _may_become_text(self._run):
            return 0
        if text.endswith(UNFINISHED) and not self._has_byte_tokens:
            text = text[:-1]
        if self._cleans_up:
            text = text[: len(text) - _longest_beginning(text, CLEANED_UP)].rstrip(" ")
        return len(text)

    def _decode(self, tokens: list[int]) -> str:
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return text


def _special_tokens(tokenizer: Any) -> dict[int, str]:
    """Return the tokens that decoding leaves out, by id."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    special = {i: str(token) for i, token in added.items() if getattr(token, "special", False)}
    for i in getattr(tokenizer, "all_special_ids", ()):
        special.setdefault(i, str(tokenizer.convert_ids_to_tokens(i)))
    return special


def _cleans_up(tokenizer: Any) -> bool:
    """Return True if decoding removes spaces before punctuation. transformers leaves BPE tokenizers out."""
    if not getattr(tokenizer, "clean_up_tokenization_spaces", False):
        return False
    if getattr(tokenizer, "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output", False):
        return True
    model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    return type(model).__name__ != "BPE"


def _has_byte_tokens(tokenizer: Any) -> bool:
    """Return True if the vocabulary has a token for each byte that no other token covers, <0x00> to <0xFF>."""
    if not hasattr(tokenizer, "convert_tokens_to_ids"):
        return False
    token_id = tokenizer.convert_tokens_to_ids("<0x00>")
    return token_id is not None and tokenizer.convert_ids_to_tokens(token_id) == "<0x00>"


def _may_become_text(run: bytes) -> bool:
    """Return True if the bytes are UTF-8, or the beginning of it."""
    try:
        getincrementaldecoder("utf-8")().decode(run)
    except UnicodeDecodeError:
        return False
    return True


def _longest_beginning(text: str, strings: Sequence[str]) -> int:
    """Return the length of the longest suffix of `text` that is a proper prefix of one of the strings."""
    longest = 0
    for string in strings:
        for length in range(min(len(string) - 1, len(text)), longest, -1):
            if text.endswith(string[:length]):
                longest = length
                break
    return longest
