# ---
# course:
#   depends: [curriculum/questions/*.toml, bench/results/attention_cpu.json]
# ---

# %% [markdown]
# # 10 · The interview
#
# **You will be able to** explain PagedAttention in two minutes, in the order that carries; recognise the four
# answers that cost people the job, and say which figure refutes each; find out what you do not know; and solve
# three design problems on a whiteboard, with numbers.
#
# 70 minutes to read and work through · you need: the chapters before, or the wish to find out which of them you
# need · GPU: not needed
#
# 1. [How such an interview goes](#1-how-such-an-interview-goes)
# 2. [The strong answer](#2-the-strong-answer)
# 3. [Four common mistakes](#3-four-common-mistakes)
# 4. [The trainer](#4-the-trainer)
# 5. [Whiteboard: a 70B for 1,000 users a minute](#5-whiteboard-a-70b-for-1000-users-a-minute)
# 6. [Whiteboard: a pool that preempts](#6-whiteboard-a-pool-that-preempts)
# 7. [Whiteboard: a block size for a new kernel](#7-whiteboard-a-block-size-for-a-new-kernel)
# 8. [What must hold, and what breaks: find the bug](#8-what-must-hold-and-what-breaks-find-the-bug)
# 9. [What you have now](#9-what-you-have-now)
#
# **One evening?** Section 2 aloud, twice. Section 3. Twice five questions of the trainer, and the cells to which it
# sends you. One whiteboard with a clock.

# %% [markdown]
# ## 1 How such an interview goes
#
# Formats differ, four parts recur. A good interviewer changes parts as soon as you have shown what you know, so a
# short right answer buys time for the part in which one can shine.
#
# | part | typical question | what is listened for |
# |---|---|---|
# | explain | "What is PagedAttention, and why does it exist?" | the problem before the mechanism; numbers; limits |
# | compute | "How many users fit on this machine?" | units, rounding up, what is known and what is assumed |
# | design | "Serve this model to so many people." | questions asked back; the first limit; what would change your mind |
# | code | "This kernel is wrong now and then. Find out why." | the smallest input that shows it, before any change |
#
# Three habits help in all four. **Ask before you compute**: each assumption that you name is one that cannot be
# held against you. **Say the unit with the number**: bytes or bits, GB or GiB, per token or per layer. **Say what
# would prove you wrong**: a measurement, a metric, a test.
#
# ## 2 The strong answer
#
# "What is PagedAttention?" Most people begin with the block table. That is the middle. The order that carries:
#
# 1. **The problem**, before any mechanism: what is scarce, and what wastes it.
# 2. **Two numbers that set the waste**: bytes of one token, and the share of a reservation that holds no token.
# 3. **The table**: equal blocks, a table for each sequence, and *the kernel looks it up*.
# 4. **The arithmetic**: how many requests fit, before and after, on a machine that you name.
# 5. **What it buys, and what it costs**: a larger batch, sharing, preemption; a look-up, and a new kernel.
#
# > **Predict**, by doing it: set a clock to two minutes and answer aloud, now. Write down every number that you
# > said. How many were there, and in which of the five places?
#
# Here is a model answer. Its numbers are computed as it is printed; the sentences are yours to change.

# %%
import textwrap

from paged_ref import MODELS
from paged_ref.simulation.capacity import DEVICES, Load, plan_capacity

BLOCK = 16
llama = MODELS["llama-3.1-70b"]
load = Load(prompt_tokens=600, output_tokens=250, max_tokens=8192)
worked = plan_capacity(llama, DEVICES["h100-80gb"], load, num_devices=8, block_size=BLOCK)
before, after = worked.contiguous, worked.paged
reserved_waste, block_waste = (1 - way.usage.shares()["used"] for way in (before, after))
blocks = after.usage.total // BLOCK

paper = plan_capacity(
    MODELS["opt-13b"], DEVICES["a100-40gb"], Load(161, 338, 2048), block_size=BLOCK, memory_fraction=0.95
)
budget = worked.budget / 1e9
more = after.concurrency / before.concurrency
faster, faster_small = (
    one.paged.requests_per_second / one.contiguous.requests_per_second for one in (worked, paper)
)
answer = f"""
A server is limited by the memory for keys and values: how many requests it runs at once, and so how well it uses
the weights it reads in every step. Nobody knows a request's length in advance, so a cache that must lie in one
piece is reserved for the longest, and most of it stays empty.

Take Llama 3.1 70B in 16 bits. One token leaves {llama.kv_bytes_per_token:,} bytes behind, over all layers. A request
of {load.num_tokens} tokens in a reservation of {load.max_tokens:,} wastes {reserved_waste:.0%} of it.

So cut the memory into equal blocks of {BLOCK} tokens, and give each sequence a table from its logical blocks to
physical ones. A block is taken when a token needs it. No hardware translates: the attention kernel itself looks the
block up, so the kernel had to be rewritten. The same table lets sequences share blocks, with a count for each: a
system prompt is stored once, samples fork, and only what diverges is copied.

On eight H100, {budget:.0f} GB are left for the cache. Reservations fit {before.concurrency} requests; in blocks,
{blocks:.0f} for each, {after.concurrency:,} fit. What is wasted is the rest of the last block, at most {BLOCK - 1}
tokens, here {block_waste:.1%}.

That buys a batch {more:.1f} times as large. How much throughput follows depends on what is scarce next: here
arithmetic takes over, and our cost model says {faster:.1f} times; for a 13B on one A100, where memory is what is
scarce, {faster_small:.1f} times. Attention itself gets slower, by the look-ups. With one user, fixed lengths
or memory to spare, I would not page.
"""
paragraphs = [" ".join(part.split()) for part in answer.strip().split("\n\n")]
print("\n\n".join(textwrap.fill(part, 96, break_on_hyphens=False) for part in paragraphs))

