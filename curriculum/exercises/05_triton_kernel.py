# %% [markdown]
# # 5 · Exercises: the Triton kernel
#
# You write a decode kernel in three steps: load a block through the table, mask the tail, and the whole. Then the merge
# of two partial results, and the arithmetic that tells how fast a kernel can be. Read the
# [lesson](../notebooks/05_triton_kernel.ipynb) first.
#
# 110 minutes · needs the lesson of chapter 5, and exercises 3.3 and 3.4 help · GPU: not needed
#
# The kernels run in Triton's interpreter, on any machine: it takes milliseconds a program, and says what is wrong in
# Python's words. `launch` gives your kernel NumPy arrays and looks at every address before it is used, so a wrong one
# is an error with a name and not the end of the process. Where Triton has no package (macOS, Windows), `triton` and `tl`
# are a stand-in made of NumPy that knows the words used here: write the same kernel.
#
# Use Python's standard library and NumPy (and `tl` in the kernels); PyTorch and the course's own `paged_ref` are refused. Do not change a
# function's arguments, unless the text asks for it or allows it.

# %%
import os

os.environ.setdefault("TRITON_INTERPRET", "1")  # must stand before Triton is imported

import numpy as np

from coursekit.kernels.lab import launch, tl, triton

# %% [markdown]
# How it works: the kernel below doubles numbers, four to a program. Five numbers need two programs, and in the
# second one three elements of the tile do not exist, so they are masked. You may copy from it.


# %%
@triton.jit
def double(out_ptr, x_ptr, n, TILE: tl.constexpr):
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)  # an array of TILE indices
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)  # pointer + indices: an array of addresses
    tl.store(out_ptr + i, 2 * x, mask=i < n)


x, out = np.arange(5, dtype=np.float32), np.zeros(5, dtype=np.float32)
launch(double, (2,), out, x, 5, TILE=4)
print(out)

# %% [raw] exercise="5.1"
# title: Load one block through the table
# objective: turn a block id into the addresses of one head's keys in that block.
# difficulty: 2
# importance: 5
# minutes: 15
# lines: 6
# predict: |
#   A cache has the shape `[num_blocks, 16, 3, 64]`: blocks of 16 tokens, 3 KV heads, 64 numbers each. How many numbers
#   lie between token 5 of a block and token 6 of the same block, for the same head? And between a block and the next?
# predicted: |
#   From token to token 3 · 64 = 192: the other heads' numbers lie in between. From block to block 16 · 192 = 3,072. A
#   stride is the product of all dimensions to the right of it.
# hints:
#   - "The program's number is the *logical* block: `tl.program_id(0)`. `tl.load(table_ptr + …)` gives the physical one."
#   - "Build the offsets as a two-dimensional tile: a column of slots, `tl.arange(0, BLOCK_SIZE)[:, None]`, and a row of
#     numbers, `tl.arange(0, HEAD_DIM)[None, :]`, each times its own stride."
#   - "The offset is `((block * BLOCK_SIZE + slot) * KV_HEADS + kv_head) * HEAD_DIM + d`. The result has no KV heads, so
#     its offset is `(logical * BLOCK_SIZE + slot) * HEAD_DIM + d`."

# %% [markdown]
# Program i copies the keys of KV head `kv_head` from the sequence's logical block i into `out[i]`.
#
# - `cache_ptr` points to a contiguous array `[num_blocks, BLOCK_SIZE, KV_HEADS, HEAD_DIM]`,
# - `table_ptr` to the sequence's block table, one physical block for each logical one,
# - `out_ptr` to a contiguous array `[blocks of the sequence, BLOCK_SIZE, HEAD_DIM]`.
#
# `BLOCK_SIZE` and `HEAD_DIM` are powers of two, and all blocks are full. There is one program for each block of the
# sequence.


