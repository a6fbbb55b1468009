"""Block tables in the other common format: compressed sparse rows (chapter 3).

A rectangular table wastes space where lengths differ. FlashInfer stores the used entries of all rows one after
the other, plus the start of each row, in the way sparse matrices are stored. It calls a block a *page*:

    block_size 4
    block_tables  [ 7 1 4 · ]       kv_indptr         [0, 3, 4]        starts of the rows, and the end
                  [ 5 · · · ]       kv_indices        [7, 1, 4, 5]     the used entries, row after row
    seq_lens      [ 9, 2 ]          kv_last_page_len  [1, 2]           tokens in each row's last block

Row i is kv_indices[kv_indptr[i] : kv_indptr[i + 1]].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .validate import is_torch, to_numpy


def to_csr(block_tables: Any, seq_lens: Any, block_size: int) -> tuple[Any, Any, Any]:
    """Convert rectangular tables to compressed rows.

    Args:
        block_tables: [num_seqs, max_blocks_per_seq] integers.
        seq_lens: [num_seqs] integers.
        block_size: tokens per block.

    Returns:
        kv_indptr [num_seqs + 1], kv_indices [number of used blocks], kv_last_page_len [num_seqs], int32, as
        NumPy arrays or torch tensors like block_tables. The last block of an empty sequence has length 0.

    Raises:
        ValueError: a negative length, a table too short for its sequence, or a block size below 1.
    """
    tables, lens = to_numpy(block_tables), to_numpy(seq_lens).astype(np.int64)
    if block_size < 1:
        raise ValueError(f"block_size = {block_size}: it must be 1 or more")
    if tables.ndim != 2 or lens.shape != tables.shape[:1]:
        raise ValueError(
            f"block_tables {tables.shape} and seq_lens {lens.shape} must be [num_seqs, …] and [num_seqs]"
        )
    needed = -(-lens // block_size)
    wrong = np.flatnonzero((lens < 0) | (needed > tables.shape[1]))
    if wrong.size:
        i = wrong[0]
        raise ValueError(
            f"seq_lens[{i}] = {lens[i]} does not fit {tables.shape[1]} blocks of {block_size} tokens"
        )
    indptr = np.concatenate([[0], np.cumsum(needed)])
    indices = tables[np.arange(tables.shape[1]) < needed[:, None]]
    last = np.where(lens > 0, (lens - 1) % block_size + 1, 0)
    return _like(block_tables, indptr), _like(block_tables, indices), _like(block_tables, last)


def from_csr(kv_indptr: Any, kv_indices: Any, kv_last_page_len: Any, block_size: int) -> tuple[Any, Any]:
    """Convert compressed rows to block_tables [num_seqs, longest row] (unused entries -1) and seq_lens, both int32.

    Raises:
        ValueError: kv_indptr does not rise from 0 to len(kv_indices), or a last length is impossible for its row.
    """
    indptr, indices, last = (to_numpy(a).astype(np.int64) for a in (kv_indptr, kv_indices, kv_last_page_len))
    counts = np.diff(indptr)
    if len(indptr) != len(last) + 1 or indptr[0] != 0 or indptr[-1] != len(indices) or (counts < 0).any():
        raise ValueError(
            f"kv_indptr must rise from 0 to {len(indices)}, the number of kv_indices, "
            f"in {len(last) + 1} entries: {indptr}"
        )
    wrong = np.flatnonzero(np.where(counts > 0, (last < 1) | (last > block_size), last != 0))
    if wrong.size:
        i = wrong[0]
        raise ValueError(
            f"kv_last_page_len[{i}] = {last[i]}, but row {i} has {counts[i]} blocks of {block_size} tokens"
        )
    tables = np.full((len(last), counts.max(initial=0)), -1, dtype=np.int64)
    tables[np.arange(tables.shape[1]) < counts[:, None]] = indices
    lens = np.where(counts > 0, (counts - 1) * block_size + last, 0)
    return _like(kv_indptr, tables), _like(kv_indptr, lens)


def _like(model: Any, array: np.ndarray) -> Any:
    array = np.ascontiguousarray(array, dtype=np.int32)
    if not is_torch(model):
        return array
    import torch

    return torch.from_numpy(array).to(model.device)
