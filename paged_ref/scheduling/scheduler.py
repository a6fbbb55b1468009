"""The scheduler: admission, continuous batching, chunked prefill, preemption (chapter 6).

A step computes a flat batch of tokens. The scheduler fills it under two limits, `max_num_batched_tokens` tokens and
`max_num_seqs` sequences, in this order:

1. Every decoding sequence gets its next token. If the pool has no block for it, the *youngest* running request is
   preempted, and so on until there is one. Requests are served oldest first, so a victim has not been served yet.
2. Prefills under way share the remaining token budget, oldest first: a long prompt is computed in chunks and never
   stalls the decodes.
3. If no request was preempted, waiting requests are admitted, oldest first; none overtakes another. A request waits
   as long as a running prefill computes most of its tokens: it will find them in the prefix cache.

"Older" is by `Request.seniority`: priority first, then arrival.

Admission allocates the blocks of *all* tokens a request has, so a prefill never needs a block later, and two
half-admitted requests cannot preempt each other. The answers are

    OK      the blocks of its tokens, and one more for each sequence to grow into, are free above the watermark
    LATER   not now; the request waits
    NEVER   the pool is too small for the request's longest possible length: `add` raises `NeverFits`

Why it always makes progress: the oldest running request is never preempted while another one runs, and `NEVER`
ensures that it fits alone. So each step computes at least one of its tokens. When nothing runs, the pool is free and
the oldest waiting request is admitted. (PagedAttention paper, section 4.5: gang scheduling of a request's sequences,
first come first served, preemption by swap or recompute. Tracking a sequence's progress with one counter is vLLM V1's
design; chunked prefill is Sarathi-Serve's.)
"""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter, abc
from collections.abc import Iterable
from enum import Enum
from itertools import takewhile

from ..blocks.block_pool import BlockPool
from ..blocks.block_table import blocks_to_append_each
from ..blocks.prefix_cache import Entry
from .block_manager import BlockManager
from .request import Request, Sequence, Status
from .step import Chunk, Step

# A request waits for another request's prefill only if this saves at least this many tokens of prefill.
MIN_SAVED_TOKENS = 64


class Admission(Enum):
    """The answer to "may this request run now?"."""

    OK = "ok"
    LATER = "later"
    NEVER = "never"


class NeverFits(ValueError):
    """The request cannot run in this engine, however long it waits."""


