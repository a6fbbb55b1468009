"""Check of chapter 7 for the attention function that a real model calls (7.2).

The check calls the answer with arrays, the way transformers calls it. The caches of all layers hold different values,
tables are shuffled, and a step mixes decodes, prefills and chunks. The results of common mistakes are computed too, so
that the check can name them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np

from coursekit.checks.answers import output
from coursekit.checks.chapter_03.inputs import as_array, close, numpy_rng, shape_of
from coursekit.checks.framework import Exercise, Wrong
from paged_ref.verify.oracle import oracle

FORWARD = Exercise(
    "7.2",
    answers=("paged_forward",),
    misconceptions={
        "not-written": "The cache is unchanged: this step's keys and values are lost when the function returns, and "
        "later steps cannot read them.",
        "wrong-rows": "A slot of the layer's cache does not hold what it should after the call.",
        "wrong-layer": "The wrong layer's cache was written: each layer has its own keys and values, at [layer].",
        "rotary-twice": "Queries or keys were rotated a second time. They already are rotated by their positions; "
        "attention only stores and reads them.",
        "reshaped": "`reshape` does not exchange two axes: it keeps the elements' order and mixes heads with tokens. "
        "Use `swapaxes`.",
        "not-itself": "A token does not see itself: at position p it sees the p + 1 positions 0 to p, `[: p + 1]`.",
        "read-before-write": "The cache was read before it was written: a token sees neither itself nor the other "
        "tokens of this step.",
        "step-only": "Attention covered only this step's tokens. The sequence's earlier tokens are in the cache.",
        "not-causal": "A token sees later tokens: in a prefill, the token at position p sees positions 0 to p.",
        "causal-from-row": "The mask compares row numbers instead of positions: a chunk's first token sees "
        "everything that was in the cache before it.",
        "modulo": "Query heads are assigned to KV heads in turn (h % num_kv_heads), but consecutive heads share "
        "one: head h reads KV head h // (num_heads // num_kv_heads).",
        "scaling-ignored": "The scores are not multiplied by `scaling`. The model sets it, and it is not always 1 / "
        "sqrt(head_dim).",
        "tail-kept": "The unused slots of the last block are included: they hold no token of this sequence.",
        "nan-leaks": "A NaN from an unused slot reached the result. A weight of 0 does not help, because 0 * NaN is "
        "NaN.",
        "overflow": "exp overflowed or underflowed: before exp, subtract the largest score that the token sees, "
        "whether it is above 0 or below.",
        "heads-first": "The result has heads before tokens. Queries come as [1, num_heads, num_tokens, head_dim]; "
        "return the result as [1, num_tokens, num_heads, head_dim].",
        "other-attention": "The result is not this step's attention.",
    },
)
TOLERANCE = 1e-3


@dataclass(frozen=True)
class _Inputs:
    """The arguments that transformers passes in one layer, the caches, and the step's integers."""

    query: np.ndarray  # [1, num_heads, num_tokens, head_dim]
    key: np.ndarray
    value: np.ndarray
    layer: int
    keys: np.ndarray  # [num_layers, num_blocks, block_size, num_kv_heads, head_dim]
    values: np.ndarray
    batch: dict[str, np.ndarray]
    scaling: float

    def written(self, rotated: bool = False, reshaped: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Both caches with this step's rows in their slots: the right ones, or those of a mistake."""
        keys, values, slots = self.keys.copy(), self.values.copy(), self.batch["slot_mapping"]
        key = rotate(self.key, self.batch["positions"]) if rotated else self.key
        for cache, rows in ((keys, key), (values, self.value)):
            turned = rows[0].swapaxes(0, 1)
            turned = rows[0].reshape(turned.shape) if reshaped else turned
            cache[self.layer].reshape(-1, *cache.shape[3:])[slots] = turned
        return keys, values

    def attend(self, keys: np.ndarray, values: np.ndarray, query: np.ndarray | None = None) -> np.ndarray:
        """The oracle's result, [1, num_tokens, num_heads, head_dim]."""
        rows = (self.query if query is None else query)[0].swapaxes(0, 1)
        b = self.batch
        return oracle(
            rows, keys[self.layer], values[self.layer], b["block_tables"], b["seq_lens"], b["query_start_loc"],
            scale=self.scaling,
        )[None]  # fmt: skip


def rotate(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """The rotary embedding shown in the exercise's notebook."""
    half = x.shape[-1] // 2
    angle = positions[:, None] / 10_000 ** (np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def _draw(
    rng: Random, lens: Sequence[tuple[int, int]], size: int, heads: tuple[int, int], unused: float = 3.0
) -> _Inputs:
    """A step in which sequences of (tokens, computed) compute their remaining tokens; unused slots: random or NaN."""
    numbers, dim, layers = numpy_rng(rng), 8, 3
    needed = [-(-n // size) for n, _ in lens]
    blocks = sum(needed) + 2
    ids = iter(rng.sample(range(blocks), blocks))
    tables = np.zeros((len(lens), max(needed)), dtype=np.int64)
    keys, values = (unused * numbers.standard_normal((layers, blocks, size, heads[1], dim)) for _ in range(2))
    slots: list[int] = []
    positions: list[int] = []
    for row, (n, computed), count in zip(tables, lens, needed, strict=True):
        row[:count] = [next(ids) for _ in range(count)]
        seen = np.arange(computed)
        for cache in (keys, values):
            cache[:, row[seen // size], seen % size] = numbers.standard_normal(
                (layers, computed, heads[1], dim)
            )
        new = np.arange(computed, n)
        slots += (row[new // size] * size + new % size).tolist()
        positions += new.tolist()
    batch = {
        "token_ids": np.arange(len(positions)),
        "positions": np.array(positions),
        "slot_mapping": np.array(slots),
        "query_start_loc": np.cumsum([0] + [n - computed for n, computed in lens]),
        "seq_lens": np.array([n for n, _ in lens]),
        "sample_rows": np.cumsum([n - computed for n, computed in lens]) - 1,
        "block_tables": tables,
    }
    step = [numbers.standard_normal((1, h, len(positions), dim)) for h in (heads[0], heads[1], heads[1])]
    query, key, value, k, v = (x.astype(np.float32) for x in (*step, keys, values))
    return _Inputs(query, key, value, rng.choice([1, 2]), k, v, batch, rng.choice([0.2, 0.6]))


def _wrong_outputs(x: _Inputs) -> dict[str, list[np.ndarray]]:
    """The result of each mistake, with the right keys and values in the cache."""
    keys, values = x.written()
    rotated_query = rotate(x.query, x.batch["positions"])
    rotated_keys = x.written(rotated=True)[0]
    group = x.query.shape[1] // x.key.shape[1]
    heads, tokens, dim = x.query.shape[1:]
    mixed = x.query[0].reshape(tokens, heads, dim).swapaxes(0, 1)[None]
    return {
        "not-itself": [_attend(x, keys, values, causal="before")],
        "reshaped": [
            x.attend(keys, values, mixed),
            x.attend(keys, values)[0].swapaxes(0, 1).reshape(1, tokens, heads, dim),
            x.attend(keys, values, mixed)[0].swapaxes(0, 1).reshape(1, tokens, heads, dim),
        ],
        "rotary-twice": [
            x.attend(keys, values, rotated_query),
            x.attend(rotated_keys, values, rotated_query),
        ],
        "read-before-write": [x.attend(x.keys, x.values)],
        "not-causal": [_attend(x, keys, values, causal="no")],
        "causal-from-row": [_attend(x, keys, values, causal="row")],
        "step-only": [_attend(x, keys, values, step_only=True)],
        "modulo": [_attend(x, keys, values, kv_head=lambda h: h % x.key.shape[1])],
        "scaling-ignored": [
            _attend(x, keys, values, scale=s, kv_head=lambda h: h // group)
            for s in (x.key.shape[-1] ** -0.5, 1)
        ],
        "tail-kept": [
            _attend(x, keys, values, tail=True),
            _attend(x, keys, values, tail=True, causal="last"),
        ],
    }


def _attend(
    x: _Inputs,
    keys: np.ndarray,
    values: np.ndarray,
    *,
    causal: str = "position",
    step_only: bool = False,
    tail: bool = False,
    scale: float | None = None,
    kv_head: Any = None,
) -> np.ndarray:
    """The step's attention with one of these mistakes."""
    b, size = x.batch, x.keys.shape[2]
    heads, group = x.query.shape[1], x.query.shape[1] // x.key.shape[1]
    output = np.zeros((1, x.query.shape[2], heads, x.query.shape[3]))
    for i, n in enumerate(b["seq_lens"]):
        start, stop = b["query_start_loc"][i : i + 2]
        for row in range(start, stop):
            p = int(b["positions"][row])
            end = -(-n // size) * size if tail else n
            last = {
                "position": p + 1,
                "before": max(p, 1),
                "no": end,
                "row": row - start + 1,
                "last": p + 1 if p < n - 1 else end,
            }[causal]
            first = n - (stop - start) if step_only else 0
            seen = np.arange(first, end if tail and causal == "position" and p == n - 1 else last)
            block, offset = b["block_tables"][i][seen // size], seen % size
            for h in range(heads):
                of = h // group if kv_head is None else kv_head(h)
                k = keys[x.layer, block, offset, of].astype(np.float64)
                scores = (x.scaling if scale is None else scale) * (k @ x.query[0, h, row])
                weights = np.exp(scores - scores.max())
                output[0, row, h] = weights @ values[x.layer, block, offset, of] / weights.sum()
    return output


def _far_from_zero(x: _Inputs, level: float) -> _Inputs:
    """The same step with scores around `level`: element 0 of all queries and keys is set."""
    query, key, keys = x.query.copy(), x.key.copy(), x.keys.copy()
    query[..., 0], key[..., 0], keys[..., 0] = 100, level / (100 * x.scaling), level / (100 * x.scaling)
    return replace(x, query=query, key=key, keys=keys)


def _check(paged_forward: Any, x: _Inputs, level: float = 0) -> None:
    keys, values = x.keys.copy(), x.values.copy()
    tolerance = 2e-2 if level else TOLERANCE
    told = f"scores around {level:,.0f}, " if level else ""
    told += f"layer {x.layer} of {len(x.keys)}, {_told(x)}, blocks of {x.keys.shape[2]}"
    answer = _call(paged_forward, x, keys, values)
    _check_caches(x, keys, values, told)
    keys, values = x.written()
    expected = x.attend(keys, values)
    got = as_array(answer, expected.shape)
    if got is None:
        turned = as_array(answer, x.query.shape)
        key = "heads-first" if turned is not None else "other-attention"
        raise Wrong(key, f"{told}: expected shape {expected.shape}, got {shape_of(answer)}.")
    right = close(got, expected, tolerance)
    if right.all():
        return
    _, row, head, i = (int(k) for k in np.argwhere(~right)[0])
    seq = int(np.searchsorted(x.batch["query_start_loc"], row, side="right")) - 1
    detail = (
        f"{told}: sequence {seq}, position {x.batch['positions'][row]}, head {head}, element {i}: expected "
        f"{expected[0, row, head, i]:.4f}, got {got[0, row, head, i]:.4f}."
    )
    if not np.isfinite(got).all():
        raise Wrong(_why_not_finite(paged_forward, x), detail)
    if np.isnan(x.keys).any():
        raise Wrong("other-attention", detail)
    named = (k for k, outs in _wrong_outputs(x).items() if any(close(got, o, TOLERANCE).all() for o in outs))
    raise Wrong(next(named, "other-attention"), detail)


def _call(paged_forward: Any, x: _Inputs, keys: np.ndarray, values: np.ndarray) -> Any:
    return paged_forward(x.query, x.key, x.value, x.layer, output(keys), output(values), x.batch, x.scaling)


def _why_not_finite(paged_forward: Any, x: _Inputs) -> str:
    """Call the answer again without NaN, then without large scores; the cause is named if the result is then finite."""
    suspects = {"nan-leaks": replace(x, keys=np.nan_to_num(x.keys), values=np.nan_to_num(x.values))}
    if not np.isnan(x.keys).any():
        suspects = {"overflow": replace(x, query=x.query * 0)}
    for key, harmless in suspects.items():
        answer = _call(paged_forward, harmless, harmless.keys.copy(), harmless.values.copy())
        got = as_array(answer, (1, x.query.shape[2], x.query.shape[1], x.query.shape[3]))
        if got is not None and np.isfinite(got).all():
            return key
    return "other-attention"


def _check_caches(x: _Inputs, keys: np.ndarray, values: np.ndarray, told: str) -> None:
    right_keys, right_values = x.written()
    same = {"equal_nan": True}
    if np.array_equal(keys, right_keys, **same) and np.array_equal(values, right_values, **same):
        return
    changed = [
        layer
        for layer in range(len(keys))
        if not np.array_equal(keys[layer], x.keys[layer], **same)
        or not np.array_equal(values[layer], x.values[layer], **same)
    ]
    if not changed:
        raise Wrong("not-written", f"{told}: key_cache and value_cache did not change.")
    if changed != [x.layer]:
        raise Wrong(
            "wrong-layer", f"{told}: layers {changed} of the caches changed, expected only layer {x.layer}."
        )
    differ: list[tuple[str, int, int]] = []
    for one, got, wanted in (("key", keys, right_keys), ("value", values, right_values)):
        if not np.array_equal(got, wanted, **same):
            at = np.argwhere(~close(np.nan_to_num(got), np.nan_to_num(wanted), 1e-6))[0]
            differ.append((one, int(at[1]), int(at[2])))
    name, block, offset = differ[0]
    twice = close(np.nan_to_num(keys), np.nan_to_num(x.written(rotated=True)[0]), 1e-5).all()
    mixed = dict(zip(("key", "value"), x.written(reshaped=True), strict=True))
    found = {"key": keys, "value": values}
    if all(close(np.nan_to_num(found[one]), np.nan_to_num(mixed[one]), 1e-6).all() for one, *_ in differ):
        raise Wrong(
            "reshaped", f"{told}: {name}_cache[{x.layer}, {block}, {offset}] holds several heads' {name}s."
        )
    slot = block * x.keys.shape[2] + offset
    whose = "this step's" if slot in x.batch["slot_mapping"] else "the old"
    detail = f"{told}: {name}_cache[{x.layer}, {block}, {offset}] (slot {slot}) should hold {whose} {name}."
    raise Wrong("rotary-twice" if twice and name == "key" else "wrong-rows", detail)


def _told(x: _Inputs) -> str:
    computed = np.diff(x.batch["query_start_loc"]).tolist()
    return f"{x.batch['seq_lens'].tolist()} tokens, of which the last {computed} are this step's"


@FORWARD.part("decode", points=5)
def _decode(rng: Random, paged_forward: Any) -> None:
    _check(paged_forward, _draw(rng, [(10, 9), (3, 2), (6, 5)], 4, (6, 2)))
    lens = [rng.randint(2, 30) for _ in range(4)]
    for heads in ((6, 2), (4, 4), (9, 3)):
        _check(paged_forward, _draw(rng, [(n, n - 1) for n in lens], rng.choice([1, 3, 8]), heads))


@FORWARD.part("prefill, and chunks after a cached prefix", points=5)
def _chunks(rng: Random, paged_forward: Any) -> None:
    _check(paged_forward, _draw(rng, [(11, 6), (5, 0), (7, 6)], 4, (6, 2)))
    lens = [rng.randint(4, 30) for _ in range(4)]
    _check(
        paged_forward, _draw(rng, [(n, rng.randint(0, n - 1)) for n in lens], rng.choice([2, 5, 8]), (9, 3))
    )


@FORWARD.part("unused slots are NaN", points=2)
def _poisoned(rng: Random, paged_forward: Any) -> None:
    _check(paged_forward, _draw(rng, [(11, 6), (5, 0), (7, 6), (9, 8)], 4, (6, 2), unused=math.nan))


@FORWARD.part("scores far above and below 0", points=3)
def _far(rng: Random, paged_forward: Any) -> None:
    for level in (-10_000.0, 10_000.0):
        _check(paged_forward, _far_from_zero(_draw(rng, [(11, 6), (5, 0), (7, 6)], 4, (6, 2)), level), level)
