# %% [markdown]
# # 1 · Where the memory goes
#
# **You will be able to** compute the KV bytes of any model from its config, split a server's waste into its
# three kinds, reproduce the bars of the vLLM paper by simulation, turn memory into requests and money, and say
# when paging gains nothing.
#
# 60 minutes to read and run · you need: [chapter 0](00_start_here.ipynb), or an idea of what a KV cache is ·
# GPU: not needed
#
# 1. [What one token leaves behind](#1-what-one-token-leaves-behind)
# 2. [Reserving for the worst case](#2-reserving-for-the-worst-case)
# 3. [Three kinds of waste](#3-three-kinds-of-waste)
# 4. [Blocks on demand](#4-blocks-on-demand)
# 5. [The paper's bars, by simulation](#5-the-papers-bars-by-simulation)
# 6. [More requests, more throughput? And what it costs](#6-more-requests-more-throughput-and-what-it-costs)
# 7. [What must hold, and what breaks if it does not](#7-what-must-hold-and-what-breaks-if-it-does-not)
# 8. [Two misunderstandings](#8-two-misunderstandings)
# 9. [When not to page](#9-when-not-to-page)
# 10. [What you have now](#10-what-you-have-now)

# %% [markdown]
# ## 1 What one token leaves behind
#
# In every layer, attention looks at the keys and values of all earlier tokens. They never change, so they are
# kept. A layer's attention is divided into *heads*, which look at different things: *query heads* ask, and *KV heads*
# have the keys and values that they ask; several query heads may ask the same KV head. One token leaves, per layer, a
# vector of `head_dim` numbers for each KV head, twice: K and V.
#
# > **Predict.** Llama 3.1 70B has 80 layers, 64 query heads, 8 KV heads, a head size of 128, and stores its
# > cache in bfloat16, two bytes a number. How many bytes does one token leave behind?

# %%
from paged_ref import MODELS

shape = MODELS["llama-3.1-70b"]
per_token = shape.kv_bytes_per_token
print(
    f"2 (K and V) x {shape.num_layers} layers x {shape.num_kv_heads} KV heads "
    f"x {shape.head_dim} numbers x 2 bytes"
)
print(f"= {per_token:,} bytes, about {per_token / 1e3:.0f} KB")

# %% [markdown]
# The query heads are not in the product. Whoever multiplies with them instead is wrong by the number of query heads for
# each KV head, here 8:

# %%
print(
    f"{shape.num_heads} query heads / {shape.num_kv_heads} KV heads = {shape.num_heads // shape.num_kv_heads}"
)

# %% [markdown]
# Models differ in exactly this. In **MHA** every query head has its own KV head. In **GQA** a group of query heads
# shares one, in **MQA** all do. **MLA** keeps one compressed *latent* vector per token and layer, and a small shared
# positional key, and no K and V at all. A layer with a **sliding window** must keep only the window's tokens. The
# code:

# %%
from coursekit.views.source_code import show_source
from paged_ref import ModelShape

show_source(ModelShape.kv_bytes_per_token, ModelShape.kv_bytes)

# %%
print(f"{'model':15} {'attention':13} {'layers':>6} {'heads':>5} {'KV':>4} {'head_dim':>10}")
for name, model in MODELS.items():
    kv_heads, dim = (
        ("-", f"latent {model.latent_dim}") if model.latent_dim else (model.num_kv_heads, model.head_dim)
    )
    window = (
        f", window {model.sliding_window:,} in {model.num_window_layers} layers"
        if model.sliding_window
        else ""
    )
    print(
        f"{name:15} {model.kind:13} {model.num_layers:6} {model.num_heads:5} {kv_heads:>4} {dim:>10}{window}"
    )

# %% [markdown]
# (`mistral-7b` is version 0.2 or later. The first version had a window of 4,096 tokens in every layer.)
#
# > **Predict.** Which of these models keeps the most for one token, which the least? Which keeps the most for
# > 8,192 tokens?

# %%
print(f"{'model':15} {'attention':13} {'bytes/token':>12} {'8,192 tokens':>13}")
for name, model in sorted(MODELS.items(), key=lambda item: -item[1].kv_bytes_per_token):
    gigabytes = model.kv_bytes(8192) / 1e9
    print(f"{name:15} {model.kind:13} {model.kv_bytes_per_token:12,} {gigabytes:10.3f} GB")

