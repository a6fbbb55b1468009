# %% wrong="parent-ignored"
class PrefixCache:
    def __init__(self, block_size):
        self.block_size = block_size
        self.block_of = {}
        self.key_of = {}

    def _keys(self, token_ids, num_tokens, salt):
        keys = []
        for end in range(self.block_size, num_tokens + 1, self.block_size):
            tokens = tuple(token_ids[end - self.block_size : end])
            keys.append(hashlib.sha256(repr((tokens, salt)).encode()).digest())
        return keys

    def publish(self, token_ids, blocks, salt=None):
        for key, block in zip(self._keys(token_ids, len(token_ids), salt), blocks):
            if key not in self.block_of:
                self.block_of[key], self.key_of[block] = block, key

    def lookup(self, token_ids, salt=None):
        found = []
        for key in self._keys(token_ids, len(token_ids) - 1, salt):
            if key not in self.block_of:
                break
            found.append(self.block_of[key])
        return found

    def forget(self, block):
        key = self.key_of.pop(block, None)
        if key is not None:
            del self.block_of[key]


# %% wrong="parent-ignored"
class PrefixCache:
    def __init__(self, block_size):
        self.block_size = block_size
        self.block_of = {}
        self.key_of = {}

    def _keys(self, token_ids, num_tokens, salt):
        keys = []
        for end in range(self.block_size, num_tokens + 1, self.block_size):
            tokens = tuple(token_ids[end - self.block_size : end])
            keys.append((end, tokens, salt))  # the place in the sequence, not what stands before
        return keys

    def publish(self, token_ids, blocks, salt=None):
        for key, block in zip(self._keys(token_ids, len(token_ids), salt), blocks):
            if key not in self.block_of:
                self.block_of[key], self.key_of[block] = block, key

    def lookup(self, token_ids, salt=None):
        found = []
        for key in self._keys(token_ids, len(token_ids) - 1, salt):
            if key not in self.block_of:
                break
            found.append(self.block_of[key])
        return found

    def forget(self, block):
        key = self.key_of.pop(block, None)
        if key is not None:
            del self.block_of[key]


# %% wrong="parent-ignored"
class PrefixCache:
    def __init__(self, block_size):
        self.block_size = block_size
        self.block_of = {}
        self.key_of = {}

    def _keys(self, token_ids, num_tokens, salt):
        keys, parent = [], ()
        for end in range(self.block_size, num_tokens + 1, self.block_size):
            tokens = tuple(token_ids[end - self.block_size : end])
            keys.append((parent, tokens, salt))
            parent = tokens  # one block back is not all the way
        return keys

    def publish(self, token_ids, blocks, salt=None):
        for key, block in zip(self._keys(token_ids, len(token_ids), salt), blocks):
            if key not in self.block_of:
                self.block_of[key], self.key_of[block] = block, key

    def lookup(self, token_ids, salt=None):
        found = []
        for key in self._keys(token_ids, len(token_ids) - 1, salt):
            if key not in self.block_of:
                break
            found.append(self.block_of[key])
        return found

    def forget(self, block):
        key = self.key_of.pop(block, None)
        if key is not None:
            del self.block_of[key]


# %% wrong="mid-sequence"
class PrefixCache:
    def __init__(self, block_size):
        self.block_size = block_size
        self.block_of = {}
        self.key_of = {}

    def _keys(self, token_ids, num_tokens, salt):
        keys, parent = [], b""
        for end in range(self.block_size, num_tokens + 1, self.block_size):
            tokens = tuple(token_ids[end - self.block_size : end])
            parent = hashlib.sha256(repr((parent, tokens, salt)).encode()).digest()
            keys.append(parent)
        return keys

    def publish(self, token_ids, blocks, salt=None):
        for key, block in zip(self._keys(token_ids, len(token_ids), salt), blocks):
            if key not in self.block_of:
                self.block_of[key], self.key_of[block] = block, key

    def lookup(self, token_ids, salt=None):
        found = []
        for key in self._keys(token_ids, len(token_ids) - 1, salt):
            if key in self.block_of:
                found.append(self.block_of[key])
        return found

    def forget(self, block):
        key = self.key_of.pop(block, None)
        if key is not None:
            del self.block_of[key]


