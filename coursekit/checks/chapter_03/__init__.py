"""Checks of chapter 3 for moving data: write by slot (3.1) and gather (3.2); 3.3 and 3.4 are in their own modules."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from coursekit.checks.answers import AnswerRaised, output, show
from coursekit.checks.chapter_03 import attention, online  # noqa: F401  registers their exercises
from coursekit.checks.chapter_03.inputs import NOT_AN_ID, as_array, close, numpy_rng, read_unused, shape_of
from coursekit.checks.framework import CHANGES, Arguments, Exercise, Wrong

WRITE = Exercise(
    "3.1",
    answers=("write_kv",),
    misconceptions={
        "not-in-place": "Nothing was written: change the caches themselves. A new array, or a copy made by fancy "
        "indexing, is lost when the function returns.",
        "one-cache": "Only one of the two caches was written: each token stores a key *and* a value.",
        "minus-one-written": "A token with slot -1 was written to the last slot, because index -1 is NumPy's last "
        "element. That slot may hold another sequence's token.",
        "rows-shifted": "After a token with slot -1, a row was written to another token's slot: filter rows and "
        "slots together.",
        "zero-left-out": "The token with slot 0 was not written. Slot 0 is an ordinary slot; only -1 marks a token "
        "without a slot.",
        "offset-lost": "Every token was written to the beginning of its block: the offset within the block is missing.",
        "swapped": "Quotient and remainder are swapped: slot // block_size is the block, slot % block_size the "
        "offset in it.",
        "slot-as-block": "A slot number was used as a block number: slot s is in block s // block_size.",
        **CHANGES,
        "other-writes": "The contents of the caches are wrong.",
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
    mapping = np.array(slots, dtype=np.int64 if block_size % 2 else np.int32)
    got = [cache.copy() for cache in before]
    told = f"slot_mapping {show(slots)}, {num_blocks} blocks of {block_size}"
    given = Arguments(key=rows[0].copy(), value=rows[1].copy(), slot_mapping=mapping.copy())
    try:
        write_kv(*given.passed("key", "value"), output(got[0]), output(got[1]), *given.passed("slot_mapping"))
    except AnswerRaised as raised:
        named = re.search(
            rf"index (\d+) is out of bounds for axis 0 with size {num_blocks}\b", raised.message
        )
        if "IndexError" in raised.bases and named and int(named[1]) in slots:
            raise Wrong("slot-as-block", f"{told}: {raised.name}: {raised.message}.") from None
        raise
    if all(
        np.array_equal(g, e) for g, e in zip(got, _after(_write_right, before, rows, mapping), strict=True)
    ):
        given.check_unchanged(told)
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
    """Return the misconception, and the first slot in which a cache differs."""
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
    """Describe the contents of a slot."""
    if np.array_equal(cell, before):
        return "the old contents"
    token = next((t for t, row in enumerate(rows) if np.array_equal(row, cell)), None)
    return f"other values ({cell.flat[0]:.3f}, …)" if token is None else f"the {name} of token {token}"


@WRITE.part("every token in its slot", points=3)
def _write_all(rng: Random, write_kv: Any) -> None:
    # The first blocks of a pool, where swapped indices stay within the cache.
    _check_write(rng, write_kv, [9, 6, 13, 3, 14, 2, 0, 8], num_blocks=6, block_size=4)
    for block_size in (1, 5, 16, rng.randint(2, 12)):
        slots = rng.sample(range(9 * block_size), min(12, 6 * block_size))
        _check_write(rng, write_kv, slots, num_blocks=9, block_size=block_size)


@WRITE.part("-1: not written", points=2)
def _write_padded(rng: Random, write_kv: Any) -> None:
    _check_write(rng, write_kv, [9, -1, 6, 0, 13, -1, -1, 3, 14], num_blocks=6, block_size=4)
    for block_size in (4, rng.randint(2, 12)):
        slots = rng.sample(range(9 * block_size - 1), 8)  # the last slot belongs to another sequence
        for place in sorted(rng.sample(range(9), 3)):
            slots.insert(place, -1)
        _check_write(rng, write_kv, slots, num_blocks=9, block_size=block_size)


GATHER = Exercise(
    "3.2",
    answers=("gather",),
    misconceptions={
        "tail-kept": "The unused slots of the last block are in the result: they hold no token of this sequence.",
        "last-block-lost": "The tokens of the last, partly filled block are missing: round the number of blocks up.",
        "order": "The blocks are not in the table's order: logical order is the order of the text.",
        "table-ignored": "The rows come from the first blocks of the cache: look the blocks up in the table.",
        "first-block-only": "Only the first block was looked up, and then the memory after it was read: the next "
        "block may be anywhere.",
        "block-as-slot": "A block number was used as a slot number: block b begins at slot b * block_size.",
        "not-flat": "The result is still split into blocks: return one row per token.",
        "unused-read": "A table entry past the sequence's last block was used. Such an entry may hold any number.",
        "rounded": "The rows are the right ones, but their values were rounded: copy them as they are.",
        **CHANGES,
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
    given = Arguments(cache=cache.copy(), block_table=table.copy())
    try:
        answer = gather(*given.passed(), n)
    except AnswerRaised as raised:
        if read_unused(raised, size):
            raise Wrong("unused-read", f"{told}: {raised.name}: {raised.message}.") from None
        raise
    got = as_array(answer, expected.shape)
    if got is not None and np.array_equal(got, expected):
        given.check_unchanged(told)
        return
    same = (
        key for key, rows in _WRONG_ROWS.items() for wrong in rows(cache, used, n) if _equal(answer, wrong)
    )
    key = next(same, "other-rows")
    if got is None:
        raise Wrong(key, f"{told}: expected shape {expected.shape}, got {shape_of(answer)}.")
    token = int(np.argwhere(got != expected)[0][0])
    if key == "other-rows" and close(got, expected, 1e-2).all():
        element = tuple(int(i) for i in np.argwhere(got != expected)[0])
        raise Wrong(
            "rounded", f"{told}: {list(element)}: expected {expected[element]!r}, got {got[element]!r}."
        )
    found = next(
        (f"that of token {t}" for t in range(n) if np.array_equal(got[token], expected[t])), "a different row"
    )
    place = f"physical block {used[token // size]}, offset {token % size}"
    raise Wrong(key, f"{told}: row {token}: expected the row of token {token} ({place}), got {found}.")


def _equal(answer: Any, wrong: np.ndarray) -> bool:
    got = as_array(answer, wrong.shape)
    return got is not None and np.array_equal(got, wrong)


def _draw_cache(rng: Random, num_blocks: int, block_size: int) -> np.ndarray:
    return numpy_rng(rng).standard_normal((num_blocks, block_size, 2, 4), dtype=np.float32)


@GATHER.part("the table's blocks, in the table's order", points=3)
def _gather_in_order(rng: Random, gather: Any) -> None:
    _check_gather(gather, _draw_cache(rng, 9, 4), np.array([6, 1, 8, 3], dtype=np.int32), 14)
    for block_size in (5, 16, rng.randint(2, 12)):
        table = np.array(rng.sample(range(1, 12), 4), dtype=np.int64)
        table[rng.randrange(4)] = 0  # block 0 is a block like any other
        n = 4 * block_size - rng.randint(1, block_size - 1)
        _check_gather(gather, _draw_cache(rng, 12, block_size), table, n)


@GATHER.part("lengths around a block boundary, in a table with room to grow", points=3)
def _gather_lengths(rng: Random, gather: Any) -> None:
    for block_size in (4, 1, 16, rng.randint(5, 12)):
        for n in sorted(
            {1, max(1, block_size - 1), block_size, block_size + 1, 2 * block_size, 3 * block_size}
        ):
            cache, used = _draw_cache(rng, 12, block_size), -(-n // block_size)
            table = np.array(rng.sample(range(12), used) + [NOT_AN_ID] * 3, dtype=np.int32)
            cache[table[used - 1], n - (used - 1) * block_size :] = np.nan
            _check_gather(gather, cache, table, n)
