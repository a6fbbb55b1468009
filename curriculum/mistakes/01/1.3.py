# %% wrong="never-joins"
class Arena:
    def __init__(self, num_slots):
        self.holes, self.pieces = [(0, num_slots)], {}

    def allocate(self, size):
        for index, (start, room) in enumerate(self.holes):
            if room >= size:
                self.holes[index : index + 1] = [(start + size, room - size)] if room > size else []
                self.pieces[start] = size
                return start
        return None

    def free(self, start):
        self.holes = sorted([*self.holes, (start, self.pieces.pop(start))])

    def num_free(self):
        return sum(size for _, size in self.holes)

    def largest_hole(self):
        return max((size for _, size in self.holes), default=0)


# %% wrong="joins-one-side"
class Arena:
    def __init__(self, num_slots):
        self.holes, self.pieces = [(0, num_slots)], {}

    def allocate(self, size):
        for index, (start, room) in enumerate(self.holes):
            if room >= size:
                self.holes[index : index + 1] = [(start + size, room - size)] if room > size else []
                self.pieces[start] = size
                return start
        return None

    def free(self, start):
        size = self.pieces.pop(start)
        for hole in self.holes:
            if hole[0] == start + size:  # only the hole behind
                self.holes.remove(hole)
                size += hole[1]
                break
        self.holes = sorted([*self.holes, (start, size)])

    def num_free(self):
        return sum(size for _, size in self.holes)

    def largest_hole(self):
        return max((size for _, size in self.holes), default=0)


# %% wrong="joins-one-side"
class Arena:
    def __init__(self, num_slots):
        self.holes, self.pieces = [[0, num_slots]], {}

    def allocate(self, size):
        for hole in self.holes:
            if hole[1] >= size:
                start = hole[0]
                hole[0] += size
                hole[1] -= size
                self.holes = [h for h in self.holes if h[1]]
                self.pieces[start] = size
                return start
        return None

    def free(self, start):
        size = self.pieces.pop(start)
        for hole in self.holes:
            if sum(hole) == start:  # only the hole before
                hole[1] += size
                return
        self.holes = sorted([*self.holes, [start, size]])

    def num_free(self):
        return sum(size for _, size in self.holes)

    def largest_hole(self):
        return max((size for _, size in self.holes), default=0)


# %% wrong="total-free"
class Arena:
    def __init__(self, num_slots):
        self.num_slots, self.pieces = num_slots, {}

    def _holes(self):
        at, found = 0, []
        for start in sorted(self.pieces):
            if start > at:
                found.append((at, start - at))
            at = start + self.pieces[start]
        return found + ([(at, self.num_slots - at)] if at < self.num_slots else [])

    def allocate(self, size):
        if size > self.num_free():
            return None
        holes = self._holes()
        start = next((s for s, n in holes if n >= size), holes[0][0])
        self.pieces[start] = size
        return start

    def free(self, start):
        del self.pieces[start]

    def num_free(self):
        return self.num_slots - sum(self.pieces.values())

    def largest_hole(self):
        return max((n for _, n in self._holes()), default=0)


# %% wrong="not-first"
class Arena:
    def __init__(self, num_slots):
        self.taken = [False] * num_slots
        self.pieces = {}

    def _holes(self):
        found, at = [], 0
        while at < len(self.taken):
            end = at
            while end < len(self.taken) and not self.taken[end]:
                end += 1
            if end > at:
                found.append((at, end - at))
            at = end + 1
        return found

    def allocate(self, size):
        fits = [(room, start) for start, room in self._holes() if room >= size]
        if not fits:
            return None
        start = min(fits)[1]  # the best fit, not the first
        self.taken[start : start + size] = [True] * size
        self.pieces[start] = size
        return start

    def free(self, start):
        size = self.pieces.pop(start)
        self.taken[start : start + size] = [False] * size

    def num_free(self):
        return self.taken.count(False)

    def largest_hole(self):
        return max((room for _, room in self._holes()), default=0)


# %% wrong="overlap"
class Arena:
    def __init__(self, num_slots):
        self.num_slots, self.pieces = num_slots, {}

    def allocate(self, size):
        start = sum(self.pieces.values())  # as if nothing ever came back
        if start + size > self.num_slots:
            return None
        self.pieces[start] = size
        return start

    def free(self, start):
        del self.pieces[start]

    def num_free(self):
        return self.num_slots - sum(self.pieces.values())

    def largest_hole(self):
        return self.num_free()


# %% wrong="refused"
class Arena:
    def __init__(self, num_slots):
        self.holes, self.pieces = [(0, num_slots)], {}

    def allocate(self, size):
        for index, (start, room) in enumerate(self.holes):
            if room > size:  # a hole of exactly this size is refused
                self.holes[index] = (start + size, room - size)
                self.pieces[start] = size
                return start
        return None

    def free(self, start):
        joined = []
        for at, size in sorted([*self.holes, (start, self.pieces.pop(start))]):
            if joined and sum(joined[-1]) == at:
                joined[-1] = (joined[-1][0], joined[-1][1] + size)
            else:
                joined.append((at, size))
        self.holes = joined

    def num_free(self):
        return sum(size for _, size in self.holes)

    def largest_hole(self):
        return max((size for _, size in self.holes), default=0)


