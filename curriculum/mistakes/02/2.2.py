# %% wrong="double-free"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.block_size = block_size
        self.free_ids = list(range(num_blocks))

    @property
    def num_free(self):
        return len(self.free_ids)

    def allocate(self, n):
        if n > len(self.free_ids):
            raise OutOfBlocks(n)
        return [self.free_ids.pop() for _ in range(n)]

    def free(self, blocks):
        self.free_ids += blocks  # nobody asks whether they were out


# %% wrong="double-free"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.block_size = block_size
        self.is_free = [True] * num_blocks

    @property
    def num_free(self):
        return sum(self.is_free)

    def allocate(self, n):
        if n > self.num_free:
            raise OutOfBlocks(n)
        ids = [i for i, free in enumerate(self.is_free) if free][:n]
        for i in ids:
            self.is_free[i] = False
        return ids

    def free(self, blocks):
        for i in blocks:
            self.is_free[i] = True  # harmless here, but the caller's mistake stays hidden


# %% wrong="leak"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.next = 0
        self.out = set()

    @property
    def num_free(self):
        return self.num_blocks - self.next

    def allocate(self, n):
        if n > self.num_free:
            raise OutOfBlocks(n)
        ids = list(range(self.next, self.next + n))
        self.next += n
        self.out |= set(ids)
        return ids

    def free(self, blocks):
        if not set(blocks) <= self.out:
            raise ValueError("double free")
        self.out -= set(blocks)  # not out any more, and not free either


# %% wrong="half-done"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.block_size = block_size
        self.free_ids = list(range(num_blocks))
        self.out = set()

    @property
    def num_free(self):
        return len(self.free_ids)

    def allocate(self, n):
        ids = []
        for _ in range(n):
            if not self.free_ids:
                raise OutOfBlocks(n)  # what is in ids is lost
            ids.append(self.free_ids.pop())
            self.out.add(ids[-1])
        return ids

    def free(self, blocks):
        if len(set(blocks)) < len(blocks) or not set(blocks) <= self.out:
            raise ValueError("double free")
        self.out -= set(blocks)
        self.free_ids += blocks


# %% wrong="live-block"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.block_size = block_size
        self.free_ids = list(range(num_blocks))
        self.out = set()

    @property
    def num_free(self):
        return len(self.free_ids)

    def allocate(self, n):
        if n > len(self.free_ids):
            raise OutOfBlocks(n)
        ids = self.free_ids[:n]  # looked at, not taken
        self.out |= set(ids)
        return ids

    def free(self, blocks):
        self.out -= set(blocks)


# %% wrong="live-block"
class BlockPool:
    """A ring: right as long as the sequences end in the order in which they came."""

    def __init__(self, num_blocks, block_size):
        self.num_blocks = self.num_free = num_blocks
        self.block_size = block_size
        self.head = 0

    def allocate(self, n):
        if n > self.num_free:
            raise OutOfBlocks(n)
        ids = [(self.head + i) % self.num_blocks for i in range(n)]
        self.head = (self.head + n) % self.num_blocks
        self.num_free -= n
        return ids

    def free(self, blocks):
        self.num_free += len(blocks)


# %% wrong="refuses"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.block_size = block_size
        self.free_ids = list(range(num_blocks))

    @property
    def num_free(self):
        return len(self.free_ids)

    def allocate(self, n):
        if n >= len(self.free_ids):
            raise OutOfBlocks(n)
        return [self.free_ids.pop() for _ in range(n)]

    def free(self, blocks):
        self.free_ids += blocks


# %% wrong="not-refused"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.block_size = block_size
        self.free_ids = list(range(num_blocks))
        self.out = set()

    @property
    def num_free(self):
        return len(self.free_ids)

    def allocate(self, n):
        ids, self.free_ids = self.free_ids[:n], self.free_ids[n:]  # fewer than n if there are fewer
        self.out |= set(ids)
        return ids

    def free(self, blocks):
        if len(set(blocks)) < len(blocks) or not set(blocks) <= self.out:
            raise ValueError("double free")
        self.out -= set(blocks)
        self.free_ids += blocks


