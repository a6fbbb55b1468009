# %% [markdown]
# # 2 · Block pool and block table
#
# **You will be able to** write a block pool and a block table, find a token's slot in your head, say when a
# block is taken and when a request may start, bound the waste, and choose a block size from a curve.
#
# 60 minutes to read and run · you need: Python, a little NumPy, and why one keeps keys and values ([chapter
# 0](00_start_here.ipynb) shows it) · GPU: not needed
#
# 1. [One memory, cut into blocks](#1-one-memory-cut-into-blocks)
# 2. [Write a block pool](#2-write-a-block-pool)
# 3. [Slot arithmetic](#3-slot-arithmetic)
# 4. [Write a block table](#4-write-a-block-table)
# 5. [When is a block taken?](#5-when-is-a-block-taken)
# 6. [The same from the library](#6-the-same-from-the-library)
# 7. [A history to walk through](#7-a-history-to-walk-through)
# 8. [May this request start?](#8-may-this-request-start)
# 9. [The bound on waste, and a block size from a curve](#9-the-bound-on-waste-and-a-block-size-from-a-curve)
# 10. [The operating system's pages, and where the likeness ends](#10-the-operating-systems-pages-and-where-the-likeness-ends)
# 11. [One table for all layers](#11-one-table-for-all-layers)
# 12. [What must hold, and what breaks if it does not](#12-what-must-hold-and-what-breaks-if-it-does-not)
# 13. [What you have now](#13-what-you-have-now)

# %% [markdown]
# ## 1 One memory, cut into blocks
#
# A server allocates the memory for keys and values **once**, when it starts, and cuts it into **blocks** of
# equal size. A block is room for the keys and values of `block_size` tokens, in every layer. A **slot** is
# room for one token. 16 tokens is a common block size.
#
# What is a block worth for a large model?

# %%
from paged_ref import MODELS
from paged_ref.sizing import human_bytes

BLOCK_SIZE = 16
llama = MODELS["llama-3.1-70b"]
block_bytes = llama.kv_bytes_per_block(BLOCK_SIZE)
print(f"one token: {llama.kv_bytes_per_token:,} bytes over {llama.num_layers} layers")
print(f"one block: {BLOCK_SIZE} tokens, {block_bytes:,} bytes ({human_bytes(block_bytes)})")
print(f"40 GB of memory: {40 * 10**9 // block_bytes:,} blocks")

# %% [markdown]
# All that the rest of this chapter needs to know of those bytes is their number of blocks. The bookkeeping
# works on block **ids**, whole numbers from 0, and never touches a key or a value.
#
# One word first, because it costs people an interview answer: **a block is not a CUDA block.** A CUDA block
# is a group of threads, and the kernel's launch decides how many there are. A decode kernel may launch one
# for each sequence and KV head; each walks through all the KV blocks of its sequence.
#
# > **Predict.** Four sequences, 8 KV heads. The KV block size goes from 16 to 32. What happens to the number
# > of KV blocks, and to the number of CUDA blocks?

# %%
from paged_ref.sizing import blocks_for

lengths = [850, 120, 33, 4000]
print("block size   KV blocks held   CUDA blocks of such a kernel, per layer")
for size in (8, 16, 32):
    held = sum(blocks_for(n, size) for n in lengths)
    print(f"{size:10}   {held:14}   {len(lengths) * llama.num_kv_heads:12}")

# %% [markdown]
# Same word, two things. In this course, "block" is always a KV block.
#
# ## 2 Write a block pool
#
# The pool answers two calls: give me `n` blocks, take these back. A list of free ids is enough. Here is a
# first try.


# %%
class NaivePool:
    """A stack of free block ids; the last one is handed out next."""

    def __init__(self, num_blocks, block_size):
        self.num_blocks, self.block_size = num_blocks, block_size
        self.free_ids = list(range(num_blocks - 1, -1, -1))

    def allocate(self, n):
        return [self.free_ids.pop() for _ in range(n)]

    def free(self, blocks):
        self.free_ids += reversed(blocks)


pool = NaivePool(num_blocks=8, block_size=4)
first = pool.allocate(3)
second = pool.allocate(2)
print("first:", first, "  second:", second)
pool.free(first)
print("after first is freed, 4 more:", pool.allocate(4))

# %% [markdown]
# Blocks of equal size make this so short. There is no search for a hole that is large enough, no merging of
# neighbours: any free block serves as well as any other.
#
# Two flaws are in it. Find them before you run on.
#
# > **Predict.** Two blocks are free and someone asks for three. The call fails with an error. How many blocks
# > are free afterwards?

# %%
print("free before:", len(pool.free_ids))
try:
    pool.allocate(3)
except IndexError as error:
    print("allocate(3) fails:", error)
print("free after: ", len(pool.free_ids))

# %% [markdown]
# The call took two blocks, then failed, and the two are in nobody's hands: **half done**. The caller cannot
# give them back, because it never got them. An operation that fails must change nothing. *All or nothing.*
#
# > **Predict.** A block is freed twice by mistake. Then two sequences ask for one block each. What do they
# > get?

# %%
pool = NaivePool(num_blocks=8, block_size=4)
mine = pool.allocate(1)
pool.free(mine)
pool.free(mine)
print("one sequence gets", pool.allocate(1), "and the other gets", pool.allocate(1))

# %% [markdown]
# The same block, for both. Each will write its keys over the other's. Nothing fails at the point of the
# mistake, and nothing fails later either: the texts go wrong. Section 12 looks at the damage.
#
# Both flaws are mended by looking before acting. The pool must also *know* which blocks are held, so it counts holders.
# (One holder at most for now. Chapter 4 shares blocks, and then the count is what makes it safe.)


