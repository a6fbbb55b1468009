"""The pool: every failure leaves it as it was, nothing is lost, and size does not matter."""

from collections.abc import Callable

import pytest

from paged_ref.blocks.block_pool import BlockPool, OutOfBlocks
from paged_ref.sizing import blocks_for


def state(pool: BlockPool) -> tuple[list[int], list[int], int]:
    cached = len(pool.prefix_cache) if pool.prefix_cache is not None else 0
    return pool.free_blocks(), [pool.ref_count(block) for block in range(pool.num_blocks)], cached


def cached_pool(num_blocks: int, num_cached: int) -> BlockPool:
    """A pool whose first blocks are free and cached, each on its own, freed in the order of their ids."""
    pool = BlockPool(num_blocks, 1, enable_prefix_caching=True)
    blocks = pool.allocate(num_cached)
    for block in blocks:
        pool.prefix_cache.publish(None, [block], None, block)  # type: ignore[union-attr]
    pool.free(blocks)
    return pool


# ---- what it does


def test_a_new_pool_is_free_and_hands_out_each_block_once() -> None:
    pool = BlockPool(5, 16)
    assert (pool.num_free, pool.num_used) == (5, 0)
    assert sorted(pool.allocate(5)) == [0, 1, 2, 3, 4]
    assert (pool.num_free, pool.num_used) == (0, 5)
    pool.check()


def test_used_and_free_are_always_all() -> None:
    pool = BlockPool(10, 16)
    first = pool.allocate(4)
    pool.share(first[:2])
    assert pool.num_used == 4, "a block that is held twice is one block"
    pool.free(first)
    assert pool.num_used == 2
    pool.free(first[:2])
    assert pool.num_free == pool.num_blocks
    pool.check()


def test_a_shared_block_is_free_when_its_last_holder_goes() -> None:
    pool = BlockPool(2, 16)
    (block,) = pool.allocate(1)
    pool.share([block, block])
    for holders in (3, 2, 1):
        assert pool.ref_count(block) == holders
        pool.free([block])
    assert pool.ref_count(block) == 0
    assert pool.num_free == 2


def test_blocks_freed_first_are_used_first() -> None:
    pool = BlockPool(6, 16)
    blocks = pool.allocate(4)
    pool.free(reversed(blocks))
    assert pool.allocate(4) == blocks[::-1]


def test_least_recently_used_cached_blocks_are_evicted_first() -> None:
    pool = cached_pool(5, 3)
    assert pool.free_blocks() == [3, 4, 0, 1, 2], "what is worth nothing first, then the oldest"
    pool.share([0])
    pool.free([0])  # used again, so now it is the youngest
    assert pool.free_blocks() == [3, 4, 1, 2, 0]
    assert pool.allocate(3) == [3, 4, 1]
    assert 1 not in pool.prefix_cache  # type: ignore[operator]
    pool.check()


def test_a_hit_takes_a_cached_block_from_the_middle_of_the_queue() -> None:
    pool = cached_pool(5, 3)
    pool.share([1])
    assert pool.free_blocks() == [3, 4, 0, 2]
    assert pool.ref_count(1) == 1
    pool.check()


def test_what_follows_an_evicted_block_becomes_worthless() -> None:
    """A child cannot be found without its parent, so it must not take the place of blocks that can."""
    pool = BlockPool(4, 1, enable_prefix_caching=True)
    cache = pool.prefix_cache
    assert cache is not None
    parent, child, other = pool.allocate(3)
    entry = cache.publish(None, [1], None, parent)
    cache.publish(entry, [2], None, child)
    cache.publish(None, [3], None, other)
    pool.free([parent])
    pool.free([other])
    pool.free([child])  # not tail first: its parent will go before it
    assert pool.allocate(2) == [3, parent]
    assert len(cache) == 1
    assert pool.free_blocks() == [child, other]
    pool.check()


