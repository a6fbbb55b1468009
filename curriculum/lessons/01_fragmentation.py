# %% [markdown]
# # 1 · Where the memory goes
#
# **You will be able to** compute the KV bytes of any model from its config, split a server's waste into its three kinds,
# reproduce the bars of the vLLM paper by simulation, turn memory into requests and money, and say when paging gains nothing.
#
# 60 minutes · you need: [chapter 0](00_start_here.ipynb), or an idea of what a KV cache is · GPU: not needed
#
# 1. [The bytes of one token](#1-the-bytes-of-one-token)
# 2. [Reserving for the longest request](#2-reserving-for-the-longest-request)
# 3. [Three kinds of waste](#3-three-kinds-of-waste)
# 4. [Blocks on demand](#4-blocks-on-demand)
# 5. [The paper's bars, by simulation](#5-the-papers-bars-by-simulation)
# 6. [From requests to throughput and money](#6-from-requests-to-throughput-and-money)
# 7. [Invariants, and what breaks without them](#7-invariants-and-what-breaks-without-them)
# 8. [Two misunderstandings](#8-two-misunderstandings)
# 9. [When not to page](#9-when-not-to-page)
# 10. [In vLLM and SGLang today](#10-in-vllm-and-sglang-today)
# 11. [You are done when](#11-you-are-done-when)

# %% [markdown]
# ## Recall
#
# 1. What happens in prefill, and what in decode?
#    <details><summary>Answer</summary>Prefill reads the whole prompt in one pass and gives the first new token. Decode gives one token per pass.</details>
# 2. In chapter 0 both servers had nearly all of their memory allocated. What differed?
#    <details><summary>Answer</summary>How much of it held a token, and so how many requests ran at once.</details>
# 3. Why does a step with eight requests take far less than four times as long as a step with two?
#    <details><summary>Answer</summary>Both read all weights of the model once, and all requests share that reading.</details>

# %% [markdown]
# > **On call.** You look at the configuration of the slow server: last week the longest length allowed was raised from 640 to 2,048
# > tokens, "to be safe". The users' chats are as short as before. By the end of this chapter you can say what that one number did, with
# > arithmetic, and which three figures you want beside "95 % allocated".

# %% [markdown]
# ## 1 The bytes of one token
#
# In every layer, attention looks at the keys and values of all earlier tokens. They never change, so they are kept. A layer's
# attention is divided into *heads*, which look for different things. *Query heads* ask;
# [KV heads](../docs/glossary.md#kv-head) hold the keys and values they ask. Several query heads may ask the same KV head.
# Queries are used once and forgotten; keys and values stay.
#
# So one token leaves, in each layer and for each KV head, two vectors of `head_dim` elements: its key and its value.

# %% [raw] predict="1-bytes"
# question: |
#   Llama 3.1 70B has 80 layers, 64 query heads, 8 KV heads and a head size of 128, and stores its cache in bfloat16, two bytes per
#   element. How many bytes does one token leave behind?
# number: 327_680
# unit: bytes
# replies:
#   2_621_440: "That counts the query heads. Which heads keep something?"
#   163_840: "That is one of the two, K or V. Both are kept."
#   4_096: "That is one layer. There are 80."
#   2_048: "That is K or V in one layer. There are two of them, and 80 layers."

# %% answers="1-bytes"
from paged_ref import MODELS

shape = MODELS["llama-3.1-70b"]
per_token = shape.kv_bytes_per_token
print(f"{per_token:,} bytes, about {per_token / 1e3:.0f} KB")

# %% [markdown] exercise="1.1"
# Now write it for any config. The exercise is on its own page; your answer stays there.

# %% reference="1.1"
# The course's version, and yours beside it
from coursekit.learner import compare
from coursekit.views.source_code import show_source
from paged_ref import ModelShape

show_source(ModelShape.kv_bytes_per_token, ModelShape.kv_bytes)
compare("1.1")

# %% [markdown]
# Query heads do not appear in the formula. Multiplying by them is the most common mistake; the result is too large by the number of
# query heads per KV head:

# %%
print(
    f"{shape.num_heads} query heads / {shape.num_kv_heads} KV heads = {shape.num_heads // shape.num_kv_heads}"
)

