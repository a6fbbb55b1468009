"""Checks of chapter 10: four functions with a planted fault, two that compute (10.1, 10.3) and two that name things.

Each part of each check fails on the function as delivered, so an answer that changes nothing earns nothing. The checks
also tell a fixed cause from a symptom that was only hidden.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from coursekit.checks.answers import show
from coursekit.checks.chapter_03.inputs import NOT_AN_ID, Inputs, as_array, close, draw, numpy_rng, shape_of
from coursekit.checks.chapter_10 import names  # noqa: F401  registered with these
from coursekit.checks.framework import Exercise, Wrong

TOLERANCE = 1e-3

DECODE = Exercise(
    "10.1",
    answers=("decode",),
    misconceptions={
        "unchanged": "This is what the function as delivered returns: the cause is still there. A weight of 0 does not "
        "keep out what it is multiplied with.",
        "output-cleaned": "The NaN was replaced in the result. That hides it, and the sum that it spoiled is lost all "
        "the same: keep it from entering the sum.",
        "fault-hidden": "A NaN in a slot that *is* used is replaced, too: a fault elsewhere would never be found. "
        "Leave out the slots past the length, whatever they hold, and only those.",
        "partial-dropped": "The partial block is left out as a whole: its filled slots hold tokens of the sequence.",
        "tail-weighs": "The unused values are 0 now, but their slots have a weight: their scores must stay at -inf.",
        "other-attention": "This is not the attention of this query over its sequence.",
    },
)


def _decode(
    x: Inputs,
    *,
    mask_values: bool = True,
    clean: Callable[[np.ndarray], np.ndarray] = lambda values: values,
    masked_score: float = -math.inf,
    length: Callable[[int, int], int] = lambda n, size: n,
) -> np.ndarray:
    """The function of 10.1 on the first sequence, right or with one of the faults: [num_heads, head_dim]."""
    query, n, size = x.query[0], int(x.seq_lens[0]), x.block_size
    num_heads, head_dim = query.shape
    kv_head = np.arange(num_heads) // (num_heads // x.heads[1])
    used = x.block_tables[0, : -(-n // size)]
    keys, values = (c[used].reshape(-1, *c.shape[2:])[:, kv_head] for c in (x.key_cache, x.value_cache))
    filled = np.arange(len(keys)) < length(n, size)
    with np.errstate(all="ignore"):
        scores = np.einsum("hd,thd->ht", query, keys) / head_dim**0.5
        scores = np.where(filled, scores, masked_score)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        values = clean(np.where(filled[:, None, None], values, 0) if mask_values else values)
        return np.asarray(np.einsum("ht,thd->hd", weights, values) / weights.sum(axis=1)[:, None])


_DECODE_FAULTS: dict[str, Callable[[Inputs], np.ndarray]] = {
    "unchanged": lambda x: _decode(x, mask_values=False),
    "output-cleaned": lambda x: np.nan_to_num(_decode(x, mask_values=False)),
    "fault-hidden": lambda x: _decode(x, clean=np.nan_to_num),
    "partial-dropped": lambda x: _decode(x, length=lambda n, size: n // size * size),
    "tail-weighs": lambda x: _decode(x, masked_score=0.0),
}


def _check_decode(decode: Any, x: Inputs, told: str) -> None:
    query, keys, values, tables, lens = x.arguments()
    expected = _decode(x)
    answer = decode(query[0], keys, values, tables[0], int(lens[0]))
    got = as_array(answer, expected.shape)
    n, size = int(lens[0]), x.block_size
    where = f"decode, {n} tokens in blocks of {size}, {told}"
    if got is None:
        raise Wrong("other-attention", f"{where}: expected shape {expected.shape}, got {shape_of(answer)}.")
    right = _agree(got, expected)
    if right.all():
        return
    same = (key for key, fault in _DECODE_FAULTS.items() if _agree(got, fault(x)).all())
    head, i = (int(index) for index in np.argwhere(~right)[0])
    detail = f"{where}: head {head}, number {i}: expected {expected[head, i]:.4f}, got {got[head, i]:.4f}."
    raise Wrong(next(same, "other-attention"), detail)


def _agree(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Where they agree; here NaN agrees with NaN, because some faults are known by it."""
    with np.errstate(all="ignore"):
        return close(got, expected, TOLERANCE) | (np.isnan(got) & np.isnan(expected)) | (got == expected)


@DECODE.part("unused slots hold NaN", points=3)
def _unused_nan(rng: Random, decode: Any) -> None:
    told = "unused slots hold NaN"
    _check_decode(decode, draw(rng, [14], 4, (6, 2), unused=math.nan, padding=NOT_AN_ID), told)
    for n in (9, 17, rng.randint(3, 60) * 8 + rng.randint(1, 7)):
        heads = rng.choice([(9, 3), (8, 2), (4, 4)])
        _check_decode(decode, draw(rng, [n], 8, heads, unused=math.nan, padding=NOT_AN_ID), told)
    _check_decode(decode, draw(rng, [16], 8, (9, 3), unused=math.nan, padding=NOT_AN_ID), told)


