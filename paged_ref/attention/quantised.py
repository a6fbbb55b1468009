"""Quantised caches in attention: which backend reads which, and how NumPy and torch dequantise what they gather.

A backend declares in `KV_DTYPES` which data types it dequantises; a backend without that declaration is never given a
quantised cache. The numba loop and the Triton kernels dequantise in their own code.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..kv_dtype import QUANTISED


@functools.cache
def check_support(kv_dtype: str, backend: str, dequantises: tuple[str, ...], device: str) -> None:
    """Check that a backend reads caches of this data type on this device, and that torch can write them there.

    Args:
        kv_dtype: "int8" or "fp8_e4m3".
        backend: the backend's name.
        dequantises: its module's `KV_DTYPES`.
        device: the name of a torch device.

    Raises:
        ValueError: it does not; the message says what can be used.
    """
    if kv_dtype not in dequantises:
        raise ValueError(f"kv_dtype = {kv_dtype!r}: the {backend} backend does not read such a cache")
    import torch

    if kv_dtype == "fp8_e4m3" and backend == "triton" and torch.device(device).type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if torch.version.hip is not None or (major, minor) < (8, 9):
            raise ValueError(
                "kv_dtype = 'fp8_e4m3': the triton backend reads it on NVIDIA GPUs of compute capability 8.9 or more, "
                f"and {device} is {torch.cuda.get_device_name(device)}; use 'int8', or backend='torch'"
            )
    try:
        torch.ones(1, device=device).to(getattr(torch, QUANTISED[kv_dtype][0])).float()
    except (RuntimeError, TypeError, AttributeError) as error:
        raise ValueError(
            f"kv_dtype = {kv_dtype!r}: torch has no such dtype on {device}: {str(error).splitlines()[0]}"
        ) from error


class DequantisedBlocks:
    """A quantised NumPy cache that reads like one of float32: indexing it dequantises the blocks or rows it returns."""

    def __init__(self, elements: np.ndarray, scale: np.ndarray) -> None:
        self.elements, self.scale = elements, scale
        self.shape = elements.shape

    def __getitem__(self, where: Any) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):  # a slot without a token may hold any scale
            wide: np.ndarray = self.elements[where].astype(np.float32) * self.scale[where][..., None]
        return wide


def readable(cache: Any, scale: Any) -> Any:
    """Return a NumPy cache as attention reads it: itself, or its blocks dequantised if it has scales."""
    return cache if scale is None else DequantisedBlocks(cache, scale)


def gather_rows(cache: Any, scale: Any, slots: Any, dtype: Any) -> Any:
    """Return rows of a torch cache by slot, [n, num_kv_heads, head_dim]; dequantised, in `dtype`, if it has scales."""
    rows = cache.flatten(0, 1)[slots]
    return rows if scale is None else (rows.float() * scale.flatten(0, 1)[slots][..., None]).to(dtype)
