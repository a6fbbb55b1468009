"""The data type of cached keys and values: the model's own, or one byte per element and a scale per vector.

A quantised cache stores each key and each value vector of `head_dim` elements as one byte per element, and one float32
scale for the whole vector: one scale per token, KV head and layer for the key, and one for the value.

    bytes per token = 2 (K and V) * num_layers * num_kv_heads * (head_dim + 4)

`blocks.quantised_cache` stores and writes it, `attention.quantised` reads it. docs/quantised-cache.md says why there is
one scale per token and head, and what the rounding costs.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from .sizing import ModelShape

# Name -> the dtype of a stored element, and the largest magnitude that an element can have.
QUANTISED: dict[str, tuple[str, float]] = {"int8": ("int8", 127.0), "fp8_e4m3": ("float8_e4m3fn", 448.0)}
LARGEST = dict(QUANTISED.values())  # by dtype
NAMES = {dtype: name for name, (dtype, _) in QUANTISED.items()}
KV_DTYPES = ("auto", *QUANTISED)
SCALE_BYTES = 4


@dataclass(frozen=True)
class QuantisedShape(ModelShape):
    """A `ModelShape` whose keys and values are stored in `kv_dtype`. Weights and activations keep `dtype`."""

    kv_dtype: str = "int8"

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that one token takes, over all layers: an element is one byte, and each vector has a scale."""
        vectors = 1 if self.latent_dim else 2 * self.num_kv_heads
        return self.num_layers * vectors * ((self.latent_dim or self.head_dim) + SCALE_BYTES)


def with_kv_dtype(shape: ModelShape, kv_dtype: str) -> ModelShape:
    """Return the shape with its cache in another data type; "auto" is the model's own.

    Raises:
        ValueError: an unknown data type.
    """
    own: dict[str, Any] = {field.name: getattr(shape, field.name) for field in fields(ModelShape)}
    if require_kv_dtype(kv_dtype) == "auto":
        return ModelShape(**own)
    return QuantisedShape(**own, kv_dtype=kv_dtype)


def require_kv_dtype(kv_dtype: object) -> str:
    """Return `kv_dtype` if it is a data type for a cache.

    Raises:
        ValueError: it is not; the message lists those that are.
    """
    if not isinstance(kv_dtype, str) or kv_dtype not in KV_DTYPES:
        raise ValueError(f"kv_dtype = {kv_dtype!r}: one of {', '.join(KV_DTYPES)}")
    return kv_dtype


def dtype_name(array: Any) -> str:
    """Return the dtype of a NumPy array or a torch tensor as text: `float8_e4m3fn`."""
    return str(array.dtype).removeprefix("torch.")


def check_scales(key_cache: Any, value_cache: Any, key_scale: Any, value_scale: Any) -> None:
    """Check the scales of a quantised cache, and that a cache without scales is not quantised.

    Args:
        key_cache, value_cache: [num_blocks, block_size, num_kv_heads, head_dim], NumPy arrays or torch tensors.
        key_scale, value_scale: [num_blocks, block_size, num_kv_heads] float32 of the same kind, on the same device;
            None for a cache that is not quantised.

    Raises:
        ValueError: one scale without the other, scales without a quantised cache or the reverse, caches of two dtypes,
            or a scale with another kind, dtype, shape or device.
    """
    named = (("key", key_cache, key_scale), ("value", value_cache, value_scale))
    missing = [f"{name}_scale" for name, _, scale in named if scale is None]
    if len(missing) == 2:
        for name, cache, _ in named:
            if dtype_name(cache) in LARGEST:
                raise ValueError(
                    f"{name}_cache is {dtype_name(cache)}: pass its scales, key_scale and value_scale"
                )
        return
    if missing:
        raise ValueError(f"{missing[0]} is missing: pass key_scale and value_scale, or none of them")
    for name, cache, scale in named:
        if dtype_name(cache) not in LARGEST:
            raise ValueError(
                f"{name}_scale was passed, but {name}_cache is {dtype_name(cache)}: only a quantised cache has scales "
                f"({', '.join(LARGEST)})"
            )
        if dtype_name(cache) != dtype_name(key_cache):
            raise ValueError(
                f"value_cache is {dtype_name(cache)}, but key_cache is {dtype_name(key_cache)}: use one dtype"
            )
        if type(scale) is not type(cache):
            raise ValueError(
                f"{name}_scale is a {type(scale).__name__}, {name}_cache a {type(cache).__name__}: use one kind"
            )
        if dtype_name(scale) != "float32":
            raise ValueError(f"{name}_scale is {dtype_name(scale)}: it must be float32")
        if tuple(scale.shape) != tuple(cache.shape[:-1]):
            raise ValueError(
                f"{name}_scale has shape {tuple(scale.shape)}: with this {name}_cache it must be "
                f"{tuple(cache.shape[:-1])}, one scale for each token and KV head"
            )
        if getattr(scale, "device", None) != getattr(cache, "device", None):
            raise ValueError(f"{name}_scale is on {scale.device}, but {name}_cache is on {cache.device}")
