# %% [markdown]
# # 0 · Start here
#
# **You will be able to** say whether this machine is ready for the course, serve eight prompts on a real
# language model in two ways, and see with your own eyes what PagedAttention changes and what it does not.
#
# 10 minutes to read and run · you need: Python, and an idea of what a language model does · GPU: not needed
#
# 1. [Is this machine ready?](#1-is-this-machine-ready)
# 2. [Eight requests and a small memory](#2-eight-requests-and-a-small-memory)
# 3. [Predict, then run: reserve for the worst case](#3-predict-then-run-reserve-for-the-worst-case)
# 4. [Predict, then run: blocks on demand](#4-predict-then-run-blocks-on-demand)
# 5. [Both memories, side by side](#5-both-memories-side-by-side)
# 6. [What must hold, and what breaks if it does not](#6-what-must-hold-and-what-breaks-if-it-does-not)
# 7. [Where to go from here](#7-where-to-go-from-here)
#
# Run a cell with Shift + Enter. Cells whose output differs from machine to machine say so.

# %% [markdown]
# ## 1 Is this machine ready?
#
# The doctor does more than read version numbers. It runs a small GPU kernel, compiled where there is a GPU
# and interpreted where there is none, and compares the result with NumPy's. It takes about ten seconds. (The
# report describes this machine, so its text is not compared when the notebook is tested.)

# %% tags=["nbval-ignore-output"]
from coursekit.cli import doctor

checks = doctor.check()
doctor.report(checks)

# %%
print("ready for the course:", doctor.ready(checks))

# %% [markdown]
# ## 2 Eight requests and a small memory
#
# A language model writes one token at a time. For each token it has seen it keeps *keys and values*, in every
# layer, because every later token will look at them. That store is the **KV cache**. How large is it? Our
# model is SmolLM2-135M-Instruct, small enough for a laptop and built like its large relatives. Loading it
# takes a few seconds.

# %%
import transformers

from paged_ref import LLM, SamplingParams
from paged_ref.model.hf_model import PagedModel

transformers.utils.logging.disable_progress_bar()
model = PagedModel.load("smollm2-135m", dtype="float32")

shape = model.shape
per_token = shape.kv_bytes_per_token
print(
    f"{shape.num_layers} layers x {shape.num_kv_heads} KV heads x {shape.head_dim} numbers "
    "x 2 (K and V) x 4 bytes"
)
print(f"= {per_token:,} bytes for each token (float32; half of that in bfloat16, as in chapter 1)")

# %% [markdown]
# Let the memory for the cache be small on purpose: room for 1,024 tokens. A *slot* is room for one token. A
# GPU's memory is larger and so are its models, but the arithmetic is the same: chapter 1 does it for a 70B
# model.

# %%
NUM_SLOTS = 1024
print(f"{NUM_SLOTS} slots x {per_token:,} bytes = {NUM_SLOTS * per_token / 1e6:.1f} MB")

# %% [markdown]
# And here are eight requests. Each has a prompt and a number of tokens that it will go on for. The server
# does **not** know the second number in advance: it learns it when the model says "end". (We fix the lengths
# so that this page shows the same steps on every machine; the texts are the model's own.)

# %%
questions = [
    "Explain in one paragraph what a page table is.",
    "Write a short poem about a lighthouse.",
    "List five fruits.",
    "What is the capital of France, and what is it known for?",
    "Give me a recipe for pancakes.",
    "Why is the sky blue?",
    "Tell me a joke about a computer.",
    "Summarise the story of Romeo and Juliet in three sentences.",
]
new_tokens = [64, 28, 16, 44, 56, 40, 24, 48]

prompts = [[{"role": "user", "content": question}] for question in questions]
samplings = [SamplingParams(max_tokens=n, ignore_eos=True) for n in new_tokens]
prompt_tokens = [
    len(model.tokenizer.apply_chat_template(p, add_generation_prompt=True)["input_ids"]) for p in prompts
]
for question, before, after in zip(questions, prompt_tokens, new_tokens, strict=True):
    print(f"{before:3} prompt tokens + {after:2} new   {question}")
print(f"all together {sum(prompt_tokens) + sum(new_tokens)} tokens, and there are {NUM_SLOTS} slots")

# %% [markdown]
# ## 3 Predict, then run: reserve for the worst case
#
# Before PagedAttention a server kept each request's cache in **one contiguous piece** of memory. Since it
# could not know how long a request would become, it reserved the longest length it allowed. Say that is 512
# tokens.
#
# > **Predict.** The memory has 1,024 slots. How many of the eight requests run at once? What share of the
# > memory holds a token, on average? Write both guesses down.
#
# Our engine can play this server without a line of extra code: a contiguous reservation of 512 tokens is *one
# block of 512 tokens*. Two such blocks fill the memory.
#
# `serve` runs the engine step by step. After each step it takes a snapshot of the memory: who holds which
# slot, and which slots hold a token.

# %%
import time