# %% [markdown]
# Models differ in exactly this ([GQA, MHA, MQA](../docs/glossary.md#gqa-mha-mqa)). In **MHA** every query head has its own KV head.
# In **GQA** a group of query heads shares one; in **MQA** all of them do. [**MLA**](../docs/glossary.md#mla) keeps one compressed
# *latent* vector per token and layer and a small shared positional key, and no K and V at all. A layer with a **sliding
# window** keeps only the window's tokens.

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

# %% [raw] predict="1-most-per-token"
# question: Which of these three keeps the most bytes per token, and which the least? Order them, the most first.
# order: [opt-13b, llama-3.1-405b, llama-3.1-8b]
# shown: [opt-13b, llama-3.1-405b, llama-3.1-8b]

# %% answers="1-most-per-token"
print(f"{'model':15} {'attention':13} {'bytes/token':>12} {'8,192 tokens':>13}")
for name, model in sorted(MODELS.items(), key=lambda item: -item[1].kv_bytes_per_token):
    gigabytes = model.kv_bytes(8192) / 1e9
    print(f"{name:15} {model.kind:13} {model.kv_bytes_per_token:12,} {gigabytes:10.3f} GB")

# %% [markdown]
# A 13B model with MHA keeps more than a 405B model with GQA. And a window turns one of the most expensive models into a
# moderate one as soon as the context is long (last column).
#
# A config from transformers gives a shape, too. Here is a hand-made one; any object with these names works:

# %%
from types import SimpleNamespace

config = SimpleNamespace(
    num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3, hidden_size=576, model_type="yours"
)
print(f"{ModelShape.from_config(config, dtype='float16').kv_bytes_per_token:,} bytes per token")

# %% [markdown]
# ## 2 Reserving for the longest request
#
# Kernels before PagedAttention needed a request's keys and values **contiguous**. A contiguous piece must be taken before it is
# filled, and at admission nobody knows how long the answer will be: the model decides, token by token. The piece cannot grow
# later, because its neighbour begins where it ends. So servers took the longest length they allowed. This course calls that a
# [reservation](../docs/glossary.md#reservation).
#
# The running example, from an article on PagedAttention: 8,192 tokens are allowed. A typical request has a prompt of 600 tokens and an
# answer of 250.

# %% [raw] predict="1-share-wasted"
# question: What percentage of its reservation does the request never use?
# number: 89.6
# unit: "%"
# tolerance: 0.02
# replies: {10.4: "That is the part it uses."}

# %% answers="1-share-wasted"
MAX_TOKENS, PROMPT, OUTPUT = 8192, 600, 250

reserved = shape.kv_bytes(MAX_TOKENS)
used = shape.kv_bytes(PROMPT + OUTPUT)
print(f"reserved  {reserved / 1e9:.4f} GB")
print(f"used      {used / 1e9:.4f} GB, by {PROMPT + OUTPUT} tokens")
print(f"wasted    {(reserved - used) / 1e9:.4f} GB, {1 - used / reserved:.1%}")

# %% [markdown]
# The machine has eight H100. We count 80e9 bytes each, as the name says (the driver reports about 85e9). The server may use 90 % of it,
# the fraction that engines call `gpu_memory_utilization`; the weights take their part, and the rest is for keys and values. (A
# real server also needs room for *activations*, the values on their way through the layers, and for CUDA graphs. We leave both out.)

# %%
from paged_ref.sizing import contiguous_capacity, kv_budget

budget = kv_budget(8 * 80e9, shape.weight_bytes, memory_fraction=0.9)
print(f"0.9 x {8 * 80} - {shape.weight_bytes / 1e9:.1f} = {budget / 1e9:.1f} GB")
print(f"weights             {shape.weight_bytes / 1e9:.1f} GB")
print(f"keys and values     {budget / 1e9:.1f} GB")
print(f"requests at once    {contiguous_capacity(budget, shape, MAX_TOKENS)}")

# %% [markdown]
# You may have read 161. That is the result if the bytes per token are rounded first:

# %%
rounded = 328e3 * MAX_TOKENS
print(f"from 328 KB: a reservation of {rounded / 1e9:.2f} GB, {435e9 / rounded:.1f} requests")
print(f"exact:       a reservation of {reserved / 1e9:.3f} GB, {budget / reserved:.2f} requests")

