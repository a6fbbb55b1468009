# %% [markdown]
# # 6 · Exercises: scheduling
#
# You write the four decisions of a scheduler: what one step computes, who gives way when the pool is dry and how it
# comes back, how blocks are moved to the host and back, and which of the two ways is cheaper. Read the
# [lesson](../notebooks/06_scheduling.ipynb) first.
#
# 90 minutes · needs the lesson of chapter 6 · GPU: not needed
#
# Write your answer in the cell of each exercise and run the check below it. The check draws new numbers each time. If
# you are stuck, the hints open one after the other. Helper functions and cells of your own are welcome.
#
# Use Python's standard library and NumPy; PyTorch and the course's own `paged_ref` are refused. Do not change a
# function's arguments, unless the text asks for it or allows it.

# %% [raw] exercise="6.1"
# title: One step
# objective: decide what one step of a continuous, paged server computes.
# difficulty: 4
# importance: 5
# minutes: 30
# lines: 22
# predict: |
#   Blocks of 4 tokens, 3 of them free, 10 tokens a step. A and B decode; A's last block is full. C waits with 5
#   tokens, D, behind it, with 2. What does the step compute?
# predicted: |
#   One token of A and one of B. A needs a block for it, so 2 are left. C would need 2 blocks and one to grow into: not
#   now. D would need only 2, and does not start either: it would overtake C, and so would the next small one, and the
#   one after that.
# hints:
#   - "Three loops, one after the other: over `running` for those that decode, over `running` again for those that
#     still prefill, over `waiting` from its head. Keep two numbers up to date: the budget that is left, the blocks
#     that are free."
#   - "A decode takes a block when its tokens need more blocks, rounded up, than it holds. A prefill under way takes
#     none, it got all of them when it started."
#   - "The waiting loop ends (`break`, not `continue`) at the first request that cannot start: no budget left, too
#     many sequences, or fewer free blocks than its tokens need and one more. Who starts takes the blocks of its
#     tokens; the one more only has to be there."

# %% [markdown]
# A request is a dictionary: its `"id"`, how many `"tokens"` it has, how many of them are `"computed"`, and how many
# `"blocks"` it holds. `running` and `waiting` are lists of requests that begin with the oldest. Write
# `schedule(running, waiting, num_free, budget, block_size, max_seqs)`. It returns the batch, a list of pairs
# `(id, number of tokens)` in this order:
#
# 1. **Decodes**: requests in `running` with one token left to compute. Each gets it, and takes a new block if its
#    blocks have no room for that token. (The blocks and the budget for all of these are there.)
# 2. **Prefills under way**: requests in `running` with more than one token left. Each gets as many as are left of the
#    budget. They hold the blocks of all their tokens already.
# 3. **Waiting requests** may start while tokens are left of the budget, fewer than `max_seqs` requests run, and the
#    free blocks are enough for *all* tokens of the request and one more block. Who starts takes the blocks of its
#    tokens, and gets as many tokens as are left of the budget. Nobody overtakes.
#
# In each of the three groups the oldest comes first. A request that gets no token is not in the batch. The arguments
# may be changed, and need not be.


