# %% wrong="writes-shared"
def append(table, memory, value):
    pool, size = table.pool, table.pool.block_size
    offset = table.num_tokens % size
    if offset == 0:
        table.blocks.extend(pool.allocate(1))
    memory[table.blocks[-1], offset] = value
    table.num_tokens += 1
    return table.blocks[-1] * size + offset


# %% wrong="half-done"
def append(table, memory, value):
    pool, size = table.pool, table.pool.block_size
    offset = table.num_tokens % size
    if offset == 0:
        table.blocks.extend(pool.allocate(1))
    block = table.blocks[-1]
    memory[block, offset] = value  # written first, copied afterwards
    if pool.ref_count(block) > 1:
        [own] = pool.allocate(1)
        memory[own] = memory[block]
        pool.free([block])
        table.blocks[-1] = own
    table.num_tokens += 1
    return table.blocks[-1] * size + offset


# %% wrong="copies-full"
def append(table, memory, value):
    pool, size = table.pool, table.pool.block_size
    offset = table.num_tokens % size
    if table.blocks and pool.ref_count(table.blocks[-1]) > 1:  # full or not
        shared, [own] = table.blocks[-1], pool.allocate(1)
        memory[own] = memory[shared]
        pool.free([shared])
        table.blocks[-1] = own
    if offset == 0:
        table.blocks.extend(pool.allocate(1))
    memory[table.blocks[-1], offset] = value
    table.num_tokens += 1
    return table.blocks[-1] * size + offset


# %% wrong="copies-full"
def append(table, memory, value):
    pool, size = table.pool, table.pool.block_size
    if any(pool.ref_count(block) > 1 for block in table.blocks):  # the whole table
        own = pool.allocate(len(table.blocks))
        memory[own] = memory[table.blocks]
        pool.free(table.blocks)
        table.blocks = own
    offset = table.num_tokens % size
    if offset == 0:
        table.blocks.extend(pool.allocate(1))
    memory[table.blocks[-1], offset] = value
    table.num_tokens += 1
    return table.blocks[-1] * size + offset


# %% wrong="copies-alone"
def append(table, memory, value):
    pool, size = table.pool, table.pool.block_size
    offset = table.num_tokens % size
    if offset == 0:
        table.blocks.extend(pool.allocate(1))
    else:
        shared, [own] = table.blocks[-1], pool.allocate(1)
        memory[own] = memory[shared]
        pool.free([shared])
        table.blocks[-1] = own
    memory[table.blocks[-1], offset] = value
    table.num_tokens += 1
    return table.blocks[-1] * size + offset


# %% wrong="copies-alone"
def append(table, memory, value):
    pool, size = table.pool, table.pool.block_size
    offset = table.num_tokens % size
    if offset == 0:
        table.blocks.extend(pool.allocate(1))
    elif pool.ref_count(table.blocks[-1]) >= 1:
        shared, [own] = table.blocks[-1], pool.allocate(1)
        memory[own] = memory[shared]
        pool.free([shared])
        table.blocks[-1] = own
    memory[table.blocks[-1], offset] = value
    table.num_tokens += 1
    return table.blocks[-1] * size + offset


# %% wrong="not-copied"
def append(table, memory, value):
    pool, size = table.pool, table.pool.block_size
    offset = table.num_tokens % size
    if offset == 0:
        table.blocks.extend(pool.allocate(1))
    elif pool.ref_count(table.blocks[-1]) > 1:
        shared, [own] = table.blocks[-1], pool.allocate(1)
        pool.free([shared])
        table.blocks[-1] = own
    memory[table.blocks[-1], offset] = value
    table.num_tokens += 1
    return table.blocks[-1] * size + offset


# %% wrong="not-copied"
def append(table, memory, value):
    pool, size = table.pool, table.pool.block_size
    offset = table.num_tokens % size
    if offset == 0:
        table.blocks.extend(pool.allocate(1))
    elif pool.ref_count(table.blocks[-1]) > 1:
        shared, [own] = table.blocks[-1], pool.allocate(1)
        memory[own, offset] = memory[shared, offset]
        pool.free([shared])
        table.blocks[-1] = own
    memory[table.blocks[-1], offset] = value
    table.num_tokens += 1
    return table.blocks[-1] * size + offset


