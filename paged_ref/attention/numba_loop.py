"""The compiled loop behind the numba backend: attention that reads blocks in place (chapter 5).

Nothing is gathered: an address is computed from the block table, as a Triton kernel computes it, and the elements at
that address go straight into the running softmax.

    address of (token, KV head) = block_tables[token // block_size] * block stride
                                + token % block_size                * slot stride
                                + KV head                           * head stride

Decode attention is bound by memory, so the goal is to read every byte once, in order, on every core. One read of a KV
head serves all query heads that share it. The arithmetic on a byte must then cost less than reading it: four keys at a
time, four values at a time, a vectorised `exp`. The cores share the work evenly (see `_share`), even with one long
sequence and many short ones.

NumPy and numba have no bfloat16, and numba has no float16 on a CPU, so half-precision caches arrive as their bits in
uint16, and `_widen` widens one block of one KV head at a time: a few kilobytes that stay in the first-level cache.
Quantised caches take the same way, and `_dequantise` multiplies each row by its scale.
"""

# A compiled function takes its types from its first call; its docstring describes the arguments.
# ruff: noqa: ANN001, ANN202
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit, prange, types
from numba.extending import overload

# Sums may be reordered and fused, which vectorises them. Infinities and NaN keep their meaning: -inf starts
# the maximum.
COMPILE: Any = {
    "cache": True,
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "nsz", "arcp"},
}
FLOAT32, BFLOAT16, FLOAT16 = 0, 1, 2


class Caches(NamedTuple):
    """The keys and values of one layer, flat over their memory, and where things lie in them.

    keys, values: [all elements of the cache]: float32, int8, or the bits of half-precision elements as uint16 and of
        fp8_e4m3 elements as uint8.
    kind: FLOAT32, BFLOAT16 or FLOAT16; not used for quantised caches, which are told by the type of their elements.
    block_k, slot_k, head_k, block_v, slot_v, head_v: strides in elements, from one block, slot or KV head to the next.
    key_scale, value_scale: [num_blocks * block_size * num_kv_heads] float32; empty unless the cache is quantised.
    """

    keys: Any
    values: Any
    kind: Any
    block_size: Any
    num_kv_heads: Any
    block_k: Any
    slot_k: Any
    head_k: Any
    block_v: Any
    slot_v: Any
    head_v: Any
    key_scale: Any
    value_scale: Any


class Scoring(NamedTuple):
    """How scores are made: the tokens a query sees at most, the factor on each score, the softcap (0: none)."""

    window: Any
    scale: Any
    softcap: Any


class Scratch(NamedTuple):
    """One core's working memory.

    scores [num_heads, block_size]; tile [block_size * head_dim], where half-precision rows are widened; bits, the same
    memory as uint32; acc [num_heads, head_dim], the sum of exp(score - top) * value; top [num_heads], the largest
    score; total [num_heads], the sum of exp(score - top). All float32 but bits.
    """

    scores: Any
    tile: Any
    bits: Any
    acc: Any
    top: Any
    total: Any


@njit(**COMPILE)
def exp_of_negative(x):  # noqa: ANN201
    """Return e ** x for x <= 0: a polynomial for the fraction of x * log2(e), and the whole part as exponent bits.

    The library's exp takes one value at a time; in a loop, this one is vectorised. Its relative error stays below
    2e-7 + 8e-8 * |x|.
    """
    twos = x * np.float32(1.4426950408889634)
    whole = np.floor(twos + np.float32(0.5))
    part = twos - whole
    power = np.float32(1.535335847e-04)
    power = power * part + np.float32(1.339887567e-03)
    power = power * part + np.float32(9.618437381e-03)
    power = power * part + np.float32(5.550332467e-02)
    power = power * part + np.float32(2.402264791e-01)
    power = power * part + np.float32(6.931472029e-01)
    power = power * part + np.float32(1)
    exponent = np.int32(max(whole, np.float32(-126))) + np.int32(127)
    return np.float32(0) if x < np.float32(-87) else power * np.int32(exponent << 23).view(np.float32)


