# %% [markdown]
# # 1 · Exercises: where the memory goes
#
# You compute the bytes of a token, split the slots of a request into used and wasted, write the allocator that paging
# replaced, and count the requests that fit. The [lesson](../notebooks/01_fragmentation.ipynb) sends you here four times, each time
# before it shows its own version.
#
# 55 minutes · needs the lesson of chapter 1 · GPU: not needed
#
# Write your answer in the cell of each exercise and run the check below it. The check draws new inputs each time. If
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
#   Two models differ only in their heads: A has 32 query heads and 32 KV heads, B has 32 query heads and 4 KV heads. How many
#   times as many bytes does a token of A leave behind? And if B's cache is stored in 8 bits instead of 16?
# predicted: |
#   8 times: the KV heads count, the query heads do not. With 8 bits B keeps half as much, so A keeps 16 times as much.
# hints:
#   - "Begin with one layer and one KV head: how many elements does it keep for one token? (There are two vectors.)"
#   - "Every KV head of every layer keeps that many. Query heads keep nothing: a query is used once and forgotten."
#   - "`bits` are the bits of one element, and a byte has 8. Divide last: a 4-bit element does not fill a byte, but all
#     of them together fill whole bytes."

# %% [markdown]
# `config` is a dictionary with the whole numbers `num_layers`, `num_heads` (query heads), `num_kv_heads`, `head_dim` and
# `bits` (of one stored element: 4, 8, 16 or 32). Return the bytes that one token leaves in the KV cache, over all layers.
# (`config` is a copy. You may change it.)

# %% exercise="1.1"
def kv_bytes_per_token(config):
    """Bytes of keys and values that one token leaves behind, over all layers."""
    ### BEGIN SOLUTION
    elements = 2 * config["num_layers"] * config["num_kv_heads"] * config["head_dim"]
    return elements * config["bits"] // 8
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
#   (a) 20 used; 10 reserved, because ten tokens are still to come; 70 internal. (b) It holds 32 slots: 20 used, 10 reserved, 2
#   internal, because the last two slots of the second block will never be filled.
# hints:
#   - "The three counts always add up to the slots that are held. No slot is counted twice."
#   - "Of the slots held, how many will ever have a token? At most the request's tokens at its end, and at most the slots there
#     are."
#   - "Call that number promised. Which slots are promised and empty now? Which were never promised?"

# %% [markdown]
# A request has `num_now` tokens now and will have `num_final` at its end. It holds `num_slots` slots: a contiguous piece
# taken at once, or some blocks. In blocks `num_final` may be larger than `num_slots`, because more blocks come later.
#
# Return `(used, reserved, internal)`: the slots that hold a token; the empty slots that will get one; the slots that
# will never get one.


# %% exercise="1.2"
def split_waste(num_now, num_final, num_slots):
    """(used, reserved, internal) slots of one request."""
    ### BEGIN SOLUTION
    promised = min(num_final, num_slots)
    return num_now, promised - num_now, num_slots - promised
    ### END SOLUTION


# %% [raw] exercise="1.3"
# title: A first-fit arena
# objective: write the allocator that paging replaced, and see it refuse a request although enough slots are free.
# difficulty: 3
# importance: 3
# minutes: 20
# lines: 20
# predict: |
#   An arena of 100 slots has given out four pieces of 25. The first and the third come back. Then a request for 40
#   arrives. What happens? And after the second comes back, too?
# predicted: |
#   50 slots are free, in two holes of 25: 40 do not fit. When the second piece comes back, the three touch and are one
#   hole of 75, so 40 fit, at slot 0. That last step works only if holes that touch are merged.
# hints:
#   - "Keep the holes as a list of (start, size) in the order of their starts, and the pieces as a dictionary from start to
#     size. A piece taken from a hole leaves a smaller hole, or none."
#   - "`allocate` looks at one hole after the other. The sum of all holes does not matter: a piece lies in one hole."
#   - "In `free`, put the hole into the list, sort it, and build a new list: a hole that begins where the last one of the
#     new list ends is added to it, any other is appended."

# %% [markdown]
# Write the class `Arena` over slots 0 to `num_slots - 1`:
#
# - `allocate(size)` takes `size` contiguous slots from the **first** hole (the one with the lowest start) that is
#   large enough, at the beginning of that hole, and returns the start. If no hole is large enough it returns `None`, and
#   nothing changes.
# - `free(start)` gives back the piece that begins at `start`. Holes that touch are merged into **one**.
# - `num_free()` returns the free slots in all holes, `largest_hole()` the slots of the largest hole (0 if there is none).


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
#   - "First the budget: the fraction of the memory that the server may use, minus the weights. 1 GB is 10^9 bytes."
#   - "With reservations every request takes `max_tokens` tokens, however short it is."
#   - "A request of n tokens takes whole blocks, and the last one counts even with one token in it: round up. Then count
#     how many such requests the budget holds, and round that down."

# %% [markdown]
# A machine has `memory_gb` GB (of 10^9 bytes) of GPU memory. The server may use the fraction `fraction` of it, and
# `weights_gb` GB of that part hold weights. A token takes `bytes_per_token`. Every request has `num_tokens` tokens.
#
# Return two whole numbers: the requests that fit at once if each reserves `max_tokens` contiguous tokens, and the requests that
# fit if each holds only the blocks of `block_size` tokens that it needs.


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
