# %% [markdown]
# # 10 · Exercises: find the bug
#
# Four functions, each from another layer of a paged cache, each with **one** planted fault. Each comes with a test
# that passes and with a report from somebody for whom it fails. You find the cause and mend it. Read the
# [lesson](../notebooks/10_interview.ipynb) first; its last part goes through one such fault.
#
# 50 minutes · needs chapters 3 and 4, and chapter 5 for 10.3 · GPU: not needed
#
# The way that pays in an interview: say what the report rules out; build the smallest input that shows the fault;
# only then look for the line. Copy the function as delivered into the answer's cell, give it the new name, and
# change what must be changed. A mend that makes the report go away and leaves the cause is found, and named.
#
# Use Python's standard library and NumPy; PyTorch and the course's own `paged_ref` are refused. Do not change a
# function's arguments, unless the text asks for it or allows it.

# %%
import hashlib

import numpy as np

# %% [raw] exercise="10.1"
# title: It works until the memory has been used
# objective: find a fault that no test on fresh memory can show.
# difficulty: 3
# importance: 5
# minutes: 10
# lines: 2
# predict: |
#   The report says: never with lengths that are multiples of 16, never in the first minutes, and always after a
#   restart all is well. Which slots does that point to, and what is different about them after an hour?
# predicted: |
#   The slots behind the last token, in a block that is not full. On a fresh server they hold zeros; after an hour
#   they hold what earlier requests left there, and in 16 bits an overflow leaves inf or NaN. Their *weight* is 0,
#   and 0 times zero is as good as left out. 0 times NaN is NaN.
# hints:
#   - "Fill the caches with NaN before you write the sequence's own tokens, and choose a length that is no multiple
#     of the block size. Now the naive test fails, too."
#   - "The scores of unused slots are replaced by -inf, whatever they were: so their keys may hold anything. Follow
#     the *values* from the cache to `acc`."
#   - "Either take the filled slots alone, `[:filled]`, of keys and values, or put 0 in place of the values of the
#     unused slots: `np.where(used[:, None, None], values, 0)`. Replace nothing in slots that are used."

# %% [markdown]
# `broken_decode` is the attention of one query token over its sequence, block by block (exercise 3.4, for all heads
# at once). `query` is `[num_heads, head_dim]`, the caches `[num_blocks, block_size, num_kv_heads, head_dim]`.
#
# > **The report.** "After an hour of service some answers turn into garbage: the logits are NaN. Restarting helps,
# > for an hour. Requests whose length is a multiple of 16 never have it."
#
# Mend it. Unused slots may hold anything: NaN, infinities. A NaN in a slot that *is* used is another fault,
# elsewhere, and must stay visible in the result.


