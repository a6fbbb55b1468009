# %% wrong="not-in-place"
def write_kv(key, value, key_cache, value_cache, slot_mapping):
    kept = slot_mapping >= 0
    flat_keys, flat_values = key_cache.reshape(-1, *key_cache.shape[2:]).copy(), value_cache.copy()
    flat_keys[slot_mapping[kept]] = key[kept]
    return flat_keys.reshape(key_cache.shape), flat_values


# %% wrong="not-in-place"
def write_kv(key, value, key_cache, value_cache, slot_mapping):
    size = key_cache.shape[1]
    for rows, cache in ((key, key_cache), (value, value_cache)):
        blocks = cache[slot_mapping // size]  # fancy indexing copies
        blocks[range(len(rows)), slot_mapping % size] = rows


# %% wrong="one-cache"
def write_kv(key, value, key_cache, value_cache, slot_mapping):
    size = key_cache.shape[1]
    for k, slot in zip(key, slot_mapping):
        if slot >= 0:
            key_cache[slot // size, slot % size] = k


# %% wrong="minus-one-written"
def write_kv(key, value, key_cache, value_cache, slot_mapping):
    size = key_cache.shape[1]
    key_cache[slot_mapping // size, slot_mapping % size] = key
    value_cache[slot_mapping // size, slot_mapping % size] = value


# %% wrong="minus-one-written"
def write_kv(key, value, key_cache, value_cache, slot_mapping):
    for rows, cache in ((key, key_cache), (value, value_cache)):
        flat = cache.reshape(-1, *cache.shape[2:])
        for row, slot in zip(rows, slot_mapping):
            flat[slot] = row


# %% wrong="rows-shifted"
def write_kv(key, value, key_cache, value_cache, slot_mapping):
    size = key_cache.shape[1]
    slots = [slot for slot in slot_mapping if slot != -1]
    for token, slot in enumerate(slots):
        key_cache[slot // size, slot % size] = key[token]
        value_cache[slot // size, slot % size] = value[token]


# %% wrong="offset-lost"
def write_kv(key, value, key_cache, value_cache, slot_mapping):
    size = key_cache.shape[1]
    for token, slot in enumerate(slot_mapping):
        if slot >= 0:
            key_cache[slot // size, 0] = key[token]
            value_cache[slot // size, 0] = value[token]


# %% wrong="swapped"
def write_kv(key, value, key_cache, value_cache, slot_mapping):
    size = key_cache.shape[1]
    for token, slot in enumerate(slot_mapping):
        if slot >= 0:
            offset, block = divmod(slot, size)
            key_cache[block, offset] = key[token]
            value_cache[block, offset] = value[token]


# %% wrong="slot-as-block"
def write_kv(key, value, key_cache, value_cache, slot_mapping):
    for token, slot in enumerate(slot_mapping):
        if slot >= 0:
            key_cache[slot] = key[token]
            value_cache[slot] = value[token]


# %% wrong="other-writes"
def write_kv(key, value, key_cache, value_cache, slot_mapping):
    size = key_cache.shape[1]
    for token, slot in enumerate(slot_mapping):
        if slot >= 0:
            key_cache[slot // size, slot % size] = key[token]
            value_cache[slot // size, slot % size] = key[token]  # the key again


# %% wrong="other-writes"
def write_kv(key, value, key_cache, value_cache, slot_mapping):
    size = key_cache.shape[1]
    key_cache[:], value_cache[:] = 0, 0  # a clean start, at everybody else's cost
    for token, slot in enumerate(slot_mapping):
        if slot >= 0:
            key_cache[slot // size, slot % size] = key[token]
            value_cache[slot // size, slot % size] = value[token]


# %% wrong="zero-left-out"
def write_kv(key, value, key_cache, value_cache, slot_mapping):
    size, kept = key_cache.shape[1], slot_mapping > 0
    block, offset = slot_mapping[kept] // size, slot_mapping[kept] % size
    key_cache[block, offset] = key[kept]
    value_cache[block, offset] = value[kept]


# %% wrong="zero-left-out"
def write_kv(key, value, key_cache, value_cache, slot_mapping):
    size = key_cache.shape[1]
    for token, slot in enumerate(slot_mapping.tolist()):
        if slot and slot != -1:  # 0 is false
            key_cache[slot // size, slot % size] = key[token]
            value_cache[slot // size, slot % size] = value[token]


# %% wrong="other-writes"
def write_kv(key, value, key_cache, value_cache, slot_mapping):
    size = key_cache.shape[1]
    for token, slot in enumerate(slot_mapping):
        if slot == -1:
            break  # as if the padding always came last
        key_cache[slot // size, slot % size] = key[token]
        value_cache[slot // size, slot % size] = value[token]


# %% wrong="crashed"
def write_kv(key, value, key_cache, value_cache, slot_mapping):
    key_cache[slot_mapping // 0] = key


# %% right="a loop over the tokens"
def write_kv(key, value, key_cache, value_cache, slot_mapping):
    size = key_cache.shape[1]
    for token, slot in enumerate(slot_mapping):
        if slot == -1:
            continue
        block, offset = divmod(int(slot), size)
        key_cache[block, offset], value_cache[block, offset] = key[token], value[token]


# %% right="flat views and a mask"
def flat(cache):
    return cache.reshape(cache.shape[0] * cache.shape[1], *cache.shape[2:])


def write_kv(key, value, key_cache, value_cache, slot_mapping):
    kept = np.flatnonzero(slot_mapping != -1)
    flat(key_cache)[slot_mapping[kept]] = key[kept]
    flat(value_cache)[slot_mapping[kept]] = value[kept]
    return key_cache, value_cache


# %% right="every slot asks for its token, other names"
def store(rows, cache, slots):
    size = cache.shape[1]
    owner = {int(s): t for t, s in enumerate(slots) if s >= 0}
    for s in range(cache.shape[0] * size):
        if s in owner:
            cache[s // size][s % size] = rows[owner[s]]


def write_kv(k, v, kc, vc, slots):
    store(k, kc, slots)
    store(v, vc, slots)


# %% wrong="changes-arguments"
def write_kv(key, value, key_cache, value_cache, slot_mapping):
    size = key_cache.shape[1]
    kept = slot_mapping >= 0
    key[~kept] = value[~kept] = 0  # tidied up, in the arrays of the caller
    block, offset = slot_mapping[kept] // size, slot_mapping[kept] % size
    key_cache[block, offset] = key[kept]
    value_cache[block, offset] = value[kept]


# %% wrong="changes-arguments"
def write_kv(key, value, key_cache, value_cache, slot_mapping):
    kept = np.flatnonzero(slot_mapping >= 0)
    size = key_cache.shape[1]
    offset = slot_mapping[kept] % size
    slot_mapping //= size  # now block numbers, for everyone
    key_cache[slot_mapping[kept], offset] = key[kept]
    value_cache[slot_mapping[kept], offset] = value[kept]
