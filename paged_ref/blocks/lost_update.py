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

import contextlib
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

    def forget_all(self) -> int:
        """Empty the prefix cache, as `BlockPool.forget_all` does."""
        with self._lock:
            return super().forget_all()

    def check(self) -> None:
        """As `BlockPool.check`."""
        with self._lock:
            super().check()


class _SlowWrites(list[int]):
    """Counts that let another thread in between a read and the write that follows it."""

    def __init__(self, counts: list[int], pause: Callable[[], None]) -> None:
        super().__init__(counts)
        self._pause = pause

    def __setitem__(self, i, value):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN204
        self._pause()
        super().__setitem__(i, value)


def share_from_two_threads(pool: BlockPool, patience: float = 0.2) -> int:
    """Let two threads each add a holder to one block, at the worst moment; return the count, which should be 3.

    A thread that is about to write the count waits until the other one is about to write it too, at most `patience`
    seconds. In an unprotected pool both have then read the same count, and one update is lost: the count is 2. With a
    lock the second thread cannot read before the first has written, so the wait times out.
    """
    (block,) = pool.allocate(1)
    both_have_read = threading.Barrier(2)

    def pause() -> None:
        with contextlib.suppress(
            threading.BrokenBarrierError
        ):  # the other thread is kept out, as it should be
            both_have_read.wait(patience)

    pool._ref_counts = _SlowWrites(pool._ref_counts, pause)
    threads = [threading.Thread(target=pool.share, args=([block],)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pool._ref_counts = list(pool._ref_counts)
    return pool._ref_counts[block]
