# %% [markdown]
# # 3 · Exercises: attention through a table
#
# You write keys and values into their slots, gather a sequence from its blocks, compute attention of a ragged
# batch, and then take the gather away: one block at a time, with a running softmax. Read the
# [lesson](../notebooks/03_numpy_gather.ipynb) first.
#
# 85 minutes · needs the lesson of chapter 3 · GPU: not needed
#
# Write your answer in the cell of each exercise and run the check below it. The check draws new numbers each
# time. If you are stuck, the hints open one after the other. Helper functions and cells of your own are welcome.
#
# Shapes are the same everywhere: `key_cache` and `value_cache` `[num_blocks, block_size, num_kv_heads,
# head_dim]`, `query` `[num_seqs, num_heads, head_dim]`, `block_tables` `[num_seqs, max_blocks_per_seq]`.
#
# Use Python's standard library and NumPy; PyTorch and the course's own `paged_ref` are refused. Do not change a
# function's arguments, unless the text asks for it or allows it.

# %%
import numpy as np

# %% [raw] exercise="3.1"
# title: Write by slot
# objective: store the keys and values of a step's tokens in their slots, and leave everybody else's alone.
# difficulty: 2
# importance: 5
# minutes: 15
# lines: 6
# predict: |
#   Blocks have 4 slots, the pool has 6 blocks. Three tokens have the slots 9, −1 and 6. Which `[block, offset]`
#   does each go to? And which one would `cache.reshape(24, …)[slots] = rows` write to that nobody asked for?
# predicted: |
#   Slot 9 is [2, 1], slot 6 is [1, 2]. The token with −1 goes nowhere: it is padding. Plain indexing takes −1 for
#   the last slot, 23, which is [5, 3], and overwrites whatever token lies there, perhaps another request's.
# hints:
#   - "A slot is a block and a place in it, packed into one number. `//` and `%` with the block size take them
#     apart, for a whole array at once."
#   - "Make a mask of the tokens that have a slot: `kept = slot_mapping >= 0`. Use it on the slots *and* on the
#     rows, so that they stay together."
#   - "`cache[block, offset] = rows` with two arrays of equal length writes row i to `cache[block[i], offset[i]]`,
#     in place."

# %% [markdown]
# `key` and `value` are `[num_tokens, num_kv_heads, head_dim]`, `slot_mapping` is `[num_tokens]` whole numbers,
# all different but for −1. Write token i's key and value into slot `slot_mapping[i]` of the two caches, **in
# place**. A token with slot −1 is padding and is written nowhere. All other slots stay as they are. Nothing is
# returned.


# %% exercise="3.1"
def write_kv(key, value, key_cache, value_cache, slot_mapping):
    """Write each token's key and value into its slot, in place."""
    ### BEGIN SOLUTION
    block_size = key_cache.shape[1]
    kept = slot_mapping >= 0
    block, offset = slot_mapping[kept] // block_size, slot_mapping[kept] % block_size
    key_cache[block, offset] = key[kept]
    value_cache[block, offset] = value[kept]
    ### END SOLUTION


# %% [raw] exercise="3.2"
# title: Gather a sequence
# objective: bring the rows of a scattered sequence together, in order and without the tail.
# difficulty: 2
# importance: 5
# minutes: 15
# lines: 3
# predict: |
#   Blocks of 4, `block_table = [6, 1, 8, 99]`, 10 tokens, 2 KV heads of 16 numbers. What is the shape of
#   `cache[block_table[:3]]`, and what shape is wanted? What stands in its last two rows?
# predicted: |
#   `[3, 4, 2, 16]`: three blocks of four slots. Wanted is one row a token, `[10, 2, 16]`. As 12 rows, the last
#   two are slots of block 8 that hold no token of this sequence, but whatever was there. The 99 must not be used
#   at all.
# hints:
#   - "How many blocks do `seq_len` tokens use? A quotient, rounded up. Only that many entries of the table
#     count."
#   - "`cache[block_table[:3]]` picks whole blocks, in the order in which they are named: `[3, block_size, …]`."
#   - "`.reshape(-1, *cache.shape[2:])` makes one row of each slot. Cut the rows after `seq_len` off."

# %% [markdown]
# Return the rows of one sequence's tokens 0 to `seq_len` − 1, in order: `[seq_len, num_kv_heads, head_dim]`.
# `cache` is one of the two caches, `block_table` is `[max_blocks]`. Entries past the sequence's last block may
# hold anything, and so may the rest of its last block.


