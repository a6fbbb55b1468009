# ---
# course:
#   depends: [bench/results/serve.json]
# ---

# %% [markdown]
# # 7 · Batched decode of a real model
#
# **You will be able to** say what a model hands to its attention function and put a paged one in its place, lay out
# the batch of one step as arrays of integers, decode prompts of different lengths together without padding, prove
# that the result equals the dense model token by token, and say where the speed comes from and where not.
#
# 60 minutes to read and run · you need: block tables and slots ([chapter 2](02_block_table.ipynb)), attention through
# a table ([chapter 3](03_numpy_gather.ipynb)) · GPU: not needed
#
# 1. [The dense model, our judge](#1-the-dense-model-our-judge)
# 2. [The memory: pool, tables, storage](#2-the-memory-pool-tables-storage)
# 3. [The batch of one step](#3-the-batch-of-one-step)
# 4. [What does the model hand over?](#4-what-does-the-model-hand-over)
# 5. [Our function in its place](#5-our-function-in-its-place)
# 6. [Prefill: four prompts in one row](#6-prefill-four-prompts-in-one-row)
# 7. [Decode a ragged batch](#7-decode-a-ragged-batch)
# 8. [What must hold, and what breaks if it does not](#8-what-must-hold-and-what-breaks-if-it-does-not)
# 9. [The engine: requests come and go](#9-the-engine-requests-come-and-go)
# 10. [One prompt, many answers](#10-one-prompt-many-answers)
# 11. [How fast is it?](#11-how-fast-is-it)
# 12. [Where does the time of a step go?](#12-where-does-the-time-of-a-step-go)
# 13. [What you have now](#13-what-you-have-now)

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
transformers.utils.logging.set_verbosity_error()
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
from coursekit.views.source_code import show_source
from paged_ref.attention import Batch
from paged_ref.model.batch import StepBatch


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
# > **Predict.** Which of these arrays would change if the pool were shuffled differently? Which rows of the logits will
# > be needed, and how many of the row's tokens could do without theirs?
#
# The same as a picture: one box a token, one colour a sequence. The number in a box is the token's
# **position** in its own sequence, the number below it the **slot** where its key and value go. Framed boxes
# are the sample rows: the last token of each sequence, the only ones whose logits are needed.

# %%
from coursekit.views.batch import step_picture

step_picture(batch, "Prefill: every token of every prompt, in one row", BLOCK_SIZE).show()

# %% [markdown]
# Only the slots and the tables know of the pool. Token ids, positions, lengths are the text's own.
#
# ## 4 What does the model hand over?
#
# transformers looks up a model's attention function by name, in a registry, and calls it once in each layer. So
# before we replace it, we can listen: a function that notes what comes and lets transformers' own compute it.


# %%
from transformers.integrations.sdpa_attention import sdpa_attention_forward

heard = []


def listen(module, query, key, value, attention_mask, **others):
    """Note the arguments, then do what the model would have done."""
    heard.append({"layer": module.layer_idx, "query": query, "key": key, "value": value, **others})
    return sdpa_attention_forward(module, query, key, value, attention_mask, **others)


transformers.AttentionInterface.register("listen", listen)
transformers.AttentionMaskInterface.register("listen", lambda *args, **kwargs: None)
dense.set_attn_implementation("listen")
ids = torch.tensor([prompts[0]])
with torch.inference_mode():
    here = dense(ids, hello="I travel along").logits
print(f"called {len(heard)} times for {ids.shape[1]} tokens, by the layers 0 to {heard[-1]['layer']}")
for name in ("query", "key", "value"):
    print(f"{name:6} {tuple(heard[0][name].shape)}")
for name in ("scaling", "hello"):
    print(f"{name:8} {heard[0][name]}")

# %% [markdown]
# Query heads and KV heads come as they are, three queries to a key; nobody has repeated anything. The scale is the
# model's. And a keyword that we gave to the *model* has arrived in every layer's *attention*: that is the way in for
# tables and slots, without a global variable.
#
# What we must know before we store a key: is it rotated already? (The **rotary embedding** turns queries and keys by
# an angle that grows with the position, so that a score depends on the distance of two tokens.)
#
# > **Predict.** The same five tokens once more, but told that they stand at positions 7 to 11. Which of query, key and
# > value of layer 0 change? Do the logits?

