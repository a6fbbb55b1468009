# %% [markdown]
# # 3 · Attention through a block table, in NumPy
#
# **You will be able to** write keys and values by slot, gather a sequence by its table, keep the tail of the last
# block out, map query heads to KV heads, rewrite softmax so that it runs block by block, and tell a test that can
# fail from one that cannot.
#
# 75 minutes to read and run · you need: slots and block tables ([chapter 2](02_block_table.ipynb)), NumPy · GPU:
# not needed
#
# 1. [Attention on one page](#1-attention-on-one-page)
# 2. [Query heads share keys](#2-query-heads-share-keys)
# 3. [Write by slot](#3-write-by-slot)
# 4. [Which bytes are they?](#4-which-bytes-are-they)
# 5. [The kernel had to change](#5-the-kernel-had-to-change)
# 6. [The tail, and a NaN times zero](#6-the-tail-and-a-nan-times-zero)
# 7. [A ragged batch](#7-a-ragged-batch)
# 8. [Softmax, block by block](#8-softmax-block-by-block)
# 9. [The kernel in one loop](#9-the-kernel-in-one-loop)
# 10. [A test that can fail](#10-a-test-that-can-fail)
# 11. [The same from the library](#11-the-same-from-the-library)
# 12. [Several query tokens at once](#12-several-query-tokens-at-once)
# 13. [Does attention get faster?](#13-does-attention-get-faster)
# 14. [What must hold, and what breaks if it does not](#14-what-must-hold-and-what-breaks-if-it-does-not)
# 15. [What you have now](#15-what-you-have-now)

# %% [markdown]
# ## 1 Attention on one page
#
# A token's **query** asks, the **keys** of all tokens up to it answer. Each key's dot product with the query is a
# **score**; softmax makes weights of the scores, which add up to 1; the output is the weighted mean of the
# **values**. This is one head, and it is all the mathematics of this chapter:

# %%
import numpy as np


def softmax(scores):
    powers = np.exp(scores - scores.max())  # the largest becomes exp(0) = 1: nothing can overflow
    return powers / powers.sum()


def attend(query, keys, values):
    """One head: query [d], keys and values [n, d] -> [d]."""
    return softmax(keys @ query / query.size**0.5) @ values


rng = np.random.default_rng(3)
query = rng.normal(size=16)
keys, values = rng.normal(size=(2, 5, 16))
print("weights:", softmax(keys @ query / 4).round(2))
print("output: ", attend(query, keys, values)[:4].round(2), "and so on, 16 numbers")

# %% [markdown]
# When a model generates, it computes one new token a step. The keys and values of the tokens before it are the same
# as in the step before, so they are kept: that is the cache. Their *queries* are of no use any more, so nobody
# keeps those.
#
# > **Predict.** Two changes. (a) All five keys are made equal. What is the output? (b) The five tokens are put in
# > another order, each key with its value. What happens to the output?

# %%
same_keys = np.tile(keys[:1], (5, 1))
is_mean = np.allclose(attend(query, same_keys, values), values.mean(axis=0))
print("(a) equal keys give the plain mean of the values:", is_mean)
order = [3, 0, 4, 2, 1]
is_same = np.allclose(attend(query, keys[order], values[order]), attend(query, keys, values))
print("(b) another order gives the same output:         ", is_same)

# %% [markdown]
# (b) deserves a second look. A query that sees all its keys does not care where they lie or in which order they
# come. (The model knows positions because they were worked into the keys before they were stored.) That is what
# makes scattered blocks possible at all, and, as section 10 shows, what lets some wrong kernels pass for right.
#
# ## 2 Query heads share keys
#
# *Every query head has its own K and V*, some believe. In early models they had. Newer ones have fewer **KV heads**
# than query heads, and a **group** of neighbouring query heads reads the same one (grouped-query attention, GQA;
# with a single KV head MQA; with as many as query heads MHA).
#
# > **Predict.** Our small model has 9 query heads and 3 KV heads. How many bytes does a token leave in the cache,
# > as a share of what it would leave if the sentence in italics were true?

# %%
import dataclasses

from paged_ref import MODELS

model = MODELS["smollm2-135m"]
own = dataclasses.replace(model, num_kv_heads=model.num_heads)
for name, shape in (("as it is:", model), ("a KV head for each query head:", own)):
    kv_bytes = shape.kv_bytes_per_token
    print(
        f"{name:31} {shape.num_heads} query heads, {shape.num_kv_heads} KV heads, {kv_bytes:,} bytes a token"
    )
print(f"share: {model.kv_bytes_per_token / own.kv_bytes_per_token:.3f}")

# %% [markdown]
# A third, and not because anything was compressed: the model was trained so. Its cache has no place where a fourth
# key could be. The index of the KV head is one division:
#
#     kv_head = h // (num_heads // num_kv_heads)
#
# `h % num_kv_heads` looks as good. It deals the KV heads out in turn.
#
# > **Predict.** For which of these models do the two formulas agree for all heads: 9 over 3, 4 over 4, 8 over 2, 5
# > over 1?

# %%
for num_heads, num_kv_heads in ((9, 3), (4, 4), (8, 2), (5, 1)):
    heads = np.arange(num_heads)
    neighbours, in_turn = heads // (num_heads // num_kv_heads), heads % num_kv_heads
    agree = f"{(neighbours == in_turn).sum()} of {num_heads} agree"
    print(f"{num_heads} over {num_kv_heads}:  //", neighbours, " %", in_turn, " ", agree)

# %% [markdown]
# With MHA and with MQA they agree everywhere. Whoever tests with 4 over 4 heads, the natural choice for a first
# test, cannot see the mistake.
#
# ## 3 Write by slot
#
# The cache of one layer is two arrays, `[num_blocks, block_size, num_kv_heads, head_dim]`. **A slot is a block and
# an offset in one number**, so one write serves tokens of any number of sequences: row i goes to slot i of a list,
# the **slot mapping**, which the tables of chapter 2 give us.
#
# We take a small pool whose free blocks are shuffled, and fill the new memory with NaN, "not a number". Real memory
# holds leftovers; NaN stands for the worst of them, because it spoils whatever touches it.

# %%
from paged_ref import BlockPool, BlockTable

NUM_BLOCKS, BLOCK_SIZE, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 12, 4, 9, 3, 16
pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE)
pool.allocate(NUM_BLOCKS)
pool.free([7, 2, 9, 4, 11, 0, 5, 1, 10, 3, 8, 6])


