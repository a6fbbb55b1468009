"""The Triton kernels: paged attention on a GPU, line by line (chapter 5).

A kernel is a program of which many instances run at once; `tl.program_id` tells an instance which one it is.
Variables are small arrays (*tiles*): `tl.arange` makes indices, `pointer + indices` makes an array of addresses,
and `tl.load` reads them all. Tile sizes are powers of two and known when the kernel is compiled
(`tl.constexpr`). Other sizes are padded, and a *mask* says which elements exist. A masked element is not read at
all; its value is `other`.

    decode_plain    one program for one query head of one sequence, block after block. Read this first.
    attend_tokens   the core of the next two: a tile of query rows against a range of a sequence's tokens
    decode          one program for all query heads of one KV head, and for one split of the context
    merge           combines the splits of a sequence
    prefill         many query tokens per sequence; any mixture of lengths in one launch
    write_kv, copy_blocks   move rows and blocks

The kernels take their arguments in this order, and use the same names throughout:

    pointers    out_ptr, q_ptr, k_ptr, v_ptr     output, queries, key cache, value cache
                tables_ptr, lens_ptr, starts_ptr block_tables, seq_lens, query_start_loc
                part_ptr, lse_ptr                decode's results per split, and the log of their sum of exp(score)
    scalars     scale, softcap, window           as in `paged_attention`; softcap and window are used only if
                                                 HAS_SOFTCAP and HAS_WINDOW are set
    strides     A_B: the number of elements from one B of tensor A to the next. q_token, q_head; k_block, k_slot,
                k_head (v_… alike) for [num_blocks, BLOCK_SIZE, num_kv_heads, HEAD_DIM]; table_stride: from one
                row of block_tables to the next. Along HEAD_DIM the stride is always 1
    constants   GROUP                            query heads per KV head
                HEAD_DIM, D                      elements of a head; HEAD_DIM padded to a power of two
                BLOCK_SIZE                       tokens per block
                ROWS                             query rows per program: (query token, query head) pairs
                TILE                             tokens that a program reads together
                NUM_SPLITS                       parts into which decode splits the context
                HAS_…, UPCAST                    switches, see below

Addresses are 64-bit: block * (elements of a block) exceeds 2 ** 31 in a pool of a few gigabytes, and a 32-bit
product would wrap around and read another sequence's memory. Hence `.to(tl.int64)` wherever an id is multiplied
by a stride.

Without a CUDA device this module turns on Triton's interpreter, before Triton is imported: the kernels then run
as NumPy code, about ten thousand times slower, but with the same logic and the same bugs. There is one
difference: the interpreter computes matmuls of bfloat16 tiles incorrectly, so `UPCAST` converts them to float32
first.
"""

# A kernel takes its types when it is launched. The table above and the comments below describe its arguments.
# ruff: noqa: ANN001, ANN201
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

import triton  # reads the switch when it is imported
import triton.language as tl

INTERPRETED = triton.knobs.runtime.interpret
if INTERPRETED:
    # Triton's own functions (tl.sum, tl.cdiv) read the switch when Triton is imported, and another library, such
    # as transformers, may have imported it before this module. Make those functions interpreted too.
    from triton.runtime.interpreter import InterpretedFunction

    for name, function in list(vars(tl.standard).items()):
        if isinstance(function, triton.runtime.JITFunction):
            setattr(tl.standard, name, InterpretedFunction(function.fn))
            if getattr(tl, name, None) is function:
                setattr(tl, name, getattr(tl.standard, name))


