# %% [markdown]
# # 2 · Exercises: the block table
#
# You write the three parts of a paged memory and the rule that guards it: the slot of a token, a pool of blocks,
# a table that grows block by block, and admission. Read the [lesson](../notebooks/02_block_table.ipynb) first.
#
# 55 minutes · needs the lesson of chapter 2 · GPU: not needed
#
# Write your answer in the cell of each exercise and run the check below it. The check draws new numbers each time. If
# you are stuck, the hints open one after the other. Helper functions and cells of your own are welcome.
#
# Use Python's standard library and NumPy; PyTorch and the course's own `paged_ref` are refused. Do not change a
# function's arguments, unless the text asks for it or allows it.

# %% [raw] exercise="2.1"
# title: The slot of a token
# objective: say in which slot of the cache a token's keys and values are stored.
# difficulty: 1
# importance: 5
# minutes: 10
# lines: 1
# predict: |
#   A sequence has the block table `[7, 1, 4]` and blocks of 4 tokens. In which slot is token 6 (counting from 0)?
#   And token 8?
# predicted: |
#   Token 6 is in logical block 6 // 4 = 1, at place 6 % 4 = 2. Logical block 1 is physical block 1, which begins at
#   slot 1 · 4. So slot 6: here logical and physical agree by accident. Token 8 is the first token of logical block 2,
#   which is physical block 4: slot 16.
# hints:
#   - "Split i in two: the number of the block in the sequence, and the place inside that block. Python's `//` and `%`
#     give them."
#   - "The block's number in the sequence is *logical*. `blocks` says which *physical* block stands behind it."
#   - "Physical block b has the slots b * block_size to b * block_size + block_size - 1. Add the place inside the block."

# %% [markdown]
# The pool's memory is one long array of slots, one slot for the keys and values of one token. Physical block b has the
# slots from b · `block_size` on. A sequence's block table `blocks` lists its physical blocks in logical order.