# %%
calls = len(heard)
with torch.inference_mode():
    shifted = dense(ids, position_ids=torch.arange(ids.shape[1])[None] + 7).logits
for name in ("query", "key", "value"):
    print(f"{name:6} of layer 0 changed: {not torch.equal(heard[0][name], heard[calls][name])}")
print("logits the same, up to rounding:", (here - shifted).abs().max().item() < 1e-3)
dense.set_attn_implementation("sdpa")

# %% [markdown]
# Queries and keys come **rotated**; values never are. So a key is stored as it comes and is right for ever: position 7
# stays position 7, whatever block it lies in. Rotating it when it is read would rotate it twice. That the logits stay
# is the point of the embedding: only distances count.
#
# ## 5 Our function in its place
#
# A registered function gets these arguments and returns the attended values, `[1, num_tokens, num_heads, head_dim]`.
# **That function is all we replace.** Weights, layers, norms, the rotary embedding, the code of the model:
# untouched. This is ours, as it stands in the library:

# %%
from paged_ref.model import hf_model

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
from paged_ref.model.hf_model import PagedModel

swapped = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
print("before:", swapped.config._attn_implementation)
model = PagedModel(swapped, tokenizer)
print("after: ", swapped.config._attn_implementation)

# %% [markdown]
# ## 6 Prefill: four prompts in one row
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
# ## 7 Decode a ragged batch
#
# From here on each step appends **one** token to each sequence: a slot from the table, a row in the batch, a
# forward pass, the likeliest token. The sequences stay as different in length as they are.
#
# > **Predict.** How many of the tokens below will differ from the dense model's? And which numbers in a decode batch
# > are equal for all sequences?


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
step_picture(last, "Decode: one token of each sequence", BLOCK_SIZE).show()

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
# ## 8 What must hold, and what breaks if it does not
#
# Four rules of the batch, and for each the same decode with the rule broken. A wrong batch raises nothing. It only
# talks differently.
#
# > **Predict.** In which of the four can *some* sequences still come out right? (One prompt is a single token.)

# %%
from dataclasses import replace

FEW = 6  # tokens suffice to see it


def zeros():
    """New storage, cleared: what a mistake reads there must be the same on every machine."""
    cache = KVCache(shape, 48, BLOCK_SIZE)
    cache.keys.zero_(), cache.values.zero_()
    return cache


def broken_decode(break_rule, forward=None):
    """Prefill and decode afresh with a damaged batch; how many sequences still equal the dense model?"""
    pool = BlockPool(num_blocks=48, block_size=BLOCK_SIZE)
    cache = zeros()
    shuffle(pool)
    tables = [BlockTable(pool) for _ in prompts]
    for table, prompt in zip(tables, prompts, strict=True):
        table.append(len(prompt))
    run = forward or model.forward

    def damaged(batch, cache):
        return run(break_rule(batch), cache)

    first = damaged(make_batch(prompts, tables), cache).argmax(dim=-1).tolist()
    answers = decode(model, cache, tables, first, FEW - 1, damaged)
    return sum(a == b[:FEW] for a, b in zip(answers, expected, strict=True))


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
# One sequence survives the wrong row: a one-token prompt has no other, and in a decode step the first row is the last.
# A test with such prompts finds nothing. Nor would one that only prefills notice that positions restart.
#
# Three more rules are the attention function's. *Write, then read*: a token sees itself. *Rotate nothing*. *Each layer
# has its own cache*: the table is shared by all layers, the numbers are not.
#
# > **Predict.** With layer 0's cache for all layers, is the first new token wrong, or only the later ones?


# %%
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb


def rows(x):
    return x[0].transpose(0, 1)


def forward_with(mistake):
    """The library's function with one mistake in it."""

    def attend(module, query, key, value, attention_mask, scaling=None, paged_step=None, **others):
        layer, cache, step = module.layer_idx, paged_step.cache, paged_step
        if mistake == "rotary twice":
            cos, sin = swapped.model.rotary_emb(query, others["position_ids"])
            query, key = apply_rotary_pos_emb(query, key, cos, sin)
        if mistake == "layer 0's cache":
            layer = 0
        if mistake != "read before write":
            cache.write(layer, rows(key), rows(value), step.slots)
        out = step.plan.run(rows(query), cache.keys[layer], cache.values[layer], scaling, None, None)
        if mistake == "read before write":
            cache.write(layer, rows(key), rows(value), step.slots)
        return out[None], None

    return attend


