# %% [markdown]
# # 4 · Exercises: sharing
#
# You write what lets sequences share blocks: counts and forks, copy-on-write, a prefix cache, and the
# arithmetic of a beam search's memory. Read the [lesson](../notebooks/04_sharing.ipynb) first.
#
# 85 minutes · needs the lesson of chapter 4 · GPU: not needed
#
# Write your answer in the cell of each exercise and run the check below it. The check draws new numbers each
# time. If you are stuck, the hints open one after the other. Helper functions and cells of your own are
# welcome.
#
# Use Python's standard library and NumPy; PyTorch and the course's own `paged_ref` are refused. Do not change a
# function's arguments, unless the text asks for it or allows it.

# %%
import hashlib

import numpy as np  # noqa: F401  for your answers


class OutOfBlocks(RuntimeError):
    """The pool has fewer free blocks than were asked for. Nothing was allocated."""


# %% [raw] exercise="4.1"
# title: Fork and release
# objective: let two sequences hold the same blocks, and free a block when its last holder leaves.
# difficulty: 2
# importance: 5
# minutes: 15
# lines: 14
# predict: |
#   A sequence of 10 tokens has 3 blocks of 4. It is forked twice. How many blocks are taken from the pool by that?
#   The first of the three sequences is released, then the second. How many blocks are free again after each?
# predicted: |
#   A fork takes no block: three tables name the same 3 blocks, and each block has 3 holders. The first release
#   leaves 2 holders, the second leaves 1: no block is free again. Only the third release frees all three.
# hints:
#   - "Three things happen in a fork: every block gets one more holder, the new table gets a list *of its own* with
#     the same ids, and the same number of tokens."
#   - "`free` lowers a count by one. Only where it arrives at 0 does the block join the free ones."
#   - "Look before you act: with `collections.Counter(blocks)` you know how many holders each block is about to
#     lose. Refuse if one has fewer, before any count is changed."

# %% [markdown]
# The pool counts the holders of each block. `allocate` is given; it hands out blocks with one holder each.
# Write
#
# - `pool.share(blocks)`: one more holder for each block. If one of them has no holder, raise `ValueError` and
#   change nothing.
# - `pool.free(blocks)`: one holder less for each block; a block whose count arrives at 0 is free again. A block may
#   stand twice in `blocks`, and then loses two. If a block
#   would lose more holders than it has, raise `ValueError` and *change nothing*.
# - `table.fork()`: a second table over the same blocks with the same number of tokens. It takes no block.
# - `table.release()`: gives the table's holds back and leaves it empty. Releasing an empty table does nothing.
#
# The table's `append` is chapter 2's. It does not know about sharing yet; exercise 4.2 sees to that.


# %% exercise="4.1"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.free_ids = list(range(num_blocks))
        self.ref_counts = [0] * num_blocks

    @property
    def num_free(self):
        return len(self.free_ids)

    def ref_count(self, block):
        return self.ref_counts[block]

    def allocate(self, n):
        if n > len(self.free_ids):
            raise OutOfBlocks(f"{n} blocks wanted, {len(self.free_ids)} are free")
        blocks = [self.free_ids.pop() for _ in range(n)]
        for block in blocks:
            self.ref_counts[block] = 1
        return blocks

    def share(self, blocks):
        ### BEGIN SOLUTION
        if any(self.ref_counts[block] == 0 for block in blocks):
            raise ValueError(f"a free block cannot be shared: {blocks}")
        for block in blocks:
            self.ref_counts[block] += 1
        ### END SOLUTION

    def free(self, blocks):
        ### BEGIN SOLUTION
        if any(self.ref_counts[block] < blocks.count(block) for block in blocks):
            raise ValueError(f"double free: {blocks}")
        for block in blocks:
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                self.free_ids.append(block)
        ### END SOLUTION


