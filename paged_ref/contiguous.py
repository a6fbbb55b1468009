"""What paging replaced: each request gets one stretch of slots, as long as it could come to need (chapter 1).

A kernel that wants a sequence's keys in one piece needs them to have room to grow in place. How long a request will
become is not known when it comes, so room is reserved for the longest that it might be. Three guesses, from the
vLLM paper's baselines:

    max      up to the model's longest sequence
    pow2     the output's true length, rounded up to a power of two (a guess that is off by at most twice)
    oracle   the true length, which no real system knows

and three ways in which slots are lost:

    | prompt | generated so far | yet to come | never used |            a hole        | another request ...
     `------ token states -----' `-reserved--' `-internal-'  `-external (and rounding)-'

*Reserved* slots will be used, but nobody else can use them until then. *Internal* waste lies within what a request was
given, *external* waste between requests: enough may be free in total, and yet no hole is large enough.
(PagedAttention paper, figures 2 and 3 and section 6.1; its baselines place requests with a buddy allocator.)
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from .workload import Job


class DoesNotFit(RuntimeError):
    """No hole is large enough, whatever is free in total. Nothing was allocated."""


class Arena(Protocol):
    """A row of `num_slots` slots in which stretches are allocated by length and freed by their first slot."""

    num_slots: int
    num_free: int

    def allocate(self, length: int) -> int: ...  # noqa: D102
    def free(self, start: int) -> None: ...  # noqa: D102


class FirstFitArena:
    """Gives the first hole that is long enough. Holes that touch become one."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.num_free = num_slots
        self.holes: list[tuple[int, int]] = [(0, num_slots)]  # (start, end), in order, never touching
        self._end: dict[int, int] = {}

    @property
    def largest_hole(self) -> int:
        """The longest stretch that can be had."""
        return max((end - start for start, end in self.holes), default=0)

    def allocate(self, length: int) -> int:
        """The first slot of a stretch of `length` slots.

        Raises:
            DoesNotFit: no hole is that long.
        """
        _require_length(length)
        for i, (start, end) in enumerate(self.holes):
            if end - start >= length:
                self.holes[i : i + 1] = [(start + length, end)] if end - start > length else []
                self._end[start] = start + length
                self.num_free -= length
                return start
        raise DoesNotFit(
            f"{length} slots wanted: {self.num_free} are free, at most {self.largest_hole} of them in one hole"
        )

    def free(self, start: int) -> None:
        """Give a stretch back.

        Raises:
            ValueError: no stretch begins there.
        """
        if start not in self._end:
            raise ValueError(f"no stretch begins at slot {start}")
        end = self._end.pop(start)
        self.num_free += end - start
        i = bisect_left(self.holes, (start, end))
        first, last = i, i
        if i > 0 and self.holes[i - 1][1] == start:
            first, start = i - 1, self.holes[i - 1][0]
        if i < len(self.holes) and self.holes[i][0] == end:
            last, end = i + 1, self.holes[i][1]
        self.holes[first:last] = [(start, end)]


