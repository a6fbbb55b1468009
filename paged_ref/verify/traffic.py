"""What the kernels read, counted and drawn (chapter 5).

Triton's interpreter performs every load of every program through one function. Here that function is
watched: each load that falls into a cache is noted with the program that made it. Two things come of it:

* `bytes_read`: how many bytes of the caches a call reads, to hold against `fewest_bytes`, which is every key
  and value of every sequence once for each KV head. On a GPU, decode takes as long as these bytes take, so
  this count is the kernel's speed as far as it can be known without one.
* `access_pattern`: which program read which block, for a picture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..attention.validate import Batch


@dataclass(frozen=True)
class CacheLoad:
    """One program's reads from one block of one cache, in one load.

    program: its ids on the three axes of the grid (decode: sequence, KV head, split; decode_plain: sequence,
    query head; prefill: tile, KV head). cache: "key" or "value". num_bytes: read from that block.
    """

    program: tuple[int, int, int]
    cache: str
    block: int
    num_bytes: int


@contextmanager
def _watched_loads(seen: Callable[[np.ndarray, int], None]) -> Iterator[None]:
    """Call seen(addresses, bytes of an element) for every interpreted load, masked elements left out."""
    from triton.runtime.interpreter import InterpreterBuilder

    # A load without a mask is passed on to the masked one, so watching that one sees all.
    original = InterpreterBuilder.create_masked_load

    def watched(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        size = pointers.get_element_ty().primitive_bitwidth // 8
        seen(pointers.data[np.broadcast_to(mask.data, pointers.data.shape)].ravel(), size)
        return original(self, pointers, mask, *rest)

    InterpreterBuilder.create_masked_load = watched
    try:
        yield
    finally:
        InterpreterBuilder.create_masked_load = original


def access_pattern(
    run: Callable[[], Any], key_cache: torch.Tensor, value_cache: torch.Tensor
) -> list[CacheLoad]:
    """Every read of `run()` from the caches [num_blocks, block_size, num_kv_heads, head_dim], in the order
    of reading.

    run: launches interpreted kernels on these very caches, for example
        lambda: paged_attention(query, key_cache, value_cache, tables, lens, backend="triton").

    Raises:
        RuntimeError: Triton's interpreter is off (a GPU is at hand), so loads cannot be seen.
    """
    from ..attention import triton_kernels

    if not triton_kernels.INTERPRETED:
        raise RuntimeError(
            "loads are seen in Triton's interpreter only: set TRITON_INTERPRET=1 and start anew"
        )
    from triton.runtime.interpreter import interpreter_builder

    found: list[CacheLoad] = []

    def seen(addresses: np.ndarray, size: int) -> None:
        addresses = addresses.astype(np.int64)
        for name, cache in (("key", key_cache), ("value", value_cache)):
            offset = (addresses - cache.data_ptr()) // cache.element_size()
            span = 1 + sum((n - 1) * s for n, s in zip(cache.shape, cache.stride(), strict=True))
            block = offset[(offset >= 0) & (offset < span)] // cache.stride(0)
            x, y, z = (int(i) for i in interpreter_builder.grid_idx)
            for one, count in zip(*np.unique(block, return_counts=True), strict=True):
                found.append(CacheLoad((x, y, z), name, int(one), int(count) * size))

    with _watched_loads(seen):
        run()
    return found


def bytes_read(run: Callable[[], Any], key_cache: torch.Tensor, value_cache: torch.Tensor) -> int:
    """Bytes that `run()` reads from the caches; see `access_pattern`."""
    return sum(access.num_bytes for access in access_pattern(run, key_cache, value_cache))


def fewest_bytes(batch: Batch, key_cache: torch.Tensor, sliding_window: int | None = None) -> int:
    """Bytes that any attention must read: K and V of every token that some query token sees, once."""
    lens, queries = batch.seq_lens.astype(np.int64), batch.query_lens.astype(np.int64)
    seen = lens if sliding_window is None else np.minimum(lens, queries + sliding_window - 1)
    tokens = int(seen[queries > 0].sum())
    return 2 * tokens * key_cache.shape[2] * key_cache.shape[3] * key_cache.element_size()
