# %% [markdown]
# # 0 · Start here
#
# **You will be able to** say whether this machine is ready for the course, serve forty requests on a real language model in
# two ways, and see what PagedAttention changes and what it does not.
#
# 10 minutes · you need: Python, and an idea of what a language model does · GPU: not needed
#
# 1. [Is this machine ready?](#1-is-this-machine-ready)
# 2. [Forty requests and a small memory](#2-forty-requests-and-a-small-memory)
# 3. [Reserve for the longest request](#3-reserve-for-the-longest-request)
# 4. [Blocks on demand](#4-blocks-on-demand)
# 5. [The memory over time](#5-the-memory-over-time)
# 6. [What breaks if the table is wrong?](#6-what-breaks-if-the-table-is-wrong)
# 7. [In vLLM and SGLang today](#7-in-vllm-and-sglang-today)
# 8. [You are done when](#8-you-are-done-when)
#
# Run a cell with Shift + Enter. You work in a copy of your own; `python3 course.py update` brings in new versions and keeps
# what you wrote. Unknown word? The [glossary](../docs/glossary.md) has it.

# %% [markdown]
# ## Recall
#
# This is the first chapter, so these three ask for what the course assumes.
#
# 1. A language model has read 100 tokens. What does one pass through it give you?
#    <details><summary>Answer</summary>Scores for the next token, number 101. You pick one, append it and run the model again.</details>
# 2. In attention, which vectors give the weights, and what is averaged with them?
#    <details><summary>Answer</summary>The query and the keys give the weights. The values are averaged with them.</details>
# 3. Why can the keys and values of earlier tokens be kept?
#    <details><summary>Answer</summary>In a causal model a token never looks at later ones, so its keys and values never change.</details>

# %% [markdown]
# > **On call.** It is 3 a.m. and your phone says that chat is slow. The dashboard of the model server shows: KV cache 95 %
# > allocated, 12 users served, 28 waiting. Last week the same machine served 40. Nobody changed the model. Each chapter of this
# > course adds a clue; at the end of this one you can say what the 95 % does *not* tell you.

# %% [markdown]
# ## 1 Is this machine ready?
#
# The doctor does more than read version numbers. It runs a small GPU kernel, compiled where there is a GPU and interpreted
# where there is none, and compares the result with NumPy's. It takes about ten seconds. (Its report describes this machine,
# so the tests of the course do not compare it.)

# %% tags=["nbval-ignore-output"]
from coursekit.cli import doctor

checks = doctor.check()
doctor.report(checks)

# %%
print("ready for the course:", doctor.ready(checks))

# %% [markdown]
# ## 2 Forty requests and a small memory
#
# A language model serves a request in two phases. In [prefill](../docs/glossary.md#prefill) it reads the whole prompt in one
# pass and gives the first new token. In [decode](../docs/glossary.md#decode) it gives one token per pass. The user feels both:
# the time to the first token ([TTFT](../docs/glossary.md#ttft)) and the time between tokens ([ITL](../docs/glossary.md#itl)).
#
# For each token it has read, the model keeps keys and values in every layer, because every later token will look at them.
# That store is the [KV cache](../docs/glossary.md#kv-cache). How large is it? Our model is SmolLM2-135M-Instruct, small enough
# for a laptop and built like its large relatives. Loading it takes a few seconds.

# %%
import transformers

from paged_ref import LLM, SamplingParams
from paged_ref.model.hf_model import PagedModel

transformers.utils.logging.disable_progress_bar()
model = PagedModel.load("smollm2-135m", dtype="float32")

shape = model.shape
per_token = shape.kv_bytes_per_token
print(
    f"{shape.num_layers} layers x {shape.num_kv_heads} KV heads x {shape.head_dim} elements "
    "x 2 (K and V) x 4 bytes"
)
print(f"= {per_token:,} bytes per token (float32; half of that in bfloat16, as in chapter 1)")

# %% [markdown]
# We make the memory small on purpose: 1,024 [slots](../docs/glossary.md#slot), each with room for one token. Chapter 1 does the
# same arithmetic for a 70B model on eight GPUs.

