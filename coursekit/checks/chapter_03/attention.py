"""Check of chapter 3: paged attention in NumPy (3.3), and the diagnosis of a wrong attention function."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np

from coursekit.checks.answers import AnswerRaised, output, show
from coursekit.checks.chapter_03.inputs import (
    NOT_AN_ID,
    Inputs,
    as_array,
    close,
    draw,
    draw_extreme,
    faulty,
    read_unused,
    same_weights,
    shape_of,
)
from coursekit.checks.framework import CHANGES, Arguments, Exercise, Wrong

TOLERANCE = 1e-3  # for float32; the inputs make every wrong answer differ by more
LARGE_TOLERANCE = 2e-2  # rounding a score of 3,000 changes the third decimal of its weight

# The mistakes of a wrong kernel, for both exercises.
TEXTS = {
    "modulo": "Query heads are assigned to KV heads in turn (h % num_kv_heads), but consecutive heads share one: "
    "head h reads KV head h // (num_heads // num_kv_heads).",
    "scale-missing": "The scores are not scaled: divide them by the square root of head_dim.",
    "scale-twice": "The scores are divided by head_dim: divide by its square root.",
    "tail-kept": "The unused slots of the last block are included: they hold no token of this sequence.",
    "tail-scored-zero": "The unused slots of the last block have a score of 0, which gets a share of the weight "
    "like any other score; leave those slots out, or set their scores to -inf.",
    "last-block-lost": "The last, partly filled block is left out: round the number of blocks up.",
    "token-lost": "The last token is left out: a query also sees its own key.",
    "swapped": "Keys and values are swapped.",
    "not-normalised": "The weights do not add up to 1: divide by their sum.",
    "nan-leaks": "A NaN from an unused slot reached the result. A weight of 0 does not help, because 0 * NaN is "
    "NaN: exclude the slot before you multiply.",
    "unused-read": "A table entry past the sequence's last block was used. Such an entry may hold any number.",
    "overflow": "exp overflowed or underflowed: before exp, subtract the largest of this head's scores, not another "
    "number.",
    "low-precision": "Scores near 10,000 that differ by less than 8 were treated as equal, as they are in float16: "
    "compute them in float32 or float64, and do not clip them.",
    **CHANGES,
    "other-attention": "The result is not the attention of this query over its sequence.",
}
_OF_BATCH = {
    "one-length": "All sequences are treated as if they had the first one's length: each has its own.",
    "over-heads": "The weights of one token add up to 1 over the heads: the softmax belongs along the "
    "tokens of one head.",
    "first-table": "All sequences are read through the first one's table: row i of block_tables belongs to sequence i.",
}

FAULTS: dict[str, Callable[[Inputs], np.ndarray]] = {
    "modulo": lambda x: faulty(x, kv_head=lambda head, heads, kv_heads: head % kv_heads),
    "scale-missing": lambda x: faulty(x, scale=lambda d: 1.0),
    "scale-twice": lambda x: faulty(x, scale=lambda d: 1 / d),
    "tail-kept": lambda x: faulty(
        x, length=lambda x, i: -(-int(x.seq_lens[i]) // x.block_size) * x.block_size
    ),
    "tail-scored-zero": lambda x: faulty(x, tail_score_zero=True),
    "token-lost": lambda x: faulty(x, length=lambda x, i: max(1, int(x.seq_lens[i]) - 1)),
    "last-block-lost": lambda x: faulty(
        x, length=lambda x, i: max(1, int(x.seq_lens[i]) // x.block_size * x.block_size)
    ),
    "swapped": lambda x: faulty(x, swap=True),
    "over-heads": lambda x: faulty(x, over_heads=True),
    "not-normalised": lambda x: faulty(x, normalise=False),
    "one-length": lambda x: faulty(x, length=lambda x, i: int(x.seq_lens[0])),
    "first-table": lambda x: faulty(x, table_of=lambda i: 0),
}


def compare(
    inputs: Inputs,
    call: Callable[..., Any],
    told: str,
    keys: Iterable[str],
    tolerance: float = TOLERANCE,
    extreme: bool = False,
) -> None:
    """Pass if the answer matches the oracle; otherwise name the mistake and the first difference.

    `call` gets the five arrays of a batch, each as an `output`. `extreme` inputs are those of `draw_extreme`.
    """
    expected = inputs.expected()
    clean = not np.isnan(inputs.key_cache).any()
    names = ("query", "key_cache", "value_cache", "block_tables", "seq_lens")
    given = Arguments(**dict(zip(names, inputs.arguments(), strict=True)))
    try:
        answer = call(*given.passed())
    except AnswerRaised as raised:
        if NOT_AN_ID in inputs.block_tables and read_unused(raised, inputs.block_size):
            raise Wrong("unused-read", f"{told}: {raised.name}: {raised.message}.") from None
        raise
    got = as_array(answer, expected.shape)
    if got is None:
        raise Wrong("other-attention", f"{told}: expected shape {expected.shape}, got {shape_of(answer)}.")
    right = close(got, expected, tolerance)
    if right.all():
        given.check_unchanged(told)
        return
    if not np.isfinite(got).all():
        key = _why_not_finite(inputs, call)
    elif extreme:
        key = "low-precision" if close(got, same_weights(inputs), tolerance).all() else "other-attention"
    elif clean and tolerance == TOLERANCE:
        named = (key for key in keys if key in FAULTS and _same(got, FAULTS[key], inputs))
        key = next(named, "other-attention")
    else:
        key = "other-attention"
    seq, head, i = (int(x) for x in np.argwhere(~right)[0])
    n, size = int(inputs.seq_lens[seq]), inputs.block_size
    blocks = inputs.block_tables[seq, : -(-n // size)].tolist()
    heads, kv_heads = inputs.heads
    where = f"sequence {seq} ({n} tokens in blocks {show(blocks)} of {size}), head {head} of {heads} over {kv_heads}"
    raise Wrong(
        key,
        f"{told}: {where}, element {i}: expected {expected[seq, head, i]:.4f}, got {got[seq, head, i]:.4f}.",
    )


def _why_not_finite(inputs: Inputs, call: Callable[..., Any]) -> str:
    """Call the answer again without the suspected cause; it is named if the result is then finite."""
    keys, values = (np.nan_to_num(cache) for cache in (inputs.key_cache, inputs.value_cache))
    suspects = {
        "nan-leaks": replace(inputs, key_cache=keys, value_cache=values),
        "overflow": replace(inputs, query=inputs.query * 0, key_cache=keys, value_cache=values),
    }
    if not np.isnan(inputs.key_cache).any():
        del suspects["nan-leaks"]
    for key, changed in suspects.items():
        got = as_array(call(*map(output, changed.arguments())), inputs.query.shape)
        if got is not None and np.isfinite(got).all():
            return key
    return "other-attention"


def _same(got: np.ndarray, fault: Callable[[Inputs], np.ndarray], inputs: Inputs) -> bool:
    try:
        return bool(close(got, fault(inputs), TOLERANCE).all())
    except IndexError:  # this mistake reads past the table
        return False


PAGED = Exercise(
    "3.3",
    answers=("paged_attention",),
    needs=("3.2",),
    misconceptions=TEXTS | _OF_BATCH,
)


def _paged(paged_attention: Any, inputs: Inputs, tolerance: float = TOLERANCE) -> None:
    told = f"paged_attention of {len(inputs.seq_lens)} sequences"
    compare(inputs, paged_attention, told, PAGED.misconceptions, tolerance)


@PAGED.part("a ragged batch through shuffled tables", points=3)
def _ragged(rng: Random, paged_attention: Any) -> None:
    # The first sequence is the longest and has a partial block, so a wrong length or table is recognizable.
    _paged(paged_attention, draw(rng, [14, 3, 5, 6], 4, (4, 4)))
    lens = [rng.randint(1, 40) for _ in range(5)]
    _paged(paged_attention, draw(rng, [41, *lens], rng.choice([5, 8, 16]), (5, 5), 24, ids=np.int64))


@PAGED.part("several query heads share a KV head", points=2)
def _grouped(rng: Random, paged_attention: Any) -> None:
    for heads in ((9, 3), (8, 2), (5, 1)):
        lens = [23, 4, 8, 9, rng.randint(1, 30)]
        _paged(paged_attention, draw(rng, lens, rng.choice([4, 8]), heads))


@PAGED.part("unused slots hold NaN, unused table entries arbitrary ids", points=2)
def _poisoned(rng: Random, paged_attention: Any) -> None:
    lens = [7, 8, 9, 16, 1, rng.randint(1, 40)]
    rng.shuffle(lens)
    _paged(paged_attention, draw(rng, lens, 8, (9, 3), unused=math.nan, padding=NOT_AN_ID))


@PAGED.part("large scores", points=2)
def _large(rng: Random, paged_attention: Any) -> None:
    inputs = draw_extreme(rng, [11, 9, rng.randint(5, 30), rng.randint(5, 30)], 4, (6, 2))
    told = "paged_attention, scores around -10,000 (first sequence) and 10,000 (second)"
    compare(inputs, paged_attention, told, PAGED.misconceptions, LARGE_TOLERANCE, extreme=True)
    inputs = draw(rng, [11, 6, 9, rng.randint(2, 30)], 4, (6, 2), score_size=500)
    _paged(paged_attention, inputs, tolerance=LARGE_TOLERANCE)