def new_cache():
    return np.full((NUM_BLOCKS, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM), np.nan, np.float32)


key_cache, value_cache = new_cache(), new_cache()


def first_write(key, value, key_cache, value_cache, slots):
    """Row i of key and value, [num_tokens, num_kv_heads, head_dim], goes to slot slots[i]."""
    block, offset = slots // BLOCK_SIZE, slots % BLOCK_SIZE
    key_cache[block, offset] = key
    value_cache[block, offset] = value


a, b = BlockTable(pool), BlockTable(pool)
slots = np.array(a.append(14) + b.append(5))
key, value = rng.normal(size=(2, 19, NUM_KV_HEADS, HEAD_DIM)).astype(np.float32)
first_write(key, value, key_cache, value_cache, slots)
print("tables:", a.blocks, b.blocks)
print("slots: ", slots)
written = ~np.isnan(key_cache[..., 0, 0])
print("slots that hold a token:", int(written.sum()), "of", written.size)

# %% [markdown]
# 19 tokens of two sequences, one write. It has a flaw that shows when batches are **padded**: on a GPU a step is
# often rounded up to a fixed number of tokens, and the tokens that are none get slot −1, which means "do not
# write".
#
# > **Predict.** Sequence b gets one token more, and the batch of 4 is filled up with three −1. What does
# > `first_write` do with them? Look at the slots above: whose token is in slot 47, the last one of all?

# %%
before = key_cache[11, 3].copy(), value_cache[11, 3].copy()
step = np.array([*b.append(1), -1, -1, -1])
key, value = rng.normal(size=(2, 4, NUM_KV_HEADS, HEAD_DIM)).astype(np.float32)
first_write(key, value, key_cache, value_cache, step)
print("slots:", step, " b's token 3 is still there:", np.array_equal(key_cache[11, 3], before[0]))

# %% [markdown]
# NumPy takes −1 for the last element, PyTorch too, and b's token 3 is gone: the padding of this step lies in its
# place. The mended version leaves such tokens out, rows and slots together:


# %%
def write_kv(key, value, key_cache, value_cache, slots):
    """Row i goes to slot slots[i], in place; a token with slot -1 goes nowhere."""
    kept = slots >= 0
    block, offset = slots[kept] // BLOCK_SIZE, slots[kept] % BLOCK_SIZE
    key_cache[block, offset] = key[kept]
    value_cache[block, offset] = value[kept]


key_cache[11, 3], value_cache[11, 3] = before  # b's token again
write_kv(key, value, key_cache, value_cache, step)
print("b's token 3 is still there:", np.array_equal(key_cache[11, 3], before[0]))

# %% [markdown]
# One more trap lies in the words *in place*.
#
# > **Predict.** Slot 30 is block 7, offset 2. Which of these four writes reach the cache? The last one has its
# > memory laid out with the heads outside, `[num_blocks, num_kv_heads, block_size, head_dim]`, as some engines do,
# > and is seen through a transpose that puts the axes into our order.

# %%
ones = np.ones((NUM_KV_HEADS, HEAD_DIM), np.float32)
ours = new_cache()
ours[7, 2] = ones
print("an index:                     ", bool((ours[7, 2] == 1).all()))

ours = new_cache()
ours[[7, 2]][0, 2] = ones
print("a list of blocks, then a slot:", bool((ours[7, 2] == 1).all()))

ours = new_cache()
ours.reshape(-1, NUM_KV_HEADS, HEAD_DIM)[30] = ones
print("one long row of slots:        ", bool((ours[7, 2] == 1).all()))

heads_outside = np.full((NUM_BLOCKS, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM), np.nan, np.float32)
ours = heads_outside.transpose(0, 2, 1, 3)
ours.reshape(-1, NUM_KV_HEADS, HEAD_DIM)[30] = ones
print("the same, heads outside:      ", bool((ours[7, 2] == 1).all()))

# %% [markdown]
# A list as an index makes a copy; `reshape` makes one whenever the numbers do not lie in the order asked for. The
# write succeeds, into an array that nobody keeps. No error, and the memory is as it was. A public engine's swap to
# the host once did nothing for this very reason.
#
# ## 4 Which bytes are they?
#
# In C order the last axis lies closest together, so an element's place is the nested sum of its indices:
#
#     ((block * block_size + offset) * num_kv_heads + kv_head) * head_dim + d
#      \_______  slot  ________/
#
# A compiled kernel computes exactly this, by hand, for every load (chapter 5). Try it in your head before the
# picture does it.
#
# > **Predict.** Our cache: blocks of 4, 3 KV heads, 16 numbers of 4 bytes. Token 5 of sequence a is in block 2. At
# > which byte begins the key that query head 4 reads?

# %%
from coursekit.views.explore import explore
from coursekit.views.kv import kv_address


def key_of(token, query_head):
    """The bytes that one query head reads of one token of sequence a."""
    shape = {"num_heads": NUM_HEADS, "num_kv_heads": NUM_KV_HEADS, "head_dim": HEAD_DIM}
    return kv_address(a.blocks, BLOCK_SIZE, token, query_head, itemsize=4, **shape)


explore(
    key_of,
    "sliders for the token and the query head",
    start={"token": 5, "query_head": 4},
    token=range(14),
    query_head=range(NUM_HEADS),
)

# %%
memory = key_cache.tobytes()
at = (9 * NUM_KV_HEADS + 1) * HEAD_DIM * 4
found = np.frombuffer(memory[at : at + HEAD_DIM * 4], np.float32)
print(f"at byte {at} lies the key of token 5, KV head 1:", np.array_equal(found, key_cache[2, 1, 1]))

# %% [markdown]
# 64 bytes side by side, then the next head's. One token's heads lie together, and one block's tokens lie together.
# From block to block there is no rule, only the table.
#
# ## 5 The kernel had to change
#
# An attention function of the usual kind takes the keys as *one* array, in order. Our sequence a has its 14 tokens
# in four blocks. What if we hand the memory to it as it lies?
#
# > **Predict.** `attend` reads the first 14 slots of the cache. Sequence a is in blocks 7, 2, 9 and 4, b in 11 and
# > 0. Which of a's keys does it read, and what is the output?


# %%
def rows(cache):
    """The cache as one long row of slots; one KV head of it."""
    return cache.reshape(-1, NUM_KV_HEADS, HEAD_DIM)[:, 1]


