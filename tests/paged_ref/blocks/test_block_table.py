"""The table: slots, growth at the boundary, forks, copy-on-write, moves between pools."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paged_ref.blocks.block_pool import BlockPool, OutOfBlocks
from paged_ref.blocks.block_table import BlockTable, blocks_to_append_each, move_tables


def table_of(pool: BlockPool, num_tokens: int) -> BlockTable:
    table = BlockTable(pool)
    table.append(num_tokens)
    return table


def test_a_slot_is_block_times_size_plus_offset() -> None:
    table = BlockTable(BlockPool(10, 4))
    table.pool.allocate(3)
    table.append(10)
    table.blocks[:] = [7, 1, 4]  # the drawing at the top of block_table.py
    assert table.slots(0, 10) == [28, 29, 30, 31, 4, 5, 6, 7, 16, 17]
    assert [table.slot(i) for i in range(10)] == table.slots(0, 10)
    assert table.slots(3, 6) == [31, 4, 5]


@given(st.integers(1, 9), st.lists(st.integers(0, 20), max_size=6))
def test_append_in_any_portions_gives_the_same_slots_as_at_once(block_size: int, portions: list[int]) -> None:
    total = sum(portions)
    table, at_once = BlockTable(BlockPool(200, block_size)), BlockTable(BlockPool(200, block_size))
    slots = [slot for portion in portions for slot in table.append(portion)]
    assert slots == at_once.append(total) == table.slots(0, total)
    table.check()


def test_a_block_is_taken_for_the_first_token_that_does_not_fit_and_not_before() -> None:
    table = BlockTable(BlockPool(10, 4))
    held = []
    for _ in range(9):
        table.append(1)
        held.append(len(table.blocks))
    assert held == [1, 1, 1, 1, 2, 2, 2, 2, 3]


def test_no_block_is_lost_when_the_length_is_a_multiple_of_the_block_size() -> None:
    pool = BlockPool(4, 4)
    for length in (4, 8, 16, 3, 5, 16):
        table = table_of(pool, length)
        assert pool.num_used == -(-length // 4)
        table.release()
        assert pool.num_free == 4
        pool.check()


def test_append_fails_whole() -> None:
    pool = BlockPool(3, 4)
    table = table_of(pool, 6)
    before = (list(table.blocks), table.num_tokens, pool.free_blocks())
    with pytest.raises(OutOfBlocks):
        table.append(7)
    with pytest.raises(ValueError, match="-1"):
        table.append(-1)
    assert (table.blocks, table.num_tokens, pool.free_blocks()) == before
    table.append(6)


@pytest.mark.parametrize("i", [-1, 6, 7])
def test_a_token_without_a_slot(i: int) -> None:
    table = table_of(BlockPool(4, 4), 6)
    with pytest.raises(IndexError, match=f"token {i} has no slot: the table has 6 tokens"):
        table.slot(i)
    with pytest.raises(IndexError, match="6 tokens"):
        table.slots(min(i, 0), max(i + 1, 0))


def test_blocks_are_freed_tail_first() -> None:
    pool = BlockPool(8, 1)
    table = table_of(pool, 3)
    blocks = list(table.blocks)
    table.release()
    assert pool.free_blocks()[:3] == blocks[::-1]
    table.release()  # a second time is harmless
    pool.check()


# ---- fork and copy-on-write


def test_a_fork_takes_no_block() -> None:
    pool = BlockPool(8, 4)
    table = table_of(pool, 10)
    child = table.fork()
    assert (child.blocks, child.num_tokens, pool.num_used) == (table.blocks, 10, 3)
    assert child.blocks is not table.blocks
    table.release()
    child.check()
    assert pool.num_used == 3, "the blocks live as long as one table names them"
    child.release()
    assert pool.num_free == 8


def test_only_the_diverging_block_is_copied_and_only_once() -> None:
    pool = BlockPool(8, 4)
    table = table_of(pool, 10)
    shared = list(table.blocks)
    child = table.fork()
    child.append(1)
    assert child.blocks[:2] == shared[:2]
    assert child.take_copies() == [(shared[2], child.blocks[2])]
    assert child.take_copies() == []
    table.append(1)  # now its only holder: written in place
    assert table.blocks == shared
    assert table.take_copies() == []
    child.append(1)
    assert child.take_copies() == []


def test_full_shared_blocks_are_never_copied() -> None:
    pool = BlockPool(8, 4)
    table = table_of(pool, 8)
    child = table.fork()
    child.append(1)
    table.append(1)
    assert child.blocks[:2] == table.blocks[:2]
    assert child.blocks[2] != table.blocks[2]
    assert child.take_copies() == table.take_copies() == []


def test_a_fork_of_the_first_tokens() -> None:
    pool = BlockPool(8, 4)
    table = table_of(pool, 10)
    child = table.fork(6)
    assert (child.blocks, child.num_tokens) == (table.blocks[:2], 6)
    child.append(1)  # inside a block that the parent has filled
    assert child.take_copies() == [(table.blocks[1], child.blocks[1])]
    with pytest.raises(ValueError, match="first 11 tokens of a table of 10"):
        table.fork(11)


def test_a_fork_that_inherits_a_cached_block_unfiles_it_before_writing() -> None:
    """The last holder writes in place, so the block no longer is what the prefix cache says it is."""
    pool = BlockPool(4, 4, enable_prefix_caching=True)
    cache = pool.prefix_cache
    assert cache is not None
    table = table_of(pool, 4)
    cache.publish(None, [1, 2, 3, 4], None, table.blocks[0])
    child = table.fork(2)
    table.release()
    child.append(1)
    assert child.take_copies() == []
    assert cache.match([1, 2, 3, 4, 5], 4) == []
    pool.check()


def test_a_fork_waits_for_pending_copies() -> None:
    table = table_of(BlockPool(8, 4), 2)
    child = table.fork()
    child.append(1)
    with pytest.raises(RuntimeError, match="pending copies"):
        child.fork()
    child.take_copies()
    child.fork()


@given(st.integers(1, 5), st.integers(0, 12), st.lists(st.booleans(), min_size=1, max_size=6))
def test_what_one_token_each_costs_is_foretold_exactly(
    block_size: int, num_tokens: int, append_first: list[bool]
) -> None:
    pool = BlockPool(100, block_size)
    parent = table_of(pool, num_tokens)
    tables = [parent, *(parent.fork() for _ in append_first)]
    for table, first in zip(tables[1:], append_first, strict=True):
        if first:  # these have diverged already
            table.append(1)
    foretold = blocks_to_append_each(tables)
    before = pool.num_free
    for table in tables:
        assert table.blocks_to_append(1) <= 1
        table.append(1)
    assert before - pool.num_free == foretold


def test_adopting_a_prefix_shares_it() -> None:
    pool = BlockPool(8, 4)
    first = table_of(pool, 8)
    second = BlockTable(pool)
    second.adopt(first.blocks)
    assert (second.num_tokens, pool.num_used) == (8, 2)
    with pytest.raises(ValueError, match="already has 2 blocks"):
        second.adopt(first.blocks)


# ---- moving between pools


def test_a_move_keeps_sharing_and_says_what_to_copy() -> None:
    pool, host = BlockPool(8, 4), BlockPool(8, 4)
    table = table_of(pool, 10)
    child = table.fork()
    child.append(1)
    child.take_copies()
    old = [*table.blocks, child.blocks[2]]
    copies = move_tables([table, child], host)
    assert [source for source, _ in copies] == old
    moved = dict(copies)
    assert table.blocks == [moved[block] for block in old[:3]]
    assert child.blocks == [*table.blocks[:2], moved[old[3]]]
    assert (pool.num_used, host.num_used) == (0, 4)
    assert host.ref_count(table.blocks[0]) == 2
    for checked in (pool, host, table, child):
        checked.check()


def test_a_move_without_room_changes_nothing() -> None:
    pool, host = BlockPool(8, 4), BlockPool(2, 4)
    table = table_of(pool, 10)
    before = (list(table.blocks), pool.free_blocks(), host.free_blocks())
    with pytest.raises(OutOfBlocks):
        move_tables([table], host)
    assert (table.blocks, pool.free_blocks(), host.free_blocks()) == before
    assert table.pool is pool


def test_a_move_waits_for_pending_copies() -> None:
    pool = BlockPool(8, 4)
    child = table_of(pool, 2).fork()
    child.append(1)
    with pytest.raises(RuntimeError, match="pending copies"):
        move_tables([child], BlockPool(8, 4))


def test_check_finds_a_block_that_is_named_but_free() -> None:
    pool = BlockPool(8, 4)
    table = table_of(pool, 6)
    pool.free([table.blocks[1]])
    with pytest.raises(AssertionError, match="which is free"):
        table.check()
