"""Beam search: the k likeliest continuations of a prompt (chapters 4 and 7).

A *beam* is an unfinished continuation and a *hypothesis* a finished one. Both are scored by the sum of their tokens'
log-probabilities; hypotheses by the mean per token. Each step considers all one-token extensions of all beams, best
first:

    beams          A, B                                         k = 2
    extensions     A+x  -1.2 | B+y  -1.5 | A+<end>  -1.7 | A+z  -2.0 | …
                   the best k that do not end are the next beams: A+x, B+y
                   an ending extension among the best k becomes a hypothesis: A+<end> is third, so it does not

A beam with several extensions is forked, a beam with one continues, and a beam without any frees its blocks: no key or
value moves. The k best hypotheses are kept. The search ends when k are kept and the best beam's score per token is no
better than that of the worst hypothesis, or at the length limit, where every beam ends.

These are the rules of transformers' beam search with its default settings (`early_stopping=False`, `length_penalty=1`),
and the tests compare the two. For the sharing of blocks, see the PagedAttention paper, section 4.4.
"""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from .sampler import Draw


class Beam(Protocol):
    """The part of a sequence that the search uses."""

    cumulative_logprob: float

    @property
    def output_token_ids(self) -> list[int]:
        """The generated tokens."""

    @property
    def num_new_tokens(self) -> int:
        """The number of generated tokens."""


B = TypeVar("B", bound=Beam)


@dataclass(frozen=True)
class Extension(Generic[B]):
    """A beam with one more token. `score` is the sum of all its log-probabilities."""

    beam: B
    token_id: int
    score: float


@dataclass(frozen=True)
class Hypothesis:
    """A finished continuation."""

    new_token_ids: list[int]
    score: float
    finish_reason: str

    @property
    def score_per_token(self) -> float:
        """The mean log-probability per token, which ranks hypotheses of different lengths."""
        return self.score / len(self.new_token_ids)


class BeamSearch(Generic[B]):
    """One request's search.

    Args:
        width: number of beams, and of hypotheses kept.
        max_new_tokens: the length limit.
        end_token_ids: tokens that end a continuation.
    """

    def __init__(self, width: int, max_new_tokens: int, end_token_ids: frozenset[int]) -> None:
        self.width = width
        self.max_new_tokens = max_new_tokens
        self.end_token_ids = end_token_ids
        self.hypotheses: list[Hypothesis] = []
        self._candidates: dict[B, abc.Sequence[Draw]] = {}

    @property
    def num_candidates(self) -> int:
        """Extensions to consider: enough that k of them do not end, even if every beam's likeliest tokens end it."""
        return self.width * max(2, 1 + len(self.end_token_ids))

    def add(self, beam: B, candidates: abc.Sequence[Draw]) -> None:
        """Store a beam's `num_candidates` likeliest next tokens.

        Beams move in lockstep. After a preemption they may be recomputed in different steps; each beam's candidates
        are kept here until those of all beams are known.
        """
        self._candidates[beam] = candidates

    def advance(self, beams: abc.Sequence[B]) -> list[Extension[B]] | None:
        """Return the next beams, best first; empty: the search has ended; None: candidates are still missing."""
        if any(beam not in self._candidates for beam in beams):
            return None
        extensions = [
            Extension(beam, draw.token_id, beam.cumulative_logprob + draw.logprob)
            for beam in beams
            for draw in self._candidates[beam]
        ]
        self._candidates = {}
        extensions.sort(key=lambda extension: -extension.score)
        num_tokens = beams[0].num_new_tokens + 1
        next_beams: list[Extension[B]] = []
        for rank, extension in enumerate(extensions[: self.num_candidates]):
            ends = extension.token_id in self.end_token_ids
            if not (ends or num_tokens >= self.max_new_tokens):
                next_beams.append(extension)
            elif rank < self.width:
                new_token_ids = [*extension.beam.output_token_ids, extension.token_id]
                self.hypotheses.append(
                    Hypothesis(new_token_ids, extension.score, "stop" if ends else "length")
                )
        self.hypotheses.sort(key=lambda hypothesis: -hypothesis.score_per_token)
        del self.hypotheses[self.width :]
        enough = len(self.hypotheses) == self.width
        if enough and next_beams and next_beams[0].score / num_tokens <= self.hypotheses[-1].score_per_token:
            return []
        return next_beams[: self.width]