from coursekit.views.memory_map import take_snapshot


def serve(num_blocks, block_size):
    """Serve the eight requests; returns the engine, the requests, and each step's memory and seconds."""
    llm = LLM(model, num_blocks=num_blocks, block_size=block_size, enable_prefix_caching=False)
    requests = [llm.add_request(p, s) for p, s in zip(prompts, samplings, strict=True)]
    owner = {request: number for number, request in enumerate(requests)}
    snapshots, seconds = [], []
    while llm.scheduler.has_work:
        started = time.perf_counter()
        llm.step()
        seconds.append(time.perf_counter() - started)
        tables = {owner[r]: s.table for r in llm.scheduler.running for s in r.sequences}
        snapshots.append(take_snapshot(llm.pool, tables))
    return llm, requests, snapshots, seconds


def report(llm, snapshots):
    """The figures of one run."""
    held = sum(s.num_held for s in snapshots[:-1]) / len(snapshots[:-1])
    written = sum(s.num_written for s in snapshots[:-1]) / len(snapshots[:-1])
    print(f"steps                             {len(snapshots)}")
    print(f"requests at once, at most         {llm.metrics.peak_running}")
    print(f"held by a request, on average     {held / NUM_SLOTS:.0%} of the memory")
    print(f"holding a token, on average       {written / NUM_SLOTS:.0%} of the memory")


# %%
contiguous, contiguous_requests, contiguous_memory, contiguous_seconds = serve(num_blocks=2, block_size=512)
report(contiguous, contiguous_memory)

# %% [markdown]
# Nearly all of the memory is taken, and nearly none of it is used. A dashboard that
# shows only what is allocated calls this a full machine.

# %% [markdown]
# ## 4 Predict, then run: blocks on demand
#
# PagedAttention cuts the same memory into **blocks of 16 tokens** and gives a request a block only when it
# has a token to put in. A request's blocks can lie anywhere; a small table of integers, the **block table**,
# says where.
#
# > **Predict.** Same memory, same requests. How many run at once now? How many steps does it take?

# %%
paged, paged_requests, paged_memory, paged_seconds = serve(num_blocks=64, block_size=16)
report(paged, paged_memory)

# %% [markdown]
# The model computes the same thing, and it always takes its likeliest token. Only the place of the keys and values changed, so the tokens must be the
# same:

# %%
same = [
    a.finished[0].output_token_ids == b.finished[0].output_token_ids
    for a, b in zip(contiguous_requests, paged_requests, strict=True)
]
print("requests with the same tokens:", sum(same), "of", len(same))
print("steps, contiguous / paged:", f"{len(contiguous_memory) / len(paged_memory):.1f}")

# %% [markdown]
# Does a step with eight requests take four times as long as one with two? A step reads all weights of the model once,
# however many requests share the reading. (Times differ from run to run: not compared by the tests.)

# %% tags=["nbval-ignore-output"]
two = sorted(contiguous_seconds[1:20])[9]
eight = sorted(paged_seconds[1:15])[7]
print(f"a step with two requests:   {two * 1e3:.0f} ms")
print(
    f"a step with eight requests: {eight * 1e3:.0f} ms, {eight / two:.1f} times as long for 4 times the tokens"
)

# %% [markdown]
# What the model wrote to the first three, as far as it got (generated text: not compared by the tests):

# %% tags=["nbval-ignore-output"]
for request, question in list(zip(paged_requests, questions, strict=True))[:3]:
    text = model.tokenizer.decode(request.finished[0].output_token_ids, skip_special_tokens=True)
    print(f"> {question}\n{text.strip()}\n")

# %% [markdown]
# ## 5 Both memories, side by side
#
# Each column is one step, each row one slot. A request has one colour: strong where a token lies, pale where
# the request holds the slot but nothing is in it. White is free.

# %%
from coursekit.views.memory_map import draw_memory_over_time, legend_handles
from coursekit.views.style import display_figure, figure

fig, axes = figure(2, 1, width=8, height=6.2, sharex=True)
runs = [("Contiguous: 2 reservations of 512", contiguous_memory), ("Paged: 64 blocks of 16", paged_memory)]
for ax, (title, snapshots) in zip(axes, runs, strict=True):
    draw_memory_over_time(ax, snapshots)
    ax.set_title(title)
axes[0].set_xlabel("")
axes[0].set_xlim(0, len(contiguous_memory))
fig.legend(handles=legend_handles(), loc="outside lower center", ncols=3)
display_figure(
    fig,
    alt="Two maps of the same memory over time, one column a step. Contiguous: two wide bands, each nearly all "
    f"pale; requests pass through two at a time and need {len(contiguous_memory)} steps. Paged: thin strips of "
    f"all eight requests from the first step on, hardly any pale, done after {len(paged_memory)} steps.",
    summary=f"Same memory, same tokens: {len(contiguous_memory)} steps with reservations, "
    f"{len(paged_memory)} with blocks.",
)

