r"""Prefix caching: finding blocks by their contents (chapter 4).

The keys and values of a token depend on that token and on *every* token before it, and on nothing else. So another
sequence can reuse a full block exactly when both sequences agree on all tokens up to the block's end. The cache
stores each full block under a chained key:

    key(block i) = (block i - 1's entry, the block's tokens, extras)          extras: for example a tenant's salt

    prompt A   [ the cat sat ] [ on the mat ]          root --the cat sat--> 5 --on the mat--> 9
    prompt B   [ the cat sat ] [ in the hat ]                            \--in the hat--> 2

The chain is a path from the root, so the same tokens after a different parent have a different key, and a hit can
only start at the beginning of a sequence. In code, an entry holds a dictionary of the entries that continue it, and
the dictionary's key is the tokens, with the extras if there are any.

Why a collision cannot serve wrong contents: a Python dictionary finds a key by its hash and then compares the whole
key, so every hit is verified: the parent because the search is in the parent's own dictionary, tokens and extras by
value. A verified key needs no cryptographic hash. Python's hash of integers is fast but not secret: an attacker can
construct prompts that collide, which slows their look-ups down and changes no result. A key that is trusted without a
comparison, or that processes send to each other in place of the tokens, does need a cryptographic hash, such as
`chained_key` (vLLM does this).

Invariants: a block has at most one entry; a cached block is full and its keys and values are written; before a block
gets new contents it is forgotten (the pool does this); every entry's parent is cached too, so every entry can be
found. Sources: vLLM's automatic prefix caching (chained block hashes), SGLang's RadixAttention (the same idea with a
tree of token runs).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeAlias

Children: TypeAlias = "dict[Hashable, Entry]"


class Entry:
    """One full block in the cache.

    Attributes:
        parent: the entry of the block before it; None for the first block of a sequence.
        tokens, extras: the block's contents.
        block: the block id.
        children: the entries that continue this one, by their keys.
        key: the entry's key in the dictionary that holds it.
    """

    __slots__ = ("block", "children", "extras", "key", "parent", "tokens")

    def __init__(
        self, parent: Entry | None, tokens: tuple[int, ...], extras: Hashable, block: int, key: Hashable
    ) -> None:
        self.parent = parent
        self.tokens = tokens
        self.extras = extras
        self.block = block
        self.key = key
        self.children: Children = {}

    def __repr__(self) -> str:
        return f"Entry(block={self.block}, tokens={self.tokens}, extras={self.extras!r})"


def chained_key(parent: bytes, tokens: Sequence[int], extras: Hashable) -> bytes:
    """Return the SHA-256 of the parent's key, tokens and extras: the same in every process, unlike Python's `hash`."""
    return hashlib.sha256(repr((parent, tuple(tokens), extras)).encode()).digest()


class HashedKey:
    """A dictionary key with a hash of the caller's choice. Two keys are equal only if their contents are."""

    __slots__ = ("contents", "name")

    def __init__(self, name: Any, contents: tuple[Hashable, ...]) -> None:
        self.name = name
        self.contents = contents

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HashedKey) and self.contents == other.contents