# %% [markdown]
# A 13B model of the older kind keeps more than a 405B model with GQA. And the window turns one of the most
# expensive models into a moderate one as soon as the context is long.
#
# A config from transformers gives a shape, too (here a hand-made one; any object with these names will do):

# %%
from types import SimpleNamespace

config = SimpleNamespace(
    num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3, hidden_size=576, model_type="yours"
)
print(f"{ModelShape.from_config(config, dtype='float16').kv_bytes_per_token:,} bytes per token")

# %% [markdown]
# ## 2 Reserving for the worst case
#
# Kernels before PagedAttention wanted a request's keys and values **in one piece**. A piece has to be taken
# before it is filled, and at admission nobody knows how long the answer will be: the model decides, token by
# token. The piece cannot grow later, because its neighbour begins where it ends. So a server took the longest
# length it allowed.
#
# Our example: 8,192 tokens are allowed. A typical request has a prompt of 600 tokens and gets an answer of 250.
#
# > **Predict.** What share of its reservation does the request use?

# %%
MAX_TOKENS, PROMPT, OUTPUT = 8192, 600, 250

reserved = shape.kv_bytes(MAX_TOKENS)
used = shape.kv_bytes(PROMPT + OUTPUT)
print(f"reserved  {reserved / 1e9:.4f} GB")
print(f"used      {used / 1e9:.4f} GB, by {PROMPT + OUTPUT} tokens")
print(f"wasted    {(reserved - used) / 1e9:.4f} GB, {1 - used / reserved:.1%}")

# %% [markdown]
# The machine has eight H100 of 80 GB. Ninety per cent of the memory is ours, and the weights take their part of it.
# The rest is for keys and values. (A real server also needs some of it for *activations*, the numbers on their way
# through the layers. They are left out here.)

# %%
from paged_ref.sizing import contiguous_capacity, kv_budget

budget = kv_budget(8 * 80e9, shape.weight_bytes, memory_fraction=0.9)
print(f"0.9 x {8 * 80} - {shape.weight_bytes / 1e9:.1f} = {budget / 1e9:.1f} GB")
print(f"weights             {shape.weight_bytes / 1e9:.1f} GB")
print(f"keys and values     {budget / 1e9:.1f} GB")
print(f"requests at once    {contiguous_capacity(budget, shape, MAX_TOKENS)}")

# %% [markdown]
# You may have read 161. That is what comes out if the bytes per token are rounded first:

# %%
rounded = 328e3 * MAX_TOKENS
print(f"from 328 KB: a reservation of {rounded / 1e9:.2f} GB, {435e9 / rounded:.1f} requests")
print(f"exact:       a reservation of {reserved / 1e9:.3f} GB, {budget / reserved:.2f} requests")

# %% [markdown]
# ## 3 Three kinds of waste
#
# At any moment a slot of the memory is in one of four states. Only the first is of use *now*:
#
# | state | the slot is | how it ends |
# |---|---|---|
# | used | holding a token | |
# | **reserved** waste | held for a token that will come | the token comes |
# | **internal** waste | held by a request that will never fill it | the request ends |
# | **external** waste | free, but unusable for whoever waits; or rounded up by the allocator | neighbours end |
#
# Our request in the middle of its answer:

# %%
from paged_ref.sizing import split_reservation

show_source(split_reservation)

# %%
now = PROMPT + OUTPUT // 2
usage = split_reservation(num_tokens=now, final_tokens=PROMPT + OUTPUT, num_slots=MAX_TOKENS)
for name, share in usage.shares().items():
    print(f"{name:9} {getattr(usage, name):5} slots {share:6.1%}")

# %% [markdown]
# The third kind needs several requests. A *first-fit arena* gives each request the first hole that is large
# enough. Its holes become one again when they touch. Give it pieces of different sizes, and take some back.
#
# > **Predict.** After the cell below, 500 of 1,000 slots are free. Does a request of 250 slots fit?

# %%
from paged_ref.contiguous.arena import FirstFitArena

arena = FirstFitArena(1000)
pieces = [arena.allocate(size) for size in (150, 200, 200, 100, 150, 100, 100)]
for number in (0, 2, 4):
    arena.free(pieces[number])


