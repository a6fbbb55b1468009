"""Checks of chapter 3, where attention is computed: through the table (3.3), and block by block (3.4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import numpy as np

from coursekit.checks.answers import AnswerRaised, show
from coursekit.checks.chapter_03_inputs import (
    NOT_AN_ID,
    Inputs,
    as_array,
    close,
    draw,
    faulty,
    numpy_rng,
)
from coursekit.checks.framework import Exercise, Wrong

TOLERANCE = 1e-3  # of float32; the inputs make every wrong answer differ by more
LARGE_TOLERANCE = 2e-2  # the rounding of a score of 3,000 shows in the third place of its weight

# What a wrong kernel gets wrong, for both exercises.
_TEXTS = {
    "modulo": "Query heads are dealt out to KV heads in turn (h % num_kv_heads). Neighbours share: head h reads KV "
    "head h // (num_heads // num_kv_heads).",
    "scale-missing": "The scores are not scaled: divide them by the square root of head_dim.",
    "scale-twice": "The scores are divided by head_dim; its square root is wanted.",
    "tail-kept": "The rest of the last block takes part: its slots hold no token of this sequence.",
    "tail-scored-zero": "The rest of the last block has a score of 0. That is a score like any other, and takes its "
    "share of the weight; leave those slots out, or give them -inf.",
    "token-lost": "The last token is left out: a query sees its own key, too.",
    "swapped": "Keys and values are swapped.",
    "not-normalised": "The weights do not add up to 1: divide by their sum.",
    "nan-leaks": "An unused slot's NaN reached the result. A weight of 0 does not keep it out: 0 * NaN is NaN. Leave "
    "the slot out before anything is multiplied.",
    "unused-read": "An entry of the table past the sequence's last block was used. Anything may stand there.",
    "overflow": "exp overflowed, or vanished: subtract the largest score of all before exp.",
    "other-attention": "This is not the attention of this query over its sequence.",
}
_OF_BATCH = {
    "one-length": "Every sequence is taken to be as long as the first: each has its own length.",
    "first-table": "Every sequence reads through the first one's table: row i of block_tables belongs to sequence i.",
}

_FAULTS: dict[str, Callable[[Inputs], np.ndarray]] = {
    "modulo": lambda x: faulty(x, kv_head=lambda head, heads, kv_heads: head % kv_heads),
    "scale-missing": lambda x: faulty(x, scale=lambda d: 1.0),
    "scale-twice": lambda x: faulty(x, scale=lambda d: 1 / d),
    "tail-kept": lambda x: faulty(
        x, length=lambda x, i: -(-int(x.seq_lens[i]) // x.block_size) * x.block_size
    ),
    "tail-scored-zero": lambda x: faulty(x, tail_score_zero=True),
    "token-lost": lambda x: faulty(x, length=lambda x, i: max(1, int(x.seq_lens[i]) - 1)),
    "swapped": lambda x: faulty(x, swap=True),
    "not-normalised": lambda x: faulty(x, normalise=False),
    "one-length": lambda x: faulty(x, length=lambda x, i: int(x.seq_lens[0])),
    "first-table": lambda x: faulty(x, table_of=lambda i: 0),
}


def _compare(
    inputs: Inputs, call: Callable[[], Any], told: str, keys: Iterable[str], tolerance: float = TOLERANCE
) -> None:
    """Passes if the answer is the oracle's; otherwise names what went wrong, and where first."""
    expected = inputs.expected()
    clean = not np.isnan(inputs.key_cache).any()
    try:
        answer = call()
    except AnswerRaised as raised:
        if "IndexError" in raised.bases and NOT_AN_ID in inputs.block_tables:
            raise Wrong("unused-read", f"{told}: {raised.name}: {raised.message}.") from None
        raise
    got = as_array(answer, expected.shape)
    if got is None:
        shape = getattr(answer, "shape", None)
        found = f"shape {tuple(shape)}" if shape is not None else show(answer)
        raise Wrong("other-attention", f"{told}: expected shape {expected.shape}, got {found}.")
    right = close(got, expected, tolerance)
    if right.all():
        return
    if not np.isfinite(got).all():
        key = "overflow" if clean else "nan-leaks"
    elif clean and tolerance == TOLERANCE:
        named = (key for key in keys if key in _FAULTS and _same(got, _FAULTS[key], inputs))
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
        f"{told}: {where}, number {i}: expected {expected[seq, head, i]:.4f}, got {got[seq, head, i]:.4f}.",
    )


