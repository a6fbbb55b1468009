"""Engine metrics, which show if the pool is too small and what that costs in latency (chapter 6).

The signs of a pool that is too small, in the order in which they appear: utilisation is near 1, the queue grows,
requests are preempted, the 99th percentile of the inter-token latency jumps while its median stays. `snapshot`
returns all current values, `history` keeps some of them over time for plotting, and `prometheus` returns the text
that a monitoring system scrapes.

Invariants: recording takes a few microseconds per sequence and step and a fixed amount of memory, however long the
engine runs; values that the pool or the scheduler already has are read there and not counted again.
"""

from __future__ import annotations

import time
from collections import abc
from collections.abc import Callable
from dataclasses import dataclass

from ..blocks.block_pool import BlockPool
from ..scheduling.request import Request, Status
from ..scheduling.scheduler import Scheduler
from ..scheduling.step import Step
from .histogram import Histogram
from .prometheus import Readings, exposition

HISTORY = 1024


class TimedBlockPool(BlockPool):
    """A pool that records in `allocation_seconds` how long each allocation took."""

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool = False) -> None:
        super().__init__(num_blocks, block_size, enable_prefix_caching)
        self.allocation_seconds = Histogram()

    def allocate(self, n: int) -> list[int]:
        """Allocate as `BlockPool.allocate` does, and time it. An allocation of 0 blocks is not timed."""
        if n == 0:
            return super().allocate(n)
        started = time.perf_counter()
        blocks = super().allocate(n)
        self.allocation_seconds.observe(time.perf_counter() - started)
        return blocks


@dataclass(frozen=True)
class Point:
    """The engine's state at the end of one step; `history` is a list of these."""

    seconds: float
    step: int
    used_blocks: int
    free_blocks: int
    cached_blocks: int
    wasted_slots: int
    running: int
    waiting: int
    preemptions: int


