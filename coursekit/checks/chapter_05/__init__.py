"""Checks of chapter 5: merging parts (5.4) and the roofline (5.5); the kernels are in `kernels.py` and `decode.py`."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from coursekit.checks.chapter_05 import decode, kernels  # noqa: F401  register their exercises
from coursekit.checks.framework import CHANGES, Arguments, Exercise, Wrong, difference, show_got

MERGE = Exercise(
    "5.4",
    answers=("merge",),
    misconceptions={
        "averages": "The two results were averaged with equal weights: weigh each by the sum of exp(score) of its "
        "keys.",
        "ignores-lse": "The parts are not weighted by exp(lse): an lse is a logarithm, and its exponential is the "
        "weight.",
        "lse-wrong": "The result is right, but its lse is not. Return log(exp(lse_a) + exp(lse_b)), the logarithm "
        "of the sum over both parts; a further merge needs it.",
        "overflow": "exp(lse) overflows: subtract the larger lse from both first. The weights stay the same.",
        "empty": "A part without keys must not contribute, whatever its result holds. Its lse is -inf; -inf minus "
        "-inf is NaN, and so is 0 times NaN.",
        "no-pair": "merge must return a pair: the result [heads, d] and its lse [heads].",
        **CHANGES,
        "other-merge": "The result is not the attention over both parts.",
    },
)

Part = tuple[np.ndarray, np.ndarray]


def _generator(rng: Random) -> np.random.Generator:
    return np.random.default_rng(rng.getrandbits(32))


def _part(draw: np.random.Generator, heads: int, shift: float = 0.0) -> Part:
    """Build a result and its lse, with scores around `shift`. Lengths differ, so the parts have different weights."""
    lse = draw.normal(size=heads) + shift + draw.choice([-2.0, 2.0], size=heads)
    return draw.normal(size=(heads, 6)), lse


def _merged(a: Part, b: Part) -> Part:
    top = np.maximum(a[1], b[1])
    shift = np.where(np.isneginf(top), 0.0, top)
    weights = [np.exp(lse - shift) for _, lse in (a, b)]
    parts = [
        w[:, None] * np.where(w[:, None] > 0, out, 0.0) for w, (out, _) in zip(weights, (a, b), strict=True)
    ]
    total = weights[0] + weights[1]
    with np.errstate(divide="ignore"):
        return sum(parts) / np.where(total > 0, total, 1.0)[:, None], shift + np.log(total)


def _by(weigh: Callable[[np.ndarray], np.ndarray]) -> Callable[[Part, Part], np.ndarray]:
    """The wrong rule that weighs a part by this function of its lse."""

    def rule(a: Part, b: Part) -> np.ndarray:
        weights = weigh(a[1])[:, None], weigh(b[1])[:, None]
        with np.errstate(all="ignore"):
            return (weights[0] * a[0] + weights[1] * b[0]) / (weights[0] + weights[1])

    return rule


_WRONG_MERGES: dict[str, list[Callable[[Part, Part], np.ndarray]]] = {
    "averages": [_by(np.ones_like), lambda a, b: a[0] + b[0]],
    "ignores-lse": [_by(lambda lse: lse), _by(np.abs)],
}


def _check_merge(a: Part, b: Part, merge: Any, told: str, suspect: str = "") -> None:
    """Raise Wrong; with `suspect`, "overflow" or "empty", where that can be the cause and nothing else explains it."""
    given = Arguments(out_a=a[0].copy(), lse_a=a[1].copy(), out_b=b[0].copy(), lse_b=b[1].copy())
    answer = merge(*given.passed())
    call = f"merge of two parts with {a[1].size} heads ({told})"
    if not isinstance(answer, list | tuple) or len(answer) != 2:
        raise Wrong("no-pair", f"{call}: got {show_got(answer)}.")
    expected, got = _merged(a, b), [np.asarray(x, float) for x in answer]
    if got[0].shape != expected[0].shape or got[1].reshape(-1).shape != expected[1].shape:
        raise Wrong(
            "no-pair", difference(f"{call}: shapes", [x.shape for x in expected], [x.shape for x in got])
        )
    if not np.allclose(got[0], expected[0], rtol=1e-4, atol=1e-6):
        explained = [
            name
            for name, rules in _WRONG_MERGES.items()
            if any(np.allclose(got[0], rule(a, b), rtol=1e-6) for rule in rules)
        ]
        close = np.isclose(got[0], expected[0], rtol=1e-4, atol=1e-6)
        head, d = (int(i) for i in np.argwhere(~close)[0])
        lse = f"lse_a = {a[1][head]:.4g}, lse_b = {b[1][head]:.4g}"
        values = f"a has {a[0][head, d]:.4g}, b {b[0][head, d]:.4g}"
        place = f"{call}, head {head}, element {d}, with {lse}; {values}"
        fits = _is_caused_by(suspect, merge, a, b, head)
        raise Wrong(
            [*explained, suspect if fits else "other-merge"][0],
            difference(place, _round(expected[0][head, d]), _round(got[0][head, d])),
        )
    close = np.isclose(got[1].reshape(-1), expected[1], rtol=1e-6, atol=1e-4)
    if not close.all():
        head = int(np.argwhere(~close)[0][0])
        place = f"{call}, head {head}, with lse_a = {a[1][head]:.4g} and lse_b = {b[1][head]:.4g}: lse"
        value = float(got[1].reshape(-1)[head])
        fits = _is_caused_by(suspect, merge, a, b, head)
        raise Wrong(
            suspect if fits else "lse-wrong", difference(place, _round(expected[1][head]), _round(value))
        )
    given.check_unchanged(call)


def _is_caused_by(suspect: str, merge: Any, a: Part, b: Part, head: int) -> bool:
    """Return True if the head has an empty part, or if the answer is right with the same parts near 0."""
    if suspect == "empty":
        return bool(np.isneginf([a[1][head], b[1][head]]).any())
    if suspect != "overflow":
        return False
    near = [(out.copy(), lse - a[1].mean()) for out, lse in (a, b)]
    answer = merge(*(array.copy() for part in near for array in part))
    got = [np.asarray(x, float) for x in answer] if isinstance(answer, list | tuple) else []
    right = _merged(*near)
    return len(got) == 2 and all(
        g.size == r.size and np.allclose(g.reshape(r.shape), r, rtol=1e-4, atol=1e-6)
        for g, r in zip(got, right, strict=True)
    )


def _round(value: float) -> float:
    return float(f"{value:.5g}")


@MERGE.part("two parts", points=4)
def _two_parts(rng: Random, merge: Any) -> None:
    draw = _generator(rng)
    needle = (np.array([[1.0, 2.0], [3.0, -1.0]]), np.array([2.0, 1.0]))
    rest = (np.array([[5.0, -4.0], [0.5, 7.0]]), np.array([6.0, 1.5]))
    _check_merge(needle, rest, merge, "one outweighs the other")
    for heads in (3, rng.randint(4, 9)):
        _check_merge(_part(draw, heads), _part(draw, heads), merge, "random")


@MERGE.part("large and small scores", points=2)
def _large(rng: Random, merge: Any) -> None:
    draw = _generator(rng)
    for shift in (10_000.0, -10_000.0):
        _check_merge(
            _part(draw, 4, shift), _part(draw, 4, shift), merge, f"an lse of about {shift:.0f}", "overflow"
        )


@MERGE.part("empty parts", points=2)
def _empty(rng: Random, merge: Any) -> None:
    draw = _generator(rng)
    for filler in (0.0, np.nan):
        a, b = _part(draw, 4), _part(draw, 4)
        for out, lse in (a, b):
            out[[0], :], lse[0] = filler, -np.inf  # both parts are empty
        a[0][1, :], a[1][1] = filler, -np.inf
        b[0][2, :], b[1][2] = filler, -np.inf
        _check_merge(a, b, merge, f"some heads empty, with {filler:g} as their result", "empty")


ROOF = Exercise(
    "5.5",
    answers=("decode_bytes", "roofline"),
    misconceptions={
        "query-heads": "You counted bytes for every query head, but query heads that share a KV head read the same "
        "bytes.",
        "one-of-two": "Half of the bytes are missing: keys *and* values are read.",
        "bits": "This is in bits, or in elements: an element has number_bytes bytes.",
        "one-sequence": "Every sequence reads its own keys and values: add the lengths up.",
        **CHANGES,
        "other-bytes": "The number of bytes read is wrong.",
        "higher-roof": "The *lower* of the two limits counts: take the minimum.",
        "peak-only": "Memory bandwidth is a limit, too: a few operations on many bytes never reach the peak.",
        "memory-only": "The peak is a limit, too: with many operations per byte, arithmetic is the bottleneck.",
        "inverted": "Arithmetic intensity is operations per byte, flops / num_bytes, and not its inverse.",
        "other-roof": "The attainable performance is wrong.",
    },
)


@ROOF.part("bytes", points=3)
def _bytes(rng: Random, decode_bytes: Any, roofline: Any) -> None:
    cases: list[tuple[list[int], int, int, int, int]] = [
        ([100, 37, 3], 15, 3, 64, 4),
        ([5000], 32, 8, 128, 2),
    ]
    for _ in range(4):
        kv_heads, lengths = rng.choice([2, 3, 8]), [rng.randint(1, 900) for _ in range(rng.randint(2, 5))]
        cases.append(
            (
                lengths,
                kv_heads * rng.choice([3, 5, 7]),
                kv_heads,
                rng.choice([64, 96, 128]),
                rng.choice([1, 2, 4]),
            )
        )
    for lengths, heads, kv_heads, dim, size in cases:
        given = Arguments(lengths=list(lengths))
        got = decode_bytes(*given.passed("lengths"), heads, kv_heads, dim, size)
        expected = 2 * sum(lengths) * kv_heads * dim * size
        if got == expected and not isinstance(got, bool):
            given.check_unchanged(f"decode_bytes({lengths}, {heads}, {kv_heads}, {dim}, {size})")
            continue
        wrong = {
            "query-heads": [
                2 * sum(lengths) * heads * dim * size,
                sum(lengths) * (heads + kv_heads) * dim * size,
            ],
            "one-of-two": [expected // 2],
            "bits": [8 * expected, expected // size],
            "one-sequence": [
                2 * n * kv_heads * dim * size for n in (max(lengths), lengths[0], len(lengths), 1)
            ],
        }
        explained = [
            key for key, values in wrong.items() if any(got == value != expected for value in values)
        ]
        call = f"decode_bytes({lengths}, {heads}, {kv_heads}, {dim}, {size})"
        raise Wrong([*explained, "other-bytes"][0], difference(call, expected, got))


@ROOF.part("the roof", points=3)
def _roof(rng: Random, decode_bytes: Any, roofline: Any) -> None:
    cases = [(4e9, 1e9, 989e12, 3.35e12), (4e12, 1e9, 989e12, 3.35e12)]  # below the ridge, above it
    for _ in range(6):
        peak, bandwidth, num_bytes = rng.uniform(1e12, 1e15), rng.uniform(1e11, 5e12), rng.uniform(1e6, 1e10)
        ridge = peak / bandwidth
        cases.append((num_bytes * ridge * rng.choice([0.01, 0.1, 0.7, 1.5, 20]), num_bytes, peak, bandwidth))
    for flops, num_bytes, peak, bandwidth in cases:
        got, by_memory = roofline(flops, num_bytes, peak, bandwidth), bandwidth * flops / num_bytes
        expected = min(peak, by_memory)
        if isinstance(got, int | float) and np.isclose(got, expected, rtol=1e-6):
            continue
        inverted = bandwidth * num_bytes / flops
        wrong = {
            "higher-roof": max(peak, by_memory),
            "peak-only": peak,
            "memory-only": by_memory,
            "inverted": min(peak, inverted),
        }
        explained = [
            key for key, value in wrong.items() if isinstance(got, int | float) and np.isclose(got, value)
        ]
        if {"higher-roof", "peak-only"} <= set(explained) or {"higher-roof", "memory-only"} <= set(explained):
            explained = _told_apart(roofline, explained)
        call = f"roofline({flops:.4g}, {num_bytes:.4g}, {peak:.4g}, {bandwidth:.4g})"
        raise Wrong([*explained, "other-roof"][0], difference(call, _round(expected), got))


def _told_apart(roofline: Any, explained: list[str]) -> list[str]:
    """Inputs below and above the ridge, on which no two of the rules agree."""
    low, high = (roofline(flops, 1.0, 100.0, 10.0) for flops in (1.0, 1000.0))
    kind = {(100.0, 10000.0): "higher-roof", (100.0, 100.0): "peak-only", (10.0, 10000.0): "memory-only"}
    found = kind.get((low, high))
    return [found] if found else explained
