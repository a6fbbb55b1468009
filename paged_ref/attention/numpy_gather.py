"""Paged attention in NumPy, as chapter 3 writes it: gather a sequence's blocks, then attend.

    block_tables[i] = [7, 1, 4]
    key_cache[[7, 1, 4]]                     three blocks, contiguous and in order: a copy
      .reshape(3 * block_size, …)            one row per token
      [:seq_len]                             cut off the tail of the last block: it is not part of the sequence

The tail must be cut off before anything is computed: an unused slot may hold NaN, and 0 * NaN is NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..kv_dtype import QUANTISED
from .quantised import readable
from .validate import Batch

KV_DTYPES = tuple(QUANTISED)


def plan(batch: Batch, block_size: int, device: Any = None) -> NumpyPlan:
    """Return the plan. Nothing is prepared: the loop in `run` reads the batch directly."""
    return NumpyPlan(batch, block_size)


@dataclass(frozen=True)
class NumpyPlan:
    """One batch; see `attention.AttentionPlan`."""

    batch: Batch
    block_size: int

    def run(
        self,
        query: Any,
        key_cache: Any,
        value_cache: Any,
        scale: float,
        sliding_window: int | None = None,
        softcap: float | None = None,
        key_scale: Any = None,
        value_scale: Any = None,
    ) -> Any:
        """Return the attention of the whole batch, sequence by sequence, in float32 (float64 for float64 input)."""
        if not isinstance(query, np.ndarray):
            how = (scale, sliding_window, softcap)
            return self._run_torch(query, key_cache, value_cache, key_scale, value_scale, *how)
        key_cache, value_cache = readable(key_cache, key_scale), readable(value_cache, value_scale)
        output = np.empty_like(query)
        for i, seq_len in enumerate(self.batch.seq_lens):
            mine = slice(self.batch.query_start_loc[i], self.batch.query_start_loc[i + 1])
            keys = gather(key_cache, self.batch.block_tables[i], seq_len)
            values = gather(value_cache, self.batch.block_tables[i], seq_len)
            output[mine] = attend(query[mine], keys, values, scale, sliding_window, softcap)
        return output

    def _run_torch(
        self, query: Any, key_cache: Any, value_cache: Any, key_scale: Any, value_scale: Any, *how: Any
    ) -> Any:
        import torch

        # NumPy has no bfloat16: widen, which is exact, and narrow the result as torch would.
        tensors = (query, key_cache, value_cache, key_scale, value_scale)
        q, k, v, *scales = (None if x is None else x.detach().cpu().float().numpy() for x in tensors)
        return torch.from_numpy(self.run(q, k, v, *how, *scales)).to(query.dtype).to(query.device)


def gather(cache: np.ndarray, block_table: np.ndarray, seq_len: int) -> np.ndarray:
    """Return one sequence's rows of a cache, in order: [seq_len, num_kv_heads, head_dim]."""
    num_blocks = -(-seq_len // cache.shape[1])
    blocks = cache[block_table[:num_blocks]]
    return blocks.reshape(-1, *cache.shape[2:])[:seq_len]


def attend(
    query: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    scale: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
) -> np.ndarray:
    """Compute causal attention of one sequence's last tokens over all of its tokens.

    query [q, num_heads, d], keys and values [n, num_kv_heads, d], q <= n; returns [q, num_heads, d].
    """
    (q, num_heads, head_dim), (n, num_kv_heads, _) = query.shape, keys.shape
    compute = np.result_type(query.dtype, np.float32)
    # Query heads 0 .. group-1 share KV head 0, the next `group` share KV head 1, and so on.
    grouped = query.astype(compute).reshape(q, num_kv_heads, num_heads // num_kv_heads, head_dim)
    scores = scale * np.einsum("qkgd,nkd->kgqn", grouped, keys.astype(compute))
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    query_position = np.arange(n - q, n)[:, None]
    key_position = np.arange(n)[None, :]
    visible = key_position <= query_position
    if sliding_window is not None:
        visible &= key_position > query_position - sliding_window
    scores = np.where(visible, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-np.inf))
    weights /= weights.sum(axis=-1, keepdims=True)
    attended = np.einsum("kgqn,nkd->qkgd", weights, values.astype(compute))
    return attended.reshape(q, num_heads, head_dim).astype(query.dtype)
