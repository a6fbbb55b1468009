# %% [markdown]
# # 2 · Exercises: the block table
#
# You write the three parts of a paged memory and the rule that guards it: the slot of a token, a pool of blocks,
# a table that grows block by block, and admission. Read the [lesson](../notebooks/) first.
#
# 55 minutes · needs the lesson of chapter 2 · GPU: not needed
#
# Write your answer in the cell of each exercise and run the check below it. The check draws new numbers each time. If
# you are stuck, the hints open one after the other. Helper functions and cells of your own are welcome.

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
