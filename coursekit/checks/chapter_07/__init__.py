"""Checks of chapter 7 on integers: the batch of one step (7.1) and the cost of samples (7.4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Any

import numpy as np

from coursekit.checks.answers import AnswerRaised, Proxy, show
from coursekit.checks.chapter_07 import attention, decode  # noqa: F401  register their exercises
from coursekit.checks.framework import CHANGES, Arguments, Exercise, Wrong, as_list, difference, is_whole

BATCH = Exercise(
    "7.1",
    answers=("make_batch",),
    misconceptions={
        "all-tokens": "Tokens whose keys and values are cached are computed again: the row holds only the tokens "
        "from num_computed on.",
        "padded": "The row is padded: it holds the tokens of all sequences, one sequence after another, and nothing "
        "else.",
        "positions-restart": "Positions restart at 0 in every step. A token's position is its index in its whole "
        "sequence: the first token of this step is at num_computed.",
        "positions-flat": "Positions continue across sequences: count them separately in each sequence.",
        "slots-next": "The slots belong to the *next* tokens: token p is stored in the slot of position p.",
        "slots-logical": "A slot was computed without the table: position p is in physical block table[p // "
        "block_size].",
        "starts": "query_start_loc has one entry more than there are sequences: it begins with 0 and ends with the "
        "length of the row.",
        "lens-new-only": "seq_lens counts only this step's tokens: count all of the sequence's tokens in the cache, "
        "those of earlier steps included.",
        "lens-before": "seq_lens does not count this step's tokens. They are stored before attention reads, and a "
        "token sees itself.",
        "sample-next": "sample_rows is one too high: it points to the first row of the next sequence.",
        "sample-first": "sample_rows points to the first row of each sequence: the *last* token predicts the next one.",
        "tables": "Row i of block_tables must begin with the blocks of sequence i.",
        "not-arrays": "Each of the seven must be a NumPy array with an integer dtype: the model and the cache use them "
        "as indices.",
        **CHANGES,
        "other-batch": "The batch of this step is wrong.",
    },
)

FIELDS = (
    "token_ids",
    "positions",
    "slot_mapping",
    "query_start_loc",
    "seq_lens",
    "sample_rows",
    "block_tables",
)


@dataclass(frozen=True)
class _Case:
    """Sequences: their tokens, the number computed, and their tables."""

    tokens: list[list[int]]
    computed: list[int]
    tables: list[list[int]]
    size: int

    @property
    def new(self) -> list[range]:
        """The positions that each sequence computes."""
        return [range(c, len(t)) for t, c in zip(self.tokens, self.computed, strict=True)]

    @property
    def starts(self) -> list[int]:
        """The start of each sequence in the row, and the end of the row."""
        return [0, *accumulate(len(new) for new in self.new)]

    def per_token(self, value: Callable[[int, int], int]) -> list[int]:
        """One integer for each token of the row, a function of its sequence and its position."""
        return [value(i, p) for i, new in enumerate(self.new) for p in new]

    def slot(self, i: int, p: int) -> int:
        """The slot of sequence i's position p; -1 past its table."""
        logical, table = p // self.size, self.tables[i]
        return table[logical] * self.size + p % self.size if logical < len(table) else -1


_Field = Callable[[_Case], list[int]]
_RIGHT: dict[str, _Field] = {
    "token_ids": lambda c: c.per_token(lambda i, p: c.tokens[i][p]),
    "positions": lambda c: c.per_token(lambda i, p: p),
    "slot_mapping": lambda c: c.per_token(c.slot),
    "query_start_loc": lambda c: c.starts,
    "seq_lens": lambda c: [len(tokens) for tokens in c.tokens],
    "sample_rows": lambda c: [start - 1 for start in c.starts[1:]],
}
_WRONG: dict[str, dict[str, _Field]] = {
    "token_ids": {"all-tokens": lambda c: [token for tokens in c.tokens for token in tokens]},
    "positions": {
        "positions-restart": lambda c: c.per_token(lambda i, p: p - c.computed[i]),
        "positions-flat": lambda c: list(range(c.starts[-1])),
    },
    "slot_mapping": {
        "slots-next": lambda c: c.per_token(lambda i, p: c.slot(i, p + 1)),
        "slots-logical": lambda c: c.per_token(lambda i, p: p),
    },
    "seq_lens": {
        "lens-new-only": lambda c: [len(new) for new in c.new],
        "lens-before": lambda c: list(c.computed),
    },
    "sample_rows": {
        "sample-next": lambda c: c.starts[1:],
        "sample-first": lambda c: c.starts[:-1],
    },
}