# %%
NUM_SLOTS = 1024
print(f"{NUM_SLOTS} slots x {per_token:,} bytes = {NUM_SLOTS * per_token / 1e6:.1f} MB")

# %% [markdown]
# And here are forty requests: eight questions, each asked by five users. A request has a prompt and ends after some number of
# new tokens. The server does **not** know that number in advance: it learns it when the model says "end". (We fix the lengths,
# so that this page shows the same steps on every machine. The texts are the model's own.)

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
prompts = [[{"role": "user", "content": question}] for question in questions] * 5
new_tokens = [8 + 5 * i % 24 for i in range(40)]

samplings = [SamplingParams(max_tokens=n, ignore_eos=True) for n in new_tokens]
prompt_tokens = [
    len(model.tokenizer.apply_chat_template(p, add_generation_prompt=True)["input_ids"]) for p in prompts
]
for question, before in zip(questions, prompt_tokens, strict=False):
    print(f"{before:3} prompt tokens   {question}")
total = sum(prompt_tokens) + sum(new_tokens)
print(f"40 requests with {min(new_tokens)} to {max(new_tokens)} new tokens: {total:,} tokens in all")

# %% [markdown]
# ## 3 Reserve for the longest request
#
# Before PagedAttention, a server kept each request's cache in **one contiguous piece** of memory. It could not know how
# long a request would become, so it reserved room for the longest request it allowed. Say that is 512 tokens.
#
# Our engine can play this server without a line of extra code: a contiguous reservation of 512 tokens is *one block of 512
# tokens*. Two such blocks fill the memory.
#
# `serve` runs the engine [step](../docs/glossary.md#step) by step: one step is one pass through the model for all requests
# that run in it. Before each step the engine decides anew which requests run; this is
# [continuous batching](../docs/glossary.md#continuous-batching), and both servers below do it. After each step we take a snapshot of
# the memory.

# %%
from coursekit.views.memory_map import take_snapshot


def serve(num_blocks, block_size):
    """Serve all requests; returns the engine, the requests, the memory after each step, and each TTFT in steps."""
    llm = LLM(model, num_blocks=num_blocks, block_size=block_size, enable_prefix_caching=False)
    requests = [llm.add_request(p, s) for p, s in zip(prompts, samplings, strict=True)]
    owner = {request: number for number, request in enumerate(requests)}
    snapshots, first_token = [], {}
    while llm.scheduler.has_work:
        llm.step()
        running = llm.scheduler.running
        first_token |= {owner[r]: len(snapshots) + 1 for r in running if owner[r] not in first_token}
        snapshots.append(take_snapshot(llm.pool, {owner[r]: s.table for r in running for s in r.sequences}))
    return llm, requests, snapshots, first_token


def report(llm, requests, snapshots, first_token):
    """The figures of one run, averaged over the steps in which requests wait: the memory is what they wait for."""
    last = max(first_token.values())
    held = sum(s.num_held for s in snapshots[:last]) / last / NUM_SLOTS
    written = sum(s.num_written for s in snapshots[:last]) / last / NUM_SLOTS
    print(f"requests at once, at most         {llm.metrics.peak_running}")
    print(f"allocated, on average             {held:.0%} of the memory")
    print(f"holding a token, on average       {written:.0%} of the memory")
    print(f"steps to the first token          {sum(first_token.values()) / len(first_token):.0f} on average")
    print(f"steps in all                      {len(snapshots)}")


# %% [raw] predict="0-reserved-used"
# question: |
#   The memory has 1,024 slots, and requests have 40 to 80 tokens. With reservations of 512, what percentage of the memory holds
#   a token, on average?
# number: 9
# unit: "%"
# tolerance: 0.5
# replies: {50: "Half of each reservation? A request has 40 to 80 of its 512 tokens."}
# shown: "holding a token, on average       9%"

# %% answers="0-reserved-used"
contiguous = serve(num_blocks=2, block_size=512)
report(*contiguous)

