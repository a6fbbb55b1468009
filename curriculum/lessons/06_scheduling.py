# %% [markdown]
# # 6 · Scheduling
#
# **You will be able to** explain continuous batching and why it is not paging; say who runs in a step, who may
# start, and who gives way; compute whether to recompute or to swap; predict the number of blocks; and read from
# a server's metrics that its pool is too small.
#
# 60 minutes to read and run · you need: blocks, tables and admission ([chapter 2](02_block_table.ipynb)) · GPU:
# not needed
#
# 1. [Static batching, and its idle places](#1-static-batching-and-its-idle-places)
# 2. [Continuous batching is not paging](#2-continuous-batching-is-not-paging)
# 3. [One step of the scheduler](#3-one-step-of-the-scheduler)
# 4. [Who may start: OK, LATER, NEVER](#4-who-may-start-ok-later-never)
# 5. [A long prompt must not stop the others](#5-a-long-prompt-must-not-stop-the-others)
# 6. [The pool is dry: who gives way?](#6-the-pool-is-dry-who-gives-way)
# 7. [What the user sees: a gap](#7-what-the-user-sees-a-gap)
# 8. [Recompute or swap?](#8-recompute-or-swap)
# 9. [What must hold, and what breaks if it does not](#9-what-must-hold-and-what-breaks-if-it-does-not)
# 10. [The dashboard](#10-the-dashboard)
# 11. [How many blocks will there be?](#11-how-many-blocks-will-there-be)
# 12. ["95 % allocated, 12 users"](#12-95--allocated-12-users)
# 13. [What you have now](#13-what-you-have-now)

# %% [markdown]
# ## 1 Static batching, and its idle places
#
# A **batch** is the set of sequences that the model computes in one step. The plainest server takes as many
# requests as it has places, computes until the *longest* of them is done, and then takes the next ones: **static
# batching**. Below, a letter is a step in which a request gets a token, and a dot is a place with nothing to do.
#
# > **Predict.** Four places, twelve requests with 3, 12, 5, 7, 9, 2, 6, 4, 11, 3, 8 and 2 tokens to generate. What
# > share of the places is idle?

# %%
from collections import deque

from coursekit.views.memory_map import name_of

LENGTHS, PLACES = [3, 12, 5, 7, 9, 2, 6, 4, 11, 3, 8, 2], 4


def static_batches(lengths, places):
    """A row of letters and dots for each place; a batch ends with its longest request."""
    rows = [""] * places
    for first in range(0, len(lengths), places):
        batch = lengths[first : first + places]
        for place, length in enumerate(batch):
            rows[place] += name_of(first + place) * length + "." * (max(batch) - length)
    return rows


def show_rows(rows):
    print("\n".join(rows))
    idle = "".join(rows).count(".") / sum(map(len, rows))
    print(f"{len(rows[0])} steps, {idle:.0%} of the places idle")


show_rows(static_batches(LENGTHS, PLACES))

# %% [markdown]
# Nothing forces a batch to stay together. A decode step computes one token for each sequence, whatever their
# lengths, so the batch may change between any two steps: who is done leaves, who waits takes the place. That is
# **continuous batching** (Orca, 2022).
#
# > **Predict.** The same requests. How many steps?


# %%
def continuous_batches(lengths, places):
    """The same with a new request in a place as soon as the old one is done."""
    queue = deque(enumerate(lengths))
    rows, names, left = [""] * places, [""] * places, [0] * places
    while queue or any(left):
        for place in range(places):
            if not left[place] and queue:
                number, left[place] = queue.popleft()
                names[place] = name_of(number)
            rows[place] += names[place] if left[place] else "."
            left[place] -= left[place] > 0
    return rows


show_rows(continuous_batches(LENGTHS, PLACES))

# %% [markdown]
# The dots at the end are there because the queue is empty. On a busy server it never is.
#
# ## 2 Continuous batching is not paging
#
# *Continuous batching and paging are the same thing*, or: you cannot have one without the other. If that were so,
# two of the four combinations below could not run.
#
# One changes **when** a request joins the batch, the other **how** its memory is held. The library's scheduler
# can play all four. With blocks as long as the longest request, each request gets one block, which is a
# reservation. And a scheduler that admits nobody while somebody runs is a static one. The memory is that of the vLLM
# paper's first setup, OPT-13B on an A100. How long a step takes is computed from the GPU's data sheet
# (`paged_ref.simulation.cost_model`), so the seconds are the same on every machine.
#
# > **Predict.** 200 conversations wait at the door. Which of the two changes alone brings more, and do the two
# > gains add up or multiply?

# %%
import numpy as np

from paged_ref import BlockPool
from paged_ref.simulation.cost_model import SETUPS
from paged_ref.scheduling.scheduler import Admission, Scheduler
from paged_ref.simulation.simulator import Simulator
from paged_ref.workload import TRACES, make_workload


class StaticScheduler(Scheduler):
    """Admits only when nobody runs."""

    joining = True

    def schedule(self):
        self.joining = not self.running
        return super().schedule()

    def admission(self, request, prefix=None):
        answer = super().admission(request, prefix)
        return Admission.LATER if answer is Admission.OK and not self.joining else answer


opt = SETUPS["opt-13b-a100"]
jobs = make_workload(TRACES["sharegpt"], num_requests=200, rate=np.inf, seed=1)
first = None
print("batching     memory             most at once   on average   tokens/s   times the first")
for scheduler_class, batching in ((StaticScheduler, "static"), (Scheduler, "continuous")):
    for size, memory in ((2048, "2,048 slots each"), (16, "blocks of 16")):
        pool = BlockPool(opt.num_blocks(size), size)
        scheduler = scheduler_class(pool, max_num_seqs=256, max_num_batched_tokens=65_536)
        result = Simulator(scheduler, opt).run(jobs)
        m, speed = result.metrics, result.tokens_per_second
        first = first or speed
        print(f"{batching:10}   {memory:16}   {m.peak_running:12}   {m.generated_tokens / m.steps:10.1f}   "
              f"{speed:8.0f}   {speed / first:15.1f}")  # fmt: skip

