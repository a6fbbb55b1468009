"""Inputs for the checks of chapter 3 that let no wrong kernel pass, and what wrong kernels make of them.

Lengths differ and sit around block boundaries, tables are shuffled, query heads share KV heads, the last key of each
sequence takes most of one head's weight, and each value row carries its position. What lies in unused slots and in
unused table entries is the case's own choice: finite numbers, with which a mistake can be recognised by what it
returns, or NaN and ids that do not exist. `faulty` computes the answer of a misconception.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from coursekit.checks.answers import show
from paged_ref.verify.oracle import oracle

NOT_AN_ID = 2**31 - 1  # in an unused table entry: whoever reads there fails


@dataclass(frozen=True)
class Inputs:
    """A decode batch: one query token for each sequence, as `paged_attention` takes it."""

    query: np.ndarray
    key_cache: np.ndarray
    value_cache: np.ndarray
    block_tables: np.ndarray
    seq_lens: np.ndarray

    def arguments(self) -> list[np.ndarray]:
        """Copies, because an answer may change what it is given."""
        return [
            array.copy()
            for array in (self.query, self.key_cache, self.value_cache, self.block_tables, self.seq_lens)
        ]

    def expected(self) -> np.ndarray:
        """[num_seqs, num_heads, head_dim] by the oracle."""
        return oracle(self.query, self.key_cache, self.value_cache, self.block_tables, self.seq_lens)

    @property
    def block_size(self) -> int:
        """Slots of a block."""
        return int(self.key_cache.shape[1])

    @property
    def heads(self) -> tuple[int, int]:
        """Query heads and KV heads."""
        return int(self.query.shape[1]), int(self.key_cache.shape[2])


def numpy_rng(rng: Random) -> np.random.Generator:
    """A NumPy generator that follows from the part's own."""
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
) -> Inputs:
    """A batch with these lengths.

    Args:
        unused: what unused slots hold: random numbers of this size, or NaN.
        padding: what unused table entries hold.
        score_size: multiplies the scores; with large ones the last key of every second sequence is turned around,
            so that all of that sequence's scores may be far below zero.
    """
    numbers = numpy_rng(rng)
    num_heads, num_kv_heads = heads
    needed = [-(-n // block_size) for n in lens]
    num_blocks = sum(needed) + 3
    ids = iter(rng.sample(range(num_blocks), num_blocks))
    tables = np.full((len(lens), max(needed) + 2), padding, dtype=np.int32)
    shape = (num_blocks, block_size, num_kv_heads, head_dim)
    keys, values = (unused * numbers.standard_normal(shape, dtype=np.float32) for _ in range(2))
    query = numbers.standard_normal((len(lens), num_heads, head_dim), dtype=np.float32)
    for i, n in enumerate(lens):
        tables[i, : needed[i]] = [next(ids) for _ in range(needed[i])]
        block, offset = tables[i, np.arange(n) // block_size], np.arange(n) % block_size
        keys[block, offset] = numbers.standard_normal((n, num_kv_heads, head_dim), dtype=np.float32)
        values[block, offset] = numbers.standard_normal((n, num_kv_heads, head_dim), dtype=np.float32)
        values[block, offset, :, 0] = np.arange(n)[:, None] / 16
        asked = query[i, :: num_heads // num_kv_heads]  # the first query head of every KV head
        length = (asked**2).sum(-1, keepdims=True)
        keys[block[-1], offset[-1]] = asked * (np.log(n) + 2) * head_dim**0.5 / length
        if score_size != 1 and i % 2:  # this sequence's keys all point away from its first queries
            keys[block, offset] = -asked * (1 + numbers.random((n, 1, 1), dtype=np.float32)) / length**0.5 * 3
    lengths = np.array(lens, dtype=np.int32)
    return Inputs(query * np.float32(score_size), keys, values, tables, lengths)


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
) -> np.ndarray:
    """What a decode kernel with one of these mistakes returns; without any it is right."""
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
            scores[n:] = 0  # nothing is left there unless the tail was kept
            weights = np.exp(scores - scores.max())
            result[i, head] = weights @ values[block, offset, of]
            if normalise:
                result[i, head] /= weights.sum()
    return result


def as_array(value: Any, shape: tuple[int, ...]) -> np.ndarray | None:
    """The numbers that an answer returned, if they have this shape; lists are taken, too."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        return None
    return array if array.shape == shape else None


def shape_of(answer: Any) -> str:
    """What an answer returned in place of numbers of the right shape, in words."""
    shape = getattr(answer, "shape", None)
    return show(answer) if shape is None else f"shape {tuple(shape)}"


def close(got: np.ndarray, expected: np.ndarray, tolerance: float) -> np.ndarray:
    """Where two results agree; NaN agrees with nothing."""
    return np.abs(got - expected) <= tolerance * (1 + np.abs(expected))
