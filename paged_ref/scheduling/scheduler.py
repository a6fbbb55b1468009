"""Who runs in the next step: admission, continuous batching, chunked prefill, preemption (chapter 6).

A step computes a flat batch of tokens. The scheduler fills it under two limits, `max_num_batched_tokens` tokens and
`max_num_seqs` sequences, in this order:

1. every decoding sequence gets its next token. If the pool cannot give a block for it, the *latest* request is
   preempted until it can: requests go from the oldest to the youngest, so a victim has not been served yet;
2. prefills under way get what is left of the token budget, oldest first: a long prompt is computed in chunks and
   never stops the decodes;
3. if nobody was preempted, waiting requests are admitted, oldest first, and none overtakes another. One that would
   compute mostly what a prefill of this very step computes waits a step and finds it in the prefix cache.

"Older" is by `Request.seniority`: priority first, then arrival.

Admission takes the blocks of *all* tokens a request has, so a prefill never needs a block later and two half-admitted
requests cannot preempt each other. It answers

    OK      the blocks of its tokens, and one more for each sequence to grow into, are free above the watermark
    LATER   not now; it waits
    NEVER   the pool is too small for the longest it can become, however long it waits: raised by `add`

Why it always goes on: the oldest running request is never preempted while another runs, and `NEVER` makes sure that
alone it fits. So each step computes at least one token of it; when nothing runs, the pool is free and the oldest
waiting request is admitted. (PagedAttention paper, section 4.5: gang scheduling of a request's sequences, first come
first served, preemption by swap or recompute. The one-number view of a sequence's progress is vLLM V1's; chunked
prefill is Sarathi-Serve's.)
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

# A request waits for another's prefill only if that saves it at least this many tokens of its own.
MIN_SAVED_TOKENS = 64


class Admission(Enum):
    """The answer to "may this request run now?"."""

    OK = "ok"
    LATER = "later"
    NEVER = "never"


class NeverFits(ValueError):
    """The request cannot run in this engine, however long it waits."""


class Scheduler:
    """Decides each step's batch. It knows no model and no tensor; `BlockManager` moves the blocks.

    Args:
        pool: the blocks of the device.
        max_num_seqs: sequences that run at once.
        max_num_batched_tokens: tokens in one step; at least `max_num_seqs`.
        watermark: share of the pool that admission leaves free, for the running sequences to grow into.
        host_pool: where preempted requests are swapped to. None: they are recomputed.

    Attributes:
        waiting, running: requests, the oldest first. Swapped ones wait.
        finished: how many sequences ended, by reason.

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
                f"watermark = {watermark}: it must be a share of the pool, at least 0 and below 1"
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
        """Whether any request waits or runs."""
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        """Let a request wait for admission.

        Raises:
            NeverFits: it could not run even alone; the message says what it needs and what there is.
        """
        reason = self.never_fits(request)
        if reason is not None:
            raise NeverFits(reason)
        _enqueue(self.waiting, request)

    def never_fits(self, request: Request) -> str | None:
        """Return why the request could not run even alone in an empty pool; None if it could."""
        if request.width > self.max_num_seqs:
            return f"{request.width} sequences wanted, but max_num_seqs = {self.max_num_seqs}"
        needed = request.most_blocks(self.pool)
        if needed > self.pool.num_blocks:
            return (
                f"a prompt of {len(request.prompt_token_ids)} tokens with up to {request.max_new_tokens} new ones in "
                f"{request.width} sequence(s) needs up to {needed} blocks of {self.pool.block_size} tokens, the pool "
                f"has {self.pool.num_blocks}"
            )
        return None

    def admission(self, request: Request, prefix: abc.Sequence[Entry] | None = None) -> Admission:
        """Return whether the request may run now, in the pool as it is at this moment.

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
        """Choose the next step's work and take its blocks."""
        step = Step()
        prefilling = self._schedule_decodes(step)
        budget = self.max_num_batched_tokens - len(step.chunks)  # a decode is one token
        for request, sequence in prefilling:
            budget = self._prefill(request, sequence, step, budget)
        if not step.preempted:
            self._admit_waiting(step, budget)
        return step

    def complete(self, step: Step) -> None:
        """The step's keys and values are written: count them as computed, and let other requests find full blocks."""
        for request, sequence, _, stop in step.chunks:
            if sequence.finish_reason is None:  # not aborted meanwhile
                sequence.num_computed_tokens = stop
                self.manager.publish(request, sequence)

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
        self.finished[reason] += 1
        if not request.sequences:
            self._end(request)

    def replace(self, request: Request, sequences: abc.Sequence[Sequence]) -> None:
        """Go on with some of the request's sequences and forks of them. The others free their blocks."""
        for sequence in request.sequences:
            if sequence not in sequences:
                sequence.forget_cache()
        request.sequences = list(sequences)

    def conclude(self, request: Request, finished: abc.Sequence[Sequence]) -> None:
        """End a request with these results in the place of its sequences, which free their blocks."""
        self.replace(request, [])
        request.finished += finished
        self.finished.update(sequence.finish_reason or "abort" for sequence in finished)
        self._end(request)

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
        """Raise AssertionError if pools, tables and requests do not agree. Takes time in proportion to everything."""
        self.manager.check([*self.running, *self.waiting])
        for request in self.running:
            for sequence in request.sequences:
                if not sequence.num_computed_tokens <= sequence.table.num_tokens <= len(sequence.token_ids):
                    raise AssertionError(
                        f"request {request.request_id}: computed, placed and all tokens do not rise"
                    )
        for request in self.waiting:
            where = self.manager.host_pool if request.status is Status.SWAPPED else None
            if any(s.table.pool is not where for s in request.sequences if s.table.blocks):
                raise AssertionError(
                    f"request {request.request_id} is {request.status.value} and holds device blocks"
                )
        for queue in (self.running, self.waiting):
            if queue != sorted(queue, key=lambda r: r.seniority):
                raise AssertionError("requests are not in the order of their seniority")
        if sum(r.width for r in self.running) > self.max_num_seqs:
            raise AssertionError(f"more than {self.max_num_seqs} sequences run")

    # ---- the parts of a step

    def _schedule_decodes(self, step: Step) -> list[tuple[Request, Sequence]]:
        """One token for each decoding sequence, oldest request first. Returns the sequences that prefill."""
        prefilling: list[tuple[Request, Sequence]] = []
        for request in list(self.running):
            if request.status is not Status.RUNNING:
                break  # preempted by an older one, and so is everyone after it
            decoding = [sequence for sequence in request.sequences if sequence.needs_slot]
            if not self._make_room(request, decoding, step):
                break  # preempted itself, the last one left
            if len(decoding) < len(request.sequences):
                prefilling += [
                    (request, sequence) for sequence in request.sequences if not sequence.needs_slot
                ]
            self._decode(request, decoding, step)
        return prefilling

    def _make_room(self, request: Request, decoding: list[Sequence], step: Step) -> bool:
        """Preempt from the latest request on until the decodes fit; False if that took the request itself."""
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
        """As many of a sequence's placed tokens as the budget allows; returns what is left of it. Needs no block.

        A sequence may begin with blocks that the request's first one still computes. That one comes first, so there is
        budget left for the others only if it is computed to its end in this step, and a step writes before it reads.
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
            # Only a request that comes back from the host may decode at once.
            decoding = [sequence for sequence in request.sequences if sequence.needs_slot]
            prefilling = [sequence for sequence in request.sequences if not sequence.needs_slot]
            self._decode(request, decoding, step)
            budget -= len(decoding)
            for sequence in prefilling:
                budget = self._prefill(request, sequence, step, budget)

    def _prefix_is_being_computed(self, request: Request, found: int, computing: Iterable[Request]) -> bool:
        """Whether prefills under way will publish most of what this request would have to compute itself.

        Requests that arrive together with one system prompt must not all compute it: one does, the others wait until
        its blocks are published, which takes as many steps as its prefill has chunks left. `found` full blocks are
        cached already.
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
        """Take a request's blocks away: to the host pool if there is one with room, else to be recomputed."""
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