# %% wrong="keeps-old"
def append(table, memory, value):
    pool, size = table.pool, table.pool.block_size
    offset = table.num_tokens % size
    if offset == 0:
        table.blocks.extend(pool.allocate(1))
    elif pool.ref_count(table.blocks[-1]) > 1:
        shared, [own] = table.blocks[-1], pool.allocate(1)
        memory[own] = memory[shared]
        table.blocks[-1] = own
    memory[table.blocks[-1], offset] = value
    table.num_tokens += 1
    return table.blocks[-1] * size + offset


# %% wrong="frees-too-much"
def append(table, memory, value):
    pool, size = table.pool, table.pool.block_size
    offset = table.num_tokens % size
    if offset == 0:
        table.blocks.extend(pool.allocate(1))
    elif pool.ref_count(table.blocks[-1]) > 1:
        shared, [own] = table.blocks[-1], pool.allocate(1)
        memory[own] = memory[shared]
        pool.free(table.blocks)
        table.blocks[-1] = own
    memory[table.blocks[-1], offset] = value
    table.num_tokens += 1
    return table.blocks[-1] * size + offset


# %% wrong="block-per-token"
def append(table, memory, value):
    pool, size = table.pool, table.pool.block_size
    offset = table.num_tokens % size
    [own] = pool.allocate(1)  # in case it is needed
    if offset == 0:
        table.blocks.append(own)
    elif pool.ref_count(table.blocks[-1]) > 1:
        memory[own] = memory[table.blocks[-1]]
        pool.free([table.blocks[-1]])
        table.blocks[-1] = own
    memory[table.blocks[-1], offset] = value
    table.num_tokens += 1
    return table.blocks[-1] * size + offset


# %% wrong="wrong-slot"
def append(table, memory, value):
    pool, size = table.pool, table.pool.block_size
    offset = table.num_tokens % size
    if offset == 0:
        table.blocks.extend(pool.allocate(1))
    elif pool.ref_count(table.blocks[-1]) > 1:
        shared, [own] = table.blocks[-1], pool.allocate(1)
        memory[own] = memory[shared]
        pool.free([shared])
        table.blocks[-1] = own
    memory[table.blocks[-1], offset] = value
    table.num_tokens += 1
    return table.num_tokens - 1


