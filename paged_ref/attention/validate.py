"""Checks of `paged_attention`'s arguments, made before any backend runs.

A block id out of range does not raise inside a compiled kernel: it reads out-of-bounds memory or kills the
process. So ids are checked here, in one place, for all backends. Only the *used* part of a table is checked:

    block_tables[i, : ceil(seq_lens[i] / block_size)]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..kv_dtype import LARGEST, check_scales, dtype_name


@dataclass(frozen=True)
class Batch:
    """The integers of one step, on the host.

    Attributes:
        block_tables: [num_seqs, max_blocks_per_seq] int32.
        seq_lens: [num_seqs] int32: tokens in the cache, including those of this step.
        query_start_loc: [num_seqs + 1] int32: prefix sums of the query token counts.
    """

    block_tables: np.ndarray
    seq_lens: np.ndarray
    query_start_loc: np.ndarray

    @classmethod
    def of(cls, block_tables: Any, seq_lens: Any, query_start_loc: Any = None) -> Batch:
        """Make a batch from arrays or tensors on any device; without query_start_loc, one query token per sequence."""
        seq_lens = to_numpy(seq_lens)
        starts = np.arange(len(seq_lens) + 1) if query_start_loc is None else to_numpy(query_start_loc)
        return cls(*(_int32(a) for a in (to_numpy(block_tables), seq_lens, starts)))

    @property
    def query_lens(self) -> np.ndarray:
        """[num_seqs]: the number of query tokens of each sequence."""
        return np.diff(self.query_start_loc)


def _int32(array: np.ndarray) -> np.ndarray:
    """Convert to int32. A value that does not fit is clipped: wrapping around could turn it into a valid id."""
    limits = np.iinfo(np.int32)
    fits = array.dtype.itemsize <= 4 and array.dtype.kind == "i"
    return np.asarray(array if fits else np.clip(array, limits.min, limits.max), dtype=np.int32)


def is_torch(array: Any) -> bool:
    """Return True for a torch tensor, without importing torch."""
    return type(array).__module__.partition(".")[0] == "torch"


def to_numpy(array: Any) -> np.ndarray:
    """Return the array as a NumPy array on the host. For a GPU tensor this waits for the device."""
    return np.asarray(array.detach().cpu()) if is_torch(array) else np.asarray(array)


def check_arguments(
    query: Any,
    key_cache: Any,
    value_cache: Any,
    block_tables: Any,
    seq_lens: Any,
    query_start_loc: Any,
    sliding_window: int | None,
    softcap: float | None,
    scale: float | None = None,
    key_scale: Any = None,
    value_scale: Any = None,
) -> None:
    """Check shapes, kinds, dtypes and devices: everything that can be checked without reading an array's contents.

    Raises:
        ValueError: an invalid argument, by name.
    """
    arrays = {"query": query, "key_cache": key_cache, "value_cache": value_cache}
    integers = {"block_tables": block_tables, "seq_lens": seq_lens}
    if query_start_loc is not None:
        integers["query_start_loc"] = query_start_loc
    for name, array in {**arrays, **integers}.items():
        if not hasattr(array, "dtype") or not hasattr(array, "shape"):
            raise ValueError(
                f"{name} is a {type(array).__name__}: it must be a NumPy array or a torch tensor"
            )
    for name, array in arrays.items():
        if is_torch(array) != is_torch(query):
            raise ValueError(f"{name} is a {_kind(array)}, but query is a {_kind(query)}: use one kind")
        if array.dtype != query.dtype and not (array is not query and dtype_name(array) in LARGEST):
            raise ValueError(f"{name} is {array.dtype}, but query is {query.dtype}: they must have one dtype")
        if is_torch(query) and array.device != query.device:
            raise ValueError(f"{name} is on {array.device}, but query is on {query.device}")
    if not _is_float(query.dtype):
        raise ValueError(f"query is {query.dtype}: it must be a floating-point type")
    for name, array in integers.items():
        if not _is_integer(array.dtype):
            raise ValueError(f"{name} is {array.dtype}: it must be an integer type, usually int32")
    for name, array, ndim in (
        ("query", query, 3),
        ("key_cache", key_cache, 4),
        ("value_cache", value_cache, 4),
        ("block_tables", block_tables, 2),
        ("seq_lens", seq_lens, 1),
    ):
        if len(array.shape) != ndim:
            raise ValueError(f"{name} has shape {tuple(array.shape)}: it must have {ndim} dimensions")
    _check_shapes(query, key_cache, value_cache, block_tables, seq_lens, query_start_loc)
    check_scales(key_cache, value_cache, key_scale, value_scale)
    whole = isinstance(sliding_window, (int, np.integer)) and not isinstance(sliding_window, bool)
    if sliding_window is not None and not (whole and sliding_window >= 1):
        raise ValueError(
            f"sliding_window = {sliding_window!r}: it must be a whole number, 1 or more, or None"
        )
    if softcap is not None and not (_is_finite(softcap) and softcap > 0):
        raise ValueError(f"softcap = {softcap!r}: it must be a positive number, or None")
    if scale is not None and not _is_finite(scale):
        raise ValueError(f"scale = {scale!r}: it must be a finite number, or None")


def _is_finite(value: object) -> bool:
    return isinstance(value, (int, float, np.number)) and math.isfinite(value)


def _check_shapes(
    query: Any, key_cache: Any, value_cache: Any, block_tables: Any, seq_lens: Any, query_start_loc: Any
) -> None:
    if tuple(key_cache.shape) != tuple(value_cache.shape):
        raise ValueError(
            f"key_cache has shape {tuple(key_cache.shape)}, value_cache {tuple(value_cache.shape)}"
        )
    _, num_heads, head_dim = query.shape
    _, block_size, num_kv_heads, cache_head_dim = key_cache.shape
    if min(num_heads, head_dim, block_size, num_kv_heads) < 1:
        raise ValueError(
            f"query {tuple(query.shape)} or cache {tuple(key_cache.shape)} has an empty dimension"
        )
    if head_dim != cache_head_dim:
        raise ValueError(f"query has head_dim {head_dim}, the cache {cache_head_dim}")
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} query heads cannot be divided evenly among {num_kv_heads} KV heads")
    num_seqs = seq_lens.shape[0]
    if block_tables.shape[0] != num_seqs:
        raise ValueError(
            f"block_tables has {block_tables.shape[0]} rows, but seq_lens has {num_seqs} sequences"
        )
    if query_start_loc is None:
        if query.shape[0] != num_seqs:
            raise ValueError(
                f"query has {query.shape[0]} tokens for {num_seqs} sequences: pass query_start_loc"
            )
    elif tuple(query_start_loc.shape) != (num_seqs + 1,):
        raise ValueError(
            f"query_start_loc has shape {tuple(query_start_loc.shape)}: "
            f"for {num_seqs} sequences it must be [{num_seqs + 1}]"
        )


def check_batch(batch: Batch, num_tokens: int, num_blocks: int, block_size: int) -> None:
    """Check the integer arrays' contents: rising query starts, lengths that cover the queries, ids that exist.

    Raises:
        ValueError: an invalid entry, by name and index.
    """
    starts, query_lens, seq_lens = batch.query_start_loc, batch.query_lens, batch.seq_lens
    if starts[0] != 0 or starts[-1] != num_tokens:
        raise ValueError(
            f"query_start_loc runs from {starts[0]} to {starts[-1]}: "
            f"it must run from 0 to {num_tokens}, the number of query tokens"
        )
    if (query_lens < 0).any():
        i = int(np.argmax(query_lens < 0))
        raise ValueError(
            f"query_start_loc falls from {starts[i]} to {starts[i + 1]} at sequence {i}: it must not fall"
        )
    if (seq_lens < query_lens).any():
        i = int(np.argmax(seq_lens < query_lens))
        raise ValueError(
            f"seq_lens[{i}] = {seq_lens[i]}, but sequence {i} has {query_lens[i]} query tokens in this call"
        )
    width = batch.block_tables.shape[1]
    needed = -(-seq_lens.astype(np.int64) // block_size)
    if (needed > width).any():
        i = int(np.argmax(needed > width))
        raise ValueError(
            f"block_tables has {width} columns, "
            f"but sequence {i} needs {needed[i]} blocks for its {seq_lens[i]} tokens"
        )
    used = np.arange(width) < needed[:, None]
    wrong = np.argwhere(used & ((batch.block_tables < 0) | (batch.block_tables >= num_blocks)))
    if wrong.size:
        i, j = (int(x) for x in wrong[0])
        last = min((j + 1) * block_size, int(seq_lens[i])) - 1
        raise ValueError(
            f"block_tables[{i}, {j}] = {batch.block_tables[i, j]}, but the cache has {num_blocks} blocks "
            f"(sequence {i} needs block {j} for its tokens {j * block_size}..{last})"
        )


def _kind(array: Any) -> str:
    return "torch tensor" if is_torch(array) else "NumPy array"


def _is_float(dtype: Any) -> bool:
    return dtype.is_floating_point if is_torch(dtype) else dtype.kind == "f"


def _is_integer(dtype: Any) -> bool:
    if is_torch(dtype):
        return not (dtype.is_floating_point or dtype.is_complex or str(dtype) == "torch.bool")
    return dtype.kind in "iu"