@DECODE.part("unused slots hold infinities, and a used NaN stays visible", points=2)
def _used_nan(rng: Random, decode: Any) -> None:
    x = draw(rng, [8 * rng.randint(1, 5) + rng.randint(1, 7)], 8, (6, 3), unused=math.nan)
    for cache in (x.key_cache, x.value_cache):
        cache[np.isnan(cache)] = math.inf
    _check_decode(decode, x, "unused slots hold infinities")
    x = draw(rng, [21], 8, (6, 3), unused=math.nan, padding=NOT_AN_ID)
    x.value_cache[x.block_tables[0, 1], 2, 1, 5] = math.nan
    _check_decode(decode, x, "the value of token 10, KV head 1, is NaN in number 5")


MERGE = Exercise(
    "10.3",
    answers=("merge",),
    misconceptions={
        "unchanged": "This is what the function as delivered returns: `total` is brought to the common top, the sum of "
        "the accumulators is not.",
        "weights-dropped": "Now neither sum is brought to the common top. They fit each other again, and a split whose "
        "scores are low counts as much as one whose scores are high.",
        "averages": "The splits' results are averaged. Each counts by its part of the weight, not equally.",
        "overflow": "exp overflowed, or a split without tokens gave NaN: bring every split to the *largest* top.",
        "other-merge": "This is not the attention over the tokens of all splits.",
    },
)

_Parts = tuple[np.ndarray, np.ndarray, np.ndarray]  # tops, totals, accs


def _merge(parts: _Parts, rescale_total: bool = True, rescale_acc: bool = True) -> np.ndarray:
    tops, totals, accs = parts
    share = np.exp(tops - tops.max(axis=0))
    total = (share * totals if rescale_total else totals).sum(axis=0)
    acc = (share[..., None] * accs if rescale_acc else accs).sum(axis=0)
    return np.asarray(acc / total[:, None])


def _average(parts: _Parts) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray((parts[2] / parts[1][..., None]).mean(axis=0))


_MERGE_FAULTS: dict[str, Callable[[_Parts], np.ndarray]] = {
    "unchanged": lambda parts: _merge(parts, rescale_acc=False),
    "weights-dropped": lambda parts: _merge(parts, False, False),
    "averages": _average,
}


def _split(rng: Random, levels: list[float | None], heads: int = 3, head_dim: int = 5) -> _Parts:
    """Partial results of splits whose scores lie around these levels; None: the split has no tokens."""
    numbers = numpy_rng(rng)
    tops, totals, accs = [], [], []
    for level in levels:
        n = rng.randint(3, 9)
        values = numbers.standard_normal((heads, n, head_dim)) + numbers.standard_normal((heads, 1, head_dim))
        scores = numbers.standard_normal((heads, n)) + (level or 0.0)
        top = scores.max(axis=1)
        weights = np.exp(scores - top[:, None])
        empty = level is None
        tops.append(np.full(heads, -math.inf) if empty else top)
        totals.append(np.zeros(heads) if empty else weights.sum(axis=1))
        accs.append(np.zeros((heads, head_dim)) if empty else np.einsum("hn,hnd->hd", weights, values))
    return np.stack(tops), np.stack(totals), np.stack(accs)


def _check_merge(merge: Any, parts: _Parts, far: bool = True) -> None:
    """Check one merge; `far` if a split is empty or has scores far from the others'."""
    expected = _merge(parts)
    answer = merge(*(array.copy() for array in parts))
    got = as_array(answer, expected.shape)
    tops = show([round(float(top), 1) for top in parts[0][:, 0]])
    where = f"merge of {len(parts[0])} splits with the tops {tops} in head 0"
    if got is None:
        raise Wrong("other-merge", f"{where}: expected shape {expected.shape}, got {shape_of(answer)}.")
    right = close(got, expected, 1e-6)
    if right.all():
        return
    head, i = (int(index) for index in np.argwhere(~right)[0])
    detail = f"{where}: head {head}, number {i}: expected {expected[head, i]:.4f}, got {got[head, i]:.4f}."
    same = (key for key, fault in _MERGE_FAULTS.items() if np.allclose(got, fault(parts), rtol=1e-6))
    raise Wrong(next(same, "overflow" if far and not np.isfinite(got).all() else "other-merge"), detail)


@MERGE.part("splits whose scores differ", points=3)
def _differing(rng: Random, merge: Any) -> None:
    _check_merge(merge, _split(rng, [0.0, 3.0]), far=False)
    _check_merge(merge, _split(rng, [2.0, -1.0, 4.0, rng.uniform(-3, 3)], heads=9, head_dim=16), far=False)


@MERGE.part("large scores, and splits without tokens", points=2)
def _large(rng: Random, merge: Any) -> None:
    _check_merge(merge, _split(rng, [-1500.0, 0.0, -3.0]))
    _check_merge(merge, _split(rng, [None, 2.0, 5.0, None]))
    tops, totals, accs = _split(rng, [0.0, 0.0, 0.0])
    tops += np.array(
        [[-3000.0, 0.0, 3000.0], [-3001.0, 2.0, 2999.0], [-2999.0, 1.0, 3001.0]]
    )  # each head has its own
    _check_merge(merge, (tops, totals, accs))
    _check_merge(merge, _split(rng, [-900.0, -903.0, 900.0, None, 902.0]))