@njit(**COMPILE)
def _widen(source, address, stride, rows, size, kind, tile, bits):
    """Widen half-precision rows to float32, one after the other in `tile`; `bits` is the same memory as uint32.

    bfloat16 is the upper half of a float32: shift. float16 has 5 bits of exponent, not 8: shift all but the sign into
    place, multiply by 2 ** (127 - 15), and restore sign, infinities and NaN. Three short loops, because each is
    vectorised.
    """
    for i in range(rows):
        half = source[address + i * stride : address + i * stride + size]
        number, wide = tile[i * size : (i + 1) * size], bits[i * size : (i + 1) * size]
        if kind == BFLOAT16:
            for d in range(size):
                wide[d] = np.uint32(half[d]) << np.uint32(16)
        else:
            for d in range(size):
                wide[d] = (np.uint32(half[d]) & np.uint32(0x7FFF)) << np.uint32(13)
            for d in range(size):
                number[d] *= np.float32(2.0**112)
            for d in range(size):
                h = np.uint32(half[d])
                special = (
                    np.uint32(0x7F800000) if h & np.uint32(0x7C00) == np.uint32(0x7C00) else np.uint32(0)
                )
                wide[d] |= (h & np.uint32(0x8000)) << np.uint32(16) | special


@njit(**COMPILE)
def _dequantise(source, address, stride, rows, size, tile, bits, scales, first, next_scale):
    """Dequantise rows into `tile`, as `_widen` widens them. Row i has the scale scales[first + i * next_scale].

    fp8_e4m3 has 4 bits of exponent with a bias of 7, and 3 of mantissa: shift all but the sign into place, multiply by
    2 ** (127 - 7), and restore the sign and NaN, which has all bits set. The two factors are applied one after the
    other, because their product can overflow.
    """
    for i in range(rows):
        row, scale = (
            source[address + i * stride : address + i * stride + size],
            scales[first + i * next_scale],
        )
        number, wide = tile[i * size : (i + 1) * size], bits[i * size : (i + 1) * size]
        _as_floats(row, number, wide)
        for d in range(size):
            number[d] *= scale


def _as_floats(row, number, wide):
    """number[:] = row: int8 elements, or fp8_e4m3 elements as bits. `wide` is the memory of `number` as uint32."""
    (_int8_as_floats if row.dtype == np.int8 else _fp8_as_floats)(row, number, wide)


@overload(_as_floats)
def _as_floats_compiled(row, number, wide):
    """Make the same choice when the loop is compiled, by the type of the elements."""
    convert = _int8_as_floats if row.dtype == types.int8 else _fp8_as_floats
    return lambda row, number, wide: convert(row, number, wide)


@njit(**COMPILE)
def _int8_as_floats(row, number, wide):
    for d in range(row.size):
        number[d] = np.float32(row[d])


@njit(**COMPILE)
def _fp8_as_floats(row, number, wide):
    for d in range(row.size):
        wide[d] = (np.uint32(row[d]) & np.uint32(0x7F)) << np.uint32(20)
    for d in range(row.size):
        number[d] *= np.float32(2.0**120)
    for d in range(row.size):
        b = np.uint32(row[d])
        nan = np.uint32(0x7FC00000) if b & np.uint32(0x7F) == np.uint32(0x7F) else np.uint32(0)
        wide[d] |= (b & np.uint32(0x80)) << np.uint32(24) | nan


def _tile(source, address, stride, rows, size, kind, tile, bits, scales, first, next_scale):
    """Return some rows of one KV head as float32: (array, address of the first row, stride).

    The array is `source` itself, or `tile` with the rows widened or dequantised into it.
    """
    if source.dtype == np.float32:
        return source, address, stride
    if source.dtype == np.uint16:
        _widen(source, address, stride, rows, size, kind, tile, bits)
    else:
        _dequantise(source, address, stride, rows, size, tile, bits, scales, first, next_scale)
    return tile, np.int64(0), size