# %% [markdown]
# Four different servers. Continuous batching fills the places that there are; paging makes more places. Orca had the
# first without the second. Each helps alone. Together they bring more than the sum of the two gains, because more
# places are worth more if they are not left empty, and less than the product, because a larger batch pays less and
# less.
#
# Why do a few more sequences in a batch bring so much? Because a decode step reads all weights, for one sequence as
# for thirty. Chapter 5 draws that roof.
#
# ## 3 One step of the scheduler
#
# From here on, everything is continuous and paged. A **step** computes a row of tokens, under two limits:
# `max_num_batched_tokens` tokens and `max_num_seqs` sequences. The scheduler fills it in a fixed order:
#
# 1. **decodes first**: each sequence that decodes gets its next token, the oldest first. If the pool cannot give a
#    block for it, the *latest* request loses its blocks (section 6);
# 2. **prefills under way** get what is left of the budget;
# 3. **waiting requests** are admitted, the oldest first, and none overtakes another.

# %%
from coursekit.views.source_code import show_source

show_source(Scheduler.schedule)

# %% [markdown]
# What makes this short is one number for each sequence: `num_computed_tokens`, the tokens whose keys and values are
# in the cache. Decode means that one token is left to compute, prefill that many are. A prompt computed in pieces, a
# prefix found in the cache, a restart after losing all blocks: the same rule covers them.
#
# The scheduler knows no model. Below we play the model ourselves (every next token is the request's number) and note
# who did what.


# %%
from coursekit.views.timeline import Timeline
from paged_ref import BlockTable, SamplingParams
from paged_ref.scheduling.request import Request, Sequence


def request_of(number, prompt_tokens, new_tokens, pool):
    sequence = Sequence([number] * prompt_tokens, prompt_tokens, BlockTable(pool))
    sampling = SamplingParams(max_tokens=new_tokens)
    return Request(number, list(sequence.token_ids), sampling, new_tokens, [sequence])


def take_tokens(scheduler, step):
    """What the model and the sampler do: one token more for whoever was computed to its end."""
    for chunk in step.chunks:
        if chunk.samples:
            chunk.sequence.token_ids.append(chunk.request.request_id)
            if chunk.sequence.num_new_tokens == chunk.request.max_new_tokens:
                scheduler.finish(chunk.request, chunk.sequence, "length")


def serve(scheduler, arrivals, cost=None):
    """Serve (arrival step, prompt tokens, new tokens); with a cost model, in its seconds."""
    timeline, coming = Timeline(scheduler), deque(enumerate(arrivals))
    while coming or scheduler.has_work:
        while coming and coming[0][1][0] <= len(timeline.moments):
            number, (_, prompt, new) = coming.popleft()
            scheduler.add(request_of(number, prompt, new, scheduler.pool))
        step = scheduler.schedule()
        scheduler.complete(step)
        take_tokens(scheduler, step)
        scheduler.check()
        timeline.note(step, cost.step_seconds(step, scheduler.pool.block_size) if cost else 1.0)
    return timeline


# %% [markdown]
# > **Predict.** At most 12 tokens a step. A has a prompt of 6 tokens, B one of 9, and both are there from the
# > beginning. What is computed in step 1, and what in step 2?

# %%
ARRIVALS = [(0, 6, 14), (0, 9, 9), (2, 5, 12), (4, 12, 6), (6, 3, 8)]
roomy = serve(Scheduler(BlockPool(20, 4), 8, 12, watermark=0), ARRIVALS)
roomy.explore(start=2, title="Five requests, a pool with room for all")

# %% [markdown]
# Read a row from left to right: "A: 6 + 14" is a prompt of 6 tokens and 14 to generate. B's prompt did not fit into
# the first step, so its rest came in the second, together with A's first decode. C, D and E joined while others
# decoded, and nobody stopped for them.
#
# ## 4 Who may start: OK, LATER, NEVER
#
# Chapter 2 has the rule: the blocks of all the request's tokens, and one to grow into, must be free above the
# **watermark**. "Of *all* its tokens" is worth a second look. A prompt of 8,000 tokens is computed in several
# steps, and still gets all its blocks when it starts; section 9 shows what happens otherwise.
#
# > **Predict.** A pool of 10 blocks of 16, one of them kept back as the watermark. A request with 40 tokens runs. May
# > these start: (a) a prompt of 60 with 20 to come, (b) 81 with 20, (c) 100 with 80?

# %%
from paged_ref.scheduling.scheduler import NeverFits

show_source(Scheduler.admission)
pool = BlockPool(10, 16)
scheduler = Scheduler(pool, watermark=0.1)
scheduler.add(request_of(0, 40, 20, pool))
scheduler.schedule()
print("with 40 tokens running,", pool.num_free, "of 10 blocks are free")
for name, prompt, new in (("a", 60, 20), ("b", 81, 20), ("c", 100, 80)):
    request = request_of(1, prompt, new, pool)
    most, now = request.most_blocks(pool), scheduler.manager.blocks_to_admit(request)
    print(f"({name}) {prompt:3} + {new} tokens, needs {now} blocks now and at most {most}: "
          f"{scheduler.admission(request).name}")  # fmt: skip
try:
    scheduler.add(request_of(2, 100, 80, pool))