class PrefixCache:
    """The cached blocks of one pool. `queries` and `hits` count full blocks looked up and found since the start.

    Args:
        hash_function: (parent's name, tokens, extras) -> name, which replaces Python's hash of the contents; the root's
            name is b"". Equal contents are still required for a hit. Tests pass a function that collides.
    """

    def __init__(
        self, hash_function: Callable[[Any, Sequence[int], Hashable], Hashable] | None = None
    ) -> None:
        self._hash = hash_function
        self._roots: Children = {}
        self._by_block: dict[int, Entry] = {}
        self.queries = 0
        self.hits = 0

    def __len__(self) -> int:
        return len(self._by_block)

    def blocks(self) -> list[int]:
        """Return the blocks whose contents can be found."""
        return list(self._by_block)

    def __contains__(self, block: int) -> bool:
        return block in self._by_block

    def cached(self, blocks: Iterable[int]) -> list[int]:
        """Return those of the blocks that have an entry."""
        by_block = self._by_block
        return [block for block in blocks if block in by_block]

    def find(self, parent: Entry | None, tokens: Sequence[int], extras: Hashable = None) -> Entry | None:
        """Return the entry for these tokens after `parent` (None: at the beginning of a sequence), or None."""
        return self._children(parent).get(self._key(parent, tuple(tokens), extras))

    def holds(self, entry: Entry | None) -> bool:
        """Return True if an entry found earlier is still cached. The root (None) always is."""
        return entry is None or self._by_block.get(entry.block) is entry

    def match(self, token_ids: Sequence[int], block_size: int, extras: Hashable = None) -> list[Entry]:
        """Return the longest cached prefix of a sequence of n tokens, in full blocks, at most n - 1 tokens.

        The last token is never taken from the cache: the model must run on it to compute the next token.
        """
        found: list[Entry] = []
        parent = None
        usable = (len(token_ids) - 1) // block_size
        for i in range(usable):
            parent = self.find(parent, token_ids[i * block_size : (i + 1) * block_size], extras)
            if parent is None:
                break
            found.append(parent)
        return found

    def count(self, queries: int, hits: int) -> None:
        """Count a look-up that led to an admission: `queries` full blocks looked up, `hits` of them found."""
        self.queries += queries
        self.hits += hits

    def publish(
        self, parent: Entry | None, tokens: Sequence[int], extras: Hashable, block: int
    ) -> Entry | None:
        """Add a full block whose keys and values are written, and return the entry for its contents.

        If the same contents are cached already, that entry is returned and `block` stays an uncached duplicate.

        Raises:
            ValueError: the parent is no longer cached, or the block is cached with other contents.
        """
        return self.publish_run(parent, tokens, len(tokens), extras, [block])

    def publish_run(
        self,
        parent: Entry | None,
        token_ids: Sequence[int],
        block_size: int,
        extras: Hashable,
        blocks: Sequence[int],
    ) -> Entry | None:
        """Publish consecutive blocks of one sequence, as `publish` does; return the entry of the last one.

        token_ids: the tokens of these blocks and of nothing else. Without blocks, `parent` is returned.
        """
        if not self.holds(parent):
            raise ValueError(
                f"block {blocks[0]} follows an entry that was forgotten: publish its sequence from the beginning"
            )
        token_ids, plain = tuple(token_ids), extras is None and self._hash is None
        by_block, children = self._by_block, self._children(parent)
        for i, block in enumerate(blocks):
            tokens = token_ids[i * block_size : (i + 1) * block_size]
            key = tokens if plain else self._key(parent, tokens, extras)
            entry = children.get(key)
            if entry is None:
                if block in by_block:
                    raise ValueError(
                        f"block {block} is cached with other contents: forget it before it is written again"
                    )
                children[key] = by_block[block] = entry = Entry(parent, tokens, extras, block, key)
            parent, children = entry, entry.children
        return parent

    def forget(self, block: int) -> list[int]:
        """Remove a block's entry and all entries below it, which could no longer be found; return their blocks.

        Each entry is removed only once, so on average this costs no more than publishing.
        """
        top = self._by_block.get(block)
        if top is None:
            return []
        del self._children(top.parent)[top.key]
        if not top.children:  # most often: blocks at the end of a sequence are evicted first
            del self._by_block[block]
            return [block]
        removed = []
        pending = [top]
        while pending:
            entry = pending.pop()
            pending += entry.children.values()
            entry.children = {}
            removed.append(entry.block)
            del self._by_block[entry.block]
        return removed

    def clear(self) -> list[int]:
        """Remove every entry; return the blocks that had one."""
        blocks = list(self._by_block)
        self._roots, self._by_block = {}, {}
        return blocks

    def check(self) -> None:
        """Raise AssertionError if the tree and the index by block disagree: a block could not be found, or twice."""
        reached: list[Entry] = []
        pending = list(self._roots.items())
        while pending:
            key, entry = pending.pop()
            if key != entry.key or self._children(entry.parent).get(key) is not entry:
                raise AssertionError(
                    f"block {entry.block} is not among its parent's children under its own key"
                )
            reached.append(entry)
            pending += entry.children.items()
        for entry in reached:
            if self._by_block.get(entry.block) is not entry:
                raise AssertionError(f"block {entry.block} is in the tree, but not in the index by block")
        if len(reached) != len(self._by_block):
            lost = set(self._by_block) - {entry.block for entry in reached}
            raise AssertionError(f"blocks {sorted(lost)} are cached, but cannot be reached from the root")

    def _children(self, parent: Entry | None) -> Children:
        return self._roots if parent is None else parent.children

    def _key(self, parent: Entry | None, tokens: tuple[int, ...], extras: Hashable) -> Hashable:
        """Return the key of these contents among the parent's children."""
        if self._hash is None:
            return tokens if extras is None else (tokens, extras)
        before = parent.key.name if parent is not None and isinstance(parent.key, HashedKey) else b""
        return HashedKey(self._hash(before, tokens, extras), (tokens, extras))