@overload(_tile, inline="always")
def _tile_compiled(source, address, stride, rows, size, kind, tile, bits, scales, first, next_scale):
    """Make the same choice when the loop is compiled, by the type of the cache."""

    def own(source, address, stride, rows, size, kind, tile, bits, scales, first, next_scale):
        return source, address, stride

    def widened(source, address, stride, rows, size, kind, tile, bits, scales, first, next_scale):
        _widen(source, address, stride, rows, size, kind, tile, bits)
        return tile, np.int64(0), size

    def dequantised(source, address, stride, rows, size, kind, tile, bits, scales, first, next_scale):
        _dequantise(source, address, stride, rows, size, tile, bits, scales, first, next_scale)
        return tile, np.int64(0), size

    return {types.float32: own, types.uint16: widened}.get(source.dtype, dequantised)


@njit(**COMPILE)
def _dot_products(query, keys, address, stride, rows, scale, scores):
    """scores[:rows] = scale * (query . key), four keys at a time, so that the query is read once for four."""
    size = query.size
    i = 0
    while i + 4 <= rows:
        start = address + i * stride
        # Slices, not keys[start + d] in the loop: numba tests every index for being negative.
        key_0, key_1 = keys[start : start + size], keys[start + stride : start + stride + size]
        start += 2 * stride
        key_2, key_3 = keys[start : start + size], keys[start + stride : start + stride + size]
        dot_0, dot_1, dot_2, dot_3 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
        for d in range(size):
            dot_0 += query[d] * key_0[d]
            dot_1 += query[d] * key_1[d]
            dot_2 += query[d] * key_2[d]
            dot_3 += query[d] * key_3[d]
        scores[i], scores[i + 1] = dot_0 * scale, dot_1 * scale
        scores[i + 2], scores[i + 3] = dot_2 * scale, dot_3 * scale
        i += 4
    while i < rows:
        key = keys[address + i * stride : address + i * stride + size]
        dot = np.float32(0)
        for d in range(size):
            dot += query[d] * key[d]
        scores[i] = dot * scale
        i += 1


@njit(**COMPILE)
def _add_weighted(acc, rescale, values, address, stride, rows, weights):
    """acc = rescale * acc + the sum of weights[i] * value i, four values at a time: acc is stored less often."""
    size = acc.size
    i = 0
    while i + 4 <= rows:
        start = address + i * stride
        value_0, value_1 = values[start : start + size], values[start + stride : start + stride + size]
        start += 2 * stride
        value_2, value_3 = values[start : start + size], values[start + stride : start + stride + size]
        w_0, w_1, w_2, w_3 = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
        for d in range(size):
            acc[d] = (
                acc[d] * rescale + w_0 * value_0[d] + w_1 * value_1[d] + w_2 * value_2[d] + w_3 * value_3[d]
            )
        rescale = np.float32(1)
        i += 4
    while i < rows:
        value = values[address + i * stride : address + i * stride + size]
        weight = weights[i]
        for d in range(size):
            acc[d] = acc[d] * rescale + weight * value[d]
        rescale = np.float32(1)
        i += 1