for mistake in ("no mistake", "read before write", "rotary twice", "layer 0's cache"):
    transformers.AttentionInterface.register("mistaken", forward_with(mistake))
    swapped.set_attn_implementation("mistaken")
    first = model.forward(batch, zeros()).argmax(dim=-1).tolist()
    right = sum(a == b[0] for a, b in zip(first, expected, strict=True))
    print(f"{mistake + ':':19} {right} of 4 first tokens right, {broken_decode(lambda b: b)} of 4 answers")
swapped.set_attn_implementation(hf_model.NAME)

# %% [markdown]
# Two of these lines are treacherous. Rotated twice, every distance counts double, and the model still talks sensibly
# for a while. And in a prefill every layer writes all that it reads, so layer 0's place serves as well as any; from
# the second token on, the layers read each other's keys. A test that looks at one step passes.
#
# ## 9 The engine: requests come and go
#
# `LLM` is the loop of section 7 with a scheduler in front: it admits a request when its blocks fit, lets it
# leave when it is done, and takes blocks back when the pool runs dry (chapter 6). We give it the four prompts and a
# pool so small that they do not fit to their ends. And one question: does it lay out its steps as `make_batch` does?
#
# > **Predict.** The requests want 6, 16, 10 and 12 tokens. When does request 0 leave, and who notices? Somebody must give
# > way on the way: which one, and will its answer differ from the dense model's?

# %%
from paged_ref import LLM, SamplingParams

llm = LLM(model, num_blocks=16, block_size=BLOCK_SIZE)
wanted = [6, 16, 10, 12]
requests = [
    llm.add_request(p, SamplingParams(max_tokens=n, ignore_eos=True))
    for p, n in zip(prompts, wanted, strict=True)
]
running, laid_out, mixed = [], [], None
model.forward = lambda batch, *rest: laid_out.append(batch) or PagedModel.forward(model, batch, *rest)
while llm.scheduler.has_work:
    step = llm.step()
    lens = [chunk.stop - chunk.start for chunk in step.chunks]
    if mixed is None and min(lens) == 1 < max(lens) and step.chunks[0].start > 0:
        mixed = len(running)  # somebody prefills while others decode
        news = [chunk.sequence.token_ids[chunk.start : chunk.stop] for chunk in step.chunks]
        ours = make_batch(news, [chunk.sequence.table for chunk in step.chunks])
    running.append({i for i, r in enumerate(requests) if any(c.request is r for c in step.chunks)})
del model.forward
for i in range(len(requests)):
    print(f"request {i}: ", "".join("#" if i in step else "." for step in running))
print("preemptions:", llm.metrics.preemptions)
print("equal to the dense model:", [r.finished[0].output_token_ids for r in requests]
      == [answer[:n] for answer, n in zip(expected, wanted, strict=True)])  # fmt: skip
print("blocks still held:", llm.pool.num_used)

# %% [markdown]
# Each `#` is a step in which the request computed something. Nobody waited for the longest to finish; a gap in a row is
# a preemption, after which the request came back and went on. We noted what the engine handed to the model. This is a
# step in which the request that gave way is back: it found its full blocks in the prefix cache and computes the rest of
# its tokens, beside others that decode.

# %%
theirs = laid_out[mixed]
same = all(
    np.array_equal(getattr(ours, name), getattr(theirs, name))
    for name in ("token_ids", "positions", "slot_mapping", "sample_rows")
)
print(f"step {mixed}: the engine's arrays equal ours: {same}")
step_picture(theirs, "A chunk of a prefill beside two decodes", BLOCK_SIZE).show()

# %% [markdown]
# This is the library's version. It has no case for prefill and none for decode; a chunk is a range of tokens.

# %%
from paged_ref.model.batch import build_batch

show_source(build_batch)

