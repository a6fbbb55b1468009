"""Checks of chapter 2: slots, the block pool, appending across a boundary, admission."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from coursekit.checks.framework import Exercise, Wrong, difference, is_whole

SLOT = Exercise(
    "2.1",
    answers=("slot",),
    misconceptions={
        "logical-for-physical": "The block's place in the table (logical) was taken for its number in the pool "
        "(physical): look the block up in `blocks`.",
        "swapped": "Quotient and rest are swapped: i // block_size says which block, i % block_size where in it.",
        "offset-lost": "The slot is the first of its block: the token's place inside the block is missing.",
        "block-not-scaled": "A block's number is no slot: block b begins at slot b * block_size.",
        "other-slot": "This is not the token's slot.",
    },
)


# What each misconception would answer; it is named if it explains every slot of a table.
_WRONG_SLOTS: dict[str, Callable[[list[int], int, int], int]] = {
    "logical-for-physical": lambda blocks, i, size: i,
    "swapped": lambda blocks, i, size: blocks[i % size] * size + i // size,
    "offset-lost": lambda blocks, i, size: blocks[i // size] * size,
    "block-not-scaled": lambda blocks, i, size: blocks[i // size] + i % size,
}


@SLOT.part("slots through a shuffled table", points=4)
def _slots(rng: Random, slot: Any) -> None:
    for block_size in (4, 16, 1, 5, rng.randint(2, 32)):  # 4 first: there every misconception gives numbers
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