@njit(**COMPILE)
def _attend(query, caches, table, first, last, scoring, scratch):
    """Attend one query token [num_heads, head_dim] to its sequence's tokens first .. last - 1, block by block.

    The running softmax is left in `scratch`: acc, top and total.
    """
    kind, tile, bits = caches.kind, scratch.tile, scratch.bits
    acc, top, total = scratch.acc, scratch.top, scratch.total
    block_size, num_kv_heads = caches.block_size, caches.num_kv_heads
    slot_k, slot_v = caches.slot_k, caches.slot_v
    group, size = query.shape[0] // num_kv_heads, query.shape[1]
    for h in range(query.shape[0]):
        top[h], total[h] = -np.inf, 0
        acc[h, :] = 0
    for logical in range(first // block_size, (last + block_size - 1) // block_size):
        block = np.int64(table[logical])
        begin = max(first - logical * block_size, 0)
        rows = min(last - logical * block_size, block_size) - begin
        for kv_head in range(num_kv_heads):
            heads = range(kv_head * group, (kv_head + 1) * group)
            scale_at = (block * block_size + begin) * num_kv_heads + kv_head
            address = block * caches.block_k + begin * slot_k + kv_head * caches.head_k
            tile_k, address_k, stride_k = _tile(
                caches.keys, address, slot_k, rows, size, kind, tile, bits,
                caches.key_scale, scale_at, num_kv_heads,
            )  # fmt: skip
            for h in heads:
                _dot_products(query[h], tile_k, address_k, stride_k, rows, scoring.scale, scratch.scores[h])
            address = block * caches.block_v + begin * slot_v + kv_head * caches.head_v
            tile_v, address_v, stride_v = _tile(
                caches.values, address, slot_v, rows, size, kind, tile, bits,
                caches.value_scale, scale_at, num_kv_heads,
            )  # fmt: skip
            for h in heads:
                score = scratch.scores[h]
                if scoring.softcap > 0:
                    for i in range(rows):
                        score[i] = scoring.softcap * np.tanh(score[i] / scoring.softcap)
                highest = top[h]
                for i in range(rows):
                    highest = max(highest, score[i])
                rescale = np.exp(top[h] - highest)  # the sums so far used the old maximum
                weight = np.float32(0)
                for i in range(rows):
                    score[i] = exp_of_negative(score[i] - highest)
                    weight += score[i]
                top[h] = highest
                total[h] = total[h] * rescale + weight
                _add_weighted(acc[h], rescale, tile_v, address_v, stride_v, rows, score)


@njit(**COMPILE)
def _share(share, num_shares, out, query, caches, tables, items, scoring, part_token, parts):
    """Attend this core's share of the batch.

    All keys of all query tokens form one line, which is cut into equal shares. A share may begin or end in the middle
    of a token's keys; its partial result for that token goes to `parts`, for `_merge`:

        token 0 ───────────────┐ token 1 ──┐ token 2 ───────────────────────┐
        share 0 ────────────────────┤ share 1 ─────────────┤ share 2 ───────┤
                                 parts[0, 1] and parts[1, 0] together are token 1
    """
    num_heads, head_dim = query.shape[1], query.shape[2]
    scores = np.empty((num_heads, caches.block_size), np.float32)
    tile = np.empty(caches.block_size * head_dim, np.float32)
    acc = np.empty((num_heads, head_dim), np.float32)
    top, total = np.empty(num_heads, np.float32), np.empty(num_heads, np.float32)
    scratch = Scratch(scores, tile, tile.view(np.uint32), acc, top, total)
    work = np.int64(0)
    for i in range(len(items)):
        work += min(items[i, 2] + 1, scoring.window)
    begin, end = work * share // num_shares, work * (share + 1) // num_shares
    part_token[share, 0] = part_token[share, 1] = -1  # no parts yet
    passed = np.int64(0)
    for i in range(len(items)):
        token, sequence, position = items[i, 0], items[i, 1], items[i, 2]
        first, last = max(0, position + 1 - scoring.window), position + 1
        lo, hi = max(first, first + begin - passed), min(last, first + end - passed)
        passed += last - first
        if lo >= hi:
            continue
        _attend(query[token], caches, tables[sequence], lo, hi, scoring, scratch)
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


@njit(**COMPILE)
def _merge(out, part_token, parts):
    """Join the parts of tokens that several shares worked on, each weighted by exp(its top - the highest top).

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


@njit(parallel=True, **COMPILE)
def run(  # noqa: ANN201
    out, query, keys, values, kind, layout, key_scale, value_scale, tables, items, window, scale, softcap,
    part_token, parts,
):  # fmt: skip
    """Attend all shares, each on a core of its own, then merge their parts.

    A parallel loop takes no named tuples, so the fields of `Caches` and `Scoring` arrive one by one and are named here.
    layout: [8] int64, the fields of `Caches` from block_size to head_v.
    """
    for share in prange(len(parts)):
        sizes = layout[0], layout[1], layout[2], layout[3], layout[4], layout[5], layout[6], layout[7]
        caches = Caches(keys, values, kind, *sizes, key_scale, value_scale)
        scoring = Scoring(window, scale, softcap)
        _share(share, len(parts), out, query, caches, tables, items, scoring, part_token, parts)
    _merge(out, part_token, parts)
