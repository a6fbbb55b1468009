# %% wrong="not-written"
def paged_forward(query, key, value, layer, key_cache, value_cache, batch, scaling):
    block_size, num_kv_heads = key_cache.shape[2:4]
    num_heads, num_tokens = query.shape[1:3]
    key_cache, value_cache = key_cache.copy(), value_cache.copy()
    block, offset = batch["slot_mapping"] // block_size, batch["slot_mapping"] % block_size
    key_cache[layer, block, offset] = key[0].swapaxes(0, 1)
    value_cache[layer, block, offset] = value[0].swapaxes(0, 1)

    output = np.empty((1, num_tokens, num_heads, query.shape[-1]), query.dtype)
    starts = batch["query_start_loc"]
    for i, seq_len in enumerate(batch["seq_lens"]):
        seen = np.arange(seq_len)
        block, offset = batch["block_tables"][i][seen // block_size], seen % block_size
        keys = np.repeat(key_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        values = np.repeat(value_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        rows = slice(starts[i], starts[i + 1])
        scores = scaling * np.einsum("hqd,khd->hqk", query[0][:, rows], keys)
        scores[:, batch["positions"][rows, None] < seen] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        output[0, rows] = np.einsum("hqk,khd->qhd", weights, values)
    return output


# %% wrong="wrong-layer"
def paged_forward(query, key, value, layer, key_cache, value_cache, batch, scaling):
    block_size, num_kv_heads = key_cache.shape[2:4]
    num_heads, num_tokens = query.shape[1:3]
    block, offset = batch["slot_mapping"] // block_size, batch["slot_mapping"] % block_size
    key_cache[0, block, offset] = key[0].swapaxes(0, 1)
    value_cache[0, block, offset] = value[0].swapaxes(0, 1)

    output = np.empty((1, num_tokens, num_heads, query.shape[-1]), query.dtype)
    starts = batch["query_start_loc"]
    for i, seq_len in enumerate(batch["seq_lens"]):
        seen = np.arange(seq_len)
        block, offset = batch["block_tables"][i][seen // block_size], seen % block_size
        keys = np.repeat(key_cache[0, block, offset], num_heads // num_kv_heads, axis=1)
        values = np.repeat(value_cache[0, block, offset], num_heads // num_kv_heads, axis=1)
        rows = slice(starts[i], starts[i + 1])
        scores = scaling * np.einsum("hqd,khd->hqk", query[0][:, rows], keys)
        scores[:, batch["positions"][rows, None] < seen] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        output[0, rows] = np.einsum("hqk,khd->qhd", weights, values)
    return output


# %% wrong="wrong-layer"
def paged_forward(query, key, value, layer, key_cache, value_cache, batch, scaling):
    block_size, num_kv_heads = key_cache.shape[2:4]
    num_heads, num_tokens = query.shape[1:3]
    block, offset = batch["slot_mapping"] // block_size, batch["slot_mapping"] % block_size
    key_cache[:, block, offset] = key[0].swapaxes(0, 1)
    value_cache[:, block, offset] = value[0].swapaxes(0, 1)

    output = np.empty((1, num_tokens, num_heads, query.shape[-1]), query.dtype)
    starts = batch["query_start_loc"]
    for i, seq_len in enumerate(batch["seq_lens"]):
        seen = np.arange(seq_len)
        block, offset = batch["block_tables"][i][seen // block_size], seen % block_size
        keys = np.repeat(key_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        values = np.repeat(value_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        rows = slice(starts[i], starts[i + 1])
        scores = scaling * np.einsum("hqd,khd->hqk", query[0][:, rows], keys)
        scores[:, batch["positions"][rows, None] < seen] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        output[0, rows] = np.einsum("hqk,khd->qhd", weights, values)
    return output


# %% wrong="rotary-twice"
def paged_forward(query, key, value, layer, key_cache, value_cache, batch, scaling):
    block_size, num_kv_heads = key_cache.shape[2:4]
    num_heads, num_tokens = query.shape[1:3]
    query, key = rotary(query, batch["positions"]), rotary(key, batch["positions"])
    block, offset = batch["slot_mapping"] // block_size, batch["slot_mapping"] % block_size
    key_cache[layer, block, offset] = key[0].swapaxes(0, 1)
    value_cache[layer, block, offset] = value[0].swapaxes(0, 1)

    output = np.empty((1, num_tokens, num_heads, query.shape[-1]), query.dtype)
    starts = batch["query_start_loc"]
    for i, seq_len in enumerate(batch["seq_lens"]):
        seen = np.arange(seq_len)
        block, offset = batch["block_tables"][i][seen // block_size], seen % block_size
        keys = np.repeat(key_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        values = np.repeat(value_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        rows = slice(starts[i], starts[i + 1])
        scores = scaling * np.einsum("hqd,khd->hqk", query[0][:, rows], keys)
        scores[:, batch["positions"][rows, None] < seen] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        output[0, rows] = np.einsum("hqk,khd->qhd", weights, values)
    return output


# %% wrong="rotary-twice"
def paged_forward(query, key, value, layer, key_cache, value_cache, batch, scaling):
    block_size, num_kv_heads = key_cache.shape[2:4]
    num_heads, num_tokens = query.shape[1:3]
    query = rotary(query, batch["positions"])
    block, offset = batch["slot_mapping"] // block_size, batch["slot_mapping"] % block_size
    key_cache[layer, block, offset] = key[0].swapaxes(0, 1)
    value_cache[layer, block, offset] = value[0].swapaxes(0, 1)

    output = np.empty((1, num_tokens, num_heads, query.shape[-1]), query.dtype)
    starts = batch["query_start_loc"]
    for i, seq_len in enumerate(batch["seq_lens"]):
        seen = np.arange(seq_len)
        block, offset = batch["block_tables"][i][seen // block_size], seen % block_size
        keys = np.repeat(key_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        values = np.repeat(value_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        rows = slice(starts[i], starts[i + 1])
        scores = scaling * np.einsum("hqd,khd->hqk", query[0][:, rows], keys)
        scores[:, batch["positions"][rows, None] < seen] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        output[0, rows] = np.einsum("hqk,khd->qhd", weights, values)
    return output


# %% wrong="read-before-write"
def paged_forward(query, key, value, layer, key_cache, value_cache, batch, scaling):
    block_size, num_kv_heads = key_cache.shape[2:4]
    num_heads, num_tokens = query.shape[1:3]

    output = np.empty((1, num_tokens, num_heads, query.shape[-1]), query.dtype)
    starts = batch["query_start_loc"]
    for i, seq_len in enumerate(batch["seq_lens"]):
        seen = np.arange(seq_len)
        block, offset = batch["block_tables"][i][seen // block_size], seen % block_size
        keys = np.repeat(key_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        values = np.repeat(value_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        rows = slice(starts[i], starts[i + 1])
        scores = scaling * np.einsum("hqd,khd->hqk", query[0][:, rows], keys)
        scores[:, batch["positions"][rows, None] < seen] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        output[0, rows] = np.einsum("hqk,khd->qhd", weights, values)
    block, offset = batch["slot_mapping"] // block_size, batch["slot_mapping"] % block_size
    key_cache[layer, block, offset] = key[0].swapaxes(0, 1)
    value_cache[layer, block, offset] = value[0].swapaxes(0, 1)
    return output


# %% wrong="step-only"
def paged_forward(query, key, value, layer, key_cache, value_cache, batch, scaling):
    block_size, num_kv_heads = key_cache.shape[2:4]
    num_heads, num_tokens = query.shape[1:3]
    block, offset = batch["slot_mapping"] // block_size, batch["slot_mapping"] % block_size
    key_cache[layer, block, offset] = key[0].swapaxes(0, 1)
    value_cache[layer, block, offset] = value[0].swapaxes(0, 1)

    output = np.empty((1, num_tokens, num_heads, query.shape[-1]), query.dtype)
    starts = batch["query_start_loc"]
    for i, seq_len in enumerate(batch["seq_lens"]):
        seen = np.arange(seq_len - (starts[i + 1] - starts[i]), seq_len)
        block, offset = batch["block_tables"][i][seen // block_size], seen % block_size
        keys = np.repeat(key_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        values = np.repeat(value_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        rows = slice(starts[i], starts[i + 1])
        scores = scaling * np.einsum("hqd,khd->hqk", query[0][:, rows], keys)
        scores[:, batch["positions"][rows, None] < seen] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        output[0, rows] = np.einsum("hqk,khd->qhd", weights, values)
    return output


# %% wrong="not-causal"
def paged_forward(query, key, value, layer, key_cache, value_cache, batch, scaling):
    block_size, num_kv_heads = key_cache.shape[2:4]
    num_heads, num_tokens = query.shape[1:3]
    block, offset = batch["slot_mapping"] // block_size, batch["slot_mapping"] % block_size
    key_cache[layer, block, offset] = key[0].swapaxes(0, 1)
    value_cache[layer, block, offset] = value[0].swapaxes(0, 1)

    output = np.empty((1, num_tokens, num_heads, query.shape[-1]), query.dtype)
    starts = batch["query_start_loc"]
    for i, seq_len in enumerate(batch["seq_lens"]):
        seen = np.arange(seq_len)
        block, offset = batch["block_tables"][i][seen // block_size], seen % block_size
        keys = np.repeat(key_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        values = np.repeat(value_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        rows = slice(starts[i], starts[i + 1])
        scores = scaling * np.einsum("hqd,khd->hqk", query[0][:, rows], keys)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        output[0, rows] = np.einsum("hqk,khd->qhd", weights, values)
    return output


# %% wrong="causal-from-row"
def paged_forward(query, key, value, layer, key_cache, value_cache, batch, scaling):
    block_size, num_kv_heads = key_cache.shape[2:4]
    num_heads, num_tokens = query.shape[1:3]
    block, offset = batch["slot_mapping"] // block_size, batch["slot_mapping"] % block_size
    key_cache[layer, block, offset] = key[0].swapaxes(0, 1)
    value_cache[layer, block, offset] = value[0].swapaxes(0, 1)

    output = np.empty((1, num_tokens, num_heads, query.shape[-1]), query.dtype)
    starts = batch["query_start_loc"]
    for i, seq_len in enumerate(batch["seq_lens"]):
        seen = np.arange(seq_len)
        block, offset = batch["block_tables"][i][seen // block_size], seen % block_size
        keys = np.repeat(key_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        values = np.repeat(value_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        rows = slice(starts[i], starts[i + 1])
        scores = scaling * np.einsum("hqd,khd->hqk", query[0][:, rows], keys)
        scores[:, np.arange(starts[i + 1] - starts[i])[:, None] < seen] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        output[0, rows] = np.einsum("hqk,khd->qhd", weights, values)
    return output


# %% wrong="modulo"
def paged_forward(query, key, value, layer, key_cache, value_cache, batch, scaling):
    block_size, num_kv_heads = key_cache.shape[2:4]
    num_heads, num_tokens = query.shape[1:3]
    block, offset = batch["slot_mapping"] // block_size, batch["slot_mapping"] % block_size
    key_cache[layer, block, offset] = key[0].swapaxes(0, 1)
    value_cache[layer, block, offset] = value[0].swapaxes(0, 1)

    output = np.empty((1, num_tokens, num_heads, query.shape[-1]), query.dtype)
    starts = batch["query_start_loc"]
    for i, seq_len in enumerate(batch["seq_lens"]):
        seen = np.arange(seq_len)
        block, offset = batch["block_tables"][i][seen // block_size], seen % block_size
        keys = np.tile(key_cache[layer, block, offset], (1, num_heads // num_kv_heads, 1))
        values = np.tile(value_cache[layer, block, offset], (1, num_heads // num_kv_heads, 1))
        rows = slice(starts[i], starts[i + 1])
        scores = scaling * np.einsum("hqd,khd->hqk", query[0][:, rows], keys)
        scores[:, batch["positions"][rows, None] < seen] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        output[0, rows] = np.einsum("hqk,khd->qhd", weights, values)
    return output


# %% wrong="scaling-ignored"
def paged_forward(query, key, value, layer, key_cache, value_cache, batch, scaling):
    block_size, num_kv_heads = key_cache.shape[2:4]
    num_heads, num_tokens = query.shape[1:3]
    block, offset = batch["slot_mapping"] // block_size, batch["slot_mapping"] % block_size
    key_cache[layer, block, offset] = key[0].swapaxes(0, 1)
    value_cache[layer, block, offset] = value[0].swapaxes(0, 1)

    output = np.empty((1, num_tokens, num_heads, query.shape[-1]), query.dtype)
    starts = batch["query_start_loc"]
    for i, seq_len in enumerate(batch["seq_lens"]):
        seen = np.arange(seq_len)
        block, offset = batch["block_tables"][i][seen // block_size], seen % block_size
        keys = np.repeat(key_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        values = np.repeat(value_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        rows = slice(starts[i], starts[i + 1])
        scores = query.shape[-1] ** -0.5 * np.einsum("hqd,khd->hqk", query[0][:, rows], keys)
        scores[:, batch["positions"][rows, None] < seen] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        output[0, rows] = np.einsum("hqk,khd->qhd", weights, values)
    return output


# %% wrong="scaling-ignored"
def paged_forward(query, key, value, layer, key_cache, value_cache, batch, scaling):
    block_size, num_kv_heads = key_cache.shape[2:4]
    num_heads, num_tokens = query.shape[1:3]
    block, offset = batch["slot_mapping"] // block_size, batch["slot_mapping"] % block_size
    key_cache[layer, block, offset] = key[0].swapaxes(0, 1)
    value_cache[layer, block, offset] = value[0].swapaxes(0, 1)

    output = np.empty((1, num_tokens, num_heads, query.shape[-1]), query.dtype)
    starts = batch["query_start_loc"]
    for i, seq_len in enumerate(batch["seq_lens"]):
        seen = np.arange(seq_len)
        block, offset = batch["block_tables"][i][seen // block_size], seen % block_size
        keys = np.repeat(key_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        values = np.repeat(value_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        rows = slice(starts[i], starts[i + 1])
        scores = np.einsum("hqd,khd->hqk", query[0][:, rows], keys)
        scores[:, batch["positions"][rows, None] < seen] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        output[0, rows] = np.einsum("hqk,khd->qhd", weights, values)
    return output


# %% wrong="tail-kept"
def paged_forward(query, key, value, layer, key_cache, value_cache, batch, scaling):
    block_size, num_kv_heads = key_cache.shape[2:4]
    num_heads, num_tokens = query.shape[1:3]
    block, offset = batch["slot_mapping"] // block_size, batch["slot_mapping"] % block_size
    key_cache[layer, block, offset] = key[0].swapaxes(0, 1)
    value_cache[layer, block, offset] = value[0].swapaxes(0, 1)

    output = np.empty((1, num_tokens, num_heads, query.shape[-1]), query.dtype)
    starts = batch["query_start_loc"]
    for i, seq_len in enumerate(batch["seq_lens"]):
        seen = np.arange(-(-seq_len // block_size) * block_size)
        block, offset = batch["block_tables"][i][seen // block_size], seen % block_size
        keys = np.repeat(key_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        values = np.repeat(value_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        rows = slice(starts[i], starts[i + 1])
        scores = scaling * np.einsum("hqd,khd->hqk", query[0][:, rows], keys)
        last = batch["positions"][rows, None] == seq_len - 1
        scores[:, (batch["positions"][rows, None] < seen) & ~last] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        output[0, rows] = np.einsum("hqk,khd->qhd", weights, values)
    return output


# %% wrong="nan-leaks"
def paged_forward(query, key, value, layer, key_cache, value_cache, batch, scaling):
    block_size, num_kv_heads = key_cache.shape[2:4]
    num_heads, num_tokens = query.shape[1:3]
    block, offset = batch["slot_mapping"] // block_size, batch["slot_mapping"] % block_size
    key_cache[layer, block, offset] = key[0].swapaxes(0, 1)
    value_cache[layer, block, offset] = value[0].swapaxes(0, 1)

    output = np.empty((1, num_tokens, num_heads, query.shape[-1]), query.dtype)
    starts = batch["query_start_loc"]
    for i, seq_len in enumerate(batch["seq_lens"]):
        seen = np.arange(-(-seq_len // block_size) * block_size)
        block, offset = batch["block_tables"][i][seen // block_size], seen % block_size
        keys = np.repeat(key_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        values = np.repeat(value_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        rows = slice(starts[i], starts[i + 1])
        scores = scaling * np.einsum("hqd,khd->hqk", query[0][:, rows], keys)
        scores[:, batch["positions"][rows, None] < seen] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        output[0, rows] = np.einsum("hqk,khd->qhd", weights, values)
    return output


# %% wrong="heads-first"
def paged_forward(query, key, value, layer, key_cache, value_cache, batch, scaling):
    block_size, num_kv_heads = key_cache.shape[2:4]
    num_heads, num_tokens = query.shape[1:3]
    block, offset = batch["slot_mapping"] // block_size, batch["slot_mapping"] % block_size
    key_cache[layer, block, offset] = key[0].swapaxes(0, 1)
    value_cache[layer, block, offset] = value[0].swapaxes(0, 1)

    output = np.empty((1, num_tokens, num_heads, query.shape[-1]), query.dtype)
    starts = batch["query_start_loc"]
    for i, seq_len in enumerate(batch["seq_lens"]):
        seen = np.arange(seq_len)
        block, offset = batch["block_tables"][i][seen // block_size], seen % block_size
        keys = np.repeat(key_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        values = np.repeat(value_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        rows = slice(starts[i], starts[i + 1])
        scores = scaling * np.einsum("hqd,khd->hqk", query[0][:, rows], keys)
        scores[:, batch["positions"][rows, None] < seen] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        output[0, rows] = np.einsum("hqk,khd->qhd", weights, values)
    return output.swapaxes(1, 2)


# %% wrong="other-attention"
def paged_forward(query, key, value, layer, key_cache, value_cache, batch, scaling):
    block_size, num_kv_heads = key_cache.shape[2:4]
    num_heads, num_tokens = query.shape[1:3]
    block, offset = batch["slot_mapping"] // block_size, batch["slot_mapping"] % block_size
    key_cache[layer, block, offset] = key[0].swapaxes(0, 1)
    value_cache[layer, block, offset] = value[0].swapaxes(0, 1)

    output = np.empty((1, num_tokens, num_heads, query.shape[-1]), query.dtype)
    starts = batch["query_start_loc"]
    for i, seq_len in enumerate(batch["seq_lens"]):
        seen = np.arange(seq_len)
        block, offset = batch["block_tables"][i][seen // block_size], seen % block_size
        keys = np.repeat(key_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        values = np.repeat(value_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        rows = slice(starts[i], starts[i + 1])
        scores = scaling * np.einsum("hqd,khd->hqk", query[0][:, rows], keys)
        scores[:, batch["positions"][rows, None] < seen] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        output[0, rows] = np.einsum("hqk,khd->qhd", weights, keys)
    return output


# %% wrong="wrong-rows"
def paged_forward(query, key, value, layer, key_cache, value_cache, batch, scaling):
    block_size, num_kv_heads = key_cache.shape[2:4]
    num_heads, num_tokens = query.shape[1:3]
    block, offset = batch["slot_mapping"] // block_size, batch["slot_mapping"] % block_size
    key_cache[layer, block, offset] = key[0].swapaxes(0, 1)
    value_cache[layer, block, offset] = key[0].swapaxes(0, 1)

    output = np.empty((1, num_tokens, num_heads, query.shape[-1]), query.dtype)
    starts = batch["query_start_loc"]
    for i, seq_len in enumerate(batch["seq_lens"]):
        seen = np.arange(seq_len)
        block, offset = batch["block_tables"][i][seen // block_size], seen % block_size
        keys = np.repeat(key_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        values = np.repeat(value_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        rows = slice(starts[i], starts[i + 1])
        scores = scaling * np.einsum("hqd,khd->hqk", query[0][:, rows], keys)
        scores[:, batch["positions"][rows, None] < seen] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        output[0, rows] = np.einsum("hqk,khd->qhd", weights, values)
    return output


# %% right="one token at a time"
def softmax(scores):
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def paged_forward(query, key, value, layer, key_cache, value_cache, batch, scaling):
    block_size = key_cache.shape[2]
    for row, slot in enumerate(batch["slot_mapping"]):
        key_cache[layer, slot // block_size, slot % block_size] = key[0, :, row]
        value_cache[layer, slot // block_size, slot % block_size] = value[0, :, row]
    num_heads, num_tokens, head_dim = query.shape[1:]
    output = np.zeros((1, num_tokens, num_heads, head_dim))
    owner = np.searchsorted(batch["query_start_loc"], np.arange(num_tokens), side="right") - 1
    for row in range(num_tokens):
        p = np.arange(batch["positions"][row] + 1)
        blocks = batch["block_tables"][owner[row], p // block_size]
        for h in range(num_heads):
            kv = h * key_cache.shape[3] // num_heads
            weights = softmax(key_cache[layer, blocks, p % block_size, kv] @ query[0, h, row] * scaling)
            output[0, row, h] = weights @ value_cache[layer, blocks, p % block_size, kv]
    return output


# %% right="flat views and grouped heads"
def paged_forward(query, key, value, layer, key_cache, value_cache, batch, scaling):
    _, block_size, kv_heads, dim = key_cache.shape[1:]
    flat_k, flat_v = (
        key_cache[layer].reshape(-1, kv_heads, dim),
        value_cache[layer].reshape(-1, kv_heads, dim),
    )
    flat_k[batch["slot_mapping"]] = key[0].transpose(1, 0, 2)
    flat_v[batch["slot_mapping"]] = value[0].transpose(1, 0, 2)
    num_tokens, group = query.shape[2], query.shape[1] // kv_heads
    pieces = []
    for table, n, start, stop in zip(
        batch["block_tables"], batch["seq_lens"], batch["query_start_loc"], batch["query_start_loc"][1:]
    ):
        t = np.arange(n)
        slots = table[t // block_size] * block_size + t % block_size
        q = query[0, :, start:stop].reshape(kv_heads, group, stop - start, dim)
        scores = scaling * np.einsum("kgqd,tkd->kgqt", q, flat_k[slots])
        visible = np.tril(np.ones((stop - start, n), bool), n - (stop - start))
        scores = np.where(visible, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out = np.einsum("kgqt,tkd->qkgd", weights / weights.sum(-1, keepdims=True), flat_v[slots])
        pieces.append(out.reshape(stop - start, -1, dim))
    return np.concatenate(pieces).reshape(1, num_tokens, -1, dim)


# %% wrong="overflow"
def paged_forward(query, key, value, layer, key_cache, value_cache, batch, scaling):
    """One layer's attention of one step: [1, num_tokens, num_heads, head_dim]."""
    block_size, num_kv_heads = key_cache.shape[2:4]
    num_heads, num_tokens = query.shape[1:3]
    block, offset = batch["slot_mapping"] // block_size, batch["slot_mapping"] % block_size
    key_cache[layer, block, offset] = key[0].swapaxes(0, 1)
    value_cache[layer, block, offset] = value[0].swapaxes(0, 1)

    output = np.empty((1, num_tokens, num_heads, query.shape[-1]), query.dtype)
    starts = batch["query_start_loc"]
    for i, seq_len in enumerate(batch["seq_lens"]):
        seen = np.arange(seq_len)
        block, offset = batch["block_tables"][i][seen // block_size], seen % block_size
        keys = np.repeat(key_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        values = np.repeat(value_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        rows = slice(starts[i], starts[i + 1])
        scores = scaling * np.einsum("hqd,khd->hqk", query[0][:, rows], keys)
        scores[:, batch["positions"][rows, None] < seen] = -np.inf
        weights = np.exp(scores)
        weights /= weights.sum(axis=-1, keepdims=True)
        output[0, rows] = np.einsum("hqk,khd->qhd", weights, values)
    return output


# %% wrong="overflow"
def paged_forward(query, key, value, layer, key_cache, value_cache, batch, scaling):
    """One layer's attention of one step: [1, num_tokens, num_heads, head_dim]."""
    block_size, num_kv_heads = key_cache.shape[2:4]
    num_heads, num_tokens = query.shape[1:3]
    block, offset = batch["slot_mapping"] // block_size, batch["slot_mapping"] % block_size
    key_cache[layer, block, offset] = key[0].swapaxes(0, 1)
    value_cache[layer, block, offset] = value[0].swapaxes(0, 1)

    output = np.empty((1, num_tokens, num_heads, query.shape[-1]), query.dtype)
    starts = batch["query_start_loc"]
    for i, seq_len in enumerate(batch["seq_lens"]):
        seen = np.arange(seq_len)
        block, offset = batch["block_tables"][i][seen // block_size], seen % block_size
        keys = np.repeat(key_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        values = np.repeat(value_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        rows = slice(starts[i], starts[i + 1])
        scores = scaling * np.einsum("hqd,khd->hqk", query[0][:, rows], keys)
        scores[:, batch["positions"][rows, None] < seen] = -np.inf
        weights = np.exp(scores - np.maximum(0, scores.max(axis=-1, keepdims=True)))
        weights /= weights.sum(axis=-1, keepdims=True)
        output[0, rows] = np.einsum("hqk,khd->qhd", weights, values)
    return output


# %% wrong="reshaped"
def paged_forward(query, key, value, layer, key_cache, value_cache, batch, scaling):
    """One layer's attention of one step: [1, num_tokens, num_heads, head_dim]."""
    block_size, num_kv_heads = key_cache.shape[2:4]
    num_heads, num_tokens = query.shape[1:3]
    block, offset = batch["slot_mapping"] // block_size, batch["slot_mapping"] % block_size
    key_cache[layer, block, offset] = key[0].reshape(num_tokens, num_kv_heads, -1)
    value_cache[layer, block, offset] = value[0].reshape(num_tokens, num_kv_heads, -1)

    output = np.empty((1, num_tokens, num_heads, query.shape[-1]), query.dtype)
    starts = batch["query_start_loc"]
    for i, seq_len in enumerate(batch["seq_lens"]):
        seen = np.arange(seq_len)
        block, offset = batch["block_tables"][i][seen // block_size], seen % block_size
        keys = np.repeat(key_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        values = np.repeat(value_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        rows = slice(starts[i], starts[i + 1])
        scores = scaling * np.einsum("hqd,khd->hqk", query[0][:, rows], keys)
        scores[:, batch["positions"][rows, None] < seen] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        output[0, rows] = np.einsum("hqk,khd->qhd", weights, values)
    return output


# %% wrong="reshaped"
def paged_forward(query, key, value, layer, key_cache, value_cache, batch, scaling):
    """One layer's attention of one step: [1, num_tokens, num_heads, head_dim]."""
    block_size, num_kv_heads = key_cache.shape[2:4]
    num_heads, num_tokens = query.shape[1:3]
    block, offset = batch["slot_mapping"] // block_size, batch["slot_mapping"] % block_size
    key_cache[layer, block, offset] = key[0].swapaxes(0, 1)
    value_cache[layer, block, offset] = value[0].swapaxes(0, 1)

    output = np.empty((1, num_tokens, num_heads, query.shape[-1]), query.dtype)
    starts = batch["query_start_loc"]
    for i, seq_len in enumerate(batch["seq_lens"]):
        seen = np.arange(seq_len)
        block, offset = batch["block_tables"][i][seen // block_size], seen % block_size
        keys = np.repeat(key_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        values = np.repeat(value_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        rows = slice(starts[i], starts[i + 1])
        scores = scaling * np.einsum(
            "hqd,khd->hqk", query[0].reshape(num_tokens, num_heads, -1).swapaxes(0, 1)[:, rows], keys
        )
        scores[:, batch["positions"][rows, None] < seen] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        output[0, rows] = np.einsum("hqk,khd->qhd", weights, values)
    return output


# %% wrong="not-itself"
def paged_forward(query, key, value, layer, key_cache, value_cache, batch, scaling):
    """One layer's attention of one step: [1, num_tokens, num_heads, head_dim]."""
    block_size, num_kv_heads = key_cache.shape[2:4]
    num_heads, num_tokens = query.shape[1:3]
    block, offset = batch["slot_mapping"] // block_size, batch["slot_mapping"] % block_size
    key_cache[layer, block, offset] = key[0].swapaxes(0, 1)
    value_cache[layer, block, offset] = value[0].swapaxes(0, 1)

    output = np.empty((1, num_tokens, num_heads, query.shape[-1]), query.dtype)
    starts = batch["query_start_loc"]
    for i, seq_len in enumerate(batch["seq_lens"]):
        seen = np.arange(seq_len)
        block, offset = batch["block_tables"][i][seen // block_size], seen % block_size
        keys = np.repeat(key_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        values = np.repeat(value_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        rows = slice(starts[i], starts[i + 1])
        scores = scaling * np.einsum("hqd,khd->hqk", query[0][:, rows], keys)
        scores[:, batch["positions"][rows, None] <= seen] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        output[0, rows] = np.einsum("hqk,khd->qhd", weights, values)
    return output