class Metrics:
    """Counts since the engine started. The engine calls `arrive` for each request and `observe` after each step.

    Args:
        scheduler: the scheduler to watch.
        clock: returns the time in seconds; a simulator passes its own.

    Attributes:
        steps: forward passes.
        computed_tokens: tokens that went through the model, including prompts.
        prompt_tokens: tokens of the completely prefilled prompts, including cached tokens.
        generated_tokens: sampled tokens; the code that samples adds to this counter.
        cached_tokens: tokens found in the prefix cache instead of computed.
        preemptions: requests preempted while they ran; `swapped_out` of them were swapped to the host.
        copied_blocks, swapped_out_blocks, swapped_in_blocks: blocks that the storage had to copy.
        peak_used_blocks, peak_running: the maximum at the end of any step.
        time_to_first_token: from a request's arrival, in seconds.
        inter_token_latency: from one token of a sequence to its next, in seconds, including any preemption.
        history: a bounded list of `Point`s, evenly spread over all steps so far.
    """

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float] = time.perf_counter) -> None:
        self.scheduler = scheduler
        self.clock = clock
        self.steps = 0
        self.computed_tokens = 0
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.cached_tokens = 0
        self.preemptions = 0
        self.swapped_out = 0
        self.copied_blocks = 0
        self.swapped_out_blocks = 0
        self.swapped_in_blocks = 0
        self.peak_used_blocks = 0
        self.peak_running = 0
        self.time_to_first_token = Histogram()
        self.inter_token_latency = Histogram()
        self.history: list[Point] = []
        self._stride = 1  # steps between two points of the history
        self._times: dict[Request, float] = {}  # arrivals of requests without a token
        self._started = clock()

    def arrive(self, request: Request, at: float | None = None) -> None:
        """Record a request's arrival, now or at another time of the clock."""
        self._times[request] = self.clock() if at is None else at

    def observe(self, step: Step) -> None:
        """Count a computed step; call this before its tokens are appended and finished sequences free blocks."""
        self.steps += bool(step.chunks)
        self.computed_tokens += step.num_tokens
        self.cached_tokens += step.cached_tokens
        self.preemptions += len(step.preempted)
        self.swapped_out += sum(request.status is Status.SWAPPED for request in step.preempted)
        self.copied_blocks += len(step.copies)
        self.swapped_out_blocks += len(step.swaps_out)
        self.swapped_in_blocks += len(step.swaps_in)
        now = self.clock()
        for request, sequence, _, stop in step.chunks:
            if stop != len(sequence.token_ids):
                continue  # part of a prompt: no token yet
            if sequence.last_token_time is not None:
                self.inter_token_latency.observe(now - sequence.last_token_time)
            elif request in self._times:  # else it arrived before this `Metrics` existed
                self.time_to_first_token.observe(now - self._times.pop(request))
                self.prompt_tokens += len(request.prompt_token_ids)
            sequence.last_token_time = now
        self._end_step(now)

    def repeat(self, gaps: abc.Sequence[float]) -> None:
        """Count one more decode of all running sequences after each of these gaps (seconds): a simulator skips them."""
        num_seqs = sum(len(request.sequences) for request in self.scheduler.running)
        self.steps += len(gaps)
        self.computed_tokens += num_seqs * len(gaps)
        for gap in gaps:
            self.inter_token_latency.observe(gap, num_seqs)
        now = self.clock()
        for request in self.scheduler.running:
            for sequence in request.sequences:
                sequence.last_token_time = now
        self._end_step(now)

    def wasted_slots(self) -> int:
        """Return how many held slots have no token: the unfilled ends of last blocks, shared blocks counted once."""
        size = self.scheduler.pool.block_size
        filled: dict[int, int] = {}  # last block -> its tokens, by the longest of the tables that end in it
        for request in self.scheduler.running:
            for sequence in request.sequences:
                table = sequence.table
                if table.num_tokens % size:
                    filled[table.blocks[-1]] = max(table.num_tokens % size, filled.get(table.blocks[-1], 0))
        return sum(size - tokens for tokens in filled.values())

    def snapshot(self) -> dict[str, float | None]:
        """Return all current values, by name. Latencies are in seconds; None if none was measured yet."""
        scheduler, pool = self.scheduler, self.scheduler.pool
        cache = pool.prefix_cache
        ttft, itl = self.time_to_first_token, self.inter_token_latency
        allocation = pool.allocation_seconds if isinstance(pool, TimedBlockPool) else Histogram()
        counted = ("steps", "computed_tokens", "prompt_tokens", "generated_tokens", "cached_tokens", "preemptions",
                   "swapped_out", "copied_blocks", "swapped_out_blocks", "swapped_in_blocks",
                   "peak_used_blocks", "peak_running")  # fmt: skip
        return {
            "num_blocks": pool.num_blocks,
            "used_blocks": pool.num_used,
            "free_blocks": pool.num_free,
            "cached_blocks": len(cache) if cache is not None else 0,
            "utilisation": pool.num_used / pool.num_blocks,
            "wasted_slots": self.wasted_slots(),
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "swapped": sum(request.status is Status.SWAPPED for request in scheduler.waiting),
            "finished": scheduler.finished.total(),
            **{name: getattr(self, name) for name in counted},
            "block_queries": cache.queries if cache is not None else 0,
            "block_hits": cache.hits if cache is not None else 0,
            "ttft_p50": ttft.quantile(0.5),
            "ttft_p99": ttft.quantile(0.99),
            "itl_p50": itl.quantile(0.5),
            "itl_p99": itl.quantile(0.99),
            "allocation_p50": allocation.quantile(0.5),
            "allocation_p99": allocation.quantile(0.99),
        }

    def prometheus(self) -> str:
        """Return the values in Prometheus' text format, under vLLM's names where vLLM has them."""
        pool = self.scheduler.pool
        return exposition(
            Readings(
                self.snapshot(),
                pool.block_size,
                self.scheduler.finished,
                self.time_to_first_token,
                self.inter_token_latency,
                pool.allocation_seconds if isinstance(pool, TimedBlockPool) else None,
            )
        )

    def _end_step(self, now: float) -> None:
        pool, running = self.scheduler.pool, len(self.scheduler.running)
        if len(self._times) > 2 * (running + len(self.scheduler.waiting)) + 64:  # drop those that have ended
            self._times = {r: times for r, times in self._times.items() if r.status is not Status.FINISHED}
        self.peak_used_blocks = max(self.peak_used_blocks, pool.num_used)
        self.peak_running = max(self.peak_running, running)
        if self.history and self.steps < self.history[-1].step + self._stride:
            return
        cached = len(pool.prefix_cache) if pool.prefix_cache is not None else 0
        self.history.append(
            Point(
                now - self._started, self.steps, pool.num_used, pool.num_free, cached, self.wasted_slots(),
                running, len(self.scheduler.waiting), self.preemptions,
            )
        )  # fmt: skip
        if len(self.history) > HISTORY:  # keep every second point, and from now on record half as many
            self.history = self.history[::2]
            self._stride *= 2
