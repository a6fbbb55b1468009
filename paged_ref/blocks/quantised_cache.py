"""A KV cache with one byte per element and a scale per token and KV head (see `quantise` for the rounding).

The scales are two more tensors, addressed as keys and values are, by block and offset. So whatever moves a block moves
its scales too, and a block table needs to know nothing of them:

    keys, values            [num_layers, num_blocks, block_size, num_kv_heads, head_dim]   int8 or float8_e4m3fn
    key_scale, value_scale  [num_layers, num_blocks, block_size, num_kv_heads]             float32

A slot is quantised once, when its token is written, from that token alone. No other slot changes, so a shared block
stays what it was when it was shared, and a copied or swapped block is the same bytes elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..kv_dtype import QUANTISED, QuantisedShape
from ..sizing import ModelShape
from .kv_cache import KVCache, LayerCache, write_rows
from .quantise import as_bytes, quantise

if TYPE_CHECKING:
    import torch


def make_cache(
    shape: ModelShape,
    num_blocks: int,
    block_size: int,
    device: str | torch.device = "cpu",
    pin_memory: bool = False,
) -> KVCache:
    """Return the storage for a shape: quantised if it is a `QuantisedShape`. See `KVCache` for arguments and errors."""
    kind = QuantisedKVCache if isinstance(shape, QuantisedShape) else KVCache
    return kind(shape, num_blocks, block_size, device, pin_memory)


class QuantisedKVCache(KVCache):
    """The `KVCache` of a `QuantisedShape`.

    New scales are not cleared either: the scale of a slot that no token was written to may be anything.
    """

    def _allocate(self, vectors: tuple[int, ...], **where: Any) -> None:
        import torch

        assert isinstance(self.shape, QuantisedShape)
        dtype = getattr(torch, QUANTISED[self.shape.kv_dtype][0])
        self.keys, self.values = (
            torch.empty(*vectors, self.shape.head_dim, dtype=dtype, **where) for _ in range(2)
        )
        self.key_scale, self.value_scale = (
            torch.empty(*vectors, dtype=torch.float32, **where) for _ in range(2)
        )

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Everything that belongs to a block: keys and values as bytes, and their scales."""
        return as_bytes(self.keys), as_bytes(self.values), self.key_scale, self.value_scale

    def layer(self, layer: int) -> LayerCache:
        """Return one layer's caches and scales."""
        return QuantisedLayerCache(
            self.keys[layer], self.values[layer], self.key_scale[layer], self.value_scale[layer]
        )


class QuantisedLayerCache(LayerCache):
    """One layer's caches with their scales; writing quantises."""

    def write(self, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
        """Quantise rows [num_tokens, num_kv_heads, head_dim] and write elements and scales into `slots`."""
        for rows, cache, scales in ((key, self.keys, self.key_scale), (value, self.values, self.value_scale)):
            assert scales is not None
            elements, scale = quantise(rows, cache.dtype)
            write_rows(as_bytes(elements), as_bytes(cache), slots)
            write_rows(scale, scales, slots)
