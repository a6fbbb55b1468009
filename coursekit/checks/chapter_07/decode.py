"""Check of chapter 7: in a ragged batch each request gets the same tokens as alone (7.3).

The answer gets a model with the interface of the notebook's `TinyModel` and fresh random weights. It runs in the check,
which counts the tokens of each forward pass. The expected tokens come from an independent dense model without a cache,
one request at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from coursekit.checks.answers import Served, output, show
from coursekit.checks.chapter_03.inputs import numpy_rng
from coursekit.checks.chapter_07.attention import rotate
from coursekit.checks.framework import (
    CHANGES,
    Arguments,
    Exercise,
    Wrong,
    as_list,
    difference,
    drawn,
)

GENERATE = Exercise(
    "7.3",
    answers=("generate",),
    needs=("7.1",),
    misconceptions={
        "wrong-row": "The next token was chosen from the wrong row of the logits: a sequence's last token is in row "
        "sample_rows[k] of the batch.",
        "padding": "The prompts were padded to the longest, and the padding was computed: it takes up positions, is "
        "stored, and is attended to like any token.",
        "lengths": "A request must get exactly as many new tokens as it asked for, not counting the prompt.",
        "one-by-one": "The requests did not run together: every pass must include all unfinished requests.",
        "computed-again": "A pass computed tokens whose keys and values were in the cache.",
        "done-stays": "A finished request stayed in the batch.",
        "wrong-passes": "A forward pass does not compute the tokens that are not computed yet, at their positions.",
        "blocks-kept": "Some blocks are not free at the end.",
        **CHANGES,
        "other-tokens": "These are not the tokens that each request gets alone.",
    },
)
VOCAB, LAYERS, HEADS, KV_HEADS, DIM = 40, 2, 4, 2, 8
MOST_TOKENS = 500  # of a forward pass, more than any case has
CLEAR = 1e-3  # smallest logit gap between the first and the second choice, so that rounding changes no token

_Weights = dict[str, np.ndarray]


def _draw_weights(numbers: np.random.Generator) -> _Weights:
    width = HEADS * DIM
    sizes = {
        "embed": (VOCAB, width),
        "head": (width, VOCAB),
        "q": (LAYERS, HEADS, width, DIM),
        "k": (LAYERS, KV_HEADS, width, DIM),
        "v": (LAYERS, KV_HEADS, width, DIM),
        "o": (LAYERS, width, width),
    }
    spread = {"embed": 1.0, "head": 1.0, "q": 0.4, "k": 0.4, "v": 0.3, "o": 0.3}
    return {
        name: (spread[name] * numbers.standard_normal(size)).astype(np.float32)
        for name, size in sizes.items()
    }


def _logits(weights: _Weights, tokens: Sequence[int]) -> np.ndarray:
    """[num_tokens, vocab] of one whole sequence: dense, in float64, without a cache."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    x, positions = w["embed"][list(tokens)], np.arange(len(tokens))
    later = np.triu(np.full((len(tokens), len(tokens)), -np.inf), 1)
    for layer in range(LAYERS):
        q, k, v = (np.stack([x @ part for part in w[name][layer]]) for name in "qkv")
        q, k = rotate(q, positions), rotate(k, positions)
        attended = []
        for head in range(HEADS):
            of = head // (HEADS // KV_HEADS)
            scores = q[head] @ k[of].T / DIM**0.5 + later
            chances = np.exp(scores - scores.max(axis=1, keepdims=True))
            attended.append(chances / chances.sum(axis=1, keepdims=True) @ v[of])
        x = x + np.concatenate(attended, axis=1) @ w["o"][layer]
    result: np.ndarray = x @ w["head"]
    return result


@dataclass(frozen=True)
class _Pass:
    """A forward pass: its (position, token) pairs in order, and how many sequences and slots it had."""

    computed: list[tuple[int, int]]
    num_seqs: int
    num_slots: int