def draw_text(arena, slots_per_mark=50):
    """The arena as a line of text: # is held, . is free."""
    marks = ["#"] * (arena.num_slots // slots_per_mark)
    for start, size in arena.holes():
        for mark in range(start // slots_per_mark, (start + size) // slots_per_mark):
            marks[mark] = "."
    return "".join(marks)


print(draw_text(arena))
print("free slots:     ", arena.num_free)
print("largest hole:   ", max(size for _, size in arena.holes()))
print("a piece of 250: ", arena.allocate(250))

# %% [markdown]
# Enough is free, and it does not fit. Moving the pieces together would help, and costs a copy of gigabytes
# while everyone waits. Exercise 1.3 lets you write this arena.
#
# Now a dashboard. A pool of 26,000 slots, 2,048 tokens allowed, users with 640 tokens each. How many are
# served, and what does the gauge "allocated" say? And the same memory in blocks (next section)?

# %%
from paged_ref import BlockPool, BlockTable, OutOfBlocks

SLOTS, ALLOWED, TOKENS = 26_000, 2_048, 640

dashboard, users = FirstFitArena(SLOTS), 0
while dashboard.allocate(ALLOWED) is not None:
    users += 1
print(f"contiguous: {users} users, {1 - dashboard.num_free / SLOTS:.0%} allocated, "
      f"{users * TOKENS / SLOTS:.0%} of the slots hold a token")  # fmt: skip

pool, tables = BlockPool(num_blocks=SLOTS // 16, block_size=16), []
try:
    while True:
        table = BlockTable(pool)
        table.append(TOKENS)
        tables.append(table)
except OutOfBlocks as error:
    print(
        f"paged:      {len(tables)} users, {pool.num_used / pool.num_blocks:.0%} allocated, "
        f"{len(tables) * TOKENS / SLOTS:.0%} of the slots hold a token"
    )
    print(f"the next:   {error}")  # fmt: skip

# %% [markdown]
# Both gauges read about the same just before somebody is turned away. "Allocated" counts promises, not tokens. Three
# numbers tell the servers apart: the share of the slots that hold a token, the slots that one request holds, and the
# tokens that it has.
#
# Here is the same memory under four rules, at the same step of the same queue. (*Power of two* and *oracle* are the
# paper's two optimistic rules: the first knows the answer's length within a factor of two, the second knows it
# exactly. The three reserving rules use the paper's *buddy allocator*: it rounds every piece up to a power of two, so
# that pieces can be split and joined cheaply.)

# %%
import math

from coursekit.views import arena as arena_view
from coursekit.views.style import display_figure, figure
from paged_ref.contiguous.arena import BuddyArena
from paged_ref.contiguous.server import ContiguousServer, reserve_max, reserve_oracle, reserve_power_of_two
from paged_ref.workload import Trace, make_workload

SMALL, LONGEST, STEP = 4096, 512, 200
queue = make_workload(Trace("small", 60, 90), num_requests=200, rate=math.inf, seed=0, max_tokens=LONGEST)
reserving = {"longest allowed": reserve_max, "power of two": reserve_power_of_two, "oracle": reserve_oracle}
maps = {
    name: arena_view.map_contiguous(queue, BuddyArena(SMALL), reserve, LONGEST, STEP)
    for name, reserve in reserving.items()
}
maps["blocks of 16"] = arena_view.map_paged(queue, BlockPool(SMALL // 16, 16), STEP)

fig, axes = figure(4, 1, width=8, height=4.4, sharex=True)
in_words = []
for ax, (name, (states, running)) in zip(axes, maps.items(), strict=True):
    share = arena_view.shares(states)
    arena_view.draw_map(ax, states)
    ax.set_title(f"{name}: {running} requests, {share['used']:.0%} of the slots hold a token", fontsize=11)
    parts = ", ".join(f"{state} {part:.0%}" for state, part in share.items())
    in_words.append(f"{name}: {running} requests, {parts}")
axes[-1].set_xlabel("slot")
fig.legend(handles=arena_view.legend_handles(), loc="outside lower center", ncols=2)
display_figure(
    fig,
    alt=f"Four strips of {SMALL} slots, coloured by state. " + ". ".join(in_words) + ".",
    summary="The more a rule knows about the future, the less it wastes; blocks know nothing and waste least.",
)
for line in in_words:
    print(line)

# %% [markdown]
# ## 4 Blocks on demand
#
# Cut the memory into blocks of one size and give a request a block **only when it has a token to put in**.
# Then nothing is reserved for a future beyond the last block; any free block serves anyone, so no hole is too
# small; and what is left of internal waste is the unfilled rest of one block per request. Kernels must find a
# token through a table: that is chapter 2.
#
# > **Predict.** Blocks of 16 tokens. How many does our request of 850 tokens hold at its end, and how many of
# > their slots are empty? How many such requests fit on the eight H100?

# %%
from paged_ref.sizing import blocks_for
from paged_ref.sizing import paged_capacity

BLOCK = 16
blocks = blocks_for(PROMPT + OUTPUT, BLOCK)
held = blocks * shape.kv_bytes_per_block(BLOCK)
print(f"a block            {shape.kv_bytes_per_block(BLOCK) / 1e6:.3f} MB")
print(f"blocks             {blocks}, {blocks * BLOCK - PROMPT - OUTPUT} slots empty at the end")
print(f"held               {held / 1e9:.4f} GB")
print(f"requests at once   {paged_capacity(budget, shape, PROMPT + OUTPUT, BLOCK)}")

# %%
contiguous = contiguous_capacity(budget, shape, MAX_TOKENS)
paged = paged_capacity(budget, shape, PROMPT + OUTPUT, BLOCK)
print(f"{paged} / {contiguous} = {paged / contiguous:.1f} times as many")
print(f"with 0.28 GB instead of {held / 1e9:.4f}: {435 / 0.28:,.0f}, which is where 'about 1,550' comes from")
most = max(blocks_for(n, BLOCK) * BLOCK - n for n in range(1, 1000))
print(f"empty slots of a request of any length: at most {most}")

# %% [markdown]
# The paged figure assumes the worst, that every request is at its end at once, and that no block is kept back for those
# that grow.
#
# The example's figures as they are usually told, and as they are:

# %%
rows = [
    ("KV bytes per token", "328 KB", f"{per_token:,} B"),
    ("reservation of 8,192 tokens", "2.69 GB", f"{reserved / 1e9:.3f} GB"),
    ("850 tokens", "0.28 GB", f"{used / 1e9:.4f} GB"),
    ("wasted", "2.41 GB, 90 %", f"{(reserved - used) / 1e9:.3f} GB, {1 - used / reserved:.1%}"),
    ("for keys and values", "435 GB", f"{budget / 1e9:.1f} GB"),
    ("at once, reserved", "161", f"{contiguous}"),
    ("54 blocks", "0.28 GB", f"{held / 1e9:.4f} GB"),
    ("at once, paged", "1,550", f"{paged:,}"),
    ("ratio", "close to 10", f"{paged / contiguous:.1f}"),
]
print(f"{'':30} {'told':>15} {'exact':>18}")
for name, told, exact in rows:
    print(f"{name:30} {told:>15} {exact:>18}")

# %% [markdown]
# One more gain comes with blocks, almost for free: two tables (a request's *table* is the list of its
# blocks) may name the same block. A system prompt of 2,000 tokens, in 200 conversations:

# %%
system_pool = BlockPool(num_blocks=200, block_size=BLOCK)
system = BlockTable(system_pool)
system.append(2000)
conversations = [system.fork() for _ in range(200)]

one = shape.kv_bytes(2000)
print(f"once                     {one / 1e6:.1f} MB")
print(f"in 200 reservations      {200 * one / 1e9:.1f} GB")
print(f"in blocks, {len(conversations)} tables    {system_pool.num_used} blocks, "
      f"{system_pool.num_used * shape.kv_bytes_per_block(BLOCK) / 1e6:.1f} MB")  # fmt: skip

# %% [markdown]
# 2,000 is a multiple of 16, so every block is full and can stay shared. Chapter 4 says what happens to a partly
# filled one.
#
# ## 5 The paper's bars, by simulation
#
# The vLLM paper (2023) measured which share of the KV memory held tokens, in three kinds of reservation and in
# vLLM. The reservations are those of Orca, a server before it, with a buddy allocator. Its setup: OPT-13B on an A100
# of 40 GB, 12 GiB for keys and values, at most 2,048 tokens, prompts and answers as long as those of ShareGPT, a public
# set of conversations. Ours have lengths drawn to have ShareGPT's means (161 tokens in, 338 out).
#
# > **Predict.** Orca (Max) reserves 2,048 slots for everyone. The mean request has about 500 tokens at its end.
# > What share of the memory holds a token, averaged over a request's life?
#
# We run the same queue through our arenas, and through the real scheduler of this course for the last row. No
# model is needed: only lengths matter.

# %%
show_source(ContiguousServer.admit, ContiguousServer.usage)

# %%
from itertools import pairwise

from paged_ref.contiguous.server import serve
from paged_ref.simulation.cost_model import SETUPS
from paged_ref.simulation.simulator import simulate
from paged_ref.sizing import Usage
from paged_ref.workload import TRACES

opt = MODELS["opt-13b"]
NUM_SLOTS = 12 * 2**30 // opt.kv_bytes_per_token
WARM_UP = 500  # steps: at first all requests are equally young
print(f"{opt.kv_bytes_per_token:,} bytes per token, {NUM_SLOTS:,} slots")


def paged_usage(jobs):
    """Slots by state under the course's scheduler, averaged over the steps in which somebody waits."""
    metrics = simulate(jobs, SETUPS["opt-13b-a100"], num_blocks=NUM_SLOTS // BLOCK, block_size=BLOCK).metrics
    total, weight = Usage(0, 0, 0, 0), 0
    for point, after in pairwise(metrics.history):
        if point.waiting and point.step >= WARM_UP:
            held = point.used_blocks * BLOCK
            state = Usage(held - point.wasted_slots, 0, point.wasted_slots, point.free_blocks * BLOCK)
            total, weight = total + state * (after.step - point.step), weight + after.step - point.step
    return total * (1 / weight)


def bars(trace, seed=0):
    """The four servers' average usage, under the names that the paper gives them."""
    jobs = make_workload(trace, num_requests=1000, rate=math.inf, seed=seed)
    reserving = {
        "Orca (Max)": reserve_max,
        "Orca (Pow2)": reserve_power_of_two,
        "Orca (Oracle)": reserve_oracle,
    }
    result = {
        name: serve(jobs, BuddyArena(NUM_SLOTS), rule, warm_up=WARM_UP).average
        for name, rule in reserving.items()
    }
    return result | {"vLLM": paged_usage(jobs)}


# %%
# The paper's figure 2: per cent that hold tokens, are reserved, internal, and "external and others".
PUBLISHED = {
    "Orca (Max)": (20.4, 13.3, 57.3, 8.9),
    "Orca (Pow2)": (26.8, 17.9, 13.6, 41.6),
    "Orca (Oracle)": (38.2, 25.2, 0.0, 36.6),
    "vLLM": (96.3, None, None, None),
}
measured = bars(TRACES["sharegpt"])
columns = (*arena_view.STATES, "used of held")
print(f"{'ours / paper, %':15}" + "".join(f"{column:>15}" for column in columns))
for name, usage in measured.items():
    cells = [
        f"{100 * ours:5.1f} / " + ("   -" if paper is None else f"{paper:4.1f}")
        for ours, paper in zip(usage.shares().values(), PUBLISHED[name], strict=True)
    ]
    cells.append(f"{100 * usage.used / (usage.total - usage.external):5.1f}")
    print(f"{name:15}" + "".join(f"{cell:>15}" for cell in cells))

# %% [markdown]
# The last row needs two remarks. The rest of a last block counts as *internal* there, though most of it will be filled
# (it is *reserved*, if one knows how each request ends; the scheduler does not). And *external* is there not holes, but
# free blocks that the scheduler keeps back. (In *Orca (Max)* it is the end of the memory, too short for 2,048 slots.)

# %%
fig, ax = figure(width=8, height=3.6)
for row, (name, usage) in enumerate(measured.items()):
    arena_view.draw_bar(ax, row, usage)
    ax.plot([PUBLISHED[name][0]] * 2, [row - 0.44, row + 0.44], color="black", linewidth=3)
ax.set_yticks(range(4), list(measured))
ax.invert_yaxis()
ax.set_xlim(0, 100.3)
ax.set_xlabel("% of the KV memory; thick line: the share in use in the paper's figure 2")
ax.set_title("What the memory holds, by simulation")
fig.legend(handles=arena_view.legend_handles(), loc="outside lower center", ncols=2)
told = "; ".join(
    f"{name} {usage.shares()['used']:.1%}, published {PUBLISHED[name][0]} %"
    for name, usage in measured.items()
)
display_figure(
    fig,
    alt=f"Four stacked bars of the KV memory. Share that holds tokens: {told}.",
    summary="Reservations waste most of the memory; blocks waste a few per cent.",
)

# %% [markdown]
# Ours are within a few points of the paper's, not equal, for three reasons that we know. The paper replayed the
# lengths of real conversations; ours are drawn from a log-normal distribution with the same means. The paper's
# requests arrive over time; ours all wait from the beginning. And vLLM's scheduler of 2023 is not ours. (What the
# buddy allocator rounds up counts as external here: that is how the paper's parts come out.) How much do the lengths
# matter? Another seed, a narrower and a wider distribution:

# %%
for label, trace, seed in [
    ("as above", TRACES["sharegpt"], 0),
    ("another seed", TRACES["sharegpt"], 1),
    ("narrower", Trace("narrow", 161.31, 337.99, spread=0.5), 0),
    ("wider", Trace("wide", 161.31, 337.99, spread=1.1), 0),
]:
    used_shares = [f"{usage.shares()['used']:6.1%}" for usage in bars(trace, seed).values()]
    print(f"{label:13}", *used_shares)

# %% [markdown]
# The order never changes. "Earlier systems waste 60 to 80 % of the KV memory" is this range, read from the
# other side:

# %%
for name, usage in measured.items():
    print(f"{name:14} wastes {1 - usage.shares()['used']:.0%}")

# %% [markdown]
# ## 6 More requests, more throughput? And what it costs
#
# Ten times the requests at once are **not** ten times the throughput. A step of a small batch is spent on reading the
# weights, which all requests share: there, more requests are nearly free. A step of a large batch is spent on
# arithmetic and on reading keys and values: there, more requests take more time. `plan` puts memory and time
# together (the time is estimated from data sheets, see `cost_model.py`; chapter 5 measures).
#
# > **Predict.** The 70B example holds nearly ten times the requests. By what factor does its throughput rise?

# %%
from paged_ref.simulation.capacity import DEVICES, Load, plan_capacity

article = Load(PROMPT, OUTPUT, MAX_TOKENS)
machines = [
    ("llama-3.1-70b", "h100-80gb", 8, article),
    ("llama-3.1-70b", "h100-80gb", 4, article),
    ("llama-3.1-8b", "l4", 1, article),
    ("opt-13b", "a100-40gb", 1, Load(161, 338, 2048)),
]
print(
    f"{'':28} {'at once':>14} {'times':>6} {'ms a token':>12} {'throughput, times':>18} {'tokens in a step':>20}"
)
for name, gpu, count, load in machines:
    result = plan_capacity(MODELS[name], DEVICES[gpu], load, count)
    few, many = result.contiguous, result.paged
    slow, slower = (1e3 * s.concurrency / s.requests_per_second / load.output_tokens for s in (few, many))
    prompt_tokens = round(many.concurrency / load.output_tokens * load.prompt_tokens)  # of those that begin
    print(
        f"{name:14}{count} x {DEVICES[gpu].name:11} {few.concurrency:5} -> {many.concurrency:5} "
        f"{many.concurrency / few.concurrency:6.1f} {slow:5.0f} -> {slower:3.0f} "
        f"{many.requests_per_second / few.requests_per_second:18.1f} "
        f"{many.concurrency:6} + {prompt_tokens:4} prompt"
    )
budgets = (
    plan_capacity(MODELS["opt-13b"], DEVICES["a100-40gb"], machines[-1][-1]).budget,
    NUM_SLOTS * opt.kv_bytes_per_token,
)
print(
    f"for keys and values, opt-13b on the A100: {budgets[0] / 1e9:.1f} GB; in section 5: {budgets[1] / 1e9:.1f} GB"
)

# %% [markdown]
# In the first example, 9.5 times the requests in memory bought 1.1 times the throughput. There the arithmetic units
# are busy long before the memory is full, mostly with prompts (last column, in blocks: in each step every request
# gets one token, and the prompts of those that begin come on top). More requests then only make each token slower,
# and a real server would cap the batch and use the memory for longer contexts or for fewer GPUs. Where memory is
# scarce and batches are small, the gain in throughput is nearly the gain in requests.
#
# (The A100 appears twice in this chapter. Here 90 % of its 40 GB, less the weights, are for keys and values; in
# section 5 it is the 12 GiB that the paper gave them.)
#
# **24 times, or 2 to 4 times?** Both are published, against different rivals. The vLLM team's first post measured up to
# 24 times the throughput of HF Transformers, which then served without continuous batching. The paper measured 2 to
# 4 times that of FasterTransformer and Orca, which batch. Our simulator, on the paper's machine, with the same
# 500 requests:

# %%
requests = make_workload(TRACES["sharegpt"], num_requests=500, rate=math.inf, seed=0)
servers = [
    ("one request at a time", 2048, 1),
    ("batched, reserving 2,048 slots each", 2048, 256),
    ("batched, blocks of 16", 16, 256),
]
speeds = {}
for name, size, at_once in servers:
    result = simulate(
        requests, SETUPS["opt-13b-a100"], num_blocks=NUM_SLOTS // size, block_size=size, max_num_seqs=at_once
    )
    speeds[name] = result.tokens_per_second
    print(f"{name:36} {result.tokens_per_second:6.0f} tokens/s")
one, batched, blocks_of_16 = speeds.values()
print(f"blocks against one at a time: {blocks_of_16 / one:.0f} times")
print(f"blocks against reservations:  {blocks_of_16 / batched:.1f} times")
print(f"reservations against one:     {batched / one:.1f} times")

# %% [markdown]
# In our simulation 21 times is 6.4 from batching and 3.3 from blocks, one multiplied by the other; the post's rival is
# not exactly ours. Say against what, whenever you name a factor.
#
# **Money.** A machine has a price per hour and completes so many requests a second, so one request costs
#
#     price per GPU and hour x GPUs / (3600 x requests per second)
#
# Put your own price in; the unit is whatever you pay with.

# %%
PRICE_PER_GPU_HOUR = 2.50

for name, gpu, count, load in machines:
    result = plan_capacity(MODELS[name], DEVICES[gpu], load, count)
    rates = [serving.requests_per_second for serving in (result.contiguous, result.paged)]
    costs = [1000 * PRICE_PER_GPU_HOUR * count / (3600 * rate) for rate in rates]
    print(f"{name:14} {count} x {DEVICES[gpu].name:11} requests/s: {rates[0]:5.2f} -> {rates[1]:5.2f}   "
          f"1,000 requests: {costs[0]:.3f} -> {costs[1]:.3f}")  # fmt: skip

# %% [markdown]
# The estimator asks the same for any choice. The picture is its answer for the example; with a running kernel, choose
# your own below it. In a terminal, `python -m paged_ref plan --help` does the same.

# %%
from coursekit.views.estimator import CHOICES, START, estimate
from coursekit.views.explore import explore

explore(
    estimate,
    "an estimator: choose model, GPU, lengths, block size and price",
    start=START | {"price_per_gpu_hour": PRICE_PER_GPU_HOUR},
    **CHOICES,
)

# %% [markdown]
# ## 7 What must hold, and what breaks if it does not
#
# Two sentences about an arena: **pieces and holes, end to end, are the whole memory**, and **no two holes touch**.
# `check()` states them in code. Let us break the second: an arena that gives back pieces and never joins holes.
#
# > **Predict.** A thousand pieces come and go, and all have been given back. How large is the largest hole?


# %%
import numpy as np


class NeverJoins(FirstFitArena):
    """Frees without looking at the neighbours."""

    def free(self, start):
        size = self._pieces.pop(start)
        self.num_free += size
        self._holes = sorted([*self._holes, (start, size)])


def come_and_go(arena, seed=0):
    """Allocate and free a thousand pieces; at the end everything is free."""
    rng = np.random.default_rng(seed)
    held, refused = [], 0
    for size in rng.integers(20, 200, size=1000).tolist():
        start = arena.allocate(size)
        refused += start is None
        held += [] if start is None else [start]
        while len(held) > 6 or (start is None and held):
            arena.free(held.pop(int(rng.integers(len(held)))))
            start = 0  # not None: after a refusal one piece goes back, not all
    for start in held:
        arena.free(start)
    return refused


for kind in (FirstFitArena, NeverJoins):
    arena = kind(2000)
    refused = come_and_go(arena)
    sizes = [size for _, size in arena.holes()]
    print(f"{kind.__name__:13} refused {refused:3} of 1000; at the end {sum(sizes)} slots are free, "
          f"the largest hole (of {len(sizes)}) has {max(sizes)}")  # fmt: skip

# %% tags=["raises-exception"]
arena.check()

# %% [markdown]
# An empty memory that is full of walls. A pool of equal blocks has no such failure, because it has no holes to
# join: a block is free or it is not.

# %%
shuffled = BlockPool(num_blocks=125, block_size=16)
taken = shuffled.allocate(125)
shuffled.free(np.random.default_rng(0).permutation(taken).tolist()[:63])
print("free blocks, scattered:", shuffled.num_free, "- a request for 63 gets", len(shuffled.allocate(63)))

# %% [markdown]
# ## 8 Two misunderstandings
#
# **"Paging compresses the cache."** It does not change a single byte of a token's keys and values. A request in
# blocks holds *more* than its tokens need, by the rest of its last block:

# %%
exact, in_blocks = shape.kv_bytes(PROMPT + OUTPUT), blocks * shape.kv_bytes_per_block(BLOCK)
print(f"bytes per token, contiguous and paged: {shape.kv_bytes_per_token:,} and "
      f"{shape.kv_bytes_per_block(BLOCK) // BLOCK:,}")  # fmt: skip
print(f"{PROMPT + OUTPUT} tokens, exactly fitting: {exact:,} bytes; in blocks: {in_blocks:,}")
print("blocks hold less than the tokens need:", in_blocks < exact)

# %% [markdown]
# What shrinks a cache is fewer KV heads, a latent, a window, or fewer bits a number: section 1.
#
# **"No waste remains."** Less than one block per request does. With short requests and large blocks that is not
# little:

# %%
print(f"{'tokens':>8}" + "".join(f"{f'B = {size}':>9}" for size in (1, 16, 64, 256)))
for tokens in (20, 78, 850):
    wasted = [1 - tokens / (blocks_for(tokens, size) * size) for size in (1, 16, 64, 256)]
    print(f"{tokens:8}" + "".join(f"{share:9.1%}" for share in wasted))

# %% [markdown]
# And in the simulation of section 5 the last row was not 100 %: last blocks, and the few free blocks that the
# scheduler keeps back so that running requests can grow.
#
# ## 9 When not to page
#
# Paging buys one thing: room for more requests at once when lengths are unknown. Where that is worth nothing, the
# table is only a detour.
#
# **Lengths are fixed and known, one tenant.** Every request is 1,024 tokens, always:

# %%
fixed = NUM_SLOTS // 1024
print("contiguous:", fixed, "requests   paged:", NUM_SLOTS // BLOCK // blocks_for(1024, BLOCK))

# %% [markdown]
# **Batch 1.** One user on one machine: the memory is theirs, whoever manages it. Nobody waits for what is wasted.
#
# **The model is small, or the memory large.** The batch then meets another limit, compute, long before memory is full:

# %%
result = plan_capacity(MODELS["smollm2-135m"], DEVICES["h100-80gb"], Load(600, 250, 2048))
print(f"SmolLM2 on an H100: {result.contiguous.concurrency:,} requests fit with reservations, "
      f"{result.paged.concurrency:,} with blocks")  # fmt: skip
print(f"throughput: {result.paged.requests_per_second / result.contiguous.requests_per_second:.2f} times")

# %% [markdown]
# Already with reservations more fit than anyone would batch.
#
# **There is no KV cache.** A state-space model such as Mamba keeps a state of fixed size, however long the text. Its
# config describes nothing to page:

# %% tags=["raises-exception"]
ModelShape.from_config(
    SimpleNamespace(model_type="mamba", num_hidden_layers=64, hidden_size=2560, state_size=16)
)

# %% [markdown]
# ## 10 What you have now
#
# You can say how many bytes a token costs in any model, where a server's memory goes, and what blocks change: not
# the bytes, but who must hold them, and when. Three things to keep: the arithmetic of section 1, the four states
# of a slot, and "against what?".
#
# **[Exercises for this chapter](../exercises/01_fragmentation.ipynb)**: bytes per token, splitting the waste, your own
# first-fit arena, and how many requests fit.
#
# Three interview questions. Answer aloud, then look for the cell above that shows it.
#
# 1. A model has 40 layers, 40 query heads, 10 KV heads, head size 128, and an fp8 cache. How many bytes does a token
#    leave, and what changes with 40 KV heads?
# 2. A server reports 95 % of its KV memory allocated and serves a third of the users you expected. Which three
#    numbers do you ask for next? (Section 3 names them.)
# 3. Somebody says paging made their server 24 times faster. What do you ask, and how much of it can be paging?
#
# Next: [chapter 2](02_block_table.ipynb) builds the two small things that replace the arena: a pool of blocks and a
# table per sequence.