# %% exercise="2.1"
def slot(blocks, i, block_size):
    """The slot of token i (from 0) of a sequence whose physical blocks are `blocks`."""
    ### BEGIN SOLUTION
    return blocks[i // block_size] * block_size + i % block_size
    ### END SOLUTION

# %% [raw] exercise="2.2"
# title: A pool of blocks
# objective: write the allocator under every paged cache, so that no block is lost, held twice or half given.
# difficulty: 3
# importance: 5
# minutes: 20
# lines: 12
# predict: |
#   A pool has 8 blocks. Three sequences take 3, 2 and 3 blocks; the second one ends and gives its 2 back. A fourth
#   sequence asks for 3 blocks. What should it be given?
# predicted: |
#   Nothing. Two blocks are free and three are wanted, so `allocate` raises `OutOfBlocks` and *takes neither of the
#   two*: a sequence that gets half of what it needs cannot run, and holds blocks that another one could use. If it
#   asked for 2 it would get the same two blocks, wherever they are: blocks are all alike, so no gap is too small.
# hints:
#   - "Keep one container of the free block ids, and one of those that are out. A list and a set will do."
#   - "Look before you take: compare n with the number of free blocks before the first one leaves the container. The same
#     for `free`: look at every id first, then give all of them back."
#   - "In `free`, refuse if an id is not out (it is free already, or unknown), or if it stands twice in the argument:
#     `len(set(blocks)) != len(blocks)`."

# %% [markdown]
# Write `BlockPool`. It knows nothing of tokens or tensors: it hands out block ids and takes them back.
#
# - `BlockPool(num_blocks, block_size)` has the blocks 0 to `num_blocks` − 1, all free. It keeps `block_size` for others.
# - `allocate(n)` returns a list of `n` ids of free blocks, in any order. With fewer than `n` free it raises
#   `OutOfBlocks` and *changes nothing*.
# - `free(blocks)` takes ids back, so that they can be handed out again. An id that is not out (free, unknown or negative), or that stands twice in
#   `blocks`, is a double free: raise `ValueError` and *change nothing*.
# - `num_free` says how many blocks are free.

# %%
class OutOfBlocks(RuntimeError):
    """The pool has fewer free blocks than were asked for. Nothing was allocated."""


# %% exercise="2.2"
class BlockPool:
    def __init__(self, num_blocks, block_size):
        self.num_blocks = num_blocks
        self.block_size = block_size
        ### BEGIN SOLUTION
        self._free = list(range(num_blocks))
        self._out = set()
        ### END SOLUTION

    @property
    def num_free(self):
        ### BEGIN SOLUTION
        return len(self._free)
        ### END SOLUTION

    def allocate(self, n):
        ### BEGIN SOLUTION
        if n > len(self._free):
            raise OutOfBlocks(f"{n} blocks wanted, {len(self._free)} are free")
        blocks = [self._free.pop() for _ in range(n)]
        self._out.update(blocks)
        return blocks
        ### END SOLUTION

    def free(self, blocks):
        ### BEGIN SOLUTION
        if len(set(blocks)) != len(blocks) or not self._out.issuperset(blocks):
            raise ValueError(f"double free: {blocks}, of which {sorted(self._out.intersection(blocks))} are out")
        self._out.difference_update(blocks)
        self._free.extend(blocks)
        ### END SOLUTION


# %% [raw] exercise="2.3"
# title: Append across a boundary
# objective: take a block exactly when the first token that needs it arrives.
# difficulty: 3
# importance: 5
# minutes: 15
# lines: 8
# predict: |
#   Blocks hold 4 tokens. A sequence has 8 tokens in 2 blocks, both full. It appends one token, then three more, then
#   one more. How many blocks does it have after each step?
# predicted: |
#   3, 3, 4. The ninth token finds both blocks full and brings the third. Tokens 10 to 12 fill that one up. The
#   thirteenth token brings the fourth. A full last block is no reason to take the next one: the sequence may end here.
# hints:
#   - "How many blocks do `num_tokens` tokens need? A quotient, rounded up: `-(-num_tokens // block_size)`."
#   - "Compute how many blocks the table needs *after* the append, and take the difference from the pool in one call. If
#     the pool raises, nothing has changed yet."
#   - "Then go through the new tokens, from the old `num_tokens` to the new one, and compute the slot of each with your
#     function from exercise 2.1."

# %% [markdown]
# A `BlockTable` belongs to one sequence. `blocks` are its physical blocks in logical order, `num_tokens` its tokens. Write
# `append(num_tokens)`: make room for so many more tokens, and return the list of their slots in order.
#
# After each append the table must have exactly as many blocks as its tokens need. If the pool has too few blocks,
# `OutOfBlocks` comes out of `append`, and table and pool are as they were.

# %% exercise="2.3"
class BlockTable:
    def __init__(self, pool):
        self.pool = pool
        self.blocks = []
        self.num_tokens = 0

    def append(self, num_tokens):
        ### BEGIN SOLUTION
        size = self.pool.block_size
        before, after = self.num_tokens, self.num_tokens + num_tokens
        needed = -(-after // size)
        self.blocks = self.blocks + self.pool.allocate(needed - len(self.blocks))
        self.num_tokens = after
        return [slot(self.blocks, i, size) for i in range(before, after)]
        ### END SOLUTION


# %% [raw] exercise="2.4"
# title: Admit or not
# objective: decide from counts alone whether a request may start now, later, or never.
# difficulty: 2
# importance: 4
# minutes: 10
# lines: 6
# predict: |
#   Blocks hold 16 tokens. 5 of 100 blocks are free, and one of them is kept back as a watermark. May a prompt of 48
#   tokens start? One of 49? One of 1,600?
# predicted: |
#   48 tokens: yes. They fill 3 blocks, one more is needed to grow into, and 4 are available. 49 tokens need 4 blocks
#   and one to grow into: later, when somebody has finished. 1,600 tokens need 100 blocks and one to grow into, more
#   than the pool will ever have: never, and the user should hear it at once.
# hints:
#   - "A request needs the blocks of its prompt, rounded up, and one more to grow into."
#   - "It may start now if that many are free and the watermark still stays free afterwards."
#   - "To tell LATER from NEVER, ask the same question of a pool in which all blocks are free."

# %% [markdown]
# `admit` returns `"OK"`, `"LATER"` or `"NEVER"`. A request needs enough blocks for its prompt, and one block to grow into.
# `watermark` blocks of the pool must stay free for the sequences that are running already. A request that would not fit
# even with all blocks free, *watermark still kept back*, is `NEVER`: it must be refused at once, because waiting will not
# help it.

# %% exercise="2.4"
def admit(prompt_tokens, num_free, num_blocks, block_size, watermark=0):
    ### BEGIN SOLUTION
    needed = -(-prompt_tokens // block_size) + 1 + watermark
    if needed > num_blocks:
        return "NEVER"
    return "OK" if needed <= num_free else "LATER"
    ### END SOLUTION


# %% [markdown]
# ## What you have built
#
# Pool, table and admission are the whole of a paged memory without sharing. The course's own versions are
# `paged_ref/blocks/block_pool.py` and `paged_ref/blocks/block_table.py`; compare them with yours. They count the holders of each
# block, which chapter 4 needs, and keep the free blocks in a linked list, so that a block can leave it from the middle.
