"""A request and its sequences: the state that the scheduler moves (chapters 6 and 7).

A sequence is a list of tokens, of which the first `num_computed_tokens` have their keys and values in the cache. A
step of the engine computes some of the others. That one number makes prefill, decode, a chunk of a prefill, a prefix
found in the cache and a restart after preemption the same thing:

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
    """Where a request stands. A preempted request waits again, with its tokens; a swapped one with its blocks."""

    WAITING = "waiting"
    SWAPPED = "swapped"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False)
class Sequence:
    """One continuation of a prompt.

    Attributes:
        token_ids: prompt and generated tokens.
        table: its block table. It has room for all tokens but, in a decoding sequence, the last one.
        num_computed_tokens: tokens whose keys and values are in the cache.
        published: entry of its last full block in the prefix cache, and how many blocks that covers.
        block_keys: chained keys of its full blocks, each hashed once; they outlive a preemption.
        cumulative_logprob: of the generated tokens, in the model's own distribution.
        finish_reason: "stop", "length", "abort", or None while it runs.
        detokenizer: turns its new tokens into text; None where no text is wanted.
    """

    token_ids: list[int]
    num_prompt_tokens: int
    table: BlockTable
    index: int = 0
    num_computed_tokens: int = 0
    published: Entry | None = None
    num_published_blocks: int = 0
    block_keys: list[bytes] = field(default_factory=list)
    cumulative_logprob: float = 0.0
    finish_reason: str | None = None
    detokenizer: Detokenizer | None = None

    @property
    def output_token_ids(self) -> list[int]:
        """The generated tokens."""
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_new_tokens(self) -> int:
        """How many tokens were generated."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def needs_slot(self) -> bool:
        """The sequence decodes: all tokens but the last are computed, and the last has no slot yet."""
        return self.table.num_tokens == self.num_computed_tokens == len(self.token_ids) - 1

    def fork(self, index: int) -> Sequence:
        """A second sequence with the same tokens over the same blocks. Nothing is copied but the two lists."""
        return Sequence(
            list(self.token_ids),
            self.num_prompt_tokens,
            self.table.fork(),
            index,
            self.num_computed_tokens,
            self.published,
            self.num_published_blocks,
            list(self.block_keys),
            self.cumulative_logprob,
            detokenizer=self.detokenizer.fork() if self.detokenizer else None,
        )

    def forget_cache(self) -> None:
        """Give the blocks back; all tokens must be computed again."""
        self.table.release()
        self.num_computed_tokens = 0
        self.published, self.num_published_blocks = None, 0


@dataclass(eq=False)
class Request:
    """A prompt, how to continue it, and the sequences that do.

    Attributes:
        request_id: the order of arrival, and what messages call the request.
        max_new_tokens: `sampling.max_tokens`, less if the model has no more positions.
        sequences: those that still run. A request begins with one and forks it after the prompt.
        finished: those that ended.
        seed: `sampling.seed`, or one of its own.
        end_token_ids: tokens that end a sequence.
        beam_search: the state of the search, if it is one. The beams are `sequences`; they move in lockstep.
        arrival_time, first_token_time, finish_time: seconds, by `time.perf_counter`.
        events: new tokens that a stream has not yielded yet; None if nobody streams.
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

    @property
    def seniority(self) -> tuple[int, int]:
        """Who goes first: the lower priority number, then the earlier arrival."""
        return (self.priority, self.request_id)

    @property
    def width(self) -> int:
        """How many sequences the request may still run at once, those that its fork will make included."""
        return (self.sampling.beam_width or self.sampling.n) - len(self.finished)

    def most_blocks(self, pool: BlockPool) -> int:
        """Blocks that the request can come to hold: the prompt's full ones once, the rest for each sequence.

        The last new token is never fed back to the model, so it needs no slot.
        """
        longest = blocks_for(len(self.prompt_token_ids) + self.max_new_tokens - 1, pool.block_size)
        shared = len(self.prompt_token_ids) // pool.block_size if self.width > 1 else 0
        return shared + self.width * (longest - shared)
