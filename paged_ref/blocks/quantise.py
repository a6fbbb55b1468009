"""Rounding of keys and values to one byte per element, with a scale per vector.

Let a be the largest magnitude in a vector and t the largest magnitude of an element (int8: 127, fp8_e4m3: 448). The
vector's scale is a / t, and an element is x / scale, rounded to the nearest value that the data type has. What is read
back is element * scale. It differs from x by at most

    int8        scale / 2 = a / 254                  all steps are as large as the scale
    fp8_e4m3    max(|x| / 16, scale / 1024)          3 bits of mantissa; below scale / 64 the steps are scale / 512

A scale is never below the smallest normal float32, so a vector of zeros needs no special case. NaN or infinity in a
vector makes its scale, and so the whole vector, not finite: quantisation never hides a broken model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..kv_dtype import LARGEST, dtype_name

if TYPE_CHECKING:
    import torch

SMALLEST = float(np.finfo(np.float32).tiny)


def quantise(rows: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the elements and scales of some vectors.

    Args:
        rows: [..., head_dim], any floating-point type.
        dtype: torch.int8 or torch.float8_e4m3fn.

    Returns:
        elements [..., head_dim] of `dtype`, and scales [...] float32.
    """
    wide = rows.float()
    scale = (wide.abs().amax(-1) / LARGEST[str(dtype).removeprefix("torch.")]).clamp_min(SMALLEST)
    divided = wide / scale[..., None]
    return (divided if dtype.is_floating_point else divided.round()).to(dtype), scale


def dequantise(elements: Any, scale: Any) -> Any:
    """Return the vectors in float32: elements [..., head_dim], scale [...]; both NumPy or both torch."""
    wide = elements.astype(np.float32) if isinstance(elements, np.ndarray) else elements.float()
    return wide * scale[..., None]


def quantise_array(rows: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Quantise NumPy arrays like `quantise`, to int8: NumPy has no 8-bit floating-point type."""
    wide = rows.astype(np.float32)
    scale = np.maximum(
        np.abs(wide).max(-1, initial=0) / np.float32(LARGEST[dtype.name]), np.float32(SMALLEST)
    )
    with np.errstate(invalid="ignore"):  # NaN and infinity: the scale tells
        return np.rint(wide / scale[..., None]).astype(dtype), scale


def quantise_like(rows: Any, cache: Any) -> tuple[Any, Any]:
    """Quantise rows to the dtype of a cache; both NumPy or both torch."""
    return (quantise_array if isinstance(rows, np.ndarray) else quantise)(rows, cache.dtype)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of a quantised tensor as int8: torch copies bytes by index, but not 8-bit floats."""
    import torch

    return tensor.view(torch.int8) if dtype_name(tensor) in LARGEST else tensor