# %% exercise="3.2"
def gather(cache, block_table, seq_len):
    """The rows of one sequence in order: [seq_len, num_kv_heads, head_dim]."""
    ### BEGIN SOLUTION
    num_blocks = -(-seq_len // cache.shape[1])
    blocks = cache[block_table[:num_blocks]]
    return blocks.reshape(-1, *cache.shape[2:])[:seq_len]
    ### END SOLUTION


# %% [raw] exercise="3.3"
# title: Paged attention in NumPy
# objective: compute the attention of a batch of sequences of different lengths, whose keys lie in scattered blocks.
# difficulty: 3
# importance: 5
# minutes: 25
# lines: 12
# predict: |
#   9 query heads, 3 KV heads. Which KV head do the query heads 0, 1, 2, 3 and 8 read? With `h % 3` instead, which
#   of the nine would still read the right one?
# predicted: |
#   0, 0, 0, 1, 2: neighbours share, h // 3. With h % 3 the heads 0, 4 and 8 are right, by accident. With as many
#   KV heads as query heads, or with a single one, *all* are right, so a test with such a model finds nothing.
# hints:
#   - "Go through the sequences. With your `gather`, the keys and the values of sequence i are two dense arrays of
#     `seq_lens[i]` rows: the table is dealt with."
#   - "Go through the query heads. Head h reads KV head h // (num_heads // num_kv_heads). Its scores are `keys[:,
#     kv_head] @ query[i, h] / head_dim**0.5`."
#   - "Softmax: subtract the largest score before `np.exp`, divide by the sum. The result is `weights @ values[:,
#     kv_head]`."

# %% [markdown]
# `query` holds one token of each sequence, the newest, whose own key and value are in the caches already. So it
# sees all `seq_lens[i]` tokens of its sequence. Return `[num_seqs, num_heads, head_dim]`. Scores are scaled by 1
# / √`head_dim`.
#
# `num_heads` is a multiple of `num_kv_heads`, and neighbouring query heads share a KV head. Unused slots and
# unused table entries may hold anything: NaN, or a block number that does not exist. Scores may be in the
# thousands.


# %% exercise="3.3"
def paged_attention(query, key_cache, value_cache, block_tables, seq_lens):
    """Attention of one query token per sequence: [num_seqs, num_heads, head_dim]."""
    ### BEGIN SOLUTION
    num_seqs, num_heads, head_dim = query.shape
    group = num_heads // key_cache.shape[2]
    output = np.empty_like(query)
    for i in range(num_seqs):
        keys = gather(key_cache, block_tables[i], seq_lens[i])
        values = gather(value_cache, block_tables[i], seq_lens[i])
        for h in range(num_heads):
            scores = keys[:, h // group] @ query[i, h] / head_dim**0.5
            weights = np.exp(scores - scores.max())
            output[i, h] = weights @ values[:, h // group] / weights.sum()
    return output
    ### END SOLUTION


# %% [raw] exercise="3.4"
# title: Softmax, block by block
# objective: compute attention with one block in hand at a time, as every kernel does.
# difficulty: 4
# importance: 5
# minutes: 30
# lines: 20
# predict: |
#   The first block has the scores 1 and 3, the second 2 and 5. After the first, top = 3 and total = exp(−2) +
#   exp(0) = 1.135. What must happen to this total when the second block arrives, and what is it then?
# predicted: |
#   The new top is 5. The old total was summed with 3 subtracted, so it is multiplied by exp(3 − 5) = 0.135 and
#   becomes 0.154. The second block adds exp(2 − 5) + exp(0) = 1.050. Together 1.203, which is the sum of
#   exp(score − 5) over all four.
# hints:
#   - "The new top is the larger of the old top and the block's largest score. The block's weights are exp(scores
#     − new top)."
#   - "Both sums so far were made with the old top: multiply both by exp(old top − new top), then add the block's
#     part. At the start that factor is exp(−inf) = 0, and needs no special case."
#   - "`attend_blocks`: for each head begin with (−inf, 0, zeros), go through the blocks that the length needs,
#     and hand `absorb` the scores and values of the block's *filled* slots: min(block_size, seq_len − logical ·
#     block_size) of them. Divide acc by total at the end."

# %% [markdown]
# A softmax over blocks keeps three things: `top`, the largest score so far; `total`, the sum of exp(score − top);
# `acc`, the sum of exp(score − top) · value, `[head_dim]`. So acc / total is, at any moment, the attention over
# what was seen.
#
# 1. `absorb(top, total, acc, scores, values)` takes in one block of one head (`scores` `[n]`, already scaled, `values`
#    `[n, head_dim]`) and returns the three anew (it may change `acc` in place). Before the first block they are −inf, 0 and zeros.
# 2. `attend_blocks(query, key_cache, value_cache, block_table, seq_len)` is the attention of one sequence's query,
#    `[num_heads, head_dim]`, over its blocks, one block at a time, as a kernel does it. Same result, same rules as 3.3.


# %% exercise="3.4"
def absorb(top, total, acc, scores, values):
    """The running softmax after one more block: (top, total, acc)."""
    ### BEGIN SOLUTION
    new_top = max(top, scores.max())
    weights = np.exp(scores - new_top)
    rescale = np.exp(top - new_top)
    return new_top, total * rescale + weights.sum(), acc * rescale + weights @ values
    ### END SOLUTION


def attend_blocks(query, key_cache, value_cache, block_table, seq_len):
    """Attention of one query token, block by block: [num_heads, head_dim]."""
    ### BEGIN SOLUTION
    num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    output = np.empty_like(query)
    for h in range(num_heads):
        kv_head = h // (num_heads // num_kv_heads)
        top, total, acc = -np.inf, 0.0, np.zeros(head_dim)
        for logical in range(-(-seq_len // block_size)):
            block = block_table[logical]
            filled = min(block_size, seq_len - logical * block_size)
            scores = key_cache[block, :filled, kv_head] @ query[h] / head_dim**0.5
            top, total, acc = absorb(top, total, acc, scores, value_cache[block, :filled, kv_head])
        output[h] = acc / total
    return output
    ### END SOLUTION


# %% [markdown]
# ## What you have built
#
# The whole data path of a paged cache: write by slot, read by table, attend without ever putting a sequence
# together. The course's own versions are `write_kv` in `paged_ref/blocks/kv_cache.py`, and `numpy_gather.py` and
# `numpy_blocks.py` in `paged_ref/attention/`; compare them with yours. They take several query tokens of a
# sequence at once, with a causal mask.
#
# Next: chapter 4 lets several tables name one block.