# %% wrong="partial-cached"
class PrefixCache:
    def __init__(self, block_size):
        self.block_size = block_size
        self.block_of = {}
        self.key_of = {}

    def _keys(self, token_ids, num_tokens, salt):
        keys, parent = [], b""
        for end in range(self.block_size, num_tokens + self.block_size, self.block_size):
            tokens = tuple(token_ids[end - self.block_size : min(end, num_tokens)])
            parent = hashlib.sha256(repr((parent, tokens, salt)).encode()).digest()
            keys.append(parent)
        return keys

    def publish(self, token_ids, blocks, salt=None):
        for key, block in zip(self._keys(token_ids, len(token_ids), salt), blocks):
            if key not in self.block_of:
                self.block_of[key], self.key_of[block] = block, key

    def lookup(self, token_ids, salt=None):
        found = []
        for key in self._keys(token_ids, len(token_ids) - 1, salt):
            if key not in self.block_of:
                break
            found.append(self.block_of[key])
        return found

    def forget(self, block):
        key = self.key_of.pop(block, None)
        if key is not None:
            del self.block_of[key]


# %% wrong="partial-cached"
class PrefixCache:
    def __init__(self, block_size):
        self.block_size = block_size
        self.block_of = {}

    def publish(self, token_ids, blocks, salt=None):
        for i, block in enumerate(blocks):  # the last one, too, full or not
            self.block_of.setdefault((salt, *token_ids[: (i + 1) * self.block_size]), block)

    def lookup(self, token_ids, salt=None):
        found, n = [], len(token_ids) - 1
        for start in range(0, n, self.block_size):
            block = self.block_of.get((salt, *token_ids[: min(n, start + self.block_size)]))
            if block is None:
                break
            found.append(block)
        return found

    def forget(self, block):
        self.block_of = {key: other for key, other in self.block_of.items() if other != block}


# %% wrong="takes-all"
class PrefixCache:
    def __init__(self, block_size):
        self.block_size = block_size
        self.block_of = {}
        self.key_of = {}

    def _keys(self, token_ids, num_tokens, salt):
        keys, parent = [], b""
        for end in range(self.block_size, num_tokens + 1, self.block_size):
            tokens = tuple(token_ids[end - self.block_size : end])
            parent = hashlib.sha256(repr((parent, tokens, salt)).encode()).digest()
            keys.append(parent)
        return keys

    def publish(self, token_ids, blocks, salt=None):
        for key, block in zip(self._keys(token_ids, len(token_ids), salt), blocks):
            if key not in self.block_of:
                self.block_of[key], self.key_of[block] = block, key

    def lookup(self, token_ids, salt=None):
        found = []
        for key in self._keys(token_ids, len(token_ids), salt):
            if key not in self.block_of:
                break
            found.append(self.block_of[key])
        return found

    def forget(self, block):
        key = self.key_of.pop(block, None)
        if key is not None:
            del self.block_of[key]


# %% wrong="collision"
class PrefixCache:
    def __init__(self, block_size):
        self.block_size = block_size
        self.block_of = {}
        self.key_of = {}

    def _keys(self, token_ids, num_tokens, salt):
        keys, parent = [], b""
        for end in range(self.block_size, num_tokens + 1, self.block_size):
            tokens = tuple(token_ids[end - self.block_size : end])
            parent = hashlib.sha256((repr((parent, salt)) + "".join(map(str, tokens))).encode()).digest()
            keys.append(parent)
        return keys

    def publish(self, token_ids, blocks, salt=None):
        for key, block in zip(self._keys(token_ids, len(token_ids), salt), blocks):
            if key not in self.block_of:
                self.block_of[key], self.key_of[block] = block, key

    def lookup(self, token_ids, salt=None):
        found = []
        for key in self._keys(token_ids, len(token_ids) - 1, salt):
            if key not in self.block_of:
                break
            found.append(self.block_of[key])
        return found

    def forget(self, block):
        key = self.key_of.pop(block, None)
        if key is not None:
            del self.block_of[key]