# %%
class OutOfBlocks(RuntimeError):
    """Fewer blocks are free than were asked for."""


class SmallPool:
    """Hands out block ids, takes them back, and counts the holders of each. A failing call changes nothing."""

    def __init__(self, num_blocks, block_size):
        self.num_blocks, self.block_size = num_blocks, block_size
        self.free_ids = list(range(num_blocks - 1, -1, -1))
        self.holders = [0] * num_blocks

    def allocate(self, n):
        if n > len(self.free_ids):
            raise OutOfBlocks(f"{n} blocks wanted, {len(self.free_ids)} of {self.num_blocks} are free")
        blocks = [self.free_ids.pop() for _ in range(n)]
        for block in blocks:
            self.holders[block] = 1
        return blocks

    def free(self, blocks):
        blocks = list(blocks)
        for block in blocks:
            known = 0 <= block < self.num_blocks  # Python would take -1 for the last block
            if not known or self.holders[block] == 0 or blocks.count(block) > 1:
                raise ValueError(f"block {block} is not held, or is named twice")
        for block in blocks:
            self.holders[block] = 0
        self.free_ids += reversed(blocks)


pool = SmallPool(num_blocks=8, block_size=4)
held = pool.allocate(6)
for attempt in (lambda: pool.allocate(3), lambda: pool.free([5, 5])):
    try:
        attempt()
    except (OutOfBlocks, ValueError) as error:
        print(f"{type(error).__name__}: {error}; still free: {len(pool.free_ids)}")

# %% [markdown]
# ## 3 Slot arithmetic
#
# A sequence's tokens fill *logical* blocks 0, 1, 2, … in order. The **block table** is a list: its entry `i`
# names the *physical* block behind logical block `i`. With it, token `t` is found by one division and one
# look-up:
#
#     slot(t) = table[t // block_size] * block_size + t % block_size
#
# Take a pool of 1,024 blocks of 16 tokens that has been in use for a while. A new sequence of 20 tokens gets
# two blocks: logical block 0 is physical block 731, logical block 1 is physical block 12. (We bring that
# about with one `free([731, 12, 340])`: the pool hands them out in that order.)

# %%
from paged_ref import BlockPool, BlockTable

big_pool = BlockPool(num_blocks=1024, block_size=16)
big_pool.allocate(1024)
big_pool.free([731, 12, 340])
table = BlockTable(big_pool)
table.append(20)
print("block table:", table.blocks)

# %% [markdown]
# > **Predict**, in your head: the slots of tokens 0, 15, 16 and 19. (To save you work: 16 × 700 = 11,200
# > and 16 × 31 = 496.)

# %%
for t in (0, 15, 16, 19):
    logical, offset = divmod(t, 16)
    physical = table.blocks[logical]
    where = f"logical block {logical}, offset {offset:2}"
    print(f"token {t:2}: {where} -> {physical:3} * 16 + {offset:2} = {physical * 16 + offset}")
print("the library agrees:", [table.slot(t) for t in (0, 15, 16, 19)])

# %% [markdown]
# The sequence grows by 18 tokens, to 38. They do not fit into its two blocks, so it takes a third: block 340.

# %%
from coursekit.views.memory_map import take_snapshot
from coursekit.views.table import draw_tables

table.append(18)
draw_tables(take_snapshot(big_pool, {0: table}), "One sequence, three of the pool's 1,024 blocks").show()

# %% [markdown]
# Tokens 15 and 16 are neighbours in the text and thousands of slots apart in memory. The tokens of
# *one* block always lie side by side. That is all the order there is.
#
# The picture below is the whole chapter, and what the kernel does with it in chapters 3 and 5: from the request
# to the table, to a physical block, to bytes in the GPU's memory (HBM), to the kernel, to the next token.
# With a kernel running, move the sliders until you no longer need them.

# %%
from coursekit.views.explore import explore
from coursekit.views.table import address

KEY_BYTES = llama.num_kv_heads * llama.head_dim * 2  # one token's keys in one layer, two bytes a number


def way_of(token, block_size):
    """The way of one token of a sequence of 38, whatever the block size."""
    blocks = [731, 12, 340, 55, 602, 7, 18, 290, 4, 411][: blocks_for(38, block_size)]
    return address(blocks, block_size, token, KEY_BYTES, num_tokens=38)


explore(
    way_of,
    "two sliders, for a token and for the block size",
    start={"token": 20, "block_size": 16},
    token=range(38),
    block_size=[4, 8, 16, 32],
)

# %% [markdown]
# ## 4 Write a block table
#
# The table is the sequence's side of the bargain: it knows how many tokens there are and which blocks hold
# them. `append` makes room for more tokens and says in which slots they go.