# %%
words = sum(len(part.split()) for part in paragraphs)
numbers = sum(any(c.isdigit() for c in word) for part in paragraphs for word in part.split())
print(f"{words} words, {numbers} of them with a figure: {60 * words / 150:.0f} seconds at 150 words a minute")

# %% [markdown]
# Five paragraphs, five parts. Learn the order and recompute the numbers; do not learn the text. What comes back,
# and where its answer stands:
#
# | they ask back | the point | shown in |
# |---|---|---|
# | "Why equal blocks?" | any free one serves: no external fragmentation | [chapter 2](02_block_table.ipynb) |
# | "Why 16?" | waste against look-ups and pieces of memory | section 7 below |
# | "So attention got faster?" | no: the paper's kernel was 20 to 26 % slower than FasterTransformer's | [chapter 3](03_numpy_gather.ipynb) |
# | "What if memory runs out in mid-sentence?" | the latest request goes and comes back | [chapter 6](06_scheduling.ipynb) |
# | "And FlashAttention?" | one is a way to compute, one to store; they compose | [chapter 3](03_numpy_gather.ipynb) |
# | "When would you not use it?" | one user, fixed lengths, memory to spare | [chapter 1](01_fragmentation.ipynb) |
#
# Where the published figures come from is worth a sentence, too. The paper's 2 to 4 times is against systems that
# batch continuously but reserve; the "up to 24 times" of its announcement is against a stack that does neither.
# Quote the first.
#
# ## 3 Four common mistakes
#
# Each of these is said by people who have read an article and built nothing. Read the weak answer, say what is
# wrong with it, and then run the cell that refutes it.
#
# ### "It compresses the KV cache"
#
# > **Predict.** A request of 850 tokens is stored in one piece of just its size, and in blocks. Which takes more
# > bytes? Are the numbers that come back the same to the bit?

# %%
import numpy as np

import paged_ref
from paged_ref import BlockPool, BlockTable, write_kv

rng = np.random.default_rng(8)
pool = BlockPool(num_blocks=100, block_size=BLOCK)
pool.allocate(100)
pool.free(rng.permutation(100).tolist())
table = BlockTable(pool)
slots = np.array(table.append(load.num_tokens))
keys, values = rng.normal(size=(2, load.num_tokens, 2, 8)).astype(np.float32)
key_cache, value_cache = np.zeros((2, 100, BLOCK, 2, 8), np.float32)
write_kv(keys, values, key_cache, value_cache, slots)
returned = key_cache[table.blocks].reshape(-1, 2, 8)[: load.num_tokens]
exact, in_blocks = llama.kv_bytes(load.num_tokens), len(table.blocks) * llama.kv_bytes_per_block(BLOCK)
print("what comes back is the same to the bit:", np.array_equal(returned, keys))
print(f"for Llama 3.1 70B: {exact:,} bytes in one piece, {in_blocks:,} in blocks: {in_blocks - exact:+,}")

# %% [markdown]
# **Why it fails.** Nothing gets smaller: every number is kept, and the rest of the last block comes on top. What
# shrinks is what was reserved and never used. Fewer KV heads (GQA), a latent (MLA) or fewer bits *do* make a token
# smaller, and all three go together with paging. **Say instead:** "It wastes less, so more requests fit."
#
# ### "One only has to change the allocator"
#
# > **Predict.** The old kernel walks from the first key on, in steps of one token. It is pointed at the sequence's
# > first block, and told the right length. How many of its first 16 keys are right, and how many of the rest?

# %%
start = table.blocks[0] * BLOCK
as_it_lies = np.roll(key_cache.reshape(-1, 2, 8), -start, axis=0)[: load.num_tokens]
right = (as_it_lies == keys).all(axis=(1, 2))
print(
    f"keys where the old kernel expects them: {right[:BLOCK].sum()} of the first {BLOCK}, "
    f"{right[BLOCK:].sum()} of the other {len(right) - BLOCK}"
)

query = rng.normal(size=(1, 4, 8)).astype(np.float32)
tables, lens = np.array([table.blocks], dtype=np.int32), np.array([load.num_tokens], dtype=np.int32)
through_table = paged_ref.paged_attention(query, key_cache, value_cache, tables, lens, backend="numpy")
kv_head = np.arange(4) // 2
scores = np.einsum("hd,thd->ht", query[0], keys[:, kv_head]) / 8**0.5
weights = np.exp(scores - scores.max(axis=1, keepdims=True))
dense = np.einsum("ht,thd->hd", weights / weights.sum(axis=1, keepdims=True), values[:, kv_head])
print("attention through the table equals the dense one:", np.allclose(through_table[0], dense, atol=1e-5))
print(f"look-ups for one token of a 70B: {llama.num_layers * llama.num_kv_heads * len(table.blocks):,}")

