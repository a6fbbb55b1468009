"""The storage for keys and values of all layers: written by slot, copied and moved by block (chapter 3).

    keys, values   [num_layers, num_blocks, block_size, num_kv_heads, head_dim]

`keys[layer]` is one layer's cache as `paged_attention` takes it. A *slot* is one row of the storage, with block and
offset combined: slot = block * block_size + offset. Writing a token is one row write, whatever sequence it belongs to.
The same block ids are valid in every layer, so there is one block table and `num_layers` times the storage.

    block 0                 block 1                 block 2
    [slot 0  1  2  3 ]      [slot 4  5  6  7 ]      [slot 8  9 10 11 ]        block_size = 4

New storage is not cleared: a slot that no token was written to may hold anything, including NaN, and must not be
read. (PagedAttention paper, section 4.2. The token is the outermost dimension of a block, so one token's heads are
contiguous; vLLM's FlashAttention backend uses the same order.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..kv_dtype import check_scales
from ..sizing import ModelShape, human_bytes
from .quantise import as_bytes, quantise_like

if TYPE_CHECKING:
    import torch


class KVCache:
    """Keys and values of `num_blocks` blocks, for every layer of a model.

    Args:
        shape: layers, KV heads, head size and dtype.
        num_blocks, block_size: as in the `BlockPool` that hands the blocks out.
        device: a torch device.
        pin_memory: page-locked host memory, for fast copies to and from a GPU (the host side of a swap).

    Raises:
        MemoryError: the device has no room for the cache; the message says how much was requested.
    """

    def __init__(
        self,
        shape: ModelShape,
        num_blocks: int,
        block_size: int,
        device: str | torch.device = "cpu",
        pin_memory: bool = False,
    ) -> None:
        self.shape = shape
        self.num_blocks, self.block_size = num_blocks, block_size
        vectors = (shape.num_layers, num_blocks, block_size, shape.num_kv_heads)
        try:
            self._allocate(vectors, device=device, pin_memory=pin_memory)
        except (RuntimeError, MemoryError) as error:  # torch reports a failed host allocation as RuntimeError
            raise MemoryError(
                f"no room on {device} for a KV cache of {num_blocks} blocks of {block_size} tokens "
                f"({human_bytes(num_blocks * shape.kv_bytes_per_block(block_size))}): ask for fewer blocks"
            ) from error

    def _allocate(self, vectors: tuple[int, ...], **where: Any) -> None:
        import torch

        size, dtype = (*vectors, self.shape.head_dim), getattr(torch, self.shape.dtype)
        self.keys = torch.empty(size, dtype=dtype, **where)
        self.values = torch.empty(size, dtype=dtype, **where)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Everything that belongs to a block: tensors [num_layers, num_blocks, block_size, …]."""
        return self.keys, self.values

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)

    def layer(self, layer: int) -> LayerCache:
        """Return one layer's caches."""
        return LayerCache(self.keys[layer], self.values[layer])

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
        """Write one layer's rows [num_tokens, num_kv_heads, head_dim] into `slots` ([num_tokens] int64, all valid)."""
        self.layer(layer).write(key, value, slots)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, in every layer: [(source, destination)]. All sources are read before any write."""
        self.load_blocks(self, pairs)

    def load_blocks(self, other: KVCache, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks of another cache into this one: [(block there, block here)]. With a host cache this is a swap.

        Raises:
            ValueError: the caches have different dtypes.
        """
        if self.keys.dtype != other.keys.dtype:
            raise ValueError(f"a {other.keys.dtype} cache cannot be copied into a {self.keys.dtype} cache")
        if not pairs:
            return
        import torch

        sources, destinations = torch.tensor(pairs, dtype=torch.int64).T
        for ours, theirs in zip(self.tensors, other.tensors, strict=True):
            # index_select finishes reading before anything is written. index_copy_ writes into `ours` itself;
            # `ours[:, destinations].copy_(…)` would write into a temporary and lose the result.
            moved = theirs.index_select(1, sources.to(theirs.device)).to(ours.device)
            ours.index_copy_(1, destinations.to(ours.device), moved)