# %% [markdown]
# ## 3 Three kinds of waste
#
# At any moment a slot of the memory is in one of four states. Only the first is of use *now*:
#
# | state | the slot is | ends when |
# |---|---|---|
# | used | holding a token | |
# | **reserved** waste | held for a token that will come | the token comes |
# | **internal** waste | held by a request that will never fill it | the request ends |
# | **external** waste | free, but useless to the requests that wait; or added by the allocator's rounding | neighbours end |
#
# The vLLM paper divides the waste like this ([section 3.1](https://arxiv.org/abs/2309.06180)). Careful with one word: for the paper, only
# the slots that *will* be filled are reserved; articles often call the whole piece "the reservation", as we do.

# %% [markdown] exercise="1.2"
# Split the slots of one request yourself, in a contiguous piece and in blocks.

# %% reference="1.2"
# The course's version, and yours beside it
from paged_ref.sizing import split_reservation

show_source(split_reservation)
compare("1.2")

# %% [markdown]
# Our request in the middle of its answer:

# %%
now = PROMPT + OUTPUT // 2
usage = split_reservation(num_tokens=now, final_tokens=PROMPT + OUTPUT, num_slots=MAX_TOKENS)
for name, share in usage.shares().items():
    print(f"{name:9} {getattr(usage, name):5} slots {share:6.1%}")

# %% [markdown]
# The third kind, [external fragmentation](../docs/glossary.md#external-fragmentation), needs several requests. A *first-fit arena*
# gives each request the first hole that is large enough, and merges holes that touch. In the next cell it gives out pieces of
# different sizes, fills up, and gets three of them back.

# %% [raw] predict="1-half-free"
# question: |
#   An arena of 1,000 slots gives out pieces of 150, 200, 200, 100, 150, 100 and 100 slots, in this order. Then the first, third and
#   fifth come back, so 500 slots are free. A request wants 250. What does it get?
# choice: nothing, because no hole has 250 slots
# options: [a piece at slot 0, a piece at the lowest hole that is large enough, "nothing, because no hole has 250 slots"]
# replies:
#   a piece at slot 0: "How large is the hole at slot 0, and what is behind it?"
#   a piece at the lowest hole that is large enough: "Which of the three holes is large enough? Do two of them touch?"
# shown: ["largest hole:    200", "a piece of 250:  None"]

# %% answers="1-half-free"
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
# There is enough free space, but not in one piece. Moving the pieces together would help; it copies gigabytes while
# every user waits.

# %% [markdown] exercise="1.3"
# Write this arena. It is the allocator that paging replaced, and its merging is what people get wrong.

# %% reference="1.3"
# The course's version, and yours beside it
show_source(FirstFitArena.allocate, FirstFitArena.free)
compare("1.3")

# %% [markdown]
# Now the dashboard of the on-call story. A pool of 26,000 slots, 2,048 tokens allowed, users with 640 tokens each.

# %% [raw] predict="1-dashboard"
# question: With reservations 12 users fit, at 95 % allocated. How many of these users fit into the same memory in blocks of 16?
# number: 40
# unit: users
# tolerance: 0.05
# replies: {12: "Blocks are not larger than what a user needs. A user has 640 tokens, not 2,048."}
# shown: 40 users

# %% answers="1-dashboard"
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
# And here is the clue. If the server reserves, the longest length alone decides how many users it serves:

# %%
for longest in (TOKENS, ALLOWED):
    print(f"longest length {longest:5,}: {SLOTS // longest} reservations fit")

# %% [markdown]
# Both gauges read about the same just before the next user is turned away. "Allocated" counts promises, not tokens. Three figures
# tell the servers apart: the fraction of the slots that hold a token, the slots that one request holds, and the tokens it has.
#
# Here is the same memory under four rules, at the same step of the same queue. *Power of two* and *oracle* are the paper's two
# optimistic rules: the first knows the answer's length within a factor of two, the second knows it exactly. The three reserving rules
# use a *buddy allocator*, which rounds every piece up to a power of two so that pieces can be split and merged cheaply.

# %%
import math

