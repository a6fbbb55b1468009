# %% wrong="unchanged"
offsets = broken_offsets


# %% wrong="cast-too-late"
def offsets(block_table, seq_len, block_size, num_kv_heads, head_dim):
    token = np.arange(seq_len, dtype=np.int32)
    slot = block_table[token // block_size] * block_size + token % block_size
    return (slot * (num_kv_heads * head_dim)).astype(np.int64)


# %% wrong="cast-too-late"
def offsets(block_table, seq_len, block_size, num_kv_heads, head_dim):
    result = np.zeros(seq_len, dtype=np.int64)
    result[:] = broken_offsets(block_table, seq_len, block_size, num_kv_heads, head_dim)
    return result


# %% wrong="sign-hidden"
def offsets(block_table, seq_len, block_size, num_kv_heads, head_dim):
    result = broken_offsets(block_table, seq_len, block_size, num_kv_heads, head_dim)
    return np.abs(result.astype(np.int64))


# %% wrong="sign-hidden"
def offsets(block_table, seq_len, block_size, num_kv_heads, head_dim):
    result = broken_offsets(block_table, seq_len, block_size, num_kv_heads, head_dim)
    return np.clip(result, 0, 2**31 - 1)


# %% wrong="sign-hidden"
def offsets(block_table, seq_len, block_size, num_kv_heads, head_dim):
    result = broken_offsets(block_table, seq_len, block_size, num_kv_heads, head_dim)
    return result & 0x7FFFFFFF


# %% wrong="wall-moved"
def offsets(block_table, seq_len, block_size, num_kv_heads, head_dim):
    token = np.arange(seq_len, dtype=np.uint32)
    slot = block_table.astype(np.uint32)[token // block_size] * block_size + token % block_size
    return slot * (num_kv_heads * head_dim)


# %% wrong="rounded"
def offsets(block_table, seq_len, block_size, num_kv_heads, head_dim):
    token = np.arange(seq_len)
    slot = block_table[token // block_size] * block_size + token % block_size
    return (slot.astype(np.float32) * (num_kv_heads * head_dim)).astype(np.int64)


# %% wrong="other-offset"
def offsets(block_table, seq_len, block_size, num_kv_heads, head_dim):
    token = np.arange(seq_len, dtype=np.int64)
    slot = block_table[token // block_size].astype(np.int64) * block_size  # the place in the block is lost
    return slot * (num_kv_heads * head_dim)


# %% wrong="other-offset"
def offsets(block_table, seq_len, block_size, num_kv_heads, head_dim):
    token = np.arange(seq_len, dtype=np.int64)
    slot = block_table.astype(np.int64)[token // block_size] * block_size + token % block_size
    return slot * head_dim


# %% right="the tokens alone are wide"
def offsets(block_table, seq_len, block_size, num_kv_heads, head_dim):
    token = np.arange(seq_len, dtype=np.int64)
    slot = block_table[token // block_size] * block_size + token % block_size
    return slot * (num_kv_heads * head_dim)


# %% right="plain Python"
def offsets(block_table, seq_len, block_size, num_kv_heads, head_dim):
    found = []
    for t in range(seq_len):
        block, place = int(block_table[t // block_size]), t % block_size
        found.append((block * block_size + place) * num_kv_heads * head_dim)
    return found


# %% right="strides of 64 bits"
def offsets(block_table, seq_len, block_size, num_kv_heads, head_dim):
    stride = np.int64(num_kv_heads * head_dim)
    blocks = block_table[: -(-seq_len // block_size), None] * (stride * block_size)
    return (blocks + np.arange(block_size) * stride).ravel()[:seq_len]