class LayerCache(NamedTuple):
    """One layer's keys and values, as `paged_attention` takes them. A cache that is not quantised has no scales."""

    keys: torch.Tensor
    values: torch.Tensor
    key_scale: torch.Tensor | None = None
    value_scale: torch.Tensor | None = None

    def write(self, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
        """Write rows [num_tokens, num_kv_heads, head_dim] into `slots` ([num_tokens] int64, all valid)."""
        write_rows(key, self.keys, slots)
        write_rows(value, self.values, slots)


def write_rows(rows: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    """Write rows [num_tokens, num_kv_heads, head_dim] into one layer's keys or values by slot, without checks."""
    cache.flatten(0, 1).index_copy_(0, slots, rows)


def write_kv(
    key: Any,
    value: Any,
    key_cache: Any,
    value_cache: Any,
    slot_mapping: Any,
    key_scale: Any = None,
    value_scale: Any = None,
) -> None:
    """Write the keys and values of some tokens into their slots, in place.

    Args:
        key, value: [num_tokens, num_kv_heads, head_dim].
        key_cache, value_cache: [num_blocks, block_size, num_kv_heads, head_dim], changed in place. int8 or (torch only)
            float8_e4m3fn: the rows are quantised, and the scales must be passed.
        slot_mapping: [num_tokens] integers. -1: this token is not written (padding).
        key_scale, value_scale: [num_blocks, block_size, num_kv_heads] float32, the scales of a quantised cache, changed
            in place.

    All arguments are NumPy arrays, or all are torch tensors.

    Raises:
        ValueError: shapes or dtypes that do not match, a slot outside the cache, or a slot used twice. Nothing is
            written then.
    """
    slots = np.asarray(slot_mapping if isinstance(slot_mapping, np.ndarray) else slot_mapping.cpu())
    check_scales(key_cache, value_cache, key_scale, value_scale)
    _check_write(key, value, key_cache, value_cache, slots, quantised=key_scale is not None)
    if key_scale is None:
        _scatter(key, key_cache, slots)
        _scatter(value, value_cache, slots)
        return
    for rows, cache, scales in ((key, key_cache, key_scale), (value, value_cache, value_scale)):
        elements, scale = quantise_like(rows, cache)
        _scatter(elements, cache, slots)
        _scatter(scale, scales, slots)


def _scatter(rows: Any, cache: Any, slots: np.ndarray) -> None:
    """Write rows by slot into a cache of any strides, leaving out slot -1."""
    written = np.flatnonzero(slots != -1)
    if isinstance(cache, np.ndarray):
        cache[slots[written] // cache.shape[1], slots[written] % cache.shape[1]] = rows[written]
        return
    import torch

    where = torch.from_numpy(slots[written].astype(np.int64)).to(cache.device)
    what = as_bytes(rows)[torch.from_numpy(written).to(rows.device)]
    as_bytes(cache)[where // cache.shape[1], where % cache.shape[1]] = what


def _is_float(rows: Any) -> bool:
    return rows.dtype.kind == "f" if isinstance(rows, np.ndarray) else bool(rows.is_floating_point())


def _check_write(
    key: Any, value: Any, key_cache: Any, value_cache: Any, slots: np.ndarray, quantised: bool
) -> None:
    if slots.ndim != 1 or slots.dtype.kind not in "iu":
        raise ValueError(
            f"slot_mapping has shape {slots.shape} and dtype {slots.dtype}: it must be [num_tokens] integers"
        )
    for name, rows, cache in (("key", key, key_cache), ("value", value, value_cache)):
        if type(rows) is not type(cache):
            raise ValueError(
                f"{name} is a {type(rows).__name__}, {name}_cache a {type(cache).__name__}: use one kind"
            )
        if rows.dtype != cache.dtype and not (quantised and _is_float(rows)):
            raise ValueError(
                f"{name} is {rows.dtype}, {name}_cache is {cache.dtype}: convert one of them first"
            )
        if getattr(rows, "device", None) != getattr(cache, "device", None):
            raise ValueError(
                f"{name} is on {rows.device}, {name}_cache on {cache.device}: move one of them first"
            )
        if len(cache.shape) != 4:
            raise ValueError(f"{name}_cache has shape {tuple(cache.shape)}: it must have 4 dimensions")
        expected = (slots.shape[0], *cache.shape[2:])
        if tuple(rows.shape) != expected:
            raise ValueError(
                f"{name} has shape {tuple(rows.shape)}: with this slot_mapping and cache it must be {expected}"
            )
    if tuple(key_cache.shape[:2]) != tuple(value_cache.shape[:2]):
        raise ValueError(
            f"key_cache has {key_cache.shape[0]} blocks of {key_cache.shape[1]} tokens, "
            f"value_cache {value_cache.shape[0]} of {value_cache.shape[1]}: a slot must be in both"
        )
    num_slots = key_cache.shape[0] * key_cache.shape[1]
    wrong = np.flatnonzero((slots < -1) | (slots >= num_slots))
    if wrong.size:
        raise ValueError(
            f"slot_mapping[{wrong[0]}] = {slots[wrong[0]]}, but the cache has slots 0 to {num_slots - 1}"
        )
    values, counts = np.unique(slots[slots != -1], return_counts=True)
    if (counts > 1).any():
        raise ValueError(f"slot {values[counts > 1][0]} is given for two tokens of one write")