# %% wrong="collision"
class PrefixCache:
    def __init__(self, block_size):
        self.block_size = block_size
        self.block_of = {}
        self.key_of = {}

    def _keys(self, token_ids, num_tokens, salt):
        keys, parent = [], b""
        for end in range(self.block_size, num_tokens + 1, self.block_size):
            tokens = tuple(token_ids[end - self.block_size : end])
            parent = hashlib.sha256(repr((parent, sum(tokens), salt)).encode()).digest()
            keys.append(parent)
        return keys

    def publish(self, token_ids, blocks, salt=None):
        for key, block in zip(self._keys(token_ids, len(token_ids), salt), blocks):
            if key not in self.block_of:
                self.block_of[key], self.key_of[block] = block, key

    def lookup(self, token_ids, salt=None):
        found = []
        for key in self._keys(token_ids, len(token_ids) - 1, salt):
            if key not in self.block_of:
                break
            found.append(self.block_of[key])
        return found

    def forget(self, block):
        key = self.key_of.pop(block, None)
        if key is not None:
            del self.block_of[key]


# %% wrong="collision"
class PrefixCache:
    def __init__(self, block_size):
        self.block_size = block_size
        self.block_of = {}
        self.key_of = {}

    def _keys(self, token_ids, num_tokens, salt):
        keys, parent = [], b""
        for end in range(self.block_size, num_tokens + 1, self.block_size):
            tokens = tuple(token_ids[end - self.block_size : end])
            parent = hashlib.sha256(repr((parent, sorted(tokens), salt)).encode()).digest()
            keys.append(parent)
        return keys

    def publish(self, token_ids, blocks, salt=None):
        for key, block in zip(self._keys(token_ids, len(token_ids), salt), blocks):
            if key not in self.block_of:
                self.block_of[key], self.key_of[block] = block, key

    def lookup(self, token_ids, salt=None):
        found = []
        for key in self._keys(token_ids, len(token_ids) - 1, salt):
            if key not in self.block_of:
                break
            found.append(self.block_of[key])
        return found

    def forget(self, block):
        key = self.key_of.pop(block, None)
        if key is not None:
            del self.block_of[key]


# %% wrong="stale"
class PrefixCache:
    def __init__(self, block_size):
        self.block_size = block_size
        self.block_of = {}
        self.key_of = {}

    def _keys(self, token_ids, num_tokens, salt):
        keys, parent = [], b""
        for end in range(self.block_size, num_tokens + 1, self.block_size):
            tokens = tuple(token_ids[end - self.block_size : end])
            parent = hashlib.sha256(repr((parent, tokens, salt)).encode()).digest()
            keys.append(parent)
        return keys

    def publish(self, token_ids, blocks, salt=None):
        for key, block in zip(self._keys(token_ids, len(token_ids), salt), blocks):
            if key not in self.block_of:
                self.block_of[key], self.key_of[block] = block, key

    def lookup(self, token_ids, salt=None):
        found = []
        for key in self._keys(token_ids, len(token_ids) - 1, salt):
            if key not in self.block_of:
                break
            found.append(self.block_of[key])
        return found

    def forget(self, block):
        self.key_of.pop(block, None)


# %% wrong="stale"
class PrefixCache:
    def __init__(self, block_size):
        self.block_size = block_size
        self.block_of = {}
        self.key_of = {}

    def _keys(self, token_ids, num_tokens, salt):
        keys, parent = [], b""
        for end in range(self.block_size, num_tokens + 1, self.block_size):
            tokens = tuple(token_ids[end - self.block_size : end])
            parent = hashlib.sha256(repr((parent, tokens, salt)).encode()).digest()
            keys.append(parent)
        return keys

    def publish(self, token_ids, blocks, salt=None):
        for key, block in zip(self._keys(token_ids, len(token_ids), salt), blocks):
            if key not in self.block_of:
                self.block_of[key], self.key_of[block] = block, key

    def lookup(self, token_ids, salt=None):
        found = []
        for key in self._keys(token_ids, len(token_ids) - 1, salt):
            if key not in self.block_of:
                break
            found.append(self.block_of[key])
        return found

    def forget(self, block):
        if self.block_of and next(iter(self.block_of.values())) == block:
            self.block_of.clear()  # only where it is the first of all


