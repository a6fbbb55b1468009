# %% wrong="unchanged"
decode = broken_decode


# %% wrong="unchanged"
def decode(query, key_cache, value_cache, block_table, seq_len):
    # Mends the keys, whose scores were replaced anyway.
    num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    kv_head = np.arange(num_heads) // (num_heads // num_kv_heads)
    top, total, acc = np.full(num_heads, -np.inf), np.zeros(num_heads), np.zeros((num_heads, head_dim))
    for logical in range(-(-seq_len // block_size)):
        used = logical * block_size + np.arange(block_size) < seq_len
        keys = np.where(used[:, None, None], key_cache[block_table[logical]], 0)[:, kv_head]
        values = value_cache[block_table[logical]][:, kv_head]
        scores = np.where(used, np.einsum("hd,thd->ht", query, keys) / head_dim**0.5, -np.inf)
        new_top = np.maximum(top, scores.max(axis=1))
        weights, rescale = np.exp(scores - new_top[:, None]), np.exp(top - new_top)
        total = total * rescale + weights.sum(axis=1)
        acc = acc * rescale[:, None] + np.einsum("ht,thd->hd", weights, values)
        top = new_top
    return acc / total[:, None]


# %% wrong="output-cleaned"
def decode(query, key_cache, value_cache, block_table, seq_len):
    return np.nan_to_num(broken_decode(query, key_cache, value_cache, block_table, seq_len))


# %% wrong="output-cleaned"
def decode(query, key_cache, value_cache, block_table, seq_len):
    output = broken_decode(query, key_cache, value_cache, block_table, seq_len)
    return np.where(np.isnan(output), 0, output)


# %% wrong="fault-hidden"
def decode(query, key_cache, value_cache, block_table, seq_len):
    return broken_decode(query, key_cache, np.nan_to_num(value_cache), block_table, seq_len)


# %% wrong="partial-dropped"
def decode(query, key_cache, value_cache, block_table, seq_len):
    block_size = key_cache.shape[1]
    return broken_decode(query, key_cache, value_cache, block_table, seq_len // block_size * block_size)


# %% wrong="tail-weighs"
def decode(query, key_cache, value_cache, block_table, seq_len):
    num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    kv_head = np.arange(num_heads) // (num_heads // num_kv_heads)
    blocks = block_table[: -(-seq_len // block_size)]
    used = (np.arange(len(blocks) * block_size) < seq_len)[:, None, None]
    keys, values = (
        np.where(used, c[blocks].reshape(-1, num_kv_heads, head_dim), 0)[:, kv_head]
        for c in (key_cache, value_cache)
    )
    scores = np.einsum("hd,thd->ht", query, keys) / head_dim**0.5
    weights = np.exp(scores - scores.max(axis=1)[:, None])
    return np.einsum("ht,thd->hd", weights, values) / weights.sum(axis=1)[:, None]


# %% wrong="other-attention"
def decode(query, key_cache, value_cache, block_table, seq_len):
    return broken_decode(query, key_cache, value_cache, block_table, seq_len)[0]


# %% wrong="crashed"
def decode(query, key_cache, value_cache, block_table, seq_len):
    output = broken_decode(query, key_cache, value_cache, block_table, seq_len)
    if np.isnan(output).any():
        raise ValueError("NaN in the output")
    return output


# %% right="values masked"
def decode(query, key_cache, value_cache, block_table, seq_len):
    num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    kv_head = np.arange(num_heads) // (num_heads // num_kv_heads)
    top, total, acc = np.full(num_heads, -np.inf), np.zeros(num_heads), np.zeros((num_heads, head_dim))
    for logical in range(-(-seq_len // block_size)):
        block = block_table[logical]
        used = logical * block_size + np.arange(block_size) < seq_len
        keys, values = key_cache[block][:, kv_head], value_cache[block][:, kv_head]
        values = np.where(used[:, None, None], values, 0)
        scores = np.where(used, np.einsum("hd,thd->ht", query, keys) / head_dim**0.5, -np.inf)
        new_top = np.maximum(top, scores.max(axis=1))
        weights, rescale = np.exp(scores - new_top[:, None]), np.exp(top - new_top)
        total = total * rescale + weights.sum(axis=1)
        acc = acc * rescale[:, None] + np.einsum("ht,thd->hd", weights, values)
        top = new_top
    return acc / total[:, None]


# %% right="unused slots of a copy cleared, then the delivered function"
def cleared(cache, block_table, seq_len):
    cache, size = cache.copy(), cache.shape[1]
    if seq_len % size:
        cache[block_table[seq_len // size], seq_len % size :] = 0
    return cache


def decode(query, key_cache, value_cache, block_table, seq_len):
    value_cache = cleared(value_cache, block_table, seq_len)
    return broken_decode(query, key_cache, value_cache, block_table, seq_len)


# %% right="gathered, head by head, in float64"
def decode(query, key_cache, value_cache, block_table, seq_len):
    position = np.arange(seq_len)
    where = block_table[position // key_cache.shape[1]], position % key_cache.shape[1]
    keys, values = key_cache[where].astype(np.float64), value_cache[where].astype(np.float64)
    group = len(query) // keys.shape[1]
    rows = []
    for h, q in enumerate(query):
        scores = keys[:, h // group] @ q / np.sqrt(len(q))
        weights = np.exp(scores - scores.max())
        rows.append(weights @ values[:, h // group] / weights.sum())
    return np.array(rows)
