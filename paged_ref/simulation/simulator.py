"""The real scheduler and block manager, driven by a workload without a model (chapters 1 and 6).

The simulator has no policy of its own. It adds requests when they arrive, calls `Scheduler.schedule` for each step,
takes the step's duration from `CostModel`, and ends sequences at the lengths that the workload gives them:

    arrivals -> scheduler -> step -> seconds -> one token each -> scheduler ...

Most steps are alike: all requests decode, and none arrives or ends. `schedule` would then make the same choice
again, so the simulator calls it only once and appends several tokens to each table at a time. `_quiet_steps` returns
how many steps are certain to be alike; a test runs workloads with and without this shortcut and gets the same times
and the same counts.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..blocks.block_pool import BlockPool
from ..blocks.block_table import BlockTable
from ..sampling.params import SamplingParams
from ..scheduling.request import Request, Sequence
from ..scheduling.scheduler import Scheduler
from ..scheduling.step import Step
from ..sizing import blocks_for
from ..telemetry.metrics import Metrics
from ..workload import Job
from .cost_model import CostModel


@dataclass
class SimulationResult:
    """The result of a simulation.

    Attributes:
        metrics: the engine's metrics, in simulated seconds.
        simulated_seconds: simulated time until the last token.
        wall_seconds: real time that the simulation took.
        finished_at: simulated time at which each job ended, in the order of the jobs.
        scheduled_steps: steps for which `schedule` was called; the others were repeats.
    """

    metrics: Metrics
    simulated_seconds: float = 0.0
    wall_seconds: float = 0.0
    finished_at: list[float] = field(default_factory=list)
    scheduled_steps: int = 0

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per simulated second."""
        return self.metrics.generated_tokens / self.simulated_seconds if self.simulated_seconds else 0.0

    @property
    def token_states(self) -> float:
        """Fraction of the pool's slots that held a token while a request waited (compare `contiguous.server.serve`)."""
        pool = self.metrics.scheduler.pool
        points = [point for point in self.metrics.history if point.waiting]
        tokens = sum(point.used_blocks * pool.block_size - point.wasted_slots for point in points)
        return tokens / (len(points) * pool.num_blocks * pool.block_size) if points else 0.0