# %% wrong="bad-ids"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.block_size = block_size
        self.free_ids = list(range(1, num_blocks + 1))  # ids counted from 1

    @property
    def num_free(self):
        return len(self.free_ids)

    def allocate(self, n):
        if n > len(self.free_ids):
            raise OutOfBlocks(n)
        return [self.free_ids.pop() for _ in range(n)]

    def free(self, blocks):
        self.free_ids += blocks


# %% wrong="miscounted"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.free_ids = list(range(num_blocks))

    @property
    def num_free(self):
        return self.num_blocks * self.block_size  # tokens, and all of them

    def allocate(self, n):
        if n > len(self.free_ids):
            raise OutOfBlocks(n)
        return [self.free_ids.pop() for _ in range(n)]

    def free(self, blocks):
        self.free_ids += blocks


# %% wrong="half-freed"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.block_size = block_size
        self.free_ids = list(range(num_blocks))
        self.out = set()

    @property
    def num_free(self):
        return len(self.free_ids)

    def allocate(self, n):
        if n > len(self.free_ids):
            raise OutOfBlocks(n)
        ids = [self.free_ids.pop() for _ in range(n)]
        self.out.update(ids)
        return ids

    def free(self, blocks):
        for block in blocks:
            if block not in self.out:
                raise ValueError(f"double free of {block}")
            self.out.remove(block)
            self.free_ids.append(block)


# %% right="reference counts, the lowest free id first"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.block_size = block_size
        self.counts = [0] * num_blocks

    @property
    def num_free(self):
        return self.counts.count(0)

    def allocate(self, n):
        ids = [block for block, count in enumerate(self.counts) if count == 0][:n]
        if len(ids) < n:
            raise OutOfBlocks(f"{n} wanted, {len(ids)} free")
        for block in ids:
            self.counts[block] += 1
        return ids

    def free(self, blocks):
        left = list(self.counts)
        if not set(blocks) <= set(range(len(left))):
            raise ValueError("no such block")
        for block in blocks:
            left[block] -= 1
        if min(left) < 0:
            raise ValueError("double free")
        self.counts = left


# %% right="NumPy, helper functions, a tuple returned, num_free a method"
import numpy as np


def _where_free(pool):
    return np.flatnonzero(~pool.used)


class NotEnough(OutOfBlocks):
    pass


class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.block_size = block_size
        self.used = np.zeros(num_blocks, dtype=bool)

    def num_free(self):
        return len(_where_free(self))

    def allocate(self, n):
        ids = _where_free(self)[:n]
        if len(ids) != n:
            raise NotEnough
        self.used[ids] = True
        return tuple(ids)

    def free(self, blocks):
        ids = np.array(blocks, dtype=int)
        known = np.isin(ids, np.arange(len(self.used))).all()
        if not known or len(np.unique(ids)) != len(ids) or not self.used[ids].all():
            raise ValueError("double free")
        self.used[ids] = False


# %% right="a queue that undoes what it did"
from collections import deque


class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.block_size = block_size
        self.queue = deque(range(num_blocks))
        self.held = set()

    @property
    def num_free(self):
        return len(self.queue)

    def allocate(self, n):
        taken = []
        try:
            for _ in range(n):
                taken.append(self.queue.popleft())
        except IndexError:
            self.queue.extendleft(reversed(taken))
            raise OutOfBlocks(f"wanted {n}") from None
        self.held.update(taken)
        return taken

    def free(self, blocks):
        freed = []
        for block in blocks:
            if block not in self.held:
                self.held.update(freed)
                raise ValueError(f"block {block} is not out")
            self.held.remove(block)
            freed.append(block)
        self.queue.extend(freed)


# %% right="a generator and a deque, ids in a dictionary"
from collections import deque