of_a, of_b = a.slots(0, 14), b.slots(0, 6)
dense_keys, dense_values = rows(key_cache)[of_a], rows(value_cache)[of_a]  # a, put together by hand
query = rng.normal(size=HEAD_DIM)
expected = attend(query, dense_keys, dense_values)
print("slots of a among the first 14:", [slot for slot in of_a if slot < 14])
print("slots of b among them:        ", [slot for slot in of_b if slot < 14])

# %%
as_it_lies = attend(query, rows(key_cache)[:14], rows(value_cache)[:14])
through_table = attend(query, rows(key_cache[a.blocks])[:14], rows(value_cache[a.blocks])[:14])
print("the old kernel, on the memory as it lies:", as_it_lies[:3])
print("the same mathematics through the table, equal:", np.allclose(through_table, expected))

# %% [markdown]
# Four of a's tokens, two of b's, and memory that nobody wrote. No reordering of arguments can mend this: **the
# kernel must be given the table, and look every block up.** Attention's mathematics did not change; the way to the
# keys did. That is what people forget who call PagedAttention a memory trick only.
#
# The look-up has a name, **gather**, and takes three steps:
#
# 1. `cache[block_table]` takes the blocks in the table's order: `[blocks, block_size, heads, head_dim]`, a copy;
# 2. `reshape` makes one row for each slot;
# 3. `[:seq_len]` cuts the tail of the last block off.
#
# > **Predict.** 13 tokens, blocks of 4. Which shape has the array after the first step, and how many rows are left at
# > the end? The table's last two entries are −99: what do they do?