class BlockTable:
    def __init__(self, pool):
        self.pool = pool
        self.blocks = []
        self.num_tokens = 0

    def append(self, num_tokens):
        needed = -(-(self.num_tokens + num_tokens) // self.pool.block_size)
        self.blocks += self.pool.allocate(needed - len(self.blocks))
        self.num_tokens += num_tokens

    def fork(self):
        ### BEGIN SOLUTION
        child = BlockTable(self.pool)
        self.pool.share(self.blocks)
        child.blocks = list(self.blocks)
        child.num_tokens = self.num_tokens
        return child
        ### END SOLUTION

    def release(self):
        ### BEGIN SOLUTION
        self.pool.free(self.blocks)
        self.blocks = []
        self.num_tokens = 0
        ### END SOLUTION


# %% [raw] exercise="4.2"
# title: Copy-on-write
# objective: write a token without changing what another sequence reads, and copy no more than that needs.
# difficulty: 4
# importance: 5
# minutes: 25
# lines: 12
# predict: |
#   Blocks hold 4 tokens. A has 6 tokens, B is a fork of A. Then A appends one token, then B appends one token,
#   then A appends two more. How many blocks are copied, and at which of the three steps is a block taken from the
#   pool?
# predicted: |
#   One copy. A's first append finds its last block shared by two: it takes a block of its own, copies the two
#   tokens, and drops its hold on the old one. When B appends, the old block has one holder left, so B writes in
#   place. A's next two tokens: one fills the block, the other needs a new one. Blocks are taken at the first and
#   at the third step; only the first is a copy. The first block of 4 tokens is full. It stays shared, nobody
#   writes into it again.
# hints:
#   - "Three cases: the last block is full (or there is none yet), it is partly full and yours alone, it is partly
#     full and shared. `table.num_tokens % block_size` tells the first from the others, `pool.ref_count` the other
#     two apart."
#   - "In the first case, take a block and add it to the table: nothing is copied, whoever shares the full blocks.
#     In the second, nothing is taken. In the third, take a block, copy the old one's row of `memory` into it, give
#     up your hold on the old one, and put the new one into the table."
#   - "`pool.allocate(1)` is the only line that can fail. Put it before everything that changes something."

# %% [markdown]
# `memory` is a NumPy array of `[num_blocks, block_size]` numbers. One number stands for the keys and values
# of one token.
#
# Write `append(table, memory, value)`: store `value` as the table's next token, and return its slot. No other
# table may read anything else than before. Take a block only where one is needed, and copy only a block that
# is about to be written *and* has other holders. If the pool is dry, let its `OutOfBlocks` out, with
# everything as it was.
#
# A table has `pool`, `blocks` and `num_tokens`; a pool has `block_size`, `allocate(n)`, `free(blocks)` and
# `ref_count(block)`. (Do not call `table.append`, it knows nothing of sharing.)


# %% exercise="4.2"
def append(table, memory, value):
    """Store one more token of the table in memory; returns its slot."""
    ### BEGIN SOLUTION
    pool, size = table.pool, table.pool.block_size
    offset = table.num_tokens % size
    if offset == 0:
        table.blocks.extend(pool.allocate(1))
    elif pool.ref_count(table.blocks[-1]) > 1:
        shared, [own] = table.blocks[-1], pool.allocate(1)
        memory[own] = memory[shared]
        pool.free([shared])
        table.blocks[-1] = own
    memory[table.blocks[-1], offset] = value
    table.num_tokens += 1
    return table.blocks[-1] * size + offset
    ### END SOLUTION


# %% [raw] exercise="4.3"
# title: A chain of hashes
# objective: find the blocks that hold the beginning of a new prompt, and no others.
# difficulty: 4
# importance: 5
# minutes: 25
# lines: 20
# predict: |
#   Blocks hold 4 tokens. A sequence of 10 tokens, 1 to 10, has been computed and published. How many tokens does a
#   prompt of the same 10 tokens find in the cache? The prompt 1 to 8? The prompt 5, 6, 7, 8, 9?
# predicted: |
#   8: the third block is only partly full, and such a block is not filed. The prompt 1 to 8 finds 4 and not 8: its
#   last token must be computed, because the model says what comes next only for a token it runs on, and with token
#   8 goes its whole block. The prompt 5 to 9 finds nothing: its tokens 5 to 8 stand at another place and after
#   nothing, so their keys and values are other numbers.
# hints:
#   - "The key of a block is made of the key of the block before it and of its own tokens. So it stands for
#     everything from the beginning to the block's end."
#   - "`hashlib.sha256(repr((parent, tuple(tokens), salt)).encode()).digest()` is such a key. `repr` keeps the
#     tokens apart: strings that are merely joined make 1, 11 and 11, 1 the same."
#   - "`lookup` goes block by block from the beginning, over (n - 1) // block_size blocks at most, and stops at the
#     first key that is missing. For `forget`, keep a second dictionary from block to key."

# %% [markdown]
# Write `PrefixCache(block_size)`. It never sees keys or values, only tokens and block ids.
#
# - `publish(token_ids, blocks, salt=None)`: a sequence's tokens have been computed, and `blocks` are its physical
#   blocks in order. File its *full* blocks. (The same contents may be filed already: keep either block.)
# - `lookup(token_ids, salt=None)`: the list of blocks, from the beginning of the sequence on, that hold its first
#   tokens; as many as are known, but never the last token: at most n − 1 of n tokens come from the cache.
# - `forget(block)`: the block gets new contents. It must not be found again. A block that is not filed is ignored.
# - Sequences with different salts find nothing of each other.


# %% exercise="4.3"
class PrefixCache:
    def __init__(self, block_size):
        self.block_size = block_size
        ### BEGIN SOLUTION
        self.block_of = {}
        self.key_of = {}
        ### END SOLUTION

    def publish(self, token_ids, blocks, salt=None):
        ### BEGIN SOLUTION
        for key, block in zip(self._keys(token_ids, len(token_ids), salt), blocks, strict=False):
            if key not in self.block_of:
                self.block_of[key], self.key_of[block] = block, key

    def _keys(self, token_ids, num_tokens, salt):
        """The chained keys of the full blocks among the first tokens."""
        keys, parent = [], b""
        for end in range(self.block_size, num_tokens + 1, self.block_size):
            tokens = tuple(token_ids[end - self.block_size : end])
            parent = hashlib.sha256(repr((parent, tokens, salt)).encode()).digest()
            keys.append(parent)
        return keys
        ### END SOLUTION

    def lookup(self, token_ids, salt=None):
        ### BEGIN SOLUTION
        found = []
        for key in self._keys(token_ids, len(token_ids) - 1, salt):
            if key not in self.block_of:
                break
            found.append(self.block_of[key])
        return found
        ### END SOLUTION

    def forget(self, block):
        ### BEGIN SOLUTION
        key = self.key_of.pop(block, None)
        if key is not None:
            del self.block_of[key]
        ### END SOLUTION


# %% [raw] exercise="4.4"
# title: The memory of a beam search
# objective: say how many blocks a beam search holds, from the tree of its beams alone.
# difficulty: 3
# importance: 4
# minutes: 20
# lines: 8
# predict: |
#   Blocks hold 4 tokens. A prompt of 6 tokens, two beams. In the first step both grow from the prompt, in the
#   second each from itself. In the third both grow from the first. How many blocks are held after each step?
# predicted: |
#   3, 3, 4. After the first step: the prompt's full block, shared, and two blocks of 3 tokens, one for each beam.
#   After the second these are full (8 tokens). In the third the second beam dies with its block, and both new
#   beams share the first beam's two full blocks. Each brings a token of its own, in a new block: 2 + 2 = 4. The
#   tables have 6 entries.
# hints:
#   - "Two beams share a logical block exactly when they have the same tokens up to its end (or up to their own
#     end, in the last block). So count, for each logical block, in how many *different* versions the living beams
#     have it."
#   - "Walk back from the last step: `alive = set(range(width))`, and one step earlier `{parents[step][b] for b in
#     alive}`. That set has the ancestors of today's beams. How many are they at the step that filled a block?"
#   - "Or simulate: each beam is a list of block names. A fork copies the list; a token that is written gives the
#     last block a new name, of the step and the beam. Count the different names at the end."

# %% [markdown]
# Every beam begins with the prompt. In each step, each beam of the next generation extends one of the present
# beams by one token, which is stored at once: beam `i` of the next generation extends beam
# `parents[step][i]`. A beam that nobody extends is dropped. In the first step all beams extend the prompt,
# beam 0.
#
# Write `beam_blocks(prompt_tokens, parents, block_size)`: the number of *physical* blocks held after the last
# step, if forks share and writes copy only what is shared. (No steps: the prompt alone. Two beams that grow
# from the same beam get different tokens.)


# %% exercise="4.4"
def beam_blocks(prompt_tokens, parents, block_size):
    """Physical blocks after the last step. parents[step][i]: which beam the new beam i extends."""
    ### BEGIN SOLUTION
    num_tokens = prompt_tokens + len(parents)
    alive = set(range(len(parents[-1]))) if parents else {0}
    versions = {}  # logical block -> in how many versions the living beams have it
    for step in range(len(parents) - 1, -1, -1):
        token = prompt_tokens + step  # the token that was written in this step
        versions.setdefault(token // block_size, len(alive))
        alive = {parents[step][beam] for beam in alive}
    blocks = range(-(-num_tokens // block_size))
    return sum(versions.get(block, 1) for block in blocks)
    ### END SOLUTION


# %% [markdown]
# ## What you have built
#
# Counts and copy-on-write are the whole of `fork`, `release` and `grow` in `paged_ref/blocks/block_table.py`; the
# chain is `paged_ref/blocks/prefix_cache.py`, which also compares the tokens, so that it stays right even where two
# keys collide. Compare them with yours. The engine orders its copies first and performs them for all layers
# at once, before anything is written.
