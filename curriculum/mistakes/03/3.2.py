# %% wrong="tail-kept"
def gather(cache, block_table, seq_len):
    num_blocks = -(-seq_len // cache.shape[1])
    return cache[block_table[:num_blocks]].reshape(-1, *cache.shape[2:])


# %% wrong="last-block-lost"
def gather(cache, block_table, seq_len):
    num_blocks = seq_len // cache.shape[1]
    return cache[block_table[:num_blocks]].reshape(-1, *cache.shape[2:])[:seq_len]


# %% wrong="order"
def gather(cache, block_table, seq_len):
    num_blocks = -(-seq_len // cache.shape[1])
    return cache[np.sort(block_table[:num_blocks])].reshape(-1, *cache.shape[2:])[:seq_len]


# %% wrong="order"
def gather(cache, block_table, seq_len):
    size = cache.shape[1]
    used = set(block_table[: -(-seq_len // size)].tolist())
    rows = [cache[block] for block in range(len(cache)) if block in used]  # memory order
    return np.concatenate(rows)[:seq_len]


# %% wrong="order"
def gather(cache, block_table, seq_len):
    num_blocks = -(-seq_len // cache.shape[1])
    rows = []
    for block in block_table[:num_blocks]:
        rows.insert(0, cache[block])
    return np.concatenate(rows)[:seq_len]


# %% wrong="table-ignored"
def gather(cache, block_table, seq_len):
    return cache.reshape(-1, *cache.shape[2:])[:seq_len]


# %% wrong="block-as-slot"
def gather(cache, block_table, seq_len):
    flat, size = cache.reshape(-1, *cache.shape[2:]), cache.shape[1]
    return np.stack([flat[block_table[t // size] + t % size] for t in range(seq_len)])


# %% wrong="not-flat"
def gather(cache, block_table, seq_len):
    return cache[block_table[: -(-seq_len // cache.shape[1])]]


# %% wrong="unused-read"
def gather(cache, block_table, seq_len):
    return cache[block_table].reshape(-1, *cache.shape[2:])[:seq_len]


# %% wrong="other-rows"
def gather(cache, block_table, seq_len):
    size = cache.shape[1]
    return np.stack(
        [cache[block_table[t // size], 0] for t in range(seq_len)]
    )  # the first slot of each block


# %% wrong="other-rows"
def gather(cache, block_table, seq_len):
    return cache


# %% wrong="first-block-only"
def gather(cache, block_table, seq_len):
    first = block_table[0] * cache.shape[1]
    return cache.reshape(-1, *cache.shape[2:])[first : first + seq_len]


# %% wrong="last-block-lost"
def gather(cache, block_table, seq_len):
    num_blocks = round(seq_len / cache.shape[1] + 0.4)  # up, unless very little is left over
    return cache[block_table[:num_blocks]].reshape(-1, *cache.shape[2:])[:seq_len]


# %% wrong="crashed"
def gather(cache, block_table, seq_len):
    return cache[block_table[seq_len]]


# %% right="token by token"
def gather(cache, block_table, seq_len):
    size = cache.shape[1]
    return np.stack([cache[block_table[t // size], t % size] for t in range(seq_len)])


# %% right="blocks joined, the last one cut"
def gather(cache, block_table, seq_len):
    size, rows, left = cache.shape[1], [], seq_len
    for block in block_table:
        if left <= 0:
            break
        rows.append(cache[block][:left])
        left -= size
    return np.concatenate(rows)


# %% right="slots computed at once"
def slots_of(block_table, seq_len, size):
    t = np.arange(seq_len)
    return block_table[t // size].astype(np.int64) * size + t % size


def gather(cache, block_table, seq_len):
    return np.take(
        cache.reshape(-1, *cache.shape[2:]), slots_of(block_table, seq_len, cache.shape[1]), axis=0
    )


# %% wrong="changes-arguments"
def gather(cache, block_table, seq_len):
    size = cache.shape[1]
    used = -(-seq_len // size)
    block_table[used:] = 0  # a block that exists
    return cache[block_table].reshape(-1, *cache.shape[2:])[:seq_len]


# %% wrong="rounded"
def gather(cache, block_table, seq_len):
    blocks = cache[block_table[: -(-seq_len // cache.shape[1])]].astype(np.float16)
    return blocks.reshape(-1, *cache.shape[2:])[:seq_len]


# %% wrong="crashed"
def gather(cache, block_table, seq_len):
    return np.stack([cache[block_table[t // cache.shape[1]], t] for t in range(seq_len)])  # not the offset