except NeverFits as error:
    print("add raises:", error)

# %% [markdown]
# The watermark is one block, so as many as are free, less one, may be taken: enough for (a), one too few for (b). (c)
# would at its end need more blocks than there are. It is refused when it comes, not when it has reached the head of
# the queue, where everybody behind it would wait for ever.
#
# ### What does the watermark buy?
#
# A new request takes blocks *now*. The running ones will want blocks *soon*. The watermark keeps some back for them. What
# that is worth, the users' latencies tell: **TTFT**, the time to the first token, and **ITL**, the inter-token latency,
# the gap between one token and the next. **p99** is what 99 of 100 do not exceed.
#
# > **Predict.** More requests arrive than the GPU can serve. As the watermark rises from 0 to 20 %, what happens to
# > the preemptions, to the wait for the first token, and to the throughput?

# %%
from paged_ref.simulation.simulator import simulate

busy = make_workload(TRACES["sharegpt"], num_requests=400, rate=3.0, seed=1)
published = {0.0: 1065, 0.02: 400, 0.05: 187, 0.1: 168}
print("watermark   preemptions   published   ITL p99   TTFT p99   tokens/s")
for watermark in (0.0, 0.01, 0.02, 0.05, 0.1, 0.2):
    result = simulate(busy, opt, watermark=watermark)
    now = result.metrics.snapshot()
    print(
        f"{watermark:9.0%}   {now['preemptions']:11}   {published.get(watermark, '-'):>9}   "
        f"{1e3 * now['itl_p99']:4.0f} ms   {now['ttft_p99']:6.1f} s   {result.tokens_per_second:8.0f}"
    )

# %% [markdown]
# The third column is a published measurement of one engine, with another model, another GPU and another load; there,
# 5 % brought the ITL's p99 from 40.6 to 17.7 ms. The numbers cannot be compared; the shape can: the first few per cent
# remove most preemptions. Beyond, the reserve costs more than it saves: requests wait at the door for memory that nobody
# may use.
#
# ## 5 A long prompt must not stop the others
#
# A step takes as long as its tokens need. Eight requests decode, a step every few milliseconds, and then a prompt of
# 8,000 tokens comes. In one piece, it makes one long step, in which all others wait. The scheduler cuts it: decodes
# go first, and the prompt gets what is left of `max_num_batched_tokens`. That is **chunked prefill**.
#
# > **Predict.** Llama 3.1 8B on an H100. A budget of 256 tokens a step instead of 16,384: what happens to the longest
# > gap of those who decode, and what to the new request's first token?

# %%
llama = SETUPS["llama-3.1-8b-h100"]
chunked = {}
print("budget   longest gap of A   first token of the long prompt   decode gap, median")
for budget in (16_384, 2048, 512, 256, 128):
    scheduler = Scheduler(BlockPool(1000, 16), 64, budget, watermark=0)
    timeline = serve(scheduler, [(0, 200, 120)] * 8 + [(20, 8000, 20)], llama)
    gaps = sorted(timeline.gaps(0))
    first = timeline.tokens[8][0] - timeline.moments[19].ended
    chunked[f"{budget:,} tokens a step"] = timeline
    print(f"{budget:6,}   {1e3 * gaps[-1]:13.0f} ms   {1e3 * first:27.0f} ms   {1e3 * gaps[59]:15.1f} ms")

# %%
from coursekit.views.dashboard import latency_plot

two = {name: chunked[name] for name in ("16,384 tokens a step", "256 tokens a step")}
latency_plot(two, [0], "A decodes while a prompt of 8,000 tokens arrives").show()

# %% [markdown]
# The stall shrinks with the budget, and the newcomer pays: its prompt takes more steps, and each reads all weights
# again. Neither side pays much where the arithmetic of a chunk takes about as long as the reading of the weights: the
# decodes that ride along mostly read, and the chunk mostly computes.
#
# ## 6 The pool is dry: who gives way?
#
# Admission cannot know how long an answer becomes, so it lets in more than would fit if all grew to the end. Mostly
# that is right. Sometimes the pool runs dry in the middle of a decode. Then somebody is **preempted**: loses *all*
# blocks, because a sequence with a part of its keys cannot run, and waits. Two ways:
#
# - **recompute**: drop the blocks. The request keeps its tokens; later they all go through the model again.
# - **swap**: copy the blocks to the host's memory, and back later.
#
# Who? The **latest** request. It has waited least and has the least to lose; and it makes sure that the oldest always
# goes on.

# %%
show_source(Scheduler._make_room, Scheduler._preempt)

# %% [markdown]
# Now the five requests from section 3 in a pool of 9 blocks.
#
# > **Predict.** A, B and C run, and A needs a block. Who is preempted? D has waited since step 5; may it start while
# > C waits?

# %%
tight = serve(Scheduler(BlockPool(9, 4), 8, 12, watermark=0), ARRIVALS)
tight.explore(start=7, title="The same requests, a pool of 9 blocks")

# %% [markdown]
# C loses its blocks in step 7. It waits until its tokens fit again, and its place in the queue is before D's,
# because it came earlier. The hatched box is the price: its prompt and the tokens that it had already made go through
# the model once more, in one step, as a prefill does.
#
# "Latest" means: by priority first, then by arrival. A request may carry a priority (a lower number goes first), and
# then a batch job gives way to a chat, even if it came before.
#
# > **Predict.** A has priority 1, B and C, who come after it, have 0. The pool runs dry. Who is preempted?

# %%
pool = BlockPool(9, 4)
scheduler = Scheduler(pool, 8, 24, watermark=0)
for number, priority in enumerate((1, 0, 0)):
    request = request_of(number, 5, 12, pool)
    request.priority = priority
    scheduler.add(request)
