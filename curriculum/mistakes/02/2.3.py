# %% wrong="early"
class BlockTable:
    def __init__(self, pool):
        self.pool = pool
        self.blocks = []
        self.num_tokens = 0

    def append(self, num_tokens):
        slots = []
        for _ in range(num_tokens):
            if not self.blocks:
                self.blocks += self.pool.allocate(1)
            slots.append(slot(self.blocks, self.num_tokens, self.pool.block_size))
            self.num_tokens += 1
            if self.num_tokens % self.pool.block_size == 0:  # full: take the next one already
                self.blocks += self.pool.allocate(1)
        return slots


# %% wrong="early"
class BlockTable:
    def __init__(self, pool):
        self.pool = pool
        self.blocks = []
        self.num_tokens = 0

    def append(self, num_tokens):
        start, self.num_tokens = self.num_tokens, self.num_tokens + num_tokens
        needed = self.num_tokens // self.pool.block_size + 1
        self.blocks += self.pool.allocate(needed - len(self.blocks))
        return [slot(self.blocks, i, self.pool.block_size) for i in range(start, self.num_tokens)]


# %% wrong="late"
class BlockTable:
    def __init__(self, pool):
        self.pool = pool
        self.blocks = []
        self.num_tokens = 0

    def append(self, num_tokens):
        slots = []
        for i in range(self.num_tokens, self.num_tokens + num_tokens):
            if i == 0 or (i > 1 and i % self.pool.block_size == 1):  # the token after the boundary
                self.blocks += self.pool.allocate(1)
            slots.append(self.blocks[-1] * self.pool.block_size + i % self.pool.block_size)
        self.num_tokens += num_tokens
        return slots


# %% wrong="late"
class BlockTable:
    def __init__(self, pool):
        self.pool = pool
        self.blocks = pool.allocate(1)
        self.num_tokens = 0

    def append(self, num_tokens):
        size = self.pool.block_size
        slots = [slot(self.blocks, i, size) for i in range(self.num_tokens, self.num_tokens + num_tokens)]
        self.num_tokens += num_tokens
        while self.num_tokens > len(self.blocks) * size:
            self.blocks += self.pool.allocate(1)
        return slots


