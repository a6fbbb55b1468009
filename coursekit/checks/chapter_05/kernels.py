"""Checks of chapter 5, the first two kernels: a block through the table (5.1) and the masked tail (5.2)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from coursekit.checks.answers import AnswerRaised, output
from coursekit.checks.framework import Exercise, Wrong

OUT_OF_BOUNDS = "An address is outside of the array: check each index, program ids included, and each stride."
SLOW = 3.0  # Triton's interpreter is slow
UNWRITTEN = np.float32(-7e7)  # the output's elements before the launch

LOAD = Exercise(
    "5.1",
    answers=("launch", "load_block"),
    helpers=("launch",),
    kernels=True,
    misconceptions={
        "logical-for-physical": "The logical block number was used as the physical one: look the physical block up "
        "in the table.",
        "block-as-token": "The block id was used as a token index: a block has BLOCK_SIZE tokens, so block b begins "
        "at token b * BLOCK_SIZE.",
        "wrong-stride": "A stride belongs to the wrong axis: a stride is the product of all dimensions to the right "
        "of its axis.",
        "kv-head-lost": "KV head 0 was read every time: kv_head has a stride, too.",
        "out-of-bounds": OUT_OF_BOUNDS,
        "other-numbers": "These are not the block's keys.",
    },
    slowness=SLOW,
)


def run(
    launch: Any, kernel: Any, grid: tuple[int, ...], out: np.ndarray, *args: Any, **constants: Any
) -> np.ndarray:
    """Run the kernel on a copy of `out`. An out-of-bounds address is reported as the misconception of this name."""
    result = out.copy()
    try:
        launch(kernel, grid, output(result), *args, **constants)
    except AnswerRaised as raised:
        if raised.name == "OutOfBounds":
            where = f" ({raised.where})" if raised.where else ""
            raise Wrong("out-of-bounds", f"{raised.message}{where}.") from None
        raise
    return result


def written(value: np.floating[Any]) -> str:
    """Format an element of the output."""
    return "nothing: it was not written" if value == UNWRITTEN else f"{value:.4f}"


# The element that each misconception reads: the offset of (block, slot, kv_head, d), given the sizes.
Offset = Callable[..., Any]
_WRONG_OFFSETS: dict[str, list[Offset]] = {
    "block-as-token": [lambda b, s, h, d, B, H, D: ((b + s) * H + h) * D + d],
    "wrong-stride": [
        lambda b, s, h, d, B, H, D: (b * B * H + s + h) * D + d,
        lambda b, s, h, d, B, H, D: ((b * H + h) * B + s) * D + d,
        lambda b, s, h, d, B, H, D: (b * B + s + h) * D + d,
        lambda b, s, h, d, B, H, D: (b * B + s * H + h) * D + d,
        lambda b, s, h, d, B, H, D: ((b * B + s) * H) * D + h + d,
    ],
    "kv-head-lost": [lambda b, s, h, d, B, H, D: (b * B + s) * H * D + d],
}


def _right_offset(b: Any, s: Any, h: Any, d: Any, B: int, H: int, D: int) -> Any:
    return ((b * B + s) * H + h) * D + d


def _check_load(launch: Any, kernel: Any, table: list[int], head: int, B: int, H: int, D: int) -> None:
    cache = np.arange(
        max(table) * B * H * D + 4 * B * H * D, dtype=np.float32
    )  # every element equals its own offset
    tables = np.array(table, np.int32)
    out = np.full((len(table), B, D), -1, np.float32)
    sizes = {"KV_HEADS": H, "HEAD_DIM": D, "BLOCK_SIZE": B}
    got = run(launch, kernel, (len(table),), out, cache.reshape(-1, B, H, D), tables, head, **sizes)
    axes = np.ix_(tables, np.arange(B), np.arange(D))

    def read(rule: Offset, blocks: Any = None) -> Any:
        return rule(axes[0] if blocks is None else blocks, axes[1], head, axes[2], B, H, D)

    expected = read(_right_offset)
    if np.array_equal(got, expected):
        return
    wrong = {key: [read(rule) for rule in rules] for key, rules in _WRONG_OFFSETS.items()}
    logical = np.arange(len(table))[:, None, None]
    wrong = {"logical-for-physical": [read(_right_offset, logical)], **wrong}
    explained = [key for key, values in wrong.items() if any(np.array_equal(got, value) for value in values)]
    block, slot, d = (int(i) for i in np.argwhere(got != expected)[0])
    found = got[block, slot, d]
    told = "nothing was written" if found == -1 else f"the element at offset {found:,.0f}"
    raise Wrong(
        [*explained, "other-numbers"][0],
        f"table {table}, KV head {head} of {H}, cache [{len(cache) // (B * H * D)}, {B}, {H}, {D}]: "
        f"logical block {block}, slot {slot}, element {d}: "
        f"expected the element at offset {expected[block, slot, d]:,}, got: {told}.",
    )


@LOAD.part("one KV head", points=2)
def _one_head(rng: Random, launch: Any, load_block: Any) -> None:
    _check_load(launch, load_block, [6, 1, 4], 0, B=4, H=1, D=16)
    table = rng.sample(range(3, 12), 3)  # no block is at its own index
    _check_load(launch, load_block, table, 0, B=8, H=1, D=rng.choice([16, 32]))


@LOAD.part("one of several KV heads", points=4)
def _several_heads(rng: Random, launch: Any, load_block: Any) -> None:
    _check_load(launch, load_block, [6, 1, 4], 1, B=4, H=3, D=16)
    heads = rng.choice([3, 5])
    _check_load(
        launch, load_block, rng.sample(range(3, 12), 3), rng.randint(1, heads - 1), B=8, H=heads, D=16
    )


MASK = Exercise(
    "5.2",
    answers=("launch", "attend_block"),
    helpers=("launch",),
    kernels=True,
    misconceptions={
        "scored-0": "Nonexistent slots got the score 0, which is a score like any other: set them to -inf.",
        "no-mask": "Slots beyond the length are included in the attention: they hold another sequence's old data.",
        "length": "The length is off by one: slots 0 to lens - 1 exist.",
        "no-scale": "The scores were not multiplied by scale.",
        "own-scale": "The scores were multiplied by 1 / sqrt(HEAD_DIM) and not by scale, which may be another number.",
        "overflow": "exp overflowed or underflowed: before exp, subtract the largest score of the filled slots, "
        "whether it is above 0 or below.",
        "nan-leaks": "A NaN from an unused slot reached the result. A weight of 0 does not help, because 0 times "
        "NaN is NaN. Load V with the mask, and K too unless tl.where replaces its scores.",
        "out-of-bounds": OUT_OF_BOUNDS,
        "other-result": "The result is not the attention over the filled slots.",
    },
    slowness=SLOW,
)


def _attend(
    q: Any, k: Any, v: Any, length: int, scale: float, score_of_rest: float | None = None
) -> np.ndarray:
    """One query over a block; the unused slots are left out, or get one fixed score."""
    scores = scale * (k.astype(float) @ q)
    if score_of_rest is None:
        scores, v = scores[:length], v[:length]
    else:
        scores[length:] = score_of_rest
    weights = np.exp(scores - scores.max())
    return weights @ v.astype(float) / weights.sum()


def _zeroed(v: np.ndarray, length: int) -> np.ndarray:
    return np.where(np.arange(len(v))[:, None] < length, v, 0)


# The answer of each misconception, one sequence at a time.
Rule = Callable[[Any, Any, Any, int, float], np.ndarray]
_WRONG_MASKS: dict[str, list[Rule]] = {
    "scored-0": [
        lambda q, k, v, n, s: _attend(q, k, v, n, s, 0.0),
        lambda q, k, v, n, s: _attend(q, k, _zeroed(v, n), n, s, 0.0),
    ],
    "no-mask": [
        lambda q, k, v, n, s: _attend(q, k, v, len(v), s),
        lambda q, k, v, n, s: _attend(q, k, _zeroed(v, n), len(v), s),
    ],
    "length": [
        lambda q, k, v, n, s: _attend(q, k, v, min(n + 1, len(v)), s),
        lambda q, k, v, n, s: _attend(q, k, v, max(n - 1, 1), s),
    ],
    "no-scale": [lambda q, k, v, n, s: _attend(q, k, v, n, 1.0)],
    "own-scale": [lambda q, k, v, n, s: _attend(q, k, v, n, len(q) ** -0.5)],
}


def _check_mask(
    launch: Any, kernel: Any, rng: Random, lengths: list[int], B: int, D: int, nan: bool, level: float = 0
) -> None:
    """Check one launch; `level` is added to all scores."""
    draw = np.random.default_rng(rng.getrandbits(32))
    q = draw.normal(size=(len(lengths), D)).astype(np.float32)
    k, v = (draw.normal(size=(len(lengths), B, D)).astype(np.float32) for _ in range(2))
    lens, scale = np.array(lengths, np.int32), 0.4  # and not 1 / sqrt(D)

    def launched(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        out = np.full((len(lengths), D), UNWRITTEN)
        return run(launch, kernel, (len(lengths),), out, q, k, v, lens, scale, BLOCK_SIZE=B, HEAD_DIM=D)

    if level:
        q[:, 0], k[:, :, 0] = 100, level / (100 * scale)
    if nan:
        for one, length in enumerate(lengths):
            k[one, length:] = v[one, length:] = np.nan
    got = launched(q, k, v)

    def by(rule: Rule) -> np.ndarray:
        return np.stack([rule(q[i], k[i], v[i], n, scale) for i, n in enumerate(lengths)])

    expected = by(_attend)
    close = np.isclose(got, expected, rtol=2e-2 if level else 1e-3, atol=2e-2 if level else 1e-5)
    if close.all():
        return
    seq, d = (int(i) for i in np.argwhere(~close)[0])
    explained = []
    if nan and np.isnan(got[seq, d]) and np.isfinite(launched(q, *map(np.nan_to_num, (k, v)))).all():
        explained = ["nan-leaks"]
    if level and not np.isfinite(got[seq, d]) and np.isfinite(launched(0 * q, k, v)).all():
        explained = ["overflow"]
    explained += [
        key
        for key, rules in _WRONG_MASKS.items()
        if any(np.allclose(got, by(rule), rtol=1e-3, atol=1e-5) for rule in rules)
    ]
    around = f"scores around {level:,.0f}, " if level else ""
    raise Wrong(
        [*explained, "other-result"][0],
        f"{around}scale {scale}, sequence {seq} of {len(lengths)}, {lengths[seq]} of {B} slots filled, element {d}: "
        f"expected {expected[seq, d]:.4f}, got {written(got[seq, d])}.",
    )


@MASK.part("unused slots hold old values", points=2)
def _old_numbers(rng: Random, launch: Any, attend_block: Any) -> None:
    _check_mask(launch, attend_block, rng, [3, 8, 1, 5], B=8, D=16, nan=False)


@MASK.part("unused slots hold NaN", points=2)
def _not_a_number(rng: Random, launch: Any, attend_block: Any) -> None:
    lengths = [rng.randint(1, 15), 16, rng.randint(1, 15)]
    _check_mask(launch, attend_block, rng, lengths, B=16, D=16, nan=True)


@MASK.part("scores far above and below 0", points=2)
def _far(rng: Random, launch: Any, attend_block: Any) -> None:
    for level in (-10_000.0, 10_000.0):
        _check_mask(launch, attend_block, rng, [3, 8, rng.randint(2, 7)], B=8, D=16, nan=False, level=level)