class Scheduler:
    """Decides each step's batch. It uses neither model nor tensors; `BlockManager` moves the blocks.

    Args:
        pool: the blocks of the device.
        max_num_seqs: most sequences that run at once.
        max_num_batched_tokens: most tokens in one step; at least `max_num_seqs`.
        watermark: fraction of the pool that admission leaves free, for the running sequences to grow into.
        host_pool: host blocks to which preempted requests are swapped. None: they are recomputed.

    Attributes:
        waiting, running: requests, the oldest first. Swapped requests are in `waiting`.
        finished: number of sequences that ended, by reason.

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
            raise ValueError(
                f"watermark = {watermark}: it must be a fraction of the pool, at least 0 and below 1"
            )
        self.pool = pool
        self.manager = BlockManager(pool, host_pool)
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.watermark_blocks = math.floor(watermark * pool.num_blocks)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.finished: Counter[str] = Counter()

    @property
    def has_work(self) -> bool:
        """True if any request waits or runs."""
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        """Queue a request for admission.

        Raises:
            NeverFits: the request could not run even alone; the message says what it needs and what the pool has.
        """
        reason = self.never_fits(request)
        if reason is not None:
            raise NeverFits(reason)
        _enqueue(self.waiting, request)

    def never_fits(self, request: Request) -> str | None:
        """Return why the request could not run even alone in an empty pool; None if it could."""
        if request.width > self.max_num_seqs:
            return f"the request has {request.width} sequences, but max_num_seqs = {self.max_num_seqs}"
        needed = request.most_blocks(self.pool)
        if needed > self.pool.num_blocks:
            return (
                f"a prompt of {len(request.prompt_token_ids)} tokens with up to {request.max_new_tokens} new tokens "
                f"in {request.width} sequence(s) needs up to {needed} blocks of {self.pool.block_size} tokens, but "
                f"the pool has {self.pool.num_blocks}"
            )
        return None

    def admission(self, request: Request, prefix: abc.Sequence[Entry] | None = None) -> Admission:
        """Decide if the request may run now, with the current free blocks.

        prefix: its cached blocks (`BlockManager.find_prefix`), if the caller has just looked them up.
        """
        if self.never_fits(request) is not None:
            return Admission.NEVER
        if sum(r.width for r in self.running) + request.width > self.max_num_seqs:
            return Admission.LATER
        reserve = self.watermark_blocks if self.running else 0  # alone, a request may use the whole pool
        prefix = self.manager.find_prefix(request) if prefix is None else prefix
        fits = self.manager.blocks_to_admit(request, prefix) <= self.pool.num_free - reserve
        return Admission.OK if fits else Admission.LATER

    def schedule(self) -> Step:
        """Choose the next step's work and allocate its blocks."""
        step = Step()
        prefilling = self._schedule_decodes(step)
        budget = self.max_num_batched_tokens - len(step.chunks)  # a decode is one token
        for request, sequence in prefilling:
            budget = self._prefill(request, sequence, step, budget)
        if not step.preempted:
            self._admit_waiting(step, budget)
        return step

    def complete(self, step: Step) -> None:
        """Count the step's tokens as computed and publish full blocks. Call it when keys and values are written."""
        for request, sequence, _, stop in step.chunks:
            if sequence.finish_reason is None:  # not aborted meanwhile
                sequence.num_computed_tokens = stop
                self.manager.publish(request, sequence)

    def fork(self, request: Request, sequence: Sequence, index: int) -> Sequence:
        """Add a sequence to a request by forking one that has just been computed."""
        child = sequence.fork(index)
        request.sequences.append(child)
        return child

    def finish(self, request: Request, sequence: Sequence, reason: str) -> None:
        """End one sequence and free its blocks. The request ends with its last sequence."""
        sequence.finish_reason = reason
        sequence.forget_cache()
        request.sequences.remove(sequence)
        request.finished.append(sequence)
        self.finished[reason] += 1
        if not request.sequences:
            self._end(request)

    def replace(self, request: Request, sequences: abc.Sequence[Sequence]) -> None:
        """Continue with these sequences: some of the request's own, and forks of them. Free the others' blocks."""
        for sequence in request.sequences:
            if sequence not in sequences:
                sequence.forget_cache()
        request.sequences = list(sequences)

    def conclude(self, request: Request, finished: abc.Sequence[Sequence]) -> None:
        """End a request with these finished sequences as its results, and free the blocks of its running ones."""
        self.replace(request, [])
        request.finished += finished
        self.finished.update(sequence.finish_reason or "abort" for sequence in finished)
        self._end(request)

    def abort(self, request: Request) -> None:
        """End a request in any state and free its blocks. Harmless if it has ended."""
        for sequence in list(request.sequences):
            self.finish(request, sequence, "abort")

    def recover(self, step: Step) -> None:
        """Recover after a step that failed half-way: its computed, copied and swapped blocks cannot be trusted.

        Every request that the step touched, and every running request, frees its blocks and waits to be recomputed.
        """
        for request in [*self.running, *step.preempted]:
            if request.status in (Status.RUNNING, Status.SWAPPED):
                self._requeue(request, Status.WAITING)

    def check(self) -> None:
        """Raise AssertionError if pools, tables and requests disagree. Takes time proportional to all of them."""
        self.manager.check([*self.running, *self.waiting])
        for request in self.running:
            for sequence in request.sequences:
                if not sequence.num_computed_tokens <= sequence.table.num_tokens <= len(sequence.token_ids):
                    raise AssertionError(
                        f"request {request.request_id}: it must have computed tokens <= slots <= tokens"
                    )
        for request in self.waiting:
            where = self.manager.host_pool if request.status is Status.SWAPPED else None
            if any(s.table.pool is not where for s in request.sequences if s.table.blocks):
                raise AssertionError(
                    f"request {request.request_id} is {request.status.value} but holds device blocks"
                )
        for queue in (self.running, self.waiting):
            if queue != sorted(queue, key=lambda r: r.seniority):
                raise AssertionError("requests are not in order of seniority")
        if sum(r.width for r in self.running) > self.max_num_seqs:
            raise AssertionError(f"more than {self.max_num_seqs} sequences run")

    # ---- the parts of a step

    def _schedule_decodes(self, step: Step) -> list[tuple[Request, Sequence]]:
        """Schedule one token for each decoding sequence, oldest request first. Returns the sequences that prefill."""
        prefilling: list[tuple[Request, Sequence]] = []
        for request in list(self.running):
            if request.status is not Status.RUNNING:
                break  # preempted for an older request, and so are all requests after it
            decoding = [sequence for sequence in request.sequences if sequence.needs_slot]
            if not self._make_room(request, decoding, step):
                break  # it was the last request left and preempted itself
            if len(decoding) < len(request.sequences):
                prefilling += [
                    (request, sequence) for sequence in request.sequences if not sequence.needs_slot
                ]
            self._decode(request, decoding, step)
        return prefilling

    def _make_room(self, request: Request, decoding: list[Sequence], step: Step) -> bool:
        """Preempt requests, youngest first, until the decodes fit; False if the request itself was preempted."""
        while len(decoding) > self.pool.num_free and (
            blocks_to_append_each(sequence.table for sequence in decoding) > self.pool.num_free
        ):
            victim = self.running[-1]
            self._preempt(victim, step)
            if victim is request:
                return False
        return True

    def _decode(self, request: Request, decoding: list[Sequence], step: Step) -> None:
        for sequence in decoding:
            sequence.table.grow(1)
            if sequence.table.pending_copies:
                step.copies += sequence.table.take_copies()
            step.chunks.append(
                Chunk(request, sequence, sequence.num_computed_tokens, len(sequence.token_ids))
            )

    def _prefill(self, request: Request, sequence: Sequence, step: Step, budget: int) -> int:
        """Schedule as many of a sequence's placed tokens as the budget allows; return the remaining budget.

        This allocates no block. A sequence may begin with blocks that the request's first sequence has yet to compute.
        The first sequence is scheduled first, so the others get budget only if it completes in this step. That is
        safe, because a step writes before it reads.
        """
        start = sequence.num_computed_tokens
        stop = min(sequence.table.num_tokens, start + budget)
        if stop > start:
            step.chunks.append(Chunk(request, sequence, start, stop))
        return budget - (stop - start)

    def _admit_waiting(self, step: Step, budget: int) -> None:
        while self.waiting and len(self.waiting[0].sequences) <= budget:
            request = self.waiting[0]
            prefix = self.manager.find_prefix(request)
            if self.admission(request, prefix) is not Admission.OK:
                break
            computing = {chunk.request for chunk in step.chunks if chunk.stop - chunk.start > 1}
            if self._prefix_is_being_computed(request, len(prefix), computing):
                break
            self._dequeue(request)
            if request.status is Status.SWAPPED:
                step.swaps_in += self.manager.swap_in(request)
            else:
                step.cached_tokens += self.manager.place(request, prefix)
            request.status = Status.RUNNING
            _enqueue(self.running, request)
            step.admitted.append(request)
            # Only a request that is swapped in from the host can decode right away.
            decoding = [sequence for sequence in request.sequences if sequence.needs_slot]
            prefilling = [sequence for sequence in request.sequences if not sequence.needs_slot]
            self._decode(request, decoding, step)
            budget -= len(decoding)
            for sequence in prefilling:
                budget = self._prefill(request, sequence, step, budget)

    def _prefix_is_being_computed(self, request: Request, found: int, computing: Iterable[Request]) -> bool:
        """Return True if prefills under way will publish most of the tokens that this request has to compute.

        Requests that arrive together with the same system prompt must not all compute it: one does, and the others
        wait until its blocks are published, which takes as many steps as its prefill has chunks left. `found` full
        blocks are cached already.
        """
        cache, size = self.pool.prefix_cache, self.pool.block_size
        if cache is None or request.status is Status.SWAPPED:
            return False
        sequence, salt = request.sequences[0], request.sampling.cache_salt
        usable = (len(sequence.token_ids) - 1) // size
        for other in computing:
            if not other.sequences or other.sampling.cache_salt != salt:
                continue
            theirs = other.sequences[0]
            cache.extend_keys(theirs.block_keys, theirs.token_ids, size, salt)
            pairs = zip(sequence.block_keys[:usable], theirs.block_keys, strict=False)
            common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            saved = (common - found) * size
            if saved >= MIN_SAVED_TOKENS and 2 * saved > len(sequence.token_ids) - found * size:
                return True
        return False

    # ---- preemption

    def _preempt(self, request: Request, step: Step) -> None:
        """Preempt a request: swap its blocks to the host pool if that has room, else free them for recomputation."""
        step.preempted.append(request)
        if self.manager.can_swap_out(request):
            self._requeue(request, Status.SWAPPED)
            step.swaps_out += self.manager.swap_out(request)
        else:
            self._requeue(request, Status.WAITING)

    def _requeue(self, request: Request, status: Status) -> None:
        self._dequeue(request)
        request.status = status
        _enqueue(self.waiting, request)
        if status is Status.WAITING:
            self.manager.drop(request)

    def _end(self, request: Request) -> None:
        self._dequeue(request)
        request.status = Status.FINISHED

    def _dequeue(self, request: Request) -> None:
        queue = self.running if request.status is Status.RUNNING else self.waiting
        if request in queue:
            queue.remove(request)


def _enqueue(queue: list[Request], request: Request) -> None:
    insort(queue, request, key=lambda r: r.seniority)
