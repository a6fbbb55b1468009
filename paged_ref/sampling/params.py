"""Sampling parameters: how a request's tokens are chosen, and when it ends (chapter 7)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..arguments import require_int, require_number

LEAST_TEMPERATURE = 1e-6


@dataclass(frozen=True)
class SamplingParams:
    """How a request's tokens are chosen, and when it ends.

    Attributes:
        max_tokens: maximum number of new tokens.
        temperature: 0 takes the likeliest token; 1 samples from the model's own distribution.
        top_k: sample among the k likeliest tokens (0: all tokens). Tokens as likely as the k-th are kept, too.
        top_p: sample among the likeliest tokens that together reach this probability, after top_k.
        n: number of independent continuations of the prompt. They share its blocks.
        beam_width: search for the likeliest continuations with this many beams, and return that many. Beam search
            replaces sampling, so it requires temperature 0, n = 1 and no stop strings.
        seed: seed of the random numbers; sample i uses seed + i. None: a random seed for each request.
        stop: strings that end a continuation. The text is cut before them.
        ignore_eos: continue after the model's end-of-sequence token.
        cache_salt: requests share cached prefixes only with requests of the same salt.

    Raises:
        ValueError: a value out of its range, or contradictory values; the message names them.
    """

    max_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    n: int = 1
    beam_width: int | None = None
    seed: int | None = None
    stop: str | Sequence[str] = ()
    ignore_eos: bool = False
    cache_salt: str | None = None

    def __post_init__(self) -> None:
        self._set("max_tokens", require_int("max_tokens", self.max_tokens, 1))
        self._set("top_k", require_int("top_k", self.top_k, 0))
        self._set("n", require_int("n", self.n, 1))
        if self.seed is not None:
            self._set("seed", require_int("seed", self.seed, 0))
            if self.seed >= 2**64:
                raise ValueError(f"seed = {self.seed}: it must be below 2**64")
        self._set("temperature", require_number("temperature", self.temperature))
        if self.temperature != 0 and not LEAST_TEMPERATURE <= self.temperature < math.inf:  # NaN is neither
            raise ValueError(
                f"temperature = {self.temperature}: it must be 0 (the likeliest token) or a finite number, at least "
                f"{LEAST_TEMPERATURE}"
            )
        self._set("top_p", require_number("top_p", self.top_p))
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p = {self.top_p}: it must be above 0 and at most 1")
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        for i, string in enumerate(stop):
            if not isinstance(string, str) or not string:
                raise ValueError(f"stop[{i}] = {string!r}: it must be a string of at least one character")
        self._set("stop", stop)
        if not (self.cache_salt is None or isinstance(self.cache_salt, str)):
            raise ValueError(f"cache_salt = {self.cache_salt!r:.60}: it must be a string or None")
        if self.beam_width is not None:
            self._set("beam_width", require_int("beam_width", self.beam_width, 1))
            self._require_no_drawing()

    def _set(self, name: str, value: object) -> None:
        """Replace a checked value by its plain Python form; after this the object is frozen."""
        object.__setattr__(self, name, value)

    def _require_no_drawing(self) -> None:
        wrong = [
            f"{name} = {value}"
            for name, value in (("temperature", self.temperature), ("top_k", self.top_k))
            if value
        ]
        wrong += [f"top_p = {self.top_p}"] * (self.top_p != 1)
        wrong += [f"n = {self.n} (beam_width is the number of outputs)"] * (self.n != 1)
        wrong += [f"stop = {self.stop}"] * bool(self.stop)
        if wrong:
            raise ValueError(f"beam_width = {self.beam_width} cannot be combined with {', '.join(wrong)}")