# %% wrong="block-per-token"
class BlockTable:
    def __init__(self, pool):
        self.pool = pool
        self.blocks = []
        self.num_tokens = 0

    def append(self, num_tokens):
        size = self.pool.block_size
        self.blocks += self.pool.allocate(-(-num_tokens // size))
        start, self.num_tokens = self.num_tokens, self.num_tokens + num_tokens
        return [slot(self.blocks, i, size) for i in range(start, self.num_tokens)]


# %% wrong="wrong-count"
class BlockTable:
    def __init__(self, pool):
        self.pool = pool
        self.blocks = []
        self.num_tokens = 0

    def append(self, num_tokens):
        size = self.pool.block_size
        if not self.blocks:
            self.blocks = self.pool.allocate(6)  # room for the longest sequence
        start, self.num_tokens = self.num_tokens, self.num_tokens + num_tokens
        return [slot(self.blocks, i, size) for i in range(start, self.num_tokens)]


# %% wrong="num-tokens"
class BlockTable:
    def __init__(self, pool):
        self.pool = pool
        self.blocks = []
        self.num_tokens = 0

    def append(self, num_tokens):
        size = self.pool.block_size
        start, self.num_tokens = self.num_tokens, num_tokens  # the last append's, not all
        needed = -(-(start + num_tokens) // size)
        self.blocks += self.pool.allocate(needed - len(self.blocks))
        return [slot(self.blocks, i, size) for i in range(start, start + num_tokens)]


# %% wrong="not-from-pool"
class BlockTable:
    def __init__(self, pool):
        self.pool = pool
        self.blocks = []
        self.num_tokens = 0

    def append(self, num_tokens):
        size = self.pool.block_size
        start, self.num_tokens = self.num_tokens, self.num_tokens + num_tokens
        while len(self.blocks) * size < self.num_tokens:
            self.blocks.append(len(self.blocks))  # 0, 1, 2, …
        return [slot(self.blocks, i, size) for i in range(start, self.num_tokens)]


# %% wrong="lost-blocks"
class BlockTable:
    def __init__(self, pool):
        self.pool = pool
        self.blocks = []
        self.num_tokens = 0

    def append(self, num_tokens):
        size = self.pool.block_size
        start, self.num_tokens = self.num_tokens, self.num_tokens + num_tokens
        while len(self.blocks) * size < self.num_tokens:
            self.blocks += self.pool.allocate(2)[:1]  # one to use and one to lose
        return [slot(self.blocks, i, size) for i in range(start, self.num_tokens)]


# %% wrong="wrong-slots"
class BlockTable:
    def __init__(self, pool):
        self.pool = pool
        self.blocks = []
        self.num_tokens = 0

    def append(self, num_tokens):
        size = self.pool.block_size
        start, self.num_tokens = self.num_tokens, self.num_tokens + num_tokens
        self.blocks += self.pool.allocate(-(-self.num_tokens // size) - len(self.blocks))
        first = self.blocks[start // size] * size + start % size if num_tokens else 0
        return list(range(first, first + num_tokens))  # as if the blocks lay side by side


# %% wrong="not-refused"
class BlockTable:
    def __init__(self, pool):
        self.pool = pool
        self.blocks = []
        self.num_tokens = 0

    def append(self, num_tokens):
        size = self.pool.block_size
        needed = -(-(self.num_tokens + num_tokens) // size)
        try:
            self.blocks += self.pool.allocate(needed - len(self.blocks))
        except OutOfBlocks:
            return []
        start, self.num_tokens = self.num_tokens, self.num_tokens + num_tokens
        return [slot(self.blocks, i, size) for i in range(start, self.num_tokens)]


# %% wrong="half-done"
class BlockTable:
    def __init__(self, pool):
        self.pool = pool
        self.blocks = []
        self.num_tokens = 0

    def append(self, num_tokens):
        slots = []
        for _ in range(num_tokens):
            if self.num_tokens % self.pool.block_size == 0:
                self.blocks += self.pool.allocate(1)  # may fail when half of the tokens have their slots
            slots.append(slot(self.blocks, self.num_tokens, self.pool.block_size))
            self.num_tokens += 1
        return slots


# %% right="without exercise 2.1, block by block"
class BlockTable:
    def __init__(self, pool):
        self.pool = pool
        self.blocks = []
        self.num_tokens = 0

    def append(self, num_tokens):
        size = self.pool.block_size
        room = len(self.blocks) * size - self.num_tokens
        if num_tokens > room:
            self.blocks.extend(self.pool.allocate((num_tokens - room + size - 1) // size))
        every = [block * size + offset for block in self.blocks for offset in range(size)]
        start = self.num_tokens
        self.num_tokens = start + num_tokens
        return every[start : start + num_tokens]


# %% right="a token at a time, undone if the pool runs dry"
class BlockTable:
    def __init__(self, pool):
        self.pool = pool
        self.blocks = []
        self.num_tokens = 0

    def _one(self):
        if self.num_tokens == len(self.blocks) * self.pool.block_size:
            self.blocks.append(self.pool.allocate(1)[0])
        self.num_tokens += 1
        return slot(self.blocks, self.num_tokens - 1, self.pool.block_size)

    def append(self, num_tokens):
        blocks, before = len(self.blocks), self.num_tokens
        try:
            return [self._one() for _ in range(num_tokens)]
        except OutOfBlocks:
            self.pool.free(self.blocks[blocks:])
            del self.blocks[blocks:]
            self.num_tokens = before
            raise


# %% right="NumPy, with num_tokens computed"
import numpy as np


class BlockTable:
    def __init__(self, pool):
        self.pool = pool
        self.blocks = np.zeros(0, dtype=np.int64)
        self.filled = 0

    @property
    def num_tokens(self):
        return self.filled

    def append(self, num_tokens):
        size = self.pool.block_size
        missing = -(-(self.filled + num_tokens) // size) - len(self.blocks)
        self.blocks = np.concatenate([self.blocks, np.array(self.pool.allocate(missing), dtype=np.int64)])
        tokens = np.arange(self.filled, self.filled + num_tokens)
        self.filled += num_tokens
        return self.blocks[tokens // size] * size + tokens % size


# %% wrong="shared-state"
class BlockTable:
    blocks = []  # one list for all tables

    def __init__(self, pool):
        self.pool = pool
        self.num_tokens = 0
        self.blocks.clear()

    def append(self, num_tokens):
        size, before = self.pool.block_size, self.num_tokens
        after = before + num_tokens
        self.blocks += self.pool.allocate(-(-after // size) - len(self.blocks))
        self.num_tokens = after
        return [slot(self.blocks, i, size) for i in range(before, after)]