from coursekit.views import arena as arena_view
from coursekit.views.style import display_figure, figure
from paged_ref.contiguous.arena import BuddyArena
from paged_ref.contiguous.server import reserve_max, reserve_oracle, reserve_power_of_two
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
# Cut the memory into blocks of one size and give a request a block **only when it has a token to put in**. Then nothing is
# reserved beyond the last block. Any free block serves any request, so no hole is too small. What is left of internal waste is the
# unfilled part of one block per request. Kernels must then find a token through a table: that is chapter 2.

# %% [raw] predict="1-paged-that-fit"
# question: |
#   A block has 16 slots. 162 requests fit on the eight H100 with reservations of 8,192 tokens. How many fit in blocks, if each has its
#   850 tokens?
# number: 1_536
# unit: requests
# tolerance: 0.08
# replies: {162: "The reservation is gone: a request holds blocks for 850 tokens."}
# shown: requests at once   1536

# %% answers="1-paged-that-fit"
from paged_ref.sizing import blocks_for, paged_capacity

BLOCK = 16
blocks = blocks_for(PROMPT + OUTPUT, BLOCK)
held = blocks * shape.kv_bytes_per_block(BLOCK)
print(f"a block            {shape.kv_bytes_per_block(BLOCK) / 1e6:.3f} MB")
print(f"blocks             {blocks}, {blocks * BLOCK - PROMPT - OUTPUT} slots empty at the end")
print(f"held               {held / 1e9:.4f} GB")
print(f"requests at once   {paged_capacity(budget, shape, PROMPT + OUTPUT, BLOCK)}")

# %% [markdown]
# An article may say that a block belongs to one layer, and on the same page that it takes 5.2 MB. Both cannot be true: 5.2 MB is all 80
# layers. In one layer the block takes

# %%
print(
    f"{shape.kv_bytes_per_block(BLOCK) // shape.num_layers:,} bytes in each of the {shape.num_layers} layers"
)

# %% [markdown] exercise="1.4"
# Write the whole calculation: from a machine's memory to the requests that fit, with reservations and with blocks.

# %% reference="1.4"
# The course's version, and yours beside it
show_source(kv_budget, contiguous_capacity, paged_capacity)
compare("1.4")

# %%
contiguous = contiguous_capacity(budget, shape, MAX_TOKENS)
paged = paged_capacity(budget, shape, PROMPT + OUTPUT, BLOCK)
print(f"{paged} / {contiguous} = {paged / contiguous:.1f} times as many")
print(f"with 0.28 GB instead of {held / 1e9:.4f}: {435 / 0.28:,.0f}, which is where 'about 1,550' comes from")
most = max(blocks_for(n, BLOCK) * BLOCK - n for n in range(1, 1000))
print(f"empty slots of a request of any length: at most {most}")

# %% [markdown]
# The paged figure assumes the worst, that every request is at its end at once, and that no block is kept back for growth.
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
# Blocks bring one more gain: two tables may name the same block. A system prompt of 2,000 tokens, in 200 conversations:

# %%
system_pool = BlockPool(num_blocks=200, block_size=BLOCK)
system = BlockTable(system_pool)
system.append(2000)
conversations = [system.fork() for _ in range(200)]

one = shape.kv_bytes(2000)
print(f"one copy                 {one / 1e6:.1f} MB")
print(f"a copy per conversation  {200 * one / 1e9:.1f} GB")
print(f"200 reservations of {MAX_TOKENS:,} {200 * reserved / 1e9:.1f} GB")
print(f"in blocks, {len(conversations)} tables    {system_pool.num_used} blocks, "
      f"{system_pool.num_used * shape.kv_bytes_per_block(BLOCK) / 1e6:.1f} MB")  # fmt: skip

# %% [markdown]
# 2,000 is a multiple of 16, so every block is full and can stay shared. Chapter 4 shows what happens to a partly filled one.
#
# ## 5 The paper's bars, by simulation
#
# The vLLM paper ([Kwon et al., 2023](https://arxiv.org/abs/2309.06180), figure 2) shows which fraction of the KV memory held tokens, in three
# kinds of reservation and in vLLM, during the experiments of its section 6.2. The reserving server is the authors' own version of
# [Orca](https://www.usenix.org/conference/osdi22/presentation/yu): the original was not public, so they assumed a buddy allocator for it.
#
# Our setup is the paper's smallest: OPT-13B on one A100 of 40 GB, with 12 GiB for keys and values and at most 2,048 tokens per request. Prompts and
# answers have the mean lengths that the paper gives for ShareGPT, a public set of conversations: 161 tokens in, 338 out.

