"""Compiled CPU loops for the operations of a decoder layer between its matmuls (chapter 7).

Each loop is one pass over the rows of a flat batch. torch makes one call per operation, and most calls allocate a
tensor:

                                                                             torch calls in bfloat16
    norm                x / sqrt(mean(x ** 2) + eps) * weight                              8
    gate                silu(gate) * up                                                    2
    rotate_and_write    rotary embedding of queries and keys, K and V to the cache        18

For sixteen rows, a call costs more than its arithmetic. Intermediate values are float32: a bfloat16 row is widened
into a buffer of a few kilobytes, which stays in the first-level cache, and rounded once, when it is stored.

A few rows are computed in the calling thread; many are divided among the cores.
"""

# A compiled function takes its types from its first call. Its docstring describes its arguments.
# ruff: noqa: ANN001, ANN202
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import njit, prange, types
from numba.extending import overload

from ...attention.numba_loop import COMPILE, exp_of_negative
from ...attention.numba_paged import num_cores, one_call_at_a_time
from ...kv_dtype import LARGEST, QUANTISED, dtype_name
from .quantise_rows import store_quantised

# From this many rows on, dividing them among the cores takes less time than it saves.
MANY_ROWS = 64


def warm_up(kv_dtype: str = "auto") -> None:
    """Compile every loop for both dtypes, for few rows and for many; see `numba_paged.warm_up`.

    With another `kv_dtype`, compile the loop that writes a quantised cache instead.
    """
    for dtype in (torch.float32, torch.bfloat16):
        stored = dtype if kv_dtype == "auto" else getattr(torch, QUANTISED[kv_dtype][0])
        cache = torch.zeros(1, MANY_ROWS, 1, 2, dtype=stored)
        scales = () if kv_dtype == "auto" else (torch.zeros(1, MANY_ROWS, 1),) * 2
        for num_rows in (1, MANY_ROWS):
            rows, turn = torch.zeros(num_rows, 6, dtype=dtype), torch.zeros(num_rows, 2, dtype=dtype)
            rotate_and_write(rows, turn, turn, cache, cache, torch.arange(num_rows), *scales)
            if kv_dtype == "auto":
                norm(rows, np.ones(6, np.float32), 1.0)
                gate(rows)


def norm(rows: torch.Tensor, weight: np.ndarray, eps: float) -> torch.Tensor:
    """Return the root-mean-square norm of each row.

    Args:
        rows: [num_rows, size], float32 or bfloat16, contiguous.
        weight: [size] float32.
        eps: added to the mean of the squares.
    """
    out = torch.empty_like(rows)
    _each_row(_norm, _norm_all, _bits(rows), weight, np.float32(eps), _bits(out))
    return out


