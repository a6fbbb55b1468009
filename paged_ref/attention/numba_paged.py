"""Paged attention on CPU cores: which tokens the compiled loop attends, and its call (chapter 5).

Sequences that decode go through `numba_loop`, which reads their blocks in place. Sequences with many query tokens go to
torch, whose matmuls are faster there.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from ..kv_dtype import QUANTISED
from . import numba_loop as loop
from .validate import Batch

KV_DTYPES = tuple(QUANTISED)
# Up to this many query tokens per sequence, this loop is faster; beyond, torch's matmuls are (see `plan`).
MAX_QUERY_TOKENS = 2
NO_WINDOW = np.int64(np.iinfo(np.int64).max)
# One of numba's thread pools ends the process if two threads enter it at once.
one_call_at_a_time = threading.Lock()


def num_cores() -> int:
    """Return the number of cores for the loop: as many as torch is set to use, if numba has threads for them.

    Where both use OpenMP they share one pool of threads, so that one does not disturb the other. But when numba starts,
    or is given a number, it sets torch's number too; it is restored here.
    """
    import torch

    told = torch.get_num_threads()
    cores = min(told, numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
    numba.set_num_threads(cores)
    if torch.get_num_threads() != told:
        torch.set_num_threads(told)
    return cores


def warm_up(kv_dtype: str = "auto") -> None:
    """Compile the loop for float32 and half-precision caches: about ten seconds once; later runs load it from disk.

    With another `kv_dtype`, compile it for that kind of quantised cache instead.

    numba keeps the result in `__pycache__` beside this file, or in the user's cache folder where that is not writable.
    """
    import torch

    batch = Batch.of(np.zeros((1, 1)), np.ones(1))
    query = torch.zeros(1, 1, 8)
    scales: tuple[torch.Tensor, ...] = ()
    dtypes = [torch.float32, torch.bfloat16]
    if kv_dtype != "auto":
        dtypes, scales = [getattr(torch, QUANTISED[kv_dtype][0])], (torch.ones(1, 1, 1),) * 2
    for dtype in dtypes:
        cache = torch.zeros(1, 1, 1, 8, dtype=dtype)
        plan(batch, 1).run(query, cache, cache, 1.0, None, None, *scales)


def plan(batch: Batch, block_size: int, device: Any = None) -> NumbaPlan:
    """List the query tokens that the loop will attend; hand sequences with many query tokens to torch.

    With one query token, attention reads each key for a single dot product, and the time is the time to read. With
    many, each key is used many times, and a matmul, which keeps it in registers, is faster. MAX_QUERY_TOKENS is where
    the two were measured to cross.
    """
    if device is not None and str(device) != "cpu":
        raise ValueError(f"the numba backend runs on a CPU, but the tensors are on {device}")
    query_lens = batch.query_lens
    few = np.flatnonzero(query_lens <= MAX_QUERY_TOKENS)
    sequence = np.repeat(few, query_lens[few])
    start, seq_len = batch.query_start_loc[:-1].astype(np.int64), batch.seq_lens.astype(np.int64)
    nth = np.arange(len(sequence)) - np.repeat(np.cumsum(query_lens[few]) - query_lens[few], query_lens[few])
    position = seq_len[sequence] - query_lens[sequence] + nth
    items = np.stack([start[sequence] + nth, sequence, position], axis=1)
    many = query_lens > MAX_QUERY_TOKENS
    matmuls = None
    if many.any():
        from . import torch_paged

        matmuls = torch_paged.plan(batch, block_size, device, only=many)
    with one_call_at_a_time:
        num_shares = num_cores()
    return NumbaPlan(np.ascontiguousarray(batch.block_tables), items, num_shares, matmuls)


@dataclass(frozen=True)
class NumbaPlan:
    """One batch; see `attention.AttentionPlan`. It runs once per layer, so everything that can be is done in `plan`.

    items [n, 3] int64: row in `query`, sequence and position of each query token that the loop attends.
    num_shares: the number of parts that the work is cut into, one for each core.
    matmuls: torch's plan for the other sequences, None if there are none.
    """

    tables: np.ndarray
    items: np.ndarray
    num_shares: int
    matmuls: Any

    def run(
        self,
        query: Any,
        key_cache: Any,
        value_cache: Any,
        scale: float,
        sliding_window: int | None = None,
        softcap: float | None = None,
        key_scale: Any = None,
        value_scale: Any = None,
    ) -> Any:
        """Attention of the whole batch, in float32."""
        import torch

        attended = None
        if len(self.items):
            attended = torch.empty(query.shape, dtype=torch.float32)
            queries = query.detach().to(torch.float32).contiguous().numpy()
            window = NO_WINDOW if sliding_window is None else np.int64(sliding_window)
            how = (window, np.float32(scale), np.float32(softcap or 0))
            caches = (*_as_bits(key_cache, value_cache), *_flat_scales(key_scale, value_scale))
            self._loop(attended.numpy(), queries, caches, how)
        if self.matmuls is None:
            return torch.empty_like(query) if attended is None else attended.to(query.dtype)
        output = self.matmuls.run(
            query, key_cache, value_cache, scale, sliding_window, softcap, key_scale, value_scale
        )
        if attended is not None:
            tokens = torch.from_numpy(self.items[:, 0])
            output[tokens] = attended[tokens].to(output.dtype)
        return output

    def _loop(
        self, out: np.ndarray, query: np.ndarray, caches: tuple[Any, ...], how: tuple[Any, ...]
    ) -> None:
        part_token = np.empty((self.num_shares, 2), np.int64)
        parts = np.empty((self.num_shares, 2, query.shape[1], 2 + query.shape[2]), np.float32)
        with one_call_at_a_time:
            loop.run(out, query, *caches, self.tables, self.items, *how, part_token, parts)


def _as_bits(key_cache: Any, value_cache: Any) -> tuple[Any, ...]:
    """Return (keys, values, kind, layout) as `numba_loop.run` takes them: flat arrays over the caches' own memory.

    The elements of a head must be contiguous; a cache where they are not is copied.
    """
    import torch

    kinds = {torch.float32: loop.FLOAT32, torch.bfloat16: loop.BFLOAT16, torch.float16: loop.FLOAT16}
    bits = {torch.bfloat16: torch.uint16, torch.float16: torch.uint16, torch.float8_e4m3fn: torch.uint8}
    if key_cache.dtype not in {*kinds, *bits, torch.int8}:
        raise ValueError(
            "the numba backend takes float32, float16, bfloat16, int8 and float8_e4m3fn, but the cache is "
            f"{key_cache.dtype}"
        )
    flat, strides = [], []
    for cache in (key_cache.detach(), value_cache.detach()):
        if cache.stride(-1) != 1:
            cache = cache.contiguous()
        if cache.is_contiguous():
            line = cache.view(-1)
        else:
            span = 1 + sum((n - 1) * stride for n, stride in zip(cache.shape, cache.stride(), strict=True))
            line = cache.as_strided((span if cache.numel() else 0,), (1,))
        flat.append(line.view(bits.get(line.dtype, line.dtype)).numpy())
        strides += cache.stride()[:3]
    layout = np.array([*key_cache.shape[1:3], *strides], np.int64)
    return flat[0], flat[1], kinds.get(key_cache.dtype, loop.FLOAT32), layout


def _flat_scales(*scales: Any) -> tuple[np.ndarray, ...]:
    """Return key and value scales [num_blocks, block_size, num_kv_heads] as flat arrays; empty ones for None."""
    return tuple(
        np.empty(0, np.float32) if scale is None else scale.detach().contiguous().view(-1).numpy()
        for scale in scales
    )