# %% wrong="salt-ignored"
class PrefixCache:
    def __init__(self, block_size):
        self.block_size = block_size
        self.block_of = {}
        self.key_of = {}

    def _keys(self, token_ids, num_tokens, salt):
        keys, parent = [], b""
        for end in range(self.block_size, num_tokens + 1, self.block_size):
            tokens = tuple(token_ids[end - self.block_size : end])
            parent = hashlib.sha256(repr((parent, tokens)).encode()).digest()
            keys.append(parent)
        return keys

    def publish(self, token_ids, blocks, salt=None):
        for key, block in zip(self._keys(token_ids, len(token_ids), salt), blocks):
            if key not in self.block_of:
                self.block_of[key], self.key_of[block] = block, key

    def lookup(self, token_ids, salt=None):
        found = []
        for key in self._keys(token_ids, len(token_ids) - 1, salt):
            if key not in self.block_of:
                break
            found.append(self.block_of[key])
        return found

    def forget(self, block):
        key = self.key_of.pop(block, None)
        if key is not None:
            del self.block_of[key]


# %% wrong="not-found"
class PrefixCache:
    def __init__(self, block_size):
        self.block_size = block_size
        self.block_of = {}
        self.key_of = {}

    def _keys(self, token_ids, num_tokens, salt):
        keys, parent = [], b""
        for end in range(self.block_size, num_tokens + 1, self.block_size):
            tokens = tuple(token_ids[end - self.block_size : end])
            parent = hashlib.sha256(repr((parent, tokens, salt)).encode()).digest()
            keys.append(parent)
        return keys

    def publish(self, token_ids, blocks, salt=None):
        for key, block in zip(self._keys(token_ids, len(token_ids), salt), blocks):
            if key not in self.block_of:
                self.block_of[key], self.key_of[block] = block, key

    def lookup(self, token_ids, salt=None):
        found = []
        for key in self._keys(token_ids, len(token_ids) - self.block_size, salt):
            if key not in self.block_of:
                break
            found.append(self.block_of[key])
        return found

    def forget(self, block):
        key = self.key_of.pop(block, None)
        if key is not None:
            del self.block_of[key]


# %% wrong="not-found"
class PrefixCache:
    def __init__(self, block_size):
        self.block_size = block_size
        self.block_of = {}
        self.key_of = {}

    def _keys(self, token_ids, num_tokens, salt):
        keys, parent = [], len(token_ids)
        for end in range(self.block_size, num_tokens + 1, self.block_size):
            tokens = tuple(token_ids[end - self.block_size : end])
            parent = hashlib.sha256(repr((parent, tokens, salt)).encode()).digest()
            keys.append(parent)
        return keys

    def publish(self, token_ids, blocks, salt=None):
        for key, block in zip(self._keys(token_ids, len(token_ids), salt), blocks):
            if key not in self.block_of:
                self.block_of[key], self.key_of[block] = block, key

    def lookup(self, token_ids, salt=None):
        found = []
        for key in self._keys(token_ids, len(token_ids) - 1, salt):
            if key not in self.block_of:
                break
            found.append(self.block_of[key])
        return found

    def forget(self, block):
        key = self.key_of.pop(block, None)
        if key is not None:
            del self.block_of[key]


# %% wrong="wrong-block"
class PrefixCache:
    def __init__(self, block_size):
        self.block_size = block_size
        self.block_of = {}
        self.key_of = {}

    def _keys(self, token_ids, num_tokens, salt):
        keys, parent = [], b""
        for end in range(self.block_size, num_tokens + 1, self.block_size):
            tokens = tuple(token_ids[end - self.block_size : end])
            parent = hashlib.sha256(repr((parent, tokens, salt)).encode()).digest()
            keys.append(parent)
        return keys

    def publish(self, token_ids, blocks, salt=None):
        for key, block in zip(self._keys(token_ids, len(token_ids), salt), blocks):
            if key not in self.block_of:
                self.block_of[key], self.key_of[block] = block, key

    def lookup(self, token_ids, salt=None):
        found = []
        for key in self._keys(token_ids, len(token_ids) - 1, salt):
            if key not in self.block_of:
                break
            found.append(len(found))  # logical, where physical is asked for
        return found

    def forget(self, block):
        key = self.key_of.pop(block, None)
        if key is not None:
            del self.block_of[key]