# %% [markdown]
# **Why it fails.** The first block is right by construction, and everything after it is another sequence's, or
# nobody's. No hardware knows the table, so every kernel that touches the cache had to learn it: the one that
# writes, the one that attends, the one that copies. (The number of look-ups counts one program for each layer and
# KV head.) **Say instead:** "The table is looked up inside the kernel; that is the price, and the reason why it is
# called Paged*Attention*."
#
# ### "There is no waste left"
#
# > **Predict.** Blocks of 16. What is the average waste of a request, in tokens? For which of two traffics is it
# > the larger *share*: long chats, or short instructions?

# %%
from coursekit.views.waste import waste_curve
from paged_ref.workload import TRACES, make_workload

sizes = [1, 2, 4, 8, 16, 32, 64, 128]
curves = {}
for name, trace in TRACES.items():
    n = np.array([job.prompt_tokens + job.output_tokens for job in make_workload(trace, 4000, 1.0)])
    tail = -n % BLOCK
    print(
        f"{name:9} {n.mean():5.0f} tokens on average: {tail.mean():4.1f} wasted slots, "
        f"at most {tail.max()}, {tail.sum() / (n + tail).sum():5.1%} of what is held"
    )
    waste = [(-n % size).sum() / (n + -n % size).sum() for size in sizes]
    curves[name] = waste, [np.ceil(n / size).mean() for size in sizes]
waste_curve("alpaca", sizes, *curves["alpaca"], limit=0.1).show()

# %% [markdown]
# **Why it fails.** The last block is partial, half empty on average, whatever the length. For short requests that
# is nearly a tenth of the memory. And there is more that holds no token of anyone who runs: blocks kept free by the
# watermark, the same text under two keys, cached blocks that nobody asks for again. **Say instead:** "Less than one
# block for each sequence, and no external fragmentation at all."
#
# ### "Prefix caching is another feature"
#
# > **Predict.** A system prompt of 2,000 tokens, 200 conversations of 100 tokens each. How many times as many
# > blocks does it take without a shared table entry? What is the count of the first block with sharing?

# %%
SYSTEM, CONVERSATIONS = 2000, 200


def hold(fork):
    """The pool and the tables of all conversations: forks of one prompt, or each with a copy of its own."""
    pool = BlockPool(40_000, BLOCK)
    system = BlockTable(pool)
    system.append(SYSTEM)
    own = [system.fork() if fork else BlockTable(pool) for _ in range(CONVERSATIONS)]
    for one in own:
        one.append(100 if fork else SYSTEM + 100)
    system.release()
    return pool, own


for fork in (False, True):
    pool, own = hold(fork)
    size = pool.num_used * llama.kv_bytes_per_block(BLOCK)
    print(
        f"{'shared' if fork else 'copied'}: {sum(len(one.blocks) for one in own):,} entries in {len(own)} tables, "
        f"{pool.num_used:,} blocks, {size / 1e9:.1f} GB, count of the first block: {pool.ref_count(own[0].blocks[0])}"
    )

# %%
from coursekit.views.memory_map import take_snapshot
from coursekit.views.table import draw_tables

small = BlockPool(12, 4)
small.allocate(12)
small.free([7, 2, 9, 4, 0, 11])
prompt = BlockTable(small)
prompt.append(8)
users = {0: prompt.fork(), 1: prompt.fork(), 2: prompt.fork()}
for user, tokens in zip(users.values(), (3, 2, 4), strict=True):
    user.append(tokens)
prompt.release()
draw_tables(take_snapshot(small, users), "Three tables, one prompt").show()

# %% [markdown]
# **Why it fails.** With a table, sharing is two entries with the same number and a count, and that is *why* one can
# share at all: in a contiguous cache a prompt would have to lie in front of every continuation. Finding the blocks
# by what they hold comes on top ([chapter 4](04_sharing.ipynb)). **Say instead:** "The table is what makes sharing
# cheap: prefix caching is a hash on top of it."
#
# ## 4 The trainer
#
# A test of five questions that adapts to your answers. It keeps an estimate of your ability in each topic, by the
# Rasch model: the chance of a right answer depends on ability minus difficulty, and difficulty is known from the
# question's level. So one person alone, offline, can be estimated, with an error; and the next question is asked
# where the answer tells most. Every wrong option says why it is wrong, and every question names the cell that shows
# it.
#
# Keyboard: type an option's letter, or the answer, and press Enter; Tab goes from control to control. What you answered
# stays on your machine, and `python3 course.py quiz --forget` deletes it. Without a kernel, read the questions below.

# %%
from coursekit.quiz.widget import trainer

trainer()

# %% [markdown]
# **The daily challenge** is five questions, one of each level, fixed by the date and the same for everyone, so that
# two people can compare. In the terminal: `python3 course.py quiz --daily`. Here for a day of your choice:

# %%
import datetime

from IPython.display import Markdown

from coursekit.quiz.bank import load_bank
from coursekit.quiz.export import cards, folded
from coursekit.quiz.progress import Progress
from coursekit.quiz.session import daily

DAY = datetime.date(2027, 1, 1)  # for today: datetime.datetime.now(datetime.UTC).date()
bank = load_bank()
Markdown(folded(daily(bank, Progress(), DAY).plan))

# %% [markdown]
# **Flash cards.** All questions as a file for Anki (File, Import), with reasons, and tags for chapter, level and
# topic: `python3 course.py quiz --cards cards.txt`. Cards keep their identity, so a later import renews them. Here
# in memory:

# %%
deck = cards(bank)
header = [line for line in deck.splitlines() if line.startswith("#")]
print(
    f"{len(bank)} cards over chapters {', '.join(map(str, bank.chapters()))}, {len(deck) // 1000} kB; the file begins:"
)
print("\n".join(header))