class Simulator:
    """Runs jobs on a scheduler.

    Args:
        scheduler: with the pool, the limits and the preemption mode to study.
        cost: the cost model that gives the duration of steps.
        max_tokens: limit for prompt and output together: the length for which the scheduler must be prepared.
        skip: repeat steps that are certain to be alike without calling `schedule` again.
    """

    def __init__(
        self, scheduler: Scheduler, cost: CostModel, max_tokens: int = 2048, skip: bool = True
    ) -> None:
        self.scheduler = scheduler
        self.cost = cost
        self.max_tokens = max_tokens
        self.skip = skip
        self.now = 0.0
        self.metrics = Metrics(scheduler, clock=lambda: self.now)
        self._arriving: deque[tuple[int, Job]] = deque()
        self._one_priority = True
        self._left: dict[Request, int] = {}  # tokens still to generate
        self._result = SimulationResult(self.metrics)

    def run(self, jobs: Iterable[Job]) -> SimulationResult:
        """Run jobs, given in order of arrival, until all have ended.

        Raises:
            NeverFits: a job cannot run in this pool.
        """
        started = time.perf_counter()
        self._arriving = deque(enumerate(jobs))
        self._one_priority = len({job.priority for _, job in self._arriving}) < 2
        self._result.finished_at = [0.0] * len(self._arriving)
        while self._arriving or self.scheduler.has_work:
            if not self.scheduler.has_work:
                self.now = max(self.now, self._arriving[0][1].seconds)
            self._receive()
            step = self.scheduler.schedule()
            self.now += self.cost.step_seconds(step, self.scheduler.pool.block_size)
            self.scheduler.complete(step)
            self.metrics.observe(step)
            self._result.scheduled_steps += 1
            ended = self._take_tokens(step)
            while self.skip and (steps := self._quiet_steps(step, ended)):
                ended = self._repeat(steps)
        self._result.simulated_seconds = self.now
        self._result.wall_seconds = time.perf_counter() - started
        return self._result

    def _receive(self) -> None:
        """Add the requests that have arrived by now."""
        while self._arriving and self._arriving[0][1].seconds <= self.now:
            number, job = self._arriving.popleft()
            # Token `number + max_tokens` occurs in this job only; the shared beginning is 0, 1, 2, ...
            token_ids = list(range(job.shared_tokens))
            token_ids += [number + self.max_tokens] * (job.prompt_tokens - job.shared_tokens)
            sequence = Sequence(list(token_ids), len(token_ids), BlockTable(self.scheduler.pool))
            room = self.max_tokens - len(token_ids)
            request = Request(number, token_ids, _SAMPLING, room, [sequence], priority=job.priority)
            self.scheduler.add(request)
            self.metrics.arrive(request, job.seconds)
            self._left[request] = job.output_tokens

    def _take_tokens(self, step: Step) -> bool:
        """Append the sampled tokens and end the complete sequences; return True if any ended."""
        ended = False
        for chunk in step.chunks:
            if chunk.samples:
                chunk.sequence.token_ids.append(chunk.request.request_id + self.max_tokens)
                self.metrics.generated_tokens += 1
                self._left[chunk.request] -= 1
                if not self._left[chunk.request]:
                    self._end(chunk.request)
                    ended = True
        return ended

    def _end(self, request: Request) -> None:
        del self._left[request]
        self._result.finished_at[request.request_id] = self.now
        self.scheduler.finish(request, request.sequences[0], "length")

    # ---- the shortcut

    def _quiet_steps(self, step: Step, ended: bool) -> int:
        """Return how many steps `schedule` would now fill with one decode of each running sequence and nothing else.

        All requests decode, and none can be admitted: either none waits, or the oldest waiting request was tried in the
        last step, the answer was LATER, and no block was freed since. The count includes the step in which a sequence
        ends. The pool must have the blocks for all these steps without evicting from the prefix cache.
        """
        scheduler, cache = self.scheduler, self.scheduler.pool.prefix_cache
        if not scheduler.running or self.now >= self._next_arrival():
            return 0
        if scheduler.waiting:
            with_head = step.num_tokens + len(scheduler.waiting[0].sequences)
            was_asked = not step.preempted and with_head <= scheduler.max_num_batched_tokens
            if ended or not was_asked or cache is not None:
                return 0
        if not all(request.sequences[0].needs_slot for request in scheduler.running):
            return 0
        steps = min(self._left[request] for request in scheduler.running)
        room = scheduler.pool.num_free - (len(cache) if cache is not None else 0)
        while steps and self._blocks_for(steps, room) > room:
            steps //= 2
        return steps

    def _next_arrival(self) -> float:
        """Return the time of the next arrival that can matter; one that only queues behind its equals does not."""
        if not self._arriving or (self.scheduler.waiting and self._one_priority):
            return math.inf
        return self._arriving[0][1].seconds

    def _blocks_for(self, steps: int, room: int) -> int:
        """Return the blocks that running sequences take in `steps` steps, or an upper bound if that is <= `room`."""
        size, running = self.scheduler.pool.block_size, self.scheduler.running
        at_most = len(running) * blocks_for(steps, size)
        if at_most <= room:
            return at_most
        tables = [request.sequences[0].table for request in running]
        return sum(blocks_for(table.num_tokens + steps, size) - len(table.blocks) for table in tables)

    def _repeat(self, steps: int) -> bool:
        """Compute up to `steps` quiet steps, until the next arrival; return True if a sequence ended."""
        running = list(self.scheduler.running)
        if self.scheduler.pool.prefix_cache is not None:  # the first sequence to fill a block publishes first
            size = self.scheduler.pool.block_size
            running.sort(key=lambda request: (-request.sequences[0].num_computed_tokens - 1) % size)
        context = sum(request.sequences[0].num_computed_tokens for request in running)
        arrival = self._next_arrival()
        gaps: list[float] = []
        while len(gaps) < steps and self.now < arrival:
            context += len(running)
            before = self.now
            self.now += self.cost.seconds(len(running), context, context)
            gaps.append(self.now - before)
        steps = len(gaps)
        for request in running:
            sequence = request.sequences[0]
            sequence.table.grow(steps)
            sequence.token_ids += [request.request_id + self.max_tokens] * steps
            sequence.num_computed_tokens += steps
            self.scheduler.manager.publish(request, sequence)
            self._left[request] -= steps
        self.metrics.repeat(gaps)
        self.metrics.generated_tokens += steps * len(running)
        ended = [request for request in self.scheduler.running if not self._left[request]]
        for request in ended:
            self._end(request)
        return bool(ended)


_SAMPLING = SamplingParams()


def simulate(
    jobs: Iterable[Job],
    cost: CostModel,
    *,
    block_size: int = 16,
    num_blocks: int | None = None,
    enable_prefix_caching: bool = False,
    preemption: str = "recompute",
    watermark: float = 0.01,
    max_num_seqs: int = 256,
    max_num_batched_tokens: int = 2048,
    max_tokens: int = 2048,
    skip: bool = True,
) -> SimulationResult:
    """Run jobs with the engine's settings; `num_blocks` None: as many as fit on the cost model's devices."""
    num_blocks = cost.num_blocks(block_size) if num_blocks is None else num_blocks
    if preemption not in ("recompute", "swap"):
        raise ValueError(f"preemption = {preemption!r}: it must be 'recompute' or 'swap'")
    pool = BlockPool(num_blocks, block_size, enable_prefix_caching)
    host_pool = BlockPool(num_blocks, block_size) if preemption == "swap" else None
    scheduler = Scheduler(pool, max_num_seqs, max_num_batched_tokens, watermark, host_pool)
    return Simulator(scheduler, cost, max_tokens, skip).run(jobs)
