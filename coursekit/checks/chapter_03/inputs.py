"""Inputs for the checks of chapter 3 that expose every wrong kernel, and the results of wrong kernels.

Lengths differ and lie around block boundaries, tables are shuffled, query heads share KV heads, the last key of each
sequence takes most of one head's weight, and each value row encodes its position. A case chooses the contents of unused
slots and unused table entries: finite values, so that a mistake can be recognized from its result, or NaN and ids that
do not exist. `faulty` computes the result of a misconception.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from coursekit.checks.answers import AnswerRaised
from coursekit.checks.framework import show_got
from paged_ref.verify.oracle import oracle

NOT_AN_ID = 2**31 - 1  # for unused table entries: reading this block fails


@dataclass(frozen=True)
class Inputs:
    """A decode batch: one query token for each sequence, in the format of `paged_attention`."""

    query: np.ndarray
    key_cache: np.ndarray
    value_cache: np.ndarray
    block_tables: np.ndarray
    seq_lens: np.ndarray

    def arguments(self) -> list[np.ndarray]:
        """Copies, because an answer may modify its arguments."""
        return [
            array.copy()
            for array in (self.query, self.key_cache, self.value_cache, self.block_tables, self.seq_lens)
        ]

    def expected(self) -> np.ndarray:
        """The oracle's result, [num_seqs, num_heads, head_dim]."""
        return oracle(self.query, self.key_cache, self.value_cache, self.block_tables, self.seq_lens)

    @property
    def block_size(self) -> int:
        """Slots per block."""
        return int(self.key_cache.shape[1])

    @property
    def heads(self) -> tuple[int, int]:
        """Number of query heads and of KV heads."""
        return int(self.query.shape[1]), int(self.key_cache.shape[2])


def numpy_rng(rng: Random) -> np.random.Generator:
    """A NumPy generator seeded from the part's own."""
    return np.random.default_rng(rng.getrandbits(64))


