"""A request and its sequences: the state that the scheduler works on (chapters 6 and 7).

A sequence is a list of tokens, of which the first `num_computed_tokens` have their keys and values in the cache. A
step of the engine computes some of the others. This one counter covers prefill, decode, a chunk of a prefill, a
prefix-cache hit and a restart after preemption:

    token_ids      [ prompt prompt prompt prompt | new new ]
                     `--- computed ---'  `-- to be computed --'
    decode: one token is left to compute.  prefill: many.  preempted by recompute: all of them again.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ..blocks.block_pool import BlockPool
from ..blocks.block_table import BlockTable
from ..blocks.prefix_cache import Entry
from ..sampling.beam_search import BeamSearch
from ..sampling.detokenizer import Detokenizer
from ..sampling.params import SamplingParams
from ..sizing import blocks_for


class Status(Enum):
    """A request's state. A preempted request is WAITING again (blocks freed) or SWAPPED (blocks on the host)."""

    WAITING = "waiting"
    SWAPPED = "swapped"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False)
class Sequence:
    """One continuation of a prompt.

    Attributes:
        token_ids: prompt and generated tokens.
        table: the block table. It has room for all tokens except, in a decoding sequence, the last one.
        num_computed_tokens: tokens whose keys and values are in the cache.
        published: prefix-cache entry of the last published block; `num_published_blocks` blocks are published.
        cumulative_logprob: sum of the generated tokens' log-probabilities in the model's own distribution.
        finish_reason: "stop", "length", "abort", or None while it runs.
        detokenizer: turns new tokens into text; None if no text is needed.
        last_token_time: the time of the last generated token by the metrics' clock; None before the first.
    """

    token_ids: list[int]
    num_prompt_tokens: int
    table: BlockTable
    index: int = 0
    num_computed_tokens: int = 0
    published: Entry | None = None
    num_published_blocks: int = 0
    cumulative_logprob: float = 0.0
    finish_reason: str | None = None
    detokenizer: Detokenizer | None = None
    last_token_time: float | None = None

    @property
    def output_token_ids(self) -> list[int]:
        """The generated tokens."""
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_new_tokens(self) -> int:
        """The number of generated tokens."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def needs_slot(self) -> bool:
        """True if the sequence decodes: all tokens but the last are computed, and the last has no slot yet."""
        return self.table.num_tokens == self.num_computed_tokens == len(self.token_ids) - 1

    def fork(self, index: int) -> Sequence:
        """Return a second sequence with the same tokens over the same blocks. No block is copied."""
        return Sequence(
            list(self.token_ids),
            self.num_prompt_tokens,
            self.table.fork(),
            index,
            self.num_computed_tokens,
            self.published,
            self.num_published_blocks,
            self.cumulative_logprob,
            detokenizer=self.detokenizer.fork() if self.detokenizer else None,
            last_token_time=self.last_token_time,
        )

    def forget_cache(self) -> None:
        """Free the blocks; all tokens must be computed again."""
        self.table.release()
        self.num_computed_tokens = 0
        self.published, self.num_published_blocks = None, 0


@dataclass(eq=False)
class Request:
    """A prompt, its sampling parameters, and the sequences that continue it.

    Attributes:
        request_id: number in order of arrival; messages use it to name the request.
        max_new_tokens: `sampling.max_tokens`, or less if the model has fewer positions left.
        sequences: the sequences that still run. A request begins with one and forks it after the prompt.
        finished: the sequences that ended.
        seed: `sampling.seed`, or a random one.
        end_token_ids: tokens that end a sequence.
        beam_search: the state of a beam search, or None. The beams are `sequences`; they move in lockstep.
        arrival_time, first_token_time, finish_time: seconds, by `time.perf_counter`.
        events: new tokens that a stream has not yielded yet; None if the request is not streamed.
        error: why the engine aborted the request; None if it did not.
    """

    request_id: int
    prompt_token_ids: list[int]
    sampling: SamplingParams
    max_new_tokens: int
    sequences: list[Sequence]
    priority: int = 0
    status: Status = Status.WAITING
    finished: list[Sequence] = field(default_factory=list)
    seed: int = 0
    end_token_ids: frozenset[int] = frozenset()
    beam_search: BeamSearch[Sequence] | None = None
    arrival_time: float = field(default_factory=time.perf_counter)
    first_token_time: float | None = None
    finish_time: float | None = None
    events: deque[Any] | None = None
    error: Exception | None = None

    @property
    def seniority(self) -> tuple[int, int]:
        """The sort key of requests: the lower priority number first, then the earlier arrival."""
        return (self.priority, self.request_id)

    @property
    def width(self) -> int:
        """The number of sequences the request may still run at once, including those that a later fork creates."""
        return (self.sampling.beam_width or self.sampling.n) - len(self.finished)

    def most_blocks(self, pool: BlockPool) -> int:
        """Return the most blocks the request can ever hold: full prompt blocks once, all others per sequence.

        The last new token is never fed back to the model, so it needs no slot.
        """
        longest = blocks_for(len(self.prompt_token_ids) + self.max_new_tokens - 1, pool.block_size)
        shared = len(self.prompt_token_ids) // pool.block_size if self.width > 1 else 0
        return shared + self.width * (longest - shared)