step = scheduler.schedule()
while not step.preempted:
    scheduler.complete(step)
    take_tokens(scheduler, step)
    step = scheduler.schedule()
print("order in the queue:", *(name_of(r.request_id) for r in [*scheduler.running, *scheduler.waiting]))
print("preempted:", *(f"{name_of(r.request_id)}, priority {r.priority}" for r in step.preempted))

# %% [markdown]
# ### With a real model
#
# Tokens must come out right, too. SmolLM2 answers five prompts, first in a pool with room for all, then in a tight
# one, preempting by recompute and by swap. In float32 and on the CPU, so that rounding does not decide.
#
# > **Predict.** Do the three runs give the same tokens? Which of the two tight ones computes more?

# %%
import time

import transformers

from paged_ref import LLM
from paged_ref.model.hf_model import PagedModel

transformers.utils.logging.disable_progress_bar()
model = PagedModel.load("smollm2-135m", dtype="float32", device="cpu")
TEXTS = ("The capital of France is", "Water boils at 100 degrees Celsius at sea level. High up in the",
         "Once", "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
         "The three primary colours are")  # fmt: skip
prompts = [model.tokenizer(text).input_ids for text in TEXTS]
NEW_TOKENS = (14, 12, 16, 10, 12)


def run(num_blocks, preemption):
    """Serve the prompts; returns their new tokens, the engine and the timeline in real seconds."""
    llm = LLM(model, num_blocks=num_blocks, block_size=4, preemption=preemption, enable_prefix_caching=False)
    requests = [llm.add_request(p, SamplingParams(max_tokens=n, ignore_eos=True))
                for p, n in zip(prompts, NEW_TOKENS, strict=True)]  # fmt: skip
    timeline = Timeline(llm.scheduler)
    while llm.scheduler.has_work:
        started = time.perf_counter()
        step = llm.step()
        timeline.note(step, time.perf_counter() - started)
        llm.scheduler.check()
    return [request.finished[0].output_token_ids for request in requests], llm, timeline


expected, with_room, _ = run(40, "recompute")
again, recomputing, recompute_line = run(14, "recompute")
moved, swapping, swap_line = run(14, "swap")
print("the same tokens as with room: recompute", again == expected, "· swap", moved == expected)
print("preemptions: with room", with_room.metrics.preemptions, "· recompute", recomputing.metrics.preemptions,
      "· swap", swapping.metrics.preemptions)  # fmt: skip
for name, llm in (("with room", with_room), ("recompute", recomputing), ("swap", swapping)):
    m = llm.metrics
    print(f"{name:9}: {m.steps} steps, {m.computed_tokens} tokens computed, "
          f"{m.swapped_out_blocks} blocks out and {m.swapped_in_blocks} in, {llm.pool.num_used} held now")  # fmt: skip

# %% [markdown]
# The same tokens, three times. Preemption changes *when* a token is computed and never which. The tight pool needs
# more steps, because fewer requests run at once; recompute pays with tokens, swap with copied blocks.

# %%
swap_line.picture(title="SmolLM2, 14 blocks of 4, preempting by swap").show()

# %% [markdown]
# Note the granularity. Blocks are what is given, copied and freed. What is *preempted* is always a whole request, with
# all its sequences: an operating system may page out a part of a process, we may not, because each decode step reads
# every block of a sequence.
#
# ## 7 What the user sees: a gap
#
# The preempted user has read half an answer when it stops. That gap is an **ITL spike**, and it has two parts: the
# time until the blocks are free again, and the recomputation or the copy back.
#
# > **Predict.** OPT-13B on an A100, six requests, 120 blocks. One of the six is preempted. Which part of its gap is
# > longer? Do the *others* notice, with recompute and with swap?

# %%
lines = {}
for name in ("recompute", "swap"):
    host = BlockPool(120, 16) if name == "swap" else None
    scheduler = Scheduler(BlockPool(120, 16), 64, 2048, watermark=0, host_pool=host)
    lines[name] = serve(scheduler, [(0, 300, 60)] * 3 + [(0, 300, 120)] * 3, opt)
latency_plot(lines, [0, 4, 5], "Six requests, one of which (F) is preempted").show()

# %%
for name, timeline in lines.items():
    [(step, victim)] = timeline.preemptions
    spike = max(timeline.gaps(victim))
    back = next(i for i in range(step, 200) if victim in timeline.moments[i].boxes
                and timeline.moments[i].boxes[victim].kind in ("again", "back"))  # fmt: skip
    last = timeline.moments[back].ended - timeline.moments[back - 1].ended
    others = max(max(timeline.gaps(other)) for other in range(5))
    print(f"{name:9}: {name_of(victim)} preempted in step {step}, gap {1e3 * spike:.0f} ms, of which "
          f"{1e3 * last:.0f} ms is the step that brings it back; longest gap of the others {1e3 * others:.0f} ms")  # fmt: skip
typical = sorted(lines["swap"].gaps(0))[30]
print(f"a usual gap: {1e3 * typical:.0f} ms")

# %% [markdown]
# And with SmolLM2 in real seconds (section 6; not the same twice, so not compared):

# %% tags=["nbval-ignore-output"]
latency_plot({"recompute": recompute_line, "swap": swap_line}, [0, 3], "SmolLM2 on this machine").show()

