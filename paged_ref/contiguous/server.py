"""The baseline that paging replaced: each request's keys and values in one contiguous piece of an arena (chapter 1).

A contiguous cache has to be reserved before it is filled, when the final length of a request is not known. The vLLM
paper compares three rules for how much to reserve, all with a buddy allocator:

    reserve_max             the longest length allowed           Orca (Max)
    reserve_power_of_two    prompt + output rounded up to 2^k    Orca (Pow2): knows the output within a factor of 2
    reserve_oracle          prompt + output                      Orca (Oracle): knows the future; cannot be built

At any moment each slot of the arena is in one of four states, and three of them are waste:

    |<----------- piece of request A ----------->|<-- hole -->|<------- piece of request B ------
    | token token token | will be used | never   |            | token token | will be used | never
      used                reserved       internal   external

The slots that the arena adds by rounding up count as external waste, as in the paper: no request asked for them.

Invariants: no job overtakes another; a job that does not fit changes nothing; the four states always add up to the
whole arena. (PagedAttention paper, sections 3.1 and 6.1.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..arguments import next_power_of_two
from ..sizing import Usage, split_reservation
from ..workload import Job
from .arena import Arena

Reserve = Callable[[Job, int], int]  # (job, max_tokens) -> slots to reserve, at most max_tokens


def reserve_max(job: Job, max_tokens: int) -> int:
    """Reserve the longest length allowed, whatever the job is."""
    return max_tokens


def reserve_power_of_two(job: Job, max_tokens: int) -> int:
    """Reserve for an output whose length is known within a factor of two."""
    return min(max_tokens, job.prompt_tokens + next_power_of_two(job.output_tokens))


def reserve_oracle(job: Job, max_tokens: int) -> int:
    """Reserve for an output whose length is known."""
    return job.prompt_tokens + job.output_tokens


@dataclass
class Running:
    """A job in its piece of the arena: `num_slots` slots as requested, and `rounded` more from rounding up."""

    job: Job
    start: int
    num_slots: int
    rounded: int
    num_tokens: int

    @property
    def left(self) -> int:
        """Tokens still to generate."""
        return self.job.prompt_tokens + self.job.output_tokens - self.num_tokens

    @property
    def usage(self) -> Usage:
        """The slots of the piece by state."""
        usage = split_reservation(self.num_tokens, self.num_tokens + self.left, self.num_slots)
        return usage + Usage(0, 0, 0, external=self.rounded)


class ContiguousServer:
    """First come, first served, with continuous batching: a finished job leaves and the next that fits is admitted.

    Attributes:
        waiting: jobs, the oldest first. No job overtakes another.
        running: jobs, by the start of their piece.

    Raises:
        ValueError: a job that could not run even alone.
    """

    def __init__(self, jobs: Iterable[Job], arena: Arena, reserve: Reserve, max_tokens: int = 2048) -> None:
        self.arena = arena
        self.reserve = reserve
        self.max_tokens = max_tokens
        self.waiting = deque(jobs)
        self.running: dict[int, Running] = {}
        room = max((size for _, size in arena.holes()), default=0)
        for job in self.waiting:
            if reserve(job, max_tokens) > room:
                raise ValueError(
                    f"a job needs {reserve(job, max_tokens)} contiguous slots, but the largest hole has {room}"
                )

    def admit(self) -> None:
        """Admit waiting jobs until the oldest of them does not fit."""
        while self.waiting:
            job = self.waiting[0]
            wanted = self.reserve(job, self.max_tokens)
            start = self.arena.allocate(wanted)
            if start is None:
                return
            self.waiting.popleft()
            rounded = self.arena.size_of(start) - wanted
            self.running[start] = Running(job, start, wanted, rounded, job.prompt_tokens)

    def advance(self, steps: int) -> None:
        """Let every running job generate `steps` tokens, and remove the jobs that have ended.

        Raises:
            ValueError: a job has fewer tokens left to generate; nothing changes then.
        """
        if steps > self.steps_to_next_end():
            raise ValueError(f"{steps} steps, but a job ends after {self.steps_to_next_end()}")
        for running in list(self.running.values()):
            running.num_tokens += steps
            if not running.left:
                del self.running[running.start]
                self.arena.free(running.start)

    def steps_to_next_end(self) -> int:
        """Return the number of steps until the first running job has all its tokens."""
        return min((running.left for running in self.running.values()), default=0)

    def usage(self) -> Usage:
        """Return the arena's slots by state. All free slots count as external: a job waits and cannot use them."""
        return sum((r.usage for r in self.running.values()), Usage(0, 0, 0, self.arena.num_free))


@dataclass(frozen=True)
class Run:
    """The result of `serve`.

    Attributes:
        average: slots by state, averaged over the steps in which a job waited.
        mean_running: jobs at once, averaged over the same steps.
        steps: steps until the last job ended.
    """

    average: Usage
    mean_running: float
    steps: int


def serve(
    jobs: Iterable[Job], arena: Arena, reserve: Reserve, max_tokens: int = 2048, warm_up: int = 0
) -> Run:
    """Run jobs that all wait from the beginning, and average over the steps in which some still wait.

    Args:
        warm_up: steps at the beginning to leave out of the averages: the first jobs all start at the same time.
    """
    server = ContiguousServer(jobs, arena, reserve, max_tokens)
    total, weight, running, step = Usage(0, 0, 0, 0), 0, 0, 0
    while server.waiting or server.running:
        server.admit()
        steps, count = server.steps_to_next_end(), len(server.running)
        if server.waiting and step >= warm_up:
            # Each of these steps turns one reserved slot of each running job into a used one.
            grown = count * (steps - 1) / 2
            total += (server.usage() + Usage(grown, -grown, 0, 0)) * steps
            weight += steps
            running += count * steps
        server.advance(steps)
        step += steps
    if not weight:
        raise ValueError("no job waited at any time after the warm-up: use more jobs or fewer slots")
    return Run(total * (1 / weight), running / weight, step)
