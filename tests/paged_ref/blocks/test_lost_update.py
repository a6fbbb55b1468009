"""Claim B10: count updates must be atomic where threads share a pool."""

import sys
import threading
from collections.abc import Iterator

import pytest

from paged_ref.blocks.block_pool import BlockPool, OutOfBlocks
from paged_ref.blocks.lost_update import LockedBlockPool, share_from_two_threads


def test_an_unprotected_pool_loses_an_update() -> None:
    assert share_from_two_threads(BlockPool(4, 16), patience=10) == 2  # 1 + 1 + 1, and one is lost


def test_a_lost_update_frees_a_block_that_is_still_held() -> None:
    pool = BlockPool(4, 16)
    share_from_two_threads(pool, patience=10)
    pool.free([0])
    pool.free([0])
    assert (
        pool.num_free == 4
    )  # three holders came, two left: the third holds a block that others may now take


def test_a_lock_keeps_every_update() -> None:
    assert share_from_two_threads(LockedBlockPool(4, 16)) == 3


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("frequent_switches")
def test_many_threads_on_a_locked_pool_leave_it_whole() -> None:
    pool = LockedBlockPool(64, 16, enable_prefix_caching=True)
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for i in range(300):
                try:
                    blocks = pool.allocate(1 + (seed + i) % 20)
                except OutOfBlocks:
                    continue
                pool.share(blocks[:3])
                pool.free(blocks)
                pool.free(blocks[:3])
        except BaseException as error:  # noqa: BLE001  a thread's error is to fail the test
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    pool.check()
    assert pool.num_free == 64