# %% [markdown]
# Other ways to use it: `quiz --topic weak` for what you know least, `--exam 20` for twenty questions without help,
# `--export test.md` to keep a finished test, `--progress` for where you stand.
#
# The three sections that follow are whiteboards. For each: **stop at the line**, take paper and a clock (15
# minutes), and say aloud what you would say to a person. Then read on, and score yourself. The points are for what
# you *said*, in any words.
#
# ## 5 Whiteboard: a 70B for 1,000 users a minute
#
# > *"We want to serve Llama 3.1 70B to 1,000 users a minute. Each request starts with our system prompt of 2,000
# > tokens. What do you need?"*
#
# **Ask back** (each is worth a point; in brackets what we assume from here on):
#
# - Is it the average or the peak? (Average; Poisson arrivals.)
# - How long are the users' own parts, and the answers? (As in the ShareGPT trace.)
# - Is the system prompt the same for everyone, to the token? May tenants share it? (Yes, and yes: one tenant.)
# - Which devices, which precision? (H100 of 80 GB, 16 bits, 90 % of the memory for us.)
# - What must the first token and the gap between tokens not exceed? (One second; 50 ms at the 99th percentile.)
#
# > **Think first.** Three things could run out: memory, bandwidth, arithmetic. Which one does, first, *without*
# > prefix caching? Which one with it? Then: how many GPUs?
#
# ---
#
# **First the work**, in FLOP: two for each parameter and token. Half of the peak is a good prefill.

# %%
SYSTEM, RATE = 2000, 1000 / 60
PROMPT, OUTPUT = (round(x) for x in (TRACES["sharegpt"].prompt_tokens, TRACES["sharegpt"].output_tokens))
h100 = DEVICES["h100-80gb"]
print(f"each request: {SYSTEM} + {PROMPT} tokens in, {OUTPUT} out; {RATE:.1f} requests a second")
for name, prefilled in (("every prompt in full", SYSTEM + PROMPT), ("system prompt cached", PROMPT)):
    flop = 2 * llama.num_parameters * RATE * (prefilled + OUTPUT)
    print(f"{name}: {flop / 1e15:.2f} PFLOP/s, {flop / (0.5 * h100.flops):4.1f} GPUs for arithmetic alone")
print(
    f"weights: {llama.weight_bytes / 1e9:.0f} GB, {llama.weight_bytes / (0.9 * h100.memory):.1f} GPUs for them alone"
)

# %% [markdown]
# So without prefix caching *arithmetic* is the first wall, and it is far: every second, the same 2,000 tokens are
# computed anew for each user. Memory comes second.
#
# **Then how many are in flight** (Little's law): arrivals a second times seconds in the system. The seconds depend
# on the batch, and the batch on the seconds, so we look for the point at which both agree. A step gives every
# running request one token.

# %%
from paged_ref.simulation.cost_model import CostModel

CONTEXT = SYSTEM + PROMPT + OUTPUT / 2  # of a request halfway


def steady(cost, prefilled, rate=RATE):
    """Requests in flight and seconds of a step, where arrivals and departures balance; None: the queue grows."""
    running = 0.0
    for _ in range(500):
        begins = running / OUTPUT  # prompts in a step
        pairs = running * CONTEXT + begins * prefilled * (SYSTEM + PROMPT - prefilled / 2)
        context = running * CONTEXT + begins * (SYSTEM + PROMPT)
        seconds = cost.seconds(round(running + begins * prefilled) or 1, round(context), round(pairs))
        if abs(rate * OUTPUT * seconds - running) < 0.01:
            return running, seconds
        running = rate * OUTPUT * seconds
        if running > 20_000:
            return None
    return None


def machine(num_devices):
    return CostModel(llama, llama.num_parameters, h100, num_devices)