# %% [markdown]
# Nearly all of the memory is allocated, and nearly none of it is used. A dashboard that shows only what is allocated calls
# this machine full.

# %% [markdown]
# ## 4 Blocks on demand
#
# PagedAttention cuts the same memory into [blocks](../docs/glossary.md#block) of 16 slots. A request gets a block only when it
# has a token to put in. Its blocks can lie anywhere; a small list of integers, the
# [block table](../docs/glossary.md#block-table), says where.

# %% [raw] predict="0-paged-at-once"
# question: |
#   Same memory, same requests, blocks of 16. How many requests run at once, at most? (Two did with reservations.)
# number: 21
# tolerance: 0.35
# replies: {40: "All forty? Each needs three to five blocks, and there are 64."}
# shown: "requests at once, at most         21"

# %% answers="0-paged-at-once"
paged = serve(num_blocks=64, block_size=16)
report(*paged)

# %% [markdown]
# The allocated share is as high as before. The number of users is not. And the tokens? The model computes the same thing, only the
# place of the keys and values changed, and it always takes its likeliest token:

# %%
same = [
    a.finished[0].output_token_ids == b.finished[0].output_token_ids
    for a, b in zip(contiguous[1], paged[1], strict=True)
]
print("requests with the same tokens:", sum(same), "of", len(same))
print("steps, contiguous / paged:", f"{len(contiguous[2]) / len(paged[2]):.1f}")

# %% [raw] predict="0-eight-or-two"
# question: |
#   More requests at once make each step longer. One engine decodes 2 requests per step, then 8 per step. How much longer does a
#   step take with 8?
# choice: less than 3 times as long
# options: [less than 3 times as long, about 4 times as long, more than 4 times as long]
# replies:
#   about 4 times as long: "That would be so if the work of a step were only its tokens. What else does a step read?"
#   more than 4 times as long: "Four times the tokens, and more than four times the time? Think of what is shared."
# shown: "so it takes less than 3 times as long"

# %% answers="0-eight-or-two" tags=["nbval-ignore-output"]
import math
import time


def decode_seconds(llm, num_requests):
    """Seconds of a decode step with so many requests: the median of 15, after a warm-up."""
    requests = [
        llm.add_request(p, SamplingParams(max_tokens=24, ignore_eos=True)) for p in prompts[:num_requests]
    ]
    seconds = []
    while llm.scheduler.has_work:
        started = time.perf_counter()
        llm.step()
        seconds.append(time.perf_counter() - started)
    assert all(request.finished for request in requests)
    return sorted(seconds[6:21])[7]


engine = LLM(model, num_blocks=64, block_size=16, enable_prefix_caching=False)
decode_seconds(engine, 8)
two, eight = decode_seconds(engine, 2), decode_seconds(engine, 8)
print(f"a step with 2 requests: {two * 1e3:.0f} ms")
print(f"a step with 8 requests: {eight * 1e3:.0f} ms, {eight / two:.1f} times as long for 4 times the tokens")
limits = {3: "less than 3 times as long", 5: "about 4 times as long", math.inf: "more than 4 times as long"}
print("so it takes", next(words for limit, words in limits.items() if eight < limit * two))

# %% [markdown]
# A step reads all weights of the model once, however many requests share the reading. That is why more requests at once
# give more tokens per second. (Times differ from run to run, so the tests do not compare them.)
#
# What the model wrote to the first three, as far as it got (generated text, not compared either):

# %% tags=["nbval-ignore-output"]
for request, question in list(zip(paged[1], questions, strict=False))[:3]:
    text = model.tokenizer.decode(request.finished[0].output_token_ids, skip_special_tokens=True)
    print(f"> {question}\n{text.strip()}\n")

# %% [markdown]
# ## 5 The memory over time
#
# Each column is one step, each row one slot. A request has a letter and a colour: strong where a token lies, pale where the request
# holds the slot but nothing is in it. White is free.

