# %% wrong="not-rescaled"
def absorb(top, total, acc, scores, values):
    new_top = max(top, scores.max())
    weights = np.exp(scores - new_top)
    return new_top, total + weights.sum(), acc + weights @ values


def attend_blocks(query, key_cache, value_cache, block_table, seq_len):
    num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    output = np.empty_like(query)
    for h in range(num_heads):
        kv_head = h // (num_heads // num_kv_heads)
        top, total, acc = -np.inf, 0.0, np.zeros(head_dim)
        for logical in range(-(-seq_len // block_size)):
            block = block_table[logical]
            filled = min(block_size, seq_len - logical * block_size)
            scores = key_cache[block, :filled, kv_head] @ query[h] / head_dim**0.5
            top, total, acc = absorb(top, total, acc, scores, value_cache[block, :filled, kv_head])
        output[h] = acc / total
    return output


# %% wrong="total-not-rescaled"
def absorb(top, total, acc, scores, values):
    new_top = max(top, scores.max())
    weights = np.exp(scores - new_top)
    rescale = np.exp(top - new_top)
    return new_top, total + weights.sum(), acc * rescale + weights @ values


def attend_blocks(query, key_cache, value_cache, block_table, seq_len):
    num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    output = np.empty_like(query)
    for h in range(num_heads):
        kv_head = h // (num_heads // num_kv_heads)
        top, total, acc = -np.inf, 0.0, np.zeros(head_dim)
        for logical in range(-(-seq_len // block_size)):
            block = block_table[logical]
            filled = min(block_size, seq_len - logical * block_size)
            scores = key_cache[block, :filled, kv_head] @ query[h] / head_dim**0.5
            top, total, acc = absorb(top, total, acc, scores, value_cache[block, :filled, kv_head])
        output[h] = acc / total
    return output


# %% wrong="acc-not-rescaled"
def absorb(top, total, acc, scores, values):
    new_top = max(top, scores.max())
    weights = np.exp(scores - new_top)
    rescale = np.exp(top - new_top)
    return new_top, total * rescale + weights.sum(), acc + weights @ values


def attend_blocks(query, key_cache, value_cache, block_table, seq_len):
    num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    output = np.empty_like(query)
    for h in range(num_heads):
        kv_head = h // (num_heads // num_kv_heads)
        top, total, acc = -np.inf, 0.0, np.zeros(head_dim)
        for logical in range(-(-seq_len // block_size)):
            block = block_table[logical]
            filled = min(block_size, seq_len - logical * block_size)
            scores = key_cache[block, :filled, kv_head] @ query[h] / head_dim**0.5
            top, total, acc = absorb(top, total, acc, scores, value_cache[block, :filled, kv_head])
        output[h] = acc / total
    return output


# %% wrong="rescale-inverted"
def absorb(top, total, acc, scores, values):
    new_top = max(top, scores.max())
    weights = np.exp(scores - new_top)
    rescale = np.exp(new_top - top)
    return new_top, total * rescale + weights.sum(), acc * rescale + weights @ values


def attend_blocks(query, key_cache, value_cache, block_table, seq_len):
    num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    output = np.empty_like(query)
    for h in range(num_heads):
        kv_head = h // (num_heads // num_kv_heads)
        top, total, acc = -np.inf, 0.0, np.zeros(head_dim)
        for logical in range(-(-seq_len // block_size)):
            block = block_table[logical]
            filled = min(block_size, seq_len - logical * block_size)
            scores = key_cache[block, :filled, kv_head] @ query[h] / head_dim**0.5
            top, total, acc = absorb(top, total, acc, scores, value_cache[block, :filled, kv_head])
        output[h] = acc / total
    return output


# %% wrong="rescale-inverted"
def absorb(top, total, acc, scores, values):
    new_top = max(top, scores.max())
    weights = np.exp(scores - new_top)
    rescale = np.exp(new_top - top) if total else 1.0
    return new_top, total * rescale + weights.sum(), acc * rescale + weights @ values


def attend_blocks(query, key_cache, value_cache, block_table, seq_len):
    num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    output = np.empty_like(query)
    for h in range(num_heads):
        kv_head = h // (num_heads // num_kv_heads)
        top, total, acc = -np.inf, 0.0, np.zeros(head_dim)
        for logical in range(-(-seq_len // block_size)):
            block = block_table[logical]
            filled = min(block_size, seq_len - logical * block_size)
            scores = key_cache[block, :filled, kv_head] @ query[h] / head_dim**0.5
            top, total, acc = absorb(top, total, acc, scores, value_cache[block, :filled, kv_head])
        output[h] = acc / total
    return output


# %% wrong="divides-early"
def absorb(top, total, acc, scores, values):
    new_top = max(top, scores.max())
    weights = np.exp(scores - new_top)
    rescale = np.exp(top - new_top)
    total = total * rescale + weights.sum()
    return new_top, total, (acc * rescale + weights @ values) / total


def attend_blocks(query, key_cache, value_cache, block_table, seq_len):
    num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    output = np.empty_like(query)
    for h in range(num_heads):
        kv_head = h // (num_heads // num_kv_heads)
        top, total, acc = -np.inf, 0.0, np.zeros(head_dim)
        for logical in range(-(-seq_len // block_size)):
            block = block_table[logical]
            filled = min(block_size, seq_len - logical * block_size)
            scores = key_cache[block, :filled, kv_head] @ query[h] / head_dim**0.5
            top, total, acc = absorb(top, total, acc, scores, value_cache[block, :filled, kv_head])
        output[h] = acc / total
    return output


# %% wrong="divides-early"
def absorb(top, total, acc, scores, values):
    new_top = max(top, scores.max())
    weights = np.exp(scores - new_top)
    rescale = np.exp(top - new_top)
    return new_top, total * rescale + weights.sum(), acc * rescale + weights / weights.sum() @ values


def attend_blocks(query, key_cache, value_cache, block_table, seq_len):
    num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    output = np.empty_like(query)
    for h in range(num_heads):
        kv_head = h // (num_heads // num_kv_heads)
        top, total, acc = -np.inf, 0.0, np.zeros(head_dim)
        for logical in range(-(-seq_len // block_size)):
            block = block_table[logical]
            filled = min(block_size, seq_len - logical * block_size)
            scores = key_cache[block, :filled, kv_head] @ query[h] / head_dim**0.5
            top, total, acc = absorb(top, total, acc, scores, value_cache[block, :filled, kv_head])
        output[h] = acc / total
    return output


# %% wrong="forgets"
def absorb(top, total, acc, scores, values):
    weights = np.exp(scores - scores.max())
    return scores.max(), weights.sum(), weights @ values


def attend_blocks(query, key_cache, value_cache, block_table, seq_len):
    num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    output = np.empty_like(query)
    for h in range(num_heads):
        kv_head = h // (num_heads // num_kv_heads)
        top, total, acc = -np.inf, 0.0, np.zeros(head_dim)
        for logical in range(-(-seq_len // block_size)):
            block = block_table[logical]
            filled = min(block_size, seq_len - logical * block_size)
            scores = key_cache[block, :filled, kv_head] @ query[h] / head_dim**0.5
            top, total, acc = absorb(top, total, acc, scores, value_cache[block, :filled, kv_head])
        output[h] = acc / total
    return output


# %% wrong="not-a-state"
def absorb(top, total, acc, scores, values):
    new_top = max(top, scores.max())
    weights, rescale = np.exp(scores - new_top), np.exp(top - new_top)
    return (acc * rescale + weights @ values) / (total * rescale + weights.sum())


def attend_blocks(query, key_cache, value_cache, block_table, seq_len):
    num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    output = np.empty_like(query)
    for h in range(num_heads):
        kv_head = h // (num_heads // num_kv_heads)
        top, total, acc = -np.inf, 0.0, np.zeros(head_dim)
        for logical in range(-(-seq_len // block_size)):
            block = block_table[logical]
            filled = min(block_size, seq_len - logical * block_size)
            scores = key_cache[block, :filled, kv_head] @ query[h] / head_dim**0.5
            top, total, acc = absorb(top, total, acc, scores, value_cache[block, :filled, kv_head])
        output[h] = acc / total
    return output


# %% wrong="other-state"
def absorb(top, total, acc, scores, values):
    new_top = max(top, scores.max())
    weights = np.exp(scores - new_top)
    rescale = np.exp(top - new_top)
    return new_top, total * rescale + len(scores), acc * rescale + weights @ values  # counts, not weights


def attend_blocks(query, key_cache, value_cache, block_table, seq_len):
    num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    output = np.empty_like(query)
    for h in range(num_heads):
        kv_head = h // (num_heads // num_kv_heads)
        top, total, acc = -np.inf, 0.0, np.zeros(head_dim)
        for logical in range(-(-seq_len // block_size)):
            block = block_table[logical]
            filled = min(block_size, seq_len - logical * block_size)
            scores = key_cache[block, :filled, kv_head] @ query[h] / head_dim**0.5
            top, total, acc = absorb(top, total, acc, scores, value_cache[block, :filled, kv_head])
        output[h] = acc / total
    return output


# %% wrong="overflow"
def absorb(top, total, acc, scores, values):
    weights = np.exp(scores)  # nothing to rescale if nothing is subtracted
    return 0.0, total + weights.sum(), acc + weights @ values


def attend_blocks(query, key_cache, value_cache, block_table, seq_len):
    num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    output = np.empty_like(query)
    for h in range(num_heads):
        kv_head = h // (num_heads // num_kv_heads)
        top, total, acc = -np.inf, 0.0, np.zeros(head_dim)
        for logical in range(-(-seq_len // block_size)):
            block = block_table[logical]
            filled = min(block_size, seq_len - logical * block_size)
            scores = key_cache[block, :filled, kv_head] @ query[h] / head_dim**0.5
            top, total, acc = absorb(top, total, acc, scores, value_cache[block, :filled, kv_head])
        output[h] = acc / total
    return output


# %% wrong="overflow"
def absorb(top, total, acc, scores, values):
    new_top = scores.max()  # the block's own, lower than what was seen
    weights, rescale = np.exp(scores - new_top), np.exp(top - new_top)
    return new_top, total * rescale + weights.sum(), acc * rescale + weights @ values


def attend_blocks(query, key_cache, value_cache, block_table, seq_len):
    num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    output = np.empty_like(query)
    for h in range(num_heads):
        kv_head = h // (num_heads // num_kv_heads)
        top, total, acc = -np.inf, 0.0, np.zeros(head_dim)
        for logical in range(-(-seq_len // block_size)):
            block = block_table[logical]
            filled = min(block_size, seq_len - logical * block_size)
            scores = key_cache[block, :filled, kv_head] @ query[h] / head_dim**0.5
            top, total, acc = absorb(top, total, acc, scores, value_cache[block, :filled, kv_head])
        output[h] = acc / total
    return output


# %% wrong="modulo"
def absorb(top, total, acc, scores, values):
    new_top = max(top, scores.max())
    weights = np.exp(scores - new_top)
    rescale = np.exp(top - new_top)
    return new_top, total * rescale + weights.sum(), acc * rescale + weights @ values


def attend_blocks(query, key_cache, value_cache, block_table, seq_len):
    num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    output = np.empty_like(query)
    for h in range(num_heads):
        kv_head = h % num_kv_heads
        top, total, acc = -np.inf, 0.0, np.zeros(head_dim)
        for logical in range(-(-seq_len // block_size)):
            block = block_table[logical]
            filled = min(block_size, seq_len - logical * block_size)
            scores = key_cache[block, :filled, kv_head] @ query[h] / head_dim**0.5
            top, total, acc = absorb(top, total, acc, scores, value_cache[block, :filled, kv_head])
        output[h] = acc / total
    return output


# %% wrong="scale-missing"
def absorb(top, total, acc, scores, values):
    new_top = max(top, scores.max())
    weights = np.exp(scores - new_top)
    rescale = np.exp(top - new_top)
    return new_top, total * rescale + weights.sum(), acc * rescale + weights @ values


def attend_blocks(query, key_cache, value_cache, block_table, seq_len):
    num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    output = np.empty_like(query)
    for h in range(num_heads):
        kv_head = h // (num_heads // num_kv_heads)
        top, total, acc = -np.inf, 0.0, np.zeros(head_dim)
        for logical in range(-(-seq_len // block_size)):
            block = block_table[logical]
            filled = min(block_size, seq_len - logical * block_size)
            scores = key_cache[block, :filled, kv_head] @ query[h]
            top, total, acc = absorb(top, total, acc, scores, value_cache[block, :filled, kv_head])
        output[h] = acc / total
    return output


# %% wrong="tail-kept"
def absorb(top, total, acc, scores, values):
    new_top = max(top, scores.max())
    weights = np.exp(scores - new_top)
    rescale = np.exp(top - new_top)
    return new_top, total * rescale + weights.sum(), acc * rescale + weights @ values


def attend_blocks(query, key_cache, value_cache, block_table, seq_len):
    num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    output = np.empty_like(query)
    for h in range(num_heads):
        kv_head = h // (num_heads // num_kv_heads)
        top, total, acc = -np.inf, 0.0, np.zeros(head_dim)
        for logical in range(-(-seq_len // block_size)):
            block = block_table[logical]
            filled = block_size
            scores = key_cache[block, :filled, kv_head] @ query[h] / head_dim**0.5
            top, total, acc = absorb(top, total, acc, scores, value_cache[block, :filled, kv_head])
        output[h] = acc / total
    return output


# %% wrong="nan-leaks"
def absorb(top, total, acc, scores, values):
    new_top = max(top, scores.max())
    weights = np.exp(scores - new_top)
    rescale = np.exp(top - new_top)
    return new_top, total * rescale + weights.sum(), acc * rescale + weights @ values


def attend_blocks(query, key_cache, value_cache, block_table, seq_len):
    num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    output = np.empty_like(query)
    for h in range(num_heads):
        kv_head = h // (num_heads // num_kv_heads)
        top, total, acc = -np.inf, 0.0, np.zeros(head_dim)
        for logical in range(-(-seq_len // block_size)):
            block = block_table[logical]
            scores = key_cache[block, :, kv_head] @ query[h] / head_dim**0.5
            position = logical * block_size + np.arange(block_size)
            scores = np.where(position < seq_len, scores, -np.inf)  # weight 0, but 0 * NaN is NaN
            top, total, acc = absorb(top, total, acc, scores, value_cache[block, :, kv_head])
        output[h] = acc / total
    return output


# %% wrong="unused-read"
def absorb(top, total, acc, scores, values):
    new_top = max(top, scores.max())
    weights = np.exp(scores - new_top)
    rescale = np.exp(top - new_top)
    return new_top, total * rescale + weights.sum(), acc * rescale + weights @ values


def attend_blocks(query, key_cache, value_cache, block_table, seq_len):
    num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    output = np.empty_like(query)
    for h in range(num_heads):
        kv_head = h // (num_heads // num_kv_heads)
        top, total, acc, left = -np.inf, 0.0, np.zeros(head_dim), seq_len
        for block in block_table:
            keys, values = (
                key_cache[block, :, kv_head],
                value_cache[block, :, kv_head],
            )  # before it is known whether
            if left > 0:
                scores = keys[:left] @ query[h] / head_dim**0.5
                top, total, acc = absorb(top, total, acc, scores, values[:left])
            left -= block_size
        output[h] = acc / total
    return output


# %% wrong="other-attention"
def absorb(top, total, acc, scores, values):
    new_top = max(top, scores.max())
    weights = np.exp(scores - new_top)
    rescale = np.exp(top - new_top)
    return new_top, total * rescale + weights.sum(), acc * rescale + weights @ values


def attend_blocks(query, key_cache, value_cache, block_table, seq_len):
    num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    output = np.empty_like(query)
    for h in range(num_heads):
        kv_head = h // (num_heads // num_kv_heads)
        top, total, acc = -np.inf, 0.0, np.zeros(head_dim)
        for logical in range(-(-seq_len // block_size)):
            block = block_table[logical]
            filled = min(block_size, seq_len - logical * block_size)
            scores = key_cache[block, :filled, kv_head] @ query[h] / head_dim**0.5
            top, total, acc = absorb(top, total, acc, scores, value_cache[block, :filled, kv_head])
        output[h] = acc
    return output


# %% wrong="other-attention"
def absorb(top, total, acc, scores, values):
    new_top = max(top, scores.max())
    weights = np.exp(scores - new_top)
    rescale = np.exp(top - new_top)
    return new_top, total * rescale + weights.sum(), acc * rescale + weights @ values


def attend_blocks(query, key_cache, value_cache, block_table, seq_len):
    num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    output = np.empty_like(query)
    for h in range(num_heads):
        kv_head = h // (num_heads // num_kv_heads)
        top, total, acc = -np.inf, 0.0, np.zeros(head_dim)
        for logical in range(seq_len // block_size + 1 - (seq_len % block_size == 0)):
            block = block_table[0]
            filled = min(block_size, seq_len - logical * block_size)
            scores = key_cache[block, :filled, kv_head] @ query[h] / head_dim**0.5
            top, total, acc = absorb(top, total, acc, scores, value_cache[block, :filled, kv_head])
        output[h] = acc / total
    return output


# %% wrong="block-rescaled"
def absorb(top, total, acc, scores, values):
    """The running softmax after one more block: (top, total, acc)."""
    new_top = max(top, scores.max())
    weights = np.exp(scores - new_top)
    rescale = np.exp(top - new_top)
    return new_top, (total + weights.sum()) * rescale, (acc + weights @ values) * rescale


def attend_blocks(query, key_cache, value_cache, block_table, seq_len):
    """Attention of one query token, block by block: [num_heads, head_dim]."""
    num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    output = np.empty_like(query)
    for h in range(num_heads):
        kv_head = h // (num_heads // num_kv_heads)
        top, total, acc = -np.inf, 0.0, np.zeros(head_dim)
        for logical in range(-(-seq_len // block_size)):
            block = block_table[logical]
            filled = min(block_size, seq_len - logical * block_size)
            scores = key_cache[block, :filled, kv_head] @ query[h] / head_dim**0.5
            top, total, acc = absorb(top, total, acc, scores, value_cache[block, :filled, kv_head])
        output[h] = acc / total
    return output


# %% wrong="old-top"
def absorb(top, total, acc, scores, values):
    """The running softmax after one more block: (top, total, acc)."""
    new_top = max(top, scores.max())
    weights = np.exp(scores - top)
    rescale = np.exp(top - new_top)
    return new_top, total * rescale + weights.sum(), acc * rescale + weights @ values


def attend_blocks(query, key_cache, value_cache, block_table, seq_len):
    """Attention of one query token, block by block: [num_heads, head_dim]."""
    num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    output = np.empty_like(query)
    for h in range(num_heads):
        kv_head = h // (num_heads // num_kv_heads)
        top, total, acc = -np.inf, 0.0, np.zeros(head_dim)
        for logical in range(-(-seq_len // block_size)):
            block = block_table[logical]
            filled = min(block_size, seq_len - logical * block_size)
            scores = key_cache[block, :filled, kv_head] @ query[h] / head_dim**0.5
            top, total, acc = absorb(top, total, acc, scores, value_cache[block, :filled, kv_head])
        output[h] = acc / total
    return output


# %% wrong="top-lost"
def absorb(top, total, acc, scores, values):
    """The running softmax after one more block: (top, total, acc)."""
    new_top = max(top, scores.max())
    weights = np.exp(scores - new_top)
    rescale = np.exp(top - new_top)
    return top, total * rescale + weights.sum(), acc * rescale + weights @ values


def attend_blocks(query, key_cache, value_cache, block_table, seq_len):
    """Attention of one query token, block by block: [num_heads, head_dim]."""
    num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    output = np.empty_like(query)
    for h in range(num_heads):
        kv_head = h // (num_heads // num_kv_heads)
        top, total, acc = -np.inf, 0.0, np.zeros(head_dim)
        for logical in range(-(-seq_len // block_size)):
            block = block_table[logical]
            filled = min(block_size, seq_len - logical * block_size)
            scores = key_cache[block, :filled, kv_head] @ query[h] / head_dim**0.5
            top, total, acc = absorb(top, total, acc, scores, value_cache[block, :filled, kv_head])
        output[h] = acc / total
    return output


# %% wrong="top-lost"
def absorb(top, total, acc, scores, values):
    """The running softmax after one more block: (top, total, acc)."""
    new_top = max(top, scores.max())
    weights = np.exp(scores - new_top)
    rescale = np.exp(top - new_top)
    return top, total, acc


def attend_blocks(query, key_cache, value_cache, block_table, seq_len):
    """Attention of one query token, block by block: [num_heads, head_dim]."""
    num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    output = np.empty_like(query)
    for h in range(num_heads):
        kv_head = h // (num_heads // num_kv_heads)
        top, total, acc = -np.inf, 0.0, np.zeros(head_dim)
        for logical in range(-(-seq_len // block_size)):
            block = block_table[logical]
            filled = min(block_size, seq_len - logical * block_size)
            scores = key_cache[block, :filled, kv_head] @ query[h] / head_dim**0.5
            top, total, acc = absorb(top, total, acc, scores, value_cache[block, :filled, kv_head])
        output[h] = acc / total
    return output


# %% wrong="last-block-lost"
def absorb(top, total, acc, scores, values):
    """The running softmax after one more block: (top, total, acc)."""
    new_top = max(top, scores.max())
    weights = np.exp(scores - new_top)
    rescale = np.exp(top - new_top)
    return new_top, total * rescale + weights.sum(), acc * rescale + weights @ values


def attend_blocks(query, key_cache, value_cache, block_table, seq_len):
    """Attention of one query token, block by block: [num_heads, head_dim]."""
    num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    output = np.empty_like(query)
    for h in range(num_heads):
        kv_head = h // (num_heads // num_kv_heads)
        top, total, acc = -np.inf, 0.0, np.zeros(head_dim)
        for logical in range(seq_len // block_size):
            block = block_table[logical]
            filled = min(block_size, seq_len - logical * block_size)
            scores = key_cache[block, :filled, kv_head] @ query[h] / head_dim**0.5
            top, total, acc = absorb(top, total, acc, scores, value_cache[block, :filled, kv_head])
        output[h] = acc / total
    return output


# %% wrong="crashed"
def absorb(top, total, acc, scores, values):
    new_top = max(top, scores.max())
    weights = np.exp(scores - new_top)
    rescale = np.exp(top - new_top)
    return new_top, total * rescale + weights.sum(), acc * rescale + weights @ values


def attend_blocks(query, key_cache, value_cache, block_table, seq_len):
    num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    output = np.empty_like(query)
    for h in range(num_heads):
        kv_head = h // (num_heads // num_kv_heads)
        top, total, acc = -np.inf, 0.0, np.zeros(head_dim)
        for logical in range(-(-seq_len // block_size)):
            block = block_table[logical, 0]
            filled = min(block_size, seq_len - logical * block_size)
            scores = key_cache[block, :filled, kv_head] @ query[h] / head_dim**0.5
            top, total, acc = absorb(top, total, acc, scores, value_cache[block, :filled, kv_head])
        output[h] = acc / total
    return output


# %% right="all heads at once"
def absorb(top, total, acc, scores, values):
    higher = np.maximum(top, np.max(scores, axis=-1))
    old, new = np.exp(top - higher), np.exp(scores - np.expand_dims(higher, -1))
    total = old * total + new.sum(axis=-1)
    if np.ndim(higher) == 0:
        return higher, total, old * acc + new @ values
    return higher, total, old[:, None] * acc + np.einsum("ht,thd->hd", new, values)


def attend_blocks(query, key_cache, value_cache, block_table, seq_len):
    num_heads, head_dim = query.shape
    size = key_cache.shape[1]
    kv_head = np.arange(num_heads) * key_cache.shape[2] // num_heads
    state = np.full(num_heads, -np.inf), np.zeros(num_heads), np.zeros((num_heads, head_dim))
    for start in range(0, seq_len, size):
        mine = block_table[start // size], slice(0, min(size, seq_len - start))
        keys, values = key_cache[mine][:, kv_head], value_cache[mine][:, kv_head]
        state = absorb(*state, np.einsum("hd,thd->ht", query, keys) / np.sqrt(head_dim), values)
    top, total, acc = state
    return acc / total[:, None]


# %% right="token by token, the accumulator changed in place"
import math


def absorb(top, total, acc, scores, values):
    for score, value in zip(scores, values):
        if score > top:
            factor = math.exp(top - score)
            acc *= factor
            total, top = total * factor, float(score)
        weight = math.exp(score - top)
        total += weight
        acc += weight * value
    return [top, total, acc.tolist()]


def attend_blocks(query, key_cache, value_cache, block_table, seq_len):
    size, shared = key_cache.shape[1], len(query) // key_cache.shape[2]
    rows = []
    for h, q in enumerate(query):
        state = [float("-inf"), 0.0, np.zeros(len(q))]
        for t in range(seq_len):
            at = block_table[t // size], t % size, h // shared
            score = np.array([key_cache[at] @ q / len(q) ** 0.5])
            state = absorb(state[0], state[1], np.array(state[2]), score, value_cache[at][None])
        rows.append(np.array(state[2]) / state[1])
    return rows


# %% right="two partial results merged by their log-sum-exp"
def merge(a, b):
    top = max(a[0], b[0])
    old, new = np.exp(a[0] - top), np.exp(b[0] - top)
    return top, a[1] * old + b[1] * new, a[2] * old + b[2] * new


def absorb(top, total, acc, scores, values):
    highest = scores.max()
    weights = np.exp(scores - highest)
    return merge((top, total, acc), (highest, weights.sum(), weights @ values))


def attend_blocks(query, key_cache, value_cache, block_table, seq_len):
    (num_heads, d), size = query.shape, key_cache.shape[1]
    out, group = np.zeros((num_heads, d)), num_heads // key_cache.shape[2]
    used = block_table[: (seq_len + size - 1) // size]
    for h in range(num_heads):
        state, left = (-np.inf, 0.0, np.zeros(d)), seq_len
        for block in used:
            k, v = key_cache[block][:left, h // group], value_cache[block][:left, h // group]
            state = absorb(*state, (k * query[h]).sum(axis=1) * d**-0.5, v)
            left -= size
        out[h] = state[2] / state[1]
    return out


# %% wrong="overflow"
def absorb(top, total, acc, scores, values):
    new_top = max(top, scores.max())
    weights, rescale = np.exp(scores - new_top), np.exp(top - new_top)
    return new_top, total * rescale + weights.sum(), acc * rescale + weights @ values


def attend_blocks(query, key_cache, value_cache, block_table, seq_len):
    num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    output = np.empty_like(query)
    for h in range(num_heads):
        kv_head = h // (num_heads // num_kv_heads)
        top, total, acc = 0.0, 0.0, np.zeros(head_dim)
        for logical in range(-(-seq_len // block_size)):
            block = block_table[logical]
            filled = min(block_size, seq_len - logical * block_size)
            scores = key_cache[block, :filled, kv_head] @ query[h] / head_dim**0.5
            top, total, acc = absorb(top, total, acc, scores, value_cache[block, :filled, kv_head])
        output[h] = acc / total
    return output


# %% wrong="overflow"
def absorb(top, total, acc, scores, values):
    new_top = max(top, scores.max(), 0.0)  # scores below 0 need no maximum
    weights, rescale = np.exp(scores - new_top), np.exp(top - new_top)
    return new_top, total * rescale + weights.sum(), acc * rescale + weights @ values


def attend_blocks(query, key_cache, value_cache, block_table, seq_len):
    num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    output = np.empty_like(query)
    for h in range(num_heads):
        kv_head = h // (num_heads // num_kv_heads)
        top, total, acc = -np.inf, 0.0, np.zeros(head_dim)
        for logical in range(-(-seq_len // block_size)):
            block = block_table[logical]
            filled = min(block_size, seq_len - logical * block_size)
            scores = key_cache[block, :filled, kv_head] @ query[h] / head_dim**0.5
            top, total, acc = absorb(top, total, acc, scores, value_cache[block, :filled, kv_head])
        output[h] = acc / total
    return output


# %% wrong="low-precision"
def absorb(top, total, acc, scores, values):
    new_top = max(top, scores.max())
    weights, rescale = np.exp(scores - new_top), np.exp(top - new_top)
    return new_top, total * rescale + weights.sum(), acc * rescale + weights @ values


def attend_blocks(query, key_cache, value_cache, block_table, seq_len):
    num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    output = np.empty_like(query)
    for h in range(num_heads):
        kv_head = h // (num_heads // num_kv_heads)
        top, total, acc = -np.inf, 0.0, np.zeros(head_dim)
        for logical in range(-(-seq_len // block_size)):
            block = block_table[logical]
            filled = min(block_size, seq_len - logical * block_size)
            scores = key_cache[block, :filled, kv_head] @ query[h] / head_dim**0.5
            scores = np.clip(scores, -9000, 9000)  # exp cannot overflow now
            top, total, acc = absorb(top, total, acc, scores, value_cache[block, :filled, kv_head])
        output[h] = acc / total
    return output


# %% wrong="changes-arguments"
def absorb(top, total, acc, scores, values):
    new_top = max(top, scores.max())
    scores -= new_top  # in place
    weights, rescale = np.exp(scores), np.exp(top - new_top)
    return new_top, total * rescale + weights.sum(), acc * rescale + weights @ values


def attend_blocks(query, key_cache, value_cache, block_table, seq_len):
    num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    output = np.empty_like(query)
    for h in range(num_heads):
        kv_head = h // (num_heads // num_kv_heads)
        top, total, acc = -np.inf, 0.0, np.zeros(head_dim)
        for logical in range(-(-seq_len // block_size)):
            block = block_table[logical]
            filled = min(block_size, seq_len - logical * block_size)
            scores = key_cache[block, :filled, kv_head] @ query[h] / head_dim**0.5
            top, total, acc = absorb(top, total, acc, scores, value_cache[block, :filled, kv_head])
        output[h] = acc / total
    return output