# %%
def broken_decode(query, key_cache, value_cache, block_table, seq_len):
    """Attention of one query token, block by block: [num_heads, head_dim]. As delivered."""
    num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    kv_head = np.arange(num_heads) // (num_heads // num_kv_heads)
    top = np.full(num_heads, -np.inf)
    total, acc = np.zeros(num_heads), np.zeros((num_heads, head_dim))
    for logical in range(-(-seq_len // block_size)):
        block = block_table[logical]
        keys = key_cache[block][:, kv_head]  # [block_size, num_heads, head_dim]
        values = value_cache[block][:, kv_head]
        scores = np.einsum("hd,thd->ht", query, keys) / head_dim**0.5
        used = logical * block_size + np.arange(block_size) < seq_len
        scores = np.where(used, scores, -np.inf)
        new_top = np.maximum(top, scores.max(axis=1))
        weights, rescale = np.exp(scores - new_top[:, None]), np.exp(top - new_top)
        total = total * rescale + weights.sum(axis=1)
        acc = acc * rescale[:, None] + np.einsum("ht,thd->hd", weights, values)
        top = new_top
    return acc / total[:, None]


# %% [markdown]
# The test it came with: ragged lengths, a shuffled table, several query heads to a KV head. It passes.


# %%
def naive_test_of_decode(decode):
    """Ten tokens in three blocks of four, of a pool that holds zeros."""
    rng = np.random.default_rng(0)
    query = rng.normal(size=(6, 16))
    caches = np.zeros((2, 8, 4, 2, 16))
    table, n = np.array([6, 1, 3]), 10
    rows = rng.normal(size=(2, n, 2, 16))
    caches[:, table[np.arange(n) // 4], np.arange(n) % 4] = rows
    keys, values = (one.repeat(3, axis=1) for one in rows)
    weights = np.exp(np.einsum("hd,thd->ht", query, keys) / 4)
    dense = np.einsum("ht,thd->hd", weights, values) / weights.sum(axis=1)[:, None]
    return bool(np.allclose(decode(query, *caches, table, n), dense))


print("the naive test passes:", naive_test_of_decode(broken_decode))


# %% exercise="10.1"
def decode(query, key_cache, value_cache, block_table, seq_len):
    """Attention of one query token, block by block: [num_heads, head_dim]. Mended."""
    ### BEGIN SOLUTION
    num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    kv_head = np.arange(num_heads) // (num_heads // num_kv_heads)
    top = np.full(num_heads, -np.inf)
    total, acc = np.zeros(num_heads), np.zeros((num_heads, head_dim))
    for logical in range(-(-seq_len // block_size)):
        block = block_table[logical]
        filled = min(block_size, seq_len - logical * block_size)
        keys = key_cache[block, :filled][:, kv_head]  # what lies behind is not even read
        values = value_cache[block, :filled][:, kv_head]
        scores = np.einsum("hd,thd->ht", query, keys) / head_dim**0.5
        new_top = np.maximum(top, scores.max(axis=1))
        weights, rescale = np.exp(scores - new_top[:, None]), np.exp(top - new_top)
        total = total * rescale + weights.sum(axis=1)
        acc = acc * rescale[:, None] + np.einsum("ht,thd->hd", weights, values)
        top = new_top
    return acc / total[:, None]
    ### END SOLUTION


# %% [raw] exercise="10.2"
# title: It works on the small machine
# objective: find arithmetic that is too narrow, and widen it where that helps.
# difficulty: 3
# importance: 4
# minutes: 10
# lines: 1
# predict: |
#   One layer's cache has blocks of 16 tokens, 8 KV heads of 128 numbers. Block b begins at number b · 16,384. From
#   which block on do its offsets not fit into 32 bits with a sign? How large is such a cache at 2 bytes a number?
# predicted: |
#   2^31 / 2^14 = 2^17: from block 131,072. One layer's keys then take 2^32 bytes, 4.3 GB. With one array for all
#   layers it comes much earlier. (A pool of 40 GB has that many numbers nine times over: it depends on the layout
#   whether you see it.)
# hints:
#   - "Call it with the table `np.array([131_072], dtype=np.int32)` and look at the sign of what you get."
#   - "A product of 32-bit numbers has 32 bits, whatever is done to it afterwards. At which line is the last moment
#     to widen something?"
#   - "`token = np.arange(seq_len, dtype=np.int64)` makes the sum, and so the product, 64 bits wide. Widening the
#     block numbers first does so, too, and is safe for the product before it."

# %% [markdown]
# A kernel reads key and value at an **offset** into one flat array, counted in numbers. `broken_offsets` computes
# where each token's keys (of KV head 0) begin. Block numbers are 32 bits wide in tables everywhere, and that is
# enough for them.
#
# > **The report.** "The larger GPU crashes with an illegal memory access, now and then, when it is nearly full. The
# > smaller one with the same build never did. Once it did not crash, and a request continued somebody else's text."
#
# Mend it. The pool may have any number of blocks that fits into 32 bits, and up to 2^31 − 1 slots.


# %%
def broken_offsets(block_table, seq_len, block_size, num_kv_heads, head_dim):
    """Where each token's keys begin in the flat cache, in numbers: [seq_len]. As delivered."""
    token = np.arange(seq_len, dtype=np.int32)
    block = block_table[token // block_size]  # 32 bits, as the table
    slot = block * block_size + token % block_size
    return slot * (num_kv_heads * head_dim)


# %% [markdown]
# Its test compares with plain Python, for many shapes and shuffled tables. It passes.


# %%
def naive_test_of_offsets(offsets):
    """Random tables in a pool of 4,096 blocks."""
    rng = np.random.default_rng(0)
    for size, heads, dim in ((16, 8, 128), (1, 3, 64), (32, 4, 80)):
        table = rng.permutation(4096).astype(np.int32)[:9]
        n = 8 * size + 1
        expected = [(int(table[t // size]) * size + t % size) * heads * dim for t in range(n)]
        if list(offsets(table, n, size, heads, dim)) != expected:
            return False
    return True


print("the naive test passes:", naive_test_of_offsets(broken_offsets))


# %% exercise="10.2"
def offsets(block_table, seq_len, block_size, num_kv_heads, head_dim):
    """Where each token's keys begin in the flat cache, in numbers: [seq_len]. Mended."""
    ### BEGIN SOLUTION
    token = np.arange(seq_len, dtype=np.int64)
    block = block_table[token // block_size].astype(np.int64)  # before anything is multiplied
    slot = block * block_size + token % block_size
    return slot * (num_kv_heads * head_dim)
    ### END SOLUTION


# %% [raw] exercise="10.3"
# title: It works on short contexts
# objective: find a fault that cancels as long as all scores are about alike.
# difficulty: 4
# importance: 4
# minutes: 15
# lines: 1
# predict: |
#   Two splits. The first has total 2 and acc 2 · [1, 0], the second total 2 and acc 2 · [0, 1]; their tops are 0
#   and 5. Which of the two should decide the result, and what must the two numbers of the result add up to?
# predicted: |
#   The second: its scores are higher by 5, so each of its tokens weighs exp(5) = 148 times as much. The result is
#   close to [0, 1], exactly [1, 148] / 149, and adds up to 1. With equal tops it would be [0.5, 0.5], and a test
#   with equal tops cannot tell a merge that looks at the tops from one that does not.
# hints:
#   - "Make two splits of one token each, with the scores 0 and 5 and the values 0 and 1, and merge them by hand."
#   - "`totals` and `accs` are sums of the same weights. Whatever one of them is multiplied with, the other must
#     be."
#   - "`output += share[split][:, None] * accs[split]`."

# %% [markdown]
# A long context is split over several programs, and each returns its part of a running softmax (exercise 5.4 merges
# results that are already divided; these are not). For each split and head: `tops` `[num_splits, num_heads]`, the
# largest score; `totals`, the sum of exp(score − top); `accs` `[num_splits, num_heads, head_dim]`, the sum of
# exp(score − top) · value. A split without tokens has −inf, 0 and zeros; at least one split has tokens.
#
# > **The report.** "Since the split came in, long conversations drift into nonsense. Short ones are as before. Our
# > kernel test compares with the dense result to four digits and is green."
#
# Mend it.


# %%
def broken_merge(tops, totals, accs):
    """The attention over the tokens of all splits: [num_heads, head_dim]. As delivered."""
    top = tops.max(axis=0)
    share = np.exp(tops - top)  # [num_splits, num_heads]
    total = np.zeros(tops.shape[1])
    output = np.zeros(accs.shape[1:])
    for split in range(len(tops)):
        total += share[split] * totals[split]
        output += accs[split]
    return output / total[:, None]


# %% [markdown]
# Its test draws small numbers, as tests of published kernels do. It passes.


# %%
def naive_test_of_merge(merge):
    """Four splits of 64 tokens; queries, keys and values are drawn from ±0.01."""
    rng = np.random.default_rng(0)
    query = rng.uniform(-0.01, 0.01, size=(4, 32))
    keys, values = rng.uniform(-0.01, 0.01, size=(2, 256, 4, 32))
    scores = np.einsum("hd,thd->ht", query, keys) / 32**0.5
    weights = np.exp(scores)
    dense = np.einsum("ht,thd->hd", weights, values) / weights.sum(axis=1)[:, None]
    parts = []
    for part in (slice(i, i + 64) for i in range(0, 256, 64)):
        top = scores[:, part].max(axis=1)
        weights = np.exp(scores[:, part] - top[:, None])
        parts.append((top, weights.sum(axis=1), np.einsum("ht,thd->hd", weights, values[part])))
    return bool(np.allclose(merge(*map(np.array, zip(*parts, strict=True))), dense, atol=1e-4))


print("the naive test passes:", naive_test_of_merge(broken_merge))


# %% exercise="10.3"
def merge(tops, totals, accs):
    """The attention over the tokens of all splits: [num_heads, head_dim]. Mended."""
    ### BEGIN SOLUTION
    top = tops.max(axis=0)
    share = np.exp(tops - top)  # [num_splits, num_heads]
    total = np.zeros(tops.shape[1])
    output = np.zeros(accs.shape[1:])
    for split in range(len(tops)):
        total += share[split] * totals[split]
        output += share[split][:, None] * accs[split]
    return output / total[:, None]
    ### END SOLUTION


# %% [raw] exercise="10.4"
# title: It works until two prompts meet in the middle
# objective: find out why a cache hands out blocks of another context, and chain its keys.
# difficulty: 3
# importance: 5
# minutes: 15
# lines: 1
# predict: |
#   Blocks of 2. Prompt A is [7, 8, 1, 2], prompt B is [9, 8, 1, 2], prompt C is [1, 2, 1, 2]. Which of their six
#   blocks may have the same key?
# predicted: |
#   None. The keys and values of [1, 2] depend on everything before them: on [7, 8] in A, on [9, 8] in B, and on [1,
#   2] in C, whose own first block has nothing before it. A key made of the tokens alone gives one key to four of
#   the six.
# hints:
#   - "Print the keys of the three prompts of the prediction."
#   - "`parent` is part of the key. Which values does it take while the loop runs?"
#   - "After each block: `parent = keys[-1]`. It holds the salt and all tokens so far, in one hash."

# %% [markdown]
# The prefix cache finds a block by its key. `broken_block_keys` returns the keys of a prompt's full blocks, in
# order. Two prompts may have the same key for block i exactly if they have the same salt and agree on *all* tokens
# up to the end of block i. (The salt is text; tenants with different salts share nothing.) A key may be text,
# bytes, a number or a tuple.
#
# > **The report.** "Two customers use the same instructions after different introductions. Since prefix caching is
# > on, one gets answers that know the other's introduction. Customers without common text never complain. The hit
# > rate is better than we hoped."
#
# Mend it.


# %%
def broken_block_keys(token_ids, block_size, salt=""):
    """A key for each full block of a prompt. As delivered."""
    keys, parent = [], salt
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        tokens = token_ids[start : start + block_size]
        content = repr((parent, list(tokens)))
        keys.append(hashlib.sha256(content.encode()).hexdigest())
    return keys


# %% [markdown]
# Its test asks for the same prompt again, for a longer one with the same beginning, for one that differs early and
# one that differs late, and for another salt. It passes.


# %%
def naive_test_of_keys(block_keys):
    """Hits for equal beginnings, none for others."""
    prompt = list(range(100, 120))
    keys = block_keys(prompt, 4)
    longer = block_keys([*prompt, 1, 2, 3, 4, 5], 4)
    late = block_keys([*prompt[:9], 0, *prompt[10:]], 4)
    early = block_keys([0] * 20, 4)
    return (
        block_keys(prompt, 4) == keys
        and longer[:5] == keys
        and len(longer) == 6
        and late[:2] == keys[:2]
        and late[2] != keys[2]
        and not set(early) & set(keys)
        and not set(block_keys(prompt, 4, "tenant")) & set(keys)
    )


print("the naive test passes:", naive_test_of_keys(broken_block_keys))


# %% exercise="10.4"
def block_keys(token_ids, block_size, salt=""):
    """A key for each full block of a prompt. Mended."""
    ### BEGIN SOLUTION
    keys, parent = [], salt
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        tokens = token_ids[start : start + block_size]
        content = repr((parent, list(tokens)))
        parent = hashlib.sha256(content.encode()).hexdigest()
        keys.append(parent)
    return keys
    ### END SOLUTION


# %% [markdown]
# ## What you have found
#
# | | the naive test could not see it, because | the cause |
# |---|---|---|
# | 10.1 | its unused slots held zeros | a weight of 0 does not keep NaN out |
# | 10.2 | its pool was small | 32 bits hold block numbers, and not offsets |
# | 10.3 | its scores were all about alike | one of two sums was brought to the common top |
# | 10.4 | its prompts never met again after they parted | a block's contents depend on all tokens before it |
#
# Each of these has happened in engines that people use. What the four tests lack is what the checks of this course
# have: poisoned memory, large numbers, scores that differ, and beginnings that differ. In an interview, say the
# test first.