# %%
from coursekit.views.memory_map import draw_memory_over_time, legend_handles
from coursekit.views.style import display_figure, figure

fig, axes = figure(2, 1, width=8, height=6.2, sharex=True)
runs = [("Contiguous: 2 reservations of 512", contiguous[2]), ("Paged: 64 blocks of 16", paged[2])]
for ax, (title, snapshots) in zip(axes, runs, strict=True):
    draw_memory_over_time(ax, snapshots)
    ax.set_title(title)
axes[0].set_xlabel("")
axes[0].set_xlim(0, len(contiguous[2]))
fig.legend(handles=legend_handles(), loc="outside lower center", ncols=3)
display_figure(
    fig,
    alt="Two maps of the same memory over time, one column per step. Contiguous: two wide bands, nearly all pale; forty "
    f"requests pass through two at a time and need {len(contiguous[2])} steps. Paged: the whole memory is filled with thin "
    f"strips of up to {paged[0].metrics.peak_running} requests, little of it pale; done after {len(paged[2])} steps.",
    summary=f"Same memory, same tokens: {len(contiguous[2])} steps with reservations, {len(paged[2])} with blocks.",
)

# %% [markdown]
# Now one step of the paged run. Each box is a block, with the letter of its request; its 16 slots are filled from left to right.
# Find a request's last block: only there are pale slots, and never more than 15.

# %%
from coursekit.views.memory_map import draw_memory


def draw_step(step):
    """The paged memory after one step, and the same in words."""
    fig, ax = figure(width=8, height=3.4)
    draw_memory(ax, paged[2][step], names=True)
    ax.set_title(f"Paged memory after step {step + 1}: 64 blocks of 16 slots")
    fig.legend(handles=legend_handles(), loc="outside lower center", ncols=3)
    return fig, paged[2][step].words()


fig, words = draw_step(10)
display_figure(
    fig, alt=f"The 64 blocks after step 11, eight in a row. {words}.", summary=f"After step 11: {words}."
)

# %% [markdown]
# With a running notebook kernel, move the slider and watch requests take blocks and give them back.

# %% tags=["nbval-ignore-output"]
from coursekit.views.memory_map import step_slider
from coursekit.views.style import display_widget

display_widget(
    step_slider(draw_step, len(paged[2]), start=10),
    "a slider over the steps of the paged run; the picture above is its state at step 11",
)

# %% [markdown]
# ## 6 What breaks if the table is wrong?
#
# A request's tokens lie in scattered blocks, and only its table knows which. Let us damage a table: two requests run for ten
# steps, then we change the first one's table by hand and let the engine continue. Three kinds of damage:
#
# - (a) two entries of *full* blocks change places;
# - (b) the first entry and the last, whose block is only *partly* full, change places;
# - (c) one entry names a block of the *other* request.

# %% [raw] predict="0-damage"
# question: Which of the three change the tokens that the model writes?
# choice: only (b) and (c)
# options: [all three, only (b) and (c), only (c), none]
# replies:
#   all three: "One of them is harmless. Ask what a key knows about its own position."
#   only (c): "What does the engine leave out when it reads the last block of a table?"
#   none: "The model reads what the table names. Does any of the three make it read something else?"
# shown: ["two full blocks:         True", "the first and the last:  False", "a neighbour's block:     False"]


# %% answers="0-damage"
def decode_damaged(damage):
    """Serve the first two requests, damaging the first one's table after ten steps; returns its tokens."""
    llm = LLM(model, num_blocks=64, block_size=16, enable_prefix_caching=False)
    llm.cache.keys.zero_(), llm.cache.values.zero_()  # unused slots may hold anything, NaN too: here, zeros
    long = SamplingParams(max_tokens=32, ignore_eos=True)
    first, second = (llm.add_request(prompt, long) for prompt in prompts[:2])
    for _ in range(10):
        llm.step()
    mine, other = first.sequences[0].table.blocks, second.sequences[0].table.blocks
    before = list(mine)
    damage(mine, other)
    for _ in range(14):
        llm.step()
    mine[: len(before)] = before  # undo it, so that each block goes back to the pool once
    tokens = list(first.sequences[0].output_token_ids)
    llm.abort(first), llm.abort(second)
    return tokens