class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.block_size = block_size
        self.holder = dict.fromkeys(range(num_blocks))

    @property
    def num_free(self):
        return sum(holder is None for holder in self.holder.values())

    def allocate(self, n):
        free = deque(block for block, holder in self.holder.items() if holder is None)
        if n > len(free):
            raise OutOfBlocks(n)
        while len(free) > n:
            free.popleft()
        self.holder.update(dict.fromkeys(free, "somebody"))
        return free

    def free(self, blocks):
        if len(blocks) != len({block for block in blocks if self.holder.get(block)}):
            raise ValueError("double free")
        self.holder |= {block: None for block in blocks}


# %% wrong="changes-arguments"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.num_blocks, self.block_size = num_blocks, block_size
        self._free, self._out = list(range(num_blocks)), set()

    @property
    def num_free(self):
        return len(self._free)

    def allocate(self, n):
        if n > len(self._free):
            raise OutOfBlocks(f"{n} wanted")
        blocks = [self._free.pop() for _ in range(n)]
        self._out.update(blocks)
        return blocks

    def free(self, blocks):
        if len(set(blocks)) != len(blocks) or not self._out.issuperset(blocks):
            raise ValueError("double free")
        while blocks:
            self._out.remove(blocks[-1])
            self._free.append(blocks.pop())


# %% wrong="wrong-exception"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.num_blocks, self.block_size = num_blocks, block_size
        self._free, self._out = list(range(num_blocks)), set()

    @property
    def num_free(self):
        return len(self._free)

    def allocate(self, n):
        if n > len(self._free):
            raise OutOfBlocks(f"{n} wanted")
        blocks = [self._free.pop() for _ in range(n)]
        self._out.update(blocks)
        return blocks

    def free(self, blocks):
        assert len(set(blocks)) == len(blocks) and self._out.issuperset(blocks), "double free"
        self._out.difference_update(blocks)
        self._free.extend(blocks)


# %% wrong="unknown-id"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.num_blocks, self.block_size = num_blocks, block_size
        self._free, self._out = list(range(num_blocks)), set()

    @property
    def num_free(self):
        return len(self._free)

    def allocate(self, n):
        if n > len(self._free):
            raise OutOfBlocks(f"{n} wanted")
        blocks = [self._free.pop() for _ in range(n)]
        self._out.update(blocks)
        return blocks

    def free(self, blocks):
        if len(set(blocks)) != len(blocks) or set(blocks) & set(self._free):
            raise ValueError("double free")  # an id that the pool does not have is not free either
        self._out.difference_update(blocks)
        self._free.extend(blocks)


# %% wrong="unknown-id"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.block_size = block_size
        self.is_out = [False] * num_blocks

    @property
    def num_free(self):
        return self.is_out.count(False)

    def allocate(self, n):
        if n > self.num_free:
            raise OutOfBlocks(f"{n} wanted")
        blocks = [block for block, out in enumerate(self.is_out) if not out][:n]
        for block in blocks:
            self.is_out[block] = True
        return blocks

    def free(self, blocks):
        if any(block >= len(self.is_out) for block in blocks):
            raise ValueError("no such block")
        if len(set(blocks)) != len(blocks) or not all(self.is_out[block] for block in blocks):
            raise ValueError("double free")
        for block in blocks:
            self.is_out[block] = False  # -1 is the last block


# %% wrong="shared-state"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.num_blocks, self.block_size = num_blocks, block_size
        BlockPool._free, BlockPool._out = list(range(num_blocks)), set()

    @property
    def num_free(self):
        return len(self._free)

    def allocate(self, n):
        if n > len(self._free):
            raise OutOfBlocks(f"{n} wanted")
        blocks = [self._free.pop() for _ in range(n)]
        self._out.update(blocks)
        return blocks

    def free(self, blocks):
        if len(set(blocks)) != len(blocks) or not self._out.issuperset(blocks):
            raise ValueError("double free")
        self._out.difference_update(blocks)
        self._free.extend(blocks)
