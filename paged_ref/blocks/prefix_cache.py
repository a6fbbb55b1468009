r"""Prefix caching: finding blocks by their contents (chapter 4).

The keys and values of a token depend on that token and on *every* token before it, and on nothing else. So another
sequence can reuse a full block exactly when both sequences agree on all tokens up to the block's end. The cache
stores each full block under a chained key:

    key(block i) = hash(key(block i - 1), the block's tokens, extras)         extras: for example a tenant's salt

    prompt A   [ the cat sat ] [ on the mat ]          root --the cat sat--> 5 --on the mat--> 9
    prompt B   [ the cat sat ] [ in the hat ]                            \--in the hat--> 2

The chain is a path from the root, so the same tokens after a different parent have a different key, and a hit can
only start at the beginning of a sequence.

Why a collision cannot serve wrong contents: an entry stores its parent entry and its tokens, and a look-up compares
them. With a hash function that always returns the same value, the cache gets slower but stays correct.

Invariants: a block has at most one entry; a cached block is full and its keys and values are written; before a block
gets new contents it is forgotten (the pool does this); every entry's parent is cached too, so every entry can be
found. Sources: vLLM's automatic prefix caching (chained block hashes), SGLang's RadixAttention (the same idea with a
tree of token runs).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, eq=False, slots=True)
class Entry:
    """One full block in the cache, with its parent entry and the entries that continue it."""

    key: bytes
    parent: Entry | None
    tokens: tuple[int, ...]
    extras: Hashable
    block: int
    children: set[Entry] = field(default_factory=set, repr=False)


def chained_key(parent: bytes, tokens: Sequence[int], extras: Hashable) -> bytes:
    """Return the SHA-256 of the parent's key, tokens and extras. Python's `hash` is too short and not stable."""
    return hashlib.sha256(repr((parent, tuple(tokens), extras)).encode()).digest()


class PrefixCache:
    """The cached blocks of one pool. `queries` and `hits` count full blocks looked up and found since the start.

    Args:
        hash_function: (parent key, tokens, extras) -> key. Tests pass a function that collides.
    """

    def __init__(
        self, hash_function: Callable[[bytes, Sequence[int], Hashable], bytes] = chained_key
    ) -> None:
        self._hash = hash_function
        self._by_key: dict[bytes, list[Entry]] = {}  # one entry per key, several where keys collide
        self._by_block: dict[int, Entry] = {}
        self.queries = 0
        self.hits = 0

    def __len__(self) -> int:
        return len(self._by_block)

    def __contains__(self, block: int) -> bool:
        return block in self._by_block

    def extend_keys(
        self, keys: list[bytes], token_ids: Sequence[int], block_size: int, extras: Hashable = None
    ) -> None:
        """Append to `keys` the chained keys of the full blocks of `token_ids` that it does not cover yet.

        A sequence keeps its keys, so each block is hashed once, however often the sequence is looked up.
        """
        for start in range(len(keys) * block_size, len(token_ids) - block_size + 1, block_size):
            parent = keys[-1] if keys else b""
            keys.append(self._hash(parent, token_ids[start : start + block_size], extras))

    def find(
        self,
        parent: Entry | None,
        tokens: Sequence[int],
        extras: Hashable = None,
        key: bytes | None = None,
    ) -> Entry | None:
        """Return the entry for these tokens after `parent` (None: at the beginning of a sequence), or None.

        key: the block's chained key, if the caller has computed it.
        """
        if key is None:
            key = self._hash(parent.key if parent else b"", tokens, extras)
        for entry in self._by_key.get(key, ()):
            if entry.parent is parent and entry.tokens == tuple(tokens) and entry.extras == extras:
                return entry
        return None

    def holds(self, entry: Entry | None) -> bool:
        """Return True if an entry found earlier is still cached. The root (None) always is."""
        return entry is None or self._by_block.get(entry.block) is entry

    def match(
        self,
        token_ids: Sequence[int],
        block_size: int,
        extras: Hashable = None,
        keys: Sequence[bytes] = (),
    ) -> list[Entry]:
        """Return the longest cached prefix of a sequence of n tokens, in full blocks, at most n - 1 tokens.

        The last token is never taken from the cache: the model must run on it to compute the next token.

        keys: the sequence's chained keys (`extend_keys`), as far as the caller has them.
        """
        found: list[Entry] = []
        parent = None
        usable = (len(token_ids) - 1) // block_size
        for i in range(usable):
            tokens = token_ids[i * block_size : (i + 1) * block_size]
            parent = self.find(parent, tokens, extras, keys[i] if i < len(keys) else None)
            if parent is None:
                break
            found.append(parent)
        return found

    def count(self, queries: int, hits: int) -> None:
        """Count a look-up that led to an admission: `queries` full blocks looked up, `hits` of them found."""
        self.queries += queries
        self.hits += hits

    def publish(
        self,
        parent: Entry | None,
        tokens: Sequence[int],
        extras: Hashable,
        block: int,
        key: bytes | None = None,
    ) -> Entry:
        """Add a full block whose keys and values are written, and return the entry for its contents.

        If the same contents are cached already, that entry is returned and `block` stays an uncached duplicate.

        Raises:
            ValueError: the parent is no longer cached, or the block is cached with other contents.
        """
        if not self.holds(parent):
            raise ValueError(
                f"block {block} follows an entry that was forgotten: publish its sequence from the beginning"
            )
        if key is None:
            key = self._hash(parent.key if parent else b"", tokens, extras)
        existing = self.find(parent, tokens, extras, key)
        if existing is not None:
            return existing
        if block in self._by_block:
            raise ValueError(
                f"block {block} is cached with other contents: forget it before it is written again"
            )
        entry = Entry(key, parent, tuple(tokens), extras, block)
        self._by_key.setdefault(key, []).append(entry)
        self._by_block[block] = entry
        if parent is not None:
            parent.children.add(entry)
        return entry

    def forget(self, block: int) -> list[int]:
        """Remove a block's entry and all entries below it, which could no longer be found; return their blocks.

        Each entry is removed only once, so on average this costs no more than publishing.
        """
        if block not in self._by_block:
            return []
        top = self._by_block[block]
        if top.parent is not None:
            top.parent.children.discard(top)
        removed: list[int] = []
        pending = [top]
        while pending:
            entry = pending.pop()
            pending += entry.children
            removed.append(entry.block)
            del self._by_block[entry.block]
            bucket = self._by_key[entry.key]
            bucket.remove(entry)
            if not bucket:
                del self._by_key[entry.key]
        return removed

    def check(self) -> None:
        """Raise AssertionError if the two indexes disagree, or an entry cannot be reached from the root."""
        by_key = [entry for bucket in self._by_key.values() for entry in bucket]
        if len(by_key) != len(self._by_block) or set(by_key) != set(self._by_block.values()):
            raise AssertionError("the index by key and the index by block hold different entries")
        for block, entry in self._by_block.items():
            if entry.block != block:
                raise AssertionError(f"block {block} is indexed under the entry of block {entry.block}")
            if not self.holds(entry.parent):
                raise AssertionError(
                    f"block {block} is cached, but the block before it is not: it can never be found"
                )
            if entry.parent is not None and entry not in entry.parent.children:
                raise AssertionError(f"block {block} is missing from its parent's children")