def _same(got: np.ndarray, fault: Callable[[Inputs], np.ndarray], inputs: Inputs) -> bool:
    try:
        return bool(close(got, fault(inputs), TOLERANCE).all())
    except IndexError:  # this mistake would have read past the table
        return False


PAGED = Exercise(
    "3.3",
    answers=("paged_attention",),
    needs=("3.2",),
    misconceptions=_TEXTS | _OF_BATCH,
)


def _paged(paged_attention: Any, inputs: Inputs, tolerance: float = TOLERANCE) -> None:
    told = f"paged_attention of {len(inputs.seq_lens)} sequences"
    _compare(inputs, lambda: paged_attention(*inputs.arguments()), told, PAGED.misconceptions, tolerance)


@PAGED.part("a ragged batch through shuffled tables", points=3)
def _ragged(rng: Random, paged_attention: Any) -> None:
    # The first sequence is the longest and has a partial block; there a wrong length or table shows as itself.
    _paged(paged_attention, draw(rng, [14, 3, 5, 6], 4, (4, 4)))
    lens = [rng.randint(1, 40) for _ in range(5)]
    _paged(paged_attention, draw(rng, [41, *lens], rng.choice([5, 8, 16]), (5, 5), 24))


@PAGED.part("several query heads share a KV head", points=2)
def _grouped(rng: Random, paged_attention: Any) -> None:
    for heads in ((9, 3), (8, 2), (5, 1)):
        lens = [23, 4, 8, 9, rng.randint(1, 30)]
        _paged(paged_attention, draw(rng, lens, rng.choice([4, 8]), heads))


@PAGED.part("unused slots hold NaN, unused table entries anything", points=2)
def _poisoned(rng: Random, paged_attention: Any) -> None:
    lens = [7, 8, 9, 16, 1, rng.randint(1, 40)]
    rng.shuffle(lens)
    _paged(paged_attention, draw(rng, lens, 8, (9, 3), unused=math.nan, padding=NOT_AN_ID))


@PAGED.part("large scores", points=1)
def _large(rng: Random, paged_attention: Any) -> None:
    inputs = draw(rng, [11, 6, 9, rng.randint(2, 30)], 4, (6, 2), score_size=500)
    _paged(paged_attention, inputs, tolerance=LARGE_TOLERANCE)


