"""The rounding of `blocks.quantise` as compiled loops over one vector, for the CPU fast path (chapter 7).

`store_quantised` takes the place of a plain store when a row loop writes into a quantised cache.
"""

# A compiled function takes its types from its first call. Its docstring describes its arguments.
# ruff: noqa: ANN001, ANN202
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False

from __future__ import annotations

import numpy as np
from numba import njit, types
from numba.extending import overload

from ...attention.numba_loop import COMPILE
from ...blocks.quantise import SMALLEST
from ...kv_dtype import LARGEST

LARGEST_INT8, LARGEST_FP8 = np.float32(LARGEST["int8"]), np.float32(LARGEST["float8_e4m3fn"])
TINY = np.float32(SMALLEST)


@njit(**COMPILE)
def _scale(numbers, largest):
    """Return the scale of one vector [size] float32.

    Magnitudes are compared by their bits, which have the same order, and in which infinity and NaN come last: unlike a
    comparison of floats, this one does not lose a NaN.
    """
    bits = numbers.view(np.uint32)
    top = np.uint32(0)
    for i in range(bits.size):
        top = np.uint32(max(top, bits[i] & np.uint32(0x7FFFFFFF)))
    scale = np.uint32(top).view(np.float32) / largest
    return TINY if scale < TINY else scale


@njit(**COMPILE)
def _to_int8(numbers, row):
    """row[:] = numbers / scale, rounded to the nearest int8, ties to even; returns the scale."""
    scale = _scale(numbers, LARGEST_INT8)
    for i in range(numbers.size):
        row[i] = np.int8(np.rint(numbers[i] / scale))
    return scale


@njit(**COMPILE)
def _to_fp8(numbers, row):
    """row[:] = the bits of numbers / scale as fp8_e4m3, rounded to nearest, ties to even; changes numbers.

    A float32 has 20 more bits of mantissa, and an exponent larger by 120: round the lower bits away, then subtract.
    Below 2 ** -6 the steps are 2 ** -9, like those of the float32 numbers above 2 ** 14: adding that rounds.
    """
    scale = _scale(numbers, LARGEST_FP8)
    for i in range(numbers.size):
        numbers[i] /= scale
    bits = numbers.view(np.uint32)
    for i in range(numbers.size):
        b = bits[i] & np.uint32(0x7FFFFFFF)
        normal = (b + np.uint32(0x7FFFF) + ((b >> np.uint32(20)) & np.uint32(1))) >> np.uint32(20)
        small = np.float32(abs(numbers[i]) + np.float32(16384)).view(np.uint32) - np.uint32(0x46800000)
        code = small if b < np.uint32(0x3C800000) else min(normal - np.uint32(120 << 3), np.uint32(0x7E))
        code = code if b <= np.uint32(0x7F800000) else np.uint32(0x7F)
        row[i] = np.uint8(code | ((bits[i] >> np.uint32(24)) & np.uint32(0x80)))
    return scale


def store_quantised(numbers, row, scales, slot, head) -> None:
    """Quantise one vector [size] float32 into `row` (int8, or fp8_e4m3 bits as uint8) and scales[slot, head]."""
    scales[slot, head] = (_to_int8 if row.dtype == np.int8 else _to_fp8)(numbers, row)


@overload(store_quantised)
def _store_quantised_compiled(numbers, row, scales, slot, head):
    """Compile `store_quantised` for the type of `row`."""
    convert = _to_int8 if row.dtype == types.int8 else _to_fp8

    def store(numbers, row, scales, slot, head):
        scales[slot, head] = convert(numbers, row)

    return store