class BuddyArena:
    """Gives pieces whose length is a power of two, made by halving larger ones; freed halves become whole again.

    The two halves of a piece are *buddies*: their first slots differ in one bit, so finding a piece's buddy is one
    operation. What a request does not need of its piece is lost to everyone (`num_free` does not count it).
    """

    def __init__(self, num_slots: int, largest: int = 2048) -> None:
        self.num_slots = num_slots
        self._free: dict[int, list[int]] = {}  # length -> first slots of free pieces, in order
        self._length: dict[int, int] = {}
        self._largest = largest
        start, length = 0, largest
        while length:  # as many of the largest pieces as there is room for, then what is left in smaller ones
            self._free[length] = []
            while start + length <= num_slots:
                self._free[length].append(start)
                start += length
            length //= 2
        self.num_free = num_slots

    def allocate(self, length: int) -> int:
        """The first slot of a piece of at least `length` slots.

        Raises:
            DoesNotFit: no piece of that size can be had.
        """
        _require_length(length)
        wanted = next_power_of_two(length)
        size = wanted
        while not self._free.get(size):
            if size >= self._largest:
                raise DoesNotFit(
                    f"a piece of {wanted} slots wanted: {self.num_free} are free, in smaller pieces"
                )
            size *= 2
        start = self._free[size].pop(0)
        while size > wanted:
            size //= 2
            insort(self._free[size], start + size)
        self._length[start] = wanted
        self.num_free -= wanted
        return start

    def free(self, start: int) -> None:
        """Give a piece back, and join it with its buddy as often as that is free.

        Raises:
            ValueError: no piece begins there.
        """
        if start not in self._length:
            raise ValueError(f"no piece begins at slot {start}")
        size = self._length.pop(start)
        self.num_free += size
        while size < self._largest and (buddy := start ^ size) in self._free[size]:
            self._free[size].remove(buddy)
            start, size = min(start, buddy), 2 * size
        insort(self._free[size], start)


def reserve_max(job: Job, max_tokens: int) -> int:
    """Slots for the longest sequence there can be."""
    return max_tokens


def reserve_pow2(job: Job, max_tokens: int) -> int:
    """Slots for the prompt and the output's length rounded up to a power of two."""
    return min(job.prompt_tokens + next_power_of_two(job.output_tokens), max_tokens)


def reserve_oracle(job: Job, max_tokens: int) -> int:
    """Slots for exactly what will be needed."""
    return job.prompt_tokens + job.output_tokens


POLICIES = {"max": reserve_max, "pow2": reserve_pow2, "oracle": reserve_oracle}


@dataclass(frozen=True)
class Shares:
    """What an arena's slots are used for, as shares of all of them, on average over time."""

    token_states: float
    reserved: float
    internal: float
    external: float


def simulate_contiguous(
    jobs: Iterable[Job],
    reserve: Callable[[Job, int], int],
    arena: Arena,
    max_tokens: int = 2048,
) -> Shares:
    """Serve jobs first come first served, always as many as fit, one token each a step, while anyone waits.

    Raises:
        DoesNotFit: a job does not fit into the empty arena.
    """
    waiting = deque(jobs)
    running: dict[int, tuple[int, int, int]] = {}  # first slot -> tokens now, tokens at the end, slots given
    sums, steps = [0, 0, 0], 0
    while True:
        while waiting:
            given = reserve(waiting[0], max_tokens)
            try:
                start = arena.allocate(given)
            except DoesNotFit:
                if not running:
                    raise
                break
            job = waiting.popleft()
            running[start] = (job.prompt_tokens, job.prompt_tokens + job.output_tokens, given)
        if not waiting:
            break
        n = min(end - now for now, end, _ in running.values())  # steps until the next one ends
        grown = len(running) * n * (n + 1) // 2  # 1 + 2 + ... + n more tokens, for each
        sums[0] += sum(n * now for now, _, _ in running.values()) + grown
        sums[1] += sum(n * (end - now) for now, end, _ in running.values()) - grown
        sums[2] += sum(n * (given - end) for _, end, given in running.values())
        steps += n
        for start, (now, end, given) in list(running.items()):
            running[start] = (now + n, end, given)
            if now + n == end:
                arena.free(start)
                del running[start]
    if not steps:
        return Shares(0.0, 0.0, 0.0, 0.0)
    token_states, reserved, internal = (total / (steps * arena.num_slots) for total in sums)
    return Shares(token_states, reserved, internal, external=1 - token_states - reserved - internal)


def next_power_of_two(n: int) -> int:
    """The smallest power of two that is at least `n`."""
    return 1 << (n - 1).bit_length()


def _require_length(length: int) -> None:
    if length < 1:
        raise ValueError(f"{length} slots wanted: it must be 1 or more")