# %% wrong="wrong-slot"
def append(table, memory, value):
    pool, size = table.pool, table.pool.block_size
    offset = table.num_tokens % size
    if offset == 0:
        table.blocks.extend(pool.allocate(1))
    elif pool.ref_count(table.blocks[-1]) > 1:
        shared, [own] = table.blocks[-1], pool.allocate(1)
        memory[own] = memory[shared]
        pool.free([shared])
        table.blocks[-1] = own
    memory[table.blocks[-1], table.num_tokens // size] = value
    table.num_tokens += 1
    return table.blocks[-1] * size + offset


# %% wrong="num-tokens"
def append(table, memory, value):
    pool, size = table.pool, table.pool.block_size
    offset = table.num_tokens % size
    if offset == 0:
        table.blocks.extend(pool.allocate(1))
    elif pool.ref_count(table.blocks[-1]) > 1:
        shared, [own] = table.blocks[-1], pool.allocate(1)
        memory[own] = memory[shared]
        pool.free([shared])
        table.blocks[-1] = own
    memory[table.blocks[-1], offset] = value
    table.num_tokens = offset + 1
    return table.blocks[-1] * size + offset


# %% wrong="not-refused"
def append(table, memory, value):
    pool, size = table.pool, table.pool.block_size
    offset = table.num_tokens % size
    try:
        if offset == 0:
            table.blocks.extend(pool.allocate(1))
        elif pool.ref_count(table.blocks[-1]) > 1:
            shared, [own] = table.blocks[-1], pool.allocate(1)
            memory[own] = memory[shared]
            pool.free([shared])
            table.blocks[-1] = own
    except OutOfBlocks:
        return None
    memory[table.blocks[-1], offset] = value
    table.num_tokens += 1
    return table.blocks[-1] * size + offset


# %% wrong="half-done"
def append(table, memory, value):
    pool, size = table.pool, table.pool.block_size
    offset = table.num_tokens % size
    table.num_tokens += 1
    if offset == 0:
        table.blocks.extend(pool.allocate(1))  # may fail when the token is counted already
    elif pool.ref_count(table.blocks[-1]) > 1:
        shared, [own] = table.blocks[-1], pool.allocate(1)
        memory[own] = memory[shared]
        pool.free([shared])
        table.blocks[-1] = own
    memory[table.blocks[-1], offset] = value
    return table.blocks[-1] * size + offset


# %% wrong="half-done"
def append(table, memory, value):
    pool, size = table.pool, table.pool.block_size
    offset = table.num_tokens % size
    if offset == 0:
        table.blocks.extend(pool.allocate(1))
    elif pool.ref_count(table.blocks[-1]) > 1:
        shared = table.blocks.pop()
        pool.free([shared])  # the hold is gone, whatever allocate says
        table.blocks.extend(pool.allocate(1))
        memory[table.blocks[-1]] = memory[shared]
    memory[table.blocks[-1], offset] = value
    table.num_tokens += 1
    return table.blocks[-1] * size + offset


# %% right="three helpers"
def _new(table):
    table.blocks = [*table.blocks, *table.pool.allocate(1)]


def _own(table, memory):
    [fresh] = table.pool.allocate(1)
    *rest, old = table.blocks
    memory[fresh, :] = memory[old, :]
    table.blocks = [*rest, fresh]
    table.pool.free([old])


def append(table, memory, value):
    last, offset = divmod(table.num_tokens, table.pool.block_size)
    if last == len(table.blocks):
        _new(table)
    elif table.pool.ref_count(table.blocks[last]) != 1:
        _own(table, memory)
    memory[table.blocks[last]][offset] = value
    table.num_tokens += 1
    return table.blocks[last] * table.pool.block_size + offset


# %% right="only the written slots are copied, memory flat"
def append(table, memory, value):
    size, n = table.pool.block_size, table.num_tokens
    flat, used = memory.reshape(-1), n % size
    if not used or table.pool.ref_count(table.blocks[-1]) > 1:
        (block,) = table.pool.allocate(1)
        if used:
            old = table.blocks.pop()
            flat[block * size : block * size + used] = flat[old * size : old * size + used]
            table.pool.free([old])
        table.blocks.append(block)
    slot = table.blocks[-1] * size + used
    flat[slot] = value
    table.num_tokens = n + 1
    return np.int64(slot)


# %% right="tries, and gives back what it did not need"
def append(table, memory, value):
    pool = table.pool
    logical, offset = table.num_tokens // pool.block_size, table.num_tokens % pool.block_size
    alone = offset > 0 and pool.ref_count(table.blocks[logical]) == 1
    if not alone:
        block = pool.allocate(1)[0]
        if offset > 0:
            for i in range(offset):
                memory[block, i] = memory[table.blocks[logical], i]
            pool.free(table.blocks[logical:])
        table.blocks[logical:] = [block]
    memory[table.blocks[logical], offset] = value
    table.num_tokens += 1
    return table.blocks[logical] * pool.block_size + offset


# %% wrong="block-not-needed"
def append(table, memory, value):
    pool, size = table.pool, table.pool.block_size
    offset = table.num_tokens % size
    [own] = pool.allocate(1)  # in case it is needed
    if offset == 0:
        table.blocks.append(own)
    elif pool.ref_count(table.blocks[-1]) > 1:
        memory[own] = memory[table.blocks[-1]]
        pool.free([table.blocks[-1]])
        table.blocks[-1] = own
    else:
        pool.free([own])
    memory[table.blocks[-1], offset] = value
    table.num_tokens += 1
    return table.blocks[-1] * size + offset