class _Model:
    """A decoder over a paged cache, as in the notebook. `passes` holds every forward pass."""

    def __init__(self, weights: _Weights, num_blocks: int, block_size: int) -> None:
        shape = (LAYERS, num_blocks, block_size, KV_HEADS, DIM)
        self.keys, self.values = np.full(shape, np.nan, np.float32), np.full(shape, np.nan, np.float32)
        self.weights, self.size = weights, block_size
        self.passes: list[_Pass] = []

    def forward(self, batch: dict[str, Any]) -> np.ndarray:
        """The logits of every row of the batch, [num_tokens, vocab]."""
        w = self.weights
        tokens, positions, slots, starts, lens = (
            np.asarray(batch[name], dtype=np.int64).reshape(-1)[:MOST_TOKENS]
            for name in ("token_ids", "positions", "slot_mapping", "query_start_loc", "seq_lens")
        )
        tables = [np.asarray(row, dtype=np.int64) for row in as_list(batch["block_tables"])]
        if (np.diff(starts) < 0).any():
            raise ValueError("query_start_loc falls")
        computed = sorted(zip(positions.tolist(), tokens.tolist(), strict=True))
        num_slots = len(set(slots.tolist()))
        self.passes.append(_Pass(computed, int((np.diff(starts) > 0).sum()), num_slots))
        x = w["embed"][tokens]
        for layer in range(LAYERS):
            q, k, v = (np.einsum("td,hde->hte", x, w[name][layer]) for name in "qkv")
            q, k = rotate(q, positions), rotate(k, positions)
            for cache, rows in ((self.keys, k), (self.values, v)):
                cache[layer, slots // self.size, slots % self.size] = rows.swapaxes(0, 1)
            attended = np.zeros((len(x), HEADS, DIM), np.float32)
            for table, start, stop, length in zip(
                tables, starts, starts[1:], lens.clip(max=MOST_TOKENS), strict=False
            ):
                at = np.arange(length)
                block, offset = table[at // self.size], at % self.size
                later = at > positions[start:stop, None]
                for head in range(HEADS):
                    of = head // (HEADS // KV_HEADS)
                    scores = q[head, start:stop] @ self.keys[layer, block, offset, of].T / DIM**0.5
                    scores = np.where(later, -np.inf, scores)
                    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
                    chances /= chances.sum(axis=1, keepdims=True)
                    attended[start:stop, head] = chances @ self.values[layer, block, offset, of]
            x = x + attended.reshape(len(x), -1) @ w["o"][layer]
        logits: np.ndarray = x @ w["head"]
        return logits


def _alone(weights: _Weights, tokens: Sequence[int], count: int) -> tuple[list[int], float]:
    """The greedy continuation of one request, and the smallest logit gap of its decisions."""
    row, margin = list(tokens), np.inf
    for _ in range(count):
        last = np.sort(logits := _logits(weights, row)[-1])
        margin = min(margin, float(last[-1] - last[-2]))
        row.append(int(logits.argmax()))
    return row[len(tokens) :], margin


def _case(
    rng: Random, lens: Sequence[int], new: Sequence[int]
) -> tuple[_Weights, list[list[int]], list[list[int]]]:
    """Weights, prompts and answers, with clear decisions and with answers that mistakes change."""
    if len(set(lens)) != len(lens):
        raise ValueError("prompts of equal lengths need no padding: draw different ones")
    numbers = numpy_rng(rng)

    def candidate() -> tuple[_Weights, list[list[int]], list[list[int]]] | None:
        weights = _draw_weights(numbers)
        prompts = [numbers.integers(1, VOCAB, n).tolist() for n in lens]
        found = [_alone(weights, prompt, n) for prompt, n in zip(prompts, new, strict=True)]
        answers = [tokens for tokens, _ in found]
        others = _wrong_answers(weights, prompts, new)
        clear = min(margin for _, margin in found) > CLEAR
        return (weights, prompts, answers) if clear and all(other != answers for _, other in others) else None

    case: tuple[_Weights, list[list[int]], list[list[int]]] = drawn(candidate, tries=200)
    return case


def _wrong_answers(
    weights: _Weights, prompts: list[list[int]], new: Sequence[int]
) -> Iterator[tuple[str, list[list[int]]]]:
    """Yield (misconception, the answers that it gives)."""
    flat = np.concatenate([_logits(weights, prompt) for prompt in prompts]).argmax(axis=1)
    starts = np.cumsum([0] + [len(prompt) for prompt in prompts])
    yield "wrong-row", _last_row_for_all(weights, prompts, new)
    for rows in (range(len(prompts)), starts[:-1]):
        first = [int(flat[row]) for row in rows]
        yield (
            "wrong-row",
            [
                [one, *_alone(weights, [*prompt, one], n - 1)[0]]
                for prompt, one, n in zip(prompts, first, new, strict=True)
            ],
        )
    longest = max(map(len, prompts))
    for left in (True, False):
        padded = [[0] * (longest - len(p)) + p if left else p + [0] * (longest - len(p)) for p in prompts]
        yield "padding", [_alone(weights, p, n)[0] for p, n in zip(padded, new, strict=True)]


def _last_row_for_all(weights: _Weights, prompts: list[list[int]], new: Sequence[int]) -> list[list[int]]:
    """The mistake of giving every running request the last one's token."""
    rows = [list(prompt) for prompt in prompts]
    for done in range(max(new)):
        running = [i for i, n in enumerate(new) if n > done]
        one = int(_logits(weights, rows[running[-1]])[-1].argmax())
        for i in running:
            rows[i].append(one)
    return [row[len(prompt) :] for row, prompt in zip(rows, prompts, strict=True)]


@dataclass(frozen=True)
class _Served:
    """Requests that the answer has served: what it was given, and what it did."""

    prompts: list[list[int]]
    new: Sequence[int]
    got: list[list[Any]]
    passes: list[_Pass]
    before: list[int]  # free blocks
    after: list[int]
    told: str

    def right_lengths(self) -> None:
        """Raise Wrong if a request has not as many new tokens as it asked for."""
        lengths = [len(row) for row in self.got]
        if lengths != list(self.new):
            told = f"{self.told}: expected these numbers of new tokens, got {lengths}"
            raise Wrong("lengths", f"{told}: {show(self.got)}.")

    def expected(self, k: int) -> list[tuple[int, int]]:
        """The (position, token) pairs of pass k: the prompts, then the answer's own last token of each request."""
        if k == 0:
            return sorted(pair for prompt in self.prompts for pair in enumerate(prompt))
        requests = zip(self.prompts, self.new, self.got, strict=True)
        return sorted((len(prompt) + k - 1, row[k - 1]) for prompt, n, row in requests if n > k)


def _serve(
    rng: Random, generate: Any, lens: Sequence[int], new: Sequence[int], size: int
) -> tuple[_Served, Callable[[], None]]:
    """Let the answer serve requests; also return a function that raises Wrong if its tokens are not right."""
    weights, prompts, answers = _case(rng, lens, new)
    blocks = sum(-(-(max(lens) + n) // size) for n in new) + 2
    free = rng.sample(range(blocks), blocks)
    before = sorted(free)
    model = _Model(weights, blocks, size)
    served = Served({"forward": model.forward}, block_size=size)
    given = Arguments(prompts=[list(p) for p in prompts], new_tokens=list(new))
    got = [as_list(row) for row in as_list(generate(served, *given.passed(), output(free)))]
    told = f"prompts of {list(lens)} tokens, {list(new)} new tokens, blocks of {size}"

    def right_tokens() -> None:
        if got != answers:
            raise Wrong(*_explain(weights, prompts, new, answers, got, told))
        given.check_unchanged(told)

    return _Served(prompts, new, got, model.passes, before, sorted(free), told), right_tokens


def _explain(
    weights: _Weights,
    prompts: list[list[int]],
    new: Sequence[int],
    answers: list[list[int]],
    got: list[list[Any]],
    told: str,
) -> tuple[str, str]:
    named = (key for key, wrong in _wrong_answers(weights, prompts, new) if wrong == got)
    i = next(i for i, (a, b) in enumerate(zip(answers, got, strict=True)) if a != b)
    at = next(k for k, (a, b) in enumerate(zip(answers[i], got[i], strict=True)) if a != b)
    return next(
        named, "other-tokens"
    ), f"{told}: {difference(f'request {i}, new token {at}', answers[i][at], got[i][at])}"


@GENERATE.part("the same tokens as each request gets alone", points=5)
def _tokens(rng: Random, generate: Any) -> None:
    lens, new = rng.sample(range(1, 10), 4), [rng.randint(2, 6) for _ in range(4)]
    for case in (([3, 7, 4], [4, 6, 5], 4), ([*lens, 11], [*new, 3], rng.choice([1, 3, 8]))):
        served, right_tokens = _serve(rng, generate, *case)
        served.right_lengths()
        right_tokens()


@GENERATE.part("all requests in each batch, no token twice", points=4)
def _together(rng: Random, generate: Any) -> None:
    """Which tokens are computed, whether or not the right ones are chosen."""
    for new in ([2, 6, 4], [1, 5, 3, rng.randint(1, 6)]):
        served, _ = _serve(rng, generate, rng.sample(range(2, 10), len(new)), new, 4)
        served.right_lengths()
        unfinished = [sum(n > k for n in new) for k in range(max(new))]
        counts = [len(one.computed) for one in served.passes]
        expected = [len(served.expected(k)) for k in range(max(new))]
        detail = f"{served.told}: {difference('tokens computed in each pass', expected, counts)}"
        for k, one in enumerate(served.passes):
            wanted = unfinished[k] if k < len(unfinished) else 0
            if one.num_seqs != wanted:
                raise Wrong("one-by-one" if one.num_seqs < wanted else "done-stays", detail)
            if len(one.computed) > expected[k]:
                raise Wrong("computed-again", detail)
            if one.computed != served.expected(k):
                told = f"{served.told}: (position, token) pairs of pass {k}"
                raise Wrong("wrong-passes", difference(told, served.expected(k), one.computed))
        if len(counts) < len(expected):
            raise Wrong("wrong-passes", detail)


@GENERATE.part("all blocks are free at the end", points=2)
def _blocks(rng: Random, generate: Any) -> None:
    """Blocks that were used, whether or not the right tokens came of it."""
    served, _ = _serve(rng, generate, [6, 2, 5], [3, 5, 2], 4)
    computed = [token for one in served.passes for _, token in one.computed]
    missing = {token for prompt in served.prompts for token in prompt} - set(computed)
    least = sum(map(len, served.prompts)) + sum(n - 1 for n in served.new)
    own_slots = all(one.num_slots == len(one.computed) for one in served.passes)
    if missing or len(computed) < least or not own_slots:
        told = f"{served.told}: {len(computed)} of {least} tokens were computed, each in a slot of its own: {own_slots}"
        raise Wrong("wrong-passes", f"{told}; tokens of the prompts that no pass computed: {show(missing)}.")
    if served.after != served.before:
        lost = sorted(set(served.before) - set(served.after)) or "none, but `free` contains some twice"
        raise Wrong(
            "blocks-kept", f"{served.told}: free at the end: {show(served.after)}; not free again: {lost}."
        )