# %% [markdown]
# ## 10 One prompt, many answers
#
# Blocks that belong to nobody in particular can belong to several. Chapter 4 counts them; here is what a user of
# the real model gets from it: random **samples**, a **beam search**, and a **system prompt** that is computed once.
#
# First: is it right? Sample i of a request with seed s must be what seed s + i draws alone. And a beam search must be
# transformers' own.
#
# > **Predict.** Four samples of the second prompt, against four requests with that prompt and no sharing: how many
# > times the tokens does the second way compute before the first new token is there?

# %%
PROMPT = prompts[1]


def serve(token_lists, params, **settings):
    """Run requests on a new engine; returns (requests, engine)."""
    engine = LLM(model, num_blocks=160, block_size=16, **settings)
    params = params if isinstance(params, list) else [params] * len(token_lists)
    added = [engine.add_request(ids, one) for ids, one in zip(token_lists, params, strict=True)]
    while engine.scheduler.has_work:
        engine.step()
    return added, engine


def draw(n, seed):
    return SamplingParams(max_tokens=12, n=n, temperature=1.0, seed=seed, ignore_eos=True)


[forked], sharing = serve([PROMPT], draw(4, 7))
alone, apart = serve([PROMPT] * 4, [draw(1, 7 + i) for i in range(4)], enable_prefix_caching=False)
samples = [s.output_token_ids for s in sorted(forked.finished, key=lambda s: s.index)]
print("each sample equals its seed alone:", samples == [r.finished[0].output_token_ids for r in alone])
print("different samples:", len({tuple(s) for s in samples}))
for name, engine in (("one request, n=4", sharing), ("four requests", apart)):
    m, per_block = engine.metrics, shape.kv_bytes_per_block(16)
    kib = m.peak_used_blocks * per_block / 1024
    print(
        f"{name:17} {m.computed_tokens:4} tokens computed, at most {m.peak_used_blocks} blocks, {kib:,.0f} KiB"
    )

# %%
[search], beam_engine = serve([PROMPT], SamplingParams(max_tokens=12, beam_width=4))
ids = torch.tensor([PROMPT])
with torch.inference_mode():
    theirs = dense.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, num_beams=4,
                            num_return_sequences=4, do_sample=False, pad_token_id=0)  # fmt: skip
beams = [output.token_ids for output in beam_engine.output(search).outputs]
print("beams equal transformers' beam search:", beams == [row[len(PROMPT) :].tolist() for row in theirs])
print("blocks copied, because a beam wrote into a shared one:", beam_engine.metrics.copied_blocks)
print("blocks held at most:", beam_engine.metrics.peak_used_blocks)

# %% [markdown]
# transformers moves whole caches when beams change places; ours changes tables, and copies a block where two beams
# part inside it.
#
# Now the system prompt: one request has warmed the cache, then three come that begin with the same system prompt.
#
# > **Predict.** What falls, and by how much: the bytes held, the tokens computed, the time to the first token, the time
# > between two tokens?

# %%
from bench.serve.workloads import make_workloads

workloads = make_workloads(tokenizer, quick=True)
asking = [p[256:] for p in workloads["shared prefix"].prompts[:3]]
common = next(i for i, column in enumerate(zip(*asking, strict=False)) if len(set(column)) > 1)
print("prompts of", [len(p) for p in asking], "tokens, of which the first", common, "are the same")
ask = SamplingParams(max_tokens=6, ignore_eos=True)
timed = {}
for caching in (False, True):
    engine = LLM(model, num_blocks=200, block_size=16, enable_prefix_caching=caching)
    if caching:
        engine.generate([asking[0]], SamplingParams(max_tokens=1))
    before = engine.metrics.computed_tokens
    asked = [engine.add_request(p, ask) for p in asking]
    engine.step()
    computed = engine.metrics.computed_tokens - before
    held = engine.pool.num_used * shape.kv_bytes_per_block(16)
    while engine.scheduler.has_work:
        engine.step()
    timed[caching] = asked
    print(f"prefix cache {'on: ' if caching else 'off:'} {computed:5,} tokens computed for the first tokens, "
          f"{held / 2**20:5.1f} MiB held, {held // len(asked) // 1024:6,} KiB a request")  # fmt: skip
