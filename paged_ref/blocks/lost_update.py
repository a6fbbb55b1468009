"""A block pool that several threads share (chapter 4): the lost update and its fix.

`ref_counts[block] += 1` is three operations: read the count, add 1, write it back. If two threads both read before
either writes, one of the two additions is lost:

    thread A    reads 1                writes 2
    thread B             reads 1                 writes 2        two holders added, the count rose by one

The block is then freed while a sequence still holds it, and two sequences write into one block. The free queue's
links can be damaged the same way, so the lock must cover the whole operation, not only the count. Engines avoid the
problem by letting only one scheduler thread use the pool, as ours does; where threads do share a pool, put a lock
around each operation. Python's global interpreter lock is not enough: which operations are atomic under it differs
between versions, and free-threaded builds of Python have no such lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from .block_pool import BlockPool


class LockedBlockPool(BlockPool):
    """A pool whose operations are atomic: each one happens entirely before or after every other thread's.

    Two operations in a row are not atomic together: between `num_free` and `allocate` another thread may take the
    blocks. Call `allocate` and handle `OutOfBlocks` instead of checking first.
    """

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool = False) -> None:
        super().__init__(num_blocks, block_size, enable_prefix_caching)
        self._lock = threading.RLock()  # re-entrant: `allocate` calls `forget`

    def allocate(self, n: int) -> list[int]:
        """Allocate as `BlockPool.allocate` does, under the lock."""
        with self._lock:
            return super().allocate(n)

    def share(self, blocks: Iterable[int]) -> None:
        """Share as `BlockPool.share` does, under the lock."""
        with self._lock:
            super().share(blocks)

    def free(self, blocks: Iterable[int]) -> None:
        """Free as `BlockPool.free` does, under the lock."""
        with self._lock:
            super().free(blocks)

    def forget(self, block: int) -> None:
        """Forget as `BlockPool.forget` does, under the lock."""
        with self._lock:
            super().forget(block)

    def check(self) -> None:
        """Check as `BlockPool.check` does, under the lock."""
        with self._lock:
            super().check()


class _SlowCounts(list[int]):
    """Counts that pause after each read, so that another thread can run before the write."""

    def __init__(self, counts: list[int], pause: Callable[[], None]) -> None:
        super().__init__(counts)
        self._pause = pause

    def __getitem__(self, i):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN204
        value = super().__getitem__(i)
        self._pause()
        return value


def share_from_two_threads(pool: BlockPool, patience: float = 0.2) -> int:
    """Let two threads each add a holder to one block at the same time, and return the count, which should be 3.

    A thread that has read the count waits until the other has read it too, for at most `patience` seconds. In an
    unprotected pool both threads then read the same count and one update is lost: the count is 2. With a lock, the
    second thread cannot read before the first has written, so the first thread's wait times out.
    """
    (block,) = pool.allocate(1)
    both_have_read = threading.Barrier(2)
    reads = threading.local()

    def pause() -> None:
        reads.number = getattr(reads, "number", 0) + 1
        if reads.number == pool_reads_before_write:
            try:
                both_have_read.wait(patience)
            except threading.BrokenBarrierError:
                return  # the lock keeps the other thread out, as it should

    pool_reads_before_write = 3  # `share` reads the count twice to check it, then once more to add 1
    plain = pool._ref_counts
    pool._ref_counts = _SlowCounts(plain, pause)
    threads = [threading.Thread(target=pool.share, args=([block],)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pool._ref_counts = list(pool._ref_counts)
    return pool._ref_counts[block]
