"""Checks of chapter 3, where data moves: write by slot (3.1) and gather (3.2); 3.3 and 3.4 compute."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from coursekit.checks.answers import AnswerRaised, show
from coursekit.checks.chapter_03 import attention, online  # noqa: F401  registered with these
from coursekit.checks.chapter_03.inputs import NOT_AN_ID, as_array, numpy_rng, shape_of
from coursekit.checks.framework import Exercise, Wrong

WRITE = Exercise(
    "3.1",
    answers=("write_kv",),
    misconceptions={
        "not-in-place": "Nothing was written: the caches themselves must change. A new array, or a copy that fancy "
        "indexing made, is lost when the function returns.",
        "one-cache": "Only one of the two caches was written: a token leaves a key *and* a value.",
        "minus-one-written": "A token with slot -1 was written, into the last slot: in NumPy -1 is the last element. "
        "There the neighbour's token may lie.",
        "rows-shifted": "With a -1 before it, a token's row landed in the slot of another token: rows and slots must "
        "be left out together.",
        "zero-left-out": "The token with slot 0 was not written. Slot 0 is a slot like any other; only -1 means that a "
        "token has none.",
        "offset-lost": "Every token landed at the beginning of its block: the place inside the block is missing.",
        "swapped": "Quotient and rest are swapped: slot // block_size is the block, slot % block_size the place in it.",
        "slot-as-block": "A slot was used as a block's number: slot s lies in block s // block_size.",
        "other-writes": "The caches do not hold what they should.",
    },
)

_Write = Callable[[np.ndarray, np.ndarray, np.ndarray], None]  # cache, rows, slots


def _write_right(cache: np.ndarray, rows: np.ndarray, slots: np.ndarray) -> None:
    size, kept = cache.shape[1], slots >= 0
    cache[slots[kept] // size, slots[kept] % size] = rows[kept]


def _write_last(cache: np.ndarray, rows: np.ndarray, slots: np.ndarray) -> None:
    for row, slot in zip(rows, slots, strict=True):
        cache.reshape(-1, *cache.shape[2:])[slot] = row


def _write_shifted(cache: np.ndarray, rows: np.ndarray, slots: np.ndarray) -> None:
    kept = slots[slots >= 0]
    _write_right(cache, rows[: len(kept)], kept)


def _write_without_zero(cache: np.ndarray, rows: np.ndarray, slots: np.ndarray) -> None:
    _write_right(cache, rows, np.where(slots == 0, -1, slots))


def _write_without_offset(cache: np.ndarray, rows: np.ndarray, slots: np.ndarray) -> None:
    for row, slot in zip(rows, slots, strict=True):
        if slot >= 0:
            cache[slot // cache.shape[1], 0] = row


def _write_swapped(cache: np.ndarray, rows: np.ndarray, slots: np.ndarray) -> None:
    for row, slot in zip(rows, slots, strict=True):
        if slot >= 0 and slot % cache.shape[1] < len(cache) and slot // cache.shape[1] < cache.shape[1]:
            cache[slot % cache.shape[1], slot // cache.shape[1]] = row


_WRONG_WRITES: dict[str, _Write] = {
    "minus-one-written": _write_last,
    "rows-shifted": _write_shifted,
    "zero-left-out": _write_without_zero,
    "offset-lost": _write_without_offset,
    "swapped": _write_swapped,
}


def _check_write(rng: Random, write_kv: Any, slots: list[int], num_blocks: int, block_size: int) -> None:
    numbers, heads, d = numpy_rng(rng), 2, 4
    before = [numbers.standard_normal((num_blocks, block_size, heads, d), dtype=np.float32) for _ in range(2)]
    rows = [numbers.standard_normal((len(slots), heads, d), dtype=np.float32) for _ in range(2)]
    mapping = np.array(slots, dtype=np.int64)
    got = [cache.copy() for cache in before]
    told = f"slot_mapping {show(slots)}, {num_blocks} blocks of {block_size}"
    try:
        write_kv(rows[0].copy(), rows[1].copy(), *got, mapping.copy())
    except AnswerRaised as raised:
        if "IndexError" in raised.bases:
            raise Wrong("slot-as-block", f"{told}: {raised.name}: {raised.message}.") from None
        raise
    if all(
        np.array_equal(g, e) for g, e in zip(got, _after(_write_right, before, rows, mapping), strict=True)
    ):
        return
    raise Wrong(*_explain_write(told, before, rows, mapping, got))


def _after(
    write: _Write, before: list[np.ndarray], rows: list[np.ndarray], slots: np.ndarray
) -> list[np.ndarray]:
    caches = [cache.copy() for cache in before]
    for cache, new in zip(caches, rows, strict=True):
        write(cache, new, slots)
    return caches


def _explain_write(
    told: str, before: list[np.ndarray], rows: list[np.ndarray], slots: np.ndarray, got: list[np.ndarray]
) -> tuple[str, str]:
    """The misconception, and the first slot in which a cache differs."""
    expected = _after(_write_right, before, rows, slots)
    untouched = [np.array_equal(g, b) for g, b in zip(got, before, strict=True)]
    if all(untouched):
        key = "not-in-place"
    elif any(untouched) and any(np.array_equal(g, e) for g, e in zip(got, expected, strict=True)):
        key = "one-cache"
    else:
        wrongs = {name: _after(write, before, rows, slots) for name, write in _WRONG_WRITES.items()}
        same = (
            k for k, w in wrongs.items() if all(np.array_equal(g, x) for g, x in zip(got, w, strict=True))
        )
        key = next(same, "other-writes")
    which = next(i for i in (0, 1) if not np.array_equal(got[i], expected[i]))
    name, size = ("key", "value")[which], before[which].shape[1]
    block, offset = (int(x) for x in np.argwhere(got[which] != expected[which])[0][:2])
    at = (block, offset)
    wanted = _content(expected[which][at], before[which][at], rows[which], name)
    found = _content(got[which][at], before[which][at], rows[which], name)
    slot = block * size + offset
    return key, f"{told}: {name}_cache[{block}, {offset}], slot {slot}: expected {wanted}, got {found}."


def _content(cell: np.ndarray, before: np.ndarray, rows: np.ndarray, name: str) -> str:
    """What a slot holds, in words."""
    if np.array_equal(cell, before):
        return "what was there before"
    token = next((t for t, row in enumerate(rows) if np.array_equal(row, cell)), None)
    return f"other numbers ({cell.flat[0]:.3f}, …)" if token is None else f"the {name} of token {token}"


@WRITE.part("every token in its slot", points=3)
def _write_all(rng: Random, write_kv: Any) -> None:
    # The first blocks of a pool: there swapped indices stay within the cache.
    _check_write(rng, write_kv, [9, 6, 13, 3, 14, 2, 0, 8], num_blocks=6, block_size=4)
    for block_size in (1, 5, 16, rng.randint(2, 12)):
        slots = rng.sample(range(9 * block_size), min(12, 6 * block_size))
        _check_write(rng, write_kv, slots, num_blocks=9, block_size=block_size)


@WRITE.part("-1: not written", points=2)
def _write_padded(rng: Random, write_kv: Any) -> None:
    _check_write(rng, write_kv, [9, -1, 6, 0, 13, -1, -1, 3, 14], num_blocks=6, block_size=4)
    for block_size in (4, rng.randint(2, 12)):
        slots = rng.sample(range(9 * block_size - 1), 8)  # the last slot belongs to somebody else
        for place in sorted(rng.sample(range(9), 3)):
            slots.insert(place, -1)
        _check_write(rng, write_kv, slots, num_blocks=9, block_size=block_size)


GATHER = Exercise(
    "3.2",
    answers=("gather",),
    misconceptions={
        "tail-kept": "The tail of the last block is still there: its last slots hold no token of this sequence.",
        "last-block-lost": "The tokens of the last, partial block are missing: the number of blocks is rounded up.",
        "order": "The blocks are in another order than the table's: logical order is the order of the text.",
        "table-ignored": "The rows come from the first blocks of the cache: look the blocks up in the table.",
        "first-block-only": "Only the first block was looked up, and the rows that follow it in memory were taken: the "
        "next block may lie anywhere.",
        "block-as-slot": "A block's number was used as its first slot: block b begins at slot b * block_size.",
        "not-flat": "The result is still cut into blocks: one row for each token is wanted.",
        "unused-read": "An entry of the table past the sequence's last block was used. Anything may stand there.",
        "other-rows": "These are not the rows of the sequence's tokens.",
    },
)


def _flat(cache: np.ndarray) -> np.ndarray:
    return cache.reshape(-1, *cache.shape[2:])


_WRONG_ROWS: dict[str, Callable[[np.ndarray, np.ndarray, int], list[np.ndarray]]] = {
    "tail-kept": lambda cache, table, n: [_flat(cache[table])],
    "last-block-lost": lambda cache, table, n: [_flat(cache[table[: n // cache.shape[1]]])],
    "order": lambda cache, table, n: [_flat(cache[np.sort(table)])[:n], _flat(cache[table[::-1]])[:n]],
    "table-ignored": lambda cache, table, n: [_flat(cache)[:n]],
    "first-block-only": lambda cache, table, n: [_flat(cache[table[0] :])[:n]],
    "block-as-slot": lambda cache, table, n: [
        _flat(cache)[table[np.arange(n) // cache.shape[1]] + np.arange(n) % cache.shape[1]],
        _flat(cache)[table],
    ],
    "not-flat": lambda cache, table, n: [cache[table]],
}


def _check_gather(gather: Any, cache: np.ndarray, table: np.ndarray, n: int) -> None:
    size = cache.shape[1]
    used = table[: -(-n // size)]
    expected = cache[used[np.arange(n) // size], np.arange(n) % size]
    told = f"gather, seq_len {n}, block_table {show(table.tolist())}, blocks of {size}"
    try:
        answer = gather(cache.copy(), table.copy(), n)
    except AnswerRaised as raised:
        if "IndexError" in raised.bases and len(used) < len(table):
            raise Wrong("unused-read", f"{told}: {raised.name}: {raised.message}.") from None
        raise
    got = as_array(answer, expected.shape)
    if got is not None and np.array_equal(got, expected):
        return
    same = (
        key for key, rows in _WRONG_ROWS.items() for wrong in rows(cache, used, n) if _equal(answer, wrong)
    )
    key = next(same, "other-rows")
    if got is None:
        raise Wrong(key, f"{told}: expected shape {expected.shape}, got {shape_of(answer)}.")
    token = int(np.argwhere(got != expected)[0][0])
    found = next(
        (f"that of token {t}" for t in range(n) if np.array_equal(got[token], expected[t])), "another one"
    )
    place = f"physical block {used[token // size]}, offset {token % size}"
    raise Wrong(key, f"{told}: row {token}: expected that of token {token} ({place}), got {found}.")


def _equal(answer: Any, wrong: np.ndarray) -> bool:
    got = as_array(answer, wrong.shape)
    return got is not None and np.array_equal(got, wrong)


def _draw_cache(rng: Random, num_blocks: int, block_size: int) -> np.ndarray:
    return numpy_rng(rng).standard_normal((num_blocks, block_size, 2, 4), dtype=np.float32)


@GATHER.part("the table's blocks, in the table's order", points=3)
def _gather_in_order(rng: Random, gather: Any) -> None:
    _check_gather(gather, _draw_cache(rng, 9, 4), np.array([6, 1, 8, 3], dtype=np.int32), 14)
    for block_size in (5, 16, rng.randint(2, 12)):
        table = np.array(rng.sample(range(12), 4), dtype=np.int32)
        n = 4 * block_size - rng.randint(1, block_size - 1)
        _check_gather(gather, _draw_cache(rng, 12, block_size), table, n)


@GATHER.part("lengths around a block's end, in a table with room to grow", points=3)
def _gather_lengths(rng: Random, gather: Any) -> None:
    for block_size in (4, 1, 16, rng.randint(5, 12)):
        for n in sorted(
            {1, max(1, block_size - 1), block_size, block_size + 1, 2 * block_size, 3 * block_size}
        ):
            cache, used = _draw_cache(rng, 12, block_size), -(-n // block_size)
            table = np.array(rng.sample(range(12), used) + [NOT_AN_ID] * 3, dtype=np.int32)
            cache[table[used - 1], n - (used - 1) * block_size :] = np.nan
            _check_gather(gather, cache, table, n)