def draw(
    rng: Random,
    lens: Sequence[int],
    block_size: int,
    heads: tuple[int, int],
    head_dim: int = 16,
    unused: float = 3.0,
    padding: int = -1,
    score_size: float = 1.0,
    ids: type[np.signedinteger[Any]] = np.int32,
) -> Inputs:
    """Build a batch with these lengths.

    Args:
        unused: contents of unused slots: random values of this size, or NaN.
        padding: value of unused table entries.
        ids: dtype of the tables and lengths.
        score_size: multiplies the scores; with a large value the last key of every second sequence is reversed, so that
            all of that sequence's scores may be far below zero.
    """
    numbers = numpy_rng(rng)
    num_heads, num_kv_heads = heads
    needed = [-(-n // block_size) for n in lens]
    num_blocks = sum(needed) + 3
    order = rng.sample(range(num_blocks), num_blocks)
    order[order.index(0)], order[0] = order[0], 0  # block 0 is always in use
    names = iter(order)
    tables = np.full((len(lens), max(needed) + 2), padding, dtype=ids)
    shape = (num_blocks, block_size, num_kv_heads, head_dim)
    keys, values = (unused * numbers.standard_normal(shape, dtype=np.float32) for _ in range(2))
    query = numbers.standard_normal((len(lens), num_heads, head_dim), dtype=np.float32)
    for i, n in enumerate(lens):
        tables[i, : needed[i]] = [next(names) for _ in range(needed[i])]
        block, offset = tables[i, np.arange(n) // block_size], np.arange(n) % block_size
        keys[block, offset] = numbers.standard_normal((n, num_kv_heads, head_dim), dtype=np.float32)
        values[block, offset] = numbers.standard_normal((n, num_kv_heads, head_dim), dtype=np.float32)
        values[block, offset, :, 0] = np.arange(n)[:, None] / 16
        asked = query[i, :: num_heads // num_kv_heads]  # the first query head of every KV head
        length = (asked**2).sum(-1, keepdims=True)
        keys[block[-1], offset[-1]] = asked * (np.log(n) + 2) * head_dim**0.5 / length
        if score_size != 1 and i % 2:  # all keys of this sequence point away from its first queries
            keys[block, offset] = -asked * (1 + numbers.random((n, 1, 1), dtype=np.float32)) / length**0.5 * 3
    lengths = np.array(lens, dtype=ids)
    return Inputs(query * np.float32(score_size), keys, values, tables, lengths)


LEVEL = 10_000.0


def draw_extreme(rng: Random, lens: Sequence[int], block_size: int, heads: tuple[int, int]) -> Inputs:
    """Build a batch whose scores lie around −10,000 (first sequence) and +10,000 (second), in turn.

    Within a sequence, scores rise by 0.5 per token. So a softmax without its maximum, or with one that starts at 0,
    gives NaN, and one that rounds such scores to float16 or clips them gives all tokens the same weight.
    """
    inputs = draw(rng, lens, block_size, heads)
    head_dim = inputs.query.shape[2]
    inputs.query[:, :, :2], inputs.query[:, :, 2:] = (100, 1), 0
    for i, n in enumerate(lens):
        at = np.arange(n)
        block, offset = inputs.block_tables[i, at // block_size], at % block_size
        key = inputs.key_cache[block, offset]
        key[..., 0] = (LEVEL if i % 2 else -LEVEL) * head_dim**0.5 / 100
        key[..., 1] = (at[:, None] - n) * head_dim**0.5 / 2
        inputs.key_cache[block, offset] = key
    return inputs


def same_weights(inputs: Inputs) -> np.ndarray:
    """The result if all tokens of a sequence have the same weight."""
    result = np.zeros(inputs.query.shape)
    group = inputs.heads[0] // inputs.heads[1]
    for i, n in enumerate(inputs.seq_lens):
        at = np.arange(n)
        values = inputs.value_cache[inputs.block_tables[i, at // inputs.block_size], at % inputs.block_size]
        result[i] = values.mean(axis=0).repeat(group, axis=0)
    return result


def read_unused(raised: AnswerRaised, block_size: int) -> bool:
    """True if the error names the block of an unused table entry, or a slot of it."""
    numbers = [int(digits) for digits in re.findall(r"\d+", raised.message)]
    return "IndexError" in raised.bases and any(n in (NOT_AN_ID, NOT_AN_ID * block_size) for n in numbers)


def faulty(
    inputs: Inputs,
    *,
    kv_head: Callable[[int, int, int], int] = lambda head, heads, kv_heads: head // (heads // kv_heads),
    scale: Callable[[int], float] = lambda d: d**-0.5,
    length: Callable[[Inputs, int], int] = lambda inputs, i: int(inputs.seq_lens[i]),
    table_of: Callable[[int], int] = lambda i: i,
    tail_score_zero: bool = False,
    swap: bool = False,
    normalise: bool = True,
    over_heads: bool = False,
) -> np.ndarray:
    """The result of a decode kernel with one of these mistakes; without a mistake, the correct result."""
    q = inputs.query.astype(np.float64)
    keys, values = (inputs.value_cache, inputs.key_cache) if swap else (inputs.key_cache, inputs.value_cache)
    num_heads, num_kv_heads = inputs.heads
    result = np.zeros(q.shape)
    for i in range(len(q)):
        n, size = length(inputs, i), inputs.block_size
        table = inputs.block_tables[table_of(i)]
        positions = np.arange(-(-n // size) * size if tail_score_zero else n)
        block, offset = table[positions // size], positions % size
        for head in range(num_heads):
            of = kv_head(head, num_heads, num_kv_heads)
            scores = scale(q.shape[-1]) * (keys[block, offset, of].astype(np.float64) @ q[i, head])
            scores[n:] = 0  # changes nothing unless the tail was kept
            weights = np.exp(scores - scores.max())
            if over_heads:
                each = [
                    keys[block, offset, kv_head(h, num_heads, num_kv_heads)] @ q[i, h]
                    for h in range(num_heads)
                ]
                weights = np.exp(scores) / np.exp(scale(q.shape[-1]) * np.array(each, dtype=np.float64)).sum(
                    axis=0
                )
            result[i, head] = weights @ values[block, offset, of]
            if normalise and not over_heads:
                result[i, head] /= weights.sum()
    return result


def as_array(value: Any, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return the answer as an array if it has this shape; lists are accepted, too."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        return None
    return array if array.shape == shape else None


def shape_of(answer: Any) -> str:
    """Describe the shape of what an answer returned."""
    return f"shape {answer.shape}" if isinstance(answer, np.ndarray) else show_got(answer)


def close(got: np.ndarray, expected: np.ndarray, tolerance: float) -> np.ndarray:
    """Where two results agree; NaN agrees with nothing."""
    return np.abs(got - expected) <= tolerance * (1 + np.abs(expected))