texts = {c: [r.finished[0].output_token_ids for r in asked] for c, asked in timed.items()}
print("the same answers:", texts[True] == texts[False])

# %% tags=["nbval-ignore-output"]
for caching, asked in timed.items():
    first = [r.first_token_time - r.arrival_time for r in asked]
    gap = [(r.finish_time - r.first_token_time) / 5 for r in asked]
    print(f"prefix cache {'on: ' if caching else 'off:'} first token after {max(first):5.2f} s, "
          f"then one every {1e3 * max(gap):.0f} ms")  # fmt: skip

# %% [markdown]
# Bytes, computed tokens and the first token: all fall, and by the share of the prompt that was found. What comes
# after the first token stays as it was, because a decode step reads every key of its sequence, shared or not.
#
# ## 11 How fast is it?
#
# Against what? A person with this model and this machine would call transformers' `generate` on a padded batch, or
# its `generate_batch`, which has continuous batching and a paged cache of its own. We let them and our engine answer
# the same requests on the same weights, in turns, and compare the tokens before the times: who is fast and wrong has
# lost.
#
# Two things must be kept apart, because they have nothing to do with paging. Our engine also **packs** the weights for
# the CPU's matrix products (`paged_ref/model/cpu/packed_weights.py`), and **fuses** what a layer does between them into a few
# loops (`paged_ref/model/cpu/fused_layers.py`). So it runs twice: on the model as transformers wrote it, as in all cells before,
# and tuned.
#
# > **Predict.** Four prompts of similar length, 16 new tokens each: no early leavers, little padding. How much can
# > paging gain *here*? Put four servers in order: ours plain, ours tuned, `generate`, `generate_batch`.

# %% tags=["nbval-ignore-output"]
import logging

from paged_ref.model.cpu.fused_layers import fuse
from paged_ref.model.cpu.packed_weights import pack
from bench.serve.measure import compare_servers
from bench.serve.servers import serve_generate, serve_generate_batch, serve_ours

logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)
dense.generation_config.eos_token_id = None  # the lengths are given
uniform = workloads["uniform"]
[plain] = compare_servers({"ours": serve_ours(model)}, uniform, "float32", 1, dense)
print(f"layers fused: {fuse(swapped)}, other products packed: {pack(swapped)}")
servers = {"ours": serve_ours(model), "generate": serve_generate(dense),
           "generate_batch": serve_generate_batch(dense)}  # fmt: skip
figures = compare_servers(servers, uniform, "float32", 1, dense)
print(uniform.title)
for name, f in [("ours, plain", plain), *((f.server, f) for f in figures)]:
    print(f"{name:20} {f.throughput:6.1f} tokens/s, first token after {f.ttft_p50:.2f} s, "
          f"then one every {1e3 * f.itl_p50:.0f} ms, {f.cache_mib:.0f} MiB of cache")  # fmt: skip

# %%
print("servers:", len(figures), "  tokens of each:", {f.tokens for f in figures})
print("wherever the model's choice is clear, they gave the same tokens")  # else `measure` had raised

# %% [markdown]
# One round of a small sample on a busy machine says little. This is a recorded run of the four whole workloads, by
# `python3 course.py bench serve --profile`; below the picture stands what it was measured on.
#
# > **Predict.** In which workload is the gap largest? What does each of them have that another has not?

# %%
import json

from coursekit import ROOT
from coursekit.views.throughput import serving

recorded = json.loads((ROOT / "bench/results/serve.json").read_text())
for name, title in recorded["workloads"].items():
    print(f"{name:14} {title}")
serving(recorded).show()

# %% [markdown]
# What the four have in them: *uniform* has nearly nothing for paging to gain. *Skewed* has answers of very different
# length: a static batch runs until its longest is done. The *shared prefix* is computed once, or once a request. Of the
# *samples*, all come from one prefill.
#
# The skewed case can be counted without a clock. Each row of a static batch takes part in every step:

# %%
skewed = workloads["skewed"]
useful = skewed.total_new_tokens
static = len(skewed.prompts) * max(skewed.new_tokens)
padding = len(skewed.prompts) * max(map(len, skewed.prompts)) - sum(map(len, skewed.prompts))
print(
    f"new tokens wanted: {useful}, rows that a static batch decodes: {static}, useful {useful / static:.0%}"
)
print(f"prompt tokens: {sum(map(len, skewed.prompts))}, and {padding} of padding beside them")

# %% [markdown]
# ## 12 Where does the time of a step go?
#
# We put a clock around the matrix products, around attention, and around everything that is not the model, and let the
# engine decode: with the plain model, with packed weights, and with fused layers. The dashed line is a limit: the same
# matrix products alone, one after the other.
#
# > **Predict.** Packing touches only the products. Fusing joins some of them, and makes loops of what lies between. Which
# > share of a decode step is attention, in the first bar and in the last? If somebody made it twice as fast, how much
# > faster would a token come?

# %% tags=["nbval-ignore-output"]
from dataclasses import asdict

from coursekit.views.throughput import step_bars
from bench.serve.profile import profile_stages

stages = profile_stages(model, uniform, "float32", steps=8)
step_bars([asdict(stage) for stage in stages]).show()
for stage in stages:
    attention = stage.parts["attention"]
    faster = stage.step / (stage.step - attention / 2)
    print(f"{stage.how:15} attention {attention:4.1f} ms, {attention / stage.step:.0%} of the step; twice as fast it "
          f"would give {faster:.2f} times the tokens/s")  # fmt: skip
print(f"everything but the products for nothing: {stages[-1].step / stages[-1].limit:.2f} times")

# %% [markdown]
# Attention takes about the same time in all three bars, and its share grows: what was tuned is what lay around it. A
# share says what is left to gain, not what is slow.
#
# Why are the products so much? Count what a step must read:

# %%
linears = [module for module in dense.modules() if isinstance(module, torch.nn.Linear)]
weights = sum(linear.weight.nbytes for linear in linears)
for tokens in (100, 2000):
    cached = 4 * tokens * shape.kv_bytes_per_token
    print(f"weights: {weights / 1e6:.0f} MB, once for the whole batch; keys and values of 4 sequences of "
          f"{tokens:,} tokens: {cached / 1e6:.0f} MB")  # fmt: skip

# %% [markdown]
# At these lengths a small model spends its step on **reading weights**. No cache can change that. What can: letting
# one reading serve more rows.
#
# > **Predict.** A step decodes 1, 4, then 16 sequences. How do the milliseconds of the step grow, and how the tokens a
# > second?

# %% tags=["nbval-ignore-output"]
import time

fuse(swapped), pack(swapped)  # the clocks above left the plain model
for count in (1, 4, 16):
    pool_of = BlockPool(count * 4, 16)
    many, store = [BlockTable(pool_of) for _ in range(count)], model.new_cache(count * 4, 16)
    for table in many:
        table.append(48)
    one_each, took = make_batch([[5]] * count, many), []
    store.keys.zero_(), store.values.zero_()
    for _ in range(5):
        started = time.perf_counter()
        model.forward(one_each, store)
        took.append(time.perf_counter() - started)
    ms = 1e3 * sorted(took)[2]
    print(f"batch of {count:2}: {ms:4.0f} ms a step, {1e3 * count / ms:4.0f} tokens/s, one sequence gets "
          f"{1e3 / ms:.0f}")  # fmt: skip

# %% [markdown]
# **Paging makes no token faster.** Each sequence gets its next token later in a large batch than alone, not sooner.
# Paging makes *room*, the room is filled with rows, and the rows share the weights' way from memory. Where memory
# holds all requests anyway, or where there is only one, it gains nothing.
#
# *With paging, attention itself gets faster.* Look at it alone: a decode of 16 sequences of 512 tokens, at this
# model's shape. Once in shuffled blocks of 16, once with each sequence in one piece (one block of 512), by the same
# compiled loop; and once as PyTorch's own attention computes it, on dense tensors.
#
# > **Predict.** Which is fastest: in one piece, in blocks, or neither?

# %%
import torch.nn.functional as F

import paged_ref

