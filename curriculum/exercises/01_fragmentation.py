# %% [markdown]
# # 1 · Exercises: where the memory goes
#
# You compute what a token costs, split what a request holds into used and wasted, write the allocator that paging
# replaced, and say how many requests fit. Read the [lesson](../notebooks/01_fragmentation.ipynb) first.
#
# 55 minutes · needs the lesson of chapter 1 · GPU: not needed
#
# Write your answer in the cell of each exercise and run the check below it. The check draws new numbers each time. If
# you are stuck, the hints open one after the other. Helper functions and cells of your own are welcome.
#
# Use Python's standard library and NumPy; PyTorch and the course's own `paged_ref` are refused. Do not change a
# function's arguments, unless the text asks for it or allows it.

# %% [raw] exercise="1.1"
# title: Bytes per token
# objective: compute from a model's config how many bytes of keys and values one token leaves behind.
# difficulty: 1
# importance: 5
# minutes: 10
# lines: 2
# predict: |
#   Two models are equal but for this: A has 32 query heads and 32 KV heads, B has 32 query heads and 4 KV heads. How
#   many times as much does a token of A leave behind? And if B's cache is stored in 8 bits instead of 16?
# predicted: |
#   8 times: the KV heads count, the query heads do not. With 8 bits B keeps half of that again, so A keeps 16 times as
#   much.
# hints:
#   - "Begin with one layer and one KV head: how many numbers does it keep for one token? (There are two vectors.)"
#   - "Every KV head of every layer keeps as many. Query heads keep nothing: a query is used once and forgotten."
#   - "`bits` are the bits of one number, and a byte has 8. Divide last: 4-bit numbers do not fill a byte each, but
#     all of them together fill whole bytes."

# %% [markdown]
# `config` is a dictionary with the whole numbers `num_layers`, `num_heads` (query heads), `num_kv_heads`, `head_dim` and
# `bits` (of one stored number: 4, 8, 16 or 32). Return the bytes that one token leaves in the KV cache, over all layers.
# (`config` is a copy, and may be changed.)

# %% exercise="1.1"
def kv_bytes_per_token(config):
    """Bytes of keys and values that one token leaves behind, over all layers."""
    ### BEGIN SOLUTION
    numbers = 2 * config["num_layers"] * config["num_kv_heads"] * config["head_dim"]
    return numbers * config["bits"] // 8
    ### END SOLUTION


# %% [raw] exercise="1.2"
# title: Split the waste
# objective: tell used, reserved and internal slots of one request apart, in a contiguous piece and in blocks.
# difficulty: 2
# importance: 4
# minutes: 15
# lines: 3
# predict: |
#   A request has 20 tokens now and will have 30 at its end. It holds (a) a piece of 100 slots, (b) two blocks of 16. How
#   many slots are used, reserved and internal waste in (a), how many in (b)?
# predicted: |
#   (a) 20 used; 10 reserved, since ten tokens will still come; 70 internal. (b) It holds 32 slots: 20 used, 10 reserved,
#   2 internal: the last two slots of the second block will never be filled.
# hints:
#   - "The three numbers always add up to the slots that are held. Nothing is counted twice."
#   - "Of the slots held, how many will ever have a token? Not more than the request has tokens at its end, and not
#     more than there are slots."
#   - "promised = min(num_final, num_slots). Used is what has a token now, reserved is promised less used, internal is
#     what was never promised."

# %% [markdown]
# A request has `num_now` tokens now and will have `num_final` at its end. It holds `num_slots` slots: a contiguous piece
# taken at once, or some blocks. In blocks `num_final` may be larger than `num_slots`, for more blocks come later.
#
# Return three numbers, `(used, reserved, internal)`: slots that hold a token; slots without a token that will get one;
# slots that will never get one.


# %% exercise="1.2"
def split_waste(num_now, num_final, num_slots):
    """(used, reserved, internal) slots of one request."""
    ### BEGIN SOLUTION
    promised = min(num_final, num_slots)
    return num_now, promised - num_now, num_slots - promised
    ### END SOLUTION


# %% [raw] exercise="1.3"
# title: A first-fit arena
# objective: write the allocator that paging replaced, and see it refuse although enough is free.
# difficulty: 3
# importance: 3
# minutes: 20
# lines: 20
# predict: |
#   An arena of 100 slots has given out four pieces of 25. The first and the third come back. Then somebody wants 40.
#   What happens? And if the second comes back, too?
# predicted: |
#   50 slots are free, in two holes of 25: 40 do not fit. When the second piece comes back, the three touch and are one
#   hole of 75, so 40 fit, at slot 0. That last step works only if holes that touch are made one.
# hints:
#   - "Keep the holes as a list of (start, size) in the order of their starts, and the pieces as a dictionary from start to
#     size. Taking from a hole leaves a smaller hole, or none."
#   - "`allocate` looks at one hole after the other. What all holes have together does not matter: a piece lies in one."
#   - "In `free`, put the hole into the list, sort it, and build a new list: a hole that begins where the last one of the
#     new list ends is added to it, any other is appended."

