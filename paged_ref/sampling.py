"""From logits to the next token (chapter 7).

Every draw comes from its own random number, made from the request's seed and the token's position. Nothing else
enters, so a request gets the same tokens whatever else runs in the batch, and after a preemption.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class SamplingParams:
    """How a request's tokens are chosen, and when it ends.

    Attributes:
        max_tokens: new tokens at most.
        ignore_eos: go on after the model's end-of-sequence token.
        cache_salt: requests share cached prefixes only with requests of the same salt.

    Raises:
        ValueError: a value out of its range, named.
    """

    max_tokens: int = 64
    ignore_eos: bool = False
    cache_salt: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.max_tokens, int) or self.max_tokens < 1:
            raise ValueError(f"max_tokens = {self.max_tokens!r}: it must be a whole number, 1 or more")


@dataclass(frozen=True)
class Draw:
    """A chosen token and the logarithm of the probability that the model gave it."""

    token_id: int
    logprob: float


def greedy(logits: torch.Tensor) -> list[Draw]:
    """The likeliest token of each row of logits [num_rows, vocab_size]. Of equal ones, the first.

    Raises:
        FloatingPointError: a row holds NaN.
    """
    logits = logits.float()
    best, tokens = logits.max(dim=-1)
    logprobs = best - logits.logsumexp(dim=-1)
    draws = [Draw(t, p) for t, p in zip(tokens.tolist(), logprobs.tolist(), strict=True)]
    for row, draw in enumerate(draws):
        if math.isnan(draw.logprob):
            raise FloatingPointError(f"row {row} of the logits holds NaN: the model or its cache is damaged")
    return draws
