# %% wrong="modulo"
def paged_attention(query, key_cache, value_cache, block_tables, seq_lens):
    num_seqs, num_heads, head_dim = query.shape
    output = np.empty_like(query)
    for i in range(num_seqs):
        keys = gather(key_cache, block_tables[i], seq_lens[i])
        values = gather(value_cache, block_tables[i], seq_lens[i])
        for h in range(num_heads):
            kv_head = h % key_cache.shape[2]
            scores = keys[:, kv_head] @ query[i, h] / head_dim**0.5
            weights = np.exp(scores - scores.max())
            output[i, h] = weights @ values[:, kv_head] / weights.sum()
    return output


# %% wrong="modulo"
def paged_attention(query, key_cache, value_cache, block_tables, seq_lens):
    num_seqs, num_heads, head_dim = query.shape
    copies = num_heads // key_cache.shape[2]
    output = np.empty_like(query)
    for i in range(num_seqs):
        keys = np.tile(gather(key_cache, block_tables[i], seq_lens[i]), (1, copies, 1))  # repeat is wanted
        values = np.tile(gather(value_cache, block_tables[i], seq_lens[i]), (1, copies, 1))
        scores = np.einsum("hd,thd->ht", query[i], keys) / np.sqrt(head_dim)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        output[i] = np.einsum("ht,thd->hd", weights / weights.sum(axis=1, keepdims=True), values)
    return output