ONLINE = Exercise(
    "3.4",
    answers=("absorb", "attend_blocks"),
    misconceptions={
        "not-rescaled": "When the largest score rises, what was summed so far is too large: `total` *and* `acc` must "
        "be multiplied by exp(old top - new top).",
        "total-not-rescaled": "`acc` is rescaled when the largest score rises, `total` is not: both were summed with "
        "the old one subtracted.",
        "acc-not-rescaled": "`total` is rescaled when the largest score rises, `acc` is not: both were summed with the "
        "old one subtracted.",
        "rescale-inverted": "The sums are multiplied by exp(new top - old top): that is upside down. What was summed "
        "so far is too *large* when the top rises.",
        "divides-early": "`acc` was divided already. Keep the bare sum, and divide once, at the very end.",
        "forgets": "The state holds the last block alone: what was summed before must be kept.",
        "not-a-state": "absorb must return three things: top, total and acc.",
        "other-state": "acc / total is not the attention over the tokens absorbed so far.",
        **{
            key: _TEXTS[key]
            for key in (
                "modulo",
                "scale-missing",
                "tail-kept",
                "nan-leaks",
                "unused-read",
                "overflow",
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


def _check_absorb(
    absorb: Any, blocks: list[np.ndarray], values: list[np.ndarray], large: bool = False
) -> None:
    """After every block, acc / total must be the attention so far, and top + log(total) its log-sum-exp."""
    d = values[0].shape[1]
    start: _State = (-math.inf, 0.0, np.zeros(d))
    state, right = start, start
    for number, (scores, rows) in enumerate(zip(blocks, values, strict=True)):
        right = _absorb(right, scores, rows)
        state = _as_state(absorb(state[0], state[1], state[2].copy(), scores.copy(), rows.copy()), d)
        if all(np.isfinite(x).all() for x in state) and state[1] > 0 and _agree(state, right):
            continue
        shown = [[round(float(score), 1) for score in block] for block in blocks[: number + 1]]
        place = f"absorb, after block {number} (scores so far {show(shown)})"
        got = (state[0], state[1], state[2][0])
        expected = (right[0], right[1], right[2][0])
        detail = f"{place}: (top, total, acc[0]): {_three(expected)} would do, got {_three(got)}."
        if not all(np.isfinite(x).all() for x in state) or state[1] <= 0:
            # The factor of the first block, exp(-inf), is 0; upside down it is inf, and inf * 0 is NaN.
            raise Wrong("overflow" if large or number else "rescale-inverted", detail)
        raise Wrong(next(_explained(start, blocks[: number + 1], values, state), "other-state"), detail)


def _agree(state: _State, right: _State) -> bool:
    exact = np.append(right[2] / right[1], right[0] + math.log(right[1]))
    return bool(close(np.append(state[2] / state[1], state[0] + math.log(state[1])), exact, 1e-4).all())


def _explained(
    start: _State, blocks: list[np.ndarray], values: list[np.ndarray], got: _State
) -> Iterable[str]:
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
        raise Wrong("not-a-state", f"Wanted are two numbers and {d} numbers, got {show(answer)}.")
    return float(top), float(total), acc


def _three(numbers: tuple[float, ...]) -> str:
    return "(" + ", ".join(f"{float(x):.4g}" for x in numbers) + ")"


@ONLINE.part("one block after the other", points=3)
def _blocks(rng: Random, absorb: Any, attend_blocks: Any) -> None:
    numbers = numpy_rng(rng)
    for tops in ([0.5, 2.0, 1.0, 3.5], [3.0, 1.0, 2.0], [rng.uniform(-3, 3) for _ in range(6)]):
        sizes = [rng.randint(2, 5) for _ in tops]
        scores = [top - np.append(0, numbers.random(n - 1)) for top, n in zip(tops, sizes, strict=True)]
        values = [numbers.standard_normal((n, 4)) for n in sizes]
        _check_absorb(absorb, scores, values)


@ONLINE.part("large scores", points=2)
def _large_blocks(rng: Random, absorb: Any, attend_blocks: Any) -> None:
    numbers = numpy_rng(rng)
    for tops in ([10.0, 2000.0, 900.0], [-2000.0, -2001.0], [1500.0, -1500.0, rng.uniform(1400, 1600)]):
        scores = [top - np.append(0, numbers.random(2)) for top in tops]
        values = [numbers.standard_normal((3, 4)) for _ in tops]
        _check_absorb(absorb, scores, values, large=True)


@ONLINE.part("one query over the blocks of a table", points=3)
def _over_a_table(rng: Random, absorb: Any, attend_blocks: Any) -> None:
    def run(inputs: Inputs, tolerance: float = TOLERANCE) -> None:
        query, keys, values, tables, lens = inputs.arguments()

        def call() -> Any:
            got = attend_blocks(query[0], keys, values, tables[0], int(lens[0]))
            return got[None] if isinstance(got, np.ndarray) else [got]

        _compare(inputs, call, f"attend_blocks, seq_len {lens[0]}", ONLINE.misconceptions, tolerance)

    run(draw(rng, [14], 4, (9, 3)))
    for n in (1, 7, 8, 9, rng.randint(10, 60)):
        run(draw(rng, [n], 8, rng.choice([(9, 3), (8, 2), (5, 1)]), unused=math.nan, padding=NOT_AN_ID))
    run(draw(rng, [23], 8, (9, 3), score_size=500), LARGE_TOLERANCE)