print("GPUs   prompt    room, GB   in flight   fit in memory   gap, ms   verdict")
for num_devices in (2, 4, 8, 16):
    cost = machine(num_devices)
    room = cost.num_blocks(BLOCK)
    for name, prefilled in (("in full", SYSTEM + PROMPT), ("cached", PROMPT)):
        shared = SYSTEM // BLOCK if name == "cached" else 0
        own = -(-(SYSTEM + PROMPT + OUTPUT) // BLOCK) - shared
        fit, found = (room - shared) // own, steady(cost, prefilled)
        line = f"{num_devices:4}   {name:7}   {room * llama.kv_bytes_per_block(BLOCK) / 1e9:8.0f}   "
        if found is None:
            print(f"{line}{'grows':>9}   {fit:13}   {'':7}   no: the queue grows")
            continue
        verdict = "yes" if found[0] <= fit else "no: does not fit"
        print(f"{line}{found[0]:9.0f}   {fit:13}   {1000 * found[1]:7.1f}   {verdict}")

# %% [markdown]
# Of these machines, the one with four GPUs does with the prompt cached what takes sixteen without. (Three would
# carry the arithmetic, but 8 KV heads are shared out over 2, 4 or 8 devices.) The memory on four, for the requests
# that are in flight with the prompt cached:

# %%
from coursekit.views.interview import memory_bars

cost = machine(4)
running, gap = steady(cost, PROMPT)
per_block, per_token = llama.kv_bytes_per_block(BLOCK) / 1e9, llama.kv_bytes_per_token / 1e9
tokens = running * (PROMPT + OUTPUT) * per_token
tail = running * (-(PROMPT + OUTPUT) % BLOCK) * per_token
weights_gb = llama.weight_bytes / 1e9
parts = ("weights", "system prompt", "users' tokens", "held, empty")
ways = {
    "reserve 8,192": (
        running * SYSTEM * per_token,
        running * 8192 * per_token - running * SYSTEM * per_token - tokens,
    ),
    "blocks": (running * SYSTEM * per_token, tail),
    "blocks, shared": (SYSTEM * per_token, tail),
}
bars = {
    name: dict(zip(parts, (weights_gb, system, tokens, empty), strict=True))
    for name, (system, empty) in ways.items()
}
memory_bars(bars, 0.9 * 4 * 80, f"{running:.0f} requests in flight on four GPUs").show()

# %% [markdown]
# Reservations would not fit. Blocks without sharing would, barely; but without sharing the prompt is computed each
# time, and then far more are in flight.
#
# **Check it** before you believe it: the course's own scheduler, driven by Poisson arrivals of random lengths. That
# is where the tails are, which an average cannot show.

# %%
from paged_ref.simulation.simulator import simulate

jobs = make_workload(TRACES["sharegpt"], 600, RATE, max_tokens=8192, shared_tokens=SYSTEM)
for num_devices, cached in ((4, False), (8, False), (4, True)):
    result = simulate(
        jobs, machine(num_devices), enable_prefix_caching=cached, max_tokens=8192, max_num_seqs=1024
    )
    seen = result.metrics.snapshot()
    p50, p99 = (1000 * seen[key] for key in ("itl_p50", "itl_p99"))
    print(
        f"{num_devices} GPUs, {'cached ' if cached else 'in full'}: {seen['peak_running']:3} running at most, "
        f"first token p99 {seen['ttft_p99']:6.2f} s, gap p50 {p50:3.0f} ms, p99 {p99:3.0f} ms, "
        f"preemptions {seen['preemptions']}"
    )

# %% [markdown]
# The averages hold and the tail does not quite: long prompts in the batch stretch a gap. A smaller token budget for
# a step would cut it ([chapter 6](06_scheduling.ipynb)). And a plan needs room for the peak. How far do four GPUs
# go?

# %%
PRICE = 2.50  # dollars for a GPU and hour
for users in (1000, 1250, 1500, 1750, 2000):
    found = steady(machine(4), PROMPT, users / 60)
    said = "the queue grows"
    if found is not None:
        price = 4 * PRICE / 60 / users * 1000
        said = f"{found[0]:3.0f} in flight, gap {1000 * found[1]:2.0f} ms, {price:.3f} dollars for 1,000 requests"
    print(f"{users:,} users a minute: {said}")

saved = (running - 1) * SYSTEM * per_token
read = weights_gb + running * CONTEXT * per_token
print(f"a step reads {read:.0f} GB, {saved:.0f} GB of them the same system prompt again and again")

# %% [markdown]
# The last line is the point that sets a candidate apart. **Prefix caching saves the memory and the arithmetic of
# the prompt. It does not save its reading**: each sequence's program walks through the shared blocks again, in
# every step. A kernel that reads a common prefix once for the whole batch and merges ([chapter
# 5](05_triton_kernel.ipynb) has the merge) is the next thing to build here.
#
# **Also say:** what breaks the sharing (a date at the head of the prompt, a name, a tenant's salt); that the
# prompt's blocks stay hot, so they are not evicted; that a second machine doubles what can fail and halves the
# queue; and which metrics would tell you that you were wrong (block hits, waiting requests, the 99th percentile of
# the gap).

# %%
from coursekit.views.rubric import rubric

rubric(
    [
        (1, "asked for average or peak"),
        (1, "asked for the lengths of prompts and answers, and for a latency to keep"),
        (1, "asked whether the system prompt is the same to the token, and who may share it"),
        (2, "computed the bytes of a token and the size of the weights, with units"),
        (2, "computed the arithmetic of prefill and found that it is the first wall without prefix caching"),
        (2, "came from arrivals to requests in flight, by Little's law"),
        (2, "gave a number of GPUs that the model's KV heads can be shared out over"),
        (2, "counted the shared blocks once, and the rest for each request, rounded up"),
        (2, "said that shared blocks are still read by every sequence in every step"),
        (1, "kept room for the peak, and said how much"),
        (1, "named what breaks the sharing"),
        (1, "named metrics that would show the plan to be wrong"),
    ]
)

# %% [markdown]
# ## 6 Whiteboard: a pool that preempts
#
# > *"You are on call. Since this morning the preemption counter climbs, and users say that answers stall in
# > mid-sentence. The dashboard shows the pool at 100 %. What do you do?"*
#
# **Ask back:**
#
# - Did the load change, or the lengths, or a release? (The load: from one and a half requests a second to three.)
# - Do requests wait? How long until the first token? (You get the dashboard below.)
# - Preempt by recompute or by swap? Watermark? Limit of running requests? (Recompute, none, 256.)
# - What hurts more: to wait before the first word, or in mid-sentence? (In mid-sentence.)
#
# > **Think first.** Is the preemption the illness or a symptom? Name one change that treats the symptom, one that
# > makes something else worse, and the one that cures. Which number on the dashboard tells illness from symptom?
#
# ---
#
# **The dashboard.** The paper's first setup, a 13B on one A100, in our simulator.

# %%
from paged_ref.simulation.cost_model import SETUPS

opt = SETUPS["opt-13b-a100"]
chat = TRACES["sharegpt"]


def serve(rate=3.0, requests=1000, **settings):
    """Run the day's traffic; returns the metrics."""
    jobs = make_workload(chat, requests, rate)
    return simulate(jobs, opt, **{"watermark": 0.0, **settings})


today = serve()
seen = today.metrics.snapshot()
needed = sum(job.prompt_tokens + job.output_tokens for job in make_workload(chat, 1000, 3.0)) - 1000
print(
    f"blocks {seen['num_blocks']}, most used {seen['peak_used_blocks']}; most running {seen['peak_running']}"
)
print(f"preemptions {seen['preemptions']}; tokens computed {seen['computed_tokens']:,}, needed {needed:,}: "
      f"{seen['computed_tokens'] / needed - 1:.0%} more")  # fmt: skip
print(
    f"gap p50 {1000 * seen['itl_p50']:.0f} ms, p99 {1000 * seen['itl_p99']:.0f} ms; "
    f"first token p50 {seen['ttft_p50']:.0f} s"
)

# %% [markdown]
# The first token takes many seconds: requests *queue*. A pool that is full while nobody waits is well used; a pool
# that is full while a queue grows is too small for the load. Is it? The most that this machine can carry, whatever
# the scheduler does:

# %%
slots = opt.num_blocks(BLOCK) * BLOCK
traffic = make_workload(chat, 1000, 3.0)
prompts, outputs = np.array([(job.prompt_tokens, job.output_tokens) for job in traffic]).T
per_request = prompts + outputs / 2 + BLOCK / 2  # slots that it holds, on average over its life
means = {"those who come": per_request.mean(), "those who run": np.average(per_request, weights=outputs)}
for name, held in means.items():
    most = slots / held
    tokens = most * (1 + prompts.sum() / outputs.sum())
    step = opt.seconds(round(tokens), round(most * held), round(most * held))
    rate = most / (outputs.mean() * step)
    print(
        f"average of {name:14}: {held:.0f} slots; {most:.0f} at once, a step of {1000 * step:.0f} ms, "
        f"{rate:.1f} requests a second"
    )
print("there come 3.0 a second")

# %% [markdown]
# The two averages differ because a long answer *stays* longer: at any moment, long requests are over-represented
# among those who run. The first average says that there is room to spare; the second, that the load is about all
# that even a perfect scheduler could carry. **At the limit a queue grows**, and preemptions lower the limit,
# because their tokens are computed twice. Beyond that a setting only chooses *who* waits. Try them, and say before
# each run which column gets better and which gets worse.

# %%
settings = {
    "as it was": {},
    "watermark 1 %": {"watermark": 0.01},
    "watermark 5 %": {"watermark": 0.05},
    "swap": {"preemption": "swap"},
    "at most 24 at once": {"max_num_seqs": 24},
    "twice the blocks": {"num_blocks": 2 * opt.num_blocks(BLOCK)},
    "half the load": {"rate": 1.5},
}
runs = {}
print("setting              preemptions   computed   gap p99, ms   first token p50, s   tokens/s")
for name, setting in settings.items():
    runs[name] = run = serve(**setting)
    seen = run.metrics.snapshot()
    print(
        f"{name:18} {seen['preemptions']:13,} {seen['computed_tokens'] / needed:9.2f}x {1000 * seen['itl_p99']:13.0f} "
        f"{seen['ttft_p50']:20.2f} {run.tokens_per_second:10.0f}"
    )

# %%
from coursekit.views.interview import pool_pressure

histories = {name: runs[name].metrics.history for name in ("as it was", "watermark 5 %", "half the load")}
pool_pressure(histories, opt.num_blocks(BLOCK), until=300).show()

# %% [markdown]
# Read it by rows. A **watermark** keeps blocks free for those who run: most preemptions go, and with them the worst
# of the stalls, at no cost that the table shows. It is the first thing to turn on, tonight. **Fewer at once** makes
# the gap better still, and the wait and the throughput worse: who is not admitted cannot be preempted. **Swap**
# spares the arithmetic and part of the stall, not the preemption. None of them ends the queue, because none makes
# room. **Twice the blocks** (an 8-bit cache, or a second GPU) or **half the load** (a second replica) does: that is
# the cure.
#
# Recompute or swap? Arithmetic against PCIe, and swap pays twice, out and in:

# %%
print("tokens   recompute, ms   swap out and in, ms")
for n in (100, 200, 400, 800, 1600):
    blocks = -(-n // BLOCK)
    print(f"{n:6} {1000 * opt.recompute_seconds(n):15.1f} {2000 * opt.swap_seconds(blocks, BLOCK):21.1f}")

# %% [markdown]
# Here swap is the cheaper one at every length. The answer depends on the model, on the device and on the bus: a
# model with few KV heads has less to copy, one with more parameters more to compute. Compute it, do not remember
# it. (And recompute is not alone in its step: it takes part in a batch that runs anyway.)

# %%
rubric(
    [
        (1, "asked what changed: load, lengths or release"),
        (1, "asked for the queue, or for the time to the first token"),
        (2, "called preemption a symptom, and looked for the cause in the load or the room"),
        (2, "estimated what the pool can carry: slots over tokens held, times tokens a second"),
        (1, "said which request is preempted, and that it loses no token that was generated"),
        (2, "turned the watermark on, and said why it helps: room to grow for those who run"),
        (2, "said that a lower limit of running requests moves the wait before the first token"),
        (1, "compared recompute and swap with numbers of this model"),
        (2, "named a cure that makes room: fewer bytes a token, more memory, or another replica"),
        (1, "said that utilisation of 100 % alone is no alarm, and which metric is"),
        (1, "ruled out a leak: blocks in use when idle"),
    ]
)

# %% [markdown]
# ## 7 Whiteboard: a block size for a new kernel
#
# > *"We write a decode kernel for a new accelerator. Which block size should the cache have?"*
#
# **Ask back:**
#
# - Which model: KV heads, head size, bytes a number? (Llama 3.1 8B, 16 bits.)
# - How long are the requests, and do they share prompts? (ShareGPT; system prompts of 500 to 2,500 tokens.)
# - Does the layout put a token's heads side by side, or a head's tokens? (Tokens first: `[block, slot, head,
#   number]`.)
# - May a tile of the kernel span several blocks, or is a block a tile? (It may.)
# - Can I measure? (You have one measured curve, below.)
#
# > **Think first.** Name three costs that rise with the block size and three that fall. Which two of them decide?
#
# ---
#
# | grows with the block size | shrinks with it |
# |---|---|
# | the empty rest of the last block | look-ups, and pieces in which memory is read |
# | the rest of a shared prompt that fills no block | entries of a table, calls of the allocator |
# | what a copy-on-write copies | keys to hash for a prefix |
#
# **How much slower is a kernel with small blocks?** That must be measured. Published, for one of the best decode
# kernels (FlashInfer on an H100, 32/8 heads of 128, 16 bits): the share of 3.35 TB/s that it reaches, for five
# block sizes and for contiguous memory. Beside it our own compiled CPU loop (SmolLM2, batch 16, 600 tokens, on two
# cores that had other work, so read the trend), as time relative to the fastest.

# %%
import json

from coursekit import ROOT

PUBLISHED = {1: 0.54, 4: 0.76, 8: 0.83, 16: 0.85, 32: 0.86}
CONTIGUOUS = 0.86
rows = json.loads((ROOT / "bench/results/attention_cpu.json").read_text())["rows"]
ours = {
    row["block_size"]: row["milliseconds"]
    for row in rows
    if row["shape"] == "SmolLM2 16 x 600 float32" and row["backend"] == "numba"
}
chip = MODELS["llama-3.1-8b"]
print(
    "block size   published, of contiguous   our CPU loop, of its fastest   one block's keys in a layer, bytes"
)
for size, share in PUBLISHED.items():
    relative = f"{min(ours.values()) / ours[size]:.0%}" if size in ours else "-"
    print(
        f"{size:10} {share / CONTIGUOUS:25.0%} {relative:>30} {size * chip.num_kv_heads * chip.head_dim * 2:37,}"
    )

# %% [markdown]
# The published curve is flat from 16 on; ours loses its time at the same small sizes. **Then the memory.** For each
# size: what a request holds in private blocks, how many fit, and how long a step takes when the keys and values are
# read at the measured speed.

# %%
from coursekit.views.interview import block_size_choice

H100 = DEVICES["h100-80gb"]
one = CostModel(chip, chip.num_parameters, H100)
jobs = make_workload(TRACES["sharegpt"], 4000, 1.0)
rng = np.random.default_rng(7)
at = rng.random(len(jobs))  # how far each request has come
own = np.array([j.prompt_tokens for j in jobs]) + np.floor(at * [j.output_tokens for j in jobs]).astype(int)
shared = rng.integers(500, 2501, len(jobs))
room = 0.9 * H100.memory - chip.weight_bytes


def judge(size):
    """Of one block size: waste, prompt lost to sharing, time lost in the kernel, and tokens a second."""
    lost = shared % size  # of the shared prompt: it fills no block, so everyone keeps it
    held = -(-(own + lost) // size) * size
    at_once = room / (held.mean() * chip.kv_bytes_per_token)
    reached = PUBLISHED.get(size, CONTIGUOUS)
    reading = at_once * (own + shared).mean() * chip.kv_bytes_per_token / (reached * H100.bandwidth)
    step = one.overhead + chip.weight_bytes / (CONTIGUOUS * H100.bandwidth) + reading
    tail = (held - own - lost).mean() / held.mean()
    return tail, lost.mean() / held.mean(), 1 - reached / CONTIGUOUS, at_once, at_once / step


sizes = [1, 4, 8, 16, 32, 64, 128, 256]
judged = {size: judge(size) for size in sizes}
best = max(result[4] for result in judged.values())
print("block size   tail   unshared   slower   requests at once   tokens/s, of the best")
for size, (tail, lost, slower, at_once, rate) in judged.items():
    print(f"{size:10} {tail:6.1%} {lost:10.1%} {slower:8.1%} {at_once:18.0f} {rate / best:23.1%}")

# %%
CHOSEN = 16
costs = {
    "empty rest of the last block": [judged[size][0] for size in sizes],
    "and prompt that fills no block": [sum(judged[size][:2]) for size in sizes],
    "kernel slower than contiguous": [judged[size][2] for size in sizes],
}
block_size_choice(sizes, costs, [judged[size][4] / best for size in sizes], CHOSEN).show()

# %% [markdown]
# The memory's costs rise in proportion, the kernel's falls fast and is gone. **Say 16, and say why it is not
# delicate**: the optimum is flat, so take the smallest size at which *your* kernel is within a percent or two of
# contiguous memory. Small is also the safe side: shorter requests than expected cost memory, and sharing gets
# finer.
#
# What would change the answer: a kernel that needs a block to be a whole tile (a matrix unit that wants 64 or 128
# tokens at once, or a copy engine with descriptors); 8-bit keys, which halve a block's bytes and want twice the
# tokens; contexts of 100,000 tokens, where a block more is nothing; a layout in which one head's rows of a block
# lie together, where the piece that is read at once does grow with the block. And a table's size is *not* an
# argument: four bytes for a block's thousands.

# %%
rubric(
    [
        (1, "asked for the model's KV heads and head size, or computed the bytes of a block"),
        (1, "asked for the lengths, and whether prompts are shared"),
        (1, "asked for the layout, or for what a tile may span"),
        (2, "named the tail of the last block and gave its mean: half a block for each sequence"),
        (2, "named look-ups and the size of pieces as what small blocks cost"),
        (2, "named sharing: only full blocks are shared"),
        (1, "named copy-on-write, hashing or the allocator's calls"),
        (2, "said that the kernel's speed must be measured at several sizes, and against contiguous memory"),
        (2, "weighed both in one number: requests that fit, times the speed of a step"),
        (1, "gave a size, and said how flat the optimum is"),
        (1, "named something that would change the answer"),
    ]
)

# %% [markdown]
# ## 8 What must hold, and what breaks: find the bug
#
# The last part of an interview shows you code that is wrong now and then. People read it line by line and hope. It
# is faster to ask **which inputs cannot show the fault**, because the tests that passed are evidence, too.
#
# What must hold here: with a sliding window of `window` tokens a query sees itself and the `window − 1` tokens
# before it. This function skips the blocks that lie wholly before the window, as a kernel does.


# %%
def windowed(query, keys, values, size, window):
    """Attention of the last token over its window, block by block of `size` tokens: one head, [head_dim]."""
    n = len(keys)
    scores = np.full(n, -np.inf)
    for block in range(max(0, n - window) // size, -(-n // size)):
        for token in range(block * size, min((block + 1) * size, n)):
            if token > n - 1 - window:
                scores[token] = query @ keys[token] / len(query) ** 0.5
    weights = np.exp(scores - scores.max())
    return weights @ values / weights.sum()


def agrees(function, n, size, window, spread=1.0):
    """Whether a function equals attention over the last `window` tokens."""
    rng = np.random.default_rng(n)
    query, (keys, values) = rng.normal(size=16) * spread, rng.normal(size=(2, n, 16)) * spread
    seen = keys[-window:] @ query / 4
    weights = np.exp(seen - seen.max())
    return bool(
        np.allclose(function(query, keys, values, size, window), weights @ values[-window:] / weights.sum())
    )


print("as it should be:", all(agrees(windowed, n, 4, w) for n in (1, 7, 8, 21) for w in (1, 4, 6, 30)))

# %% [markdown]
# > **Predict.** Four mutants: the window is one token too long; one too short; the skipping starts one block late;
# > one block early. Three tests: a context shorter than the window; a window of 8 and blocks of 4 at length 20; a
# > window of 6 at length 21. Which mutants does each test let pass? One of them passes *every* test. Why is it no
# > fault?

# %%
from coursekit.views.mutants import mutant_table, mutate

mutants = {
    "one token too long": mutate(windowed, ("token > n - 1 - window", "token >= n - 1 - window")),
    "one token too short": mutate(windowed, ("token > n - 1 - window", "token > n - window")),
    "one block skipped too many": mutate(
        windowed, ("max(0, n - window) // size", "max(0, n - window) // size + 1")
    ),
    "one block skipped too few": mutate(
        windowed, ("max(0, n - window) // size", "max(0, max(0, n - window) // size - 1)")
    ),
}
tests = {"short context": (5, 4, 8), "on the boundary": (20, 4, 8), "across it": (21, 4, 6)}
caught = {name: [not agrees(mutant, *shape) for shape in tests.values()] for name, mutant in mutants.items()}
mutant_table(caught, list(tests)).show()

# %% [markdown]
# The first row is the fault of real engines, a window of 2,048 that became 2,049. It hides twice: as long as no
# context is longer than the window, and whenever the window begins on a block boundary, where the skipping cuts the
# extra token off. Tests with round numbers (2,048, 16, 4,096) see it never. The last row changes no result: reading
# a block too many is slow, not wrong, and only a count of the bytes would find it.
#
# The method, in four sentences: *The report rules out …, because those inputs work. So the fault needs …, and here
# is the smallest input that has it. It fails. Now this line, and this test stays.* In the exercises you do it four
# times.
#
# ## 9 What you have now
#
# An answer of two minutes with numbers you can recompute; four mistakes and the cell that refutes each; a trainer
# that knows your weak topics; three designs with their arithmetic; a way to look for bugs.
#
# Now the four functions with a planted fault, graded like all exercises:
# [exercises of chapter 10](../exercises/10_interview.ipynb).
#
# Three interview questions. Answer aloud, then look for the cell that shows it.
#
# 1. A shared system prompt is cached. Which of memory, arithmetic and bandwidth does that save, and which not?
# 2. The pool is at 100 % and the preemption counter climbs. Which number tells you whether a setting can help at
#    all?
# 3. A sliding window is one token too long. Describe a test that cannot see it, and one that must.
#
# Next: your weakest topic, `python3 course.py quiz --topic weak`. And the code: `paged_ref/` in the order of its
# README is a page for each chapter.
