# ---
# course:
#   depends: [bench/results/kernel_resources.json, paged_ref/attention/triton_kernels.py, coursekit/kernels/numpy_triton.py]
# ---

# %% [markdown]
# # 5 · The Triton kernel
#
# **You will be able to** turn the NumPy loop of chapter 3 into a GPU kernel, one change at a time: a program for each
# sequence and head, pointers through the table, masks, a tile of query heads, several blocks to a tile, a context split
# over programs and merged. You will count what each version loads, read its registers without a GPU, place it on a
# roofline, and say what paging gains and what it costs.
#
# 75 minutes to read and run · you need: chapter [3](03_numpy_gather.ipynb) (the online softmax) and
# [2](02_block_table.ipynb) (slots) · GPU: not needed, used if there is one
#
# 1. [A batch that can fail, and the loop](#1-a-batch-that-can-fail-and-the-loop)
# 2. [What a kernel is](#2-what-a-kernel-is)
# 3. [Version 1: the two loops become the grid](#3-version-1-the-two-loops-become-the-grid)
# 4. [Version 2: a block at a time, and its masks](#4-version-2-a-block-at-a-time-and-its-masks)
# 5. [Version 3: the query heads that share a KV head](#5-version-3-the-query-heads-that-share-a-kv-head)
# 6. [Version 4: several blocks to a tile](#6-version-4-several-blocks-to-a-tile)
# 7. [Version 5: split the context, merge the parts](#7-version-5-split-the-context-merge-the-parts)
# 8. [What each version loads, and who reads which block](#8-what-each-version-loads-and-who-reads-which-block)
# 9. [The library's kernel](#9-the-librarys-kernel)
# 10. [Registers, shared memory, spills: what the compiler says](#10-registers-shared-memory-spills-what-the-compiler-says)
# 11. [The roofline](#11-the-roofline)
# 12. [What does the table cost?](#12-what-does-the-table-cost)
# 13. [What paging gains, and what it does not](#13-what-paging-gains-and-what-it-does-not)
# 14. [What must hold, and what breaks if it does not](#14-what-must-hold-and-what-breaks-if-it-does-not)
# 15. [What you have now](#15-what-you-have-now)

# %% [markdown]
# ## 1 A batch that can fail, and the loop
#
# A kernel is compared with an **oracle**: attention from its definition, dense, in float64. The comparison is worth
# as much as the batch. Half of chapter 3's wrong kernels pass on one full sequence with its blocks in order. So here:
# three sequences of different lengths in shuffled blocks, unused slots that hold NaN, unused table entries that no pool
# has, six query heads on two KV heads, and a head size of 24, which is no power of two.

# %%
import os
from types import SimpleNamespace

import numpy as np
import torch

from paged_ref.verify.oracle import oracle

HEADS, KV_HEADS, HEAD_DIM, BLOCK = 6, 2, 24, 16
GROUP = HEADS // KV_HEADS