# %% wrong="scale-missing"
def paged_attention(query, key_cache, value_cache, block_tables, seq_lens):
    num_seqs, num_heads, head_dim = query.shape
    group = num_heads // key_cache.shape[2]
    output = np.empty_like(query)
    for i in range(num_seqs):
        keys = gather(key_cache, block_tables[i], seq_lens[i])
        values = gather(value_cache, block_tables[i], seq_lens[i])
        for h in range(num_heads):
            scores = keys[:, h // group] @ query[i, h]
            weights = np.exp(scores - scores.max())
            output[i, h] = weights @ values[:, h // group] / weights.sum()
    return output


# %% wrong="scale-twice"
def paged_attention(query, key_cache, value_cache, block_tables, seq_lens):
    num_seqs, num_heads, head_dim = query.shape
    group = num_heads // key_cache.shape[2]
    output = np.empty_like(query)
    for i in range(num_seqs):
        keys = gather(key_cache, block_tables[i], seq_lens[i])
        values = gather(value_cache, block_tables[i], seq_lens[i])
        for h in range(num_heads):
            scores = keys[:, h // group] @ query[i, h] / head_dim
            weights = np.exp(scores - scores.max())
            output[i, h] = weights @ values[:, h // group] / weights.sum()
    return output


# %% wrong="tail-kept"
def paged_attention(query, key_cache, value_cache, block_tables, seq_lens):
    num_seqs, num_heads, head_dim = query.shape
    size, group = key_cache.shape[1], num_heads // key_cache.shape[2]
    output = np.empty_like(query)
    for i in range(num_seqs):
        blocks = block_tables[i, : -(-seq_lens[i] // size)]
        keys = key_cache[blocks].reshape(-1, *key_cache.shape[2:])
        values = value_cache[blocks].reshape(-1, *value_cache.shape[2:])
        for h in range(num_heads):
            scores = keys[:, h // group] @ query[i, h] / head_dim**0.5
            weights = np.exp(scores - scores.max())
            output[i, h] = weights @ values[:, h // group] / weights.sum()
    return output


# %% wrong="tail-scored-zero"
def paged_attention(query, key_cache, value_cache, block_tables, seq_lens):
    num_seqs, num_heads, head_dim = query.shape
    size, group = key_cache.shape[1], num_heads // key_cache.shape[2]
    output = np.empty_like(query)
    for i, n in enumerate(seq_lens):
        blocks = block_tables[i, : -(-n // size)]
        keys = key_cache[blocks].reshape(-1, *key_cache.shape[2:])
        values = value_cache[blocks].reshape(-1, *value_cache.shape[2:])
        for h in range(num_heads):
            scores = keys[:, h // group] @ query[i, h] / head_dim**0.5
            scores = scores * (np.arange(len(keys)) < n)
            weights = np.exp(scores - scores.max())
            output[i, h] = weights @ values[:, h // group] / weights.sum()
    return output


# %% wrong="nan-leaks"
def paged_attention(query, key_cache, value_cache, block_tables, seq_lens):
    num_seqs, num_heads, head_dim = query.shape
    size, group = key_cache.shape[1], num_heads // key_cache.shape[2]
    output = np.empty_like(query)
    for i, n in enumerate(seq_lens):
        blocks = block_tables[i, : -(-n // size)]
        keys = key_cache[blocks].reshape(-1, *key_cache.shape[2:])
        values = value_cache[blocks].reshape(-1, *value_cache.shape[2:])
        for h in range(num_heads):
            scores = keys[:, h // group] @ query[i, h] / head_dim**0.5
            scores = np.where(np.arange(len(keys)) < n, scores, -np.inf)  # the weights are right, V is not
            weights = np.exp(scores - scores.max())
            output[i, h] = weights @ values[:, h // group] / weights.sum()
    return output


# %% wrong="token-lost"
def paged_attention(query, key_cache, value_cache, block_tables, seq_lens):
    num_seqs, num_heads, head_dim = query.shape
    group = num_heads // key_cache.shape[2]
    output = np.empty_like(query)
    for i in range(num_seqs):
        keys = gather(key_cache, block_tables[i], seq_lens[i] - 1)  # as if its own key were not there yet
        values = gather(value_cache, block_tables[i], seq_lens[i] - 1)
        for h in range(num_heads):
            scores = keys[:, h // group] @ query[i, h] / head_dim**0.5
            weights = np.exp(scores - scores.max())
            output[i, h] = weights @ values[:, h // group] / weights.sum()
    return output


# %% wrong="swapped"
def paged_attention(query, key_cache, value_cache, block_tables, seq_lens):
    num_seqs, num_heads, head_dim = query.shape
    group = num_heads // key_cache.shape[2]
    output = np.empty_like(query)
    for i in range(num_seqs):
        values = gather(key_cache, block_tables[i], seq_lens[i])
        keys = gather(value_cache, block_tables[i], seq_lens[i])
        for h in range(num_heads):
            scores = keys[:, h // group] @ query[i, h] / head_dim**0.5
            weights = np.exp(scores - scores.max())
            output[i, h] = weights @ values[:, h // group] / weights.sum()
    return output


# %% wrong="not-normalised"
def paged_attention(query, key_cache, value_cache, block_tables, seq_lens):
    num_seqs, num_heads, head_dim = query.shape
    group = num_heads // key_cache.shape[2]
    output = np.empty_like(query)
    for i in range(num_seqs):
        keys = gather(key_cache, block_tables[i], seq_lens[i])
        values = gather(value_cache, block_tables[i], seq_lens[i])
        for h in range(num_heads):
            scores = keys[:, h // group] @ query[i, h] / head_dim**0.5
            output[i, h] = np.exp(scores - scores.max()) @ values[:, h // group]
    return output


# %% wrong="unused-read"
def paged_attention(query, key_cache, value_cache, block_tables, seq_lens):
    num_seqs, num_heads, head_dim = query.shape
    group = num_heads // key_cache.shape[2]
    keys = key_cache[block_tables].reshape(num_seqs, -1, *key_cache.shape[2:])  # the whole rectangle
    values = value_cache[block_tables].reshape(num_seqs, -1, *value_cache.shape[2:])
    output = np.empty_like(query)
    for i, n in enumerate(seq_lens):
        for h in range(num_heads):
            scores = keys[i, :n, h // group] @ query[i, h] / head_dim**0.5
            weights = np.exp(scores - scores.max())
            output[i, h] = weights @ values[i, :n, h // group] / weights.sum()
    return output


# %% wrong="overflow"
def paged_attention(query, key_cache, value_cache, block_tables, seq_lens):
    num_seqs, num_heads, head_dim = query.shape
    group = num_heads // key_cache.shape[2]
    output = np.empty_like(query)
    for i in range(num_seqs):
        keys = gather(key_cache, block_tables[i], seq_lens[i])
        values = gather(value_cache, block_tables[i], seq_lens[i])
        for h in range(num_heads):
            weights = np.exp(keys[:, h // group].astype(float) @ query[i, h] / head_dim**0.5)
            output[i, h] = weights @ values[:, h // group] / weights.sum()
    return output


# %% wrong="one-length"
def paged_attention(query, key_cache, value_cache, block_tables, seq_lens):
    num_seqs, num_heads, head_dim = query.shape
    group, n = num_heads // key_cache.shape[2], seq_lens[0]
    output = np.empty_like(query)
    for i in range(num_seqs):
        keys, values = gather(key_cache, block_tables[i], n), gather(value_cache, block_tables[i], n)
        for h in range(num_heads):
            scores = keys[:, h // group] @ query[i, h] / head_dim**0.5
            weights = np.exp(scores - scores.max())
            output[i, h] = weights @ values[:, h // group] / weights.sum()
    return output


# %% wrong="first-table"
def paged_attention(query, key_cache, value_cache, block_tables, seq_lens):
    num_seqs, num_heads, head_dim = query.shape
    group = num_heads // key_cache.shape[2]
    output = np.empty_like(query)
    for i in range(num_seqs):
        keys = gather(key_cache, block_tables[0], seq_lens[i])
        values = gather(value_cache, block_tables[0], seq_lens[i])
        for h in range(num_heads):
            scores = keys[:, h // group] @ query[i, h] / head_dim**0.5
            weights = np.exp(scores - scores.max())
            output[i, h] = weights @ values[:, h // group] / weights.sum()
    return output


# %% wrong="other-attention"
def paged_attention(query, key_cache, value_cache, block_tables, seq_lens):
    return np.zeros_like(query)


# %% wrong="other-attention"
def paged_attention(query, key_cache, value_cache, block_tables, seq_lens):
    return query


# %% wrong="other-attention"
def paged_attention(query, key_cache, value_cache, block_tables, seq_lens):
    # the mean of the values: what softmax would give if all scores were equal
    group = query.shape[1] // key_cache.shape[2]
    means = [gather(value_cache, table, n).mean(axis=0) for table, n in zip(block_tables, seq_lens)]
    return np.stack(means).repeat(group, axis=1)


# %% wrong="last-block-lost"
def paged_attention(query, key_cache, value_cache, block_tables, seq_lens):
    num_seqs, num_heads, head_dim = query.shape
    size, group = key_cache.shape[1], num_heads // key_cache.shape[2]
    output = np.empty_like(query)
    for i, n in enumerate(seq_lens):
        full = max(1, n // size * size)
        keys, values = gather(key_cache, block_tables[i], full), gather(value_cache, block_tables[i], full)
        for h in range(num_heads):
            scores = keys[:, h // group] @ query[i, h] / head_dim**0.5
            weights = np.exp(scores - scores.max())
            output[i, h] = weights @ values[:, h // group] / weights.sum()
    return output


# %% wrong="overflow"
def paged_attention(query, key_cache, value_cache, block_tables, seq_lens):
    num_seqs, num_heads, head_dim = query.shape
    kv_head = np.arange(num_heads) // (num_heads // key_cache.shape[2])
    output = np.empty_like(query)
    for i in range(num_seqs):
        keys = gather(key_cache, block_tables[i], seq_lens[i])[:, kv_head]
        values = gather(value_cache, block_tables[i], seq_lens[i])[:, kv_head]
        scores = np.einsum("hd,thd->ht", query[i], keys) / head_dim**0.5
        weights = np.exp(scores - scores.max())  # the largest of all heads
        output[i] = np.einsum("ht,thd->hd", weights, values) / weights.sum(axis=1, keepdims=True)
    return output


# %% wrong="crashed"
def paged_attention(query, key_cache, value_cache, block_tables, seq_lens):
    return np.einsum("bhd,bthd->bht", query, key_cache[block_tables])


# %% right="one einsum for all heads, without exercise 3.2"
def paged_attention(query, key_cache, value_cache, block_tables, seq_lens):
    num_seqs, num_heads, head_dim = query.shape
    size, num_kv_heads = key_cache.shape[1:3]
    output = []
    for q, table, n in zip(query.astype(np.float64), block_tables, seq_lens):
        t = np.arange(n)
        k, v = key_cache[table[t // size], t % size], value_cache[table[t // size], t % size]
        grouped = q.reshape(num_kv_heads, -1, head_dim)
        scores = np.einsum("kgd,tkd->kgt", grouped, k) * head_dim**-0.5
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        output.append(np.einsum("kgt,tkd->kgd", weights, v).reshape(num_heads, head_dim))
    return np.array(output)


# %% right="the whole rectangle at once, with everything unused set to zero first"
def paged_attention(query, key_cache, value_cache, block_tables, seq_lens):
    num_seqs, num_heads, head_dim = query.shape
    size, num_kv_heads = key_cache.shape[1:3]
    group = num_heads // num_kv_heads
    exists = np.arange(block_tables.shape[1] * size) < seq_lens[:, None]
    tables = np.where(exists[:, ::size], block_tables, 0)
    keys = key_cache[tables].reshape(num_seqs, -1, num_kv_heads, head_dim)
    values = value_cache[tables].reshape(num_seqs, -1, num_kv_heads, head_dim)
    keys = np.where(exists[:, :, None, None], keys, 0).repeat(group, axis=2)
    values = np.where(exists[:, :, None, None], values, 0).repeat(group, axis=2)
    scores = np.einsum("bhd,bthd->bht", query, keys) / np.sqrt(head_dim)
    scores = np.where(exists[:, None, :], scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    return np.einsum("bht,bthd->bhd", weights / weights.sum(axis=2, keepdims=True), values)


# %% right="loops and lists, with helpers"
def softmax(scores):
    highest = max(scores)
    powers = [np.exp(s - highest) for s in scores]
    return [p / sum(powers) for p in powers]


def one_head(q, keys, values):
    weights = softmax([float(q @ k) / len(q) ** 0.5 for k in keys])
    return sum(w * v for w, v in zip(weights, values)).tolist()


def paged_attention(query, key_cache, value_cache, block_tables, seq_lens):
    shared = query.shape[1] // key_cache.shape[2]
    result = []
    for i, n in enumerate(seq_lens):
        k, v = gather(key_cache, block_tables[i], n), gather(value_cache, block_tables[i], n)
        result.append(
            [one_head(query[i][h], k[:, h // shared], v[:, h // shared]) for h in range(query.shape[1])]
        )
    return result


# %% wrong="changes-arguments"
def paged_attention(query, key_cache, value_cache, block_tables, seq_lens):
    query *= query.shape[-1] ** -0.5
    kv_head = np.arange(query.shape[1]) * key_cache.shape[2] // query.shape[1]
    output = np.zeros_like(query)
    for i in range(len(query)):
        keys = gather(key_cache, block_tables[i], seq_lens[i])[:, kv_head]
        values = gather(value_cache, block_tables[i], seq_lens[i])[:, kv_head]
        scores = (keys * query[i]).sum(axis=-1)
        scores -= scores.max(axis=0)
        weights = np.exp(scores) / np.exp(scores).sum(axis=0)
        output[i] = (weights[:, :, None] * values).sum(axis=0)
    return output


# %% right="scales a copy of the query"
def paged_attention(query, key_cache, value_cache, block_tables, seq_lens):
    query = query * query.shape[-1] ** -0.5
    kv_head = np.arange(query.shape[1]) * key_cache.shape[2] // query.shape[1]
    output = np.zeros_like(query)
    for i in range(len(query)):
        keys = gather(key_cache, block_tables[i], seq_lens[i])[:, kv_head]
        values = gather(value_cache, block_tables[i], seq_lens[i])[:, kv_head]
        scores = (keys * query[i]).sum(axis=-1)
        scores -= scores.max(axis=0)
        weights = np.exp(scores) / np.exp(scores).sum(axis=0)
        output[i] = (weights[:, :, None] * values).sum(axis=0)
    return output


# %% wrong="low-precision"
def paged_attention(query, key_cache, value_cache, block_tables, seq_lens):
    num_seqs, num_heads, head_dim = query.shape
    group = num_heads // key_cache.shape[2]
    output = np.empty_like(query)
    for i in range(num_seqs):
        keys = gather(key_cache, block_tables[i], seq_lens[i])
        values = gather(value_cache, block_tables[i], seq_lens[i])
        for h in range(num_heads):
            scores = np.clip(
                keys[:, h // group] @ query[i, h] / head_dim**0.5, -600, 600
            )  # exp cannot overflow
            weights = np.exp(scores.astype(np.float64))
            output[i, h] = weights @ values[:, h // group] / weights.sum()
    return output


# %% wrong="over-heads"
def paged_attention(query, key_cache, value_cache, block_tables, seq_lens):
    num_seqs, num_heads, head_dim = query.shape
    kv_head = np.arange(num_heads) // (num_heads // key_cache.shape[2])
    output = np.empty_like(query)
    for i in range(num_seqs):
        keys = gather(key_cache, block_tables[i], seq_lens[i])[:, kv_head]
        values = gather(value_cache, block_tables[i], seq_lens[i])[:, kv_head]
        scores = np.einsum("hd,thd->ht", query[i], keys) / head_dim**0.5
        weights = np.exp(scores - scores.max(axis=0))
        weights /= weights.sum(axis=0)
        output[i] = np.einsum("ht,thd->hd", weights, values)
    return output


# %% wrong="overflow"
def paged_attention(query, key_cache, value_cache, block_tables, seq_lens):
    num_seqs, num_heads, head_dim = query.shape
    group = num_heads // key_cache.shape[2]
    output = np.empty_like(query)
    for i in range(num_seqs):
        keys = gather(key_cache, block_tables[i], seq_lens[i])
        values = gather(value_cache, block_tables[i], seq_lens[i])
        for h in range(num_heads):
            scores = keys[:, h // group] @ query[i, h] / head_dim**0.5
            weights = np.exp(scores - max(0, scores.max()))  # the largest, but at least 0
            output[i, h] = weights @ values[:, h // group] / weights.sum()
    return output
