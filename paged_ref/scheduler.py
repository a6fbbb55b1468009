"""Who runs in the next step: admission, continuous batching, chunked prefill, preemption (chapter 6).

A step computes a flat batch of tokens. The scheduler fills it under two limits, `max_num_batched_tokens` tokens and
`max_num_seqs` sequences, in this order:

1. every decoding sequence gets its next token. If the pool cannot give a block for it, the *latest* request is preempted
   until it can: requests go from the oldest to the youngest, so a victim has not been served yet in this step;
2. prefills under way get what is left of the token budget, oldest first: a long prompt is computed in chunks and
   never stops the decodes;
3. if nobody was preempted, waiting requests are admitted, oldest first, and none overtakes another.

Admission takes the blocks of *all* tokens a request has, so a prefill never needs a block later and two half-admitted
requests cannot preempt each other. It answers

    OK      the blocks of its tokens, and one more for each sequence to grow into, are free above the watermark
    LATER   not now; it waits
    NEVER   the pool is too small for the longest it can become, however long it waits: raised by `add`

Why it always goes on: the oldest request is never preempted while another runs, and `NEVER` makes sure that alone it
fits. So each step computes at least one token of it. (PagedAttention paper, section 4.5: gang scheduling of a
request's sequences, first come first served, preemption by swap or recompute; the one-number view of a sequence's
progress is vLLM V1's; chunked prefill is Sarathi-Serve's.)
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from enum import Enum

from .block_pool import BlockPool, blocks_for
from .block_table import BlockTable, blocks_to_append_each, move_tables
from .prefix_cache import Entry
from .request import Request, Sequence, Status


class Admission(Enum):
    """The answer to "may this request run now?"."""

    OK = "ok"
    LATER = "later"
    NEVER = "never"


class NeverFits(ValueError):
    """The request cannot run in this engine, however long it waits."""


@dataclass(frozen=True)
class Chunk:
    """Tokens start .. stop - 1 of one sequence, computed in one step."""

    request: Request
    sequence: Sequence
    start: int
    stop: int

    @property
    def samples(self) -> bool:
        """The chunk ends with the sequence's last token, so the step yields the next one."""
        return self.stop == len(self.sequence.token_ids)


@dataclass
class Step:
    """What one step does, in the order in which it is done: swaps out, swaps in, copies, then the chunks.

    Block pairs are (source, destination). `cached_tokens` were found in the prefix cache by the requests admitted.
    """

    swaps_out: list[tuple[int, int]] = field(default_factory=list)
    swaps_in: list[tuple[int, int]] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    cached_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return sum(chunk.stop - chunk.start for chunk in self.chunks)