# %% [raw] predict="1-orca-max"
# question: |
#   Orca (Max) reserves 2,048 slots for every request. A request has about 500 tokens at its end on average. What percentage of the
#   memory holds a token, averaged over the requests' lives?
# number: 20.4
# unit: "%"
# tolerance: 0.25
# replies: {25: "500 of 2,048 is what a request has at its end. What has it on average?"}
# shown: Orca (Max)

# %% answers="1-orca-max"
from coursekit.views.baselines import usage_by_system
from paged_ref.simulation.cost_model import SETUPS
from paged_ref.workload import TRACES

opt, setup = MODELS["opt-13b"], SETUPS["opt-13b-a100"]
NUM_SLOTS = 12 * 2**30 // opt.kv_bytes_per_token
print(f"{opt.kv_bytes_per_token:,} bytes per token, {NUM_SLOTS:,} slots")

# The paper's figure 2: per cent that hold tokens, are reserved, internal, and "external and others".
PUBLISHED = {
    "Orca (Max)": (20.4, 13.3, 57.3, 8.9),
    "Orca (Pow2)": (26.8, 17.9, 13.6, 41.6),
    "Orca (Oracle)": (38.2, 25.2, 0.0, 36.6),
    "vLLM": (96.3, None, None, None),
}
measured = usage_by_system(TRACES["sharegpt"], setup, NUM_SLOTS, BLOCK)
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
# No model runs here, because only lengths matter: the reserving servers run on our arenas, the last row on this course's real scheduler
# (`coursekit/views/baselines.py`). In the last row, the unfilled part of a last block counts as *internal*, although most of it will be filled: the
# scheduler does not know how each request ends. And *external* there is not holes, but free blocks that the scheduler keeps back. In
# *Orca (Max)* it is the end of the memory, too short for 2,048 slots.

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
# Our bars are within a few points of the paper's. They are not equal, for three reasons that we know. The paper replayed the lengths
# of real conversations; ours are drawn from a log-normal distribution with the same means. The paper's requests arrive over time;
# ours all wait from the beginning. And vLLM's scheduler of 2023 is not ours. (What the buddy allocator rounds up counts as
# external here, as the paper's parts suggest.) How much do the lengths matter? Another seed, a narrower and a wider
# distribution:

# %%
for label, trace, seed in [
    ("as above", TRACES["sharegpt"], 0),
    ("another seed", TRACES["sharegpt"], 1),
    ("narrower", Trace("narrow", 161.31, 337.99, spread=0.5), 0),
    ("wider", Trace("wide", 161.31, 337.99, spread=1.1), 0),
]:
    usages = usage_by_system(trace, setup, NUM_SLOTS, BLOCK, seed)
    print(f"{label:13}", *(f"{usage.shares()['used']:6.1%}" for usage in usages.values()))

# %% [markdown]
# The order never changes. "Earlier systems waste 60 to 80 % of the KV memory" (the [vLLM
# announcement](https://blog.vllm.ai/2023/06/20/vllm.html)) is this range, read from the other side:

# %%
for name, usage in measured.items():
    print(f"{name:14} wastes {1 - usage.shares()['used']:.0%}")

# %% [markdown]
# ## 6 From requests to throughput and money
#
# Ten times the requests at once are **not** ten times the throughput. A step of a small batch spends its time reading the
# weights, which all requests share: there, more requests are nearly free. A step of a large batch spends it on arithmetic
# and on reading keys and values: there, more requests take more time.
#
# `plan_capacity` puts memory and time together. Its times are estimates from data sheets (`paged_ref/simulation/cost_model.py`): a step takes as long as its
# arithmetic or its memory traffic, whichever is longer, and communication between the GPUs is left out. Chapter 5 measures.

# %% [raw] predict="1-throughput"
# question: The 70B example holds nearly ten times the requests. By what factor does its throughput rise, by this estimate?
# choice: less than 1.5 times
# options: [about 10 times, about 4 times, less than 1.5 times]
# replies:
#   about 10 times: "That holds while a step only reads weights. Are 162 requests at once still such a small batch?"
#   about 4 times: "Closer. What limits a step with 162 requests, and with 1,536?"
# shown: "9.5     22 -> 190                1.1"

