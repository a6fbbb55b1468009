"""Two classic allocators of contiguous pieces in one row of slots (chapter 1).

    FirstFitArena   takes the first hole that is large enough; neighbouring holes are merged
    BuddyArena      sizes are powers of two; a hole splits into two "buddies", and only buddies are merged

Both can have enough free slots and still fail, because the free slots are not contiguous: that is *external
fragmentation*. Blocks of one size (`block_pool.py`) do not have this problem: any free block fits any request.

Invariants: pieces and holes, end to end, cover the whole arena; an allocation that fails changes nothing.
(Knuth, The Art of Computer Programming, volume 1, section 2.5, describes both.)
"""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import pairwise
from typing import Protocol

from ..arguments import next_power_of_two, require_int


class Arena(Protocol):
    """A row of slots from which contiguous pieces are allocated."""

    num_slots: int
    num_free: int

    def allocate(self, num_slots: int) -> int | None:
        """Return the start of a new piece of at least `num_slots` slots, or None if no hole is large enough."""

    def size_of(self, start: int) -> int:
        """Return the size of the piece that begins at `start`; more than requested if the arena rounds up."""

    def free(self, start: int) -> None:
        """Free the piece that begins at `start`."""

    def holes(self) -> list[tuple[int, int]]:
        """Return (start, size) of every hole, sorted by start."""


class FirstFitArena:
    """An arena that allocates from the first hole that is large enough.

    Raises:
        ValueError: fewer than one slot.
    """

    def __init__(self, num_slots: int) -> None:
        require_int("num_slots", num_slots, 1)
        self.num_slots = num_slots
        self.num_free = num_slots
        self._pieces: dict[int, int] = {}  # start -> size
        self._holes = [(0, num_slots)]

    def allocate(self, num_slots: int) -> int | None:
        """Take `num_slots` slots from the first hole that is large enough. None: no hole is, whatever the total."""
        require_int("num_slots", num_slots, 1)
        for index, (start, size) in enumerate(self._holes):
            if size >= num_slots:
                rest = [(start + num_slots, size - num_slots)] if size > num_slots else []
                self._holes[index : index + 1] = rest
                self._pieces[start] = num_slots
                self.num_free -= num_slots
                return start
        return None

    def size_of(self, start: int) -> int:
        """Return the size of the piece that begins at `start`."""
        return self._pieces[start]

    def free(self, start: int) -> None:
        """Free a piece and merge it with the holes before and after it.

        Raises:
            ValueError: no piece begins there; nothing changes then.
        """
        size = _take(self._pieces, start)
        self.num_free += size
        at = bisect_left(self._holes, (start, 0))
        first, last = at, at
        if at < len(self._holes) and self._holes[at][0] == start + size:  # a hole begins where the piece ends
            size += self._holes[at][1]
            last = at + 1
        if at and sum(self._holes[at - 1]) == start:  # a hole ends where the piece begins
            start, before = self._holes[at - 1]
            size += before
            first = at - 1
        self._holes[first:last] = [(start, size)]

    def holes(self) -> list[tuple[int, int]]:
        """Return (start, size) of every hole, sorted by start."""
        return list(self._holes)

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        _check_cover(self, self._pieces)
        for (start, size), (following, _) in pairwise(self._holes):
            if start + size == following:
                raise AssertionError(f"two holes touch at {following}: they should be merged")


class BuddyArena:
    """An arena that rounds every piece up to a power of two. Its holes have power-of-two sizes, too.

    A piece of size s begins at a multiple of s, and its buddy at `start XOR s`: the other half of the piece from which
    both were split. An arena whose own size is not a power of two starts as several holes, the largest first.

    Raises:
        ValueError: fewer than one slot.
    """

    def __init__(self, num_slots: int) -> None:
        require_int("num_slots", num_slots, 1)
        self.num_slots = num_slots
        self.num_free = num_slots
        self._pieces: dict[int, int] = {}
        self._holes: dict[int, list[int]] = {}  # size -> starts, in ascending order
        start = 0
        while start < num_slots:
            size = 1 << ((num_slots - start).bit_length() - 1)
            self._holes[size] = [start]
            start += size

    def allocate(self, num_slots: int) -> int | None:
        """Take a piece of the next power of two, from the smallest hole that is large enough. None: no hole is."""
        require_int("num_slots", num_slots, 1)
        size = next_power_of_two(num_slots)
        found = min((hole for hole, starts in self._holes.items() if starts and hole >= size), default=0)
        if not found:
            return None
        start = self._holes[found].pop(0)
        while found > size:  # keep the lower half, the upper one becomes a hole
            found //= 2
            insort(self._holes.setdefault(found, []), start + found)
        self._pieces[start] = size
        self.num_free -= size
        return start

    def size_of(self, start: int) -> int:
        """Return the size of the piece that begins at `start`."""
        return self._pieces[start]

    def free(self, start: int) -> None:
        """Free a piece. As long as its buddy is a hole too, the two are merged.

        Raises:
            ValueError: no piece begins there; nothing changes then.
        """
        size = _take(self._pieces, start)
        self.num_free += size
        while (buddy := start ^ size) in self._holes.get(size, ()):
            self._holes[size].remove(buddy)
            start, size = min(start, buddy), 2 * size
        insort(self._holes.setdefault(size, []), start)

    def holes(self) -> list[tuple[int, int]]:
        """Return (start, size) of every hole, sorted by start."""
        return sorted((start, size) for size, starts in self._holes.items() for start in starts)

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        _check_cover(self, self._pieces)
        for start, size in [*self.holes(), *self._pieces.items()]:
            if size & (size - 1) or start % size:
                raise AssertionError(
                    f"{size} slots at {start}: the size must be a power of two, and the start a multiple of it"
                )


def _take(pieces: dict[int, int], start: int) -> int:
    if start not in pieces:
        raise ValueError(f"no piece begins at slot {start}: it was never allocated, or is free already")
    return pieces.pop(start)


def _check_cover(arena: Arena, pieces: dict[int, int]) -> None:
    """Raise AssertionError unless pieces and holes, end to end, cover the arena."""
    at = 0
    for start, size in sorted([*pieces.items(), *arena.holes()]):
        if start != at:
            raise AssertionError(
                f"slots {min(at, start)} to {max(at, start) - 1} are in no piece or hole, or in two"
            )
        at = start + size
    if at != arena.num_slots or arena.num_free != sum(size for _, size in arena.holes()):
        raise AssertionError(f"{at} slots, {arena.num_free} free: the arena has {arena.num_slots}")