# %%
def gather(cache, block_table, seq_len):
    """One sequence's rows in order: [seq_len, num_kv_heads, head_dim]."""
    num_blocks = -(-seq_len // cache.shape[1])  # rounded up; later entries are not ours to read
    blocks = cache[block_table[:num_blocks]]
    return blocks.reshape(-1, *cache.shape[2:])[:seq_len]


table = np.array([*a.blocks, -99, -99])
for n in (4, 13, 14):
    num_blocks = -(-n // BLOCK_SIZE)
    shape = key_cache[table[:num_blocks]].shape
    print(f"{n:2} tokens: {shape} -> {gather(key_cache, table, n).shape}, NaN in it:", end=" ")
    print(bool(np.isnan(gather(key_cache, table, n)).any()))

# %% [markdown]
# The −99 do nothing: `gather` takes no more entries than the tokens need, and step 1 on the whole table would be an
# `IndexError`, or with −1 somebody's block (section 14).
#
# Follow one query over the memory. Its weights change with every block that it reads, because softmax divides by
# the sum over *all* keys. Section 8 turns that nuisance into an algorithm.

# %%
from coursekit.views.kv import walk

scores = dense_keys @ query / 4
so_far = [softmax(scores[: min(end, 14)]).tolist() for end in (4, 8, 12, 16)]


def way_of_query(blocks_read):
    return walk(a.blocks, NUM_BLOCKS, BLOCK_SIZE, scores.tolist(), so_far, blocks_read)


text = "a slider over the blocks that were read"
explore(way_of_query, text, start={"blocks_read": 3}, blocks_read=range(5))

# %% [markdown]
# ## 6 The tail, and a NaN times zero
#
# The last block of a has 4 slots and 2 tokens. `gather` cuts the other two off. A kernel on a GPU works on whole
# tiles of memory and would rather *mask*: compute with all slots, and see to it that the two have no weight. There
# are four ways to try.
#
# > **Predict.** Which of them give the right output? The unused slots hold NaN. (1) let the tail take part · (2)
# > set its scores to 0 · (3) set its scores to −inf · (4) as (3), and also set its values to 0.

# %%
tile_keys, tile_values = rows(key_cache[a.blocks]), rows(value_cache[a.blocks])
exists = np.arange(16) < 14


def four_ways(tile_keys, tile_values):
    scores = tile_keys @ query / 4
    zeroed = np.where(exists[:, None], tile_values, 0)
    yield "1 tail takes part", softmax(scores) @ tile_values
    yield "2 scores 0", softmax(np.where(exists, scores, 0)) @ tile_values
    yield "3 scores -inf", softmax(np.where(exists, scores, -np.inf)) @ tile_values
    yield "4 and values 0", softmax(np.where(exists, scores, -np.inf)) @ zeroed


with np.errstate(invalid="ignore"):
    for name, output in four_ways(tile_keys, tile_values):
        print(f"{name:18} {output[:2].round(3)!s:16} right: {np.allclose(output, expected)}")

# %% [markdown]
# (3) is the surprise. Its weights are right, exactly 0 for the tail, and then **0 · NaN is NaN**. A weight of zero
# does not leave a value out; only not multiplying does. Engines have shipped this: the NaN of a masked slot went
# all the way to the sampler. In a kernel the remedy is to mask the *load* of V as well as the scores.
#
# With ordinary leftovers instead of NaN:

# %%
leftovers = [np.where(np.isnan(tile), 0.5, tile) for tile in (tile_keys, tile_values)]
for name, output in four_ways(*leftovers):
    print(f"{name:18} {output[:2].round(3)!s:16} right: {np.allclose(output, expected)}")

# %% [markdown]
# Now (3) is right, so a test on tame memory approves of it; and (2) is wrong, because a score of 0 is a score like
# any other: exp(0) = 1 is a good share of the weight. This is why our tests fill unused slots with NaN.
#
# ## 7 A ragged batch
#
# A **batch** of decodes: one query token from each sequence, all lengths different, *ragged*. Tables of different
# lengths travel as one rectangle; what stands in its unused corner has no meaning.


# %%
def gather_attention(query, key_cache, value_cache, block_tables, seq_lens):
    """One query token per sequence, [num_seqs, num_heads, head_dim], after a gather."""
    num_seqs, num_heads = query.shape[:2]
    group = num_heads // key_cache.shape[2]
    output = np.empty_like(query)
    for i in range(num_seqs):
        keys = gather(key_cache, block_tables[i], seq_lens[i])
        values = gather(value_cache, block_tables[i], seq_lens[i])
        for h in range(num_heads):
            output[i, h] = attend(query[i, h], keys[:, h // group], values[:, h // group])
    return output


block_tables = np.full((2, 5), -99, np.int32)
block_tables[0, : len(a.blocks)], block_tables[1, : len(b.blocks)] = a.blocks, b.blocks
seq_lens = np.array([a.num_tokens, b.num_tokens])
queries = rng.normal(size=(2, NUM_HEADS, HEAD_DIM)).astype(np.float32)
print(block_tables, seq_lens)
output = gather_attention(queries, key_cache, value_cache, block_tables, seq_lens)
print("output:", output.shape, " NaN in it:", bool(np.isnan(output).any()))

# %% [markdown]
# Is it right? We compare with an **oracle**: a second program, written from the definition, as slow and as plain as
# possible, in double precision, and *sharing no line with the first*. Two programs that are wrong in the same way
# are rare, unless one was made from the other. The library has one; it is short enough to check by reading.

# %%
from coursekit.views.source_code import show_source
from paged_ref.verify.oracle import oracle

show_source(oracle)


# %%
def agrees(got, expected, tolerance=1e-5):
    """Whether all numbers agree; NaN agrees with nothing."""
    if got.shape != expected.shape:
        return False
    return bool((np.abs(got - expected) <= tolerance * (1 + np.abs(expected))).all())


arguments = (queries, key_cache, value_cache, block_tables, seq_lens)
print("as the oracle says:", agrees(gather_attention(*arguments), oracle(*arguments)))

# %% [markdown]
# ## 8 Softmax, block by block
#
# `gather` copies every key and value of the sequence, in every layer of every step, only to read the copy once. A
# kernel avoids it: it walks over the blocks where they are, one at a time, and keeps sums. A softmax is a quotient
# of two sums,
#
#     output = sum of exp(score) * value  /  sum of exp(score)
#
# and sums can be made in pieces. Two **accumulators** are enough: `acc` for the numerator, `total` for the
# denominator.


# %%
def blocks_of(scores, values):
    """The filled part of one block after the other."""
    for start in range(0, len(scores), BLOCK_SIZE):
        yield scores[start : start + BLOCK_SIZE], values[start : start + BLOCK_SIZE]


def plain(scores, values):
    """Softmax in pieces, without a maximum."""
    total, acc = scores.dtype.type(0), np.zeros(values.shape[1], values.dtype)
    for block_scores, block_values in blocks_of(scores, values):
        weights = np.exp(block_scores)
        total += weights.sum()
        acc += weights @ block_values
    return acc / total


scores = (dense_keys @ query / 4).astype(np.float32)
print("in pieces, equal:", np.allclose(plain(scores, dense_values), expected, atol=1e-5))

# %% [markdown]
# > **Predict.** Kernels compute in float32, whose largest number is about 3.4 · 10³⁸. At which score does exp
# > overflow: about 9, about 90, or about 900? And what comes out of `plain` if all scores are *below* −110?

# %%
for name, shifted in (("scores + 100", scores + 100), ("scores - 110", scores - 110)):
    with np.errstate(over="ignore", invalid="ignore"):
        print(f"{name}: from {shifted.min():.0f} to {shifted.max():.0f}: {plain(shifted, dense_values)[:2]}")
print(f"exp overflows above {np.log(np.finfo(np.float32).max):.1f}")
print("a shift changes no weight:", np.allclose(softmax(scores + 100), softmax(scores), atol=1e-4))

# %% [markdown]
# Both fail, although the answer is the one from before: adding the same number to all scores changes no weight. So
# one subtracts the largest score first; `softmax` above does. But when the first block is in hand, **the largest
# score of all is not known yet**.
#
# One way out is two passes, one for the maximum and one for the sums. It reads every key twice, and reading is what
# decode spends its time on. The other way: subtract the largest score *so far*, `top`, and when a later block
# raises it, repair the sums. What was summed with the old top is too large by exp(new top − old top), **every term
# by the same factor**, so one multiplication mends it.


# %%
def absorb(top, total, acc, scores, values):
    """Take one block into a running softmax; returns the new state and the factor."""
    new_top = max(top, scores.max())
    rescale = np.exp(top - new_top)  # 1 if the top stays; 0 at the start, when top is -inf
    weights = np.exp(scores - new_top)
    return (new_top, total * rescale + weights.sum(), acc * rescale + weights @ values), rescale


state = -np.inf, 0.0, np.zeros(HEAD_DIM)
print("block   largest      top   factor    total   acc / total = attention so far")
for number, (block_scores, block_values) in enumerate(blocks_of(scores, dense_values)):
    state, rescale = absorb(*state, block_scores, block_values)
    top, total, acc = state
    seen = (number + 1) * BLOCK_SIZE
    exact = softmax(scores[:seen]) @ dense_values[:seen]
    line = f"{number:5}   {block_scores.max():7.2f}  {top:7.2f}  {rescale:7.3f}  {total:7.3f}"
    print(line, "  ", np.allclose(acc / total, exact, atol=1e-5))

# %% [markdown]
# The last column is the **invariant**: after every block, acc / total is the attention over what was read so far.
# Nothing is divided before the end, and stopping anywhere would be legal. (Milakov and Gimelshein described this
# "online" softmax in 2018; FlashAttention is built on it, and so is every kernel of chapter 5.)
#
# In the picture the three full blocks, in three orders. Look at the dashed boxes: what the sums were before the top
# rose.
#
# > **Predict.** If the blocks come with falling scores, how often must anything be rescaled?

# %%
from coursekit.views.softmax import SoftmaxStep, accumulators

full = scores[:12]  # three full blocks
d = int(dense_values[:12].mean(axis=0).argmax())  # the number of acc that is drawn
in_order = {
    "as they come": np.arange(12),
    "with rising scores": np.argsort(full),
    "with falling scores": np.argsort(-full),
}


def run(order):
    """The picture of a running softmax over the three blocks in this order."""
    chosen, state, steps = in_order[order], (-np.inf, 0.0, np.zeros(HEAD_DIM)), []
    for block_scores, block_values in blocks_of(full[chosen], dense_values[chosen]):
        state, rescale = absorb(*state, block_scores, block_values)
        top, total, acc = state
        numbers = (float(x) for x in (top, rescale, total, acc[d]))
        steps.append(SoftmaxStep(tuple(block_scores.tolist()), *numbers))
    exact = float(softmax(full) @ dense_values[:12, d])
    return accumulators(steps, exact, f"Blocks {order}")


explore(run, "a choice of the order", start={"order": "with rising scores"}, order=list(in_order))

# %% [markdown]
# Never, in the falling order: the first block already has the top. So what does a version give that *forgets* to
# rescale? `mutate` makes it for us: it takes a function's source, replaces a text in it, and compiles that anew.

# %%
from coursekit.views.mutants import mutate

forgetful = mutate(absorb, ("total * rescale", "total"), ("acc * rescale", "acc"))
exact = softmax(full) @ dense_values[:12]
for name, chosen in in_order.items():
    state = -np.inf, 0.0, np.zeros(HEAD_DIM)
    for block_scores, block_values in blocks_of(full[chosen], dense_values[chosen]):
        state, _ = forgetful(*state, block_scores, block_values)
    print(f"{name:20} without the rescaling, right: {np.allclose(state[2] / state[1], exact, atol=1e-5)}")

# %% [markdown]
# Right, if the largest score is in the first block. A test whose inputs happen to be so finds nothing. Keep that in
# mind.
#
# ## 9 The kernel in one loop
#
# All parts together: a walk through the table, the filled part of each block, the heads' groups, two accumulators.
# It never makes a copy of a sequence, and it keeps its sums in float32, as a GPU's kernel does.


# %%
def paged_decode(query, key_cache, value_cache, block_tables, seq_lens):
    """One query token per sequence, [num_seqs, num_heads, head_dim], block by block."""
    num_heads, head_dim = query.shape[1:]
    block_size, num_kv_heads = key_cache.shape[1:3]
    scale = head_dim**-0.5
    kv_head = np.arange(num_heads) // (num_heads // num_kv_heads)
    output = np.empty_like(query)
    for i, seq_len in enumerate(seq_lens):
        top = np.full(num_heads, -np.inf, np.float32)
        total = np.zeros(num_heads, np.float32)
        acc = np.zeros((num_heads, head_dim), np.float32)
        for logical in range(-(-seq_len // block_size)):
            block = block_tables[i, logical]
            filled = min(block_size, seq_len - logical * block_size)
            keys = key_cache[block, :filled][:, kv_head]  # [filled, num_heads, head_dim]
            values = value_cache[block, :filled][:, kv_head]
            scores = scale * np.einsum("hd,thd->ht", query[i], keys)
            new_top = np.maximum(top, scores.max(axis=1))
            rescale = np.exp(top - new_top)
            weights = np.exp(scores - new_top[:, None])
            total = total * rescale + weights.sum(axis=1)
            acc = acc * rescale[:, None] + np.einsum("ht,thd->hd", weights, values)
            top = new_top
        output[i] = acc / total[:, None]
    return output


print("as the oracle says:", agrees(paged_decode(*arguments), oracle(*arguments)))

# %% [markdown]
# Some twenty lines, and about as many ways to get one of them wrong.
#
# ## 10 A test that can fail
#
# Here is the test that most people write first: one sequence, as many KV heads as query heads, full blocks, and a
# table in order, because those are the simplest arguments that one can make up.


# %%
def easy_inputs(size=1.0, num_blocks=4):
    """Batch 1, 4 over 4 heads, 4 full blocks of 4 tokens, table 0 1 2 3."""
    rng = np.random.default_rng(0)
    query = size * rng.normal(size=(1, 4, 16)).astype(np.float32)
    caches = [size * rng.normal(size=(num_blocks, 4, 4, 16)).astype(np.float32) for _ in range(2)]
    return query, *caches, np.arange(num_blocks)[None], np.array([4 * num_blocks])


easy = easy_inputs()
print("the right kernel passes the easy test:", agrees(paged_decode(*easy), oracle(*easy)))

# %% [markdown]
# It passes. Would a *wrong* kernel fail? There is one way to know: break the kernel on purpose and run the test on
# it. A **mutant** is our own function with one piece of its text replaced. Each below is a slip that is easily
# made.

# %%
MUTANTS = {
    "all zeros": [("output[i] = acc / total[:, None]", "output[i] = 0")],
    "length - 1": [("enumerate(seq_lens)", "enumerate(seq_lens - 1)")],
    "length + 1": [("enumerate(seq_lens)", "enumerate(seq_lens + 1)")],
    "number of blocks rounded down": [("-(-seq_len // block_size)", "seq_len // block_size")],
    "tail not left out": [("min(block_size, seq_len - logical * block_size)", "block_size")],
    "tail masked in the scores only": [
        ("key_cache[block, :filled]", "key_cache[block]"),
        ("value_cache[block, :filled]", "value_cache[block]"),
        ("np.einsum(\"hd,thd->ht\", query[i], keys)", "np.where(np.arange(block_size) < filled, "
         "np.einsum(\"hd,thd->ht\", query[i], keys), -np.inf)"),
    ],
    "table not read": [("block_tables[i, logical]", "logical")],
    "first sequence's table for all": [("block_tables[i, logical]", "block_tables[0, logical]")],
    "blocks in reverse order": [("block_tables[i, logical]", "block_tables[i, -(-seq_len // block_size) - 1 - logical]")],
    "two blocks swapped": [("block_tables[i, logical]", "block_tables[i, logical ^ 1]")],
    "offset dropped": [("key_cache[block, :filled]", "key_cache[block, [0] * filled]")],
    "h % num_kv_heads": [("// (num_heads // num_kv_heads)", "% num_kv_heads")],
    "scale missing": [("scores = scale * ", "scores = ")],
    "scale twice": [("scores = scale * ", "scores = scale * scale * ")],
    "no maximum subtracted": [("np.maximum(top, scores.max(axis=1))", "np.zeros_like(top)")],
    "acc not rescaled": [("acc * rescale[:, None]", "acc")],
    "total not rescaled": [("total * rescale", "total")],
    "K and V swapped": [("keys = key_cache", "keys = value_cache"), ("values = value_cache", "values = key_cache")],
}  # fmt: skip
print(len(MUTANTS), "mutants")

# %% [markdown]
# > **Predict.** How many of the 18 pass the easy test? For three of them you have the reason already: section 1
# > (b), section 2, section 6.


# %%
def notices(inputs, kernel, tolerance=1e-5):
    """Whether a test on these inputs fails for this kernel. A crash is noticed, too."""
    try:
        with np.errstate(all="ignore"):
            return not agrees(kernel(*inputs), oracle(*inputs), tolerance)
    except (IndexError, ValueError):
        return True


broken = {name: mutate(paged_decode, *changes) for name, changes in MUTANTS.items()}
passing = [name for name, kernel in broken.items() if not notices(easy_inputs(), kernel)]
print(f"{len(passing)} of {len(broken)} wrong kernels pass the easy test:")
print("\n".join(f"  {name}" for name in passing))

# %% [markdown]
# Half of them. Not one needs bad luck: with one sequence, the first sequence's table *is* the right one; with full
# blocks there is no tail; with all keys visible the order of full blocks does not matter; and scores of ordinary size
# do not overflow.
#
# So we build inputs on purpose, each ingredient against a kind of mistake:
#
# | ingredient | against |
# |---|---|
# | lengths around block ends, all different (*ragged*) | rounding, tails, one length or one table for all |
# | *shuffled* tables, ids that do not exist in the unused corner | table ignored, wrong order, reads past the end |
# | 9 over 3 heads | `h % num_kv_heads` |
# | NaN in unused slots | anything read that is not ours, also with weight 0 |
# | a *needle*: the last key takes most of a head's weight | the last token lost; needed where there are many tokens |
# | *tagged* values: number 0 of each value is the token's position | rows from elsewhere |
# | scores in the hundreds, for half of the sequences | overflow, sums not rescaled |


# %%
def hard_inputs(seed=0, lengths=(1, 7, 8, 9, 16, 37, 100, 30), block_size=8):
    """Ragged, shuffled, 9 over 3 heads, poisoned, with needles, tags and some large scores."""
    rng = np.random.default_rng(seed)
    needed = [-(-n // block_size) for n in lengths]
    num_blocks = sum(needed) + 3
    ids = rng.permutation(num_blocks).tolist()
    query = rng.normal(size=(len(lengths), 9, 16)).astype(np.float32)
    caches = np.full((2, num_blocks, block_size, 3, 16), np.nan, np.float32)
    block_tables = np.full((len(lengths), max(needed) + 2), 10**6)
    for i, n in enumerate(lengths):
        block_tables[i, : needed[i]] = [ids.pop() for _ in range(needed[i])]
        block, offset = block_tables[i, np.arange(n) // block_size], np.arange(n) % block_size
        query[i] *= 100 if i % 2 else 1
        caches[:, block, offset] = rng.normal(size=(2, n, 3, 16))
        caches[1, block, offset, :, 0] = np.arange(n)[:, None] / 64  # the tag
        asked = query[i, ::3]  # the first query head of each group
        wanted = (np.log(n) + 3) * 4 * (100 if i % 2 else 1)  # the needle's score, before the scale
        caches[0, block[-1], offset[-1]] = asked * wanted / (asked**2).sum(axis=1, keepdims=True)
    return query, *caches, block_tables, np.array(lengths)


TOLERANCE = 1e-3  # scores of hundreds cost float32 some digits
for seed in range(5):
    hard = hard_inputs(seed)
    print(f"seed {seed}: the right kernel passes:", agrees(paged_decode(*hard), oracle(*hard), TOLERANCE))

# %% [markdown]
# And one test more for comparison, of a kind that stands in published suites: inputs within about ±0.001, some
# hundreds of tokens, and a tolerance of 0.0001, "because half precision is inexact".
#
# > **Predict.** Does that test catch more than the easy one, because it has more tokens, or fewer?

# %%
from coursekit.views.mutants import mutant_table

tests = {
    "easy, tiny": (easy_inputs(0.0005, num_blocks=128), 1e-4),
    "easy": (easy_inputs(), 1e-5),
    "hard": (hard_inputs(), TOLERANCE),
}
caught = {name: [notices(x, kernel, t) for x, t in tests.values()] for name, kernel in broken.items()}
mutant_table(caught, list(tests)).show()

# %%
for column, name in enumerate(tests):
    print(f"{name:10} catches {sum(row[column] for row in caught.values()):2} of {len(caught)}")
tiny = oracle(*easy_inputs(0.0005, num_blocks=128))
print(f"tiny: the right output's largest number is {np.abs(tiny).max():.5f}, the tolerance 0.0001")

# %% [markdown]
# The test with tiny numbers approves of a kernel that returns zeros, and of almost all the others: the mean of many
# small numbers is smaller than the tolerance. A tolerance means nothing without the size of what it is compared
# with.
#
# **The needle.** Why make one key stand out? Because in a long sequence every key has a small share:
#
# > **Predict.** 2,000 tokens, and the kernel forgets the last one. By how much does the output change, roughly:
# > 0.5, 0.05 or 0.005? And with a needle?

# %%
long = hard_inputs(1, lengths=(2000,), block_size=16)
long[2][..., 0] = long[2][..., 1]  # no tag: all values of ordinary size
block, offset = long[3][0, 1999 // 16], 1999 % 16
flat = (long[0], long[1].copy(), *long[2:])
flat[1][block, offset] = long[1][block, offset - 1]  # the last key is like the others: no needle
for name, inputs in (("without a needle", flat), ("with a needle", long)):
    error = np.abs(broken["length - 1"](*inputs) - oracle(*inputs)).max()
    noticed = notices(inputs, broken["length - 1"], 1e-2)
    print(f"{name:17} off by {error:.1g}; noticed at tolerance 0.01, half precision's: {noticed}")

# %% [markdown]
# **The tag.** Number 0 of the output is the mean position of what was read, weighted. With a needle it is nearly
# the last position, so it tells *where* a wrong kernel looked:

# %%
inputs = hard_inputs(2, lengths=(100, 37, 64))
inputs[0][1] /= 100  # here all scores are of ordinary size
print("kernel                           mean position read, of 100, 37 and 64 tokens")
for name in ("right", "length - 1", "number of blocks rounded down", "first sequence's table for all"):
    kernel = broken.get(name, paged_decode)
    print(f"{name:30}  ", (64 * kernel(*inputs)[:, 0, 0]).round(1))

# %% [markdown]
# Comparing with an oracle, on inputs that can fail, is a habit that costs a minute for each kernel. The library's
# tests run every backend on a *grid* of such inputs: head sizes, block sizes, heads, lengths, kinds of queries,
# windows, and number formats, so that every pair of values occurs together. Our kernel, on those cases that it is
# meant for:

# %%
from paged_ref.verify import grid

mine = [c for c in grid.cases() if (c.queries, c.extra, c.dtype) == ("decode", "none", "float32")]
print(f"{len(mine)} of the grid's {len(grid.cases())} cases are plain decodes in float32")
for case in mine:
    case_inputs = grid.make_inputs(case)
    got = paged_decode(*case_inputs.arguments(kind=np.ndarray)[:5])
    equal = grid.error(got, case_inputs.expected()) <= case.tolerance
    print(f"{case!s:62} {'equal' if equal else 'WRONG'}")

# %% [markdown]
# ## 11 The same from the library
#
# The library has both versions: with a gather, as in section 7, and block by block, as in section 9.

# %%
from paged_ref.attention.numpy_blocks import attend_blocks
from paged_ref.attention.numpy_gather import gather as library_gather

show_source(library_gather, attend_blocks)

# %%
import paged_ref

same = True
for seed in range(5):
    inputs = hard_inputs(seed)
    ours = paged_decode(*inputs)
    same &= agrees(gather_attention(*inputs), ours, TOLERANCE)
    same &= agrees(paged_ref.paged_attention(*inputs, backend="numpy"), ours, TOLERANCE)
    for i, n in enumerate(inputs[4]):
        by_blocks = attend_blocks(inputs[0][i], *inputs[1:3], inputs[3][i], 0, n, scale=16**-0.5)
        same &= agrees(by_blocks, ours[i], TOLERANCE)
print("ours with a gather, ours by blocks, and both of the library: the same", same)

# %%
written = []
for write in (write_kv, paged_ref.write_kv):
    caches = new_cache(), new_cache()
    write(key, value, *caches, np.array([30, -1, 3, 17]))
    written.append(np.stack(caches))
print("the library writes the same:", np.array_equal(*written, equal_nan=True))

# %% [markdown]
# The library's `write_kv` looks at the slots before it writes. This is a line that one sees when a slot was handed
# out twice:

# %% tags=["raises-exception"]
paged_ref.write_kv(key, value, key_cache, value_cache, np.array([30, 12, 30, -1]))

# %% [markdown]
# **Other words for the same integers.** Some kernels call a block a *page*, and store the used entries of all
# tables one after the other, as a sparse matrix stores its rows (CSR); `seq_lens` are elsewhere `context_lens`, and
# the prefix sums of lengths `cu_seqlens`. Nothing is lost in translation:

# %%
tables = np.array([[7, 2, 9, 4, -99], [11, 0, -99, -99, -99]], np.int32)
indptr, indices, last = paged_ref.to_csr(tables, np.array([14, 6]), BLOCK_SIZE)
print("kv_indptr        ", indptr, "  row i is kv_indices[kv_indptr[i] : kv_indptr[i + 1]]")
print("kv_indices       ", indices)
print("kv_last_page_len ", last, "  tokens in each row's last block")
back, lens = paged_ref.from_csr(indptr, indices, last, BLOCK_SIZE)
print("and back:", back.tolist(), lens.tolist())

# %% [markdown]
# ## 12 Several query tokens at once
#
# A **prefill** computes all tokens of a prompt at once, and a *chunk* of one computes some tokens after others that
# are in the cache. Then a sequence has q query tokens, and each sees the keys up to its own: the **causal** mask.
# All of them have written their keys before anybody reads, so the mask is all that keeps a token from the future.
#
# > **Predict.** 10 tokens are in the cache, the last 3 of them are being computed. How many keys does each of the
# > three see?

# %%
from paged_ref.attention.numpy_gather import attend as attend_many

show_source(attend_many)

# %%
n, q = 10, 3
query_position = np.arange(n - q, n)[:, None]
print((np.arange(n)[None, :] <= query_position).astype(int))
print("keys seen:", (np.arange(n)[None, :] <= query_position).sum(axis=1))

# %% [markdown]
# The offset `n - q` is what gets lost. Is a mask that is one too wide noticed? Change the *last* token's value:
# outputs before it must not move.

# %%
wide_mask = mutate(attend_many, ("key_position <= query_position", "key_position <= query_position + 1"))
q3 = rng.normal(size=(q, NUM_HEADS, HEAD_DIM)).astype(np.float32)
k10, v10 = rng.normal(size=(2, n, NUM_KV_HEADS, HEAD_DIM)).astype(np.float32)
changed = v10.copy()
changed[-1] += 1
for name, kernel in (("right", attend_many), ("one too wide", wide_mask)):
    moved = np.abs(kernel(q3, k10, changed, 0.25) - kernel(q3, k10, v10, 0.25)).max(axis=(1, 2)) > 1e-6
    print(f"{name:13} which of the three outputs moved: {moved}")

# %% [markdown]
# A token that sees the next one: the model would be told what it is to predict. For the *last* token, and so for
# every decode, both masks are the same. A test of decodes alone cannot find this one, so the grid has chunks, too.
#
# ## 13 Does attention get faster?
#
# *With paging, attention gets faster*, one reads. Count what a decode must move for one sequence in one layer.
#
# > **Predict.** Order by bytes moved: keys and values in one piece; paged, with a gather; paged, block by block.

# %%
llama = MODELS["llama-3.1-70b"]
n, size = 2000, 16
kv = 2 * n * llama.num_kv_heads * llama.head_dim * 2
moved = {
    "in one piece": kv,
    "paged, block by block": kv + 4 * -(-n // size),  # the table: four bytes a block
    "paged, with a gather": 3 * kv + 4 * -(-n // size),  # read, written, read again
}
for name, num_bytes in moved.items():
    print(f"{name:22} {num_bytes:11,} bytes   {num_bytes / kv:.4f}")

# %% [markdown]
# Nothing got less. At best paging costs a table's few bytes more, and look-ups in between; the paper measured its
# kernel 20 to 26 % *slower* than the contiguous one of FasterTransformer. **What grows is the batch**: the memory
# that is no longer wasted holds more sequences, and the weights, which every step must read, serve them all.
#
# On this machine, in NumPy (times, so not compared):

# %% tags=["nbval-ignore-output"]
import time


def milliseconds(call, repeat):
    """The fastest of some calls."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times) * 1000


def in_one_piece():
    attend_many(one[0], *together, 0.25)


def with_gather():
    attend_many(one[0], *(gather(cache, one[3][0], 8000) for cache in one[1:3]), 0.25)


one = hard_inputs(4, lengths=(8000,), block_size=16)
together = [gather(cache, one[3][0], 8000) for cache in one[1:3]]
print(f"in one piece          {milliseconds(in_one_piece, 30):6.2f} ms")
print(f"paged, with a gather  {milliseconds(with_gather, 30):6.2f} ms")
print(f"paged, block by block {milliseconds(lambda: paged_decode(*one), 5):6.2f} ms")

# %% [markdown]
# The last one is slow for a reason that has nothing to do with memory: a Python loop over 500 blocks. The other two
# hand all tokens to one call. Compiled, the loop costs little, and there is no copy to pay for: chapter 5 does it.
#
# ## 14 What must hold, and what breaks if it does not
#
# 1. A key and a value are written to slot `table[t // B] * B + t % B` before anybody reads them.
# 2. What is read are the first `seq_len` slots in the table's order, and nothing else is even multiplied.
# 3. acc / total is the attention over what was read so far, after every block.
#
# ### Broken: a −1 in a table
#
# *A −1 in a table is harmless: it stands where nobody reads.* So one may gather the whole rectangle for all
# sequences at once, which is tempting, because it needs no loop, and mask afterwards.
#
# > **Predict.** a has 14 tokens and the row 7, 2, 9, 4, −1; the mask is right. −1 is block 11, the pool's last,
# > which is b's. First b has 4 tokens in it, then 3, and the fourth slot holds a NaN. Is a's output right, both
# > times?


# %%
def rectangle_attention(query, key_cache, value_cache, block_tables, seq_lens):
    """All sequences at once: gather the rectangle, mask the scores."""
    num_seqs, group = len(seq_lens), query.shape[1] // key_cache.shape[2]
    keys, values = (
        cache[block_tables].reshape(num_seqs, -1, *cache.shape[2:]).repeat(group, axis=2)
        for cache in (key_cache, value_cache)
    )
    scores = np.einsum("bhd,bthd->bht", query, keys) / query.shape[2] ** 0.5
    exists = np.arange(keys.shape[1]) < seq_lens[:, None]
    scores = np.where(exists[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    return np.einsum("bht,bthd->bhd", weights / weights.sum(axis=2, keepdims=True), values)


padded = np.array([[7, 2, 9, 4, -1], [11, -1, -1, -1, -1]])
cache_k, cache_v = rng.normal(size=(2, *new_cache().shape)).astype(np.float32)  # no NaN yet
exact = oracle(queries, cache_k, cache_v, padded, np.array([14, 4]))[0]


def is_a_right(a_tokens, b_tokens):
    lens = np.array([a_tokens, b_tokens])
    return agrees(rectangle_attention(queries, cache_k, cache_v, padded, lens)[0], exact)


print("b has 4 tokens:                    a is right:", is_a_right(14, 4))
print("and a's length is a block too long: a is right:", is_a_right(18, 4), "- and no error")
cache_v[11, 3] = np.nan
print("b has 3 tokens:                    a is right:", is_a_right(14, 3))

# %% [markdown]
# Request a breaks when request *b* has an unused slot: whether a is right depends on its neighbour's length. And
# with the length wrong, a reads the neighbour's keys, and no error says so. What must hold is that entries past the
# end are **never looked up**. The library looks at the used part of each table before any kernel runs:

# %% tags=["raises-exception"]
paged_ref.paged_attention(queries, cache_k, cache_v, padded, np.array([18, 3]))

# %% [markdown]
# ### Not broken: freed blocks that are not zeroed
#
# *Freed blocks need zeroing*, for safety, some say. Two predictions.
#
# > **Predict.** (a) The same sequences in memory that was full of NaN, of −10³⁰, and of zeros. How do the outputs
# > differ? (b) The kernel that forgets to leave the tail out, on zeroed memory. Is it right now?

# %%
inputs = hard_inputs(3)
outputs = []
for rest in (np.nan, -1e30, 0.0):
    caches = [np.where(np.isnan(cache), np.float32(rest), cache) for cache in inputs[1:3]]
    filled_up = (inputs[0], *caches, *inputs[3:])
    outputs.append(paged_decode(*filled_up))
    with np.errstate(all="ignore"):
        sloppy = agrees(broken["tail not left out"](*filled_up), oracle(*filled_up), TOLERANCE)
    same = np.array_equal(outputs[0], outputs[-1])
    print(f"rest of the memory {rest:6.0e}:  the right kernel, the same numbers: {same}", end="")
    print(f";  with the tail, right: {sloppy}")

# %% [markdown]
# (a) Not in one bit: what is not read cannot matter. (b) No: a key of zeros has a score of 0, and exp(0) is 1.
# Zeroing costs a write of every block and does not even save the kernel that would need it. A *length* that is
# right does.
#
# ### Broken: the division inside the loop
#
# > **Predict.** `acc` is divided by `total` after every block, "to keep the numbers small", and the sum goes on
# > from there. Is it right for a sequence of one block? Of two?

# %%
early = mutate(
    paged_decode,
    ("top = new_top\n", "top, acc = new_top, acc / total[:, None]\n"),
    ("output[i] = acc / total[:, None]", "output[i] = acc"),
)
inputs = hard_inputs(5, lengths=(8, 16, 24))
inputs[0][1] /= 100
exact = oracle(*inputs)
for i, n in enumerate(inputs[4]):
    print(f"{n:2} tokens, {n // 8} blocks: right: {agrees(early(*inputs)[i], exact[i], TOLERANCE)}")

# %% [markdown]
# With one block it is right, so a short test passes. From the second block on, a mean is added to a sum. Divide
# once, at the end; the numbers stay small because of the top, not because of the division.
#
# ## 15 What you have now
#
# Keys and values written by slot and read by table; a tail that is left out and not multiplied away; query heads
# that find their KV head; a softmax that needs one block at a time; and a set of inputs on which being wrong shows.
#
# Now write all of it yourself, with checks that name the mistake: [exercises of chapter
# 3](../exercises/03_numpy_gather.ipynb).
#
# Three interview questions. Answer aloud, then look for the cell that shows it.
#
# 1. The scores of unused slots are set to −inf before the softmax, so their weights are exactly 0. The output is still
#    NaN. How, and what is the remedy?
# 2. Write the update of the running softmax. What exactly is multiplied when the maximum rises, and for which order of
#    blocks would forgetting it go unnoticed?
# 3. A kernel passes a test with one sequence, 4 over 4 heads, full blocks and the table 0, 1, 2, 3. Name five mistakes that
#    it may still have, and the input that would show each.
#
# Next: [chapter 4](04_sharing.ipynb) lets several tables name the same block: forks, copy-on-write, and prompts that
# are found again by their contents.