# %% answers="1-throughput"
from paged_ref.simulation.capacity import DEVICES, Load, plan_capacity

article = Load(PROMPT, OUTPUT, MAX_TOKENS)
machines = [
    ("llama-3.1-70b", "h100-80gb", 8, article),
    ("llama-3.1-70b", "h100-80gb", 4, article),
    ("llama-3.1-8b", "l4", 1, article),
    ("opt-13b", "a100-40gb", 1, Load(161, 338, 2048)),
]
print(
    f"{'':28} {'at once':>14} {'times':>6} {'ms per token':>13} {'throughput, times':>18} {'tokens in a step':>20}"
)
for name, gpu, count, load in machines:
    result = plan_capacity(MODELS[name], DEVICES[gpu], load, count)
    few, many = result.contiguous, result.paged
    slow, slower = (1e3 * s.concurrency / s.requests_per_second / load.output_tokens for s in (few, many))
    prompt_tokens = round(many.concurrency / load.output_tokens * load.prompt_tokens)  # of those that begin
    print(
        f"{name:14}{count} x {DEVICES[gpu].name:11} {few.concurrency:5} -> {many.concurrency:5} "
        f"{many.concurrency / few.concurrency:6.1f} {slow:6.0f} -> {slower:3.0f} "
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
# On the first machine the arithmetic units are busy long before the memory is full, mostly with prompts. (Last column, in blocks: in
# each step every request gets one token, and the prompts of the requests that begin come on top.) More requests then only make each
# token slower. A real server would cap the batch and use the memory for longer contexts, or use fewer GPUs. Where memory is
# scarce and batches are small, as on the last two machines, the gain in throughput is nearly the gain in requests.
#
# So an article's "close to 10× the concurrency, which matches the throughput gains that the paper reports" is wrong twice: the paper reports
# 2 to 4 times the throughput at the same latency, and concurrency is not throughput.
#
# (The A100 appears twice in this chapter. Here the server uses 90 % of its 40 GB; in section 5 it is the 12 GiB that the paper gave to keys
# and values.)
#
# **Whenever you quote a speedup, name the baseline.** Published for vLLM in 2023:
#
# | factor | against | what the baseline lacked |
# |---|---|---|
# | up to 24 times the throughput | HF Transformers ([announcement](https://blog.vllm.ai/2023/06/20/vllm.html)) | continuous batching, and paging |
# | up to 22 times the request rate | FasterTransformer ([paper, section 6.2](https://arxiv.org/abs/2309.06180)) | continuous batching, and paging |
# | 2.7 to 8 times the request rate | Orca (Max), section 6.2 | paging |
# | 1.7 to 2.7 times the request rate | Orca (Oracle), section 6.2 | paging, but it knows the future |
#
# How much of such a factor is paging? Take the same 500 requests in three steps, by simulation: from one request at a time to a *static*
# batch (a group starts together, and the next group waits until the longest is done), from there to
# [continuous batching](../docs/glossary.md#continuous-batching), and from reservations to blocks.

# %% [raw] predict="1-three-steps"
# question: Which of the three steps multiplies the throughput most in this simulation, and which least? The largest factor first.
# order: [reservations to blocks, one at a time to a static batch, static to continuous batching]
# shown: ["1. reservations to blocks", "2. one at a time to a static batch", "3. static to continuous batching"]

# %% answers="1-three-steps"
from coursekit.views.baselines import static_batches
from paged_ref.simulation.simulator import simulate

requests = make_workload(TRACES["sharegpt"], num_requests=500, rate=math.inf, seed=0)
servers = [
    ("one request at a time", 2048, 1),
    ("continuous, reserving 2,048 slots each", 2048, 256),
    ("continuous, blocks of 16", 16, 256),
]
speeds = {}
for name, size, at_once in servers:
    result = simulate(requests, setup, num_blocks=NUM_SLOTS // size, block_size=size, max_num_seqs=at_once)
    speeds[name] = result.tokens_per_second
one, continuous, blocks_of_16 = speeds.values()
static = static_batches(requests, setup, 2048, NUM_SLOTS // 2048)
speeds[f"static batches of {NUM_SLOTS // 2048}"] = static
for name, speed in sorted(speeds.items(), key=lambda item: item[1]):
    print(f"{name:39} {speed:6.0f} tokens/s")
print(f"blocks against one at a time: {blocks_of_16 / one:.0f} times, in three steps:")
steps = {
    "one at a time to a static batch": static / one,
    "static to continuous batching": continuous / static,
    "reservations to blocks": blocks_of_16 / continuous,
}
for place, (name, factor) in enumerate(sorted(steps.items(), key=lambda item: -item[1]), 1):
    print(f"{place}. {name:32} {factor:4.1f} times")

# %% [markdown]
# The three factors multiply to the whole. The announcement's baseline ran static batches, so its factor contains the second and the third
# step, and more that a simulation without kernels does not show. That our total is close to 24 means nothing.
#
# **Money.** A machine has a price per hour and completes so many requests per second. So one request costs
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
# The estimator answers the same questions for any choice. The picture shows its answer for the example; with a running notebook kernel, choose your
# own values below it. In a terminal, `python -m paged_ref plan --help` does the same.

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
# ## 7 Invariants, and what breaks without them
#
# An arena has two: **pieces and holes, end to end, are the whole memory**, and **no two holes touch**. `check()` states them in
# code. We break the second, with an arena that takes pieces back and never merges holes.

# %% [raw] predict="1-never-joins"
# question: |
#   An arena of 2,000 slots that never merges holes serves a thousand pieces of 20 to 199 slots, a few at a time. At the end all pieces
#   have come back. How large is its largest hole?
# choice: smaller than 200 slots
# options: [2000 slots, about half of the memory, smaller than 200 slots]
# replies:
#   2000 slots: "All slots are free, but in how many holes?"
#   about half of the memory: "Each hole is at most as large as the piece that was there last."
# shown: ["NeverJoins", "the largest hole (of 225) has 54"]

# %% answers="1-never-joins"
import numpy as np


class NeverJoins(FirstFitArena):
    """Takes a piece back without looking at the holes beside it."""

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
# All free, yet unusable: the holes were never merged. A pool of equal blocks cannot fail like this, because it has no holes to
# merge. A block is free or it is not:

# %%
shuffled = BlockPool(num_blocks=125, block_size=16)
taken = shuffled.allocate(125)
shuffled.free(np.random.default_rng(0).permutation(taken).tolist()[:63])
print("free blocks, scattered:", shuffled.num_free, "- a request for 63 gets", len(shuffled.allocate(63)))

# %% [markdown]
# ## 8 Two misunderstandings
#
# *"Paging compresses the cache."* It does not change a single byte of a token's keys and values. A request in blocks holds
# *more* than its tokens need, by the unfilled part of its last block:

# %%
exact, in_blocks = shape.kv_bytes(PROMPT + OUTPUT), blocks * shape.kv_bytes_per_block(BLOCK)
print(f"bytes per token, contiguous and paged: {shape.kv_bytes_per_token:,} and "
      f"{shape.kv_bytes_per_block(BLOCK) // BLOCK:,}")  # fmt: skip
print(f"{PROMPT + OUTPUT} tokens, exactly fitting: {exact:,} bytes; in blocks: {in_blocks:,}")
print("blocks hold less than the tokens need:", in_blocks < exact)

# %% [markdown]
# Fewer KV heads, a latent, a window or fewer bits per element do shrink a cache: section 1.
#
# *"No waste remains."* Less than one block per request does. With short requests and large blocks that is a lot:

# %%
print(f"{'tokens':>8}" + "".join(f"{f'B = {size}':>9}" for size in (1, 16, 64, 256)))
for tokens in (20, 78, 850):
    wasted = [1 - tokens / (blocks_for(tokens, size) * size) for size in (1, 16, 64, 256)]
    print(f"{tokens:8}" + "".join(f"{share:9.1%}" for share in wasted))

# %% [markdown]
# ## 9 When not to page
#
# Paging buys one thing: room for more requests at once when lengths are unknown. Where that is worth nothing, the table is only a
# detour.
#
# **Lengths are fixed and known, one tenant.** Every request is 1,024 tokens, always:

# %%
fixed = NUM_SLOTS // 1024
print("contiguous:", fixed, "requests   paged:", NUM_SLOTS // BLOCK // blocks_for(1024, BLOCK))

# %% [markdown]
# **Batch 1.** One user on one machine has the whole memory, however it is managed. No other request waits for what is wasted.
#
# **The model is small, or the memory large.** The batch then meets another limit, compute, long before memory is full:

# %%
result = plan_capacity(MODELS["smollm2-135m"], DEVICES["h100-80gb"], Load(600, 250, 2048))
print(f"SmolLM2 on an H100: {result.contiguous.concurrency:,} requests fit with reservations, "
      f"{result.paged.concurrency:,} with blocks")  # fmt: skip
print(f"throughput: {result.paged.requests_per_second / result.contiguous.requests_per_second:.2f} times")

# %% [markdown]
# **There is no KV cache.** A state-space model such as Mamba keeps a state of fixed size, however long the text. Its config
# describes nothing to page:

# %% tags=["raises-exception"]
ModelShape.from_config(
    SimpleNamespace(model_type="mamba", num_hidden_layers=64, hidden_size=2560, state_size=16)
)

# %% [markdown]
# ## 10 In vLLM and SGLang today
#
# As of vLLM 0.29 and SGLang 0.5.16:
#
# | here | vLLM | SGLang |
# |---|---|---|
# | fraction of the memory | `--gpu-memory-utilization`, 0.92 (0.9 up to 0.11); includes the weights ([`vllm/config/cache.py`](https://docs.vllm.ai/en/v0.29.0/api/vllm/config/cache/)) | `--mem-fraction-static`, chosen from the GPU's memory; includes the weights ([server arguments](https://docs.sglang.io/docs/advanced_features/server_arguments.md)) |
# | the cache's size, set directly | `--kv-cache-memory-bytes` | `--max-total-tokens` |
# | block size | `--block-size`, 16 | `--page-size`, 1: a slot per token, no internal waste at all |
# | longest request | `--max-model-len` | `--context-length` |
# | requests that fit | the start-up log: "GPU KV cache size: … tokens, Maximum concurrency for … tokens per request: …x" (`vllm/v1/core/kv_cache_utils.py`) | the start-up log: `max_total_num_tokens=…` |
#
# In both, the longest request no longer sets what a request *holds*. It still appears in the log: vLLM's "maximum concurrency" divides the cache by
# `max_model_len`, as section 2 does, so it is the number of requests that fit in the worst case.
#
# Since the paper: the activations are measured by a trial run at start-up instead of being estimated; models whose layers differ (windows, Mamba) share one pool
# in groups of layers; and other engines page, too, among them [TensorRT-LLM](https://nvidia.github.io/TensorRT-LLM/features/kvcache.html) and
# [Hugging Face TGI](https://github.com/huggingface/text-generation-inference).

# %% [markdown]
# ## 11 You are done when
#
# - you can compute the bytes per token of a model from its config, in your head for round numbers;
# - the checks of exercises 1.1 to 1.4 pass;
# - you can split 95 % "allocated" into used, reserved, internal and external, and name the three figures to ask for;
# - you can explain the on-call clue: a server that reserves serves 12 users instead of 40 once the longest length is 2,048 instead of
#   640, and a server with blocks still serves 40;
# - you name the baseline of every factor, and can say how much of 24× is paging.
#
# Three interview questions. Answer aloud, then look for the cell above that shows it.
#
# 1. A model has 40 layers, 40 query heads, 10 KV heads, head size 128, and an fp8 cache. How many bytes does a token leave,
#    and what changes with 40 KV heads?
# 2. A server reports 95 % of its KV memory allocated and serves a third of the users you expected. Which three figures do
#    you ask for next? (Section 3 names them.)
# 3. A colleague says that paging made their server 24 times faster. What do you ask, and how much of it can be paging?
#
# Further reading: [the vLLM paper](https://arxiv.org/abs/2309.06180), sections 3 and 6; [Orca](https://www.usenix.org/conference/osdi22/presentation/yu), section 3, for
# continuous batching.
#
# Next: [chapter 2](02_block_table.ipynb) builds the two small things that replace the arena: a pool of blocks and a table per
# sequence.