# ---- what it refuses, unchanged


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda pool: pool.free([0, 0]), "double free of block 0"),
        (lambda pool: pool.free([1, 5]), "double free of block 5"),
        (lambda pool: pool.free([0, -1]), "unknown block -1"),
        (lambda pool: pool.free([0, 6]), "unknown block 6"),
        (lambda pool: pool.share([0, 5]), "block 5 is free"),
        (lambda pool: pool.share([0, 99]), "unknown block 99"),
        (lambda pool: pool.allocate(-1), "cannot allocate -1"),
        (lambda pool: pool.ref_count(6), "unknown block 6: the pool has blocks 0 to 5"),
    ],
)
def test_misuse_raises_and_changes_nothing(wrong: Callable[[BlockPool], object], message: str) -> None:
    pool = BlockPool(6, 16)
    pool.allocate(3)
    before = state(pool)
    with pytest.raises(ValueError, match=message):
        wrong(pool)
    assert state(pool) == before
    pool.check()


def test_over_allocation_takes_nothing() -> None:
    pool = BlockPool(6, 16)
    pool.allocate(2)
    before = state(pool)
    with pytest.raises(OutOfBlocks, match="5 blocks wanted, 4 of 6 are free"):
        pool.allocate(5)
    assert state(pool) == before
    assert len(pool.allocate(4)) == 4


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "8", None])
@pytest.mark.parametrize("name", ["num_blocks", "block_size"])
def test_sizes_that_are_not_positive_whole_numbers(name: str, size: object) -> None:
    sizes = {"num_blocks": 4, "block_size": 16, name: size}
    with pytest.raises(ValueError, match=name):
        BlockPool(**sizes)  # type: ignore[arg-type]


def test_a_pool_of_one_block_works() -> None:
    pool = BlockPool(1, 1)
    assert pool.allocate(1) == [0]
    with pytest.raises(OutOfBlocks):
        pool.allocate(1)
    pool.free([0])
    pool.check()


# ---- check() sees a damaged pool


@pytest.mark.parametrize(
    "damage",
    [
        lambda pool: pool._ref_counts.__setitem__(0, 0),  # held, says free: a count left at 0 on allocation
        lambda pool: pool._ref_counts.__setitem__(5, 1),  # free, says held: a block leaked
        lambda pool: pool._ref_counts.__setitem__(0, -1),
        lambda pool: setattr(pool._free, "_length", 2),
        lambda pool: pool._free.remove(5),  # neither held nor free: a block lost
        lambda pool: pool._free.push_tail(0),  # held and free
    ],
)
def test_check_finds_damage(damage: Callable[[BlockPool], object]) -> None:
    pool = BlockPool(6, 16)
    pool.allocate(3)
    pool.check()
    damage(pool)
    with pytest.raises(AssertionError):
        pool.check()


# ---- it scales


class CountingList(list[int]):
    """Counts how often its items are read or written."""

    touched = 0

    def __getitem__(self, i):  # type: ignore[no-untyped-def, override]
        CountingList.touched += 1
        return super().__getitem__(i)

    def __setitem__(self, i, value):  # type: ignore[no-untyped-def, override]
        CountingList.touched += 1
        super().__setitem__(i, value)


def touched_by_a_round(num_blocks: int) -> int:
    pool = cached_pool(num_blocks, 40)
    pool._ref_counts = CountingList(pool._ref_counts)
    pool._free._next = CountingList(pool._free._next)
    pool._free._previous = CountingList(pool._free._previous)
    CountingList.touched = 0
    blocks = pool.allocate(20)
    pool.share(blocks[:10])
    pool.share([20, 30])  # cached, from the middle of the queue
    pool.free(blocks)
    pool.free(blocks[:10])
    pool.free([30, 20])
    return CountingList.touched


def test_an_operation_costs_the_same_in_a_large_pool_as_in_a_small_one() -> None:
    assert touched_by_a_round(100) == touched_by_a_round(100_000) > 0


def test_a_pool_of_a_million_blocks_holds_flat_lists_only() -> None:
    """No object per block: how long it takes to build is measured by `bench pool`."""
    pool = BlockPool(10**6, 16)
    assert len(pool.allocate(10)) == 10
    parts = (*vars(pool).values(), *vars(pool._free).values())
    assert sum(len(part) for part in parts if isinstance(part, list)) <= 3 * 10**6 + 2


def test_a_block_more_is_needed_only_when_the_last_is_full() -> None:
    """The rule behind `len % block_size == 1`, in words: the first token that does not fit brings a block."""
    assert [blocks_for(n, 4) for n in range(10)] == [0, 1, 1, 1, 1, 2, 2, 2, 2, 3]