# %%
class SmallTable:
    """One sequence's map from logical to physical blocks."""

    def __init__(self, pool):
        self.pool, self.blocks, self.num_tokens = pool, [], 0

    def append(self, n):
        """Room for n more tokens; returns their slots."""
        needed = -(-(self.num_tokens + n) // self.pool.block_size)  # rounded up
        # The only step that can fail comes before anything is changed.
        self.blocks += self.pool.allocate(needed - len(self.blocks))
        slots = [self.slot(t) for t in range(self.num_tokens, self.num_tokens + n)]
        self.num_tokens += n
        return slots

    def slot(self, t):
        size = self.pool.block_size
        return self.blocks[t // size] * size + t % size

    def release(self):
        """Give every block back."""
        blocks, self.blocks, self.num_tokens = self.blocks, [], 0
        self.pool.free(blocks[::-1])


pool = SmallPool(num_blocks=6, block_size=4)
a, b = SmallTable(pool), SmallTable(pool)
print("a gets 5 tokens: slots", a.append(5))
print("b gets 3 tokens: slots", b.append(3))
print("a gets 4 more:   slots", a.append(4))
print("tables:", a.blocks, b.blocks)

# %% [markdown]
# > **Predict.** Six blocks, four of them taken, and `b` wants 12 more tokens. Does it work? What is in `b`
# > afterwards?

# %%
try:
    b.append(12)
except OutOfBlocks as error:
    print("no:", error)
print(f"b has {b.num_tokens} tokens in blocks {b.blocks}, as before")
print("8 more:", b.append(8))

# %% [markdown]
# ## 5 When is a block taken?
#
# A block is taken **when the first token arrives that does not fit into the last one**, and not earlier. A
# sequence of exactly 8 tokens in blocks of 4 holds two blocks, not three: the ninth token brings the third.
#
# Users of one small engine ask whether this line is a bug:
#
#     if len(sequence) % block_size == 1: take a block
#
# > **Predict.** Is it? Think of *when* the line runs: before or after the token was counted? And for which
# > block size is it wrong at any time?

# %%
size, tokens = 4, list(range(1, 14))
after_append = [n for n in tokens if n % size == 1]
before_append = [n + 1 for n in range(13) if n % size == 0]
by_ceiling = [n for n in tokens if -(-n // size) > -(-(n - 1) // size)]
print("tokens that bring a block, by `len % 4 == 1` after the append: ", after_append)
print("                           by `len % 4 == 0` before the append:", before_append)
print("                           by the ceiling:                     ", by_ceiling)

# %% [markdown]
# Not a bug, but a statement about one moment. After the token is counted, a remainder of 1 means "it is the
# first in its block". Before, a remainder of 0 means "the last block is full". Mix the two moments and every
# block comes one token early or one token late.
#
# It is fragile all the same. It fails for a block size that is sensible in tests, and it fails when several
# tokens come at once, as in a prefill:

# %%
for size in (1, 2, 16):
    taken = sum(length % size == 1 for length in range(1, 33))
    print(
        f"block size {size:2}, 32 tokens one by one: {taken:2} blocks taken, {blocks_for(32, size):2} needed"
    )
print(
    "block size 16, 20 tokens at once:   ", int(20 % 16 == 1), "blocks taken, ", blocks_for(20, 16), "needed"
)

# %% [markdown]
# So `SmallTable.append`, like the library, compares two ceilings: blocks needed after, blocks held before. It
# has no special cases, and it says in one line what must hold: `len(blocks) == ceil(num_tokens /
# block_size)`.
#
# Drawn, for one token after the other (each row is a moment, each box a slot):

# %%
from coursekit.views.waste import growth

growth(range(3, 10), block_size=4).show()

# %% [markdown]
# ## 6 The same from the library
#
# This is `allocate` and `free` as they run in the engine. What is new concerns the prefix cache (chapter 4):
# `forget`, `_is_cached`, and the two ends of the free list. That list is linked, not a stack, because a cache hit
# must take a block out of the *middle* in constant time.

# %%
from coursekit.views.source_code import show_source

show_source(BlockPool.allocate, BlockPool.free)

# %% [markdown]
# And the table's `grow`, which `append` calls. The branch in the middle is copy-on-write, chapter 4 again.

# %%
show_source(BlockTable.grow, BlockTable.slot)

# %% [markdown]
# Do the two pairs really do the same? We let both serve the same random history, and compare every slot and
# every failure. After each step we also check four things that must hold: no block in two tables, nothing
# lost, tables as long as their tokens need, and **every block full but the last one of each table**.

# %%
import random

import paged_ref


def same_history(steps, seed):
    """Drive the small pair and the library's through one random history; returns what was seen."""
    rng = random.Random(seed)
    small, library = SmallPool(24, 4), BlockPool(24, 4)
    pairs, failures = [], 0
    for _ in range(steps):
        if len(pairs) < 6 and rng.random() < 0.3:
            pairs.append((SmallTable(small), BlockTable(library)))
        if not pairs:
            continue
        ours, theirs = rng.choice(pairs)
        if rng.random() < 0.2:
            ours.release(), theirs.release()
            pairs.remove((ours, theirs))
        else:
            n = rng.choice([1, 1, 1, 2, 7, 20])
            try:
                slots = ours.append(n)
            except OutOfBlocks:
                slots = None
                failures += 1
            try:
                assert theirs.append(n) == slots
            except paged_ref.OutOfBlocks:
                assert slots is None
        held = [block for table, _ in pairs for block in table.blocks]
        assert len(held) == len(set(held))
        assert len(held) + len(small.free_ids) == 24
        assert all(len(t.blocks) == blocks_for(t.num_tokens, 4) for t, _ in pairs)
        assert all(0 <= len(t.blocks) * 4 - t.num_tokens < 4 for t, _ in pairs)
        library.check()
    return failures


failures = sum(same_history(400, seed) for seed in range(10))
print("4,000 steps, the same slots and the same failures; times that the pool was dry:", failures)

# %% [markdown]
# ## 7 A history to walk through
#
# Three sequences share a pool of 16 blocks of 4 tokens. B finishes, C takes B's place, A goes on growing.
#
# > **Predict.** C is longer than B was. Where will its blocks be?

# %%
from coursekit.views.pool import History

pool = BlockPool(num_blocks=16, block_size=4)
tables = {0: BlockTable(pool), 1: BlockTable(pool)}
history = History(pool, tables)
for number, n in ((0, 9), (1, 6), (0, 4), (1, 3), (0, 1), (1, 5)):
    tables[number].append(n)
    history.note(f"{'AB'[number]} gets {n} token{'s' if n > 1 else ''}")
tables.pop(1).release()
history.note("B is done and gives its blocks back")
tables[2] = BlockTable(pool)
for number, n in ((2, 18), (0, 4), (2, 5), (0, 6)):
    tables[number].append(n)
    history.note(f"{'A.C'[number]} gets {n} tokens")
history.explore(start=len(history.events) - 1)

# %% [markdown]
# Nothing moved when B left, and C did not need a hole of its own size. It got B's blocks first, and those
# backwards, because a table gives its blocks back tail first (chapter 4 says why). The blocks' order in memory
# has nothing to do with the order of the text:

# %%
draw_tables(history.snapshots[-1]).show()

# %% [markdown]
# **No external fragmentation.** In a memory of pieces of different size, much can be free and yet no piece
# large enough. Here, a request for `n` blocks fails only if fewer than `n` are free. Let a pool be used
# until its free blocks are thoroughly scattered, then ask for all of them:

# %%
rng = random.Random(0)
worn = BlockPool(num_blocks=200, block_size=16)
blocks = worn.allocate(200)
rng.shuffle(blocks)
worn.free(blocks[:80])
free_ids = sorted(worn.free_blocks())
runs, run = [], 1
for before, after in zip(free_ids, [*free_ids[1:], None], strict=True):
    if after == before + 1:
        run += 1
    else:
        runs.append(run)
        run = 1
print(f"{worn.num_free} blocks are free, in {len(runs)} pieces; the largest piece has {max(runs)} blocks")
print("a request for all of them gets", len(worn.allocate(80)))

# %% [markdown]
# A contiguous allocator could have served a request no larger than that largest piece.
#
# In a running server the map has more kinds of block. Below, C was forked from A after 8 tokens (they *share*
# two full blocks), and D is gone, but its full block can still be found by its contents. Chapter 4 explains
# both; the map already shows them. Click a block to see who holds it.

# %%
from coursekit.views.pool import pick_block

pool = BlockPool(num_blocks=16, block_size=4, enable_prefix_caching=True)
pool.allocate(16)
pool.free([7, 1, 12, 9, 4, 11, 3, 0, 2, 5, 6, 8, 10, 13, 14, 15])
tables = {n: BlockTable(pool) for n in range(2)}
tables[0].append(8), tables[1].append(6), tables[0].append(3)
tables[2] = tables[0].fork(8)
tables[2].append(3)
d = BlockTable(pool)
d.append(4)
pool.prefix_cache.publish(None, (1, 2, 3, 4), None, d.blocks[0])
d.release()
pick_block(take_snapshot(pool, tables), selected=7, title="Shared, cached, free, and three partial tails")

# %% [markdown]
# ## 8 May this request start?
#
# A waiting request may start when its blocks are there. How many does it need?
#
# - Its prompt: `ceil(prompt / block_size)` blocks, rounded **up**.
# - **One more, to grow into.** A prompt that fills its last block exactly needs a new block at once, for its first new
#   token. Without it the request would be admitted, and thrown out in the next step.
# - And a few blocks stay free for the requests that already run and go on growing: the **watermark**, a share of the
#   pool, 1 % for instance.
#
# So: admit when `ceil(prompt / block_size) + 1 <= free - watermark`. There are three answers, not two. A
# request whose longest possible length needs more blocks than the *whole* pool has must be refused at once:
# waiting does not help it, and if it waits at the head of the queue, everybody behind it waits for ever.


# %%
def admission(prompt_tokens, max_new_tokens, free, num_blocks, watermark_blocks, block_size=16):
    """OK, LATER or NEVER, for a request beside others that run."""
    longest = prompt_tokens + max_new_tokens - 1  # the last new token is never fed back, so it needs no slot
    if blocks_for(longest, block_size) > num_blocks:
        return "NEVER"
    needed = min(blocks_for(prompt_tokens, block_size) + 1, blocks_for(longest, block_size))
    return "OK" if needed <= free - watermark_blocks else "LATER"


# %% [markdown]
# The `min` is for a request that ends within its prompt's last block. It will not grow, so it needs no block
# for that. (Where nobody says how long the answer may become, as in exercise 2.4, the `+ 1` is always asked, and
# the watermark counts there, too: NEVER is what would not fit with all blocks free and the watermark kept back.)
#
# > **Predict.** 500 blocks, a watermark of 5, blocks of 16. Answer for: (a) a prompt of 32 with 7 blocks free;
# > (b) the same with 8 free; (c) a prompt of 33 with 8 free; (d) a prompt of 6,000 with up to 4,000 new tokens and
# > everything free.

# %%
print("(a)", admission(32, 100, free=7, num_blocks=500, watermark_blocks=5))
print("(b)", admission(32, 100, free=8, num_blocks=500, watermark_blocks=5))
print("(c)", admission(33, 100, free=8, num_blocks=500, watermark_blocks=5))
print("(d)", admission(6000, 4000, free=500, num_blocks=500, watermark_blocks=5))

# %% [markdown]
# The library's scheduler gives the same answers. We ask it 4,000 times, with another request already running (for a
# request that is alone there is no watermark: it may use the whole pool; exercise 2.4 is simpler and always keeps its
# watermark back).

# %%
from paged_ref.scheduling.request import Request, Sequence
from paged_ref.sampling.params import SamplingParams
from paged_ref.scheduling.scheduler import Scheduler


def request_of(prompt_tokens, max_new_tokens, pool, number=0):
    sequence = Sequence([0] * prompt_tokens, prompt_tokens, BlockTable(pool))
    sampling = SamplingParams(max_tokens=max_new_tokens)
    return Request(number, sequence.token_ids, sampling, max_new_tokens, [sequence])


answers = {"OK": 0, "LATER": 0, "NEVER": 0}
rng = random.Random(0)
for _ in range(4000):
    pool = BlockPool(num_blocks=rng.randrange(4, 40), block_size=16)
    scheduler = Scheduler(pool, watermark=rng.choice([0, 0.05, 0.2]))
    scheduler.running.append(request_of(16, 1, pool))
    pool.allocate(rng.randrange(pool.num_blocks))
    prompt, new = rng.randrange(1, 400), rng.randrange(1, 300)
    ours = admission(prompt, new, pool.num_free, pool.num_blocks, scheduler.watermark_blocks)
    assert scheduler.admission(request_of(prompt, new, pool, 1)).name == ours
    answers[ours] += 1
print("4,000 times the same answer:", answers)

# %% [markdown]
# ### What do the `+ 1` and the watermark buy?
#
# When a running sequence needs a block and none is free, someone must give theirs up: the latest request is
# **preempted**. It loses its blocks, waits, and its tokens are computed again. The loop below is a server with
# nothing but that rule in it. 120 requests wait at the door, with lengths drawn to have ShareGPT's means (161 tokens
# in, 338 out). ShareGPT and, below, Alpaca are two public sets: conversations, and short instructions with their
# answers.
#
# > **Predict.** Compare five rules: the prompt's blocks only; one more; one more above a watermark of 1, 5 or 20 %.
# > Which has the most preemptions? Is a higher watermark always better?

# %%
import numpy as np

from paged_ref.workload import TRACES, make_workload

jobs = make_workload(TRACES["sharegpt"], num_requests=120, rate=np.inf, seed=3)


def serve(may_start, num_blocks=500):
    """Serve the jobs; returns steps, preemptions, tokens computed again, and the pool's use in tokens."""
    pool = BlockPool(num_blocks, BLOCK_SIZE)
    # What waits: (tokens it has, tokens it will have at its end).
    waiting = [(job.prompt_tokens, job.prompt_tokens + job.output_tokens) for job in jobs]
    running, steps, preemptions, again, use = [], 0, 0, 0, 0
    while waiting or running:
        steps += 1
        for entry in list(running):
            table, end = entry
            if entry not in running:
                continue  # preempted in this step
            while not pool.num_free and table.num_tokens % BLOCK_SIZE == 0:
                victim, victim_end = running.pop()
                waiting.insert(0, (victim.num_tokens, victim_end))
                preemptions, again = preemptions + 1, again + victim.num_tokens
                victim.release()
                if victim is table:
                    break
            if entry in running:
                table.append(1)
                if table.num_tokens >= end:
                    table.release()
                    running.remove(entry)
        while waiting and may_start(waiting[0][0], pool.num_free, running):
            tokens, end = waiting.pop(0)
            table = BlockTable(pool)
            table.append(tokens)
            running.append((table, end))
        use += sum(table.num_tokens for table, _ in running)
    assert pool.num_free == num_blocks
    return steps, preemptions, again, use / steps / (num_blocks * BLOCK_SIZE)


rules = {"the prompt's blocks only": (0, 0)} | {
    f"one more, watermark {w:.0%}": (1, w) for w in (0, 0.01, 0.05, 0.2)
}
print("rule                        steps   preemptions   tokens again   memory in use")
for name, (more, watermark) in rules.items():

    def may_start(tokens, free, running, more=more, watermark=watermark):
        reserve = int(watermark * 500) if running else 0
        return blocks_for(tokens, BLOCK_SIZE) + more <= free - reserve

    steps, preemptions, again, use = serve(may_start)
    print(f"{name:26} {steps:6}   {preemptions:11}   {again:12,}   {use:13.0%}")

# %% [markdown]
# Each preemption throws computed tokens away. (The loop counts a step as a step, whatever is computed in it;
# on a real machine the fourth column costs time too.) The `+ 1` removes the most pointless preemptions, the
# watermark many more, and a watermark that is too high pays with memory that nobody may use, so it takes more
# steps. Chapter 6 does this with a real scheduler, chunked prefill and swapping.
#
# ## 9 The bound on waste, and a block size from a curve
#
# Every block of a sequence is full but the last, so a sequence wastes **at most `block_size − 1` slots**,
# however long it is. If lengths are spread evenly over the remainders, it wastes half of that on average.
#
# > **Predict.** Blocks of 16. For which lengths is the waste largest? What share of a 10-token sequence's
# > slots is wasted, and of a 10,000-token sequence's?

# %%
waste = {n: blocks_for(n, 16) * 16 - n for n in range(1, 2049)}
print("largest waste:", max(waste.values()), "slots, first at length", max(waste, key=waste.get))
print("average over lengths 1 to 2,048:", sum(waste.values()) / len(waste))
for n in (10, 850, 10_000):
    held = blocks_for(n, 16) * 16
    print(f"{n:6,} tokens: {held - n:2} of {held:6,} slots wasted, {(held - n) / held:.1%}")

# %% [markdown]
# So "paging leaves no waste" is wrong, and it is wrong by the most where sequences are short. Here are the requests
# that a server holds at a random moment, for both traces (lengths drawn to have the means of ShareGPT and Alpaca), in
# a contiguous server that gives each 2,048 slots and in paged ones. A request with a long answer is there for longer,
# so one meets it more often: each counts by its output tokens.

# %%
from coursekit.views.waste import waste_bars, waste_curve


def lengths_in_flight(trace, num_requests=4000):
    """Tokens of the requests that a server holds at a random moment."""
    rng = np.random.default_rng(7)
    jobs = make_workload(TRACES[trace], num_requests, rate=np.inf, seed=1)
    steps = np.array([job.output_tokens for job in jobs])  # a request is held for as many steps
    met = rng.choice(num_requests, size=num_requests, p=steps / steps.sum())
    prompts = np.array([job.prompt_tokens for job in jobs])
    return prompts[met] + (rng.random(num_requests) * steps[met]).astype(int)


bars = {}
for trace in ("sharegpt", "alpaca"):
    n = lengths_in_flight(trace)
    bars[f"{trace}, 2,048 slots each"] = {"tokens": n.sum(), "held, empty": (2048 - n).sum()}
    for size in (16, 128):
        bars[f"{trace}, blocks of {size}"] = {"tokens": n.sum(), "held, empty": (-n % size).sum()}
waste_bars(bars, "What the held memory is spent on").show()
for trace in ("sharegpt", "alpaca"):
    n = lengths_in_flight(trace)
    print(f"{trace}: {n.mean():.0f} tokens a request on average, {n.mean() / 2048:.0%} of 2,048")

# %% [markdown]
# *Held, empty* is every slot without a token, whether one will come or not; chapter 1 splits these slots into reserved
# and internal ones. Its simulated server that reserves 2,048 slots for everyone (Orca (Max)) has about the same share
# in use of what it holds.
#
# ### Choose a block size
#
# Smaller blocks waste less. Why not 1? Because each entry of a table is a look-up, and between two look-ups
# the kernel reads one piece of memory: small blocks mean longer tables, more look-ups and shorter reads.
#
# > **Predict.** Wanted: less than 4 % waste, and as few look-ups as that allows. Which block size for
# > ShareGPT's conversations? Which for Alpaca's short requests? (Their mean lengths stand above.)


# %%
LIMIT = 0.04


def curve(trace):
    """Block sizes, waste and table length for each, and the largest size that wastes less than the limit."""
    n = lengths_in_flight(trace)
    sizes = [2**power for power in range(10)]
    waste = [(-n % size).sum() / (n + -n % size).sum() for size in sizes]
    entries = [np.ceil(n / size).mean() for size in sizes]
    return sizes, waste, entries, max(size for size, share in zip(sizes, waste, strict=True) if share < LIMIT)


def draw_curve(trace):
    return waste_curve(trace, *curve(trace)[:3], LIMIT)


explore(draw_curve, "a choice between the two traces", trace=["sharegpt", "alpaca"])

# %%
print("block size   waste sharegpt   waste alpaca   look-ups sharegpt")
sharegpt, alpaca = curve("sharegpt"), curve("alpaca")
for i, size in enumerate(sharegpt[0][:8]):
    print(f"{size:10}   {sharegpt[1][i]:14.1%}   {alpaca[1][i]:12.1%}   {sharegpt[2][i]:17.1f}")
print("largest size below 4 %:", sharegpt[3], "for sharegpt,", alpaca[3], "for alpaca")

# %% [markdown]
# The waste grows at first in proportion to the block size, and the look-ups fall at first in proportion: as long as
# the blocks are small against the sequences. Where the limit lies is a choice; half of it would halve the block size,
# about. A server does not know its traffic before it starts, so the common 16 leaves a margin on the side of short
# requests. What the curve does not show: how much faster a kernel reads a long piece than a short one (chapter 5
# measures it), and that large blocks are shared less often, because only full blocks are found again by the prefix
# cache (chapter 4).
#
# Is the *size* of the tables an argument against small blocks? Compute it before you say so: an entry is four
# bytes.

# %%
for size in (1, 16):
    num_bytes = llama.kv_bytes_per_block(size)
    print(f"block size {size:2}: 4 bytes of table for {num_bytes:,} bytes of cache, 1 in {num_bytes // 4:,}")

# %% [markdown]
# ## 10 The operating system's pages, and where the likeness ends
#
# | operating system | PagedAttention | the same? |
# |---|---|---|
# | process | sequence | yes: each has an address space that starts at 0 |
# | virtual address | token position | yes |
# | page | logical block | yes: fixed size, filled in order; only the last is partial |
# | page frame | physical block | yes: any free one will do |
# | page table | block table | yes, but of one level: a flat list. An OS needs several, for address spaces that are mostly holes |
# | allocation on first touch | a block when a token needs it | yes, but *before* the write, by the scheduler |
# | copy-on-write after `fork` | copy-on-write after a fork | yes (chapter 4) |
# | shared library pages | shared prompt | yes; found by contents (chapter 4) |
# | swapping a page out | preempting a request | **no**: all of a request or nothing, because every step reads all of it |
# | MMU and TLB translate each access | – | **no**: nothing in the hardware knows the table |
# | page fault | – | **no**: a missing block is known before the step starts, and is an ordinary error |
# | access rights: a wrong address traps | – | **no**: a wrong entry reads somebody else's block |
#
# The last rows matter most. Let us build a memory that one can read: each slot holds one character, which
# stands for that token's keys and values.


# %%
class TextMemory:
    """A KV memory for one layer in which a token's keys and values are one character."""

    def __init__(self, num_blocks, block_size):
        self.cells = np.full((num_blocks, block_size), ".")

    def write(self, slots, text):
        self.cells.reshape(-1)[slots] = list(text)

    def read(self, blocks, num_tokens):
        """What attention does: gather the table's blocks in order, cut off the tail."""
        return "".join(self.cells[blocks].reshape(-1)[:num_tokens])


pool, memory = BlockPool(num_blocks=12, block_size=4), TextMemory(12, 4)
a, b = BlockTable(pool), BlockTable(pool)
for word_a, word_b in (("the cat", "my pin "), (" sat on", "code is"), (" the mat", " 4711")):
    memory.write(a.append(len(word_a)), word_a)
    memory.write(b.append(len(word_b)), word_b)
print("memory: ", "|".join("".join(block) for block in memory.cells))
print("table a:", a.blocks)

# %% [markdown]
# > **Predict.** *The hardware translates the addresses*, some say. Then a kernel could read token `t` of
# > sequence `a` at address `t`, starting from `a`'s first block. What would it read?

# %%
start = a.blocks[0] * 4
print("as if the hardware translated:", repr("".join(memory.cells.reshape(-1)[start : start + a.num_tokens])))
print("with the look-up in software: ", repr(memory.read(a.blocks, a.num_tokens)))

# %% [markdown]
# Nobody translates. The addresses that a GPU kernel issues are plain addresses into one large allocation, and
# the kernel itself must load the table entry, multiply, and add, once for each block. (The GPU's own MMU maps
# that allocation as a whole and knows nothing of blocks.) **That is why the kernel had to change**, and
# chapters 3 and 5 change it. Another design, vAttention, does map pieces on demand with the GPU's virtual
# memory, and its kernels need no table; that is not PagedAttention.
#
# ## 11 One table for all layers
#
# Every token has keys and values in *every* layer, so every layer's storage needs the same room at the same
# time. There are two ways to lay it out, and one table serves both:
#
# - **one pool of storage per layer:** a list of arrays, one a layer, each `[num_blocks, block_size, heads, head_dim]`;
# - **one layered layout:** a single array with the layer as an axis, `[num_layers, num_blocks, …]` as our `KVCache`, or
#   `[num_blocks, num_layers, …]`, where one block's layers lie side by side.
#
# The block id means the same in all of them.

# %%
layers, num_blocks, size, heads, dim = 4, 10, 4, 2, 8
per_layer = [np.zeros((num_blocks, size, heads, dim), np.float32) for _ in range(layers)]
layer_first = np.zeros((layers, num_blocks, size, heads, dim), np.float32)
block_first = np.zeros((num_blocks, layers, size, heads, dim), np.float32)

pool = BlockPool(num_blocks, size)
pool.allocate(num_blocks)
pool.free([7, 1, 4, 9])
table = BlockTable(pool)
slots = np.array(table.append(10))
block, offset = slots // size, slots % size
for layer in range(layers):
    keys = np.random.default_rng(layer).normal(size=(10, heads, dim)).astype(np.float32)
    per_layer[layer][block, offset] = keys
    layer_first[layer, block, offset] = keys
    block_first[block, layer, offset] = keys

reads = [
    (per_layer[i][table.blocks], layer_first[i][table.blocks], block_first[table.blocks, i])
    for i in range(layers)
]
print("one table", table.blocks, "and in every layer the same keys from all three:", end=" ")
print(all((x == y).all() and (x == z).all() for x, y, z in reads))

# %% [markdown]
# The layouts differ in one thing: in how many pieces of memory one block lies. That matters when whole blocks
# move, in a swap to the host or a copy-on-write.


# %%
def pieces(places):
    """How many runs of adjacent places: 4 5 6 9 are two."""
    return 1 + int((np.diff(np.sort(places.reshape(-1))) != 1).sum())


for name, array, of_block in (
    ("layer first", layer_first, np.s_[:, 7]),
    ("block first", block_first, np.s_[7]),
):
    places = np.arange(array.size).reshape(array.shape)[
        of_block
    ]  # where block 7's numbers are, counted in numbers
    print(f"{name}: the keys of block 7 lie in {pieces(places)} piece(s), {places.size * 4:,} bytes in all")
print("one pool per layer: a piece in each of", len(per_layer), "arrays")

# %% [markdown]
# *The block table exists per layer*, some believe. It could. What would be in it?
#
# > **Predict.** Each of 4 layers gets a table of its own over a pool of its own. After the same appends, how
# > do the tables differ? And if the four tables draw from *one* pool that runs dry half-way through a token?

# %%
own_pools = [BlockTable(BlockPool(16, 4)) for _ in range(4)]
for own in own_pools:
    for n in (5, 1, 1, 6):
        own.append(n)
print("own pools:", [own.blocks for own in own_pools])

shared_pool = BlockPool(10, 4)
one_pool = [BlockTable(shared_pool) for _ in range(4)]
for own in one_pool:
    own.append(8)
try:
    for own in one_pool:
        own.append(1)
except paged_ref.OutOfBlocks as error:
    print("one pool: ", error)
print("tokens, by layer:", [own.num_tokens for own in one_pool])

# %% [markdown]
# In the first case the same list four times (80 times in a 70B model). In the second a torn token, which some
# layers have and others do not. One table for all layers says it once, and a token has room in all layers or
# in none. (Models that mix windows and full layers need one table per *kind* of layer.)
#
# ## 12 What must hold, and what breaks if it does not
#
# 1. A block is free exactly when nobody holds it. (Else: leaks, and double owners.)
# 2. A block that may be written has one holder.
# 3. `len(blocks) == ceil(num_tokens / block_size)`; what lies beyond is never read.
#
# ### Broken: a leaked block
#
# A server forgets to release the tables of requests that were *aborted*: the client hung up, an exception took another
# way out. One request in ten, three blocks each.
#
# > **Predict.** 64 blocks. After how many requests does the server stop? Does `pool.check()` notice?

# %%
pool = BlockPool(num_blocks=64, block_size=16)
served = 0
try:
    while True:
        table = BlockTable(pool)
        table.append(40)
        served += 1
        if served % 10:
            table.release()  # every tenth request forgets it
        if served % 50 == 0:
            print(f"after {served:3} requests, none of which is running: {pool.num_free} blocks free")
except paged_ref.OutOfBlocks as error:
    print(f"request {served + 1}: {error}")
pool.check()
print("pool.check() finds nothing")

# %% [markdown]
# It cannot: from the pool's side those blocks are properly held. Only someone who knows *all tables* can
# compare. The library's manager does, and names the block:

# %% tags=["raises-exception"]
from paged_ref.scheduling.block_manager import BlockManager

BlockManager(pool).check([])

# %% [markdown]
# This is why the release belongs in one place that every way out goes through, and why a fleet watches the
# number of free blocks *when idle*. An attacker who can make requests end in the leaking way needs no more
# than patience.
#
# ### Broken: a double free in a pool without counts
#
# > **Predict.** The naive pool again, with a memory that can be read. A's block is freed twice, then B and C
# > start. What do they read back?

# %%
pool, memory = NaivePool(num_blocks=10, block_size=4), TextMemory(10, 4)
a, b, c = SmallTable(pool), SmallTable(pool), SmallTable(pool)
memory.write(a.append(4), "done")
blocks = list(a.blocks)
a.release()
pool.free(blocks)  # the mistake
memory.write(b.append(4), "sell")
memory.write(c.append(4), "buy!")
print("B wrote 'sell' and reads", repr(memory.read(b.blocks, 4)), " tables:", b.blocks, c.blocks)

# %%
pool = BlockPool(num_blocks=10, block_size=4)
a = BlockTable(pool)
a.append(4)
blocks = list(a.blocks)
a.release()
try:
    pool.free(blocks)
except ValueError as error:
    print("with counts:", error)

# %% [markdown]
# ### Broken: a −1 in a table
#
# Tables of different lengths go to the kernel as one rectangle, and its unused entries are often filled with
# −1. *A −1 is harmless: it is out of range, so it will raise.* In NumPy and PyTorch, −1 is the **last**
# element. In a compiled kernel it is an address before the start of the memory.
#
# > **Predict.** B's secret lies in the pool's last block. A's table is one entry short, so the padding is
# > read. Which text does A get?

# %%
pool, memory = BlockPool(num_blocks=10, block_size=4), TextMemory(10, 4)
pool.allocate(10)
pool.free([2, 5, 9, 0])
a, b = BlockTable(pool), BlockTable(pool)
memory.write(a.append(8), "the cat ")
memory.write(b.append(4), "4711")
rectangle = np.full((2, 4), -1)
rectangle[0, :2], rectangle[1, :1] = a.blocks, b.blocks
print(rectangle)
print("A, 8 tokens: ", repr(memory.read(rectangle[0], 8)))
print("A, 12 tokens:", repr(memory.read(rectangle[0], 12)))

# %% [markdown]
# No error: the neighbour's PIN. As long as the length is right, the padding is never read, and any value may
# stand there. The library looks at the *used* part of every table before a kernel may, and says where the
# fault is:

# %% tags=["raises-exception"]
cache = np.zeros((10, 4, 1, 8), np.float32)
query = np.zeros((2, 1, 8), np.float32)
paged_ref.paged_attention(query, cache, cache, rectangle, np.array([12, 4]))

# %% [markdown]
# The same number has one honest use, in the *slot* list of a write: there −1 says "do not write this one",
# and `write_kv` honours it. Plain indexing writes it to the last slot.
#
# ### Not broken: a freed block that is not zeroed
#
# > **Predict.** A's block held "the cat sat". B gets that block and writes "hi". Must the pool clear a block
# > before it hands it out?

# %%
pool, memory = BlockPool(num_blocks=4, block_size=12), TextMemory(4, 12)
a, b = BlockTable(pool), BlockTable(pool)
memory.write(a.append(11), "the cat sat")
reused = list(a.blocks)
a.release()
memory.write(b.append(2), "hi")
print("the same block:", b.blocks == reused, "; in memory:", repr("".join(memory.cells[b.blocks[0]])))
print("B reads:", repr(memory.read(b.blocks, b.num_tokens)))

# %% [markdown]
# No. A slot is written before it is read, and what is beyond the length is not read at all. Clearing would
# write every block twice. What must be right is the *length*: a kernel that multiplies the rest by 0 instead
# of leaving it out gets NaN from an old NaN (chapter 3 shows it).
#
# ## 13 What you have now
#
# A pool that hands out equal blocks, all or nothing, with a count for each; a table that turns a position into a
# slot with one division and one look-up; a rule for who may start; a bound on the waste. None of it compresses
# anything and none of it makes attention faster: it makes room, and the room is filled with more requests.
#
# Now write the pool and the table yourself, with checks that name the mistake: [exercises of chapter
# 2](../exercises/02_block_table.ipynb).
#
# Three interview questions. Answer aloud, then look for the cell that shows it.
#
# 1. A 33-token prompt, blocks of 16, five blocks free, no watermark. May it start? How many slots of its
#    last block are empty once its first new token has been stored?
# 2. Why can a pool of equal blocks have no external fragmentation, and which waste does it have?
# 3. "It is virtual memory for the KV cache." Name three terms that carry over, and three that do not.
#
# Next: [chapter 3](03_numpy_gather.ipynb) writes keys and values through these slots and computes attention through
# the table. You can look ahead at [chapter 7](07_batched_decode.ipynb), where all of it carries a real model.
