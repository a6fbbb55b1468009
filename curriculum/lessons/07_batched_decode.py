# %% [markdown]
# # 7 · Batched decode of a real model
#
# **You will be able to** replace the attention of a transformers model with a paged one, lay out the batch of
# one step as arrays of integers, decode prompts of different lengths together without padding, and prove that
# the result equals the dense model, token by token.
#
# 45 minutes to read and run · you need: block tables and slots (the picture in section 2 recalls them) · GPU:
# not needed
#
# 1. [The dense model, our judge](#1-the-dense-model-our-judge)
# 2. [The memory: pool, tables, storage](#2-the-memory-pool-tables-storage)
# 3. [The batch of one step](#3-the-batch-of-one-step)
# 4. [Swap the attention](#4-swap-the-attention)
# 5. [Prefill: four prompts in one row](#5-prefill-four-prompts-in-one-row)
# 6. [Decode a ragged batch](#6-decode-a-ragged-batch)
# 7. [What must hold, and what breaks if it does not](#7-what-must-hold-and-what-breaks-if-it-does-not)
# 8. [The engine: requests come and go](#8-the-engine-requests-come-and-go)
# 9. [How fast is it?](#9-how-fast-is-it)
# 10. [What you have now](#10-what-you-have-now)

# %% [markdown]
# ## 1 The dense model, our judge
#
# *Dense* means transformers' own way: one tensor of keys and values for each sequence, in one piece.
# Everything we build is compared with it, **on the same weights**. Four prompts of different lengths, 16 new
# tokens each, greedy (the likeliest token at each step), in float32 so that rounding does not decide.

# %%
import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from paged_ref.weights import resolve

transformers.utils.logging.disable_progress_bar()
folder = resolve("smollm2-135m")
tokenizer = AutoTokenizer.from_pretrained(folder)
dense = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()