# %% wrong="not-found"
class PrefixCache:
    def __init__(self, block_size):
        self.block_size = block_size
        self.block_of = {}
        self.key_of = {}

    def publish(self, token_ids, blocks, salt=None):
        for key, block in zip(self._keys(token_ids, len(token_ids), salt), blocks, strict=False):
            self.block_of.setdefault(key, block)
            self.key_of[block] = key  # also of a block that is not filed

    def _keys(self, token_ids, num_tokens, salt):
        """The chained keys of the full blocks among the first tokens."""
        keys, parent = [], b""
        for end in range(self.block_size, num_tokens + 1, self.block_size):
            tokens = tuple(token_ids[end - self.block_size : end])
            parent = hashlib.sha256(repr((parent, tokens, salt)).encode()).digest()
            keys.append(parent)
        return keys

    def lookup(self, token_ids, salt=None):
        found = []
        for key in self._keys(token_ids, len(token_ids) - 1, salt):
            if key not in self.block_of:
                break
            found.append(self.block_of[key])
        return found

    def forget(self, block):
        if block in self.key_of:
            self.block_of.pop(self.key_of.pop(block), None)


# %% wrong="not-found"
class PrefixCache:
    def __init__(self, block_size):
        self.block_size = block_size
        self.block_of = {}
        self.key_of = {}

    def publish(self, token_ids, blocks, salt=None):
        for key, block in zip(self._keys(token_ids, len(token_ids), salt), blocks, strict=False):
            self.block_of[key], self.key_of[block] = block, key  # the older block keeps the key, too

    def _keys(self, token_ids, num_tokens, salt):
        """The chained keys of the full blocks among the first tokens."""
        keys, parent = [], b""
        for end in range(self.block_size, num_tokens + 1, self.block_size):
            tokens = tuple(token_ids[end - self.block_size : end])
            parent = hashlib.sha256(repr((parent, tokens, salt)).encode()).digest()
            keys.append(parent)
        return keys

    def lookup(self, token_ids, salt=None):
        found = []
        for key in self._keys(token_ids, len(token_ids) - 1, salt):
            if key not in self.block_of:
                break
            found.append(self.block_of[key])
        return found

    def forget(self, block):
        key = self.key_of.pop(block, None)
        if key is not None:
            del self.block_of[key]


# %% wrong="crashed"
class PrefixCache:
    def __init__(self, block_size):
        self.block_size = block_size
        self.block_of = {}
        self.key_of = {}

    def _keys(self, token_ids, num_tokens, salt):
        keys, parent = [], b""
        for end in range(self.block_size, num_tokens + 1, self.block_size):
            tokens = tuple(token_ids[end - self.block_size : end])
            parent = hashlib.sha256(repr((parent, tokens, salt)).encode()).digest()
            keys.append(parent)
        return keys

    def publish(self, token_ids, blocks, salt=None):
        for key, block in zip(self._keys(token_ids, len(token_ids), salt), blocks):
            if key not in self.block_of:
                self.block_of[key], self.key_of[block] = block, key

    def lookup(self, token_ids, salt=None):
        found = []
        for key in self._keys(token_ids, len(token_ids) - 1, salt):
            if key not in self.block_of:
                break
            found.append(self.block_of[key])
        return found

    def forget(self, block):
        del self.block_of[self.key_of.pop(block)]


# %% right="the whole beginning as key, no hash"
class PrefixCache:
    def __init__(self, block_size):
        self.block_size = block_size
        self.filed = {}

    def _beginnings(self, token_ids, salt):
        for stop in range(self.block_size, len(token_ids) + 1, self.block_size):
            yield (salt, tuple(token_ids[:stop]))

    def publish(self, token_ids, blocks, salt=None):
        self.filed.update(zip(self._beginnings(token_ids, salt), blocks))

    def lookup(self, token_ids, salt=None):
        found = []
        for beginning in self._beginnings(token_ids[:-1], salt):
            if beginning not in self.filed:
                return found
            found.append(self.filed[beginning])
        return found

    def forget(self, block):
        for beginning in [b for b, filed in self.filed.items() if filed == block]:
            del self.filed[beginning]