@triton.jit
def decode_plain_kernel(
    # pointers
    out_ptr,  # [num_seqs, num_heads, HEAD_DIM], contiguous
    q_ptr,  # [num_seqs, num_heads, HEAD_DIM]
    k_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, HEAD_DIM]
    v_ptr,  # as k_ptr
    tables_ptr,  # [num_seqs, max_blocks_per_seq]
    lens_ptr,  # [num_seqs]
    # scalars
    scale,
    # strides
    table_stride,
    q_token,
    q_head,
    k_block,
    k_slot,
    k_head,
    v_block,
    v_slot,
    v_head,
    # constants
    GROUP: tl.constexpr,  # query heads per KV head
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    D: tl.constexpr,  # HEAD_DIM padded to a power of two
    B: tl.constexpr,  # BLOCK_SIZE padded to a power of two
):
    """Decode attention in its simplest form. Grid: (num_seqs, num_heads).

    The query heads of one KV head are different programs here, so each key is read GROUP times.
    """
    seq = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    d = tl.arange(0, D)
    slot = tl.arange(0, B)
    q = tl.load(q_ptr + seq * q_token + head * q_head + d, mask=d < HEAD_DIM, other=0.0).to(tl.float32)
    seq_len = tl.load(lens_ptr + seq)
    top = -float("inf")  # largest score so far
    total = 0.0  # sum of exp(score - top)
    acc = tl.zeros([D], tl.float32)  # sum of exp(score - top) * value
    for logical in range(tl.cdiv(seq_len, BLOCK_SIZE)):
        block = tl.load(tables_ptr + seq * table_stride + logical).to(tl.int64)
        exists = (slot < BLOCK_SIZE) & (logical * BLOCK_SIZE + slot < seq_len)
        mask = exists[:, None] & (d < HEAD_DIM)[None, :]
        k_address = block * k_block + slot[:, None] * k_slot + (head // GROUP) * k_head + d[None, :]
        k = tl.load(k_ptr + k_address, mask=mask, other=0.0).to(tl.float32)
        scores = tl.sum(q[None, :] * k, axis=1) * scale
        scores = tl.where(exists, scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=0))
        rescale = tl.exp(top - new_top)
        weights = tl.exp(scores - new_top)
        # Where no token exists, V must be 0: a weight of 0 would not remove a NaN (0 * NaN is NaN).
        v_address = block * v_block + slot[:, None] * v_slot + (head // GROUP) * v_head + d[None, :]
        v = tl.load(v_ptr + v_address, mask=mask, other=0.0).to(tl.float32)
        acc = acc * rescale + tl.sum(weights[:, None] * v, axis=0)
        total = total * rescale + tl.sum(weights, axis=0)
        top = new_top
    out_address = (seq * tl.num_programs(1) + head) * HEAD_DIM + d
    tl.store(out_ptr + out_address, (acc / total).to(out_ptr.dtype.element_ty), mask=d < HEAD_DIM)


@triton.jit
def tanh(x):
    """Return the hyperbolic tangent in float32, also of infinities. Triton's own does not run on every device."""
    e = tl.exp(-2.0 * tl.abs(x))
    large = tl.where(x < 0, -1.0, 1.0) * (1.0 - e) / (1.0 + e)
    x2 = tl.minimum(x * x, 1.0)
    small = x * (1.0 - x2 * (1 / 3 - x2 * (2 / 15 - x2 * (17 / 315))))  # near 0, 1 - e loses precision
    return tl.where(tl.abs(x) < 0.25, small, large)


@triton.jit
def attend_tokens(
    # tiles and token range
    q,  # [ROWS, D]: query rows that share a KV head
    position,  # [ROWS]: the position of each row's token in the sequence
    first,  # the tokens to attend to: first .. last - 1
    last,
    # pointers
    table_ptr,  # this sequence's row of block_tables
    k_ptr,  # already offset to the KV head
    v_ptr,
    # scalars
    scale,
    softcap,
    window,
    # strides
    k_block,
    k_slot,
    v_block,
    v_slot,
    # constants
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,  # tokens read together: several blocks, or part of a block
    HAS_SOFTCAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Attend the rows to these tokens alone.

    Returns the attention [ROWS, D] and the log of the sum of exp(score), [ROWS]. A row that sees none of the tokens
    gets zeros, and -inf as its log.
    """
    ROWS: tl.constexpr = q.shape[0]
    D: tl.constexpr = q.shape[1]
    d = tl.arange(0, D)
    top = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, D], tl.float32)
    for start in range(first, last, TILE):
        token = start + tl.arange(0, TILE)
        exists = token < last
        # Each token looks up its own block, so a tile may begin and end anywhere, whatever the block size.
        block = tl.load(table_ptr + token // BLOCK_SIZE, mask=exists, other=0).to(tl.int64)
        slot = token % BLOCK_SIZE
        mask = exists[:, None] & (d < HEAD_DIM)[None, :]
        k_address = (block * k_block + slot * k_slot)[:, None] + d[None, :]
        k = tl.load(k_ptr + k_address, mask=mask, other=0.0)  # [TILE, D]
        v_address = (block * v_block + slot * v_slot)[:, None] + d[None, :]
        v = tl.load(v_ptr + v_address, mask=mask, other=0.0)
        if UPCAST:
            k = k.to(tl.float32)
            v = v.to(tl.float32)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale  # [ROWS, TILE]
        if HAS_SOFTCAP:
            scores = softcap * tanh(scores / softcap)
        visible = exists[None, :] & (token[None, :] <= position[:, None])
        if HAS_WINDOW:
            visible = visible & (token[None, :] > position[:, None] - window)
        scores = tl.where(visible, scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=1))
        # A row that has seen no token yet has top = -inf, and -inf - -inf is NaN: subtract 0 instead.
        shift = tl.where(new_top == -float("inf"), 0.0, new_top)
        rescale = tl.exp(top - shift)
        weights = tl.exp(scores - shift[:, None])
        total = total * rescale + tl.sum(weights, axis=1)
        acc = acc * rescale[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        top = new_top
    total = tl.where(total == 0.0, 1.0, total)
    return acc / total[:, None], top + tl.log(total)


@triton.jit
def decode_kernel(
    # pointers
    out_ptr,  # [num_tokens, num_heads, HEAD_DIM], contiguous
    part_ptr,  # [num_seqs, num_heads, NUM_SPLITS, HEAD_DIM] float32; not used if NUM_SPLITS is 1
    lse_ptr,  # [num_seqs, num_heads, NUM_SPLITS] float32: log of the sum of exp(score); not used if NUM_SPLITS is 1
    q_ptr,  # [num_tokens, num_heads, HEAD_DIM]
    k_ptr,
    v_ptr,
    tables_ptr,
    lens_ptr,
    starts_ptr,  # query_start_loc [num_seqs + 1]; not used unless HAS_STARTS
    # scalars
    scale,
    softcap,
    window,
    # strides
    table_stride,
    q_token,
    q_head,
    k_block,
    k_slot,
    k_head,
    v_block,
    v_slot,
    v_head,
    # constants
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,  # GROUP padded to a power of two, at least 16: the smallest tile tl.dot takes
    D: tl.constexpr,
    TILE: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    HAS_STARTS: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Attend sequences with one query token. Grid: (num_seqs, num_kv_heads, NUM_SPLITS).

    A program reads each key once for all GROUP query heads that share it. The context is split into NUM_SPLITS
    ranges of whole tiles, so that a small batch still fills the device; `merge_kernel` combines them.
    """
    seq = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    token = seq
    if HAS_STARTS:
        token = tl.load(starts_ptr + seq).to(tl.int64)
        if tl.load(starts_ptr + seq + 1) - token != 1:  # not a decode: prefill_kernel attends it
            return
    num_heads = tl.num_programs(1) * GROUP
    row = tl.arange(0, ROWS)
    d = tl.arange(0, D)
    head = kv_head * GROUP + row
    row_mask = (row < GROUP)[:, None] & (d < HEAD_DIM)[None, :]
    q_address = (token * q_token + head * q_head)[:, None] + d[None, :]
    q = tl.load(q_ptr + q_address, mask=row_mask, other=0.0)
    if UPCAST:
        q = q.to(tl.float32)
    seq_len = tl.load(lens_ptr + seq)
    begin = seq_len * 0
    if HAS_WINDOW:
        begin = tl.maximum(seq_len - window, 0)
    tokens_per_split = tl.cdiv(tl.cdiv(seq_len - begin, TILE), NUM_SPLITS) * TILE
    first = begin + split * tokens_per_split
    last = tl.minimum(first + tokens_per_split, seq_len)
    attended, lse = attend_tokens(
        q,
        tl.zeros([ROWS], tl.int32) + (seq_len - 1),
        first,
        last,
        tables_ptr + seq * table_stride,
        k_ptr + kv_head * k_head,
        v_ptr + kv_head * v_head,
        scale,
        softcap,
        window,
        k_block,
        k_slot,
        v_block,
        v_slot,
        HEAD_DIM,
        BLOCK_SIZE,
        TILE,
        HAS_SOFTCAP,
        False,  # `first` already accounts for the window
        UPCAST,
    )
    if NUM_SPLITS == 1:
        out_address = (token * num_heads + head[:, None]) * HEAD_DIM + d[None, :]
        tl.store(out_ptr + out_address, attended.to(out_ptr.dtype.element_ty), mask=row_mask)
    else:
        part = (seq * num_heads + head) * NUM_SPLITS + split
        tl.store(part_ptr + (part[:, None] * HEAD_DIM + d[None, :]), attended, mask=row_mask)
        tl.store(lse_ptr + part, lse, mask=row < GROUP)


@triton.jit
def merge_kernel(
    # pointers, as in decode_kernel
    out_ptr,
    part_ptr,
    lse_ptr,
    starts_ptr,
    # constants
    HEAD_DIM: tl.constexpr,
    D: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    HAS_STARTS: tl.constexpr,
):
    """Combine the splits of one head of one sequence. Grid: (num_seqs, num_heads).

    Each split's result is correct for its own keys alone. The merge weights each split by the sum over its keys,
    exp(lse). A plain average would be wrong, and a split without keys has weight 0. (FlashInfer's merge of states.)
    """
    seq = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    token = seq
    if HAS_STARTS:
        token = tl.load(starts_ptr + seq).to(tl.int64)
        if tl.load(starts_ptr + seq + 1) - token != 1:
            return
    d = tl.arange(0, D)
    split = tl.arange(0, NUM_SPLITS)
    part = (seq * tl.num_programs(1) + head) * NUM_SPLITS + split
    lse = tl.load(lse_ptr + part)
    weights = tl.exp(lse - tl.max(lse, axis=0))
    weights = weights / tl.sum(weights, axis=0)
    mask = (d < HEAD_DIM)[None, :] & (split < NUM_SPLITS)[:, None]
    attended = tl.load(part_ptr + (part[:, None] * HEAD_DIM + d[None, :]), mask=mask, other=0.0)
    merged = tl.sum(weights[:, None] * attended, axis=0)
    out_address = (token * tl.num_programs(1) + head) * HEAD_DIM + d
    tl.store(out_ptr + out_address, merged.to(out_ptr.dtype.element_ty), mask=d < HEAD_DIM)


@triton.jit
def find_sequence(tile, starts_ptr, num_seqs, TOKENS: tl.constexpr):
    """Return the sequence of tile number `tile`, by bisection: the last s with starts[s] // TOKENS + s <= tile.

    This gives sequence s one more tile than the full tiles between its first and last query token: always enough,
    and known without reading any length on the host. (vLLM's Triton backend numbers its tiles this way.)
    """
    left = 0
    right = num_seqs
    while right - left > 1:
        middle = (left + right) // 2
        if tl.load(starts_ptr + middle) // TOKENS + middle <= tile:
            left = middle
        else:
            right = middle
    return left


@triton.jit
def prefill_kernel(
    # pointers
    out_ptr,  # [num_tokens, num_heads, HEAD_DIM], contiguous
    q_ptr,  # [num_tokens, num_heads, HEAD_DIM]
    k_ptr,
    v_ptr,
    tables_ptr,
    lens_ptr,
    starts_ptr,  # query_start_loc [num_seqs + 1]
    # scalars
    num_seqs,
    scale,
    softcap,
    window,
    # strides
    table_stride,
    q_token,
    q_head,
    k_block,
    k_slot,
    k_head,
    v_block,
    v_slot,
    v_head,
    # constants
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,  # a power of two; ROWS // GROUP query tokens fit
    D: tl.constexpr,
    TILE: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Attend sequences with several query tokens: a prefill from scratch, or a chunk after tokens in the cache.

    Grid: (num_tokens // TOKENS + num_seqs, num_kv_heads). A tile's rows are TOKENS query tokens times GROUP heads:

        row      0  1  2 │ 3  4  5 │ 6  7  8 │ …        GROUP = 3, ROWS = 64: TOKENS = 21, one row left over
        token    0  0  0 │ 1  1  1 │ 2  2  2 │ …
        head     0  1  2 │ 0  1  2 │ 0  1  2 │ …
    """
    TOKENS: tl.constexpr = ROWS // GROUP
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    num_heads = tl.num_programs(1) * GROUP
    seq = find_sequence(tile, starts_ptr, num_seqs, TOKENS)
    start = tl.load(starts_ptr + seq)
    query_len = tl.load(starts_ptr + seq + 1) - start
    skip = (tile - (start // TOKENS + seq)) * TOKENS  # this sequence's query tokens in earlier tiles
    if skip >= query_len or query_len == 1:  # no query token left, or a decode: decode_kernel attends it
        return
    seq_len = tl.load(lens_ptr + seq)
    row = tl.arange(0, ROWS)
    d = tl.arange(0, D)
    nth = skip + row // GROUP  # index among the sequence's query tokens
    token = (start + nth).to(tl.int64)
    head = kv_head * GROUP + row % GROUP
    exists = (row < TOKENS * GROUP) & (nth < query_len)
    row_mask = exists[:, None] & (d < HEAD_DIM)[None, :]
    q_address = (token * q_token + head * q_head)[:, None] + d[None, :]
    q = tl.load(q_ptr + q_address, mask=row_mask, other=0.0)
    if UPCAST:
        q = q.to(tl.float32)
    position = seq_len - query_len + nth
    first_position = seq_len - query_len + skip
    last = tl.minimum(first_position + TOKENS, seq_len)  # the tile's last token sees keys up to itself
    first = first_position * 0
    if HAS_WINDOW:
        first = tl.maximum(first_position - window + 1, 0)  # earlier keys are outside every row's window
    attended, _ = attend_tokens(
        q,
        position,
        first,
        last,
        tables_ptr + seq.to(tl.int64) * table_stride,
        k_ptr + kv_head * k_head,
        v_ptr + kv_head * v_head,
        scale,
        softcap,
        window,
        k_block,
        k_slot,
        v_block,
        v_slot,
        HEAD_DIM,
        BLOCK_SIZE,
        TILE,
        HAS_SOFTCAP,
        HAS_WINDOW,
        UPCAST,
    )
    out_address = ((token * num_heads + head) * HEAD_DIM)[:, None] + d[None, :]
    tl.store(out_ptr + out_address, attended.to(out_ptr.dtype.element_ty), mask=row_mask)


@triton.jit
def write_kv_kernel(
    # pointers
    k_ptr,  # [num_tokens, num_kv_heads, HEAD_DIM]: the new rows
    v_ptr,
    k_cache_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, HEAD_DIM]
    v_cache_ptr,
    slots_ptr,  # [num_tokens]
    # scalars
    num_kv_heads,
    # strides: of the new rows, then of the key cache (kc) and the value cache (vc)
    k_token,
    k_head,
    v_token,
    v_head,
    kc_block,
    kc_slot,
    kc_head,
    vc_block,
    vc_slot,
    vc_head,
    # constants
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    D: tl.constexpr,
    HEADS: tl.constexpr,  # num_kv_heads padded to a power of two
):
    """Write one token's keys and values into its slot. Grid: (num_tokens,). Slot -1: the token is not written."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    if slot < 0:
        return
    block = slot // BLOCK_SIZE
    offset = slot % BLOCK_SIZE
    head = tl.arange(0, HEADS)[:, None]
    d = tl.arange(0, D)[None, :]
    mask = (head < num_kv_heads) & (d < HEAD_DIM)
    k = tl.load(k_ptr + (token * k_token + head * k_head + d), mask=mask)
    v = tl.load(v_ptr + (token * v_token + head * v_head + d), mask=mask)
    tl.store(k_cache_ptr + (block * kc_block + offset * kc_slot + head * kc_head + d), k, mask=mask)
    tl.store(v_cache_ptr + (block * vc_block + offset * vc_slot + head * vc_head + d), v, mask=mask)


@triton.jit
def copy_blocks_kernel(
    # pointers
    k_ptr,  # [num_layers, num_blocks, elements of a block], contiguous
    v_ptr,
    pairs_ptr,  # [num_pairs, 2]: source, destination
    # strides and sizes
    layer_stride,
    block_elements,
    # constants
    TILE: tl.constexpr,  # elements copied by one program
):
    """Copy one tile of one block of one layer, K and V. Grid: (num_pairs, num_layers, tiles of a block)."""
    pair = tl.program_id(0)
    source = tl.load(pairs_ptr + 2 * pair).to(tl.int64)
    destination = tl.load(pairs_ptr + 2 * pair + 1).to(tl.int64)
    layer = tl.program_id(1).to(tl.int64) * layer_stride
    element = tl.program_id(2) * TILE + tl.arange(0, TILE)
    mask = element < block_elements
    k = tl.load(k_ptr + layer + source * block_elements + element, mask=mask)
    v = tl.load(v_ptr + layer + source * block_elements + element, mask=mask)
    tl.store(k_ptr + layer + destination * block_elements + element, k, mask=mask)
    tl.store(v_ptr + layer + destination * block_elements + element, v, mask=mask)