def make_batch(lengths, num_blocks, seed=0):
    """Queries, caches and tables of sequences with these lengths, scattered over a pool."""
    rng = np.random.default_rng(seed)
    used = [-(-n // BLOCK) for n in lengths]
    free = rng.permutation(num_blocks).tolist()
    tables = np.full((len(lengths), max(used) + 1), 10**6, np.int32)
    keys, values = np.full((2, num_blocks, BLOCK, KV_HEADS, HEAD_DIM), np.nan, np.float32)
    for seq, n in enumerate(lengths):
        tables[seq, : used[seq]] = [free.pop() for _ in range(used[seq])]
        for t in range(n):
            at = tables[seq, t // BLOCK], t % BLOCK
            keys[at], values[at] = rng.normal(size=(2, KV_HEADS, HEAD_DIM))
    query = 2 * rng.normal(size=(len(lengths), HEADS, HEAD_DIM)).astype(np.float32)
    lens = np.array(lengths, np.int32)
    return SimpleNamespace(query=query, keys=keys, values=values, tables=tables, lens=lens, used=used)


batch = make_batch([75, 18, 32], num_blocks=12)
SCALE = HEAD_DIM**-0.5
exact = oracle(batch.query, batch.keys, batch.values, batch.tables, batch.lens)
for name, n, table, used in zip("ABC", batch.lens, batch.tables, batch.used, strict=True):
    print(f"{name}: {n} tokens in blocks {table[:used].tolist()}, then {table[used]}")

# %% [markdown]
# Where we start: for each sequence and each query head, walk over the tokens with a running softmax. Three numbers are
# kept: the largest score so far, the sum of weights, the weighted sum of values. (Chapter 3 derives it.)


# %%
def attend_head(seq, head):
    """Attention of one query head of one sequence, token by token."""
    q = batch.query[seq, head].astype(float)
    top, total, acc = -np.inf, 0.0, np.zeros(HEAD_DIM)
    for token in range(batch.lens[seq]):
        block = batch.tables[seq, token // BLOCK]
        k = batch.keys[block, token % BLOCK, head // GROUP]
        v = batch.values[block, token % BLOCK, head // GROUP]
        score = SCALE * (q @ k)
        new_top = max(top, score)
        rescale, weight = np.exp(top - new_top), np.exp(score - new_top)
        total = total * rescale + weight
        acc = acc * rescale + weight * v
        top = new_top
    return acc / total


def close(got):
    """Whether a result equals the oracle's, up to float32's rounding."""
    return bool(np.allclose(got, exact, rtol=1e-4, atol=1e-5))


loop = np.array([[attend_head(seq, head) for head in range(HEADS)] for seq in range(len(batch.lens))])
print("the loop equals the oracle:", close(loop))

# %% [markdown]
# ## 2 What a kernel is
#
# A GPU runs one short **program** thousands of times, in no particular order, many side by side on each of its
# **multiprocessors** (an H100 has 132). What distinguishes the runs is their number. In **Triton** one writes that
# program in Python's grammar:
#
# - `tl.program_id(0)` says which run this is. The **grid** says how many there are.
# - A variable is a small array, a **tile**. `tl.arange(0, 8)` makes one; its size is a power of two, known when the
#   kernel is compiled (`tl.constexpr`).
# - An argument that is a tensor arrives as a **pointer**, an address without a shape. `pointer + tile` is a tile of
#   addresses, and `tl.load` reads them all. The shape is your affair: offsets are sums of index × **stride**.
# - A **mask** says which elements of a tile exist. The others are neither read nor written.
#
# Without a GPU, Triton's **interpreter** runs the same kernel as NumPy code, one program after the other: slow, and as
# right or wrong as on the GPU. The switch must be set before Triton is imported. (Where Triton has no package, on macOS
# and Windows, `kernel_lab` gives you a stand-in made of NumPy. It runs the kernels of this chapter; the few cells that
# need the real one say so.)

# %%
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
from coursekit.kernels.lab import HAS_TRITON, tl, triton

# %% tags=["nbval-ignore-output"]
where = torch.cuda.get_device_name() + ", compiled" if DEVICE == "cuda" else "the CPU, interpreted"
print(f"Triton {triton.__version__}, torch {torch.__version__}; kernels run on {where}")

# %% [markdown]
# A first kernel: each program adds up four numbers of an array. Ten numbers are not a multiple of four.
#
# > **Predict.** How many programs are needed? Which of them needs its mask, and what would it add up without?


# %%
@triton.jit
def sum_of_four(out_ptr, x_ptr, n, TILE: tl.constexpr):
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)
    x = tl.load(x_ptr + i, mask=i < n, other=0)  # `other` is what a masked element counts as
    tl.store(out_ptr + tl.program_id(0), tl.sum(x, axis=0))


x = torch.arange(10, dtype=torch.int32, device=DEVICE)
out = torch.zeros(3, dtype=torch.int32, device=DEVICE)
sum_of_four[(3,)](out, x, 10, TILE=4)  # kernel[grid](arguments)
print(out.tolist())

# %% [markdown]
# Three programs; the last has two numbers of its own. Without a mask it would read the two numbers that lie behind the
# array, whoever owns them.
#
# ## 3 Version 1: the two loops become the grid
#
# In the loop above, no head of no sequence needs another's result. So `for seq` and `for head` go, and become the two
# axes of the grid. The rest is the same, line by line, but for the addresses: `keys[block, slot, kv_head]` is a
# row of numbers that begins at
#
#     ((block * BLOCK + slot) * KV_HEADS + kv_head) * HEAD_DIM
#
# numbers after the start of the cache. Tiles have powers of two, so a row of 24 is read as 32 with a mask.


# %%
@triton.jit
def by_token(
    out_ptr, q_ptr, k_ptr, v_ptr, tables_ptr, lens_ptr, scale,
    MAX_BLOCKS: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    seq = tl.program_id(0)
    head = tl.program_id(1)
    d = tl.arange(0, D)  # D: HEAD_DIM, rounded up to a power of two
    row = (seq * HEADS + head) * HEAD_DIM
    q = tl.load(q_ptr + row + d, mask=d < HEAD_DIM, other=0.0).to(tl.float32)
    top = -float("inf")
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    for token in range(tl.load(lens_ptr + seq)):
        block = tl.load(tables_ptr + seq * MAX_BLOCKS + token // BLOCK).to(tl.int64)
        slot = block * BLOCK + token % BLOCK
        at = (slot * KV_HEADS + head // (HEADS // KV_HEADS)) * HEAD_DIM + d
        k = tl.load(k_ptr + at, mask=d < HEAD_DIM, other=0.0).to(tl.float32)
        v = tl.load(v_ptr + at, mask=d < HEAD_DIM, other=0.0).to(tl.float32)
        score = tl.sum(q * k, axis=0) * scale
        new_top = tl.maximum(top, score)
        rescale = tl.exp(top - new_top)
        weight = tl.exp(score - new_top)
        total = total * rescale + weight
        acc = acc * rescale + weight * v
        top = new_top
    tl.store(out_ptr + row + d, (acc / total).to(out_ptr.dtype.element_ty), mask=d < HEAD_DIM)


# %% [markdown]
# The table is read *inside* the kernel: one load of an entry, then loads at an address made from it. That is all
# there is to "paged". `Launch` keeps a kernel with its arguments, so that we can run it now and look at its loads later.

# %%
from coursekit.kernels.worker import Launch

names = ("query", "keys", "values", "tables", "lens")
q, k, v, tables, lens = (torch.from_numpy(getattr(batch, name)).to(DEVICE) for name in names)
SIZES = {"MAX_BLOCKS": tables.shape[1], "HEADS": HEADS, "KV_HEADS": KV_HEADS,
         "HEAD_DIM": HEAD_DIM, "BLOCK": BLOCK, "D": 32}  # fmt: skip


def prepare(kernel, grid, **constants):
    """A launch of `kernel` on the batch, with a result of its own."""
    out = torch.full_like(q, float("nan"))
    return Launch(kernel, grid, (out, q, k, v, tables, lens, SCALE), SIZES | constants)


def run(launch):
    """Run it; returns the result."""
    launch.run()
    return launch.args[0].cpu().numpy()


SEQS = len(batch.lens)
versions = {"1 token by token": prepare(by_token, (SEQS, HEADS))}
print(SEQS * HEADS, "programs; equals the oracle:", close(run(versions["1 token by token"])))

# %% [markdown]
# ## 4 Version 2: a block at a time, and its masks
#
# Version 1 waits for memory in each round: it loads one row, uses it, and asks for the next. The tokens of one block lie
# side by side. So load a **tile** of a whole block, `[BLOCK, D]`, with one look-up, and let the running softmax take a
# block's scores at once. A column of slots plus a row of numbers makes the two-dimensional tile of offsets.
#
# The last block is partly filled. The slots behind the end may hold anything: chapter 2 showed that nobody clears
# them. So `exists` masks rows. It is needed in two places: a score that does not exist becomes −∞, and the *load* of V is
# masked. The switch `MASK_V` is here so that you can see what the second one is for.


# %%
@triton.jit
def by_block(
    out_ptr, q_ptr, k_ptr, v_ptr, tables_ptr, lens_ptr, scale,
    MAX_BLOCKS: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, D: tl.constexpr, MASK_V: tl.constexpr,
):  # fmt: skip
    seq = tl.program_id(0)
    head = tl.program_id(1)
    d = tl.arange(0, D)
    slot = tl.arange(0, BLOCK)
    row = (seq * HEADS + head) * HEAD_DIM
    q = tl.load(q_ptr + row + d, mask=d < HEAD_DIM, other=0.0).to(tl.float32)
    seq_len = tl.load(lens_ptr + seq)
    top = -float("inf")
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    for logical in range(tl.cdiv(seq_len, BLOCK)):
        block = tl.load(tables_ptr + seq * MAX_BLOCKS + logical).to(tl.int64)
        exists = logical * BLOCK + slot < seq_len
        kv_row = (block * BLOCK + slot) * KV_HEADS + head // (HEADS // KV_HEADS)
        at = kv_row[:, None] * HEAD_DIM + d[None, :]
        mask = exists[:, None] & (d < HEAD_DIM)[None, :]
        k = tl.load(k_ptr + at, mask=mask, other=0.0).to(tl.float32)
        if not MASK_V:
            mask = (slot >= 0)[:, None] & (d < HEAD_DIM)[None, :]
        v = tl.load(v_ptr + at, mask=mask, other=0.0).to(tl.float32)
        scores = tl.where(exists, tl.sum(q[None, :] * k, axis=1) * scale, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=0))
        rescale = tl.exp(top - new_top)
        weights = tl.exp(scores - new_top)
        total = total * rescale + tl.sum(weights, axis=0)
        acc = acc * rescale + tl.sum(weights[:, None] * v, axis=0)
        top = new_top
    tl.store(out_ptr + row + d, (acc / total).to(out_ptr.dtype.element_ty), mask=d < HEAD_DIM)


# %% [markdown]
# > **Predict.** With `MASK_V=False` the scores are still masked, so a slot that does not exist has a weight of exactly 0.
# > The lengths are 75, 18 and 32, the blocks have 16 slots. For which sequences is the result wrong?

# %%
versions["2 block by block"] = prepare(by_block, (SEQS, HEADS), MASK_V=True)
print("masked: equals the oracle:", close(run(versions["2 block by block"])))
unmasked = run(prepare(by_block, (SEQS, HEADS), MASK_V=False))
for name, n, rows in zip("ABC", batch.lens, unmasked, strict=True):
    told = f"{name} ({n} tokens, {-n % BLOCK:2} empty slots)"
    print(f"V not masked, {told}: NaN in the result: {np.isnan(rows).any()}")

# %% [markdown]
# 0 × NaN is NaN. One slot of one block, which no token ever used, spoils every head of its sequence, and only sequences
# that fill their last block escape. A test with full blocks sees nothing. A public engine had this fault, and it
# showed only when a recycled block held an old NaN.
#
# ## 5 Version 3: the query heads that share a KV head
#
# > **Predict.** Three query heads share a KV head here. How often does version 2 read each key from memory?
#
# The three heads are three programs, and each reads the shared keys for itself. One program can do all three: the query
# becomes a tile `[ROWS, D]`, and the scores a product of two tiles, `[ROWS, D] · [D, TILE] = [ROWS, TILE]`.
# `tl.dot` does that on the GPU's matrix units, which take 16 rows at a time. So `ROWS` is 16 and 13 of the rows are masked.
# That looks wasteful and costs nearly nothing: the keys are what one waits for. (Triton accepts fewer rows, and pads them
# itself. What it refuses for an NVIDIA GPU is a product that sums over fewer than 16 numbers: a tile of 8 tokens, say. The
# interpreter does not look, so such a kernel passes every test on a CPU and does not compile.)
#
# The grid's second axis is now KV heads. While we are at it, each *token* finds its own block, instead of the whole tile
# having one. Then a tile may be of any size. (`PAGED` is for section 10: without it the kernel takes the blocks in order
# and reads no table.)


# %%
@triton.jit
def by_group(
    out_ptr, q_ptr, k_ptr, v_ptr, tables_ptr, lens_ptr, scale,
    MAX_BLOCKS: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, PAGED: tl.constexpr,
):  # fmt: skip
    seq = tl.program_id(0)
    kv_head = tl.program_id(1)
    d = tl.arange(0, D)
    row = tl.arange(0, ROWS)
    q_row = (seq * KV_HEADS + kv_head) * (HEADS // KV_HEADS) + row
    q_at = q_row[:, None] * HEAD_DIM + d[None, :]
    q_mask = (row < HEADS // KV_HEADS)[:, None] & (d < HEAD_DIM)[None, :]
    q = tl.load(q_ptr + q_at, mask=q_mask, other=0.0)
    seq_len = tl.load(lens_ptr + seq)
    top = tl.full([ROWS], -float("inf"), tl.float32)  # one for each query head now
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, D], tl.float32)
    for start in range(0, seq_len, TILE):
        token = start + tl.arange(0, TILE)
        exists = token < seq_len
        block = seq.to(tl.int64) * MAX_BLOCKS + token // BLOCK
        if PAGED:
            entry = tables_ptr + seq * MAX_BLOCKS + token // BLOCK
            block = tl.load(entry, mask=exists, other=0).to(tl.int64)
        at = (((block * BLOCK + token % BLOCK) * KV_HEADS + kv_head) * HEAD_DIM)[:, None] + d[None, :]
        mask = exists[:, None] & (d < HEAD_DIM)[None, :]
        k = tl.load(k_ptr + at, mask=mask, other=0.0)
        v = tl.load(v_ptr + at, mask=mask, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(exists[None, :], scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=1))
        rescale = tl.exp(top - new_top)
        weights = tl.exp(scores - new_top[:, None])
        total = total * rescale + tl.sum(weights, axis=1)
        acc = acc * rescale[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        top = new_top
    tl.store(out_ptr + q_at, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=q_mask)


versions["3 a group of heads"] = prepare(by_group, (SEQS, KV_HEADS), ROWS=16, TILE=BLOCK, PAGED=True)
print(SEQS * KV_HEADS, "programs; equals the oracle:", close(run(versions["3 a group of heads"])))

# %% [markdown]
# In the interpreter each load of each program can be caught. We hold the bytes against the least possible: every key and
# every value of every sequence, once.

# %%
from coursekit.kernels.worker import NEEDS_TRITON, accesses
from coursekit.views.kernel import count

fewest = 2 * int(batch.lens.sum()) * KV_HEADS * HEAD_DIM * 4
seen = {name: accesses([launch]) for name, launch in versions.items()}
for name, found in seen.items():
    print(f"{name:20} loads {count(found, number_bytes=4).cache / fewest:.2f} times the least possible")

# %% [markdown]
# `input_precision="ieee"` asks for float32 products as they are. The default for float32 is TF32, whose numbers have
# 10 bits of fraction: on a GPU its result would differ from the oracle's in the fourth digit. For bf16 and fp16 it makes no
# difference.
#
# ## 6 Version 4: several blocks to a tile
#
# A round trip to the GPU's memory takes several hundred nanoseconds, whatever its size. A program that asks for 16 tokens and
# waits, and asks for 16 more, spends its life waiting. Two things help: larger tiles, and the compiler's **stages**, which
# ask for the next tile while this one is computed. Since each token finds its own block, a larger tile needs no new code.
#
# > **Predict.** TILE goes from 16 to 64. Do the bytes that are loaded grow, for lengths of 75, 18 and 32?

# %%
versions["4 four blocks a tile"] = prepare(by_group, (SEQS, KV_HEADS), ROWS=16, TILE=4 * BLOCK, PAGED=True)
for name in ("3 a group of heads", "4 four blocks a tile"):
    right = close(run(versions[name]))
    seen[name] = accesses([versions[name]])
    loads = count(seen[name], number_bytes=4)
    told = f"{loads.cache:,} bytes of K and V in {loads.steps} rounds at most"
    print(f"{name:20}  equals the oracle: {right}; {told}")

# %% [markdown]
# No: what is masked is not loaded. A tile may reach far beyond the end of a sequence, and costs only idle **lanes**:
# places in the tile whose arithmetic is done for nothing.
#
# ## 7 Version 5: split the context, merge the parts
#
# > **Predict.** One request with 100,000 tokens, 8 KV heads, on a GPU with 132 multiprocessors. How many of them
# > work in version 4?
#
# Eight: one program for each sequence and KV head. The others look on while each program walks through 100,000 tokens.
# So the grid gets a third axis: the context is cut into **splits**, each program attends to one, and a second kernel
# **merges** the parts. A part hands out its result and its **lse**, the logarithm of its sum of exp(score): with it, parts
# can be weighed against each other. (FlashDecoding and FlashInfer do this.)


# %%
@triton.jit
def by_split(
    part_ptr, lse_ptr, q_ptr, k_ptr, v_ptr, tables_ptr, lens_ptr, scale,
    MAX_BLOCKS: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    seq = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    d = tl.arange(0, D)
    row = tl.arange(0, ROWS)
    q_row = (seq * KV_HEADS + kv_head) * (HEADS // KV_HEADS) + row
    q_mask = (row < HEADS // KV_HEADS)[:, None] & (d < HEAD_DIM)[None, :]
    q = tl.load(q_ptr + q_row[:, None] * HEAD_DIM + d[None, :], mask=q_mask, other=0.0)
    seq_len = tl.load(lens_ptr + seq)
    share = tl.cdiv(tl.cdiv(seq_len, TILE), SPLITS) * TILE  # whole tiles
    first = split * share
    last = tl.minimum(first + share, seq_len)  # first >= last: nothing left for this program
    top = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, D], tl.float32)
    for start in range(first, last, TILE):
        token = start + tl.arange(0, TILE)
        exists = token < last
        entry = tables_ptr + seq * MAX_BLOCKS + token // BLOCK
        block = tl.load(entry, mask=exists, other=0).to(tl.int64)
        at = (((block * BLOCK + token % BLOCK) * KV_HEADS + kv_head) * HEAD_DIM)[:, None] + d[None, :]
        mask = exists[:, None] & (d < HEAD_DIM)[None, :]
        k = tl.load(k_ptr + at, mask=mask, other=0.0)
        v = tl.load(v_ptr + at, mask=mask, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(exists[None, :], scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=1))
        rescale = tl.exp(top - new_top)
        weights = tl.exp(scores - new_top[:, None])
        total = total * rescale + tl.sum(weights, axis=1)
        acc = acc * rescale[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        top = new_top
    empty = total == 0.0
    part = q_row * SPLITS + split
    attended = acc / tl.where(empty, 1.0, total)[:, None]
    tl.store(part_ptr + part[:, None] * HEAD_DIM + d[None, :], attended, mask=q_mask)
    lse = tl.where(empty, -float("inf"), top + tl.log(tl.where(empty, 1.0, total)))
    tl.store(lse_ptr + part, lse, mask=row < HEADS // KV_HEADS)


# %%
@triton.jit
def merge(
    out_ptr, part_ptr, lse_ptr,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * HEADS + tl.program_id(1)
    d = tl.arange(0, D)
    split = tl.arange(0, SPLITS)
    lse = tl.load(lse_ptr + row * SPLITS + split)
    weights = tl.exp(lse - tl.max(lse, axis=0))  # a part without tokens has lse -inf, so a weight of 0
    at = (row * SPLITS + split)[:, None] * HEAD_DIM + d[None, :]
    parts = tl.load(part_ptr + at, mask=(split >= 0)[:, None] & (d < HEAD_DIM)[None, :], other=0.0)
    merged = tl.sum(weights[:, None] * parts, axis=0) / tl.sum(weights, axis=0)
    tl.store(out_ptr + row * HEAD_DIM + d, merged.to(out_ptr.dtype.element_ty), mask=d < HEAD_DIM)


SPLITS = 4
parts = torch.full((SEQS, HEADS, SPLITS, HEAD_DIM), float("nan"), device=DEVICE)
lses = torch.full((SEQS, HEADS, SPLITS), float("nan"), device=DEVICE)
shape = {"ROWS": 16, "TILE": BLOCK, "SPLITS": SPLITS}
versions["5 split in four"] = Launch(
    by_split, (SEQS, KV_HEADS, SPLITS), (parts, lses, q, k, v, tables, lens, SCALE), SIZES | shape
)
result = torch.full_like(q, float("nan"))
sizes = {"HEADS": HEADS, "HEAD_DIM": HEAD_DIM, "D": 32, "SPLITS": SPLITS}
versions["5 split in four"].run()
merge[(SEQS, HEADS)](result, parts, lses, **sizes)
print(SEQS * KV_HEADS * SPLITS, "programs; equals the oracle:", close(result.cpu().numpy()))

# %% [markdown]
# Sequence B has 18 tokens, two tiles of 16. Its splits 2 and 3 have nothing to do.
#
# > **Predict.** What is in their `lse`? What would a plain average of the four parts give for B?

# %%
averaged = parts.mean(dim=2).cpu().numpy()
print("lse of B, head 0, by split:", [round(x, 2) for x in lses[1, 0].tolist()])
print("average of the parts equals the oracle, for A, B, C:",
      [bool(np.allclose(a, e, rtol=1e-4, atol=1e-5)) for a, e in zip(averaged, exact, strict=True)])  # fmt: skip

# %% [markdown]
# −∞, a weight of 0. An average counts empty parts, and treats two tokens like sixteen. Parts count by exp(lse), and the rule
# is associative: parts may be merged in any order, and what was merged can be merged again.
#
# Into how many parts? The library's rule: as many as give every multiprocessor four programs, but none of fewer than 256
# tokens, because a merge costs something, too.

# %%
if HAS_TRITON:
    from paged_ref.attention.triton_paged import choose_splits

    for requests, tokens in ((1, 100_000), (1, 2_000), (8, 4_000), (64, 4_000)):
        splits = choose_splits(requests * 8, tokens, num_multiprocessors=132)
        print(f"{requests:3} x {tokens:7,} tokens, 8 KV heads: {requests * 8:3} programs unsplit; {splits:2} splits, "
              f"{requests * 8 * splits:3} programs")  # fmt: skip
else:
    print(NEEDS_TRITON)

# %% [markdown]
# ## 8 What each version loads, and who reads which block
#
# Decode attention does little with each number that it reads (section 11), so its time is the time of its bytes, and of
# the waits between them.
#
# > **Predict.** Order the five versions by the bytes of K and V that they load, and by the rounds of their longest program.
# > Which change paid in which?

# %%
from coursekit.views.kernel import load_bars

seen["5 split in four"] = accesses([versions["5 split in four"]])
loads = {name: count(found, number_bytes=4) for name, found in seen.items()}
load_bars(loads, fewest).show()
for name, one in loads.items():
    print(f"{name:20} {one.cache:7,} bytes of K and V, {one.entries:4} table entries, {one.steps:3} rounds")

# %% [markdown]
# Sharing the keys among a group's query heads is what saves bytes, and it saves exactly the group's size. Larger tiles and
# splits save waiting. In print, the same change took a kernel with 64 query and 8 KV heads on an A100 from 68.6 to
# 27.4 µs.
#
# Versions 3 to 5 load an entry for each *token*, where version 2 loads one for each block. The neighbours ask for the same
# address in the same instruction, so the memory is asked once.
#
# Now who reads what. A row is a program, a column a physical block.
#
# > **Predict.** *A block is a CUDA block*, some say: one block of the cache, one group of threads. What would the picture
# > look like then?

# %%
from coursekit.views.explore import explore
from coursekit.views.kernel import access_map, tokens_read

used = [table[:n].tolist() for table, n in zip(batch.tables, batch.used, strict=True)]
BY_HEAD, BY_KV_HEAD = "sequence, head", "sequence, KV head"
AXES = {"1": BY_HEAD, "2": BY_HEAD, "3": BY_KV_HEAD, "4": BY_KV_HEAD, "5": f"{BY_KV_HEAD}, split"}


def draw_map(version):
    reads = tokens_read(seen[version], len(batch.keys), BLOCK * KV_HEADS * HEAD_DIM, HEAD_DIM)
    return access_map(f"Version {version}", reads, used, AXES[version[0]])


draw_map("2 block by block").show()

# %% [markdown]
# And with a tile of query heads. Look at version 5, too, if a kernel is running: where are B's empty splits?

# %%
explore(
    draw_map,
    "a choice among the five versions",
    start={"version": "3 a group of heads"},
    version=list(versions),
)

# %%
for size in (8, 16, 32):
    num_blocks = sum(-(-n // size) for n in (850, 120, 33, 4000))
    print(f"blocks of {size:2}: {num_blocks:3} KV blocks; 4 sequences, 8 KV heads, no splits: {4 * 8} programs, "
          f"the longest walks through {-(-4000 // size)} blocks")  # fmt: skip

# %% [markdown]
# One number in each row and in each column, if it were so. It is not: a program (which on an NVIDIA GPU runs as one CUDA block, or
# "thread block") walks through many KV blocks, and a KV block is read by a program for each KV head. The block size
# changes the number of KV blocks and leaves the grid alone. The unused blocks hold NaN, and nobody reads them.
#
# ## 9 The library's kernel
#
# `decode_kernel` in `paged_ref` is version 5 with what a server needs: any strides, soft caps (a smooth bound on the scores),
# sliding windows, batches in which some sequences prefill. Its heart, `attend_tokens`, is shared with the prefill kernel:
# there the rows of the tile are several query *tokens* times the heads of the group, and a causal mask says who sees what.

# %%
from coursekit.kernels.worker import call, library_reads
from coursekit.views.source_code import show_source

if HAS_TRITON:
    from paged_ref.attention import triton_kernels

    show_source(triton_kernels.attend_tokens)
else:
    print(NEEDS_TRITON)

# %% [markdown]
# The same batch through the library, with its loads counted. (On a GPU the counting goes to another process, where
# Triton interprets.)

# %%
from paged_ref import paged_attention

if HAS_TRITON:
    ours = paged_attention(q, k, v, tables, lens, backend="triton").cpu().numpy()
    num_bytes = call(library_reads, batch.query, batch.keys, batch.values, batch.tables, batch.lens)
    print("the library equals the oracle:", close(ours))
    print(f"it loads {num_bytes:,} bytes of K and V, {num_bytes / fewest:.2f} times the least possible")
else:
    print(NEEDS_TRITON)

# %% [markdown]
# ## 10 Registers, shared memory, spills: what the compiler says
#
# Triton spreads a program over 128 **threads**, if not told otherwise. A **register** holds one number of one thread. A
# thread has at most 255, and a multiprocessor 65,536 for all its threads: a kernel that uses many can have few programs
# at work at once, and if it needs more than there are, the compiler **spills** them to memory, which a kernel that waits
# for memory cannot afford. **Shared memory** is where tiles lie while they are used. Triton compiles for a GPU that is
# not there, so all of this can be read here. Below: an H100 (sm_90), at the sizes of Llama 3.1 8B in fp16, blocks of 16.
#
# > **Predict.** Which version needs the most registers? And what does the *table* cost: how many registers does version 4
# > save if it takes the blocks in order?

# %%
from coursekit.kernels.worker import resources

llama = {"HEADS": 32, "KV_HEADS": 8, "HEAD_DIM": 128, "D": 128, "MAX_BLOCKS": 256}
plain = prepare(by_group, (SEQS, KV_HEADS), ROWS=16, TILE=4 * BLOCK, PAGED=False)
if HAS_TRITON:
    compiled = {row.kernel: row for row in resources(versions | {"4 without a table": plain}, **llama)}
    print("version               registers   shared memory   spills   16-byte loads")
    for name, row in compiled.items():
        print(f"{name:20} {row.registers:10} {row.shared_bytes:15,} {row.spills:8} {row.wide_loads:15}")
else:
    print(NEEDS_TRITON)

# %% [markdown]
# So *register pressure* is real, and it comes from the tiles: version 4 holds four times as many keys as version 3. The
# table's share is the difference between the two lines that are called 4. Nothing spills. (A wide load fetches 16
# bytes for each thread; the more numbers of a row lie side by side, the fewer loads are needed. Version 1 has none: a row
# of 128 numbers is one for each of its 128 threads.)
#
# The library's kernels, as recorded for three devices, at the sizes of Llama 3.1 8B:

# %%
import json
from pathlib import Path

import coursekit

recorded = json.loads((Path(coursekit.ROOT) / "bench/results/kernel_resources.json").read_text())
rows = [row for row in recorded["kernels"] if row["shape"] == "Llama 3.1 8B fp16"]
kernels = ["decode_plain", "decode", "decode, split", "merge", "prefill"]
print("registers a thread (spilled)  ", "".join(f"{name:>15}" for name in kernels))
for target, device in (("sm_80", "A100"), ("sm_90", "H100"), ("gfx942", "MI300X")):
    of = {row["kernel"]: f"{row['registers']} ({row['spills']})" for row in rows if row["target"] == target}
    print(f"{device:8} {target:21} ", "".join(f"{of[name]:>15}" for name in kernels))

# %% [markdown]
# ## 11 The roofline
#
# A kernel is limited by the slower of two things: its operations, and its bytes. Which, depends on its **intensity**,
# operations for each byte read. In decode, each key number takes part in one multiplication and one addition for
# each query head of its group, and each value number, too. In bf16 a number has two bytes. So the intensity is the group's
# size, whatever the length of the context. In prefill every key serves many query tokens.
#
# Drawn against the intensity, the two limits are a **roofline**: a slope, where the bytes limit, and a flat top, where
# the operations do. They meet at the **ridge**.
#
# > **Predict.** An H100 reads 3,350 GB/s and computes 989 TFLOP/s in bf16 (published). A group has 4 heads. What share of
# > its arithmetic can decode attention use at most?

# %%
from coursekit.views.kernel import roofline

PEAK, BANDWIDTH = 989e12, 3350e9
share = min(PEAK, 4 * BANDWIDTH) / PEAK
print(f"ridge: {PEAK / BANDWIDTH:.0f} operations a byte")
print(f"decode with a group of 4 can use {share:.1%} of the arithmetic")
points = {
    "decode, one query head a KV head": (1, None),
    "decode, 4 heads a KV head (published)": (4, 0.88),
    "prefill of 2,048 tokens, 4 heads": (4 * 2048 / 2, None),  # a key serves half of them: causal
}
roofline("H100 SXM, bf16, published limits", PEAK, BANDWIDTH, points).show()

# %% [markdown]
# The published point is FlashInfer's decode over blocks of 16, 32 sequences of 8,192 tokens, head size 128, fp16: it
# reaches 88 % of what the memory allows, where plain streaming reads reach 93 %: there is little left to gain. More
# arithmetic would hardly slow it down, more *bytes* would.
#
# And this machine? Its limits are measured now, and so is our decode attention on it (SmolLM2's shape, 16 sequences of
# 600 tokens, float32 on a CPU).
#
# > **Predict.** Is a CPU's ridge to the left or to the right of the GPU's?

# %% tags=["nbval-ignore-output"]
import time

from bench.attention import Shape, time_backends

device = torch.device(DEVICE)
BACKEND = "triton" if DEVICE == "cuda" else "numba"
dtype = "bfloat16" if DEVICE == "cuda" else "float32"


def seconds_of(call, repeats=5):
    """The best of several runs."""
    times = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        call()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return min(times[1:])


many = 10 if DEVICE == "cuda" else 1
buffer = torch.ones(many * 2**25, device=device)  # far beyond any cache
bandwidth = many * buffer.nbytes / seconds_of(lambda: [buffer.sum() for _ in range(many)])
n = 8192 if DEVICE == "cuda" else 1024
a = torch.randn(n, n, dtype=getattr(torch, dtype), device=device)
peak = 2 * n**3 / seconds_of(lambda: a @ a)


def decode_rows(batch_size, block_size, repeats=25):
    """Decode attention of SmolLM2's shape here: through the table, in one block, and contiguous."""
    shape = Shape("SmolLM2", batch_size, 600, 9, 3, 64, dtype, block_size)
    return {row.backend: row for row in time_backends(shape, [BACKEND], device, bandwidth, repeats)}


here = decode_rows(16, 16)
intensity = 3 * 4 / (2 * a.element_size())
points = {
    f"decode, 3 heads a KV head, {BACKEND}": (intensity, here[BACKEND].share),
    "the same, contiguous, torch": (intensity, here["contiguous (SDPA)"].share),
}
print(f"reads {bandwidth / 1e9:,.0f} GB/s, computes {peak / 1e9:,.0f} GFLOP/s in {dtype}")
roofline(f"This machine, {dtype}, measured", peak, bandwidth, points, unit="GFLOP/s").show()

# %% [markdown]
# ## 12 What does the table cost?
#
# *Negligible per-token latency impact*, says the usual article. Negligible is a number. Published first: the share of an
# H100's bandwidth that FlashInfer's decode reaches, by block size, against 86 % without a table. (32 sequences of 4,096
# tokens, 32 query and 8 KV heads, head size 128, fp16.)
#
# > **Predict.** By how much does a step of Llama 3.1 8B grow with blocks of 1, and with blocks of 16? Weights are read in a
# > step, too, and they have no table.

# %%
from paged_ref import MODELS

PUBLISHED, CONTIGUOUS = {1: 0.54, 4: 0.76, 8: 0.83, 16: 0.85, 32: 0.86}, 0.86
model = MODELS["llama-3.1-8b"]
weights_ms = model.weight_bytes / BANDWIDTH * 1e3
kv_ms = 32 * 4096 * model.kv_bytes_per_token / BANDWIDTH * 1e3
print(f"weights {weights_ms:.1f} ms; keys and values {kv_ms:.1f} ms at the full bandwidth")
for size, share in PUBLISHED.items():
    step, without = (weights_ms + kv_ms / x for x in (share, CONTIGUOUS))
    print(f"blocks of {size:2}: attention takes {CONTIGUOUS / share - 1:5.1%} longer, "
          f"a step of 32 sequences {step / without - 1:5.1%}")  # fmt: skip

# %% [markdown]
# "Negligible" holds for 16 and more, and not for 1. That is why 16 is common: chapter 2's curve of waste asks for small
# blocks, and this one for large. Some kernels take 32 or 64, to read each block with one hardware copy.
#
# Where does the cost come from? An entry of the table is four bytes for a block's keys and values, so it is not the bytes:

# %%
per_block = model.kv_bytes_per_block(16) // model.num_layers
print(f"an entry: 4 bytes for {per_block:,} bytes of one layer's block, 1 in {per_block // 4:,}")
if HAS_TRITON:
    four, bare = compiled["4 four blocks a tile"], compiled["4 without a table"]
    more = (bare.shared_bytes - four.shared_bytes) / (4 * BLOCK * 128 * 2)
    print(f"registers: {four.registers} with the table, {bare.registers} without; "
          f"spilled: {four.spills} and {bare.spills}")  # fmt: skip
    print(f"tiles of keys or values that are on their way at once: {more:.0f} more without the table")
shares = ", ".join(f"{size} → {share:.0%}" for size, share in PUBLISHED.items())
print(f"share of the bandwidth, published: {shares}; contiguous {CONTIGUOUS:.0%}")

# %% [markdown]
# It is a *dependent* load: no key can be asked for before its entry has arrived, so the compiler keeps one tile of K and
# one of V fewer on their way. It is some address arithmetic, and registers for it. And it is shorter pieces of
# memory. Now measured here, against the same work in one piece.
#
# > **Predict.** Is the curve of this machine steeper or flatter than the H100's? A CPU fetches the next lines of memory in
# > advance, as long as one goes straight on.

# %% tags=["nbval-ignore-output"]
from coursekit.views.kernel import slowdown

# Three rounds, and the best of each: other programs disturb a measurement.
rounds = [{size: decode_rows(16, size) for size in (1, 4, 8, 16, 32)} for _ in range(3)]
in_one = min(rows[f"{BACKEND}, one block"].milliseconds for round in rounds for rows in round.values())
paged = {size: min(round[size][BACKEND].milliseconds for round in rounds) for size in rounds[0]}
for size, ms in paged.items():
    told = f"{1e3 * ms / 16:6.1f} µs for each of 16 tokens, {ms / in_one:.2f} times"
    print(f"blocks of {size:2}: {ms:6.3f} ms a layer, {told}")
print(f"in one piece: {in_one:6.3f} ms a layer")
curves = {
    "H100, FlashInfer, 32 × 4,096 (published)": {size: CONTIGUOUS / x for size, x in PUBLISHED.items()},
    f"this machine, {BACKEND}, 16 × 600": {size: ms / in_one for size, ms in paged.items()},
}
slowdown(curves, "Decode attention through a table").show()

# %% [markdown]
# What separates blocks costs more on a CPU. It asks for memory ahead along a straight line, and each block's end breaks the
# line; a GPU has other programs to run in the meantime.
#
# ## 13 What paging gains, and what it does not
#
# *Attention itself gets faster.* It gets slower, as you have just seen. The paper measured its first kernel 20 to 26 %
# slower than FasterTransformer's. Then why is the server faster?
#
# > **Predict.** 8 × H100, Llama 3.1 70B, requests of 850 tokens, as many as fit: with reservations of 8,192, and with
# > blocks, where nine times as many fit (chapter 1). Let paged attention read keys and values 26 % slower. Which makes
# > more tokens a second, and by how much?

# %%
from paged_ref.sizing import contiguous_capacity, kv_budget, paged_capacity

big, all_eight = MODELS["llama-3.1-70b"], 8 * BANDWIDTH
budget = kv_budget(8 * 80e9, big.weight_bytes)
few, many_fit = contiguous_capacity(budget, big, 8192), paged_capacity(budget, big, 850)
servers, rates = (("contiguous", few, 1.0), ("paged", few, 1.26), ("paged", many_fit, 1.26)), {}
for name, requests, slower in servers:
    weights, kv = big.weight_bytes / all_eight, slower * requests * 850 * big.kv_bytes_per_token / all_eight
    rates[name, requests] = requests / (weights + kv)
    print(f"{name:10} {requests:5} at once: weights {1e3 * weights:.1f} ms, keys and values {1e3 * kv:4.1f} ms a step, "
          f"{rates[name, requests]:6,.0f} tokens/s")  # fmt: skip
print(f"same batch: {rates['paged', few] / rates['contiguous', few]:.2f} times; "
      f"the batch that fits: {rates['paged', many_fit] / rates['contiguous', few]:.1f} times")  # fmt: skip

# %% [markdown]
# At the same batch paging loses. It wins by the batch, because the weights are read once for all. (This counts bytes
# alone, at full bandwidth: an upper bound, and the arithmetic of such a batch sets another.)
#
# *Paging gives coalesced access*, says the usual article. **Coalesced** means: the addresses that neighbouring threads ask
# for fall into the same pieces of memory, so that no fetched byte is wasted. GPU memory comes in sectors of 32 bytes.
#
# > **Predict.** For version 4's loads of K: what share of the fetched sectors is used, through the table, and with the
# > blocks in order?

# %%
in_order = make_batch([75, 18, 32], num_blocks=3 * SIZES["MAX_BLOCKS"])
in_order.tables = np.arange(3 * SIZES["MAX_BLOCKS"], dtype=np.int32).reshape(3, -1)


def sectors(launch):
    """Bytes that the loads of K ask for, and bytes of the sectors that have to be fetched for them."""
    asked = fetched = 0
    for load in accesses([launch]):
        if load.name == "k_ptr":
            asked += 4 * len(load.offsets)
            fetched += 32 * len(np.unique(4 * load.offsets // 32))
    return asked, fetched


arrays = (in_order.query, in_order.query, in_order.keys, in_order.values, in_order.tables, in_order.lens)
straight = Launch(by_group, (SEQS, KV_HEADS), (*map(torch.from_numpy, arrays), SCALE), plain.constants)
both = {"scattered blocks": versions["4 four blocks a tile"], "in order, no table": straight}
for name, launch in both.items():
    asked, fetched = sectors(launch)
    print(f"{name:20} asks for {asked:,} bytes, fetches {fetched:,}: {asked / fetched:.0%} used")
print(f"H100, published: contiguous {CONTIGUOUS:.0%} of the bandwidth, blocks of 16 {PUBLISHED[16]:.0%}, "
      f"of 1 {PUBLISHED[1]:.0%}: never more")  # fmt: skip

# %% [markdown]
# The same. A head's row lies in one piece in both, and a tile of rows is a tile of rows wherever its blocks are.
# Contiguous memory is never *worse*; at best, paging equals it. What paging gains is the batch.
#
# ### Why the batch is the remedy
#
# A step of decode launches some ten kernels in each layer, and each launch takes the host a few microseconds. It reads
# all weights. Then it reads each sequence's keys and values. Only the last of the three grows with the batch. (5 µs a
# launch is our assumption, the rest are published sizes and limits; contexts of 2,000 tokens.)
#
# > **Predict.** Llama 3.1 8B on an H100. Of the time of a step with one request, what share has to do with *that request*
# > at all?

# %%
launches_ms = model.num_layers * 10 * 5e-3
per_request_ms = 2000 * model.kv_bytes_per_token / BANDWIDTH * 1e3
print("batch   launches   weights   keys and values    step   tokens/s   ms of a step for each request")
for size in (1, 8, 32, 128):
    step = launches_ms + weights_ms + size * per_request_ms
    print(f"{size:5} {launches_ms:7.1f} ms {weights_ms:6.1f} ms {size * per_request_ms:14.1f} ms {step:6.1f} ms "
          f"{1e3 * size / step:8,.0f} {step / size:12.2f}")  # fmt: skip
alone = launches_ms + weights_ms + per_request_ms
print(f"of a step with one request, its own keys and values take {per_request_ms / alone:.1%}")

# %% [markdown]
# Launches and the latency of memory are paid once for all requests of the batch, and so are the weights. (CUDA graphs,
# which replay a recorded row of launches, take most of their cost away; they do not take away the weights.) Measured
# here, per token, for the two kinds of work: a product with a weight matrix of SmolLM2, and attention to 600 tokens.

# %% tags=["nbval-ignore-output"]
tiny = torch.zeros(1, device=device)
overhead = seconds_of(lambda: [tiny.add_(1) for _ in range(200)]) / 200
print(f"the smallest call, one addition: {1e6 * overhead:.1f} µs")
matrix = torch.randn(576, 1536, dtype=getattr(torch, dtype), device=device)
print("batch   product with weights, µs a token   attention, µs a token")
for size in (1, 4, 16, 64):
    x = torch.randn(size, 576, dtype=getattr(torch, dtype), device=device)
    product = seconds_of(lambda x=x: x @ matrix, repeats=20)
    attention = decode_rows(size, 16)[BACKEND].milliseconds
    print(f"{size:5} {1e6 * product / size:32.1f} {1e3 * attention / size:23.1f}")

# %% [markdown]
# The first falls with the batch, the second does not: weights are shared, keys and values are not. So more memory for the
# cache allows a larger batch and more tokens a second, until the cache itself is what one waits for.
#
# > **Predict.** A device with more memory holds more blocks. All of them full: how long does a step take that reads every
# > one of them once?

# %%
# Published: GB of memory, GB/s.
DEVICES = {"A100 80 GB": (80, 2039), "H100 80 GB": (80, 3350), "H200 141 GB": (141, 4800)}
print("Llama 3.1 8B      blocks of 16   tokens held   a step that reads all of them")
for name, (gigabytes, gb_per_s) in DEVICES.items():
    budget = 0.9 * gigabytes * 1e9 - model.weight_bytes
    num_blocks = int(budget // model.kv_bytes_per_block(16))
    print(f"{name:15} {num_blocks:14,} {16 * num_blocks:13,} {0.9 * gigabytes / gb_per_s * 1e3:24.1f} ms")

# %% [markdown]
# Two limits, then: **capacity** says how many tokens there can be, **bandwidth** how fast a full cache can be read. A
# device whose capacity grows faster than its bandwidth serves more users at once, and each of them more slowly.
#
# ## 14 What must hold, and what breaks if it does not
#
# 1. An unused slot is never *used*: masked in the load, not only in the weight. (Section 4 broke it.)
# 2. A block id is 64 bits wide before it is multiplied.
# 3. What pads a tile to a power of two is masked in every load and store.
# 4. A block id that a table names exists: nothing in a kernel looks. `paged_attention` checks before it launches.
#
# ### Broken: a 32-bit offset
#
# An id from a table is an int32, and int32 × int32 is an int32. It wraps around beyond 2³¹ − 1, silently, to a negative
# offset: somebody else's memory.
#
# > **Predict.** A layer of Llama 3.1 8B, blocks of 16: 8 KV heads × 128 numbers × 16 tokens = 16,384 numbers a block. From
# > which block on does the product not fit?


# %%
@triton.jit
def offset_of(out_ptr, block_ptr, NUMBERS: tl.constexpr):
    block = tl.load(block_ptr + tl.program_id(0))
    tl.store(out_ptr + 2 * tl.program_id(0), block * NUMBERS)
    tl.store(out_ptr + 2 * tl.program_id(0) + 1, block.to(tl.int64) * NUMBERS)


blocks = torch.tensor([131_071, 131_072, 200_000], dtype=torch.int32, device=DEVICE)
offsets = torch.zeros(3, 2, dtype=torch.int64, device=DEVICE)
offset_of[(3,)](offsets, blocks, NUMBERS=16 * 8 * 128)
for block, (narrow, wide) in zip(blocks.tolist(), offsets.tolist(), strict=True):
    told = "the same" if narrow == wide else "wrong"
    print(f"block {block:7,}: 32 bits {narrow:14,}   64 bits {wide:13,}   {told}")
print(f"that is a pool of {131_072 * 16_384 * 2 / 1e9:.1f} GB for the keys of one layer, "
      f"or {131_072 // model.num_layers:,} blocks if all layers lie in one array, block by block")  # fmt: skip

# %% [markdown]
# No test with a small pool finds it, and a test with a large pool needs gigabytes. The course's exercise 5.3 does it
# with a pointer that is moved back by billions of numbers: the offsets are large and the memory small.
#
# ### Broken: the padded head
#
# > **Predict.** A head of 24 numbers is read as a tile of 32, without a mask. What are the 8 others?


# %%
@triton.jit
def one_row(out_ptr, k_ptr, D: tl.constexpr):
    d = tl.arange(0, D)
    tl.store(out_ptr + d, tl.load(k_ptr + d))


row = torch.zeros(32, device=DEVICE)
first_block = int(batch.tables[0, 0])
one_row[(1,)](row, k[first_block], D=32)
neighbour = batch.keys[first_block, 0, 1, :8]
same = bool(np.array_equal(row[24:].cpu().numpy(), neighbour))
print("the 8 numbers behind KV head 0 are KV head 1's:", same)
padded = {dim: 1 << (dim - 1).bit_length() for dim in (24, 64, 80, 96, 128)}
print("idle lanes:", ", ".join(f"{dim} → {tile}: {1 - dim / tile:.0%}" for dim, tile in padded.items()))

# %% [markdown]
# The neighbour's. With zeros in the padding of q they would add 0 to the score, unless one of them is a NaN; in the *store*
# they would overwrite the next head's result. Masked lanes read nothing: a head of 80 costs idle lanes, and no bytes.
#
# ### Broken: bf16 in the interpreter
#
# The interpreter keeps a bfloat16 as the 16-bit integer that stores it. Loads, stores and conversions know that. `tl.dot`
# does not.
#
# > **Predict.** The product of two tiles of ones, 16 × 16, is 16 everywhere. What does the interpreter say for bf16? (1.0 is
# > stored as 0x3F80.)


# %%
@triton.jit
def product(out_ptr, a_ptr, b_ptr, UPCAST: tl.constexpr):
    i = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    a = tl.load(a_ptr + i)
    b = tl.load(b_ptr + i)
    if UPCAST:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    tl.store(out_ptr + i, tl.dot(a, b, input_precision="ieee"))


def product_of_ones(upcast):
    """The first element of the product of two tiles of ones in bfloat16."""
    ones = torch.ones(16, 16, dtype=torch.bfloat16, device=DEVICE)
    out = torch.zeros(16, 16, device=DEVICE)
    product[(1,)](out, ones, ones, UPCAST=upcast)
    return out[0, 0].item()


if HAS_TRITON:
    print("converted to float32 before the product:", product_of_ones(upcast=True))
else:
    print(NEEDS_TRITON)

# %% tags=["nbval-ignore-output"]
if HAS_TRITON:
    print(
        f"bf16 as it is, on {where}: {product_of_ones(upcast=False):,.0f}; 16 × 0x3F80² = {16 * 0x3F80**2:,}"
    )

# %% [markdown]
# It multiplies the integers. On a GPU the answer is 16. The library converts tiles to float32 first when it is
# interpreted (`UPCAST` in section 9), and tests bf16 otherwise only where kernels are compiled.
#
# ### Broken: an id that no block has
#
# On a GPU a wrong id reads foreign memory or ends the process; in the interpreter too. So arguments are looked at first, and
# the message says where the fault is:

# %% tags=["raises-exception"]
wrong = batch.tables.copy()
wrong[1, 0] = 4711
paged_attention(batch.query, batch.keys, batch.values, wrong, batch.lens)

# %% [markdown]
# ## 15 What you have now
#
# Five versions of one kernel. The grid took the place of the loops; the table is one load and one multiplication in front of
# each block; masks keep out what does not exist; a tile of query heads reads each key once; a split fills the device and a
# merge by exp(lse) puts the parts together. Decode attention waits for memory, so bytes are its time. Paging makes
# it a little slower and the batch a lot larger.
#
# Now write it yourself, with checks that name the mistake: [exercises of chapter
# 5](../exercises/05_triton_kernel.ipynb).
#
# Three interview questions. Answer aloud, then look for the cell that shows it.
#
# 1. Scores of the unused slots are −∞, their weights 0. Why must the load of V be masked all the same?
# 2. One user with a context of 100,000 tokens: why does a decode kernel without splits leave most of the GPU idle, and
#    what does a split have to hand out so that a merge is exact?
# 3. "PagedAttention makes attention faster, by coalesced access." Correct both halves, with numbers.
#
# Next: chapter [6](06_scheduling.ipynb) decides which sequences are in the batch at all.
