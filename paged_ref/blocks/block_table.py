"""One sequence's map from logical to physical blocks (chapter 2; fork and copy-on-write: chapter 4).

A sequence's tokens fill *logical* blocks 0, 1, 2, … in order. `blocks[i]` is the physical block of logical
block i, and token t is stored in

    slot(t) = blocks[t // block_size] * block_size + t % block_size

    tokens          t0 t1 t2 t3 | t4 t5 t6 t7 | t8 t9  .  .        block_size = 4, num_tokens = 10
    logical block        0            1             2
    blocks          [    7,           1,            4    ]
    slots           28 29 30 31 |  4  5  6  7 | 16 17              the two free slots are the only waste

A new block is allocated only when a token arrives that does not fit in the last block: with num_tokens = 12
the table above still has three blocks; the 13th token needs a fourth.

One table serves every layer: each layer has its own storage, and the same block id is used in all of them.

Invariants: `len(blocks) == ceil(num_tokens / block_size)`; the table holds one reference to each of its
blocks; a slot that `append` returns belongs to no other table. (PagedAttention paper, sections 4.3 and 4.4.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ..sizing import blocks_for
from .block_pool import BlockPool


class BlockTable:
    """The block table of one sequence. It starts empty; `append` makes room for tokens.

    Attributes:
        blocks: physical block ids, one per logical block. Read-only for callers.
        num_tokens: tokens that have a slot.
        pending_copies: (source, destination) block pairs that copy-on-write requires. The caller that manages the
            storage takes them with `take_copies` and performs them before the next write.
    """

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.blocks: list[int] = []
        self.num_tokens = 0
        self.pending_copies: list[tuple[int, int]] = []

    def append(self, num_tokens: int) -> list[int]:
        """Make room for `num_tokens` more tokens and return their slots, all or nothing.

        If the last block is partly full and shared, it is first replaced by a block of this table's own, and the
        copy is recorded in `pending_copies`. Full shared blocks stay shared: they will not be written again.

        Raises:
            OutOfBlocks: the pool has too few free blocks; table and pool are unchanged.
            ValueError: `num_tokens` is negative.
        """
        self.grow(num_tokens)
        return self.slots(self.num_tokens - num_tokens, self.num_tokens)

    def grow(self, num_tokens: int) -> None:
        """Make room like `append`, for a caller that asks for the slots later (a chunked prefill)."""
        if num_tokens < 0:
            raise ValueError(f"cannot append {num_tokens} tokens: the number must be 0 or more")
        wanted = self.blocks_to_append(num_tokens)
        new = self.pool.allocate(wanted) if wanted else []  # the only step that can fail
        if num_tokens and self._last_is_partly_full():
            if self.pool.is_shared(self.blocks[-1]):
                shared, own = self.blocks[-1], new.pop(0)
                self.pool.free([shared])
                self.blocks[-1] = own
                self.pending_copies.append((shared, own))
            else:
                # The block may be cached: a fork can end inside a full block whose other holders are gone.
                self.pool.forget(self.blocks[-1])
        self.blocks += new
        self.num_tokens += num_tokens

    def blocks_to_append(self, num_tokens: int) -> int:
        """Return how many blocks `append(num_tokens)` would take from the pool, including a copy-on-write."""
        grown = blocks_for(self.num_tokens + num_tokens, self.pool.block_size) - len(self.blocks)
        copies = num_tokens and self._last_is_partly_full() and self.pool.is_shared(self.blocks[-1])
        return grown + bool(copies)

    def adopt(self, blocks: list[int]) -> None:
        """Start an empty table with full blocks that hold the sequence's first tokens (a prefix-cache hit)."""
        if self.blocks:
            raise ValueError(
                f"the table already has {len(self.blocks)} blocks: only an empty one can adopt a prefix"
            )
        self.pool.share(blocks)
        self.blocks = list(blocks)
        self.num_tokens = len(blocks) * self.pool.block_size

    def fork(self, num_tokens: int | None = None) -> BlockTable:
        """Return a second table over the same blocks, for the first `num_tokens` tokens (default: all of them).

        No block is allocated and nothing is copied: every block gets one more holder.

        Raises:
            ValueError: more tokens than the table has.
            RuntimeError: copies are pending; the fork would share a block whose contents are not there yet.
        """
        num_tokens = self.num_tokens if num_tokens is None else num_tokens
        if not 0 <= num_tokens <= self.num_tokens:
            raise ValueError(f"cannot fork the first {num_tokens} tokens of a table of {self.num_tokens}")
        if self.pending_copies:
            raise RuntimeError(f"perform the pending copies {self.pending_copies} before a fork")
        child = BlockTable(self.pool)
        shared = self.blocks[: blocks_for(num_tokens, self.pool.block_size)]
        self.pool.share(shared)
        child.blocks = shared
        child.num_tokens = num_tokens
        return child

    def release(self) -> None:
        """Free every block, the last one first, and leave the table empty. Releasing twice is harmless."""
        blocks, self.blocks = self.blocks, []
        self.num_tokens = 0
        self.pending_copies = []
        self.pool.free(reversed(blocks))

    def take_copies(self) -> list[tuple[int, int]]:
        """Return the pending copies and clear the list."""
        copies, self.pending_copies = self.pending_copies, []
        return copies

    def slot(self, i: int) -> int:
        """Return the slot of token `i`.

        Raises:
            IndexError: the table has no token `i`.
        """
        if not 0 <= i < self.num_tokens:
            raise IndexError(f"token {i} has no slot: the table has {self.num_tokens} tokens")
        return self.blocks[i // self.pool.block_size] * self.pool.block_size + i % self.pool.block_size

    def slots(self, start: int, stop: int) -> list[int]:
        """Return the slots of tokens start .. stop - 1.

        Raises:
            IndexError: the table does not have all of them.
        """
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(
                f"tokens {start} to {stop - 1} have no slots: the table has {self.num_tokens} tokens"
            )
        size = self.pool.block_size
        slots: list[int] = []
        while start < stop:
            # The remaining tokens of one block: its slots are contiguous.
            end = min(stop, start - start % size + size)
            first = self.blocks[start // size] * size + start % size
            slots += range(first, first + end - start)
            start = end
        return slots

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        needed = blocks_for(self.num_tokens, self.pool.block_size)
        if len(self.blocks) != needed:
            raise AssertionError(
                f"{self.num_tokens} tokens need {needed} blocks, the table has {len(self.blocks)}"
            )
        if len(set(self.blocks)) != len(self.blocks):
            raise AssertionError(f"a block appears twice in the table: {self.blocks}")
        for logical, block in enumerate(self.blocks):
            if self.pool.ref_count(block) < 1:
                raise AssertionError(f"logical block {logical} is physical block {block}, which is free")

    def _last_is_partly_full(self) -> bool:
        return self.num_tokens % self.pool.block_size != 0


def blocks_to_append_each(tables: Iterable[BlockTable]) -> int:
    """Return how many blocks the pool needs for one more token in each of these tables, in this order.

    The count is exact where tables share a partly full block: if all k holders append, k - 1 of them copy the block,
    and the last, by then its only holder, writes in place.
    """
    needed = 0
    left: Counter[int] = Counter()  # holders that a shared block will have lost when its next table appends
    for table in tables:
        grows = table.num_tokens % table.pool.block_size == 0
        if grows:
            needed += 1
            continue
        last = table.blocks[-1]
        if table.pool.ref_count(last) - left[last] > 1:
            needed += 1
            left[last] += 1
    return needed


def move_tables(tables: Iterable[BlockTable], destination: BlockPool) -> list[tuple[int, int]]:
    """Move tables to another pool (a swap) and return the (old block, new block) pairs to copy.

    All or nothing; blocks that the tables share stay shared. The tables' blocks in the old pool are free afterwards,
    so perform the copies before anything is written to that pool.

    Raises:
        OutOfBlocks: the destination has too few free blocks; nothing changes then.
        RuntimeError: a table has pending copies, so its contents are not complete.
    """
    tables = list(tables)
    for table in tables:
        if table.pending_copies:
            raise RuntimeError(f"perform the pending copies {table.pending_copies} before the table moves")
    sources = list(dict.fromkeys(block for table in tables for block in table.blocks))
    moved = dict(zip(sources, destination.allocate(len(sources)), strict=True))
    holders = Counter(block for table in tables for block in table.blocks)
    for block, count in holders.items():
        for _ in range(count - 1):
            destination.share([moved[block]])
    for table in tables:
        old, table.blocks = table.blocks, [moved[block] for block in table.blocks]
        table.pool.free(reversed(old))
        table.pool = destination
    return list(moved.items())
