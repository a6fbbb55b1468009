"""Paged attention in PyTorch, on a CPU or a GPU: gather by index, then scaled dot-product attention.

`run` handles two kinds of sequence separately, because their arithmetic differs:

* sequences with one query token (decode) are gathered together, padded to the longest, and attended in one call;
* sequences with more (prefill, or a chunk of one) are attended one by one, with large matmuls.

The gather copies the context, which costs about as much as the attention itself. A kernel that reads the blocks
in place does not copy (chapter 5).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from ..kv_dtype import QUANTISED
from .quantised import gather_rows
from .validate import Batch

KV_DTYPES = tuple(QUANTISED)


def plan(batch: Batch, block_size: int, device: Any = None, only: np.ndarray | None = None) -> TorchPlan:
    """Split the batch into decodes and others, and turn every token position into a slot index, on the device.

    only: [num_seqs] bool, the sequences to attend; the rows of all others stay unwritten in the result.
    """
    query_lens = batch.query_lens if only is None else np.where(only, batch.query_lens, 0)
    decodes = np.flatnonzero(query_lens == 1)
    parts = [_Part.of(batch, decodes, block_size, device)] if len(decodes) else []
    for i in np.flatnonzero(query_lens > 1):
        parts.append(_Part.of(batch, np.array([i]), block_size, device))
    return TorchPlan(parts)


@dataclass(frozen=True)
class _Part:
    """Sequences that are attended in one call: s sequences with q query tokens each, padded to n keys.

    rows [s * q]: query tokens; slots [s * n]: slots of their keys; query_position [s, q, 1];
    key_position [n]; seq_lens [s, 1, 1].
    """

    rows: torch.Tensor
    slots: torch.Tensor
    query_position: torch.Tensor
    key_position: torch.Tensor
    seq_lens: torch.Tensor

    @classmethod
    def of(cls, batch: Batch, seqs: np.ndarray, block_size: int, device: Any) -> _Part:
        seq_lens = batch.seq_lens[seqs].astype(np.int64)
        q = int(batch.query_lens[seqs[0]])
        rows = batch.query_start_loc[seqs].astype(np.int64)[:, None] + np.arange(q)
        position = np.arange(seq_lens.max())
        exists = position < seq_lens[:, None]
        block = batch.block_tables[seqs][:, : len(position) // block_size + 1]
        logical = np.minimum(position // block_size, block.shape[1] - 1)
        block = np.take(block.astype(np.int64), logical, axis=1)
        # Padding reads slot 0 and is masked afterwards.
        slots = np.where(exists, block * block_size + position % block_size, 0)
        query_position = (seq_lens[:, None] - q + np.arange(q))[:, :, None]
        arrays = (rows.ravel(), slots.ravel(), query_position, position, seq_lens[:, None, None])
        return cls(*(torch.from_numpy(np.ascontiguousarray(a)).to(device) for a in arrays))


@dataclass(frozen=True)
class TorchPlan:
    """The parts of one batch; see `attention.AttentionPlan`."""

    parts: list[_Part]

    def run(
        self,
        query: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        scale: float,
        sliding_window: int | None = None,
        softcap: float | None = None,
        key_scale: torch.Tensor | None = None,
        value_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the attention of the whole batch. With a softcap, scores and weights are float32."""
        output = torch.empty_like(query)
        for part in self.parts:
            keys = gather_rows(key_cache, key_scale, part.slots, query.dtype)
            values = gather_rows(value_cache, value_scale, part.slots, query.dtype)
            output[part.rows] = _attend(part, query, keys, values, scale, sliding_window, softcap)
        return output


def _attend(
    part: _Part,
    query: torch.Tensor,
    keys: torch.Tensor,  # [s * n, num_kv_heads, head_dim]
    values: torch.Tensor,
    scale: float,
    sliding_window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    (s, q, _), n = part.query_position.shape, len(part.key_position)
    num_heads, head_dim, num_kv_heads = *query.shape[1:], keys.shape[1]
    keys, values = (rows.view(s, n, num_kv_heads, head_dim) for rows in (keys, values))
    visible = part.key_position <= part.query_position  # [s, q, n]; also false past the end of the sequence
    if sliding_window is not None:
        visible &= part.key_position > part.query_position - sliding_window
    # Padding reads slot 0, which may hold NaN; a weight of 0 does not remove it (0 * NaN is NaN): clear those rows.
    absent = (part.key_position >= part.seq_lens).transpose(1, 2).unsqueeze(-1)
    if s > 1:
        keys, values = keys.masked_fill(absent, 0), values.masked_fill(absent, 0)
    # [s, num_kv_heads, group * q or n, head_dim]: the query heads of one KV head become rows of one matmul.
    group = num_heads // num_kv_heads
    grouped = query[part.rows].view(s, q, num_kv_heads, group, head_dim).permute(0, 2, 3, 1, 4).flatten(2, 3)
    keys, values = keys.transpose(1, 2), values.transpose(1, 2)
    mask = visible[:, None].repeat(1, 1, group, 1)
    if softcap is None:
        attended = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=scale)
    else:
        scores = scale * (grouped.float() @ keys.float().transpose(-1, -2))
        scores = (softcap * torch.tanh(scores / softcap)).masked_fill(~mask, -torch.inf)
        attended = (torch.softmax(scores, dim=-1) @ values.float()).to(query.dtype)
    attended = attended.view(s, num_kv_heads, group, q, head_dim).permute(0, 3, 1, 2, 4)
    return attended.reshape(s * q, num_heads, head_dim)