def gate(rows: torch.Tensor) -> torch.Tensor:
    """Return silu(first half) * second half of each row: [num_rows, 2 * size] to [num_rows, size].

    silu(x) = x / (1 + e ** -x).
    """
    out = rows.new_empty(rows.shape[0], rows.shape[1] // 2)
    _each_row(_gate, _gate_all, _bits(rows), _bits(out))
    return out


def rotate_and_write(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
    key_scale: torch.Tensor | None = None,
    value_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """Rotate queries and keys by their positions, write keys and values by slot, and return the rotated queries.

    Args:
        qkv: [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]: the heads of Q, then of K, then of V.
        cos, sin: [num_tokens, head_dim], for each token's position. Element d of a head is rotated together with
            element d + head_dim / 2 (the order of Llama's published weights).
        key_cache, value_cache: [num_blocks, block_size, num_kv_heads, head_dim], contiguous, in the dtype of qkv
            or, with scales, quantised.
        slots: [num_tokens] int64, each a slot of the cache; this is not checked.
        key_scale, value_scale: [num_blocks, block_size, num_kv_heads], the scales of quantised caches, contiguous.

    Returns:
        [num_tokens, num_heads, head_dim].

    Raises:
        ValueError: cos, sin or slots do not have one row per token, or cos and sin are not head_dim wide.
    """
    num_kv_heads, head_dim = key_cache.shape[2:]
    if not cos.shape == sin.shape == (len(qkv), head_dim) or len(slots) != len(qkv):
        raise ValueError(
            f"{len(qkv)} tokens with heads of {head_dim} elements, but cos has shape {tuple(cos.shape)}, sin "
            f"{tuple(sin.shape)} and slots {tuple(slots.shape)}"
        )
    num_heads = qkv.shape[1] // head_dim - 2 * num_kv_heads
    query = qkv.new_empty(qkv.shape[0], num_heads, head_dim)
    keys, values = (_cache_bits(cache.view(-1, num_kv_heads, head_dim)) for cache in (key_cache, value_cache))
    scales = (
        np.empty((0, 0), np.float32) if scale is None else scale.view(-1, num_kv_heads).numpy()
        for scale in (key_scale, value_scale)
    )
    _each_row(
        _rotate,
        _rotate_all,
        _bits(qkv),
        _bits(cos),
        _bits(sin),
        _bits(query),
        keys,
        values,
        slots.numpy(),
        *scales,
    )
    return query


def _each_row(one: Callable[..., None], all_: Callable[..., None], rows: np.ndarray, *args: Any) -> None:
    """Run a loop over all rows: `one` in this thread, or `all_` on all cores."""
    if len(rows) < MANY_ROWS:
        one(rows, *args, 0, 1)
        return
    with one_call_at_a_time:
        all_(rows, *args, num_cores())


def _bits(tensor: torch.Tensor) -> np.ndarray:
    """Return a NumPy view of a tensor's memory: bfloat16 as its bits in uint16."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy()
    if tensor.dtype == torch.float32:
        return tensor.numpy()
    raise ValueError(f"these loops take float32 and bfloat16, not {tensor.dtype}")


def _cache_bits(cache: torch.Tensor) -> np.ndarray:
    """Return a NumPy view of a cache's memory: like `_bits`, and fp8_e4m3 as its bits in uint8."""
    if dtype_name(cache) not in LARGEST:
        return _bits(cache)
    return cache.view(torch.int8 if cache.dtype == torch.int8 else torch.uint8).numpy()


def _read(row, numbers):
    """Compute numbers[:] = row, in float32."""


@overload(_read)
def _read_compiled(row, numbers):
    """Compile `_read`. A bfloat16 is the upper half of a float32."""
    if row.dtype == types.float32:

        def copy(row, numbers):
            for i in range(numbers.size):
                numbers[i] = row[i]

        return copy

    def widen(row, numbers):
        bits = numbers.view(np.uint32)
        for i in range(numbers.size):
            bits[i] = np.uint32(row[i]) << np.uint32(16)

    return widen


def _store(numbers, row):
    """Compute row[:] = numbers, in the type of `row`."""


@overload(_store)
def _store_compiled(numbers, row):
    """Compile `_store`. To bfloat16: keep the upper half, rounded to nearest, ties to even. NaN stays NaN."""
    if row.dtype == types.float32:

        def copy(numbers, row):
            for i in range(numbers.size):
                row[i] = numbers[i]

        return copy

    def round_(numbers, row):
        bits = numbers.view(np.uint32)
        for i in range(numbers.size):
            b = bits[i]
            nearest = (b + np.uint32(0x7FFF) + ((b >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
            is_nan = (b & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
            row[i] = np.uint16(0x7FC0) if is_nan else np.uint16(nearest)

    return round_


def _keep(numbers, row, scales, slot, head):
    """Store a key or value in the cache: as it is, or quantised, with its scale."""


@overload(_keep, inline="always")
def _keep_compiled(numbers, row, scales, slot, head):
    """Compile `_keep`."""
    if row.dtype in (types.float32, types.uint16):
        return lambda numbers, row, scales, slot, head: _store(numbers, row)
    return lambda numbers, row, scales, slot, head: store_quantised(numbers, row, scales, slot, head)


@njit(**COMPILE)
def _norm(rows, weight, eps, out, share, num_shares):
    """Norm the rows of one share. `rows` and `out` [num_rows, size], weight [size]."""
    size = weight.size
    x = np.empty(size, np.float32)
    for row in range(len(rows) * share // num_shares, len(rows) * (share + 1) // num_shares):
        _read(rows[row], x)
        squares = np.float32(0)
        for i in range(size):
            squares += x[i] * x[i]
        scale = np.float32(1) / np.sqrt(squares / np.float32(size) + eps)
        for i in range(size):
            x[i] = x[i] * scale * weight[i]
        _store(x, out[row])


@njit(**COMPILE)
def _gate(rows, out, share, num_shares):
    """Gate the rows of one share. `rows` [num_rows, 2 * size], `out` [num_rows, size].

    1 / (1 + e ** -x) is written so that the exponent is never positive, and the power cannot overflow.
    """
    size = out.shape[1]
    x, up = np.empty(size, np.float32), np.empty(size, np.float32)
    for row in range(len(rows) * share // num_shares, len(rows) * (share + 1) // num_shares):
        _read(rows[row, :size], x)
        _read(rows[row, size:], up)
        for i in range(size):
            power = exp_of_negative(-abs(x[i]))
            above = np.float32(1) if x[i] >= 0 else power
            x[i] = x[i] * above / (np.float32(1) + power) * up[i]
        _store(x, out[row])


@njit(**COMPILE)
def _rotate(qkv, cos, sin, query, keys, values, slots, key_scale, value_scale, share, num_shares):
    """Rotate and write the tokens of one share.

    keys and values [num_slots, num_kv_heads, head_dim]; key_scale and value_scale [num_slots, num_kv_heads], or empty.
    """
    num_heads, num_kv_heads, size = query.shape[1], keys.shape[1], query.shape[2]
    half = size // 2
    row = np.empty(qkv.shape[1], np.float32)
    c, s = np.empty(size, np.float32), np.empty(size, np.float32)
    for token in range(len(qkv) * share // num_shares, len(qkv) * (share + 1) // num_shares):
        slot = slots[token]
        _read(qkv[token], row)
        _read(cos[token], c)
        _read(sin[token], s)
        for h in range(num_heads + num_kv_heads):
            head = row[h * size : (h + 1) * size]
            low, high = head[:half], head[half:]
            for d in range(half):
                x, y = low[d], high[d]
                low[d] = x * c[d] - y * s[d]
                high[d] = y * c[half + d] + x * s[half + d]
            if h < num_heads:
                _store(head, query[token, h])
            else:
                _keep(head, keys[slot, h - num_heads], key_scale, slot, h - num_heads)
        for h in range(num_kv_heads):
            first = (num_heads + num_kv_heads + h) * size
            _keep(row[first : first + size], values[slot, h], value_scale, slot, h)


@njit(parallel=True, **COMPILE)
def _norm_all(rows, weight, eps, out, num_shares):
    for share in prange(num_shares):
        _norm(rows, weight, eps, out, share, num_shares)


@njit(parallel=True, **COMPILE)
def _gate_all(rows, out, num_shares):
    for share in prange(num_shares):
        _gate(rows, out, share, num_shares)


@njit(parallel=True, **COMPILE)
def _rotate_all(qkv, cos, sin, query, keys, values, slots, key_scale, value_scale, num_shares):
    for share in prange(num_shares):
        _rotate(qkv, cos, sin, query, keys, values, slots, key_scale, value_scale, share, num_shares)