# %% [markdown]
# Now stop the film at one step. Each box is a block, its 16 slots are filled from left to right. Find a
# request's last block: only there is a pale rest, and never more than 15 slots of it.

# %%
from coursekit.views.memory_map import draw_memory


def draw_step(step):
    """The paged memory after one step, and the same in words."""
    fig, ax = figure(width=8, height=3.4)
    draw_memory(ax, paged_memory[step])
    ax.set_title(f"Paged memory after step {step + 1}: 64 blocks of 16 slots")
    fig.legend(handles=legend_handles(), loc="outside lower center", ncols=3)
    return fig, paged_memory[step].words()


fig, words = draw_step(30)
display_figure(
    fig, alt=f"The 64 blocks after step 31, eight in a row. {words}.", summary=f"After step 31: {words}."
)

# %% [markdown]
# With a running kernel, move the slider and watch blocks being taken and given back. (Without one, the
# picture above is what it shows.)

# %% tags=["nbval-ignore-output"]
from coursekit.views.memory_map import step_slider
from coursekit.views.style import display_widget

display_widget(
    step_slider(draw_step, len(paged_memory), start=30),
    "a slider over the steps of the paged run; the picture above is its state at step 31",
)

# %% [markdown]
# ## 6 What must hold, and what breaks if it does not
#
# A request's tokens lie in scattered blocks, and only the table knows which. Let us damage it. Two requests
# run for ten steps; then we change the first one's table by hand and let it go on.
#
# > **Predict.** (a) The entries of two full blocks change places. (b) The first entry and the last, whose block is
# > only partly full, change places. (c) One entry names a block of the *other* request. Which of the three change the
# > tokens?


# %%
def decode_damaged(damage):
    """Serve the first two requests, damaging the first one's table after ten steps; returns its tokens."""
    llm = LLM(model, num_blocks=64, block_size=16, enable_prefix_caching=False)
    llm.cache.keys.zero_(), llm.cache.values.zero_()  # unused slots may hold anything, NaN too: here, zeros
    first, second = (llm.add_request(p, s) for p, s in zip(prompts[:2], samplings[:2], strict=True))
    for _ in range(10):
        llm.step()
    mine, other = first.sequences[0].table.blocks, second.sequences[0].table.blocks
    before = list(mine)
    damage(mine, other)
    for _ in range(14):
        llm.step()
    mine[: len(before)] = before  # mend it, so that the blocks go back to the pool as they came
    tokens = first.sequences[0].output_token_ids
    llm.abort(first), llm.abort(second)
    return tokens


def exchange_two_full_blocks(mine, other):
    mine[0], mine[1] = mine[1], mine[0]


def exchange_first_and_last(mine, other):
    mine[0], mine[-1] = mine[-1], mine[0]


def name_the_neighbours_block(mine, other):
    mine[1] = other[1]


good = paged_requests[0].finished[0].output_token_ids[:24]
print("nothing damaged:        ", decode_damaged(lambda mine, other: None) == good)
print("two full blocks:        ", decode_damaged(exchange_two_full_blocks) == good)
print("the first and the last: ", decode_damaged(exchange_first_and_last) == good)
print("a neighbour's block:    ", decode_damaged(name_the_neighbours_block) == good)

# %% [markdown]
# Surprised by the second line? Attention is a weighted *sum* over the keys, and a key carries its position in itself (the
# rotary embedding put it there before the key was stored). A decode step may read two full blocks in either order, because
# nothing inside them is masked. Exchange a full block with the partly filled last one, and the wrong slots are cut off;
# and a neighbour's block is simply another text.
#
# In the two harmful cases there is no error and no warning. The model reads what the table names, and goes on talking. A
# wrong table shows only in the output, and that is why this course compares everything with the ordinary, unpaged model.

# %% [markdown]
# ## 7 Where to go from here
#
# What you saw, in one paragraph: paging did not compress anything and did not make attention itself faster. It stopped
# reserving, so **more requests run at once**, and a step that serves eight requests takes much less than four times as
# long as one that serves two.
#
# Three interview questions. Answer aloud, then look for the cell above that shows it.
#
# 1. Why does a contiguous KV cache have to be reserved for the longest length allowed?
# 2. With blocks of 16 tokens, how many slots can one request waste at most, and where are they?
# 3. Eight requests instead of two ran at once. Why is a step with eight not four times as slow?
#
# Next: [chapter 1](01_fragmentation.ipynb) does the arithmetic of the waste, and [chapter 2](02_block_table.ipynb) builds the
# pool and the table. From there the path goes through attention by table ([3](03_numpy_gather.ipynb)), sharing
# ([4](04_sharing.ipynb)), the GPU kernel ([5](05_triton_kernel.ipynb)) and scheduling ([6](06_scheduling.ipynb)) to
# [chapter 7](07_batched_decode.ipynb), which takes the engine you just used apart and proves that nothing changed.
# [Chapter 10](10_interview.ipynb) asks what you kept.