# %% wrong="count"
class Arena:
    def __init__(self, num_slots):
        self.holes, self.pieces = [(0, num_slots)], {}

    def allocate(self, size):
        for index, (start, room) in enumerate(self.holes):
            if room >= size:
                self.holes[index : index + 1] = [(start + size, room - size)] if room > size else []
                self.pieces[start] = size
                return start
        return None

    def free(self, start):
        joined = []
        for at, size in sorted([*self.holes, (start, self.pieces.pop(start))]):
            if joined and sum(joined[-1]) == at:
                joined[-1] = (joined[-1][0], joined[-1][1] + size)
            else:
                joined.append((at, size))
        self.holes = joined

    def num_free(self):
        return sum(size for _, size in self.holes)

    def largest_hole(self):
        return self.num_free()  # true only while there is one hole


# %% wrong="crashed"
class Arena:
    def __init__(self, num_slots):
        self.holes = []

    def allocate(self, size):
        return self.holes.pop(0)

    def free(self, start):
        pass

    def num_free(self):
        return 0

    def largest_hole(self):
        return 0


# %% wrong="unsolved"
class Arena:
    def __init__(self, num_slots):
        raise NotImplementedError("exercise 1.3: write this")


# %% right="a flag for every slot"
class Arena:
    def __init__(self, num_slots):
        self.map = "." * num_slots
        self.sizes = {}

    def allocate(self, size):
        start = self.map.find("." * size)
        if start < 0:
            return None
        self._write(start, "#" * size)
        self.sizes[start] = size
        return start

    def free(self, start):
        self._write(start, "." * self.sizes.pop(start))

    def _write(self, start, marks):
        self.map = self.map[:start] + marks + self.map[start + len(marks) :]

    def num_free(self):
        return self.map.count(".")

    def largest_hole(self):
        return max(len(run) for run in self.map.split("#"))


# %% right="only the pieces are kept"
def gaps(pieces, num_slots):
    edge = 0
    for start, end in sorted(pieces) + [(num_slots, num_slots)]:
        if start > edge:
            yield edge, start - edge
        edge = end


class Arena:
    def __init__(self, num_slots):
        self.n = num_slots
        self.pieces = set()

    def allocate(self, size):
        for start, room in gaps(self.pieces, self.n):
            if size <= room:
                self.pieces.add((start, start + size))
                return start

    def free(self, start):
        self.pieces = {piece for piece in self.pieces if piece[0] != start}

    def num_free(self):
        return sum(room for _, room in gaps(self.pieces, self.n))

    def largest_hole(self):
        return max([0] + [room for _, room in gaps(self.pieces, self.n)])


# %% right="NumPy, joining on both sides"
import numpy as np


class Arena:
    def __init__(self, num_slots):
        self.owner = np.full(num_slots, -1)

    def _holes(self):
        free = np.concatenate([[0], self.owner < 0, [0]]).astype(int)
        edges = np.flatnonzero(np.diff(free))
        return edges[::2], edges[1::2] - edges[::2]

    def allocate(self, size):
        starts, sizes = self._holes()
        fits = np.flatnonzero(sizes >= size)
        if len(fits) == 0:
            return None
        start = starts[fits[0]]
        self.owner[start : start + size] = start
        return start

    def free(self, start):
        self.owner[self.owner == start] = -1

    def num_free(self):
        return (self.owner < 0).sum()

    def largest_hole(self):
        return self._holes()[1].max(initial=0)


# %% wrong="shared-state"
class Arena:
    holes, pieces = [], {}  # one list and one dictionary for all arenas

    def __init__(self, num_slots):
        Arena.holes[:] = [(0, num_slots)]
        Arena.pieces.clear()

    def allocate(self, size):
        for index, (start, room) in enumerate(self.holes):
            if room >= size:
                self.holes[index : index + 1] = [(start + size, room - size)] if room > size else []
                self.pieces[start] = size
                return start
        return None

    def free(self, start):
        joined = []
        for at, size in sorted([*self.holes, (start, self.pieces.pop(start))]):
            if joined and sum(joined[-1]) == at:
                joined[-1] = (joined[-1][0], joined[-1][1] + size)
            else:
                joined.append((at, size))
        self.holes[:] = joined

    def num_free(self):
        return sum(size for _, size in self.holes)

    def largest_hole(self):
        return max((size for _, size in self.holes), default=0)


# %% wrong="not-a-start"
class Arena:
    """Contiguous pieces of a row of slots, first fit."""

    def __init__(self, num_slots):
        self.holes = [(0, num_slots)]
        self.pieces = {}

    def allocate(self, size):
        """Start of a new piece of `size` slots, or None."""
        for index, (start, room) in enumerate(self.holes):
            if room >= size:
                self.holes[index : index + 1] = [(start + size, room - size)] if room > size else []
                self.pieces[start] = size
                return start, start + size  # both ends
        return None

    def free(self, start):
        """Give a piece back."""
        joined = []
        for at, size in sorted([*self.holes, (start, self.pieces.pop(start))]):
            if joined and sum(joined[-1]) == at:
                joined[-1] = (joined[-1][0], joined[-1][1] + size)
            else:
                joined.append((at, size))
        self.holes = joined

    def num_free(self):
        """Free slots, in all holes together."""
        return sum(size for _, size in self.holes)

    def largest_hole(self):
        """Slots of the largest hole."""
        return max((size for _, size in self.holes), default=0)