# %% [markdown]
# Most of the spike is *waiting*. Whether the blocks are recomputed or copied decides about the last step of it only.
# So a faster way to swap does not cure a pool that is too small; admitting fewer requests, or more memory, does. The
# others notice a little: they share a step with the recomputation (which chunked prefill would cut), or with the copy.
#
# ## 8 Recompute or swap?
#
# Two costs, both nearly proportional to the length:
#
# - swap: the blocks' bytes, over the link to the host, **twice**: out and in again;
# - recompute: two operations for each parameter and token, as any prefill.
#
# > **Predict.** With a link of 25 GB/s (PCIe 4.0, as it is reached with large copies) and an A100: which is cheaper
# > for OPT-13B? And how slow must the link be until the other one is?

# %%
print("                        a token's keys   out and in   compute again   break-even link, one device")
for name, cost in SETUPS.items():
    device, kv = cost.device, cost.shape.kv_bytes_per_token
    swap = 2 * kv / (device.pcie * cost.num_devices)
    flop = 2 * cost.num_parameters
    recompute = flop / (device.flops * cost.num_devices * cost.compute_efficiency)
    link = 2 * kv / recompute / cost.num_devices
    print(f"{name:22}   {kv / 1e3:9.0f} KB   {1e6 * swap:7.1f} µs   {1e6 * recompute:10.1f} µs   "
          f"{link / 1e9:7.1f} GB/s of {device.pcie / 1e9:.0f}")  # fmt: skip

# %% [markdown]
# By this arithmetic, swap wins everywhere, and by more where query heads share keys and values (the Llamas). Then why
# does vLLM's current engine only recompute? Because the sum leaves things out:
#
# - **The link is not that fast.** A block's keys in one layer are a small piece (chapter 2, section 11), and small
#   copies reach a fraction of the peak. The vLLM paper found just this: with small blocks, recompute is faster.
# - **Recompute rides along.** Its tokens join a step that reads the weights anyway.
# - **The prefix cache remembers.** A dropped block is free, not erased. If the request comes back before somebody else
#   took it, nothing is computed again.
# - Swap needs pinned host memory, which the operating system must not move, and bookkeeping for a second pool.
#
# Move the link's speed and see where the lines cross.

# %%
from coursekit.views.dashboard import break_even
from coursekit.views.explore import explore


def swap_or_recompute(setup, link_gb_per_s):
    return break_even(setup, SETUPS[setup], link_gb_per_s * 1e9, range(16, 4097, 16))


explore(
    swap_or_recompute,
    "a choice of model and GPU, and a slider for the link to the host",
    start={"setup": "opt-13b-a100", "link_gb_per_s": 8},
    setup=list(SETUPS),
    link_gb_per_s=[1, 2, 4, 6, 8, 10, 12, 16, 25, 50],
)

# %% [markdown]
# And the whole server, at more load than it can serve, without a watermark so that there is much to preempt:

# %%
from dataclasses import replace

print("                            preemptions   tokens computed   ITL p99   tokens/s")
for name, link, options in (
    ("recompute", 25, {}),
    ("recompute, prefix cache", 25, {"enable_prefix_caching": True}),
    ("swap over 25 GB/s", 25, {"preemption": "swap"}),
    ("swap over 2 GB/s", 2, {"preemption": "swap"}),
):
    cost = replace(opt, device=replace(opt.device, pcie=link * 1e9))
    result = simulate(busy, cost, watermark=0, **options)
    now = result.metrics.snapshot()
    print(f"{name:25}   {now['preemptions']:11}   {now['computed_tokens']:15,}   "
          f"{1e3 * now['itl_p99']:4.0f} ms   {result.tokens_per_second:8.0f}")  # fmt: skip

# %% [markdown]
# The choice matters less than the number of preemptions does: compare with the watermark's table in section 4.
#
# ## 9 What must hold, and what breaks if it does not
#
# 1. **Progress.** Every step moves the oldest request forward.
# 2. **Nothing is lost.** A preempted request keeps its tokens, and its place in the queue.
# 3. **Copies are copies**, and they are made before the source is given away.
# 4. Whoever ends, in whatever way, gives everything back.
#
# ### Broken: two requests preempt each other for ever
#
# A scheduler with two ideas that sound fair. *Partial admission*: a request starts as soon as its first chunk fits,
# why wait for all of it? And *the one that has run longest gives way*: it has had its share. Two requests need 8
# blocks each, the pool has 8, a chunk is 2 blocks.
#
# > **Predict.** Each idea alone, and both together: after how many steps are the two requests done?


# %%
def naive(partial, victim, need=8, num_blocks=8, chunk=2, steps=1000):
    """Blocks that A and B hold after each step, until both are done; and the blocks computed in all."""
    held, running, waiting = {"A": 0, "B": 0}, [], deque("AB")
    history, computed = [], 0
    while (running or waiting) and len(history) < steps:
        for name in list(running):
            want = min(chunk, need - held[name])
            while name in running and want > num_blocks - sum(held.values()):
                loser = running.pop(victim)
                held[loser] = 0
                waiting.appendleft(loser)
            if name in running:
                held[name] += want
                computed += want
                if held[name] == need:
                    running.remove(name)
                    held[name] = 0
        first = chunk if partial else need
        while waiting and first <= num_blocks - sum(held.values()):
            running.append(waiting.popleft())
            held[running[-1]] = first
            computed += first
        history.append(tuple(held.values()))
    return history, computed


for partial in (False, True):
    for victim, who in ((-1, "latest"), (0, "longest running")):
        history, computed = naive(partial, victim)
        end = f"done after {len(history)} steps" if len(history) < 1000 else "not done after 1,000 steps"
        print(f"{'first chunk' if partial else 'all blocks':11} to start, the {who:15} gives way: {end}, "
              f"{computed:,} blocks computed")  # fmt: skip

