# %% wrong="copies-data"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.free_ids = list(range(num_blocks))
        self.ref_counts = [0] * num_blocks

    @property
    def num_free(self):
        return len(self.free_ids)

    def ref_count(self, block):
        return self.ref_counts[block]

    def allocate(self, n):
        if n > len(self.free_ids):
            raise OutOfBlocks(f"{n} blocks wanted, {len(self.free_ids)} are free")
        blocks = [self.free_ids.pop() for _ in range(n)]
        for block in blocks:
            self.ref_counts[block] = 1
        return blocks

    def share(self, blocks):
        if any(self.ref_counts[block] == 0 for block in blocks):
            raise ValueError("a free block cannot be shared")
        for block in blocks:
            self.ref_counts[block] += 1

    def free(self, blocks):
        if any(self.ref_counts[block] < blocks.count(block) for block in blocks):
            raise ValueError("double free")
        for block in blocks:
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                self.free_ids.append(block)


class BlockTable:
    def __init__(self, pool):
        self.pool = pool
        self.blocks = []
        self.num_tokens = 0

    def append(self, num_tokens):
        needed = -(-(self.num_tokens + num_tokens) // self.pool.block_size)
        self.blocks += self.pool.allocate(needed - len(self.blocks))
        self.num_tokens += num_tokens

    def fork(self):
        child = BlockTable(self.pool)
        child.append(self.num_tokens)  # blocks of its own, into which the contents would be copied
        return child

    def release(self):
        self.pool.free(self.blocks)
        self.blocks = []
        self.num_tokens = 0


# %% wrong="forgets-reference"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.free_ids = list(range(num_blocks))
        self.ref_counts = [0] * num_blocks

    @property
    def num_free(self):
        return len(self.free_ids)

    def ref_count(self, block):
        return self.ref_counts[block]

    def allocate(self, n):
        if n > len(self.free_ids):
            raise OutOfBlocks(f"{n} blocks wanted, {len(self.free_ids)} are free")
        blocks = [self.free_ids.pop() for _ in range(n)]
        for block in blocks:
            self.ref_counts[block] = 1
        return blocks

    def share(self, blocks):
        if any(self.ref_counts[block] == 0 for block in blocks):
            raise ValueError("a free block cannot be shared")
        for block in blocks:
            self.ref_counts[block] += 1

    def free(self, blocks):
        if any(self.ref_counts[block] < blocks.count(block) for block in blocks):
            raise ValueError("double free")
        for block in blocks:
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                self.free_ids.append(block)


class BlockTable:
    def __init__(self, pool):
        self.pool = pool
        self.blocks = []
        self.num_tokens = 0

    def append(self, num_tokens):
        needed = -(-(self.num_tokens + num_tokens) // self.pool.block_size)
        self.blocks += self.pool.allocate(needed - len(self.blocks))
        self.num_tokens += num_tokens

    def fork(self):
        child = BlockTable(self.pool)
        child.blocks = list(self.blocks)
        child.num_tokens = self.num_tokens
        return child

    def release(self):
        self.pool.free(self.blocks)
        self.blocks = []
        self.num_tokens = 0


# %% wrong="forgets-reference"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.free_ids = list(range(num_blocks))
        self.ref_counts = [0] * num_blocks

    @property
    def num_free(self):
        return len(self.free_ids)

    def ref_count(self, block):
        return self.ref_counts[block]

    def allocate(self, n):
        if n > len(self.free_ids):
            raise OutOfBlocks(f"{n} blocks wanted, {len(self.free_ids)} are free")
        blocks = [self.free_ids.pop() for _ in range(n)]
        for block in blocks:
            self.ref_counts[block] = 1
        return blocks

    def share(self, blocks):
        if any(self.ref_counts[block] == 0 for block in blocks):
            raise ValueError("a free block cannot be shared")
        for block in blocks:
            self.ref_counts[block] += 1

    def free(self, blocks):
        if any(self.ref_counts[block] < blocks.count(block) for block in blocks):
            raise ValueError("double free")
        for block in blocks:
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                self.free_ids.append(block)


class BlockTable:
    def __init__(self, pool):
        self.pool = pool
        self.blocks = []
        self.num_tokens = 0

    def append(self, num_tokens):
        needed = -(-(self.num_tokens + num_tokens) // self.pool.block_size)
        self.blocks += self.pool.allocate(needed - len(self.blocks))
        self.num_tokens += num_tokens

    def fork(self):
        child = BlockTable(self.pool)
        self.pool.share(self.blocks[: self.num_tokens // self.pool.block_size])  # the full ones only
        child.blocks = list(self.blocks)
        child.num_tokens = self.num_tokens
        return child

    def release(self):
        self.pool.free(self.blocks)
        self.blocks = []
        self.num_tokens = 0


# %% wrong="wrong-fork"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.free_ids = list(range(num_blocks))
        self.ref_counts = [0] * num_blocks

    @property
    def num_free(self):
        return len(self.free_ids)

    def ref_count(self, block):
        return self.ref_counts[block]

    def allocate(self, n):
        if n > len(self.free_ids):
            raise OutOfBlocks(f"{n} blocks wanted, {len(self.free_ids)} are free")
        blocks = [self.free_ids.pop() for _ in range(n)]
        for block in blocks:
            self.ref_counts[block] = 1
        return blocks

    def share(self, blocks):
        if any(self.ref_counts[block] == 0 for block in blocks):
            raise ValueError("a free block cannot be shared")
        for block in blocks:
            self.ref_counts[block] += 1

    def free(self, blocks):
        if any(self.ref_counts[block] < blocks.count(block) for block in blocks):
            raise ValueError("double free")
        for block in blocks:
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                self.free_ids.append(block)


class BlockTable:
    def __init__(self, pool):
        self.pool = pool
        self.blocks = []
        self.num_tokens = 0

    def append(self, num_tokens):
        needed = -(-(self.num_tokens + num_tokens) // self.pool.block_size)
        self.blocks += self.pool.allocate(needed - len(self.blocks))
        self.num_tokens += num_tokens

    def fork(self):
        child = BlockTable(self.pool)
        self.pool.share(self.blocks)
        child.blocks = list(self.blocks)
        return child  # and its tokens?

    def release(self):
        self.pool.free(self.blocks)
        self.blocks = []
        self.num_tokens = 0


# %% wrong="same-list"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.free_ids = list(range(num_blocks))
        self.ref_counts = [0] * num_blocks

    @property
    def num_free(self):
        return len(self.free_ids)

    def ref_count(self, block):
        return self.ref_counts[block]

    def allocate(self, n):
        if n > len(self.free_ids):
            raise OutOfBlocks(f"{n} blocks wanted, {len(self.free_ids)} are free")
        blocks = [self.free_ids.pop() for _ in range(n)]
        for block in blocks:
            self.ref_counts[block] = 1
        return blocks

    def share(self, blocks):
        if any(self.ref_counts[block] == 0 for block in blocks):
            raise ValueError("a free block cannot be shared")
        for block in blocks:
            self.ref_counts[block] += 1

    def free(self, blocks):
        if any(self.ref_counts[block] < blocks.count(block) for block in blocks):
            raise ValueError("double free")
        for block in blocks:
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                self.free_ids.append(block)


class BlockTable:
    def __init__(self, pool):
        self.pool = pool
        self.blocks = []
        self.num_tokens = 0

    def append(self, num_tokens):
        needed = -(-(self.num_tokens + num_tokens) // self.pool.block_size)
        self.blocks += self.pool.allocate(needed - len(self.blocks))
        self.num_tokens += num_tokens

    def fork(self):
        child = BlockTable(self.pool)
        self.pool.share(self.blocks)
        child.blocks = self.blocks
        child.num_tokens = self.num_tokens
        return child

    def release(self):
        self.pool.free(self.blocks)
        self.blocks = []
        self.num_tokens = 0


# %% wrong="same-list"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.free_ids = list(range(num_blocks))
        self.ref_counts = [0] * num_blocks

    @property
    def num_free(self):
        return len(self.free_ids)

    def ref_count(self, block):
        return self.ref_counts[block]

    def allocate(self, n):
        if n > len(self.free_ids):
            raise OutOfBlocks(f"{n} blocks wanted, {len(self.free_ids)} are free")
        blocks = [self.free_ids.pop() for _ in range(n)]
        for block in blocks:
            self.ref_counts[block] = 1
        return blocks

    def share(self, blocks):
        if any(self.ref_counts[block] == 0 for block in blocks):
            raise ValueError("a free block cannot be shared")
        for block in blocks:
            self.ref_counts[block] += 1

    def free(self, blocks):
        if any(self.ref_counts[block] < blocks.count(block) for block in blocks):
            raise ValueError("double free")
        for block in blocks:
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                self.free_ids.append(block)


class BlockTable:
    def __init__(self, pool):
        self.pool = pool
        self.blocks = []
        self.num_tokens = 0

    def append(self, num_tokens):
        needed = -(-(self.num_tokens + num_tokens) // self.pool.block_size)
        self.blocks += self.pool.allocate(needed - len(self.blocks))
        self.num_tokens += num_tokens

    def fork(self):
        import copy

        self.pool.share(self.blocks)
        return copy.copy(self)

    def release(self):
        self.pool.free(self.blocks)
        self.blocks = []
        self.num_tokens = 0


# %% wrong="frees-shared"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.free_ids = list(range(num_blocks))
        self.ref_counts = [0] * num_blocks

    @property
    def num_free(self):
        return len(self.free_ids)

    def ref_count(self, block):
        return self.ref_counts[block]

    def allocate(self, n):
        if n > len(self.free_ids):
            raise OutOfBlocks(f"{n} blocks wanted, {len(self.free_ids)} are free")
        blocks = [self.free_ids.pop() for _ in range(n)]
        for block in blocks:
            self.ref_counts[block] = 1
        return blocks

    def share(self, blocks):
        if any(self.ref_counts[block] == 0 for block in blocks):
            raise ValueError("a free block cannot be shared")
        for block in blocks:
            self.ref_counts[block] += 1

    def free(self, blocks):
        if any(self.ref_counts[block] < blocks.count(block) for block in blocks):
            raise ValueError("double free")
        for block in blocks:
            self.ref_counts[block] = 0
            self.free_ids.append(block)


class BlockTable:
    def __init__(self, pool):
        self.pool = pool
        self.blocks = []
        self.num_tokens = 0

    def append(self, num_tokens):
        needed = -(-(self.num_tokens + num_tokens) // self.pool.block_size)
        self.blocks += self.pool.allocate(needed - len(self.blocks))
        self.num_tokens += num_tokens

    def fork(self):
        child = BlockTable(self.pool)
        self.pool.share(self.blocks)
        child.blocks = list(self.blocks)
        child.num_tokens = self.num_tokens
        return child

    def release(self):
        self.pool.free(self.blocks)
        self.blocks = []
        self.num_tokens = 0


# %% wrong="frees-shared"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.free_ids = list(range(num_blocks))
        self.ref_counts = [0] * num_blocks

    @property
    def num_free(self):
        return len(self.free_ids)

    def ref_count(self, block):
        return self.ref_counts[block]

    def allocate(self, n):
        if n > len(self.free_ids):
            raise OutOfBlocks(f"{n} blocks wanted, {len(self.free_ids)} are free")
        blocks = [self.free_ids.pop() for _ in range(n)]
        for block in blocks:
            self.ref_counts[block] = 1
        return blocks

    def share(self, blocks):
        if any(self.ref_counts[block] == 0 for block in blocks):
            raise ValueError("a free block cannot be shared")
        for block in blocks:
            self.ref_counts[block] += 1

    def free(self, blocks):
        if any(self.ref_counts[block] < blocks.count(block) for block in blocks):
            raise ValueError("double free")
        for block in blocks:
            self.ref_counts[block] -= 1
        self.free_ids += blocks


class BlockTable:
    def __init__(self, pool):
        self.pool = pool
        self.blocks = []
        self.num_tokens = 0

    def append(self, num_tokens):
        needed = -(-(self.num_tokens + num_tokens) // self.pool.block_size)
        self.blocks += self.pool.allocate(needed - len(self.blocks))
        self.num_tokens += num_tokens

    def fork(self):
        child = BlockTable(self.pool)
        self.pool.share(self.blocks)
        child.blocks = list(self.blocks)
        child.num_tokens = self.num_tokens
        return child

    def release(self):
        self.pool.free(self.blocks)
        self.blocks = []
        self.num_tokens = 0


# %% wrong="never-freed"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.free_ids = list(range(num_blocks))
        self.ref_counts = [0] * num_blocks

    @property
    def num_free(self):
        return len(self.free_ids)

    def ref_count(self, block):
        return self.ref_counts[block]

    def allocate(self, n):
        if n > len(self.free_ids):
            raise OutOfBlocks(f"{n} blocks wanted, {len(self.free_ids)} are free")
        blocks = [self.free_ids.pop() for _ in range(n)]
        for block in blocks:
            self.ref_counts[block] = 1
        return blocks

    def share(self, blocks):
        if any(self.ref_counts[block] == 0 for block in blocks):
            raise ValueError("a free block cannot be shared")
        for block in blocks:
            self.ref_counts[block] += 1

    def free(self, blocks):
        if any(self.ref_counts[block] < blocks.count(block) for block in blocks):
            raise ValueError("double free")
        for block in blocks:
            self.ref_counts[block] -= 1


class BlockTable:
    def __init__(self, pool):
        self.pool = pool
        self.blocks = []
        self.num_tokens = 0

    def append(self, num_tokens):
        needed = -(-(self.num_tokens + num_tokens) // self.pool.block_size)
        self.blocks += self.pool.allocate(needed - len(self.blocks))
        self.num_tokens += num_tokens

    def fork(self):
        child = BlockTable(self.pool)
        self.pool.share(self.blocks)
        child.blocks = list(self.blocks)
        child.num_tokens = self.num_tokens
        return child

    def release(self):
        self.pool.free(self.blocks)
        self.blocks = []
        self.num_tokens = 0


# %% wrong="never-freed"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.free_ids = list(range(num_blocks))
        self.ref_counts = [0] * num_blocks

    @property
    def num_free(self):
        return len(self.free_ids)

    def ref_count(self, block):
        return self.ref_counts[block]

    def allocate(self, n):
        if n > len(self.free_ids):
            raise OutOfBlocks(f"{n} blocks wanted, {len(self.free_ids)} are free")
        blocks = [self.free_ids.pop() for _ in range(n)]
        for block in blocks:
            self.ref_counts[block] = 1
        return blocks

    def share(self, blocks):
        if any(self.ref_counts[block] == 0 for block in blocks):
            raise ValueError("a free block cannot be shared")
        for block in blocks:
            self.ref_counts[block] += 1

    def free(self, blocks):
        if any(self.ref_counts[block] < blocks.count(block) for block in blocks):
            raise ValueError("double free")
        for block in blocks:
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                self.free_ids.append(block)


class BlockTable:
    def __init__(self, pool):
        self.pool = pool
        self.blocks = []
        self.num_tokens = 0

    def append(self, num_tokens):
        needed = -(-(self.num_tokens + num_tokens) // self.pool.block_size)
        self.blocks += self.pool.allocate(needed - len(self.blocks))
        self.num_tokens += num_tokens

    def fork(self):
        child = BlockTable(self.pool)
        self.pool.share(self.blocks)
        self.pool.share(self.blocks)  # once for the parent, once for the child?
        child.blocks = list(self.blocks)
        child.num_tokens = self.num_tokens
        return child

    def release(self):
        self.pool.free(self.blocks)
        self.blocks = []
        self.num_tokens = 0


# %% wrong="not-empty"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.free_ids = list(range(num_blocks))
        self.ref_counts = [0] * num_blocks

    @property
    def num_free(self):
        return len(self.free_ids)

    def ref_count(self, block):
        return self.ref_counts[block]

    def allocate(self, n):
        if n > len(self.free_ids):
            raise OutOfBlocks(f"{n} blocks wanted, {len(self.free_ids)} are free")
        blocks = [self.free_ids.pop() for _ in range(n)]
        for block in blocks:
            self.ref_counts[block] = 1
        return blocks

    def share(self, blocks):
        if any(self.ref_counts[block] == 0 for block in blocks):
            raise ValueError("a free block cannot be shared")
        for block in blocks:
            self.ref_counts[block] += 1

    def free(self, blocks):
        if any(self.ref_counts[block] < blocks.count(block) for block in blocks):
            raise ValueError("double free")
        for block in blocks:
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                self.free_ids.append(block)


class BlockTable:
    def __init__(self, pool):
        self.pool = pool
        self.blocks = []
        self.num_tokens = 0

    def append(self, num_tokens):
        needed = -(-(self.num_tokens + num_tokens) // self.pool.block_size)
        self.blocks += self.pool.allocate(needed - len(self.blocks))
        self.num_tokens += num_tokens

    def fork(self):
        child = BlockTable(self.pool)
        self.pool.share(self.blocks)
        child.blocks = list(self.blocks)
        child.num_tokens = self.num_tokens
        return child

    def release(self):
        self.pool.free(self.blocks)


# %% wrong="not-refused"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.free_ids = list(range(num_blocks))
        self.ref_counts = [0] * num_blocks

    @property
    def num_free(self):
        return len(self.free_ids)

    def ref_count(self, block):
        return self.ref_counts[block]

    def allocate(self, n):
        if n > len(self.free_ids):
            raise OutOfBlocks(f"{n} blocks wanted, {len(self.free_ids)} are free")
        blocks = [self.free_ids.pop() for _ in range(n)]
        for block in blocks:
            self.ref_counts[block] = 1
        return blocks

    def share(self, blocks):
        if any(self.ref_counts[block] == 0 for block in blocks):
            raise ValueError("a free block cannot be shared")
        for block in blocks:
            self.ref_counts[block] += 1

    def free(self, blocks):
        for block in blocks:
            if self.ref_counts[block] > 0:  # a double free is passed over in silence
                self.ref_counts[block] -= 1
                if self.ref_counts[block] == 0:
                    self.free_ids.append(block)


class BlockTable:
    def __init__(self, pool):
        self.pool = pool
        self.blocks = []
        self.num_tokens = 0

    def append(self, num_tokens):
        needed = -(-(self.num_tokens + num_tokens) // self.pool.block_size)
        self.blocks += self.pool.allocate(needed - len(self.blocks))
        self.num_tokens += num_tokens

    def fork(self):
        child = BlockTable(self.pool)
        self.pool.share(self.blocks)
        child.blocks = list(self.blocks)
        child.num_tokens = self.num_tokens
        return child

    def release(self):
        self.pool.free(self.blocks)
        self.blocks = []
        self.num_tokens = 0


# %% wrong="not-refused"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.free_ids = list(range(num_blocks))
        self.ref_counts = [0] * num_blocks

    @property
    def num_free(self):
        return len(self.free_ids)

    def ref_count(self, block):
        return self.ref_counts[block]

    def allocate(self, n):
        if n > len(self.free_ids):
            raise OutOfBlocks(f"{n} blocks wanted, {len(self.free_ids)} are free")
        blocks = [self.free_ids.pop() for _ in range(n)]
        for block in blocks:
            self.ref_counts[block] = 1
        return blocks

    def share(self, blocks):
        for block in blocks:
            self.ref_counts[block] += 1

    def free(self, blocks):
        if any(self.ref_counts[block] < blocks.count(block) for block in blocks):
            raise ValueError("double free")
        for block in blocks:
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                self.free_ids.append(block)


class BlockTable:
    def __init__(self, pool):
        self.pool = pool
        self.blocks = []
        self.num_tokens = 0

    def append(self, num_tokens):
        needed = -(-(self.num_tokens + num_tokens) // self.pool.block_size)
        self.blocks += self.pool.allocate(needed - len(self.blocks))
        self.num_tokens += num_tokens

    def fork(self):
        child = BlockTable(self.pool)
        self.pool.share(self.blocks)
        child.blocks = list(self.blocks)
        child.num_tokens = self.num_tokens
        return child

    def release(self):
        self.pool.free(self.blocks)
        self.blocks = []
        self.num_tokens = 0


# %% wrong="half-done"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.free_ids = list(range(num_blocks))
        self.ref_counts = [0] * num_blocks

    @property
    def num_free(self):
        return len(self.free_ids)

    def ref_count(self, block):
        return self.ref_counts[block]

    def allocate(self, n):
        if n > len(self.free_ids):
            raise OutOfBlocks(f"{n} blocks wanted, {len(self.free_ids)} are free")
        blocks = [self.free_ids.pop() for _ in range(n)]
        for block in blocks:
            self.ref_counts[block] = 1
        return blocks

    def share(self, blocks):
        for block in blocks:
            if self.ref_counts[block] == 0:
                raise ValueError("a free block cannot be shared")
            self.ref_counts[block] += 1

    def free(self, blocks):
        if any(self.ref_counts[block] < blocks.count(block) for block in blocks):
            raise ValueError("double free")
        for block in blocks:
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                self.free_ids.append(block)


class BlockTable:
    def __init__(self, pool):
        self.pool = pool
        self.blocks = []
        self.num_tokens = 0

    def append(self, num_tokens):
        needed = -(-(self.num_tokens + num_tokens) // self.pool.block_size)
        self.blocks += self.pool.allocate(needed - len(self.blocks))
        self.num_tokens += num_tokens

    def fork(self):
        child = BlockTable(self.pool)
        self.pool.share(self.blocks)
        child.blocks = list(self.blocks)
        child.num_tokens = self.num_tokens
        return child

    def release(self):
        self.pool.free(self.blocks)
        self.blocks = []
        self.num_tokens = 0


# %% wrong="half-done"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.free_ids = list(range(num_blocks))
        self.ref_counts = [0] * num_blocks

    @property
    def num_free(self):
        return len(self.free_ids)

    def ref_count(self, block):
        return self.ref_counts[block]

    def allocate(self, n):
        if n > len(self.free_ids):
            raise OutOfBlocks(f"{n} blocks wanted, {len(self.free_ids)} are free")
        blocks = [self.free_ids.pop() for _ in range(n)]
        for block in blocks:
            self.ref_counts[block] = 1
        return blocks

    def share(self, blocks):
        if any(self.ref_counts[block] == 0 for block in blocks):
            raise ValueError("a free block cannot be shared")
        for block in blocks:
            self.ref_counts[block] += 1

    def free(self, blocks):
        for block in blocks:
            if self.ref_counts[block] == 0:
                raise ValueError("double free")
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                self.free_ids.append(block)


class BlockTable:
    def __init__(self, pool):
        self.pool = pool
        self.blocks = []
        self.num_tokens = 0

    def append(self, num_tokens):
        needed = -(-(self.num_tokens + num_tokens) // self.pool.block_size)
        self.blocks += self.pool.allocate(needed - len(self.blocks))
        self.num_tokens += num_tokens

    def fork(self):
        child = BlockTable(self.pool)
        self.pool.share(self.blocks)
        child.blocks = list(self.blocks)
        child.num_tokens = self.num_tokens
        return child

    def release(self):
        self.pool.free(self.blocks)
        self.blocks = []
        self.num_tokens = 0


# %% wrong="crashed"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.free_ids = list(range(num_blocks))
        self.ref_counts = [0] * num_blocks

    @property
    def num_free(self):
        return len(self.free_ids)

    def ref_count(self, block):
        return self.ref_counts[block]

    def allocate(self, n):
        if n > len(self.free_ids):
            raise OutOfBlocks(f"{n} blocks wanted, {len(self.free_ids)} are free")
        blocks = [self.free_ids.pop() for _ in range(n)]
        for block in blocks:
            self.ref_counts[block] = 1
        return blocks

    def share(self, blocks):
        if any(self.ref_counts[block] == 0 for block in blocks):
            raise ValueError("a free block cannot be shared")
        for block in blocks:
            self.ref_counts[block] += 1

    def free(self, blocks):
        if any(self.counts[block] < blocks.count(block) for block in blocks):
            raise ValueError("double free")
        for block in blocks:
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                self.free_ids.append(block)


class BlockTable:
    def __init__(self, pool):
        self.pool = pool
        self.blocks = []
        self.num_tokens = 0

    def append(self, num_tokens):
        needed = -(-(self.num_tokens + num_tokens) // self.pool.block_size)
        self.blocks += self.pool.allocate(needed - len(self.blocks))
        self.num_tokens += num_tokens

    def fork(self):
        child = BlockTable(self.pool)
        self.pool.share(self.blocks)
        child.blocks = list(self.blocks)
        child.num_tokens = self.num_tokens
        return child

    def release(self):
        self.pool.free(self.blocks)
        self.blocks = []
        self.num_tokens = 0


# %% right="holders in a Counter, the free blocks follow from it"
from collections import Counter


class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.num_blocks, self.block_size = num_blocks, block_size
        self.holders = Counter()

    def _free_blocks(self):
        return [block for block in range(self.num_blocks) if not self.holders[block]]

    @property
    def num_free(self):
        return len(self._free_blocks())

    def ref_count(self, block):
        return self.holders[block]

    def allocate(self, n):
        blocks = self._free_blocks()[:n]
        if len(blocks) < n:
            raise OutOfBlocks(n)
        self.holders.update(blocks)
        return blocks

    def share(self, blocks):
        if not all(self.holders[block] for block in blocks):
            raise ValueError("free")
        self.holders.update(blocks)

    def free(self, blocks):
        left = self.holders.copy()
        left.subtract(blocks)
        if min(left.values(), default=0) < 0:
            raise ValueError("double free")
        self.holders = left


class BlockTable:
    def __init__(self, pool, blocks=(), num_tokens=0):
        self.pool, self.blocks, self.num_tokens = pool, list(blocks), num_tokens

    def append(self, num_tokens):
        needed = -(-(self.num_tokens + num_tokens) // self.pool.block_size)
        self.blocks += self.pool.allocate(needed - len(self.blocks))
        self.num_tokens += num_tokens

    def fork(self):
        self.pool.share(self.blocks)
        return BlockTable(self.pool, self.blocks, self.num_tokens)

    def release(self):
        blocks, self.blocks, self.num_tokens = self.blocks, [], 0
        self.pool.free(blocks[::-1])


# %% right="NumPy counts"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.block_size = block_size
        self.counts = np.zeros(num_blocks, dtype=int)

    def num_free(self):
        return int((self.counts == 0).sum())

    def ref_count(self, block):
        return int(self.counts[block])

    def allocate(self, n):
        blocks = np.flatnonzero(self.counts == 0)[:n].tolist()
        if len(blocks) != n:
            raise OutOfBlocks(f"{n} wanted")
        self.counts[blocks] += 1
        return blocks

    def share(self, blocks):
        blocks = np.array(blocks, dtype=int)
        if (self.counts[blocks] == 0).any():
            raise ValueError("free blocks cannot be shared")
        np.add.at(self.counts, blocks, 1)

    def free(self, blocks):
        after = self.counts.copy()
        np.subtract.at(after, np.array(blocks, dtype=int), 1)
        if after.min() < 0:
            raise ValueError("double free")
        self.counts = after


class BlockTable:
    def __init__(self, pool):
        self.pool, self.blocks, self.num_tokens = pool, [], 0

    def append(self, num_tokens):
        needed = -(-(self.num_tokens + num_tokens) // self.pool.block_size)
        self.blocks = self.blocks + self.pool.allocate(needed - len(self.blocks))
        self.num_tokens += num_tokens

    def fork(self):
        import copy

        twin = copy.copy(self)
        twin.blocks = self.blocks[:]
        twin.pool.share(twin.blocks)
        return twin

    def release(self):
        while self.blocks:
            self.pool.free([self.blocks.pop()])
        self.num_tokens = 0


# %% right="sets of holders, undone on failure"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.free_ids = list(range(num_blocks))
        self.ref_counts = [0] * num_blocks

    @property
    def num_free(self):
        return len(self.free_ids)

    def ref_count(self, block):
        return self.ref_counts[block]

    def allocate(self, n):
        if n > len(self.free_ids):
            raise OutOfBlocks(f"{n} blocks wanted, {len(self.free_ids)} are free")
        blocks = [self.free_ids.pop() for _ in range(n)]
        for block in blocks:
            self.ref_counts[block] = 1
        return blocks

    def share(self, blocks):
        done = []
        for block in blocks:
            if not self.ref_counts[block]:
                self.free(done)
                raise ValueError(f"block {block} is free")
            self.ref_counts[block] += 1
            done.append(block)

    def free(self, blocks):
        done = []
        try:
            for block in blocks:
                if not self.ref_counts[block]:
                    raise ValueError(f"double free of {block}")
                self.ref_counts[block] -= 1
                done.append(block)
        except ValueError:
            for block in done:
                self.ref_counts[block] += 1
            raise
        self.free_ids.extend(block for block in set(done) if not self.ref_counts[block])


class BlockTable:
    def __init__(self, pool):
        self.pool = pool
        self.blocks = []
        self.num_tokens = 0

    def append(self, num_tokens):
        needed = -(-(self.num_tokens + num_tokens) // self.pool.block_size)
        self.blocks += self.pool.allocate(needed - len(self.blocks))
        self.num_tokens += num_tokens

    def fork(self):
        child = BlockTable(self.pool)
        self.pool.share(self.blocks)
        child.blocks = list(self.blocks)
        child.num_tokens = self.num_tokens
        return child

    def release(self):
        self.pool.free(self.blocks)
        self.blocks = []
        self.num_tokens = 0


# %% wrong="repeated-id"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.free_ids = list(range(num_blocks))
        self.ref_counts = [0] * num_blocks

    @property
    def num_free(self):
        return len(self.free_ids)

    def ref_count(self, block):
        return self.ref_counts[block]

    def allocate(self, n):
        if n > len(self.free_ids):
            raise OutOfBlocks(f"{n} blocks wanted, {len(self.free_ids)} are free")
        blocks = [self.free_ids.pop() for _ in range(n)]
        for block in blocks:
            self.ref_counts[block] = 1
        return blocks

    def share(self, blocks):
        if any(self.ref_counts[block] == 0 for block in blocks):
            raise ValueError(f"a free block cannot be shared: {blocks}")
        for block in blocks:
            self.ref_counts[block] += 1

    def free(self, blocks):
        if len(set(blocks)) != len(blocks) or any(self.ref_counts[block] == 0 for block in blocks):
            raise ValueError(f"double free: {blocks}")
        for block in blocks:
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                self.free_ids.append(block)


class BlockTable:
    def __init__(self, pool):
        self.pool = pool
        self.blocks = []
        self.num_tokens = 0

    def append(self, num_tokens):
        needed = -(-(self.num_tokens + num_tokens) // self.pool.block_size)
        self.blocks += self.pool.allocate(needed - len(self.blocks))
        self.num_tokens += num_tokens

    def fork(self):
        child = BlockTable(self.pool)
        self.pool.share(self.blocks)
        child.blocks = list(self.blocks)
        child.num_tokens = self.num_tokens
        return child

    def release(self):
        self.pool.free(self.blocks)
        self.blocks = []
        self.num_tokens = 0


# %% wrong="repeated-id"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.free_ids = list(range(num_blocks))
        self.ref_counts = [0] * num_blocks

    @property
    def num_free(self):
        return len(self.free_ids)

    def ref_count(self, block):
        return self.ref_counts[block]

    def allocate(self, n):
        if n > len(self.free_ids):
            raise OutOfBlocks(f"{n} blocks wanted, {len(self.free_ids)} are free")
        blocks = [self.free_ids.pop() for _ in range(n)]
        for block in blocks:
            self.ref_counts[block] = 1
        return blocks

    def share(self, blocks):
        if any(self.ref_counts[block] == 0 for block in blocks):
            raise ValueError(f"a free block cannot be shared: {blocks}")
        for block in blocks:
            self.ref_counts[block] += 1

    def free(self, blocks):
        if any(self.ref_counts[block] < blocks.count(block) for block in blocks):
            raise ValueError(f"double free: {blocks}")
        for block in blocks:
            self.ref_counts[block] -= 1
        self.free_ids += [
            block for block in blocks if self.ref_counts[block] == 0
        ]  # twice, if it stands there twice


class BlockTable:
    def __init__(self, pool):
        self.pool = pool
        self.blocks = []
        self.num_tokens = 0

    def append(self, num_tokens):
        needed = -(-(self.num_tokens + num_tokens) // self.pool.block_size)
        self.blocks += self.pool.allocate(needed - len(self.blocks))
        self.num_tokens += num_tokens

    def fork(self):
        child = BlockTable(self.pool)
        self.pool.share(self.blocks)
        child.blocks = list(self.blocks)
        child.num_tokens = self.num_tokens
        return child

    def release(self):
        self.pool.free(self.blocks)
        self.blocks = []
        self.num_tokens = 0


# %% wrong="changes-arguments"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.free_ids = list(range(num_blocks))
        self.ref_counts = [0] * num_blocks

    @property
    def num_free(self):
        return len(self.free_ids)

    def ref_count(self, block):
        return self.ref_counts[block]

    def allocate(self, n):
        if n > len(self.free_ids):
            raise OutOfBlocks(f"{n} blocks wanted, {len(self.free_ids)} are free")
        blocks = [self.free_ids.pop() for _ in range(n)]
        for block in blocks:
            self.ref_counts[block] = 1
        return blocks

    def share(self, blocks):
        if any(self.ref_counts[block] == 0 for block in blocks):
            raise ValueError(f"a free block cannot be shared: {blocks}")
        for block in blocks:
            self.ref_counts[block] += 1

    def free(self, blocks):
        if any(self.ref_counts[block] < blocks.count(block) for block in blocks):
            raise ValueError(f"double free: {blocks}")
        while blocks:
            block = blocks.pop()
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                self.free_ids.append(block)


class BlockTable:
    def __init__(self, pool):
        self.pool = pool
        self.blocks = []
        self.num_tokens = 0

    def append(self, num_tokens):
        needed = -(-(self.num_tokens + num_tokens) // self.pool.block_size)
        self.blocks += self.pool.allocate(needed - len(self.blocks))
        self.num_tokens += num_tokens

    def fork(self):
        child = BlockTable(self.pool)
        self.pool.share(self.blocks)
        child.blocks = list(self.blocks)
        child.num_tokens = self.num_tokens
        return child

    def release(self):
        self.pool.free(self.blocks)
        self.blocks = []
        self.num_tokens = 0