def exchange_two_full_blocks(mine, other):
    mine[0], mine[1] = mine[1], mine[0]


def exchange_first_and_last(mine, other):
    mine[0], mine[-1] = mine[-1], mine[0]


def name_the_neighbours_block(mine, other):
    mine[1] = other[1]


good = decode_damaged(lambda mine, other: None)
print("two full blocks:        ", decode_damaged(exchange_two_full_blocks) == good)
print("the first and the last: ", decode_damaged(exchange_first_and_last) == good)
print("a neighbour's block:    ", decode_damaged(name_the_neighbours_block) == good)

# %% [markdown]
# Surprised by the first line? Attention is a weighted sum of the *values*, and a sum does not depend on the order of its terms. The
# weights come from the keys, and each key carries its position in itself: before a key is stored, the model rotates it by
# an angle that depends on its position (*rotary position embedding*). So a decode step may read two full blocks in either order.
#
# Exchange a full block with the partly filled last one, and the engine cuts off the wrong slots. And a neighbour's block is
# another user's text. In both cases there is no error and no warning: a wrong table shows only in the output. That is why
# this course compares everything with the ordinary, unpaged model.

# %% [markdown]
# ## 7 In vLLM and SGLang today
#
# As of vLLM 0.29 and SGLang 0.5.16:
#
# | here | vLLM | SGLang |
# |---|---|---|
# | start a server | `vllm serve MODEL` | `sglang serve --model-path MODEL` |
# | slots per block | `--block-size`, 16 ([`vllm/config/cache.py`](https://docs.vllm.ai/en/v0.29.0/api/vllm/config/cache/)) | `--page-size`, 1 ([server arguments](https://docs.sglang.io/docs/advanced_features/server_arguments.md)); some attention backends need more |
# | requests at once, at most | `--max-num-seqs` | `--max-running-requests` |
# | allocated share of the cache | metric `vllm:kv_cache_usage_perc` ([metrics](https://docs.vllm.ai/en/latest/usage/metrics/)) | metric `sglang:token_usage` |
# | requests that run | metric `vllm:num_requests_running` | metric `sglang:num_running_reqs` |
# | TTFT, ITL | `vllm:time_to_first_token_seconds`, `vllm:inter_token_latency_seconds` | `sglang:time_to_first_token_seconds`, `sglang:inter_token_latency_seconds` |
#
# Both batch continuously and keep the cache in blocks; a reservation per request, as in section 3, is gone from both.

# %% [markdown]
# ## 8 You are done when
#
# - the doctor says that your machine is ready;
# - you can say what prefill, decode, TTFT and ITL are;
# - you can explain to the on-call engineer why "95 % allocated" does not say how many users fit, and which second number to look at;
# - you know what paging did *not* do: it compressed nothing, and it did not make attention itself faster. It stopped reserving,
#   so **more requests run at once**, and a step with eight requests takes far less than four times as long as a step with two.
#
# Three interview questions. Answer aloud, then look for the cell above that shows it.
#
# 1. Why did a contiguous KV cache have to be reserved for the longest length allowed?
# 2. With blocks of 16 slots, how many slots can one request waste at most, and where are they?
# 3. Eight requests ran at once instead of two. Why is a step with eight not four times as slow?
#
# Next: [chapter 1](01_fragmentation.ipynb) does the arithmetic of the waste, and [chapter 2](02_block_table.ipynb) builds the
# pool and the table. From there the path goes through attention by table ([3](03_numpy_gather.ipynb)), sharing
# ([4](04_sharing.ipynb)), the GPU kernel ([5](05_triton_kernel.ipynb)) and scheduling ([6](06_scheduling.ipynb)) to
# [chapter 7](07_batched_decode.ipynb), which takes the engine you just used apart and proves that nothing changed.
# [Chapter 10](10_interview.ipynb) asks what you kept.
