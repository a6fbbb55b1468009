"""Paged attention as a compiled loop for CPU cores: chapter 5's bridge from NumPy to a GPU kernel.

The loop reads keys and values where they lie. Nothing is gathered: an address is computed from the block
table, as a Triton kernel computes it, and the numbers at that address go straight into the running softmax.

    address of (token, KV head) = block_tables[token // block_size] * block stride
                                + token % block_size                * slot stride
                                + KV head                           * head stride

Decode attention is bound by memory, so all there is to win is to read every byte once, in order, on every
core. The query heads that share a KV head are served by one read of it. The cores share the work evenly (see
`_share`), even if there is one long sequence and many short ones.

NumPy and numba have no bfloat16, and numba has no float16 on a CPU, so half-precision caches come as their
bits in uint16, and `_widen` widens one row at a time: a copy of a few hundred bytes that stays in the
first-level cache.
"""

# A compiled function takes its types from its first call. What its arguments are stands in its docstring.
# ruff: noqa: ANN001, ANN202
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numba import njit, prange, types
from numba.extending import overload

from .validate import Batch

# Sums may be reordered and fused, which vectorises them. Infinities and NaN keep their meaning: -inf starts
# the maximum.
_OPTIONS: Any = {
    "cache": True,
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "nsz", "arcp"},
}
FLOAT32, BFLOAT16, FLOAT16 = 0, 1, 2
# Up to this many query tokens a sequence, this loop is faster; beyond, torch's matrix products are (see `plan`).
MAX_QUERY_TOKENS = 2
# One of numba's thread pools ends the process if two threads enter it at once.
_one_call_at_a_time = threading.Lock()


@njit(**_OPTIONS)
def _widen(source, kind, row, bits):
    """Half-precision bits to float32: row[:] = source; `bits` is `row` seen as uint32.

    bfloat16 is the upper half of a float32: shift. float16 has 5 bits of exponent, not 8: shift all but the sign into
    place, multiply by 2 ** (127 - 15), and restore sign, infinities and NaN. Three short loops, because each is
    vectorised.
    """
    if kind == BFLOAT16:
        for d in range(row.size):
            bits[d] = np.uint32(source[d]) << np.uint32(16)
    else:
        for d in range(row.size):
            bits[d] = (np.uint32(source[d]) & np.uint32(0x7FFF)) << np.uint32(13)
        for d in range(row.size):
            row[d] *= np.float32(2.0**112)
        for d in range(row.size):
            half = np.uint32(source[d])
            special = np.uint32(0x7F800000) if half & np.uint32(0x7C00) == np.uint32(0x7C00) else np.uint32(0)
            bits[d] |= (half & np.uint32(0x8000)) << np.uint32(16) | special


def _as_float32(source, kind, row, bits):
    """One head's numbers as float32: `source` itself, or `row` with the widened bits."""
    if source.dtype == np.float32:
        return source
    _widen(source, kind, row, bits)
    return row


@overload(_as_float32, inline="always")
def _as_float32_compiled(source, kind, row, bits):
    """The same choice for compiled code, where it is made once, by the type of the cache."""
    if source.dtype == types.float32:
        return lambda source, kind, row, bits: source

    def widened(source, kind, row, bits):
        _widen(source, kind, row, bits)
        return row

    return widened