prompts = [
    tokenizer(text).input_ids
    for text in (
        "The capital of France is",
        "Water boils at 100 degrees Celsius at sea level. High up in the mountains it boils at",
        "Once",
        "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    )
]
NEW_TOKENS = 16
print("prompt lengths:", [len(p) for p in prompts])

# %%
config = transformers.GenerationConfig(
    max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0
)
expected = []
with torch.inference_mode():
    for prompt in prompts:
        ids = torch.tensor([prompt])
        result = dense.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
        expected.append(result[0, len(prompt) :].tolist())
print("tokens per answer:", [len(answer) for answer in expected])

# %% [markdown]
# The first answer as text (generated, so not compared by the tests):

# %% tags=["nbval-ignore-output"]
print(tokenizer.decode(prompts[0] + expected[0]))

# %% [markdown]
# ## 2 The memory: pool, tables, storage
#
# Three objects, each with one job:
#
# | object | knows | does not know |
# |---|---|---|
# | `BlockPool` | which blocks are free, how many hold each | sequences, numbers |
# | `BlockTable` | one sequence's blocks in order | other sequences |
# | `KVCache` | the numbers: K and V of all layers, by slot | who owns what |
#
# The pool below is small, and we take and free some blocks first so that the tables come out scattered, as
# they are in a server that has run for a while. (A pool fresh from the box hands out 0, 1, 2, …, and a wrong
# kernel that ignores the table would pass.)

# %%
from paged_ref import BlockPool, BlockTable, KVCache, ModelShape

BLOCK_SIZE = 4
shape = ModelShape.from_config(dense.config, dtype="float32")
pool = BlockPool(num_blocks=48, block_size=BLOCK_SIZE)
cache = KVCache(shape, pool.num_blocks, BLOCK_SIZE)


def shuffle(pool, seed=0):
    """Take every block and give them back in random order."""
    blocks = pool.allocate(pool.num_blocks)
    pool.free(np.random.default_rng(seed).permutation(blocks).tolist())


shuffle(pool)
tables = [BlockTable(pool) for _ in prompts]
slots = [table.append(len(prompt)) for table, prompt in zip(tables, prompts, strict=True)]
for table in tables:
    print(f"{table.num_tokens:2} tokens in blocks {table.blocks}")

# %% [markdown]
# A token's slot is its block, times the block size, plus its place in the block.
#
# > **Predict.** In which slot is token 4 of the first prompt? (Count from 0; its block table is above.)

# %%
block, offset = tables[0].blocks[4 // BLOCK_SIZE], 4 % BLOCK_SIZE
print("token 4 is in block", block, "at offset", offset, "-> slot", block * BLOCK_SIZE + offset)
print("the table says so too:", tables[0].slot(4) == block * BLOCK_SIZE + offset)

# %% [markdown]
# ## 3 The batch of one step
#
# A dense batch is a rectangle: short prompts are padded to the longest. Ours is a **row**: all tokens of all
# sequences, one after the other, and integers that say who is who.

# %%
from coursekit.lesson import show_source
from paged_ref.attention import Batch
from paged_ref.batch import StepBatch


def make_batch(new_tokens, tables):
    """The batch in which sequence i computes its last len(new_tokens[i]) tokens, whose slots are taken."""
    lens = np.array([len(tokens) for tokens in new_tokens])
    starts = np.concatenate([[0], np.cumsum(lens)])
    first = [table.num_tokens - n for table, n in zip(tables, lens, strict=True)]
    positions = np.concatenate([np.arange(f, f + n) for f, n in zip(first, lens, strict=True)])
    slots = np.concatenate([t.slots(f, f + n) for t, f, n in zip(tables, first, lens, strict=True)])
    width = max(len(table.blocks) for table in tables)
    rows = np.zeros((len(tables), width), dtype=np.int32)
    for row, table in zip(rows, tables, strict=True):
        row[: len(table.blocks)] = table.blocks
    seq_lens = np.array([table.num_tokens for table in tables])
    return StepBatch(
        token_ids=np.concatenate(new_tokens).astype(np.int32),
        positions=positions.astype(np.int32),
        slot_mapping=slots.astype(np.int32),
        sample_rows=(starts[1:] - 1).astype(np.int32),
        attention=Batch.of(rows, seq_lens, starts),
    )


batch = make_batch(prompts, tables)
for name in ("token_ids", "positions", "slot_mapping", "sample_rows"):
    print(f"{name:16} {getattr(batch, name)}")
for name in ("query_start_loc", "seq_lens"):
    print(f"{name:16} {getattr(batch.attention, name)}")
print("block_tables\n", batch.attention.block_tables)

# %% [markdown]
# The same as a picture: one box a token, one colour a sequence. The number in a box is the token's
# **position** in its own sequence, the number below it the **slot** where its key and value go. Framed boxes
# are the sample rows: the last token of each sequence, the only ones whose logits are needed.

# %%
from coursekit.batch_view import draw_batch
from coursekit.show import display_figure, figure

fig, ax = figure(width=9.5, height=2.3)
draw_batch(ax, batch)
ax.set_title("Prefill: every token of every prompt, in one row")
display_figure(
    fig,
    alt=f"A row of {len(batch.token_ids)} boxes in four colours, one for each prompt. In each colour the positions "
    "count up from 0; the slots below them are contiguous within a block of four and jump between blocks. The last "
    "box of each colour is framed.",
    summary=f"{len(batch.token_ids)} tokens of four prompts, no padding; a padded rectangle would have "
    f"{len(prompts) * max(map(len, prompts))}.",
)

# %% [markdown]
# ## 4 Swap the attention
#
# transformers looks up its attention function by name, in a registry. A registered function gets queries,
# keys and values (after the rotary embedding) once in each layer, and returns the attended values. **That
# function is all we replace.** Weights, layers, norms, the rotary embedding, the code of the model:
# untouched.
#
# This is the function, as it stands in the library:

# %%
from paged_ref import hf_model

show_source(hf_model.paged_attention_forward)

# %% [markdown]
# Two lines do the work. `cache.write` puts this step's keys and values into their slots; `plan.run` attends
# through the block tables. The order matters: a token must see itself, so it is written first. What the
# function needs beside Q, K and V comes as a keyword argument (`paged_step`) that the model hands down
# through its layers.
#
# Swapping is one call. `PagedModel` makes it, and then runs three tokens to see that *every* layer really
# came to us.

# %%
from paged_ref.hf_model import PagedModel

swapped = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
print("before:", swapped.config._attn_implementation)
model = PagedModel(swapped, tokenizer)
print("after: ", swapped.config._attn_implementation)

# %% [markdown]
# ## 5 Prefill: four prompts in one row
#
# > **Predict.** `model.forward` returns logits for how many rows? How far will they be from the dense
# > model's: equal bit for bit, equal up to rounding, or only similar?

# %%
logits = model.forward(batch, cache)
print("logits:", tuple(logits.shape))

with torch.inference_mode():
    dense_logits = torch.stack([dense(torch.tensor([p])).logits[0, -1] for p in prompts])
difference = (logits - dense_logits).abs().max().item()
print(
    "largest logit:",
    f"{dense_logits.abs().max().item():.0f}",
    " largest difference below 0.001:",
    difference < 1e-3,
)

# %% [markdown]
# Equal up to rounding: the sums are the same, their order is not.
#
# ## 6 Decode a ragged batch
#
# From here on each step appends **one** token to each sequence: a slot from the table, a row in the batch, a
# forward pass, the likeliest token. The sequences stay as different in length as they are.


# %%
def decode(model, cache, tables, first_tokens, steps, forward=None):
    """Greedy decode of all sequences together; returns the new tokens of each."""
    forward = forward or model.forward
    answers = [[token] for token in first_tokens]
    for _ in range(steps):
        for table in tables:
            table.append(1)
        batch = make_batch([[answer[-1]] for answer in answers], tables)
        logits = forward(batch, cache)
        for answer, token in zip(answers, logits.argmax(dim=-1).tolist(), strict=True):
            answer.append(token)
    return answers


answers = decode(model, cache, tables, logits.argmax(dim=-1).tolist(), NEW_TOKENS - 1)
for i, (ours, theirs) in enumerate(zip(answers, expected, strict=True)):
    print(f"sequence {i}: {len(ours)} tokens, equal to the dense model: {ours == theirs}")

# %%
last = make_batch([[answer[-1]] for answer in answers], tables)
fig, ax = figure(width=6.5, height=2.3)
draw_batch(ax, last)
ax.set_title("Decode: one token of each sequence")
display_figure(
    fig,
    alt="Four boxes, one for each sequence, all framed. Their positions are "
    f"{', '.join(map(str, last.positions))}, their slots {', '.join(map(str, last.slot_mapping))}.",
    summary="A decode step has one token a sequence, each at its own position; every row is sampled.",
)

# %% [markdown]
# Prefill and decode are the same code. A step may mix them: a new prompt can join while others decode, and
# that is all that *continuous batching* needs from the model.
#
# How scattered are the tables by now?

# %%
for i, table in enumerate(tables):
    jumps = sum(b != a + 1 for a, b in zip(table.blocks, table.blocks[1:], strict=False))
    waste = len(table.blocks) * BLOCK_SIZE - table.num_tokens
    print(
        f"sequence {i}: {len(table.blocks):2} blocks, {jumps:2} jumps between neighbours, "
        f"{waste} slots empty at the end"
    )

# %% [markdown]
# ## 7 What must hold, and what breaks if it does not
#
# Four rules, and for each the same decode with the rule broken. A wrong batch raises nothing. It only talks
# differently.

# %%
from dataclasses import replace


def broken_decode(break_rule, forward=None):
    """Prefill and decode afresh with a damaged batch; how many sequences still equal the dense model?"""
    pool = BlockPool(num_blocks=48, block_size=BLOCK_SIZE)
    cache = KVCache(shape, pool.num_blocks, BLOCK_SIZE)
    cache.keys.zero_(), cache.values.zero_()
    shuffle(pool)
    tables = [BlockTable(pool) for _ in prompts]
    for table, prompt in zip(tables, prompts, strict=True):
        table.append(len(prompt))
    run = forward or model.forward

    def damaged(batch, cache):
        return run(break_rule(batch), cache)

    first = damaged(make_batch(prompts, tables), cache).argmax(dim=-1).tolist()
    answers = decode(model, cache, tables, first, NEW_TOKENS - 1, damaged)
    return sum(a == b for a, b in zip(answers, expected, strict=True))


def positions_restart(batch):
    """Every step counts positions from 0 again."""
    lens = np.diff(batch.attention.query_start_loc)
    return replace(batch, positions=np.concatenate([np.arange(n) for n in lens]).astype(np.int32))


def slots_of_the_next_token(batch):
    """Every token is written one slot too far."""
    return replace(batch, slot_mapping=(batch.slot_mapping + 1) % (48 * BLOCK_SIZE))


def first_row_sampled(batch):
    """The first token of each sequence is sampled instead of the last."""
    return replace(batch, sample_rows=batch.attention.query_start_loc[:-1])


def tables_of_the_neighbour(batch):
    """Every sequence reads through the table of the one before it."""
    attention = batch.attention
    return replace(
        batch, attention=replace(attention, block_tables=np.roll(attention.block_tables, 1, axis=0))
    )


print("nothing broken:           ", broken_decode(lambda batch: batch), "of 4 equal")
print("positions restart:        ", broken_decode(positions_restart), "of 4 equal")
print("slots of the next token:  ", broken_decode(slots_of_the_next_token), "of 4 equal")
print("first row sampled:        ", broken_decode(first_row_sampled), "of 4 equal")
print("table of the neighbour:   ", broken_decode(tables_of_the_neighbour), "of 4 equal")

# %% [markdown]
# And the fifth, inside the attention function: **read before write**. Then a token does not see itself.


# %%
def read_before_write(module, query, key, value, attention_mask, scaling=None, paged_step=None, **ignored):
    """The library's function with its two lines the other way round."""
    layer, cache = module.layer_idx, paged_step.cache
    attended = paged_step.plan.run(
        query[0].transpose(0, 1), cache.keys[layer], cache.values[layer], scaling, None, None
    )
    cache.write(layer, key[0].transpose(0, 1), value[0].transpose(0, 1), paged_step.slots)
    return attended.unsqueeze(0), None


transformers.AttentionInterface.register("read_before_write", read_before_write)
swapped.set_attn_implementation("read_before_write")
print("read before write:        ", broken_decode(lambda batch: batch), "of 4 equal")
swapped.set_attn_implementation(hf_model.NAME)

# %% [markdown]
# ## 8 The engine: requests come and go
#
# `LLM` is the loop of section 6 with a scheduler in front: it admits a request when its blocks fit, lets it
# leave when it is done, and takes blocks back when the pool runs dry. We give it the four prompts and a pool
# so small that not all of them fit.

# %%
from paged_ref import LLM, SamplingParams

llm = LLM(model, num_blocks=14, block_size=BLOCK_SIZE)
requests = [llm.add_request(p, SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True)) for p in prompts]
running = []
while llm.scheduler.has_work:
    step = llm.step()
    running.append(
        "".join(str(i) if any(c.request is r for c in step.chunks) else "." for i, r in enumerate(requests))
    )
for i in range(len(requests)):
    print(f"request {i}: ", "".join("#" if str(i) in step else "." for step in running))
print("preemptions:", llm.metrics.preemptions)
print("equal to the dense model:", [r.finished[0].output_token_ids for r in requests] == expected)
print("blocks still held:", llm.pool.num_used)

# %% [markdown]
# Each `#` is a step in which the request computed something. Nobody waited for the longest to finish, and
# whoever lost its blocks came back and went on.
#
# ## 9 How fast is it?
#
# > **Predict.** Sixteen prompts of different lengths, answers between 8 and 64 tokens. transformers'
# > `generate` pads the prompts to the longest and runs until the last answer is complete. Which is faster,
# > and by what factor?
#
# Times differ between machines and runs, so they are not compared by the tests. The second line is a
# machine-independent reason for the first.

# %% tags=["nbval-ignore-output"]
import time

rng = np.random.default_rng(1)
many = [rng.integers(1000, 40000, size=n).tolist() for n in rng.integers(20, 120, size=16)]
lengths = rng.integers(8, 65, size=16).tolist()

tokenizer.padding_side = "left"
tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
longest = transformers.GenerationConfig(
    max_new_tokens=max(lengths), do_sample=False, eos_token_id=None, pad_token_id=0
)
padded = tokenizer.pad({"input_ids": many}, return_tensors="pt")

started = time.perf_counter()
with torch.inference_mode():
    dense.generate(**padded, generation_config=longest)
static_seconds = time.perf_counter() - started

engine = LLM(model, num_blocks=256, block_size=16)
started = time.perf_counter()
outputs = engine.generate(many, [SamplingParams(max_tokens=n, ignore_eos=True) for n in lengths])
paged_seconds = time.perf_counter() - started

useful = sum(lengths)
print(f"transformers generate, padded: {useful / static_seconds:5.0f} useful tokens/s")
print(
    f"paged_ref:                     {useful / paged_seconds:5.0f} useful tokens/s, "
    f"{static_seconds / paged_seconds:.1f} times"
)

# %%
print("useful new tokens:", sum(lengths))
print("decoded by the static batch:", len(many) * max(lengths))
print("decoded by the engine:", engine.metrics.generated_tokens)
print("every answer has its length:", [len(o.outputs[0].token_ids) for o in outputs] == lengths)

# %% [markdown]
# ## 10 What you have now
#
# A real model decodes through block tables, its code untouched, and its tokens are those of the dense model.
# The gain does not come from a faster attention: it comes from rows that carry only useful tokens, and from
# memory that more requests fit in.
#
# Three interview questions:
#
# 1. Which array tells the model *where a token stands in its sequence*, and which tells the cache *where its key is
#    stored*? Why can they not be one?
# 2. Why is the token written before the attention of the same step is computed?
# 3. Your engine's outputs differ from the dense model only for prompts whose length is a multiple of the block size.
#    Where do you look first?
#
# Back to [chapter 0](00_start_here.ipynb).
