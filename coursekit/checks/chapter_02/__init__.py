"""Checks of chapter 2: slots (2.1) and admission (2.4); pool and table are in `memory.py`."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from coursekit.checks.chapter_02 import memory  # noqa: F401  registers its exercises
from coursekit.checks.framework import CHANGES, Arguments, Exercise, Wrong, difference, is_whole

SLOT = Exercise(
    "2.1",
    answers=("slot",),
    misconceptions={
        "logical-for-physical": "The logical block number was used as the physical one: look the physical block up "
        "in `blocks`.",
        "swapped": "Quotient and remainder are swapped: i // block_size is the index in the table, i % block_size "
        "the offset.",
        "offset-lost": "The slot is always the first of its block: add the token's offset within the block.",
        "block-not-scaled": "A block number is not a slot number: block b begins at slot b * block_size.",
        "other-slot": "The slot is wrong.",
        **CHANGES,
    },
)


# The slot that each misconception gives; it is named if it explains every slot of a table.
_WRONG_SLOTS: dict[str, Callable[[list[int], int, int], int]] = {
    "logical-for-physical": lambda blocks, i, size: i,
    "swapped": lambda blocks, i, size: blocks[i % size] * size + i // size,
    "offset-lost": lambda blocks, i, size: blocks[i // size] * size,
    "block-not-scaled": lambda blocks, i, size: blocks[i // size] + i % size,
}


@SLOT.part("slots through a shuffled table", points=4)
def _slots(rng: Random, slot: Any) -> None:
    for block_size in (
        4,
        16,
        1,
        5,
        rng.randint(2, 32),
    ):  # 4 first: with it every misconception returns valid integers
        blocks = rng.sample(range(8, 60), 7)
        tokens = range(7 * block_size)
        right = [blocks[i // block_size] * block_size + i % block_size for i in tokens]
        got = [slot(list(blocks), i, block_size) for i in tokens]
        first = next((i for i in tokens if not is_whole(got[i]) or got[i] != right[i]), None)
        if first is not None:
            explained = (
                key
                for key, rule in _WRONG_SLOTS.items()
                if block_size == 4 and got == [rule(blocks, i, block_size) for i in tokens]
            )
            call = f"slot({blocks}, {first}, {block_size})"
            raise Wrong(next(explained, "other-slot"), difference(call, right[first], got[first]))
        given = Arguments(blocks=list(blocks))
        slot(*given.passed("blocks"), 6 * block_size, block_size)
        given.check_unchanged(f"slot({blocks}, {6 * block_size}, {block_size})")


ADMIT = Exercise(
    "2.4",
    answers=("admit",),
    misconceptions={
        "floor": "The prompt's blocks were rounded down: a partly filled last block is a block, too.",
        "no-growth": "No block is left for growth: the first generated token may need one.",
        "never-is-later": "A request that can never fit was told to wait: it would wait forever.",
        "later-is-never": "A request was rejected for good although it only does not fit *now*.",
        "never-too-late": "For NEVER, count everything that a request needs: the block to grow into, and the "
        "watermark, which stays free even in an empty pool.",
        "watermark-ignored": "The watermark is ignored: those blocks must stay free for the running sequences.",
        "too-strict": "A request that fits exactly was not admitted: exactly enough blocks are enough.",
        "other-decision": "The decision is wrong.",
    },
)


def _decide(needed: int, free: int, total: int) -> str:
    return "NEVER" if needed > total else "OK" if needed <= free else "LATER"


def _decide_by(least: int, needed: int, free: int, total: int) -> str:
    """Decide NEVER by one number of blocks and OK by another."""
    return "NEVER" if least > total else "OK" if needed <= free else "LATER"


_Case = tuple[int, int, int, int, int]
_WRONG_DECISIONS: list[tuple[str, Callable[[int, int, int, int, int], str]]] = [
    ("floor", lambda p, f, n, b, w: _decide(p // b + 1 + w, f, n)),
    ("no-growth", lambda p, f, n, b, w: _decide(-(-p // b) + w, f, n)),
    ("never-is-later", lambda p, f, n, b, w: "OK" if -(-p // b) + 1 + w <= f else "LATER"),
    ("later-is-never", lambda p, f, n, b, w: "OK" if -(-p // b) + 1 + w <= f else "NEVER"),
    ("watermark-ignored", lambda p, f, n, b, w: _decide(-(-p // b) + 1, f, n)),
    ("never-too-late", lambda p, f, n, b, w: _decide_by(-(-p // b) + 1, -(-p // b) + 1 + w, f, n)),
    ("never-too-late", lambda p, f, n, b, w: _decide_by(-(-p // b) + w, -(-p // b) + 1 + w, f, n)),
    ("too-strict", lambda p, f, n, b, w: _decide(-(-p // b) + 2 + w, f, n)),
]


def _decisions(admit: Any, cases: list[_Case]) -> None:
    right = [_decide(-(-p // b) + 1 + w, f, n) for p, f, n, b, w in cases]
    got = [admit(p, f, n, b, watermark=w) for p, f, n, b, w in cases]
    given = [value.strip().upper() if isinstance(value, str) else value for value in got]
    first = next((i for i, pair in enumerate(zip(given, right, strict=True)) if pair[0] != pair[1]), None)
    if first is not None:
        explained = (key for key, rule in _WRONG_DECISIONS if given == [rule(*case) for case in cases])
        p, f, n, b, w = cases[first]
        call = f"admit({p}, num_free={f}, num_blocks={n}, block_size={b}, watermark={w})"
        raise Wrong(next(explained, "other-decision"), difference(call, right[first], got[first]))


@ADMIT.part("now or later", points=3)
def _now_or_later(rng: Random, admit: Any) -> None:
    cases = [(p, f, 100, 16, w) for p in (48, 49, 63, 64, 65) for f in (3, 4, 5, 6, 7) for w in (0, 1, 2)]
    for _ in range(40):
        block_size, blocks, watermark = rng.choice([1, 8, 16, 32]), rng.randint(1, 20), rng.randint(0, 3)
        prompt = blocks * block_size - rng.randint(0, block_size - 1)
        cases.append((prompt, blocks + watermark + rng.randint(-1, 3), 100, block_size, watermark))
    _decisions(admit, cases)


@ADMIT.part("never", points=2)
def _never(rng: Random, admit: Any) -> None:
    cases = [(p, f, 10, 16, w) for p in (128, 129, 144, 145, 160, 4000) for f in (0, 9, 10) for w in (0, 1)]
    for _ in range(40):
        num_blocks, watermark, block_size = rng.randint(4, 50), rng.randint(0, 2), rng.choice([4, 16])
        blocks = num_blocks - watermark + rng.randint(-2, 2)
        prompt = blocks * block_size - rng.randint(0, block_size - 1)
        cases.append((prompt, rng.randint(0, num_blocks), num_blocks, block_size, watermark))
    _decisions(admit, cases)
