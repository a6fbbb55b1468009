"""Checks of chapter 4: reference counts and forks (4.1) and copy-on-write (4.2); the others are in `prefix.py`."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

import numpy as np

from coursekit.checks.answers import AnswerRaised, output
from coursekit.checks.chapter_02.memory import must_raise, num_free, told
from coursekit.checks.chapter_04 import prefix  # noqa: F401  registers its exercises
from coursekit.checks.framework import CHANGES, Arguments, Exercise, Wrong, as_list, difference, is_whole

FORK = Exercise(
    "4.1",
    answers=("BlockPool", "BlockTable"),
    misconceptions={
        "copies-data": "fork took new blocks, but it needs none: both tables name the same blocks.",
        "forgets-reference": "fork did not raise the reference count of every block by one.",
        "wrong-fork": "The forked table does not have the same blocks in the same order, or not the same number of "
        "tokens.",
        "same-list": "Both tables share one list object: a change to one changes the other.",
        "frees-shared": "A block's reference count is lower than the number of tables that name it: it is free "
        "too early.",
        "never-freed": "A block's reference count is higher than the number of tables that name it: it will never "
        "be freed.",
        "not-empty": "A released table must be empty, and releasing an empty table must do nothing.",
        "not-refused": "Sharing a free block, or freeing more references than there are, must raise ValueError.",
        "repeated-id": "free([b, b]) drops two holders of b at once. It is refused only if b has fewer than two, and b "
        "is free once, not twice, when none is left.",
        **CHANGES,
        "half-done": "A rejected call must change nothing, including the other blocks in it.",
    },
)


class _Family:
    """A pool of tables under test, and the expected reference count of each block."""

    def __init__(
        self, rng: Random, BlockPool: Any, BlockTable: Any, num_blocks: int, block_size: int
    ) -> None:
        self.pool, self.BlockTable = BlockPool(num_blocks, block_size), BlockTable
        self.num_blocks, self.block_size = num_blocks, block_size
        self.tables: dict[str, Any] = {}
        self.blocks: dict[str, list[int]] = {}
        self.tokens: dict[str, int] = {}
        self.story = [f"pool of {num_blocks} blocks of {block_size}"]
        # Allocate some blocks first, so that the ids of a table are not 0, 1, 2, …
        self.others = as_list(self.pool.allocate(rng.randint(1, 3)))

    def told(self) -> str:
        return told(self.story)

    def new(self, name: str, num_tokens: int) -> None:
        table = self.BlockTable(self.pool)
        table.append(num_tokens)
        self.tables[name], self.tokens[name] = table, num_tokens
        self.blocks[name] = as_list(table.blocks)
        self.story.append(f"{name}.append({num_tokens})")

    def fork(self, parent: str, child: str) -> None:
        before = num_free(self.pool)
        table = self.tables[parent].fork()
        self.story.append(f"{child} = {parent}.fork()")
        self.tables[child], self.tokens[child] = table, self.tokens[parent]
        self.blocks[child] = list(self.blocks[parent])
        if num_free(self.pool) < before:
            raise Wrong("copies-data", difference(f"{self.told()}: free blocks", before, num_free(self.pool)))
        self.equal(child)
        self.counts("forgets-reference")

    def release(self, name: str) -> None:
        self.tables.pop(name).release()
        self.story.append(f"{name}.release()")
        del self.blocks[name], self.tokens[name]
        self.counts("frees-shared")

    def equal(self, name: str, key: str = "wrong-fork") -> None:
        """The table must have the expected blocks and tokens."""
        got = (as_list(self.tables[name].blocks), self.tables[name].num_tokens)
        expected = (self.blocks[name], self.tokens[name])
        if got != expected:
            raise Wrong(key, difference(f"{self.told()}: ({name}.blocks, {name}.num_tokens)", expected, got))

    def counts(self, fewer: str, more: str = "never-freed") -> None:
        """Compare all reference counts: `fewer` is the misconception for a count too low, `more` for one too high."""
        held = [block for blocks in [self.others, *self.blocks.values()] for block in blocks]
        for block in sorted(set(held)):
            got, expected = self.pool.ref_count(block), held.count(block)
            if got != expected:
                call = f"{self.told()}: pool.ref_count({block})"
                key = fewer if is_whole(got) and got < expected else more
                raise Wrong(key, difference(call, expected, got))
        free, expected = num_free(self.pool), self.num_blocks - len(set(held))
        if free != expected:
            key = "frees-shared" if is_whole(free) and free > expected else more
            raise Wrong(key, difference(f"{self.told()}: free blocks", expected, free))


@FORK.part("fork", points=2)
def _fork(rng: Random, BlockPool: Any, BlockTable: Any) -> None:
    for size in (4, rng.randint(2, 9)):
        family = _Family(rng, BlockPool, BlockTable, 20, size)
        family.new("a", 2 * size + 1)
        family.fork("a", "b")
        family.fork("b", "c")
        family.fork("a", "d")
        # The table that continues takes a new block: only its own list may grow.
        family.tables["a"].append(2 * size)
        family.story.append(f"a.append({2 * size})")
        family.tokens["a"] += 2 * size
        family.blocks["a"] = as_list(family.tables["a"].blocks)
        for name in "bcd":
            family.equal(name, "same-list")
        family.counts("forgets-reference")


@FORK.part("release", points=3)
def _release(rng: Random, BlockPool: Any, BlockTable: Any) -> None:
    for size in (4, rng.randint(2, 9)):
        family = _Family(rng, BlockPool, BlockTable, 20, size)
        family.new("a", 2 * size + 1)
        for child in "bcd":
            family.fork("a", child)
        order = rng.sample("abcd", 4)
        for i, name in enumerate(order):
            table = family.tables[name]
            family.release(name)
            for other in order[i + 1 :]:
                family.equal(other, "same-list")
            if (as_list(table.blocks), table.num_tokens) != ([], 0):
                got = (as_list(table.blocks), table.num_tokens)
                raise Wrong(
                    "not-empty", difference(f"{family.told()}: its (blocks, num_tokens)", ([], 0), got)
                )
            table.release()
            family.story.append(f"{name}.release() again")
            family.counts("not-empty")
        # All free blocks can be allocated, each exactly once.
        ids = as_list(family.pool.allocate(num_free(family.pool)))
        if len(set(ids) | set(family.others)) != 20:
            raise Wrong("never-freed", difference(f"{family.told()}; allocate all: ids", 20, sorted(ids)))
    _repeated_id(BlockPool)


def _repeated_id(BlockPool: Any) -> None:
    """One call may drop both holders of a block."""
    pool = BlockPool(5, 4)
    first, second = as_list(pool.allocate(2))
    pool.share([first])
    call = f"blocks {first} (two holders) and {second} (one) of 5; pool.free({[first, second, first]})"
    given = Arguments(blocks=[first, second, first])
    try:
        pool.free(*given.passed("blocks"))
    except AnswerRaised as raised:
        if "NotImplementedError" in raised.bases:
            raise
        raise Wrong("repeated-id", f"{call} raised {raised.name}: {raised.message}.") from None
    given.check_unchanged(call)
    got = (pool.ref_count(first), num_free(pool), sorted(as_list(pool.allocate(5))))
    if got != (0, 5, [0, 1, 2, 3, 4]):
        told = f"{call}: (ref_count({first}), num_free, ids of allocate(5))"
        raise Wrong("repeated-id", difference(told, (0, 5, [0, 1, 2, 3, 4]), got))


@FORK.part("rejected calls change nothing", points=2)
def _refused(rng: Random, BlockPool: Any, BlockTable: Any) -> None:
    family = _Family(rng, BlockPool, BlockTable, 12, 4)
    family.new("a", 12)
    family.fork("a", "b")
    first, second, third = family.blocks["a"]
    free = next(block for block in range(12) if block not in [*family.blocks["a"], *family.others])
    attempts = [("share", [first, free]), ("free", [second, free]), ("free", [first, third, first, first])]
    for name, blocks in attempts:
        method = getattr(family.pool, name)
        call = f"{family.told()}; pool.{name}({blocks})"
        must_raise(partial(method, list(blocks)), "ValueError", "not-refused", call)
        family.story.append(f"pool.{name}({blocks}), rejected")
        family.counts("half-done", "half-done")
    family.release("a")
    family.release("b")


WRITE = Exercise(
    "4.2",
    answers=("append", "BlockPool", "BlockTable"),
    needs=("4.1",),
    misconceptions={
        "writes-shared": "The token was written into a block that another table also reads, so its text changed.",
        "copies-full": "A full block was copied. It will never be written again, so it can stay shared.",
        "copies-alone": "A block with a single holder was replaced: a single holder may write in place.",
        "not-copied": "The new block is missing the tokens of the old one: copy them.",
        "keeps-old": "A block has more references than tables that name it: it will never be freed. A table that "
        "replaces a block drops its reference to the old one.",
        "frees-too-much": "A reference was dropped for a block that a table still names: the block may be allocated "
        "again.",
        "block-per-token": "More blocks were taken than the token needs: one if the last block is full or shared, and "
        "otherwise none.",
        "wrong-slot": "The token is not in the slot that the table gives, or the returned slot is a different one.",
        "num-tokens": "num_tokens must grow by one with each token.",
        "not-refused": "When the pool is empty, append must let its OutOfBlocks propagate.",
        "block-not-needed": "append asked the empty pool for a block where it needs none: the table's last block has "
        "room and no other holder.",
        "half-done": "A failed append must leave tables, pool and memory unchanged.",
    },
)


class _Texts:
    """Tables that write into one memory, and the text that each of them should read."""

    def __init__(
        self, append: Any, BlockPool: Any, BlockTable: Any, num_blocks: int, block_size: int
    ) -> None:
        self.append_, self.pool, self.BlockTable = append, BlockPool(num_blocks, block_size), BlockTable
        self.num_blocks, self.size = num_blocks, block_size
        self.memory = np.full((num_blocks, block_size), -7)
        self.tables: dict[str, Any] = {}
        self.texts: dict[str, list[int]] = {}
        self.story = [f"{num_blocks} blocks of {block_size}"]
        self.next = 100

    def told(self) -> str:
        return told(self.story)

    def new(self, name: str, num_tokens: int) -> None:
        self.tables[name], self.texts[name] = self.BlockTable(self.pool), []
        self.write(name, num_tokens)

    def fork(self, parent: str, child: str) -> None:
        self.tables[child] = self.tables[parent].fork()
        self.texts[child] = list(self.texts[parent])
        self.story.append(f"{child} = {parent}.fork()")

    def write(self, name: str, num_tokens: int = 1) -> None:
        for _ in range(num_tokens):
            self._write_one(name)

    def _write_one(self, name: str) -> None:
        table, text, size = self.tables[name], self.texts[name], self.size
        before, free = as_list(table.blocks), num_free(self.pool)
        offset = len(text) % size
        shared = bool(offset) and self.pool.ref_count(before[-1]) > 1
        self.next += 1
        try:
            slot = self.append_(table, output(self.memory), self.next)
        except AnswerRaised as raised:
            if "OutOfBlocks" not in raised.bases or shared or not offset or free:
                raise
            call = (
                f"{self.told()}; append({name}), whose last block {before[-1]} has {offset} of {size} tokens"
            )
            raise Wrong("block-not-needed", f"{call}: raised OutOfBlocks.") from None
        text.append(self.next)
        self.story.append(f"append({name})")
        after = as_list(table.blocks)
        self._blocks(before, after, shared, offset)
        if table.num_tokens != len(text):
            raise Wrong("num-tokens", difference(f"{self.told()}: num_tokens", len(text), table.num_tokens))
        self._read(name, after, slot, shared)
        self._counts(before, after, free, shared or not offset)

    def _blocks(self, before: list[int], after: list[int], shared: bool, offset: int) -> None:
        """The table keeps its blocks, except a last block that had to be copied, and gains one if there was no room."""
        call, kept = f"{self.told()}: the table's blocks", before[: len(before) - shared]
        if after[: len(kept)] != kept:
            full = len(before) - bool(offset)
            key = "copies-full" if after[:full] != before[:full] else "copies-alone"
            raise Wrong(key, difference(call, kept, after))
        if shared and after == before:
            written = self.memory[before[-1], offset] == self.next
            key = "writes-shared" if written else "wrong-slot"
            raise Wrong(key, difference(f"{call}, the last one replaced", "another block", after))
        wanted = len(before) + (offset == 0)
        if len(after) != wanted:
            key = "block-per-token" if len(after) > wanted else "wrong-slot"
            raise Wrong(key, difference(f"{self.told()}: blocks in the table", wanted, len(after)))

    def _read(self, writer: str, after: list[int], slot: Any, copied: bool) -> None:
        """Every table reads its own text, and the writer also its new token at the returned slot."""
        for name, text in sorted(self.texts.items(), key=lambda item: item[0] == writer):
            blocks = as_list(self.tables[name].blocks)
            got = [int(self.memory[blocks[i // self.size], i % self.size]) for i in range(len(text))]
            if got == text:
                continue
            key = "writes-shared"
            if name == writer:
                key = "not-copied" if copied and got[-1] == text[-1] else "wrong-slot"
            raise Wrong(key, difference(f"{self.told()}: what {name} reads", text, got))
        expected = after[-1] * self.size + (len(self.texts[writer]) - 1) % self.size
        if not is_whole(slot) or slot != expected:
            raise Wrong("wrong-slot", difference(f"{self.told()}: the returned slot", expected, slot))

    def _counts(self, before: list[int], after: list[int], free: int, taken: bool) -> None:
        held = [block for table in self.tables.values() for block in as_list(table.blocks)]
        for block in sorted({*before, *after}):
            got, expected = self.pool.ref_count(block), held.count(block)
            if got != expected:
                call = f"{self.told()}: pool.ref_count({block})"
                key = "frees-too-much" if is_whole(got) and got < expected else "keeps-old"
                raise Wrong(key, difference(call, expected, got))
        now = num_free(self.pool)
        if now != free - taken:
            key = "block-per-token" if is_whole(now) and now < free - taken else "frees-too-much"
            raise Wrong(key, difference(f"{self.told()}: free blocks", free - taken, now))

    def state(self) -> list[Any]:
        tables = [(as_list(t.blocks), t.num_tokens) for t in self.tables.values()]
        counts = [self.pool.ref_count(block) for block in range(self.num_blocks)]
        return [tables, counts, num_free(self.pool), self.memory.tolist()]

    def refused(self, name: str) -> None:
        """The pool is empty: append must raise and change nothing."""
        before = self.state()
        call = f"{self.told()}; append({name}) in an empty pool"
        must_raise(
            partial(self.append_, self.tables[name], output(self.memory), 99),
            "OutOfBlocks",
            "not-refused",
            call,
        )
        self.story.append(f"append({name}), rejected")
        after = self.state()
        parts = ("(blocks, num_tokens) of the tables", "reference counts", "free blocks", "memory")
        for part, was, now in zip(parts, before, after, strict=True):
            if was != now:
                raise Wrong("half-done", difference(f"{self.told()}: {part}", was, now))


@WRITE.part("one table alone", points=2)
def _alone(rng: Random, append: Any, BlockPool: Any, BlockTable: Any) -> None:
    for size in (4, rng.randint(2, 7)):
        texts = _Texts(append, BlockPool, BlockTable, 5, size)  # all are used, so block 0 is, too
        texts.new("a", 2 * size + 1)
        texts.new("b", 1)
        texts.write("a", size)


@WRITE.part("after a fork", points=4)
def _after_fork(rng: Random, append: Any, BlockPool: Any, BlockTable: Any) -> None:
    for size in (4, rng.randint(3, 7)):
        texts = _Texts(append, BlockPool, BlockTable, 24, size)
        texts.new("a", size + 2)
        texts.fork("a", "b")
        for name in "abaabb":
            texts.write(name)
        texts = _Texts(append, BlockPool, BlockTable, 24, size)
        texts.new("a", 2 * size)  # a full last block is shared, too, and is not copied
        texts.fork("a", "b")
        texts.write("b", 2)
        texts.write("a", 1)
        texts.fork("b", "c")
        texts.fork("b", "d")
        for _ in range(4 * size):
            texts.write(rng.choice("abcd"))


@WRITE.part("when the pool is empty", points=2)
def _dry(rng: Random, append: Any, BlockPool: Any, BlockTable: Any) -> None:
    size = rng.randint(3, 6)
    texts = _Texts(append, BlockPool, BlockTable, 3, size)
    texts.new("a", 2 * size)
    texts.fork("a", "b")
    texts.write("a", 1)
    texts.refused("b")  # full last block, and no free block
    texts.fork("a", "c")
    texts.refused("c")  # shared partial block, and no free block for the copy
    texts.tables.pop("c").release()
    texts.texts.pop("c")
    texts.story.append("c.release()")
    texts.write("a", size - 1)  # the only holder again: no block is needed