# %% [markdown]
# Write the class `Arena` over slots 0 to `num_slots - 1`:
#
# - `allocate(size)` takes `size` slots in one piece from the **first** hole (the one with the lowest start) that is
#   large enough, at the beginning of that hole, and returns the start. If no hole is large enough it returns `None`, and
#   nothing changes.
# - `free(start)` gives the piece that begins at `start` back. Holes that touch become **one** hole.
# - `num_free()` says how many slots are free in all, `largest_hole()` how many the largest hole has (0 if there is none).


# %% exercise="1.3"
class Arena:
    """Contiguous pieces of a row of slots, first fit."""

    def __init__(self, num_slots):
        ### BEGIN SOLUTION
        self.holes = [(0, num_slots)]
        self.pieces = {}
        ### END SOLUTION

    def allocate(self, size):
        """Start of a new piece of `size` slots, or None."""
        ### BEGIN SOLUTION
        for index, (start, room) in enumerate(self.holes):
            if room >= size:
                self.holes[index : index + 1] = [(start + size, room - size)] if room > size else []
                self.pieces[start] = size
                return start
        return None
        ### END SOLUTION

    def free(self, start):
        """Give a piece back."""
        ### BEGIN SOLUTION
        joined = []
        for at, size in sorted([*self.holes, (start, self.pieces.pop(start))]):
            if joined and sum(joined[-1]) == at:
                joined[-1] = (joined[-1][0], joined[-1][1] + size)
            else:
                joined.append((at, size))
        self.holes = joined
        ### END SOLUTION

    def num_free(self):
        """Free slots, in all holes together."""
        ### BEGIN SOLUTION
        return sum(size for _, size in self.holes)
        ### END SOLUTION

    def largest_hole(self):
        """Slots of the largest hole."""
        ### BEGIN SOLUTION
        return max((size for _, size in self.holes), default=0)
        ### END SOLUTION


# %% [raw] exercise="1.4"
# title: How many requests fit
# objective: turn a machine's memory into requests at once, with reservations and with blocks.
# difficulty: 2
# importance: 5
# minutes: 10
# lines: 5
# predict: |
#   10 GB are left for keys and values, a token takes 1 MB, 2,000 tokens are allowed, requests have 100 tokens, blocks
#   have 16. How many requests fit with reservations? How many blocks does a request need, and how many fit?
# predicted: |
#   A reservation takes 2 GB: 5 requests. 100 tokens need 7 blocks (6 hold only 96), 112 MB, so 89 requests fit.
# hints:
#   - "First the budget: the share of the memory that is ours, less the weights. 1 GB is 10^9 bytes."
#   - "With reservations every request costs `max_tokens` tokens, however short it is."
#   - "A request of n tokens takes whole blocks, and the last one counts even with one token in it: round up. Then see how
#     many such requests the budget holds, and round that down."

# %% [markdown]
# A machine has `memory_gb` GB (of 10^9 bytes) of GPU memory, of which the share `fraction` is ours; `weights_gb` GB of
# that share hold weights. A token takes `bytes_per_token`. Every request has `num_tokens` tokens.
#
# Return two whole numbers: the requests that fit at once if each reserves `max_tokens` tokens in one piece, and those
# that fit if each holds just the blocks of `block_size` tokens that it needs.


# %% exercise="1.4"
def requests_that_fit(memory_gb, fraction, weights_gb, bytes_per_token, max_tokens, num_tokens, block_size):
    """(requests with reservations, requests with blocks)."""
    ### BEGIN SOLUTION
    budget = (fraction * memory_gb - weights_gb) * 10**9
    contiguous = budget // (max_tokens * bytes_per_token)
    blocks = -(-num_tokens // block_size)
    paged = budget // (blocks * block_size * bytes_per_token)
    return int(contiguous), int(paged)
    ### END SOLUTION


# %% [markdown]
# ## What you have built
#
# The arithmetic of a paged memory, and the allocator that it replaces. The course's own versions are
# `paged_ref/sizing.py` and `paged_ref/contiguous/arena.py`; compare them with yours.
#
# Next: [chapter 2](../notebooks/02_block_table.ipynb) builds the pool and the table, and [its
# exercises](02_block_table.ipynb) let you write them.
