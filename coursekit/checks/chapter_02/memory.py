"""Checks of chapter 2 for memory ownership: the block pool (2.2) and the block table (2.3)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from coursekit.checks.answers import AnswerRaised, Proxy, show
from coursekit.checks.framework import (
    CHANGES,
    SHARED,
    Arguments,
    Exercise,
    Wrong,
    as_list,
    difference,
    is_whole,
    keep_apart,
)

POOL = Exercise(
    "2.2",
    answers=("BlockPool",),
    misconceptions={
        "bad-ids": "allocate(n) must return n different ids between 0 and num_blocks - 1.",
        "live-block": "The pool handed out a block that is still in use.",
        "refuses": "allocate raises OutOfBlocks although enough blocks are free.",
        "miscounted": "num_free is not the number of blocks that can still be allocated.",
        "leak": "Freed blocks cannot be allocated again: the pool would shrink with every sequence that finishes.",
        "not-refused": "allocate must raise OutOfBlocks when too few blocks are free.",
        "half-done": "A failed allocation must take nothing; otherwise the blocks taken before the error are lost.",
        "double-free": "A double free was accepted: the block would be given to two sequences at once.",
        "wrong-exception": "The call was refused, but with another exception than ValueError.",
        "unknown-id": "An id that was never handed out, or that the pool does not have, must be refused with "
        "ValueError. A negative id is such an id, although Python's lists accept it as an index.",
        **CHANGES,
        **SHARED,
        "half-freed": "A rejected free must change nothing, even if other ids in the same call are valid.",
    },
)


class _Model:
    """A pool under test, and the blocks that the check has allocated from it."""

    def __init__(self, make: Any, num_blocks: int, block_size: int = 16) -> None:
        self.pool = make(num_blocks, block_size)
        self.num_blocks = num_blocks
        self.out: list[int] = []
        self.story = [f"pool = BlockPool({num_blocks}, {block_size})"]

    @property
    def num_free(self) -> int:
        return self.num_blocks - len(self.out)

    def told(self) -> str:
        return told(self.story)

    def allocate(self, n: int) -> list[int]:
        self.story.append(f"pool.allocate({n})")
        try:
            ids = as_list(self.pool.allocate(n))
        except AnswerRaised as raised:
            if "OutOfBlocks" in raised.bases:
                raise Wrong(
                    "refuses", f"{self.told()}: raised OutOfBlocks, but {self.num_free} blocks are free."
                ) from None
            raise
        known = all(is_whole(block) and 0 <= block < self.num_blocks for block in ids)
        if len(ids) != n or not known or len(set(ids)) != n:
            raise Wrong("bad-ids", f"{self.told()}: expected {n} ids, got {show(ids)}.")
        if both := sorted(set(ids) & set(self.out)):
            raise Wrong(
                "live-block", f"{self.told()}: got {show(ids)}, but block {both[0]} is already allocated."
            )
        self.out += ids
        return ids

    def free(self, ids: list[int]) -> None:
        self.story.append(f"pool.free({show(ids)})")
        given = Arguments(blocks=list(ids))
        self.pool.free(*given.passed("blocks"))
        given.check_unchanged(self.told())
        self.out = [block for block in self.out if block not in ids]

    def counted(self, key: str = "miscounted") -> None:
        got = num_free(self.pool)
        if got == self.num_free:
            return
        call = f"{self.told()}; pool.num_free"
        if key == "leak" and not self._can_allocate(self.num_free):
            call += f", and pool.allocate({self.num_free}) was refused"
        else:
            key = "miscounted" if key == "leak" else key
        raise Wrong(key, difference(call, self.num_free, got))

    def _can_allocate(self, n: int) -> bool:
        try:
            return len(as_list(self.pool.allocate(n))) == n
        except AnswerRaised:
            return False


def num_free(pool: Any) -> Any:
    """The number, whether the answer made it a property or a method."""
    value = pool.num_free
    return value() if isinstance(value, Proxy) else value


@POOL.part("allocate", points=3)
def _allocate(rng: Random, BlockPool: Any) -> None:
    for num_blocks in (8, rng.randint(9, 40)):
        model = _Model(BlockPool, num_blocks)
        model.counted()
        for n in (3, 0, 1, 2):
            model.allocate(n)
        model.counted()
        model.allocate(model.num_free)
        model.counted()


def _take_turns(BlockPool: Any, sizes: tuple[int, ...]) -> None:
    models = [_Model(BlockPool, size) for size in sizes]
    for n in (2, 1, 3):
        for model in models:
            model.allocate(n)
            model.counted()
    for model in models:
        model.free(model.out[:2])
        model.counted()


@POOL.part("free, and allocate again", points=3)
def _free(rng: Random, BlockPool: Any) -> None:
    model = _Model(BlockPool, 8)
    first = model.allocate(3)
    model.allocate(2)
    model.counted()
    model.free(first)
    model.counted("leak")
    model.allocate(model.num_free)
    model = _Model(BlockPool, rng.randint(12, 30))
    for _ in range(60):
        if rng.random() < 0.5:
            model.allocate(rng.randint(0, model.num_free))
        elif model.out:
            model.free(rng.sample(model.out, rng.randint(1, len(model.out))))
        model.counted("leak")
    model.allocate(model.num_free)
    keep_apart(lambda: _take_turns(BlockPool, (8,)), lambda: _take_turns(BlockPool, (9, 7)))


@POOL.part("rejected calls change nothing", points=2)
def _refuse(rng: Random, BlockPool: Any) -> None:
    model = _Model(BlockPool, 8)
    ids = model.allocate(rng.choice([5, 6]))
    model.counted()
    n = model.num_free + 1
    call = f"{model.told()}; pool.allocate({n})"
    must_raise(partial(model.pool.allocate, n), "OutOfBlocks", "not-refused", call)
    model.story.append(f"pool.allocate({n}), rejected")
    model.counted("half-done")
    model.allocate(model.num_free)
    model.free(ids[:2])
    model.counted("leak")
    for twice in ([ids[0]], [ids[2], ids[2]], [ids[3], ids[1]]):
        call = f"{model.told()}; pool.free({twice})"
        must_raise(
            partial(model.pool.free, list(twice)), "ValueError", "double-free", call, "wrong-exception"
        )
        model.story.append(f"pool.free({twice}), rejected")
        model.counted("half-freed")
    live = model.out[0]
    for unknown in ([8], [-1], [live, 99], [live, -8]):
        call = f"{model.told()}; pool.free({unknown})"
        must_raise(partial(model.pool.free, list(unknown)), "ValueError", "unknown-id", call)
        model.story.append(f"pool.free({unknown}), rejected")
        model.counted("half-freed")


def must_raise(call: Callable[[], Any], name: str, key: str, text: str, other: str = "") -> None:
    """The call must raise this exception or a subclass; otherwise `key` is wrong, or `other` for another exception."""
    try:
        got = call()
    except AnswerRaised as raised:
        if name in raised.bases:
            return
        if "NotImplementedError" in raised.bases:
            raise
        raise Wrong(other or key, f"{text}: expected {name}, got {raised.name}: {raised.message}") from None
    raise Wrong(key, f"{text}: expected {name}, got {show(got)}.")


def told(story: list[str], last: int = 5) -> str:
    """The last of the calls that led here."""
    return "; ".join(["…"] * (len(story) > last) + story[-last:])


TABLE = Exercise(
    "2.3",
    answers=("BlockTable", "BlockPool"),
    needs=("2.1", "2.2"),
    misconceptions={
        "early": "A new block is taken one token too early: a full last block is no reason to take another, since "
        "the sequence may end here.",
        "late": "The new block comes too late: the table has fewer blocks than its tokens need.",
        "block-per-token": "Every append takes a block, even when the last one has room.",
        "wrong-count": "The table does not have as many blocks as its tokens need.",
        "num-tokens": "num_tokens must count every appended token.",
        "not-from-pool": "The table's blocks must be allocated from the pool, so that the pool knows they are in use.",
        "lost-blocks": "The pool has given out more blocks than the tables hold: the others are lost.",
        "wrong-slots": "The blocks are right, but the slots are not: token i is in slot blocks[i // B] * B + i % B.",
        "not-refused": "When the pool has too few blocks, append must let its OutOfBlocks propagate.",
        "half-done": "A failed append must leave the table and the pool unchanged.",
        **SHARED,
    },
)


class _Table:
    """A table under test, and the tokens that the check has appended to it."""

    def __init__(self, BlockTable: Any, pool: Any, block_size: int, others: int = 0) -> None:
        self.table, self.pool, self.block_size = BlockTable(pool), pool, block_size
        self.num_tokens = 0
        self.appended: list[int] = []

    def told(self) -> str:
        steps = ", ".join(map(str, self.appended[-6:]))
        return f"block size {self.block_size}, after appending {'…, ' * (len(self.appended) > 6)}{steps}"

    def append(self, n: int) -> list[int]:
        before = self.num_tokens
        self.num_tokens += n
        self.appended.append(n)
        try:
            slots = as_list(self.table.append(n))
        except AnswerRaised as raised:
            if "IndexError" in raised.bases:
                self.right_count()
            raise
        self.right_count()
        blocks, size = as_list(self.table.blocks), self.block_size
        expected = [blocks[i // size] * size + i % size for i in range(before, self.num_tokens)]
        if slots != expected:
            raise Wrong(
                "wrong-slots", difference(f"{self.told()}, blocks {show(blocks)}: slots", expected, slots)
            )
        return slots

    def right_count(self) -> None:
        tokens, size = self.num_tokens, self.block_size
        needed, got = -(-tokens // size), len(as_list(self.table.blocks))
        if got != needed:
            key = "late" if got < needed else "wrong-count"
            if needed < got == sum(-(-n // size) for n in self.appended):
                key = "block-per-token"
            elif needed < got == tokens // size + 1:
                key = "early"
            raise Wrong(key, difference(f"{self.told()}: blocks in the table", needed, got))
        if self.table.num_tokens != tokens:
            raise Wrong("num-tokens", difference(f"{self.told()}: num_tokens", tokens, self.table.num_tokens))


def _held(tables: list[_Table], num_blocks: int) -> None:
    """Exactly the blocks of the tables are allocated from the pool."""
    blocks = [block for one in tables for block in as_list(one.table.blocks)]
    told = " and ".join(one.told() for one in tables)
    if len(set(blocks)) != len(blocks):
        raise Wrong("not-from-pool", f"{told}: a block occurs twice in {show(blocks)}.")
    free = num_free(tables[0].pool)
    if free != num_blocks - len(blocks):
        lost = is_whole(free) and free < num_blocks - len(blocks)
        raise Wrong(
            "lost-blocks" if lost else "not-from-pool",
            difference(f"{told}: free blocks", num_blocks - len(blocks), free),
        )


@TABLE.part("one token at a time", points=3)
def _append_one(rng: Random, BlockTable: Any, BlockPool: Any) -> None:
    for block_size in (4, rng.randint(3, 9)):
        one = _Table(BlockTable, BlockPool(8, block_size), block_size)
        for _ in range(3 * block_size + 1):
            one.append(1)
        _held([one], 8)


def _turns(BlockTable: Any, BlockPool: Any, num_tables: int) -> None:
    pool = BlockPool(20, 4)
    tables = [_Table(BlockTable, pool, 4) for _ in range(num_tables)]
    for n in (8, 1, 3, 5):
        for one in tables:
            one.append(n)
            _held(tables, 20)


@TABLE.part("many at once, in two tables", points=3)
def _append_many(rng: Random, BlockTable: Any, BlockPool: Any) -> None:
    keep_apart(lambda: _turns(BlockTable, BlockPool, 1), lambda: _turns(BlockTable, BlockPool, 2))
    for block_size in (4, rng.randint(3, 16)):
        pool = BlockPool(40, block_size)
        tables = [_Table(BlockTable, pool, block_size) for _ in range(2)]
        for n in (2 * block_size, 1, block_size - 1, 0, *(rng.randint(1, block_size + 2) for _ in range(6))):
            for one in tables:
                one.append(n)
                _held(tables, 40)


@TABLE.part("when the pool is empty", points=2)
def _append_dry(rng: Random, BlockTable: Any, BlockPool: Any) -> None:
    size = rng.randint(3, 8)
    one = _Table(BlockTable, BlockPool(4, size), size)
    one.append(2 * size - 1)
    before = (as_list(one.table.blocks), one.table.num_tokens, num_free(one.pool))
    n = 2 * size + 2
    call = f"{one.told()}; append({n}) in a pool of 4"
    must_raise(partial(one.table.append, n), "OutOfBlocks", "not-refused", call)
    after = (as_list(one.table.blocks), one.table.num_tokens, num_free(one.pool))
    if after != before:
        call = f"{one.told()}; append({n}) rejected: (blocks, num_tokens, num_free)"
        raise Wrong("half-done", difference(call, before, after))
    one.append(2 * size + 1)
    _held([one], 4)