class Scheduler:
    """Decides each step's batch and moves blocks between requests. It knows no model and no tensor.

    Args:
        pool: the blocks of the device.
        max_num_seqs: sequences that run at once.
        max_num_batched_tokens: tokens in one step; at least `max_num_seqs`.
        watermark: share of the pool that admission leaves free, for the running sequences to grow into.
        host_pool: where preempted requests are swapped to. None: they are recomputed.

    Raises:
        ValueError: a limit out of its range.
    """

    def __init__(
        self,
        pool: BlockPool,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 2048,
        watermark: float = 0.01,
        host_pool: BlockPool | None = None,
    ) -> None:
        if max_num_seqs < 1:
            raise ValueError(f"max_num_seqs = {max_num_seqs}: it must be 1 or more")
        if max_num_batched_tokens < max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens = {max_num_batched_tokens} is less than max_num_seqs = {max_num_seqs}: "
                "a step must have room for one token of each running sequence"
            )
        if not 0 <= watermark < 1:
            raise ValueError(f"watermark = {watermark}: it must be a share of the pool, at least 0 and below 1")
        self.pool = pool
        self.host_pool = host_pool
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.watermark_blocks = math.floor(watermark * pool.num_blocks)
        self.waiting: list[Request] = []
        self.running: list[Request] = []

    @property
    def has_work(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        """Let a request wait for admission.

        Raises:
            NeverFits: it could not run even alone.
        """
        most = request.most_blocks(self.pool)
        if most > self.pool.num_blocks:
            raise NeverFits(
                f"a prompt of {len(request.prompt_token_ids)} tokens with up to {request.max_new_tokens} new ones in "
                f"{request.width} sequence(s) needs up to {most} blocks of {self.pool.block_size} tokens, the pool "
                f"has {self.pool.num_blocks}"
            )
        if request.width > self.max_num_seqs:
            raise NeverFits(f"{request.width} sequences wanted, but max_num_seqs = {self.max_num_seqs}")
        insort(self.waiting, request, key=lambda r: r.seniority)

    def schedule(self) -> Step:
        """Choose the next step's work and take its blocks."""
        step = Step()
        self._schedule_decodes(step)
        self._schedule_prefills(step, self.running)
        if not step.preempted:
            self._admit_waiting(step)
        for chunk in step.chunks:
            step.copies += chunk.sequence.table.take_copies()
        return step

    def complete(self, step: Step) -> None:
        """The step's keys and values are written: count them as computed, and let other requests find full blocks."""
        for chunk in step.chunks:
            chunk.sequence.num_computed_tokens = chunk.stop
            self._publish(chunk.request, chunk.sequence)

    def fork(self, request: Request, sequence: Sequence, index: int) -> Sequence:
        """Start a second sequence of a request from one that has just been computed."""
        child = sequence.fork(index)
        request.sequences.append(child)
        return child

    def finish(self, request: Request, sequence: Sequence, reason: str) -> None:
        """End one sequence and free its blocks; with the last one the request ends."""
        sequence.finish_reason = reason
        sequence.forget_cache()
        request.sequences.remove(sequence)
        request.finished.append(sequence)
        if not request.sequences:
            self._drop(request)

    def abort(self, request: Request) -> None:
        """End a request wherever it stands and free everything it holds. Harmless when it has ended."""
        for sequence in list(request.sequences):
            self.finish(request, sequence, "abort")

    def recover(self, step: Step) -> None:
        """The step failed half-way: what it should have computed, copied or swapped cannot be relied on.

        Every request it touched, and every running one, gives its blocks back and waits to be recomputed.
        """
        for request in [*self.running, *step.preempted]:
            if request.status in (Status.RUNNING, Status.SWAPPED):
                self._requeue(request, Status.WAITING)

    def check(self) -> None:
        """Raise AssertionError if pool, tables and requests do not agree. Takes time in proportion to everything."""
        for pool in filter(None, (self.pool, self.host_pool)):
            pool.check()
            held = [0] * pool.num_blocks
            for request in [*self.running, *self.waiting]:
                for sequence in request.sequences:
                    if sequence.table.pool is pool:
                        for block in sequence.table.blocks:
                            held[block] += 1
            for block, count in enumerate(held):
                if count != pool.ref_count(block):
                    raise AssertionError(f"block {block} has {pool.ref_count(block)} holders, tables name it {count} times")
        for request in self.running:
            for sequence in request.sequences:
                sequence.table.check()
                if not sequence.num_computed_tokens <= sequence.table.num_tokens <= len(sequence.token_ids):
                    raise AssertionError(f"request {request.number}: computed, placed and all tokens do not rise")
        if self.running != sorted(self.running, key=lambda r: r.seniority):
            raise AssertionError("running requests are not in the order of their seniority")

    # ---- the three parts of a step

    def _schedule_decodes(self, step: Step) -> None:
        for request in list(self.running):
            if request.status is not Status.RUNNING:
                break  # preempted by an older one, and so is everyone after it
            self._decode(request, step)

    def _decode(self, request: Request, step: Step) -> None:
        """One token for each decoding sequence of a request, or preemptions until there is room, its own at last."""
        decoding = [sequence for sequence in request.sequences if sequence.needs_slot]
        while blocks_to_append_each(s.table for s in decoding) > self.pool.num_free:
            victim = self.running[-1]
            self._preempt(victim, step)
            if victim is request:
                return
        for sequence in decoding:
            sequence.table.append(1)
            step.chunks.append(Chunk(request, sequence, sequence.num_computed_tokens, len(sequence.token_ids)))

    def _schedule_prefills(self, step: Step, requests: ListOf[Request]) -> None:
        """Chunks for sequences that have slots for more tokens than are computed. Needs no block."""
        budget = self.max_num_batched_tokens - step.num_tokens
        served = {id(chunk.sequence) for chunk in step.chunks}
        for request in requests:
            leader = request.sequences[0]
            for sequence in request.sequences:
                start = sequence.num_computed_tokens
                stop = min(sequence.table.num_tokens, start + budget)
                waits_for_leader = leader.num_computed_tokens < start  # it begins with blocks the leader still computes
                if id(sequence) in served or start >= stop or waits_for_leader:
                    continue
                step.chunks.append(Chunk(request, sequence, start, stop))
                budget -= stop - start

    def _admit_waiting(self, step: Step) -> None:
        while self.waiting and step.num_tokens + len(self.waiting[0].sequences) <= self.max_num_batched_tokens:
            request = self.waiting[0]
            if self.admission(request) is not Admission.OK:
                break
            self.waiting.pop(0)
            if request.status is Status.SWAPPED:
                step.swaps_in += move_tables([s.table for s in request.sequences], self.pool)
            else:
                self._place(request, step)
            request.status = Status.RUNNING
            insort(self.running, request, key=lambda r: r.seniority)
            step.admitted.append(request)
            self._schedule_prefills(step, [request])
            self._decode(request, step)

    # ---- admission

    def admission(self, request: Request) -> Admission:
        """Whether the request may run now; looks at the pool as it is at this moment."""
        if request.most_blocks(self.pool) > self.pool.num_blocks or request.width > self.max_num_seqs:
            return Admission.NEVER
        if sum(r.width for r in self.running) + request.width > self.max_num_seqs:
            return Admission.LATER
        reserve = self.watermark_blocks if self.running else 0  # alone, a request may use the whole pool
        fits = self._blocks_to_admit(request) <= self.pool.num_free - reserve
        return Admission.OK if fits else Admission.LATER

    def _blocks_to_admit(self, request: Request) -> int:
        """Free blocks that admission takes, and one for each sequence to grow into if it can grow."""
        if request.status is Status.SWAPPED:
            now = len({block for sequence in request.sequences for block in sequence.table.blocks})
            live = 0
        else:
            hits = self._match(request)
            now = self._shared_blocks(request) + sum(
                blocks_for(len(s.token_ids), self.pool.block_size) - self._shared_blocks(request)
                for s in request.sequences
            )
            live = sum(self.pool.ref_count(entry.block) > 0 for entry in hits)
        growing = min(now + len(request.sequences), request.most_blocks(self.pool))
        return max(now, growing) - live

    def _place(self, request: Request, step: Step) -> None:
        """Give a request the blocks of all its tokens: found in the prefix cache, shared among its sequences, or new."""
        hits = self._match(request)
        leader, *others = request.sequences
        leader.table.adopt([entry.block for entry in hits])
        leader.num_computed_tokens = leader.table.num_tokens
        leader.published = hits[-1] if hits else None
        leader.num_published_blocks = len(hits)
        leader.table.append(len(leader.token_ids) - leader.table.num_tokens)
        for sequence in others:
            shared = self._shared_blocks(request) * self.pool.block_size
            sequence.table = leader.table.fork(shared)
            sequence.num_computed_tokens = shared
            sequence.table.append(len(sequence.token_ids) - shared)
        step.cached_tokens += leader.num_computed_tokens
        if self.pool.prefix_cache is not None:
            self.pool.prefix_cache.count((len(leader.token_ids) - 1) // self.pool.block_size, len(hits))

    def _match(self, request: Request) -> list[Entry]:
        if self.pool.prefix_cache is None:
            return []
        tokens = request.sequences[0].token_ids
        return self.pool.prefix_cache.match(tokens, self.pool.block_size, request.sampling.cache_salt)

    def _shared_blocks(self, request: Request) -> int:
        """Full blocks of the prompt, which several sequences of one request hold in common."""
        return len(request.prompt_token_ids) // self.pool.block_size if len(request.sequences) > 1 else 0

    def _publish(self, request: Request, sequence: Sequence) -> None:
        cache, size = self.pool.prefix_cache, self.pool.block_size
        if cache is None:
            return
        for i in range(sequence.num_published_blocks, sequence.num_computed_tokens // size):
            tokens = sequence.token_ids[i * size : (i + 1) * size]
            block = sequence.table.blocks[i]
            sequence.published = cache.publish(sequence.published, tokens, request.sampling.cache_salt, block)
            sequence.num_published_blocks = i + 1

    # ---- preemption

    def _preempt(self, request: Request, step: Step) -> None:
        """Take a request's blocks away: to the host pool if there is one with room, else to be recomputed."""
        step.preempted.append(request)
        tables = [sequence.table for sequence in request.sequences]
        blocks = {block for table in tables for block in table.blocks}
        if self.host_pool is not None and len(blocks) <= self.host_pool.num_free:
            self._requeue(request, Status.SWAPPED)
            step.swaps_out += move_tables(tables, self.host_pool)
        else:
            self._requeue(request, Status.WAITING)

    def _requeue(self, request: Request, status: Status) -> None:
        self._remove(request)
        request.status = status
        insort(self.waiting, request, key=lambda r: r.seniority)
        if status is Status.WAITING:
            for sequence in request.sequences:
                sequence.forget_cache()
                sequence.table = BlockTable(self.pool)

    def _drop(self, request: Request) -> None:
        self._remove(request)
        request.status = Status.FINISHED

    def _remove(self, request: Request) -> None:
        for queue in (self.running, self.waiting):
            if request in queue:
                queue.remove(request)
