"""A request's blocks: allocated on admission, published when full, freed on preemption (chapters 4 and 6).

The scheduler decides *which* requests run; this file moves the blocks of one request. A request may have several
sequences (parallel samples, beams). They are placed, swapped and dropped together, so that shared blocks stay shared:

    prompt of 10 tokens, two samples with 3 and 2 new tokens, block_size 4, recomputed after a preemption

    sample 0   [ p p p p ] [ p p p p ] [ p p a a ] [ a . . . ]
    sample 1       |            |      [ p p b b ]                  2 blocks shared, 3 of their own

Invariants: after `place`, every token of a request has a slot in a block of its tables, so a prefill never waits for
a block; a block is published only when its keys and values are written; each reference count equals the number of
tables that contain the block (`check` tests this). (PagedAttention paper, sections 4.4 and 4.5.)
"""

from __future__ import annotations

from collections import Counter, abc
from collections.abc import Iterable

from ..blocks.block_pool import BlockPool, OutOfBlocks
from ..blocks.block_table import BlockTable, move_tables
from ..blocks.prefix_cache import Entry
from ..sizing import blocks_for
from .request import Request, Sequence, Status


class BlockManager:
    """Allocates and frees the blocks of requests, and moves them between the device pool and the host pool.

    Args:
        pool: the blocks of the device.
        host_pool: the blocks of the host, to which requests are swapped; None: no swapping.
    """

    def __init__(self, pool: BlockPool, host_pool: BlockPool | None = None) -> None:
        if host_pool is not None and host_pool.block_size != pool.block_size:
            raise ValueError(
                f"blocks of {host_pool.block_size} tokens on the host and of {pool.block_size} on the device: a swap "
                "copies whole blocks, so the sizes must be equal"
            )
        self.pool = pool
        self.host_pool = host_pool

    def find_prefix(self, request: Request) -> list[Entry]:
        """Return the cached blocks with which the request's first sequence begins.

        The result is valid until the pool changes: look it up again at every attempt to admit.
        """
        cache, sequence, size = self.pool.prefix_cache, request.sequences[0], self.pool.block_size
        if cache is None or request.status is Status.SWAPPED:
            return []
        return cache.match(sequence.token_ids, size, request.sampling.cache_salt)

    def blocks_to_admit(self, request: Request, prefix: abc.Sequence[Entry] | None = None) -> int:
        """Return the number of free blocks that admission needs: for all tokens, plus one per sequence to grow into.

        Sequences that a later fork will create are included. `prefix` is the current result of `find_prefix` (None:
        look it up now). A cached block without a holder counts as needed, because it is one of the free blocks.
        """
        prefix = self.find_prefix(request) if prefix is None else prefix
        held_by_others = 0
        if request.status is Status.SWAPPED:
            now = len({block for sequence in request.sequences for block in sequence.table.blocks})
        else:
            shared = self._shared_blocks(request)
            size = self.pool.block_size
            now = shared + sum(blocks_for(len(s.token_ids), size) - shared for s in request.sequences)
            held_by_others = sum(self.pool.ref_count(entry.block) > 0 for entry in prefix)
        growing = min(now + request.width, request.most_blocks(self.pool))
        return max(now, growing) - held_by_others

    def place(self, request: Request, prefix: abc.Sequence[Entry] | None = None) -> int:
        """Allocate the blocks for all tokens of a request: cached, shared among its sequences, or new.

        `prefix` is the current result of `find_prefix` (None: look it up now). Returns the number of tokens found in
        the prefix cache.

        Raises:
            OutOfBlocks: there are too few free blocks; the request holds none then.
        """
        prefix = self.find_prefix(request) if prefix is None else prefix
        try:
            self._place(request, prefix)
        except OutOfBlocks:
            self.drop(request)
            raise
        if self.pool.prefix_cache is not None:
            self.pool.prefix_cache.count(
                (len(request.sequences[0].token_ids) - 1) // self.pool.block_size, len(prefix)
            )
        return request.sequences[0].num_computed_tokens

    def publish(self, request: Request, sequence: Sequence) -> None:
        """Publish the sequence's full blocks for other requests. Call it when their keys and values are written."""
        cache, size = self.pool.prefix_cache, self.pool.block_size
        if cache is None or sequence.num_computed_tokens // size == sequence.num_published_blocks:
            return
        if not cache.holds(sequence.published):
            # The sequence's own blocks were duplicates of an entry that has been evicted: publish them instead.
            sequence.published, sequence.num_published_blocks = None, 0
        first, last = sequence.num_published_blocks, sequence.num_computed_tokens // size
        tokens = sequence.token_ids[first * size : last * size]
        blocks = sequence.table.blocks[first:last]
        salt = request.sampling.cache_salt
        sequence.published = cache.publish_run(sequence.published, tokens, size, salt, blocks)
        sequence.num_published_blocks = last

    def can_swap_out(self, request: Request) -> bool:
        """Return True if there is a host pool with room for the request."""
        blocks = {block for sequence in request.sequences for block in sequence.table.blocks}
        return self.host_pool is not None and len(blocks) <= self.host_pool.num_free

    def swap_out(self, request: Request) -> list[tuple[int, int]]:
        """Move a request to the host; return (device block, host block) pairs to copy before anything is written."""
        if self.host_pool is None:
            raise ValueError("there is no host pool to swap to")
        return move_tables([sequence.table for sequence in request.sequences], self.host_pool)

    def swap_in(self, request: Request) -> list[tuple[int, int]]:
        """Move a request back to the device; return (host block, device block) pairs to copy before the next read."""
        return move_tables([sequence.table for sequence in request.sequences], self.pool)

    def drop(self, request: Request) -> None:
        """Free the request's blocks, on the device or the host. Its tokens must be computed again."""
        for sequence in request.sequences:
            sequence.forget_cache()
            sequence.table = BlockTable(self.pool)

    def check(self, requests: Iterable[Request]) -> None:
        """Raise AssertionError if the pools do not agree with the tables of `requests`, which must be all live ones."""
        tables = [sequence.table for request in requests for sequence in request.sequences]
        for pool in filter(None, (self.pool, self.host_pool)):
            pool.check()
            held = Counter(block for table in tables if table.pool is pool for block in table.blocks)
            for block in range(pool.num_blocks):
                if held[block] != pool.ref_count(block):
                    raise AssertionError(
                        f"block {block} has {pool.ref_count(block)} holders, but is in {held[block]} tables"
                    )
        for table in tables:
            table.check()

    def _place(self, request: Request, prefix: abc.Sequence[Entry]) -> None:
        leader, *others = request.sequences
        leader.table.adopt([entry.block for entry in prefix])
        leader.num_computed_tokens = leader.table.num_tokens
        leader.published = prefix[-1] if prefix else None
        leader.num_published_blocks = len(prefix)
        leader.table.grow(len(leader.token_ids) - leader.table.num_tokens)
        for sequence in others:
            shared = self._shared_blocks(request) * self.pool.block_size
            sequence.table = leader.table.fork(shared)
            sequence.num_computed_tokens = shared
            sequence.table.grow(len(sequence.token_ids) - shared)

    def _shared_blocks(self, request: Request) -> int:
        """Return the number of full prompt blocks that the request's sequences share; 0 for a single sequence."""
        return len(request.prompt_token_ids) // self.pool.block_size if len(request.sequences) > 1 else 0
