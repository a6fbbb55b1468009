"""Check of chapter 3: softmax block by block (3.4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np

from coursekit.checks.answers import output, show
from coursekit.checks.chapter_03.attention import LARGE_TOLERANCE, TEXTS, TOLERANCE, compare
from coursekit.checks.chapter_03.inputs import (
    NOT_AN_ID,
    Inputs,
    as_array,
    close,
    draw,
    draw_extreme,
    numpy_rng,
)
from coursekit.checks.framework import CHANGES, Arguments, Exercise, Wrong, show_got

ONLINE = Exercise(
    "3.4",
    answers=("absorb", "attend_blocks"),
    misconceptions={
        "not-rescaled": "When the maximum score rises, the sums so far are too large: multiply both `total` *and* "
        "`acc` by exp(old top - new top).",
        "total-not-rescaled": "When the maximum score rises, `acc` is rescaled but `total` is not: both were summed "
        "with the old maximum subtracted.",
        "acc-not-rescaled": "When the maximum score rises, `total` is rescaled but `acc` is not: both were summed "
        "with the old maximum subtracted.",
        "block-rescaled": "The current block's contribution is also multiplied by exp(old top - new top). It was "
        "computed with the new top already: rescale only the earlier sums.",
        "old-top": "The block's weights are computed with the old top, which is -inf at first: exp(score - new top) "
        "is wanted.",
        "top-lost": "`top` must become the larger of the old top and the block's largest score, and be returned.",
        "rescale-inverted": "The sums are multiplied by exp(new top - old top), which is the inverse of the right "
        "factor. When the top rises, the earlier sums are too *large*.",
        "divides-early": "`acc` is already divided. Keep the undivided sum, and divide once at the very end.",
        "forgets": "The state covers only the last block: keep the earlier sums.",
        "not-a-state": "absorb must return three values: top, total and acc.",
        **CHANGES,
        "other-state": "acc / total is not the attention over the tokens absorbed so far.",
        **{
            key: TEXTS[key]
            for key in (
                "modulo",
                "scale-missing",
                "tail-kept",
                "last-block-lost",
                "nan-leaks",
                "unused-read",
                "overflow",
                "low-precision",
                "other-attention",
            )
        },
    },
)

_State = tuple[float, float, np.ndarray]


def _absorb(state: _State, scores: np.ndarray, values: np.ndarray) -> _State:
    top, total, acc = state
    new_top = max(top, float(scores.max()))
    weights, rescale = np.exp(scores - new_top), float(np.exp(top - new_top))
    return new_top, total * rescale + float(weights.sum()), acc * rescale + weights @ values


def _rescaled_by(total_too: bool, acc_too: bool, inverted: bool = False) -> Callable[..., _State]:
    def absorb(state: _State, scores: np.ndarray, values: np.ndarray) -> _State:
        top, total, acc = state
        new_top = max(top, float(scores.max()))
        weights = np.exp(scores - new_top)
        rescale = float(np.exp(new_top - top if inverted and total else top - new_top))
        total *= rescale if total_too else 1
        return new_top, total + float(weights.sum()), acc * (rescale if acc_too else 1) + weights @ values

    return absorb


def _dividing(state: _State, scores: np.ndarray, values: np.ndarray) -> _State:
    top, total, acc = _absorb(state, scores, values)
    return top, total, acc / total


def _forgetting(state: _State, scores: np.ndarray, values: np.ndarray) -> _State:
    return _absorb((-math.inf, 0.0, np.zeros_like(state[2])), scores, values)


def _dividing_weights(state: _State, scores: np.ndarray, values: np.ndarray) -> _State:
    top, _, acc = state
    new_top, new_total, _ = _absorb(state, scores, values)
    weights = np.exp(scores - new_top)
    return new_top, new_total, acc * np.exp(top - new_top) + weights / weights.sum() @ values


_WRONG_STATES: dict[str, list[Callable[..., _State]]] = {
    "not-rescaled": [_rescaled_by(False, False)],
    "total-not-rescaled": [_rescaled_by(False, True)],
    "acc-not-rescaled": [_rescaled_by(True, False)],
    "rescale-inverted": [_rescaled_by(True, True, inverted=True)],
    "divides-early": [_dividing, _dividing_weights],
    "forgets": [_forgetting],
}


def _check_absorb(absorb: Any, blocks: list[np.ndarray], values: list[np.ndarray]) -> None:
    """After every block, acc / total must be the attention so far, and top + log(total) its log-sum-exp."""
    d = values[0].shape[1]
    start: _State = (-math.inf, 0.0, np.zeros(d))
    state, right = start, start
    for number, (scores, rows) in enumerate(zip(blocks, values, strict=True)):
        right = _absorb(right, scores, rows)
        given = Arguments(scores=scores.copy(), values=rows.copy())
        state = _as_state(absorb(state[0], state[1], state[2].copy(), *given.passed()), d)
        if all(np.isfinite(x).all() for x in state) and state[1] > 0 and _agree(state, right):
            given.check_unchanged(f"absorb, block {number}")
            continue
        shown = [[round(float(score), 1) for score in block] for block in blocks[: number + 1]]
        place = f"absorb, after block {number} (scores so far {show(shown)})"
        got = (state[0], state[1], state[2][0])
        expected = (right[0], right[1], right[2][0])
        detail = f"{place}: (top, total, acc[0]): for instance {_three(expected)}, got {_three(got)}."
        if not all(np.isfinite(x).all() for x in state) or state[1] <= 0:
            seen = np.concatenate(blocks[: number + 1])
            raise Wrong(_not_numbers(state, number == 0, seen), detail)
        raise Wrong(next(_explained(start, blocks[: number + 1], values, state), "other-state"), detail)


def _not_numbers(state: _State, first: bool, scores: np.ndarray) -> str:
    """Return why a state is infinite, NaN or without a positive total, after these scores."""
    top, total, _ = state
    if not math.isfinite(top):
        return "top-lost"
    far = float(np.abs(scores).max()) > 80  # exp(±80) has a value even in float32
    if not first:
        return "overflow" if far else "other-state"
    if total <= 0 and scores.max() < -80:
        return "overflow"
    # The first block's factor, exp(-inf), is 0. Inverted it is inf, and inf * 0 is NaN.
    return "rescale-inverted" if math.isnan(total) else "block-rescaled" if total <= 0 else "old-top"


def _agree(state: _State, right: _State) -> bool:
    exact = np.append(right[2] / right[1], right[0] + math.log(right[1]))
    return bool(close(np.append(state[2] / state[1], state[0] + math.log(state[1])), exact, 1e-4).all())


def _explained(
    start: _State, blocks: list[np.ndarray], values: list[np.ndarray], got: _State
) -> Iterator[str]:
    for key, rules in _WRONG_STATES.items():
        for rule in rules:
            state = start
            with np.errstate(all="ignore"):
                for scores, rows in zip(blocks, values, strict=False):
                    state = rule(state, scores, rows)
            if all(close(np.asarray(g), np.asarray(s), 1e-4).all() for g, s in zip(got, state, strict=True)):
                yield key


def _as_state(answer: Any, d: int) -> _State:
    parts = list(answer) if isinstance(answer, tuple | list) else []
    top, total, acc = (
        (as_array(parts[0], ()), as_array(parts[1], ()), as_array(parts[2], (d,)))
        if len(parts) == 3
        else (None,) * 3
    )
    if top is None or total is None or acc is None:
        raise Wrong(
            "not-a-state", f"Expected two numbers and an array of {d} values, got {show_got(answer)}."
        )
    return float(top), float(total), acc


def _three(numbers: tuple[float, ...]) -> str:
    return "(" + ", ".join(f"{float(x):.4g}" for x in numbers) + ")"


@ONLINE.part("one block at a time", points=4)
def _blocks(rng: Random, absorb: Any, attend_blocks: Any) -> None:
    numbers = numpy_rng(rng)
    for tops in ([0.5, 2.0, 1.0, 3.5], [3.0, 1.0, 2.0], [rng.uniform(-3, 3) for _ in range(6)]):
        sizes = [rng.randint(2, 5) for _ in tops]
        scores = [top - np.append(0, numbers.random(n - 1)) for top, n in zip(tops, sizes, strict=True)]
        values = [numbers.standard_normal((n, 4)) for n in sizes]
        _check_absorb(absorb, scores, values)


@ONLINE.part("large scores", points=3)
def _large_blocks(rng: Random, absorb: Any, attend_blocks: Any) -> None:
    numbers = numpy_rng(rng)
    for tops in (
        [10.0, 2000.0, 900.0],
        [-2000.0, -2001.0],
        [1500.0, -1500.0, rng.uniform(1400, 1600)],
        [-10_000.0, -9_999.0, -10_001.0],
        [10_000.0, 10_001.0, 9_999.0],
    ):
        scores = [top - np.append(0, numbers.random(2)) for top in tops]
        values = [numbers.standard_normal((3, 4)) for _ in tops]
        _check_absorb(absorb, scores, values)


@ONLINE.part("one query over the blocks of a table", points=4)
def _over_a_table(rng: Random, absorb: Any, attend_blocks: Any) -> None:
    def run(inputs: Inputs, tolerance: float = TOLERANCE, extreme: bool = False) -> None:
        def call(query: Any, keys: Any, values: Any, tables: Any, lens: Any) -> Any:
            one, table = output(query.value[0]), output(tables.value[0])
            got = attend_blocks(one, keys, values, table, int(lens.value[0]))
            return got[None] if isinstance(got, np.ndarray) else [got]

        told = f"attend_blocks, seq_len {inputs.seq_lens[0]}" + ", scores around ±10,000" * extreme
        compare(inputs, call, told, ONLINE.misconceptions, tolerance, extreme)

    run(draw(rng, [14], 4, (9, 3)))
    for n in (1, 7, 8, 9, rng.randint(10, 60)):
        run(draw(rng, [n], 8, rng.choice([(9, 3), (8, 2), (5, 1)]), unused=math.nan, padding=NOT_AN_ID))
    both = draw_extreme(rng, [14, 14], 4, (6, 3))
    for seq in (0, 1):
        tables, lens = both.block_tables[seq : seq + 1], both.seq_lens[seq : seq + 1]
        one = Inputs(both.query[seq : seq + 1], both.key_cache, both.value_cache, tables, lens)
        run(one, LARGE_TOLERANCE, extreme=True)
    run(draw(rng, [23], 8, (9, 3), score_size=500), LARGE_TOLERANCE)
