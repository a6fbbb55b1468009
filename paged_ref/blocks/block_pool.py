"""The pool of physical blocks: reference counts and the free queue (chapter 2; sharing: chapter 4).

A *block* is room for the keys and values of `block_size` tokens, in every layer. The pool does not touch keys
and values: it hands out block ids, counts the holders of each block, and takes blocks back.

Invariants (`BlockPool.check` tests them):

* a block is free exactly when it has no holder: `ref_count(id) == 0`;
* `num_free + num_used == num_blocks`: no block is lost and none is counted twice;
* an operation that fails changes nothing.

The free blocks are kept in a queue. The next allocation takes the block at its head:

    head ->  [never used, or used and not cached]  [cached, oldest ... cached, newest]  <- tail

A freed block whose contents may be found again (chapter 4's prefix cache) is added at the tail, any other
block at the head. So cached contents are kept as long as possible, and the oldest are evicted first. A cache
hit takes a block out of the *middle* of the queue; that is why the queue is a linked list and not a stack.
The design follows vLLM's block pool (PagedAttention paper, section 4.2, for the pool itself).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ..arguments import require_int

if TYPE_CHECKING:
    from .prefix_cache import PrefixCache


class OutOfBlocks(RuntimeError):
    """The pool has fewer free blocks than requested. Nothing was allocated."""


class BlockPool:
    """`num_blocks` blocks of `block_size` tokens each, with a reference count for every block.

    Args:
        num_blocks: number of physical blocks (ids 0 .. num_blocks - 1).
        block_size: tokens per block.
        enable_prefix_caching: let full blocks be found by their contents (see `prefix_cache`).

    Raises:
        ValueError: a size below 1.

    Every operation takes time proportional to the number of blocks passed to it, whatever the size of the pool.
    (Forgetting a cached block also visits the cached blocks that continue it; each is visited once per publication.)
    """

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool = False) -> None:
        require_int("num_blocks", num_blocks, 1)
        require_int("block_size", block_size, 1)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_cache: PrefixCache | None = None
        if enable_prefix_caching:
            from .prefix_cache import PrefixCache

            self.prefix_cache = PrefixCache()
        self._ref_counts = [0] * num_blocks
        self._free = _FreeQueue(num_blocks)

    @property
    def num_free(self) -> int:
        """Blocks without a holder, including those with cached contents."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks held by at least one table."""
        return self.num_blocks - self.num_free

    def ref_count(self, block: int) -> int:
        """Return the number of holders of the block; 0 means it is free."""
        self._require_known(block)
        return self._ref_counts[block]

    def is_shared(self, block: int) -> bool:
        """Return True if the block has several holders, so that none of them may write into it."""
        return self._ref_counts[block] > 1

    def allocate(self, n: int) -> list[int]:
        """Take `n` free blocks, each with one holder. Their contents are whatever the last holder left.

        Raises:
            OutOfBlocks: fewer than `n` blocks are free; none is taken then.
            ValueError: `n` is negative.
        """
        if n < 0:
            raise ValueError(f"cannot allocate {n} blocks: the number must be 0 or more")
        if n > self.num_free:
            raise OutOfBlocks(f"{n} blocks wanted, {self.num_free} of {self.num_blocks} are free")
        blocks, counts = self._free.pop_head(n), self._ref_counts
        for block in blocks:
            counts[block] = 1
        if blocks and self._is_cached(blocks[-1]):  # uncached blocks are queued before the cached ones
            for block in blocks:
                self.forget(block)  # the block will be overwritten: its old contents must not be found again
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Add one holder to each block. A free block must have cached contents: it leaves the free queue.

        Raises:
            ValueError: an unknown id, or a free block without cached contents; nothing changes then.
        """
        blocks = list(blocks)
        for block in blocks:
            self._require_known(block)
            if self._ref_counts[block] == 0 and not self._is_cached(block):
                raise ValueError(
                    f"block {block} is free: allocate it; only a held or cached block can be shared"
                )
        for block in blocks:
            if self._ref_counts[block] == 0:
                self._free.remove(block)
            self._ref_counts[block] += 1

    def free(self, blocks: Iterable[int]) -> None:
        """Remove one holder of each block. A block without holders is free; blocks freed first are reused first.

        A sequence frees its last block first. Its first blocks, which other prompts are more likely to share, are
        then evicted from the prefix cache last.

        Raises:
            ValueError: an unknown id, or a block freed more often than it has holders; nothing changes then.
        """
        blocks, counts = list(blocks), self._ref_counts
        unheld = []
        for i, block in enumerate(blocks):
            if not (0 <= block < self.num_blocks and counts[block]):
                for freed in blocks[:i]:
                    counts[freed] += 1
                self._refuse_to_free(block, blocks)
            counts[block] -= 1
            if not counts[block]:
                unheld.append(block)
        cached = self.prefix_cache.cached(unheld) if self.prefix_cache is not None else []
        if len(cached) < len(unheld):
            keep = set(cached)
            self._free.push_head(*(block for block in unheld if block not in keep))
        self._free.push_tail(*cached)

    def forget(self, block: int) -> None:
        """Remove the block, and all cached blocks that continue it, from the prefix cache: it will be overwritten.

        Free blocks that are no longer cached move to the head of the queue.
        """
        if self.prefix_cache is None:
            return
        for lost in self.prefix_cache.forget(block):
            if self._ref_counts[lost] == 0:
                self._free.remove(lost)
                self._free.push_head(lost)

    def forget_all(self) -> int:
        """Empty the prefix cache, and return the number of blocks that were cached. Held blocks stay held."""
        if self.prefix_cache is None:
            return 0
        blocks = self.prefix_cache.clear()
        for block in blocks:
            if self._ref_counts[block] == 0:
                self._free.remove(block)
                self._free.push_head(block)
        return len(blocks)

    def free_blocks(self) -> list[int]:
        """Return the free blocks in the order in which `allocate` would take them, in time proportional to them."""
        return list(self._free)

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken. Takes time proportional to the size of the pool."""
        free = list(self._free)
        if len(free) != len(self._free) or len(set(free)) != len(free):
            raise AssertionError(
                f"the free queue has length {len(self._free)}, but links {len(set(free))} blocks"
            )
        unheld = {block for block, count in enumerate(self._ref_counts) if count == 0}
        if min(self._ref_counts) < 0:
            raise AssertionError(f"negative reference count: {min(self._ref_counts)}")
        if unheld != set(free):
            raise AssertionError(
                f"blocks without a holder that are not free, or free blocks with a holder: {sorted(unheld ^ set(free))}"
            )
        cached = [self._is_cached(block) for block in free]
        if cached != sorted(cached):
            raise AssertionError(
                "an uncached free block is queued behind a cached one: the cached block would be evicted too early"
            )
        if self.prefix_cache is not None:
            self.prefix_cache.check()

    def _is_cached(self, block: int) -> bool:
        return self.prefix_cache is not None and block in self.prefix_cache

    def _refuse_to_free(self, block: int, blocks: list[int]) -> None:
        self._require_known(block)
        raise ValueError(
            f"double free of block {block}: it has {self._ref_counts[block]} holders, but was freed "
            f"{blocks.count(block)} times"
        )

    def _require_known(self, block: int) -> None:
        if not 0 <= block < self.num_blocks:
            raise ValueError(f"unknown block {block}: the pool has blocks 0 to {self.num_blocks - 1}")


