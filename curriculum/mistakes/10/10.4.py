# %% wrong="unchanged"
block_keys = broken_block_keys


# %% wrong="unchanged"
def block_keys(token_ids, block_size, salt=""):
    # A better hash of the same content.
    keys = []
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        content = salt + "|" + ",".join(map(str, token_ids[start : start + block_size]))
        keys.append(hashlib.sha512(content.encode()).digest())
    return keys


# %% wrong="position"
def block_keys(token_ids, block_size, salt=""):
    keys = []
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        content = repr((salt, start // block_size, list(token_ids[start : start + block_size])))
        keys.append(hashlib.sha256(content.encode()).hexdigest())
    return keys


# %% wrong="position"
def block_keys(token_ids, block_size, salt=""):
    return [(key, i) for i, key in enumerate(broken_block_keys(token_ids, block_size, salt))]


# %% wrong="one-back"
def block_keys(token_ids, block_size, salt=""):
    keys, parent = [], salt
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        tokens = list(token_ids[start : start + block_size])
        keys.append(hashlib.sha256(repr((salt, parent, tokens)).encode()).hexdigest())
        parent = tokens
    return keys


# %% wrong="one-back"
def block_keys(token_ids, block_size, salt=""):
    alone = broken_block_keys(token_ids, block_size, salt)
    return list(zip([salt, *alone], alone))


# %% wrong="salt-lost"
def block_keys(token_ids, block_size, salt=""):
    keys, parent = [], ""
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        content = repr((parent, list(token_ids[start : start + block_size])))
        parent = hashlib.sha256(content.encode()).hexdigest()
        keys.append(parent)
    return keys


# %% wrong="partial"
def block_keys(token_ids, block_size, salt=""):
    keys, parent = [], salt
    for start in range(0, len(token_ids), block_size):
        content = repr((parent, list(token_ids[start : start + block_size])))
        parent = hashlib.sha256(content.encode()).hexdigest()
        keys.append(parent)
    return keys


# %% wrong="unequal"
import itertools

fresh = itertools.count()


def block_keys(token_ids, block_size, salt=""):
    return [(key, next(fresh)) for key in broken_block_keys(token_ids, block_size, salt)]


# %% wrong="other-keys"
def block_keys(token_ids, block_size, salt=""):
    content = repr((salt, list(token_ids)))
    return hashlib.sha256(content.encode()).hexdigest()


# %% wrong="other-keys"
def block_keys(token_ids, block_size, salt=""):
    return [(salt, token_ids[0])] * (len(token_ids) // block_size)


# %% right="parent moves on"
def block_keys(token_ids, block_size, salt=""):
    keys, parent = [], salt
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        tokens = token_ids[start : start + block_size]
        content = repr((parent, list(tokens)))
        keys.append(hashlib.sha256(content.encode()).hexdigest())
        parent = keys[-1]
    return keys


# %% right="one running hash"
def block_keys(token_ids, block_size, salt=""):
    running, keys = hashlib.blake2b(salt.encode() + b"\0"), []
    for i, token in enumerate(token_ids, 1):
        running.update(int(token).to_bytes(4, "big"))
        if i % block_size == 0:
            keys.append(running.copy().digest())
    return keys


# %% right="the whole prefix, long but right"
def block_keys(token_ids, block_size, salt=""):
    ends = range(block_size, len(token_ids) + 1, block_size)
    return [(salt, tuple(token_ids[:end])) for end in ends]


# %% wrong="joined"
def block_keys(token_ids, block_size, salt=""):
    keys, parent = [], salt
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        content = parent + "".join(map(str, token_ids[start : start + block_size]))
        parent = hashlib.sha256(content.encode()).hexdigest()
        keys.append(parent)
    return keys