@njit(**_OPTIONS)
def _attend(query, caches, table, first, last, scale, softcap, scratch):
    """One query token over its sequence's tokens first .. last - 1, block by block, with a running softmax.

    query [num_heads, d]. Leaves in scratch: acc [num_heads, d], the sum of exp(score - top) * value; top
    [num_heads], the largest score; total [num_heads], the sum of exp(score - top).
    """
    keys, values, layout, kind = caches
    scores, row, bits, acc, top, total = scratch
    block_size, num_kv_heads = layout[0], layout[1]
    block_k, slot_k, head_k = layout[2], layout[3], layout[4]  # strides
    block_v, slot_v, head_v = layout[5], layout[6], layout[7]
    group = query.shape[0] // num_kv_heads
    for h in range(query.shape[0]):
        top[h], total[h] = -np.inf, 0
        for d in range(row.size):
            acc[h, d] = 0
    for logical in range(first // block_size, (last + block_size - 1) // block_size):
        block = np.int64(table[logical])
        begin = max(first - logical * block_size, 0)
        end = min(last - logical * block_size, block_size)
        for offset in range(begin, end):
            for kv_head in range(num_kv_heads):
                address = block * block_k + offset * slot_k + kv_head * head_k
                # A slice, not keys[address + d] in the loop: numba tests every index for being negative.
                key = _as_float32(keys[address : address + row.size], kind, row, bits)
                for h in range(kv_head * group, (kv_head + 1) * group):
                    dot = np.float32(0)
                    for d in range(row.size):
                        dot += query[h, d] * key[d]
                    scores[h, offset] = dot * scale
        for h in range(query.shape[0]):
            if softcap > 0:
                for offset in range(begin, end):
                    scores[h, offset] = softcap * np.tanh(scores[h, offset] / softcap)
            highest = top[h]
            for offset in range(begin, end):
                highest = max(highest, scores[h, offset])
            rescale = np.exp(top[h] - highest)  # what was summed so far used the old maximum
            weight = np.float32(0)
            for offset in range(begin, end):
                scores[h, offset] = np.exp(scores[h, offset] - highest)
                weight += scores[h, offset]
            top[h] = highest
            total[h] = total[h] * rescale + weight
            for d in range(row.size):
                acc[h, d] *= rescale
        for offset in range(begin, end):
            for kv_head in range(num_kv_heads):
                address = block * block_v + offset * slot_v + kv_head * head_v
                value = _as_float32(values[address : address + row.size], kind, row, bits)
                for h in range(kv_head * group, (kv_head + 1) * group):
                    weight = scores[h, offset]
                    for d in range(row.size):
                        acc[h, d] += weight * value[d]


@njit(**_OPTIONS)
def _share(share, num_shares, out, query, caches, tables, items, how, part_token, parts):
    """Attend this core's share of the batch.

    All keys of all query tokens form one line, which is cut into equal shares. A share begins and ends where
    it must, in the middle of a token's keys if need be, and leaves what it has of such a token in `parts`,
    for `_merge`:

        token 0 ───────────────┐ token 1 ──┐ token 2 ───────────────────────┐
        share 0 ────────────────────┤ share 1 ─────────────┤ share 2 ───────┤
                                 parts[0, 1] and parts[1, 0] together are token 1
    """
    window, scale, softcap = how
    num_heads, head_dim = query.shape[1], query.shape[2]
    scores = np.empty((num_heads, caches[2][0]), np.float32)
    row = np.empty(head_dim, np.float32)
    acc = np.empty((num_heads, head_dim), np.float32)
    top, total = np.empty(num_heads, np.float32), np.empty(num_heads, np.float32)
    scratch = (scores, row, row.view(np.uint32), acc, top, total)
    work = np.int64(0)
    for i in range(len(items)):
        work += min(items[i, 2] + 1, window)
    begin, end = work * share // num_shares, work * (share + 1) // num_shares
    part_token[share, 0] = part_token[share, 1] = -1  # no parts yet
    passed = np.int64(0)
    for i in range(len(items)):
        token, sequence, position = items[i, 0], items[i, 1], items[i, 2]
        first, last = max(0, position + 1 - window), position + 1
        lo, hi = max(first, first + begin - passed), min(last, first + end - passed)
        passed += last - first
        if lo >= hi:
            continue
        _attend(query[token], caches, tables[sequence], lo, hi, scale, softcap, scratch)
        whole = lo == first and hi == last
        which = 1 if lo == first else 0
        if not whole:
            part_token[share, which] = token
        for h in range(num_heads):
            parts[share, which, h, head_dim] = top[h]
            parts[share, which, h, head_dim + 1] = total[h]
            for d in range(head_dim):
                if whole:
                    out[token, h, d] = acc[h, d] / total[h]
                else:
                    parts[share, which, h, d] = acc[h, d]


@njit(**_OPTIONS)
def _merge(out, part_token, parts):
    """Join the parts of tokens that several shares worked on: each counts exp(its top - the highest top) times.

    A token's parts follow each other in the order (share 0, 0), (share 0, 1), (share 1, 0), …
    """
    num_heads, head_dim = out.shape[1], out.shape[2]
    for h in range(num_heads):
        token, top, total = np.int64(-1), np.float32(-np.inf), np.float32(0)
        for i in range(2 * len(parts)):
            part = parts[i // 2, i % 2, h]
            if part_token[i // 2, i % 2] < 0:
                continue
            if part_token[i // 2, i % 2] != token:  # the first part of a token
                token, top, total = part_token[i // 2, i % 2], np.float32(-np.inf), np.float32(0)
                for d in range(head_dim):
                    out[token, h, d] = 0
            highest = max(top, part[head_dim])
            old, new = np.exp(top - highest), np.exp(part[head_dim] - highest)
            sum_of_both = total * old + part[head_dim + 1] * new
            for d in range(head_dim):  # `out` is divided already, a part is not yet
                out[token, h, d] = (out[token, h, d] * total * old + part[d] * new) / sum_of_both
            top, total = highest, sum_of_both


@njit(parallel=True, **_OPTIONS)
def _run(out, query, keys, values, layout, kind, tables, items, window, scale, softcap, part_token, parts):
    """All shares, each on a core of its own, then the merge."""
    for share in prange(len(parts)):
        caches, how = (keys, values, layout, kind), (window, scale, softcap)
        _share(share, len(parts), out, query, caches, tables, items, how, part_token, parts)
    _merge(out, part_token, parts)


def num_cores() -> int:
    """On how many cores the loop runs: as many as torch was told to use, and numba has threads for.

    Where both use OpenMP they share one pool of threads, which is why one does not disturb the other. But when numba
    starts, or is told a number, it sets torch's number too; it is put back here.
    """
    import torch

    told = torch.get_num_threads()
    cores = min(told, numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
    numba.set_num_threads(cores)
    if torch.get_num_threads() != told:
        torch.set_num_threads(told)
    return cores


def warm_up() -> None:
    """Compile the loop for float32 and half-precision caches: some ten seconds, once, then it is on disk.

    numba keeps it in `__pycache__` beside this file, or in the user's cache folder where that is not writable.
    """
    import torch

    batch = Batch.of(np.zeros((1, 1)), np.ones(1))
    for dtype in (torch.float32, torch.bfloat16):
        cache = torch.zeros(1, 1, 1, 8, dtype=dtype)
        plan(batch, 1).run(torch.zeros(1, 1, 8, dtype=dtype), cache, cache, 1.0)


def plan(batch: Batch, block_size: int, device: Any = None) -> NumbaPlan:
    """List the query tokens that the loop will attend; hand sequences with many query tokens to torch.

    With one query token, attention reads each key for one product, and the time is the time to read. With
    many, each key is used many times, and a matrix product, which keeps it in registers, is faster. Where
    the two cross was measured: MAX_QUERY_TOKENS.
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
    products = None
    if many.any():
        from . import torch_paged

        products = torch_paged.plan(batch, block_size, device, only=many)
    return NumbaPlan(np.ascontiguousarray(batch.block_tables), items, products)


@dataclass(frozen=True)
class NumbaPlan:
    """One batch; see `attention.Plan`.

    items [n, 3] int64: row in `query`, sequence, position of each query token that the loop attends.
    products: torch's plan for the other sequences, None if there are none.
    """

    tables: np.ndarray
    items: np.ndarray
    products: Any

    def run(
        self,
        query: Any,
        key_cache: Any,
        value_cache: Any,
        scale: float,
        sliding_window: int | None = None,
        softcap: float | None = None,
    ) -> Any:
        """Attention of the whole batch, in float32."""
        import torch

        if self.products is None:
            output = torch.empty(query.shape, dtype=query.dtype)
        else:
            output = self.products.run(query, key_cache, value_cache, scale, sliding_window, softcap)
        if len(self.items):
            attended = (
                output if output.dtype == torch.float32 else torch.empty(query.shape, dtype=torch.float32)
            )
            queries = query.detach().to(torch.float32).contiguous().numpy()
            window = sliding_window if sliding_window is not None else np.iinfo(np.int64).max
            how = (np.int64(window), np.float32(scale), np.float32(softcap or 0))
            self._loop(attended.numpy(), queries, _as_bits(key_cache, value_cache), how)
            if attended is not output:
                tokens = torch.from_numpy(self.items[:, 0])
                output[tokens] = attended[tokens].to(output.dtype)
        return output

    def _loop(
        self, out: np.ndarray, query: np.ndarray, caches: tuple[Any, ...], how: tuple[Any, ...]
    ) -> None:
        with _one_call_at_a_time:
            num_shares = num_cores()
        part_token = np.empty((num_shares, 2), np.int64)
        parts = np.empty((num_shares, 2, query.shape[1], 2 + query.shape[2]), np.float32)
        with _one_call_at_a_time:
            _run(out, query, *caches, self.tables, self.items, *how, part_token, parts)


def _as_bits(key_cache: Any, value_cache: Any) -> tuple[Any, ...]:
    """(keys, values, layout, kind): both caches as flat arrays over their memory, without a copy.

    layout: block_size, num_kv_heads, then the strides of block, slot and head of K, and those of V. The
    numbers of a head must lie side by side; a cache where they do not is copied.
    """
    import torch

    kinds = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.float16: FLOAT16}
    if key_cache.dtype not in kinds:
        raise ValueError(
            f"the numba backend takes float32, float16 and bfloat16, but the cache is {key_cache.dtype}"
        )
    flat = []
    caches = [cache if cache.stride(-1) == 1 else cache.contiguous() for cache in (key_cache, value_cache)]
    for cache in (cache.detach() for cache in caches):
        span = 1 + sum((n - 1) * stride for n, stride in zip(cache.shape, cache.stride(), strict=True))
        line = cache.as_strided((span if cache.numel() else 0,), (1,))
        flat.append((line if line.dtype == torch.float32 else line.view(torch.uint16)).numpy())
    layout = np.array([*key_cache.shape[1:3], *caches[0].stride()[:3], *caches[1].stride()[:3]], np.int64)
    return flat[0], flat[1], layout, kinds[key_cache.dtype]
