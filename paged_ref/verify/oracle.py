"""The oracle: attention from its definition, in float64, one query token and one head at a time.

Every backend is tested against this file (chapter 3), so it shares nothing with them: no gather, no mask, no
online softmax, no batching. It takes the same arguments as `paged_attention` and is as slow as it looks.

    position p of sequence i is at     cache[block_tables[i][p // block_size]][p % block_size]
    query token at position p sees     positions max(0, p - window + 1) .. p
"""

from __future__ import annotations

from typing import Any

import numpy as np


def oracle(
    query: Any,
    key_cache: Any,
    value_cache: Any,
    block_tables: Any,
    seq_lens: Any,
    query_start_loc: Any = None,
    *,
    scale: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    key_scale: Any = None,
    value_scale: Any = None,
) -> np.ndarray:
    """Return the exact result of `paged_attention(…)`, up to float64 rounding: [num_tokens, num_heads, head_dim].

    Takes NumPy arrays or torch tensors of any floating-point type. Half-precision inputs are converted exactly, so
    a backend's distance from this result is the backend's own error.
    """
    q, k_cache, v_cache = (_float64(x) for x in (query, key_cache, value_cache))
    if key_scale is not None:
        k_cache, v_cache = (
            k_cache * _float64(key_scale)[..., None],
            v_cache * _float64(value_scale)[..., None],
        )
    tables, lens = block_tables.tolist(), seq_lens.tolist()
    starts = list(range(len(lens) + 1)) if query_start_loc is None else query_start_loc.tolist()
    num_tokens, num_heads, head_dim = q.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    scale = head_dim**-0.5 if scale is None else scale
    result = np.full((num_tokens, num_heads, head_dim), np.nan)
    for i, length in enumerate(lens):
        where = [(tables[i][p // block_size], p % block_size) for p in range(length)]
        # Keys and values: [length, num_kv_heads, head_dim]
        keys = np.array([k_cache[block, offset] for block, offset in where])
        values = np.array([v_cache[block, offset] for block, offset in where])
        for token in range(starts[i], starts[i + 1]):
            # The last query token is the last token of the sequence.
            position = length - (starts[i + 1] - token)
            first = 0 if sliding_window is None else max(0, position - sliding_window + 1)
            for head in range(num_heads):
                kv_head = head * num_kv_heads // num_heads
                score = scale * (keys[first : position + 1, kv_head] @ q[token, head])
                if softcap is not None:
                    score = softcap * np.tanh(score / softcap)
                weight = np.exp(score - score.max())
                result[token, head] = weight @ values[first : position + 1, kv_head] / weight.sum()
    return result


def _float64(array: Any) -> np.ndarray:
    return np.asarray(array.double().cpu() if hasattr(array, "cpu") else array, dtype=np.float64)
