"""A request's blocks: given when it is admitted, published when they are full, taken back (chapters 4 and 6).

The scheduler decides *who* runs; this file moves the blocks of one request. A request may have several sequences
(parallel samples, beams), which are placed, swapped and dropped together, so that what they share stays shared:

    prompt of 10 tokens, two samples with 3 and 2 new tokens, block_size 4, computed anew after a preemption

    sample 0   [ p p p p ] [ p p p p ] [ p p a a ] [ a . . . ]
    sample 1       |            |      [ p p b b ]                  2 blocks shared, 3 of their own

What must hold: after `place`, every token that a request has is in a block of its tables, so that a prefill never
waits for a block; a block is published only when its keys and values are written; `check` finds each reference count
equal to the number of tables that name the block. (PagedAttention paper, sections 4.4 and 4.5.)
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
    """Moves the blocks of requests between the device's pool, the host's, and nowhere.

    Args:
        pool: the blocks of the device.
        host_pool: where requests are swapped to; None: nowhere.
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
        """Return the cached blocks that the request's first sequence begins with, as the cache is now.

        The result is valid until the pool changes: look again at every attempt to admit.
        """
        cache, sequence, size = self.pool.prefix_cache, request.sequences[0], self.pool.block_size
        if cache is None or request.status is Status.SWAPPED:
            return []
        salt = request.sampling.cache_salt
        cache.extend_keys(sequence.block_keys, sequence.token_ids, size, salt)
        return cache.match(sequence.token_ids, size, salt, sequence.block_keys)

    def blocks_to_admit(self, request: Request, prefix: abc.Sequence[Entry] | None = None) -> int:
        """Return the free blocks that admission needs: those of all tokens, and one per sequence to grow into.

        Sequences that a fork has yet to make grow too. `prefix` is what `find_prefix` has just found (None: look now).
        A cached block without a holder counts as needed, because it is one of the free ones.
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
        """Give a request without blocks those of all its tokens: cached, shared among its sequences, or new.

        `prefix` is what `find_prefix` has just found (None: look now). Returns how many tokens the prefix cache saved.

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
        """Let other requests find the sequence's full blocks. Call it when their keys and values are written."""
        cache, size = self.pool.prefix_cache, self.pool.block_size
        if cache is None or sequence.num_computed_tokens // size == sequence.num_published_blocks:
            return
        if not cache.holds(sequence.published):
            # The sequence's own blocks are duplicates of an entry that is gone by now: file them in its place.
            sequence.published, sequence.num_published_blocks = None, 0
        salt, keys = request.sampling.cache_salt, sequence.block_keys
        cache.extend_keys(keys, sequence.token_ids, size, salt)
        for i in range(sequence.num_published_blocks, sequence.num_computed_tokens // size):
            tokens = sequence.token_ids[i * size : (i + 1) * size]
            block = sequence.table.blocks[i]
            sequence.published = cache.publish(sequence.published, tokens, salt, block, keys[i])
            sequence.num_published_blocks = i + 1

    def can_swap_out(self, request: Request) -> bool:
        """Whether there is a host pool with room for the request."""
        blocks = {block for sequence in request.sequences for block in sequence.table.blocks}
        return self.host_pool is not None and len(blocks) <= self.host_pool.num_free

    def swap_out(self, request: Request) -> list[tuple[int, int]]:
        """Move a request to the host; returns (device block, host block) pairs to copy before anything is written."""
        if self.host_pool is None:
            raise ValueError("there is no host pool to swap to")
        return move_tables([sequence.table for sequence in request.sequences], self.host_pool)

    def swap_in(self, request: Request) -> list[tuple[int, int]]:
        """Move a request back to the device; returns (host block, device block) pairs to copy before the next read."""
        return move_tables([sequence.table for sequence in request.sequences], self.pool)

    def drop(self, request: Request) -> None:
        """Take the request's blocks away, wherever they are. Its tokens must be computed again."""
        for sequence in request.sequences:
            sequence.forget_cache()
            sequence.table = BlockTable(self.pool)

    def check(self, requests: Iterable[Request]) -> None:
        """Raise AssertionError if the pools and the tables of these requests, which must be all, do not agree."""
        tables = [sequence.table for request in requests for sequence in request.sequences]
        for pool in filter(None, (self.pool, self.host_pool)):
            pool.check()
            held = Counter(block for table in tables if table.pool is pool for block in table.blocks)
            for block in range(pool.num_blocks):
                if held[block] != pool.ref_count(block):
                    raise AssertionError(
                        f"block {block} has {pool.ref_count(block)} holders, tables name it {held[block]} times"
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
        """Full blocks of the prompt, which several sequences of one request hold in common."""
        return len(request.prompt_token_ids) // self.pool.block_size if len(request.sequences) > 1 else 0