# %% right="a tree that drops whole branches"
class _Node:
    def __init__(self):
        self.children, self.block = {}, None


class PrefixCache:
    def __init__(self, block_size):
        self.block_size, self.roots, self.places = block_size, {}, {}

    def _cut(self, token_ids):
        size = self.block_size
        return [tuple(token_ids[i * size : (i + 1) * size]) for i in range(len(token_ids) // size)]

    def publish(self, token_ids, blocks, salt=None):
        node = self.roots.setdefault(salt, _Node())
        for tokens, block in zip(self._cut(token_ids), blocks):
            if tokens not in node.children:
                node.children[tokens] = _Node()
                node.children[tokens].block = block
                self.places[block] = (node, tokens)
            node = node.children[tokens]

    def lookup(self, token_ids, salt=None):
        node, found = self.roots.get(salt, _Node()), []
        for tokens in self._cut(token_ids[: len(token_ids) - 1]):
            node = node.children.get(tokens)
            if node is None:
                break
            found.append(node.block)
        return tuple(found)

    def forget(self, block):
        if block in self.places:
            parent, tokens = self.places.pop(block)
            self._drop(parent.children.pop(tokens))

    def _drop(self, node):
        for child in node.children.values():
            self.places.pop(child.block, None)
            self._drop(child)


# %% right="a dictionary for each salt, BLAKE2, the newest block is kept"
class PrefixCache:
    def __init__(self, block_size):
        self.size = block_size
        self.by_salt = {}

    def _chain(self, tokens, count):
        key = b"begin"
        for i in range(count):
            piece = np.array(tokens[i * self.size : (i + 1) * self.size], dtype=np.int64)
            key = hashlib.blake2b(key + piece.tobytes()).digest()
            yield key

    def publish(self, token_ids, blocks, salt=None):
        table = self.by_salt.setdefault(salt, {})
        for block, key in zip(blocks, self._chain(token_ids, len(token_ids) // self.size)):
            table[key] = block

    def lookup(self, token_ids, salt=None):
        table, found = self.by_salt.get(salt, {}), []
        for key in self._chain(token_ids, (len(token_ids) - 1) // self.size):
            block = table.get(key)
            if block is None:
                break
            found += [block]
        return np.array(found, dtype=int)

    def forget(self, block):
        for salt, table in self.by_salt.items():
            self.by_salt[salt] = {key: filed for key, filed in table.items() if filed != block}


# %% right="all blocks of the same contents are kept"
class PrefixCache:
    def __init__(self, block_size):
        self.block_size = block_size
        self.block_of = {}
        self.key_of = {}

    def publish(self, token_ids, blocks, salt=None):
        for key, block in zip(self._keys(token_ids, len(token_ids), salt), blocks, strict=False):
            self.block_of.setdefault(key, []).append(block)
            self.key_of[block] = key

    def _keys(self, token_ids, num_tokens, salt):
        """The chained keys of the full blocks among the first tokens."""
        keys, parent = [], b""
        for end in range(self.block_size, num_tokens + 1, self.block_size):
            tokens = tuple(token_ids[end - self.block_size : end])
            parent = hashlib.sha256(repr((parent, tokens, salt)).encode()).digest()
            keys.append(parent)
        return keys

    def lookup(self, token_ids, salt=None):
        found = []
        for key in self._keys(token_ids, len(token_ids) - 1, salt):
            if key not in self.block_of:
                break
            found.append(self.block_of[key][-1])
        return found

    def forget(self, block):
        key = self.key_of.pop(block, None)
        if key is not None:
            self.block_of[key].remove(block)
            if not self.block_of[key]:
                del self.block_of[key]


# %% wrong="block-zero"
class PrefixCache:
    def __init__(self, block_size):
        self.block_size = block_size
        self.block_of = {}
        self.key_of = {}

    def publish(self, token_ids, blocks, salt=None):
        for key, block in zip(self._keys(token_ids, len(token_ids), salt), blocks, strict=False):
            if key not in self.block_of:
                self.block_of[key], self.key_of[block] = block, key

    def _keys(self, token_ids, num_tokens, salt):
        """The chained keys of the full blocks among the first tokens."""
        keys, parent = [], b""
        for end in range(self.block_size, num_tokens + 1, self.block_size):
            tokens = tuple(token_ids[end - self.block_size : end])
            parent = hashlib.sha256(repr((parent, tokens, salt)).encode()).digest()
            keys.append(parent)
        return keys

    def lookup(self, token_ids, salt=None):
        found = []
        for key in self._keys(token_ids, len(token_ids) - 1, salt):
            block = self.block_of.get(key)
            if not block:
                break
            found.append(block)
        return found

    def forget(self, block):
        key = self.key_of.pop(block, None)
        if key is not None:
            del self.block_of[key]


# %% wrong="stale"
class PrefixCache:
    def __init__(self, block_size):
        self.block_size = block_size
        self.block_of = {}
        self.key_of = {}

    def publish(self, token_ids, blocks, salt=None):
        for key, block in zip(self._keys(token_ids, len(token_ids), salt), blocks, strict=False):
            if key not in self.block_of:
                self.block_of[key], self.key_of[block] = block, key

    def _keys(self, token_ids, num_tokens, salt):
        """The chained keys of the full blocks among the first tokens."""
        keys, parent = [], b""
        for end in range(self.block_size, num_tokens + 1, self.block_size):
            tokens = tuple(token_ids[end - self.block_size : end])
            parent = hashlib.sha256(repr((parent, tokens, salt)).encode()).digest()
            keys.append(parent)
        return keys

    def lookup(self, token_ids, salt=None):
        found = []
        for key in self._keys(token_ids, len(token_ids) - 1, salt):
            if key not in self.block_of:
                break
            found.append(self.block_of[key])
        return found

    def forget(self, block):
        key = self.key_of.pop(block, None)
        if block and key is not None:
            del self.block_of[key]


# %% wrong="shared-state"
class PrefixCache:
    block_of, key_of = {}, {}

    def __init__(self, block_size):
        self.block_size = block_size
        self.block_of.clear()
        self.key_of.clear()

    def publish(self, token_ids, blocks, salt=None):
        for key, block in zip(self._keys(token_ids, len(token_ids), salt), blocks, strict=False):
            if key not in self.block_of:
                self.block_of[key], self.key_of[block] = block, key

    def _keys(self, token_ids, num_tokens, salt):
        """The chained keys of the full blocks among the first tokens."""
        keys, parent = [], b""
        for end in range(self.block_size, num_tokens + 1, self.block_size):
            tokens = tuple(token_ids[end - self.block_size : end])
            parent = hashlib.sha256(repr((parent, tokens, salt)).encode()).digest()
            keys.append(parent)
        return keys

    def lookup(self, token_ids, salt=None):
        found = []
        for key in self._keys(token_ids, len(token_ids) - 1, salt):
            if key not in self.block_of:
                break
            found.append(self.block_of[key])
        return found

    def forget(self, block):
        key = self.key_of.pop(block, None)
        if key is not None:
            del self.block_of[key]


# %% wrong="changes-arguments"
class PrefixCache:
    def __init__(self, block_size):
        self.block_size = block_size
        self.block_of = {}
        self.key_of = {}

    def publish(self, token_ids, blocks, salt=None):
        for key, block in zip(self._keys(token_ids, len(token_ids), salt), blocks, strict=False):
            if key not in self.block_of:
                self.block_of[key], self.key_of[block] = block, key

    def _keys(self, token_ids, num_tokens, salt):
        """The chained keys of the full blocks among the first tokens."""
        keys, parent = [], b""
        for end in range(self.block_size, num_tokens + 1, self.block_size):
            tokens = tuple(token_ids[end - self.block_size : end])
            parent = hashlib.sha256(repr((parent, tokens, salt)).encode()).digest()
            keys.append(parent)
        return keys

    def lookup(self, token_ids, salt=None):
        found = []
        token_ids.pop()  # the last token must be computed
        for key in self._keys(token_ids, len(token_ids), salt):
            if key not in self.block_of:
                break
            found.append(self.block_of[key])
        return found

    def forget(self, block):
        key = self.key_of.pop(block, None)
        if key is not None:
            del self.block_of[key]
