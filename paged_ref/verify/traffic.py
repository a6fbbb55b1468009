"""Count and record the kernels' reads from the caches (chapter 5).

Triton's interpreter performs every load of every program through one function. This module hooks that function and
records each load from a cache with the program that made it. It offers two measurements:

* `bytes_read`: the bytes of the caches that a call reads, to compare with `fewest_bytes`, which counts every key
  and value of every sequence once per KV head. On a GPU, decode is bound by these reads, so this count is the best
  estimate of the kernel's speed without a GPU.
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
    query head; prefill: tile, KV head). cache: "key" or "value". num_bytes: bytes read from that block.
    """

    program: tuple[int, int, int]
    cache: str
    block: int
    num_bytes: int


@contextmanager
def _watched_loads(seen: Callable[[np.ndarray, int], None]) -> Iterator[None]:
    """Call seen(addresses, bytes per element) for every interpreted load, without its masked elements."""
    from triton.runtime.interpreter import InterpreterBuilder

    # The interpreter implements unmasked loads by the masked one, so hooking that one covers all loads.
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
    """Return every read of `run()` from the caches [num_blocks, block_size, num_kv_heads, head_dim], in order.

    run: launches interpreted kernels on exactly these caches, for example
        lambda: paged_attention(query, key_cache, value_cache, tables, lens, backend="triton").

    Raises:
        RuntimeError: Triton's interpreter is off (the machine has a GPU), so loads cannot be recorded.
    """
    from ..attention import triton_kernels

    if not triton_kernels.INTERPRETED:
        raise RuntimeError(
            "loads can be recorded in Triton's interpreter only: set TRITON_INTERPRET=1 and restart Python"
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
    """Return the bytes that `run()` reads from the caches; see `access_pattern`."""
    return sum(access.num_bytes for access in access_pattern(run, key_cache, value_cache))


def fewest_bytes(batch: Batch, key_cache: torch.Tensor, sliding_window: int | None = None) -> int:
    """Return the bytes that any attention must read: K and V of every token that a query token sees, once."""
    lens, queries = batch.seq_lens.astype(np.int64), batch.query_lens.astype(np.int64)
    seen = lens if sliding_window is None else np.minimum(lens, queries + sliding_window - 1)
    tokens = int(seen[queries > 0].sum())
    return 2 * tokens * key_cache.shape[2] * key_cache.shape[3] * key_cache.element_size()
