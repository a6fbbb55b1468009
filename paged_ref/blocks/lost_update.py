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

import contextlib
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

    def forget_all(self) -> int:
        """Empty the prefix cache as `BlockPool.forget_all` does, under the lock."""
        with self._lock:
            return super().forget_all()

    def check(self) -> None:
        """Check as `BlockPool.check` does, under the lock."""
        with self._lock:
            super().check()


class _SlowWrites(list[int]):
    """Counts that pause before each write, so that another thread can read first."""

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