# %% exercise="6.1"
def schedule(running, waiting, num_free, budget, block_size, max_seqs):
    """The batch of one step, as a list of (id, number of tokens)."""
    ### BEGIN SOLUTION
    batch = []
    prefilling = []
    for request in running:
        left = request["tokens"] - request["computed"]
        if left > 1:
            prefilling.append((request["id"], left))
            continue
        if request["tokens"] > request["blocks"] * block_size:
            num_free -= 1
        batch.append((request["id"], 1))
        budget -= 1
    for name, left in prefilling:
        if budget > 0:
            batch.append((name, min(left, budget)))
            budget -= min(left, budget)
    places = max_seqs - len(running)
    for request in waiting:
        blocks = -(-request["tokens"] // block_size)
        if budget == 0 or places == 0 or blocks + 1 > num_free:
            break
        batch.append((request["id"], min(request["tokens"], budget)))
        budget -= min(request["tokens"], budget)
        num_free -= blocks
        places -= 1
    return batch
    ### END SOLUTION


# %% [raw] exercise="6.2"
# title: Preempt and resume
# objective: make room when the pool is dry, so that nothing is lost and everybody is served in the end.
# difficulty: 4
# importance: 5
# minutes: 25
# lines: 14
# predict: |
#   A, B and C run, in this order of age. The pool is dry, and B needs a block. Who is preempted? And if C needs one?
# predicted: |
#   C, in both cases. The latest gives way, also when it is the one that needs the block: then it simply waits. If C
#   could take a block from B, and B later one from C, neither would ever be done.
# hints:
#   - "`preempt` is four lines: out of `running`, its blocks to `num_free`, its own count to 0, into `waiting`.
#     `tokens` is not touched. Where in `waiting`? It is older than everybody who has not started yet."
#   - "`make_room`: while the request needs another block and none is free, preempt `self.running[-1]`. If that was the
#     request itself, stop; it has nothing to make room for any more."
#   - "`admit`: while the blocks of *all* tokens of `self.waiting[0]` are free, prompt and generated ones. It takes
#     exactly those, and goes to the end of `running`."

# %% [markdown]
# The server below is complete but for three methods. `step` is given: every running request makes room for its newest
# token and gets the next one; if nobody was preempted, waiting requests are admitted, and get a token as well. (Their
# tokens are all computed in that step, which is what *recompute* means.)
#
# - `preempt(request)` takes all blocks of a running request, and lets it wait. It keeps its tokens, and its place
#   before everybody younger.
# - `make_room(request)` sees to it that a running request has the blocks for all its tokens. It takes a free block; if
#   there is none, the *latest* running request is preempted, and no more of them than necessary. It may be the request
#   itself. Returns the list of preempted requests.
# - `admit()` moves waiting requests to `running`, the oldest first, as long as the blocks of all their tokens are
#   free, and gives them these blocks. Returns the list of admitted requests.
#
# `waiting` and `running` begin with the oldest request, at any time.


# %%
class Request:
    """A request: prompt, all tokens so far, how many it will have at its end, and how many blocks it holds."""

    def __init__(self, name, prompt, new_tokens):
        self.name = name
        self.prompt = list(prompt)
        self.tokens = list(prompt)
        self.end = len(prompt) + new_tokens
        self.blocks = 0


def blocks_for(request, block_size):
    """Blocks that all tokens of a request need."""
    return -(-len(request.tokens) // block_size)


def next_token(tokens):
    """Stands for the model."""
    return (sum(tokens) * 7 + len(tokens)) % 50


# %% exercise="6.2"
class Server:
    def __init__(self, num_blocks, block_size):
        self.num_free = num_blocks
        self.block_size = block_size
        self.waiting, self.running = [], []

    def add(self, name, prompt, new_tokens):
        self.waiting.append(Request(name, prompt, new_tokens))

    def step(self):
        """One step; returns the names of the requests that got a token."""
        served, preempted = [], []
        for request in list(self.running):
            if request in self.running:  # not preempted by an older one
                preempted += self.make_room(request)
                if request in self.running:
                    served.append(request)
        if not preempted:
            served += self.admit()
        for request in served:
            request.tokens.append(next_token(request.tokens))
            if len(request.tokens) == request.end:
                self.running.remove(request)
                self.num_free += request.blocks
                request.blocks = 0
        return [request.name for request in served]

    def preempt(self, request):
        ### BEGIN SOLUTION
        self.running.remove(request)
        self.num_free += request.blocks
        request.blocks = 0
        self.waiting.insert(0, request)
        ### END SOLUTION

    def make_room(self, request):
        ### BEGIN SOLUTION
        preempted = []
        while request in self.running and request.blocks < blocks_for(request, self.block_size):
            if self.num_free:
                self.num_free -= 1
                request.blocks += 1
            else:
                preempted.append(self.running[-1])
                self.preempt(self.running[-1])
        return preempted
        ### END SOLUTION

    def admit(self):
        ### BEGIN SOLUTION
        admitted = []
        while self.waiting and blocks_for(self.waiting[0], self.block_size) <= self.num_free:
            request = self.waiting.pop(0)
            request.blocks = blocks_for(request, self.block_size)
            self.num_free -= request.blocks
            self.running.append(request)
            admitted.append(request)
        return admitted
        ### END SOLUTION


# %% [raw] exercise="6.3"
# title: Swap out and in
# objective: move the blocks of a sequence to the host and back, so that the copies are really made.
# difficulty: 3
# importance: 4
# minutes: 25
# lines: 8
# predict: |
#   `host` and `device` are NumPy arrays, `out` and `to` lists of ids. Which of these lines copies?
#   `host[to] = device[out]` · `host[to][:] = device[out]` · `np.copyto(host[to], device[out])`
# predicted: |
#   Only the first. On the left of `=`, `host[to]` is a place. Elsewhere it is an expression, and with a list as index
#   its value is a *new* array: the other two lines fill it and throw it away.
# hints:
#   - "In this order: take host blocks, copy, free the device's blocks. Taking comes first because it is what may
#     fail."
#   - "The block is the second axis, and *all* layers move: `memory.data[:, blocks]`. Assign to it; do not copy *into*
#     it."
#   - "`swap_in` is the same with the two memories exchanged. The sequence does not come back to where it was: those
#     blocks may be somebody else's by now. Take new ones and return them."

# %% [markdown]
# A `Memory` holds the blocks of one place, the device or the host. Its `data` is an array of shape
# `[num_layers, num_blocks, block_size, width]`. Its `free` does what a busy server does: the block's next owner writes
# into it at once. Its `allocate` raises `OutOfBlocks` and changes nothing if there are too few free blocks.
#
# - `swap_out(device, host, blocks)` moves the blocks of a sequence from the device to the host. It returns the host's
#   blocks, in the order of `blocks`. Afterwards the device's blocks are free.
# - `swap_in(device, host, host_blocks)` moves them back, into whichever blocks of the device are free now, and
#   returns those. Afterwards the host's blocks are free.
#
# If the other side has too few free blocks, `OutOfBlocks` comes out of the function and nothing has changed.

# %%
import numpy as np


class OutOfBlocks(RuntimeError):
    """Fewer blocks are free than were asked for. Nothing was allocated."""


class Memory:
    """The keys and values of some blocks, in every layer, and the list of free ones."""

    def __init__(self, num_layers, num_blocks, block_size, width, free_ids):
        self.data = np.zeros((num_layers, num_blocks, block_size, width))
        self.free_ids = list(free_ids)

    def allocate(self, n):
        if n > len(self.free_ids):
            raise OutOfBlocks(f"{n} blocks wanted, {len(self.free_ids)} are free")
        blocks, self.free_ids = self.free_ids[:n], self.free_ids[n:]
        return blocks

    def free(self, blocks):
        if set(blocks) & set(self.free_ids) or len(set(blocks)) != len(blocks):
            raise ValueError(f"double free: {blocks}")
        self.data[:, list(blocks)] = -99.0  # the next owner writes
        self.free_ids += list(blocks)

    def write(self, blocks, values):
        """For the check: put values, [num_layers, len(blocks), block_size, width], into some blocks."""
        self.data[:, list(blocks)] = values

    def read(self, blocks):
        """For the check: what stands in some blocks."""
        return self.data[:, list(blocks)]


# %% exercise="6.3"
def swap_out(device, host, blocks):
    """Move blocks to the host; returns the host's blocks."""
    ### BEGIN SOLUTION
    host_blocks = host.allocate(len(blocks))
    host.data[:, host_blocks] = device.data[:, blocks]
    device.free(blocks)
    return host_blocks
    ### END SOLUTION


def swap_in(device, host, host_blocks):
    """Move blocks back to the device; returns the device's blocks."""
    ### BEGIN SOLUTION
    blocks = device.allocate(len(host_blocks))
    device.data[:, blocks] = host.data[:, host_blocks]
    host.free(host_blocks)
    return blocks
    ### END SOLUTION


# %% [raw] exercise="6.4"
# title: Recompute or swap?
# objective: compute from a data sheet which of the two ways back is cheaper.
# difficulty: 2
# importance: 3
# minutes: 10
# lines: 5
# predict: |
#   A model with 8 KV heads for 64 query heads, and one of the same size with 64 KV heads. For which of the two is
#   swap the better choice, compared with recompute?
# predicted: |
#   For the one with 8 KV heads. It has an eighth of the bytes to copy, and as many operations to compute again.
# hints:
#   - "Whole blocks are copied: round the tokens up to blocks. And count the way: the blocks go out, and come back."
#   - "A link's speed is given in Gbit/s: 10⁹ bits a second, and a byte has 8 of them."
#   - "Both costs are proportional to the tokens, if the rest of the last block is left out. So set the cost of one
#     token equal on both sides, and solve for the link's speed."

# %% [markdown]
# All functions return plain numbers, in the units that their names say.
#
# - `swap_seconds(num_tokens, block_size, kv_bytes_per_token, link_gbit)`: the time to copy a sequence to the host *and
#   back*. Whole blocks are copied. `link_gbit` is the link's speed in one direction, in Gbit/s (10⁹ bits a second).
# - `recompute_seconds(num_tokens, num_parameters, tflops)`: the time to prefill it again, two operations for each
#   parameter and token, on a device that does `tflops` · 10¹² operations a second.
# - `break_even_gbit(kv_bytes_per_token, num_parameters, tflops)`: the link's speed, in Gbit/s, at which one token
#   costs the same both ways. (Leave out that blocks are whole.)


# %% exercise="6.4"
def swap_seconds(num_tokens, block_size, kv_bytes_per_token, link_gbit):
    ### BEGIN SOLUTION
    slots = -(-num_tokens // block_size) * block_size
    return 2 * slots * kv_bytes_per_token * 8 / (link_gbit * 1e9)
    ### END SOLUTION


def recompute_seconds(num_tokens, num_parameters, tflops):
    ### BEGIN SOLUTION
    return 2 * num_parameters * num_tokens / (tflops * 1e12)
    ### END SOLUTION


def break_even_gbit(kv_bytes_per_token, num_parameters, tflops):
    ### BEGIN SOLUTION
    return 2 * kv_bytes_per_token * 8 / recompute_seconds(1, num_parameters, tflops) / 1e9
    ### END SOLUTION


# %% [markdown]
# ## What you have built
#
# The decisions of a scheduler. The course's own are `paged_ref/scheduling/scheduler.py` and `paged_ref/scheduling/block_manager.py`; compare them
# with yours: theirs serve several sequences of one request together, share blocks, and keep a watermark. In chapter 7
# your step and your preemption carry a real model.