def _draw(rng: Random, lens: Sequence[tuple[int, int]], size: int) -> _Case:
    """Build sequences of (tokens, computed), in shuffled blocks."""
    needed = [-(-n // size) for n, _ in lens]
    ids = iter(rng.sample(range(sum(needed) + 4), sum(needed)))
    return _Case(
        [[rng.randint(100, 999) for _ in range(n)] for n, _ in lens],
        [computed for _, computed in lens],
        [[next(ids) for _ in range(count)] for count in needed],
        size,
    )


def _check_batch(make_batch: Any, case: _Case) -> None:
    told = f"sequences of {_lens(case)} tokens, {case.computed} of them computed, blocks of {case.size}"
    tokens, tables = ([list(row) for row in rows] for rows in (case.tokens, case.tables))
    given = Arguments(token_ids=tokens, num_computed=list(case.computed), tables=tables)
    try:
        answer = make_batch(*given.passed(), case.size)
    except AnswerRaised as raised:
        short = any(case.slot(i, len(t)) < 0 for i, t in enumerate(case.tokens))
        if "IndexError" in raised.bases and short:  # only a position past the end is outside of the table
            raise Wrong("slots-next", f"{told}: {raised.name}: {raised.message}.") from None
        raise
    if not isinstance(answer, dict) or set(FIELDS) - set(answer):
        lacking = sorted(set(FIELDS) - set(answer)) if isinstance(answer, dict) else show(answer)
        raise Wrong(
            "other-batch", f"{told}: return a dictionary with {', '.join(FIELDS)}; missing: {lacking}."
        )
    for field, right in _RIGHT.items():
        got, expected = as_list(answer[field]), right(case)
        if got != expected or not all(is_whole(value) for value in got):
            raise Wrong(_name(field, got, case), f"{told}: {_first_difference(field, got, expected, case)}")
        _must_be_integers(field, answer[field], told)
    if isinstance(answer["block_tables"], Proxy):
        _must_be_integers("block_tables", answer["block_tables"], told)
    rows = [as_list(row) for row in as_list(answer["block_tables"])]
    for i, table in enumerate(case.tables):
        row = rows[i] if i < len(rows) else []
        if row[: len(table)] != table or len({len(r) for r in rows}) > 1:
            raise Wrong("tables", f"{told}: {difference(f'block_tables[{i}]', table, row)}")
    _must_be_integers("block_tables", answer["block_tables"], told)
    given.check_unchanged(told)


def _must_be_integers(field: str, value: Any, told: str) -> None:
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu":
        return
    kind = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
    kind = "not an array of numbers" if isinstance(value, Proxy) else kind
    raise Wrong("not-arrays", f"{told}: {field} is {kind}.")


def _name(field: str, got: list[Any], case: _Case) -> str:
    longest = max(map(len, case.new))
    named = (key for key, wrong in _WRONG.get(field, {}).items() if wrong(case) == got)
    if field == "query_start_loc":
        return "starts"
    if field == "token_ids" and len(got) == longest * len(case.new) != case.starts[-1]:
        return "padded"
    return next(named, "other-batch")


def _first_difference(field: str, got: list[Any], expected: list[int], case: _Case) -> str:
    if len(got) != len(expected):
        return f"{field}: expected {len(expected)} entries, {show(expected)}, got {len(got)}, {show(got)}."
    at = next((k for k, (g, e) in enumerate(zip(got, expected, strict=True)) if g != e or not is_whole(g)), 0)
    place = f"{field}[{at}]"
    if len(expected) == case.starts[-1]:
        i = next(i for i in range(len(case.tokens)) if at < case.starts[i + 1])
        place += f" (sequence {i}, its token {case.new[i][at - case.starts[i]]}, table {case.tables[i]})"
    return difference(place, expected[at], got[at])


def _lens(case: _Case) -> list[int]:
    return [len(tokens) for tokens in case.tokens]


@BATCH.part("decode and prefill in one batch", points=4)
def _mixed(rng: Random, make_batch: Any) -> None:
    # With these lengths no last block is full, so a slot that is one too high is still within the table.
    _check_batch(make_batch, _draw(rng, [(10, 9), (3, 0), (6, 5)], 4))
    _check_batch(make_batch, _draw(rng, [(7, 0), (2, 1), (13, 12), (5, 0)], 4))


@BATCH.part("decode: one token per sequence", points=2)
def _decode(rng: Random, make_batch: Any) -> None:
    for size in (4, 16, rng.randint(2, 9)):
        lens = [rng.randint(2, 40) for _ in range(rng.randint(3, 6))]
        _check_batch(make_batch, _draw(rng, [(n, n - 1) for n in lens], size))


@BATCH.part("chunks after a cached prefix", points=4)
def _chunks(rng: Random, make_batch: Any) -> None:
    _check_batch(make_batch, _draw(rng, [(11, 6), (9, 0), (15, 14), (7, 4)], 4))
    for size in (1, 16, rng.randint(2, 9)):
        lens = [rng.randint(4, 40) for _ in range(4)]
        _check_batch(make_batch, _draw(rng, [(n, rng.randint(0, n - 1)) for n in lens], size))


SAMPLES = Exercise(
    "7.4",
    answers=("blocks_held", "seconds"),
    misconceptions={
        "nothing-shared": "All blocks of every sample were counted, including the prompt's. The samples share the "
        "blocks that the prompt filled: count those once.",
        "partial-shared": "The prompt's partial block was counted as shared, but each sample writes into it and "
        "gets its own copy (copy-on-write).",
        "prompt-copied": "With one new token nothing is written after the prompt, so nothing is copied: its blocks "
        "are all shared.",
        "last-stored": "The last new token was counted as stored. The sample ends with it, so no pass computes its "
        "key and value.",
        "prefill-each": "The prompt was computed once for each sample. It is the same for all of them: one prefill "
        "is enough, and its last row gives every sample its first token.",
        "one-pass-more": "There is one pass too many: the prefill already gives the first new token.",
        "in-turn": "The samples were decoded one after another. Run them in one batch: each pass computes one token "
        "of each.",
        "per-token-forgotten": "A pass over n samples computes n tokens, and each costs per_token.",
        "other-cost": "The cost is wrong.",
    },
)

_BLOCKS: dict[str, Callable[[int, int, int, int], int]] = {
    "prompt-copied": lambda p, new, n, b: (
        p // b + n * (_ceil(p + new - 1, b) - p // b)
    ),  # wrong for new = 1 only
    "nothing-shared": lambda p, new, n, b: n * _ceil(p + new - 1, b),
    "partial-shared": lambda p, new, n, b: _ceil(p, b) + n * (_ceil(p + new - 1, b) - _ceil(p, b)),
    "last-stored": lambda p, new, n, b: p // b + n * (_ceil(p + new, b) - p // b),
}
_SECONDS: dict[str, list[Callable[[int, int, int, float, float], float]]] = {
    "prefill-each": [  # in n passes, or in one
        lambda p, new, n, a, t: n * (a + t * p) + (new - 1) * (a + t * n),
        lambda p, new, n, a, t: a + t * n * p + (new - 1) * (a + t * n),
    ],
    "one-pass-more": [lambda p, new, n, a, t: a + t * p + new * (a + t * n)],
    "in-turn": [lambda p, new, n, a, t: a + t * p + n * (new - 1) * (a + t)],
    "per-token-forgotten": [lambda p, new, n, a, t: a + t * p + (new - 1) * (a + t)],
}


def _ceil(tokens: int, size: int) -> int:
    return -(-tokens // size)


def _blocks(prompt: int, new: int, n: int, size: int) -> int:
    shared = prompt // size if new > 1 else _ceil(prompt, size)
    return shared + (n * (_ceil(prompt + new - 1, size) - shared) if new > 1 else 0)


def _check_blocks(blocks_held: Any, prompt: int, new: int, n: int, size: int) -> None:
    expected, got = _blocks(prompt, new, n, size), blocks_held(prompt, new, n, size)
    if is_whole(got) and got == expected:
        return
    named = (key for key, wrong in _BLOCKS.items() if wrong(prompt, new, n, size) == got)
    call = f"blocks_held({prompt}, {new}, {n}, {size})"
    raise Wrong(next(named, "other-cost"), difference(call, expected, got))


def _check_seconds(seconds: Any, prompt: int, new: int, n: int, a: float, t: float) -> None:
    expected = a + t * prompt + (new - 1) * (a + t * n)
    got = seconds(prompt, new, n, a, t)
    if _same(got, expected):
        return
    named = [
        key for key, wrongs in _SECONDS.items() if any(_same(got, w(prompt, new, n, a, t)) for w in wrongs)
    ]
    call = f"seconds({prompt}, {new}, {n}, {a}, {t})"
    raise Wrong(named[0] if named else "other-cost", difference(call, round(expected, 6), got))


def _same(got: Any, expected: float) -> bool:
    number = isinstance(got, int | float) and not isinstance(got, bool)
    return number and abs(got - expected) <= 1e-9 * max(1.0, abs(expected))


@SAMPLES.part("blocks", points=3)
def _samples_blocks(rng: Random, blocks_held: Any, seconds: Any) -> None:
    # 40 + 60 of 16: every mistake gives a different number; 8 + 8: the stored tokens end with a full block.
    for prompt, new, n, size in ((40, 60, 4, 16), (40, 57, 4, 16), (8, 9, 3, 4), (33, 2, 5, 16)):
        _check_blocks(blocks_held, prompt, new, n, size)
    for _ in range(12):
        n, size = rng.randint(1, 8), rng.choice([1, 4, 8, 16])
        _check_blocks(blocks_held, rng.randint(1, 200), rng.randint(2, 120), n, size)


@SAMPLES.part("one new token", points=1)
def _samples_short(rng: Random, blocks_held: Any, seconds: Any) -> None:
    for prompt in (40, 32, 5, rng.randint(17, 200)):
        _check_blocks(blocks_held, prompt, 1, 4, 16)


@SAMPLES.part("seconds", points=3)
def _samples_seconds(rng: Random, blocks_held: Any, seconds: Any) -> None:
    _check_seconds(seconds, 40, 60, 4, 0.05, 0.001)
    for _ in range(8):
        a, t = round(rng.uniform(0.01, 0.1), 3), round(rng.uniform(0.0001, 0.002), 4)
        _check_seconds(seconds, rng.randint(3, 300), rng.randint(2, 90), rng.randint(2, 8), a, t)