# %% exercise="5.1"
@triton.jit
def load_block(
    out_ptr,
    cache_ptr,
    table_ptr,
    kv_head,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    ### BEGIN SOLUTION
    logical = tl.program_id(0)
    block = tl.load(table_ptr + logical)
    slot = tl.arange(0, BLOCK_SIZE)[:, None]
    d = tl.arange(0, HEAD_DIM)[None, :]
    keys = tl.load(cache_ptr + ((block * BLOCK_SIZE + slot) * KV_HEADS + kv_head) * HEAD_DIM + d)
    tl.store(out_ptr + (logical * BLOCK_SIZE + slot) * HEAD_DIM + d, keys)
    ### END SOLUTION


# %% [raw] exercise="5.2"
# title: Mask the tail
# objective: attend to the filled part of a block, whatever the rest of it holds.
# difficulty: 3
# importance: 5
# minutes: 15
# lines: 8
# predict: |
#   A block has 8 slots, 5 of them filled. The scores of the 3 others are set to 0 before the softmax. What share of the
#   weight do they take if the 5 real scores are all 0, too? And if the real ones are −10?
# predicted: |
#   Three of eight equal shares, 37.5 %. And nearly all of it if the real scores are −10: a score of 0 is then the
#   largest. Only −∞ has a weight of 0. Even that is not enough for V: 0 · NaN is NaN, and an unused slot may hold one.
# hints:
#   - "`exists = slot < tl.load(lens_ptr + seq)` is the mask of the block's rows. For a two-dimensional load it is
#     `exists[:, None]`."
#   - "Load K *and* V with `mask=exists[:, None], other=0.0`. Then give the scores that do not exist −∞:
#     `tl.where(exists, scores, -float(\"inf\"))`."
#   - "scores = sum over d of q · k, times scale; weights = exp(scores − their maximum); the result is sum(weights · v)
#     over the slots, divided by sum(weights)."

# %% [markdown]
# Program s attends query s to one block: to the first `lens[s]` of its slots. The others may hold anything. `q` and
# `out` are `[num_seqs, HEAD_DIM]`, `k` and `v` `[num_seqs, BLOCK_SIZE, HEAD_DIM]`, all contiguous; every length is at
# least 1. The lines that are there already load the query and compute the offsets of the keys and values.


# %% exercise="5.2"
@triton.jit
def attend_block(
    out_ptr, q_ptr, k_ptr, v_ptr, lens_ptr, scale, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr
):
    seq = tl.program_id(0)
    slot = tl.arange(0, BLOCK_SIZE)
    d = tl.arange(0, HEAD_DIM)
    q = tl.load(q_ptr + seq * HEAD_DIM + d)
    offsets = (seq * BLOCK_SIZE + slot)[:, None] * HEAD_DIM + d[None, :]
    ### BEGIN SOLUTION
    exists = slot < tl.load(lens_ptr + seq)
    k = tl.load(k_ptr + offsets, mask=exists[:, None], other=0.0)
    v = tl.load(v_ptr + offsets, mask=exists[:, None], other=0.0)
    scores = tl.sum(q[None, :] * k, axis=1) * scale
    scores = tl.where(exists, scores, -float("inf"))
    weights = tl.exp(scores - tl.max(scores, axis=0))
    attended = tl.sum(weights[:, None] * v, axis=0) / tl.sum(weights, axis=0)
    tl.store(out_ptr + seq * HEAD_DIM + d, attended)
    ### END SOLUTION


# %% [raw] exercise="5.3"
# title: The whole decode kernel
# objective: write paged decode attention as one kernel.
# difficulty: 5
# importance: 5
# minutes: 45
# lines: 30
# predict: |
#   Eight sequences, 32 query heads, 8 KV heads. In this kernel a program is one query head of one sequence. How many
#   programs run? How often is each key read from memory?
# predicted: |
#   8 · 32 = 256 programs. Each key is read 32 / 8 = 4 times: the four query heads that share a KV head are four
#   programs, and each reads it for itself. The lesson's next version mends that with a tile of four query rows.
# hints:
#   - "It is your loop of exercise 3.4 with the loads of 5.1 and the masks of 5.2: for each logical block of the sequence,
#     look up the physical one, load K and V with two masks (slots and head), and bring the running maximum, sum and
#     accumulator up to date."
#   - "Begin with `top = -float(\"inf\")`, `total = 0.0`, `acc = tl.zeros([D], tl.float32)`. For each block: `new_top =
#     tl.maximum(top, tl.max(scores, axis=0))`, `rescale = tl.exp(top - new_top)`; total and acc are multiplied by
#     rescale before the block's share is added. Divide once, after the loop."
#   - "`range(tl.cdiv(seq_len, BLOCK_SIZE))` are the logical blocks. The KV head is `head // (HEADS // KV_HEADS)`. Convert
#     the block id with `.to(tl.int64)` *before* it is multiplied. The mask of a tile is
#     `exists[:, None] & (d < HEAD_DIM)[None, :]`, and the store needs `mask=d < HEAD_DIM`."

# %% [markdown]
# Program (s, h) computes query head h of sequence s, over all of the sequence's tokens.
#
# - `q` and `out` are `[num_seqs, HEADS, HEAD_DIM]`, `k` and `v` `[num_blocks, BLOCK_SIZE, KV_HEADS, HEAD_DIM]`, `tables`
#   `[num_seqs, MAX_BLOCKS]`, `lens` `[num_seqs]` (at least 1), all contiguous.
# - Query head h reads KV head `h // (HEADS // KV_HEADS)`. Scores are multiplied by `scale`.
# - Unused slots and unused table entries may hold anything.
# - A tile's sizes must be powers of two: `D` and `B` are `HEAD_DIM` and `BLOCK_SIZE` rounded up to one, so both need a
#   mask.
# - The cache may hold more than 2³¹ numbers. The check tries it without the memory for it.


# %% exercise="5.3"
@triton.jit
def decode(
    out_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    tables_ptr,
    lens_ptr,
    scale,
    MAX_BLOCKS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    D: tl.constexpr,
    B: tl.constexpr,
):
    ### BEGIN SOLUTION
    seq = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // (HEADS // KV_HEADS)
    d = tl.arange(0, D)
    slot = tl.arange(0, B)
    seq_len = tl.load(lens_ptr + seq)
    q = tl.load(q_ptr + (seq * HEADS + head) * HEAD_DIM + d, mask=d < HEAD_DIM, other=0.0)
    top = -float("inf")
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    for logical in range(tl.cdiv(seq_len, BLOCK_SIZE)):
        block = tl.load(tables_ptr + seq * MAX_BLOCKS + logical).to(tl.int64)
        exists = (slot < BLOCK_SIZE) & (logical * BLOCK_SIZE + slot < seq_len)
        mask = exists[:, None] & (d < HEAD_DIM)[None, :]
        token = block * BLOCK_SIZE + slot
        offsets = (token * KV_HEADS + kv_head)[:, None] * HEAD_DIM + d[None, :]
        k = tl.load(k_ptr + offsets, mask=mask, other=0.0)
        v = tl.load(v_ptr + offsets, mask=mask, other=0.0)
        scores = tl.sum(q[None, :] * k, axis=1) * scale
        scores = tl.where(exists, scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=0))
        rescale = tl.exp(top - new_top)
        weights = tl.exp(scores - new_top)
        total = total * rescale + tl.sum(weights, axis=0)
        acc = acc * rescale + tl.sum(weights[:, None] * v, axis=0)
        top = new_top
    tl.store(out_ptr + (seq * HEADS + head) * HEAD_DIM + d, acc / total, mask=d < HEAD_DIM)
    ### END SOLUTION