SEQS, LENGTH, gen = 16, 512, torch.Generator().manual_seed(0)
query = torch.randn(SEQS, 9, 64, generator=gen)
pieces = [torch.randn(SEQS, LENGTH, 3, 64, generator=gen) for _ in "kv"]  # a sequence is a block of 512
order = torch.randperm(SEQS * LENGTH // 16, generator=gen)
scattered = [torch.empty(len(order), 16, 3, 64) for _ in "kv"]
for blocks, piece in zip(scattered, pieces, strict=True):
    blocks[order] = piece.reshape(-1, 16, 3, 64)
lens = torch.full((SEQS,), LENGTH)
ways = {
    "in one piece": lambda: paged_ref.paged_attention(query, *pieces, torch.arange(SEQS)[:, None], lens),
    "shuffled blocks of 16": lambda: paged_ref.paged_attention(query, *scattered, order.view(SEQS, -1), lens),
    "PyTorch, dense": lambda: F.scaled_dot_product_attention(
        query[:, :, None], *(p.transpose(1, 2) for p in pieces), enable_gqa=True
    )[:, :, 0],
}
results = [way() for way in ways.values()]
print("the same numbers:", all((r - results[0]).abs().max() < 1e-5 for r in results))
table_bytes = order.numel() * 4
print(f"bytes of keys and values: {2 * pieces[0].nbytes:,} in each way; of the tables: {table_bytes:,}")

# %% tags=["nbval-ignore-output"]
for name, way in ways.items():
    took = []
    for _ in range(7):
        started = time.perf_counter()
        way()
        took.append(time.perf_counter() - started)
    print(f"{name:22} {1e3 * sorted(took)[3]:6.2f} ms")

# %% [markdown]
# In blocks it reads the same bytes and a table besides. At best that is as fast as in one piece, never faster. (The
# paper's own kernel was 20 to 26 % *slower* than the one it was measured against, and its server two to four times as
# fast.) A difference to PyTorch's function is one of two programs, not of two layouts.
#
# *It compresses the cache.* Then a token would take fewer bytes.
#
# > **Predict.** Bytes of one token in transformers' dense cache, and in ours? Who holds more in all, for the eight
# > skewed requests of section 11: a padded rectangle, our blocks, or the tokens themselves?

# %%
with torch.inference_mode():
    past = dense(torch.tensor([prompts[1]]), use_cache=True).past_key_values
dense_bytes = sum(layer.keys.nbytes + layer.values.nbytes for layer in past.layers) // len(prompts[1])
print(f"one token: {dense_bytes:,} bytes dense, {shape.kv_bytes_per_token:,} in blocks")
lengths = [len(p) + n for p, n in zip(skewed.prompts, skewed.new_tokens, strict=True)]
ways = {
    "the tokens": sum(lengths),
    "in blocks of 16": sum(-(-n // 16) * 16 for n in lengths),
    "a padded rectangle": len(lengths) * (max(map(len, skewed.prompts)) + max(skewed.new_tokens)),
}
for name, slots in ways.items():
    print(
        f"{name:19} {slots:5,} slots, {slots * dense_bytes / 2**20:5.1f} MiB, {sum(lengths) / slots:.0%} of it tokens"
    )

# %% [markdown]
# The same bytes a token, and a little more than the tokens need. What falls away is what held *no* token.
#
# ## 13 What you have now
#
# A real model decodes through block tables, its code untouched, and its tokens are those of the dense model. You have
# seen each array of a step, each rule that they obey, and what a mistake in each does. The gain does not come from a
# faster attention: it comes from rows that carry only useful tokens, and from memory that more requests fit in.
#
# Now write it yourself: the batch, the attention function, the loop. At the end of the [exercises of chapter
# 7](../exercises/07_batched_decode.ipynb) your own engine serves SmolLM2 prompts like these, and is held against
# transformers' `generate`.
#
# Three interview questions. Answer aloud, then look for the cell that shows it.
#
# 1. Which array tells the model *where a token stands in its sequence*, and which tells the cache *where its key is
#    stored*? Why can they not be one?
# 2. Your paged model's first new token is right for every prompt, and from the second on all are wrong. Name two
#    mistakes that do this, and the test that would have found them.
# 3. "We switched to paged attention and the latency per token did not improve." Why is that no surprise, and which
#    figure should have?
#
# Next: chapter 10, the interview, asks you about all of it.