# %%
history, _ = naive(partial=True, victim=0)
print("blocks of (A, B) after each step:", *history[:10])
period = next(n for n in range(1, 10) if history[20 : 20 + n] == history[20 + n : 20 + 2 * n])
print(f"from then on the same {period} states for ever; the most that either holds: {max(map(max, history))}")

# %% [markdown]
# A **livelock**. The server is busy, the memory is full, each step computes something, and nobody ever finishes. One
# public engine fell from 100 to 1.5 tokens a second in this way. Nothing in the code is wrong by itself; the two rules
# take from each other what they give.
#
# The library has neither. It admits with all blocks or not at all, and only the *latest* gives way. So the oldest
# request never loses a block, and alone it fits, because NEVER has sent away whoever does not. Here that claim is put
# to the test with pools that are hardly large enough:

# %%
import random


def progress(seed):
    """Serve random requests in a tight pool; each step must move the oldest one forward. Returns the counts."""
    rng = random.Random(seed)
    sizes = [(rng.randint(1, 30), rng.randint(1, 30)) for _ in range(8)]
    pool = BlockPool(-(-max(p + n for p, n in sizes) // 4) + rng.randint(0, 3), 4)
    host = BlockPool(rng.randint(1, 20), 4) if rng.random() < 0.5 else None
    scheduler = Scheduler(pool, 8, rng.choice([8, 16, 64]), rng.choice([0, 0.1]), host)
    for number, (prompt, new) in enumerate(sizes):
        scheduler.add(request_of(number, prompt, new, pool))
    steps = preemptions = 0
    while scheduler.has_work:
        before = {r.request_id: r.sequences[0].num_computed_tokens for r in scheduler.running}
        oldest = min(r.request_id for r in [*scheduler.running, *scheduler.waiting])
        step = scheduler.schedule()
        first = step.chunks[0]
        assert first.request.request_id == oldest and first.stop > before.get(oldest, 0)
        scheduler.complete(step)
        take_tokens(scheduler, step)
        scheduler.check()
        steps, preemptions = steps + 1, preemptions + len(step.preempted)
    return steps, preemptions


steps, preemptions = np.sum([progress(seed) for seed in range(100)], axis=0)
print(
    f"800 requests, {steps:,} steps, {preemptions:,} preemptions; every step moved the oldest one forward: True"
)

# %% [markdown]
# ### Broken: a swap that copies nothing
#
# The device is an array, the host is another, and blocks 5, 2 and 7 go to host blocks 0, 3 and 1. Three lines that
# look alike:
#
# > **Predict.** Which of the three copy?

# %%
device = np.arange(10.0).reshape(10, 1) * np.ones((1, 4))  # block b is full of the number b
OUT, HOST = [5, 2, 7], [0, 3, 1]

first, second, third = (np.full((6, 4), -1.0) for _ in range(3))
first[HOST] = device[OUT]
second[HOST][:] = device[OUT]
np.copyto(third[HOST], device[OUT])
for name, host in (
    ("host[ids] = …", first),
    ("host[ids][:] = …", second),
    ("np.copyto(host[ids], …)", third),
):
    print(f"{name:24} host now: {host[:, 0].astype(int)}")

# %% [markdown]
# A list as an index makes a **new array**. The second and third line copy into that temporary, which nobody keeps. No
# error, no warning. In PyTorch it is the same: `host[ids].copy_(…)` is lost. With a slice (`host[0:3][:] = …`) it
# would work, because a slice is a view; so the line passes a test that swaps blocks 0, 1, 2.
#
# Would a test find it? Perhaps not. Swap out, swap in, compare:


# %%
def copy_nothing(target, to, source, of):
    np.copyto(target[to], source[of])


def copy_blocks(target, to, source, of):
    target[to] = source[of]


def round_trip(copy, others_write):
    """Swap blocks 5, 2, 7 out and back into the same blocks; is everything as before?"""
    memory, host = device.copy(), np.full((6, 4), -1.0)
    copy(host, HOST, memory, OUT)
    if others_write:
        memory[OUT] = 99  # that is what the blocks were freed for
    copy(memory, OUT, host, HOST)
    return bool((memory[OUT] == device[OUT]).all())


for copy in (copy_blocks, copy_nothing):
    print(f"{copy.__name__:12}  quiet test passes: {round_trip(copy, others_write=False)!s:5}  "
          f"with others writing in between: {round_trip(copy, others_write=True)}")  # fmt: skip

# %% [markdown]
# In the quiet test nothing was moved, and nothing was missed. The library's copy, with the comment that says why:

# %%
from paged_ref import KVCache

show_source(KVCache.load_blocks)

# %% [markdown]
# ### Broken: freed before it was copied
#
# > **Predict.** C's blocks are freed, A takes one of them and writes, and then C's blocks are copied to the host. What
# > does C read when it comes back?

# %%
cells, pool = np.full((4, 4), "."), BlockPool(4, 4)
c, a = BlockTable(pool), BlockTable(pool)
cells.reshape(-1)[c.append(8)] = list("my pin 4")
freed = list(c.blocks)
c.release()
cells.reshape(-1)[a.append(4)] = list("AAAA")
print("copied after the blocks were freed: ", repr("".join(cells[freed].reshape(-1))))

# %% [markdown]
# So a step has an order (`paged_ref/scheduling/step.py`): blocks are swapped out before anything is written, swapped in before
# anything is read. The engine makes these copies before it starts the model.
#
# ### Broken: an abort on one way out
#
# A client hangs up while its request waits. Whoever waits holds no blocks, so it is enough to take it out of the
# queue, is it not?
#
# > **Predict.** Not if it was swapped out. Who notices, and when?

# %%
pool, host = BlockPool(9, 4), BlockPool(9, 4)
scheduler = Scheduler(pool, 8, 12, watermark=0, host_pool=host)
for number, (prompt, new) in enumerate([(6, 14), (9, 9), (5, 12)]):
    scheduler.add(request_of(number, prompt, new, pool))
while not host.num_used:
    step = scheduler.schedule()
    scheduler.complete(step)
    take_tokens(scheduler, step)
statuses = ", ".join(
    f"{name_of(r.request_id)} {r.status.value}" for r in scheduler.running + scheduler.waiting
)
print(f"{statuses}; blocks held: device {pool.num_used}, host {host.num_used}")
[hung_up] = scheduler.waiting
scheduler.waiting.remove(hung_up)  # "it only waits, so it holds nothing"
try:
    scheduler.check()
except AssertionError as error:
    print("taken out of the queue by hand:", error)
scheduler.waiting.append(hung_up)
for request in [*scheduler.running, *scheduler.waiting]:
    scheduler.abort(request)
scheduler.check()
print("all aborted instead; blocks held: device", pool.num_used, "and host", host.num_used)

# %% [markdown]
# Nobody notices, until the *host's* pool is full and preemption falls back to recompute. With swapping, blocks are held
# in two pools, and every way out must release them: finished, aborted, failed; running, waiting, swapped. The library
# has one method for all of them, and a `check` that counts. An attacker who can make requests end in a leaking way needs
# no more than patience.
#
# ## 10 The dashboard
#
# Nobody watches the blocks of a production server. One watches its **metrics**. A pool that is too small shows itself
# in this order: utilisation near 1; requests wait; preemptions are counted; the ITL's p99 jumps while its *median*
# stays.
#
# > **Predict.** The A100 serves 2.5 requests a second well. What changes first at 3?

# %%
from functools import cache

from coursekit.views.dashboard import dashboard


@cache
def served(rate):
    return simulate(make_workload(TRACES["sharegpt"], 300, rate, seed=1), opt)


def at_rate(requests_per_second):
    return dashboard(served(requests_per_second).metrics, f"{requests_per_second} requests a second")


explore(at_rate, "a slider over the arrival rate", start={"requests_per_second": 3.0},
        requests_per_second=[1.0, 2.0, 2.5, 3.0, 4.0])  # fmt: skip

# %%
print("rate   most blocks used   waited   preemptions   ITL median   ITL p99   TTFT p99")
for rate in (1.0, 2.0, 2.5, 3.0, 4.0):
    m = served(rate).metrics
    now = m.snapshot()
    print(f"{rate:4}   {m.peak_used_blocks / now['num_blocks']:16.0%}   {max(p.waiting for p in m.history):6}   "
          f"{m.preemptions:11}   {1e3 * now['itl_p50']:7.0f} ms   {1e3 * now['itl_p99']:4.0f} ms   "
          f"{now['ttft_p99']:6.2f} s")  # fmt: skip

# %% [markdown]
# The median hides it: most tokens come as fast as ever. An average would hide it, too. Full blocks alone are no
# alarm: a server that works well has a full pool. *Full, with preemptions that go on rising* is one.
#
# A monitoring system reads the numbers as text, in Prometheus' format, under vLLM's names where vLLM has them:

# %%
text = served(3.0).metrics.prometheus()
wanted = ("vllm:kv_cache_usage", "vllm:num_preemptions", "paged_ref:free_blocks", "vllm:num_requests_waiting",
          "vllm:generation_tokens")  # fmt: skip
print("\n".join(line for line in text.splitlines() if line.startswith(wanted)))
print("lines in all:", len(text.splitlines()))

# %% [markdown]
# The run is over, so the gauges are back at rest; the counters (`_total`) keep what was. That is why an alarm watches
# the *rate* of a counter, `rate(vllm:num_preemptions_total[5m]) > 0`, and not a gauge that is looked at now and then.
#
# Two more signals are often asked for: how long an allocation takes, and how many blocks the prefix cache finds. Here
# is a load whose prompts all begin with the same 200 tokens, on a pool that times itself. (Who comes while another
# request computes the same prefix waits until that is done, and finds it.)

# %%
from paged_ref.telemetry.metrics import TimedBlockPool

pool = TimedBlockPool(opt.num_blocks(16), 16, enable_prefix_caching=True)
scheduler = Scheduler(pool, max_num_seqs=256)
jobs = make_workload(TRACES["sharegpt"], 150, 2.0, seed=1, shared_tokens=200)
m = Simulator(scheduler, opt).run(jobs).metrics
now = m.snapshot()
busiest = max(m.history, key=lambda point: point.used_blocks)
print(f"block utilisation  at most {busiest.used_blocks / pool.num_blocks:.0%}, now {now['utilisation']:.0%}")
print(f"free blocks        at least {busiest.free_blocks}, now {now['free_blocks']} of {now['num_blocks']}, "
      f"{now['cached_blocks']} of them still findable")  # fmt: skip
hits, queries = now["block_hits"], now["block_queries"]
print(f"block hits         {hits:,} of {queries:,}, {hits / queries:.0%}; misses {queries - hits:,}")
print(f"allocations        {pool.allocation_seconds.count:,} timed")

# %% tags=["nbval-ignore-output"]
print(f"allocation latency on this machine: median {1e6 * now['allocation_p50']:.0f} µs, "
      f"p99 {1e6 * now['allocation_p99']:.0f} µs")  # fmt: skip

# %% [markdown]
# Microseconds, in plain Python, against steps of many milliseconds. If this number rises, the cause is rarely the list
# of free blocks; it is a process that does not get the processor.
#
# ## 11 How many blocks will there be?
#
# Everything above follows from one number, which an engine logs when it starts. It is a sum:
#
#     blocks = (memory_fraction · memory − weights − activations − what others use) / bytes per block
#
# `memory_fraction` is vLLM's `gpu_memory_utilization`. It says how much the engine may take *for everything*, so the
# weights come out of it first.
#
# > **Predict.** Llama 3.1 8B on an 80 GB GPU: 16 GB of weights, 128 KiB of keys and values a token. From 0.9 to 0.95,
# > does the number of blocks grow by 5 %, by less, or by more? And from 0.9 down to 0.3?

# %%
from paged_ref.model.pool_size import Budget

shape = llama.shape
# A bound from above: the widest layer for all tokens of a step, and the logits of each sequence.
activations = 8192 * (2 * 14_336 + 4 * 4096) * 2 + 256 * 128_256 * (2 + 4)
print("fraction   blocks   tokens    conversations of 500 tokens")
for fraction in (0.3, 0.5, 0.8, 0.9, 0.95):
    budget = Budget(
        80 * 10**9, fraction, int(llama.weight_bytes), activations, 0, shape.kv_bytes_per_block(16)
    )
    print(
        f"{fraction:8}   {budget.num_blocks:6,}   {budget.num_blocks * 16:7,}   {budget.num_blocks // 32:7,}"
    )
print(budget)

# %% [markdown]
# More than in proportion, because the weights stay the same: all of the additional memory becomes blocks. That is why
# a low fraction costs so much, and why the last points are tempting. (They are also the last reserve against an
# out-of-memory error, if the estimate of the activations was too low.)
#
# Now the engine. We predict its number by hand, start it, and read. On a CPU the free memory differs from minute to
# minute, so we tell the engine that exactly 1 GiB is free; a CPU engine has its weights loaded already, so they are
# not in its sum.
#
# > **Predict.** `memory_fraction` 0.5, 512 tokens a step, 16 sequences. SmolLM2 has 30 layers, 3 KV heads of size 64,
# > and 49,152 tokens in its vocabulary; float32. How many blocks of 16 tokens, roughly?

# %%
import logging
import sys
from types import SimpleNamespace
from unittest.mock import patch

config = model.model.config
per_block = 16 * 2 * 30 * 3 * 64 * 4
widest = 2 * config.intermediate_size + 4 * config.hidden_size
activations = 512 * widest * 4 + 16 * config.vocab_size * (4 + 4)
predicted = (2**30 // 2 - activations) // per_block
print(f"predicted: ({2**30 // 2:,} - {activations:,}) // {per_block:,} = {predicted} blocks")

log = logging.getLogger("paged_ref")
log.setLevel(logging.INFO)
log.addHandler(handler := logging.StreamHandler(sys.stdout))
with patch("psutil.virtual_memory", lambda: SimpleNamespace(available=2**30)):
    engine = LLM(model, memory_fraction=0.5, max_num_batched_tokens=512, max_num_seqs=16)
log.removeHandler(handler)
print("the engine has", engine.pool.num_blocks, "blocks; as predicted:", engine.pool.num_blocks == predicted)

# %% [markdown]
# When a server holds fewer requests than you expected, begin here: read the number, redo the sum, and find the term
# that is not what you thought. It may be another process on the GPU, a step too large, or a fraction that somebody
# lowered.
#
# ## 12 "95 % allocated, 12 users"
#
# An article tells of a server whose gauge says *95 % allocated* while 12 users are served and 40 would fit. Chapter 1
# counted it out. Now look at it as an operator does: through the metrics of a running scheduler. 26,000 slots, 2,048
# tokens allowed, and users with 625 tokens of prompt and 15 to come.
#
# > **Predict.** Reservations, and blocks of 16. What does the gauge say in each? Which of the other numbers gives it
# > away?

# %%
SLOTS = 26_000
print("memory            users   allocated   empty slots a user   slots with a token   waiting")
for size, memory in ((2048, "2,048 each"), (16, "blocks of 16")):
    pool = BlockPool(SLOTS // size, size)
    scheduler = Scheduler(pool, max_num_batched_tokens=65_536)
    for number in range(60):
        scheduler.add(request_of(number, 625, 15, pool))
    scheduler.complete(step := scheduler.schedule())
    users, held = len(scheduler.running), pool.num_used * size
    empty = held - sum(r.sequences[0].table.num_tokens for r in scheduler.running)
    print(f"{memory:15}   {users:5}   {held / SLOTS:9.0%}   {empty / users:18,.0f}   "
          f"{(held - empty) / SLOTS:18.0%}   {len(scheduler.waiting):7}")  # fmt: skip

# %% [markdown]
# The gauge says nearly the same, before and after. "Allocated" counts what is promised. The mend is not on the gauge
# but beside it: the empty slots a user, which the library exports as `paged_ref:wasted_slots`. A server that pages
# well has a *full* pool with hardly an empty slot.
#
# ## 13 What you have now
#
# A batch that changes with every step; three answers at the door, and a reserve behind it; prompts in pieces; a rule
# for who gives way, two ways to do it, and the reason why it always goes on; and the four numbers that tell you when
# the pool is too small.
#
# Now write the step, the preemption and the swap yourself: [exercises of chapter 6](../exercises/06_scheduling.ipynb).
#
# Three interview questions. Answer aloud, then look for the cell that shows it.
#
# 1. "We have continuous batching, so we do not need paging." What do you answer, and which four numbers do you show?
# 2. The median inter-token latency is unchanged, its p99 has tripled. What do you look at next, and why does a faster
#    swap not help?
# 3. Why can the oldest request not be preempted for ever, and which two harmless-looking rules together would make it
#    so?
#
# Next: [chapter 7](07_batched_decode.ipynb) puts a real model behind this scheduler.