# %% [raw] exercise="5.4"
# title: Merge two partial results
# objective: join attention over two parts of a context into attention over the whole.
# difficulty: 3
# importance: 4
# minutes: 20
# lines: 6
# predict: |
#   A context of 1,000 tokens is cut into 999 and 1. The one token holds a needle that takes 99 % of the weight. Part a
#   gives the result a, part b the result b. What is the whole: (a + b) / 2, or 0.999 a + 0.001 b, or something else?
# predicted: |
#   0.01 a + 0.99 b. Each part counts by the sum of exp(score) of its keys, however many they are. That sum is
#   exp(lse), so a part must hand out its lse beside its result.
# hints:
#   - "The weight of a part is exp(lse). Subtract the larger of the two lse first, or exp overflows."
#   - "`top = np.maximum(lse_a, lse_b)`, then `weight_a = np.exp(lse_a - top)` and the same for b. The result is the
#     weighted mean, and `lse = top + np.log(weight_a + weight_b)`."
#   - "If both parts are empty, top is −∞, and −∞ − (−∞) is NaN: subtract `np.where(np.isneginf(top), 0, top)` instead,
#     and divide by the sum of the weights only where it is not 0. `0 * out` of an empty part is no help if out is NaN."

# %% [markdown]
# No kernel here: NumPy. A part of the context hands out two arrays: its result `out` `[heads, d]`, and `lse` `[heads]`,
# the logarithm of the sum of exp(score) over its keys. An empty part has an `lse` of −∞, and its `out` may hold
# anything, NaN too. `merge` returns `(out, lse)` of both parts together. Two empty parts give zeros, and −∞.


