"""A block pool that several threads share (chapter 4): the lost update, and the remedy.

`ref_counts[block] += 1` is three things: read the count, add, write it back. If two threads both read before
either writes, one of the two additions is lost:

    thread A    reads 1                writes 2
    thread B             reads 1                 writes 2        two holders came, the count rose by one

The block is then freed while somebody holds it, and two sequences write into one block. The same happens to the
free queue's links, so it is the whole operation, not only the count, that one thread at a time must do. Engines
avoid the question by giving the pool to one scheduler thread, as ours does; where threads do share a pool, a lock
around each operation is the remedy. Python's global lock is none: which operations it happens to keep together
differs from version to version, and free-threaded builds of Python do without it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from .block_pool import BlockPool


class LockedBlockPool(BlockPool):
    """A pool whose operations are atomic: between threads, each happens before or after every other.

    Two operations in a row are not atomic together: between `num_free` and `allocate` another thread may take the
    blocks. Ask for forgiveness (`OutOfBlocks`), not for permission.
    """

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool = False) -> None:
        super().__init__(num_blocks, block_size, enable_prefix_caching)
        self._lock = threading.RLock()  # re-entrant: `allocate` calls `forget`

    def allocate(self, n: int) -> list[int]:
        """As `BlockPool.allocate`."""
        with self._lock:
            return super().allocate(n)

    def share(self, blocks: Iterable[int]) -> None:
        """As `BlockPool.share`."""
        with self._lock:
            super().share(blocks)

    def free(self, blocks: Iterable[int]) -> None:
        """As `BlockPool.free`."""
        with self._lock:
            super().free(blocks)

    def forget(self, block: int) -> None:
        """As `BlockPool.forget`."""
        with self._lock:
            super().forget(block)

    def check(self) -> None:
        """As `BlockPool.check`."""
        with self._lock:
            super().check()


class _SlowCounts(list[int]):
    """Counts that let another thread in between a read and the write that follows it."""

    def __init__(self, counts: list[int], pause: Callable[[], None]) -> None:
        super().__init__(counts)
        self._pause = pause

    def __getitem__(self, i):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN204
        value = super().__getitem__(i)
        self._pause()
        return value


def share_from_two_threads(pool: BlockPool, patience: float = 0.2) -> int:
    """Let two threads each add a holder to one block, at the worst moment; returns the count, which should be 3.

    A thread that has read the count waits until the other one has read it too, at most `patience` seconds. With an
    unprotected pool both have then read the same number, and one update is lost: the count is 2. With a lock the
    second thread cannot read before the first has written, so the wait ends by itself.
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
                return  # the other thread is kept out, as it should be

    pool_reads_before_write = 3  # `share` looks twice at the count to check it, then reads it to add 1
    plain = pool._ref_counts
    pool._ref_counts = _SlowCounts(plain, pause)
    threads = [threading.Thread(target=pool.share, args=([block],)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pool._ref_counts = list(pool._ref_counts)
    return pool._ref_counts[block]