class _FreeQueue:
    """A doubly linked list over block ids, stored in two flat lists; index `num_blocks` is both head and tail."""

    def __init__(self, num_blocks: int) -> None:
        self._end = num_blocks
        self._next = [*range(1, num_blocks + 1), 0]
        self._previous = [num_blocks, *range(num_blocks)]
        self._length = num_blocks

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        block = self._next[self._end]
        while block != self._end:
            yield block
            block = self._next[block]

    def pop_head(self, n: int) -> list[int]:
        """Remove the first `n` blocks and return them in their order."""
        links = self._next
        blocks, block = [], links[self._end]
        for _ in range(n):
            blocks.append(block)
            block = links[block]
        self._link(self._end, block)
        self._length -= n
        return blocks

    def remove(self, block: int) -> None:
        self._link(self._previous[block], self._next[block])
        self._length -= 1

    def push_head(self, *blocks: int) -> None:
        self._insert(self._end, blocks, self._next[self._end])

    def push_tail(self, *blocks: int) -> None:
        self._insert(self._previous[self._end], blocks, self._end)

    def _insert(self, before: int, blocks: tuple[int, ...], after: int) -> None:
        """Link the blocks, in their order, between two neighbours."""
        links, back = self._next, self._previous
        for block in blocks:
            links[before] = block
            back[block] = before
            before = block
        self._link(before, after)
        self._length += len(blocks)

    def _link(self, before: int, after: int) -> None:
        self._next[before] = after
        self._previous[after] = before
