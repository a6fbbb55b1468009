"""Paged attention in NumPy without gathering: block by block with an online softmax (end of chapter 3).

A softmax seems to need all scores at once, for their maximum and their sum. It does not. Keep three values
while walking over the blocks: the largest score so far (`top`), the sum of exp(score - top) (`total`), and
the sum of exp(score - top) * value (`acc`). When a block raises the maximum, the sums so far are too large
by the factor exp(new top - old top): multiply them by exp(old top - new top) and continue. Divide once, at
the end.

Every kernel of chapter 5 runs this loop. (Milakov and Gimelshein, "Online normalizer calculation for
softmax", 2018; FlashAttention is built on it.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .validate import Batch


def plan(batch: Batch, block_size: int, device: Any = None) -> NumpyBlocksPlan:
    """Return the plan. Nothing is prepared: the loop in `run` reads the batch directly."""
    return NumpyBlocksPlan(batch, block_size)


@dataclass(frozen=True)
class NumpyBlocksPlan:
    """One batch; see `attention.AttentionPlan`. Takes NumPy arrays."""

    batch: Batch
    block_size: int

    def run(
        self,
        query: np.ndarray,
        key_cache: np.ndarray,
        value_cache: np.ndarray,
        scale: float,
        sliding_window: int | None = None,
        softcap: float | None = None,
    ) -> np.ndarray:
        """Return the attention of the whole batch, one query token after the other, computed in float32."""
        output = np.empty_like(query)
        for i, seq_len in enumerate(self.batch.seq_lens):
            start, end = self.batch.query_start_loc[i], self.batch.query_start_loc[i + 1]
            for token in range(start, end):
                position = seq_len - (end - token)
                first = 0 if sliding_window is None else max(0, position - sliding_window + 1)
                table = self.batch.block_tables[i]
                output[token] = attend_blocks(
                    query[token], key_cache, value_cache, table, first, position + 1, scale, softcap
                )
        return output


def attend_blocks(
    query: np.ndarray,
    key_cache: np.ndarray,
    value_cache: np.ndarray,
    block_table: np.ndarray,
    first: int,
    last: int,
    scale: float,
    softcap: float | None = None,
) -> np.ndarray:
    """Attend one query token [num_heads, d] to its sequence's tokens first .. last - 1; return [num_heads, d]."""
    num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    kv_head = np.arange(num_heads) // (num_heads // num_kv_heads)
    top = np.full(num_heads, -np.inf, np.float32)
    total = np.zeros(num_heads, np.float32)
    acc = np.zeros((num_heads, head_dim), np.float32)
    for logical in range(first // block_size, -(-last // block_size)):
        block = block_table[logical]
        begin = max(first - logical * block_size, 0)
        end = min(last - logical * block_size, block_size)  # the last block may have unused slots
        keys = key_cache[block, begin:end].astype(np.float32)[:, kv_head]  # [tokens, num_heads, d]
        values = value_cache[block, begin:end].astype(np.float32)[:, kv_head]
        scores = scale * np.einsum("hd,thd->ht", query.astype(np.float32), keys)
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        new_top = np.maximum(top, scores.max(axis=1))
        rescale = np.exp(top - new_top)
        weights = np.exp(scores - new_top[:, None])
        total = total * rescale + weights.sum(axis=1)
        acc = acc * rescale[:, None] + np.einsum("ht,thd->hd", weights, values)
        top = new_top
    return (acc / total[:, None]).astype(query.dtype)