# %% exercise="5.4"
def merge(out_a, lse_a, out_b, lse_b):
    """Attention over two parts of a context, from the attention over each."""
    ### BEGIN SOLUTION
    top = np.maximum(lse_a, lse_b)
    shift = np.where(np.isneginf(top), 0.0, top)
    weight_a, weight_b = np.exp(lse_a - shift), np.exp(lse_b - shift)
    total = weight_a + weight_b
    a = np.where((weight_a > 0)[:, None], out_a, 0.0) * weight_a[:, None]
    b = np.where((weight_b > 0)[:, None], out_b, 0.0) * weight_b[:, None]
    out = (a + b) / np.where(total == 0, 1.0, total)[:, None]
    with np.errstate(divide="ignore"):
        return out, shift + np.log(total)
    ### END SOLUTION


# %% [raw] exercise="5.5"
# title: Bytes moved, and the roofline
# objective: say how long decode attention must take, from its bytes and a device's limits.
# difficulty: 2
# importance: 5
# minutes: 15
# lines: 5
# predict: |
#   A device reads 3,350 GB/s and computes 989 TFLOP/s in bf16. How many operations must a kernel do with each byte that
#   it reads, for the arithmetic to be what it waits for? Decode attention with 32 query heads and 8 KV heads in bf16
#   does 4 with each byte. Which limit does it meet?
# predicted: |
#   989,000 / 3,350 = 295. Decode attention does 4, so it waits for memory, 74 times over: its arithmetic is nearly free,
#   and nothing but fewer bytes makes it faster.
# hints:
#   - "Every token of every sequence has a key and a value for each *KV* head, of `head_dim` numbers. The kernel reads
#     each of them once, for all query heads that share it."
#   - "A roof is a minimum: a kernel is never faster than the arithmetic units, and never faster than its bytes arrive."
#   - "`bandwidth * flops / num_bytes` are the operations a second at which the bytes arrive."

# %% [markdown]
# - `decode_bytes` returns the bytes of keys and values that one layer's decode attention must read, for sequences of the
#   given `lengths`, if it reads nothing twice. `number_bytes` is the size of a number (2 for bf16).
# - `roofline` returns the operations a second that a kernel can reach at most: it does `flops` operations and moves
#   `num_bytes` bytes, on a device that computes `peak` operations and moves `bandwidth` bytes a second.


# %% exercise="5.5"
def decode_bytes(lengths, num_heads, num_kv_heads, head_dim, number_bytes):
    """Bytes of keys and values that must be read."""
    ### BEGIN SOLUTION
    return 2 * sum(lengths) * num_kv_heads * head_dim * number_bytes
    ### END SOLUTION


def roofline(flops, num_bytes, peak, bandwidth):
    """Operations a second that can be reached."""
    ### BEGIN SOLUTION
    return min(peak, bandwidth * flops / num_bytes)
    ### END SOLUTION


# %% [markdown]
# ## What you have built
#
# Exercise 5.3 is `decode_plain_kernel` in `paged_ref/attention/triton_kernels.py`, with strides computed instead of
# passed. `decode_kernel` there reads each key once for all query heads that share it, several blocks to a tile, and
# `merge_kernel` is exercise 5.4 as a kernel.
#
# With a GPU, your kernel can be compiled for it: start Jupyter with `TRITON_INTERPRET=0` in its environment and run this
# notebook again; `launch` then moves the arrays to the device and back. Do so when the checks have passed: compiled code
# does not look at its addresses. (The part of 5.3 with a large cache works in the interpreter only.)
