# ---
# course:
#   depends: [bench/results/beams.json]
# ---

# %% [markdown]
# # 4 · Sharing
#
# **You will be able to** let several sequences hold one block and say when it is free, fork a sequence
# without copying it, copy exactly the one block that a write needs, find a prompt's beginning by its
# contents, say in which order cached blocks leave, and name what goes wrong with collisions, tenants and
# threads.
#
# 65 minutes to read and run · you need: pool and table ([chapter 2](02_block_table.ipynb)) · GPU: not needed
#
# 1. [Two tables, one block](#1-two-tables-one-block)
# 2. [What does a fork cost?](#2-what-does-a-fork-cost)
# 3. [Copy-on-write, step by step](#3-copy-on-write-step-by-step)
# 4. [Four samples and four beams of a real model](#4-four-samples-and-four-beams-of-a-real-model)
# 5. [How much is saved, and why the paper's figure is another](#5-how-much-is-saved-and-why-the-papers-figure-is-another)
# 6. [When may another prompt use my block?](#6-when-may-another-prompt-use-my-block)
# 7. [A chain of keys](#7-a-chain-of-keys)
# 8. [Which block leaves first?](#8-which-block-leaves-first)
# 9. [What if two keys collide?](#9-what-if-two-keys-collide)
# 10. [A system prompt of 2,000 tokens](#10-a-system-prompt-of-2000-tokens)
# 11. [The neighbour can measure what you asked](#11-the-neighbour-can-measure-what-you-asked)
# 12. [A tree of runs instead of a chain of blocks](#12-a-tree-of-runs-instead-of-a-chain-of-blocks)
# 13. [Two threads, one count](#13-two-threads-one-count)
# 14. [What must hold, and what breaks if it does not](#14-what-must-hold-and-what-breaks-if-it-does-not)
# 15. [What you have now](#15-what-you-have-now)

# %% [markdown]
# ## 1 Two tables, one block
#
# A block table is a list of block ids, and nothing forbids that two lists name the same id. Keys and values
# of a past token never change, so two sequences with the same beginning can read one copy of it. That is all
# the machinery of sharing needs from attention: nothing. What changes is the **bookkeeping**: when is such a
# block free?
#
# We use the memory of chapter 2 in which one character stands for a token's keys and values. Two users have
# the same prompt, and we let both tables name the same blocks, by hand.
#
# > **Predict.** The pool has been told of one holder for each block. A has finished and frees its blocks. Then C
# > starts. What does B read?

# %%
import numpy as np

from paged_ref import BlockPool, BlockTable, OutOfBlocks


class TextMemory:
    """A KV memory for one layer in which a token's keys and values are one character."""

    def __init__(self, num_blocks, block_size):
        self.cells = np.full((num_blocks, block_size), ".")

    def write(self, slots, text):
        self.cells.reshape(-1)[slots] = list(text)

    def copy(self, pairs):
        for source, destination in pairs:
            self.cells[destination] = self.cells[source]

    def read(self, table):
        return "".join(self.cells[table.blocks].reshape(-1)[: table.num_tokens])


pool, memory = BlockPool(num_blocks=8, block_size=4), TextMemory(8, 4)
a, b, c = BlockTable(pool), BlockTable(pool), BlockTable(pool)
memory.write(a.append(12), "Be brief. A:")
b.blocks, b.num_tokens = list(a.blocks), a.num_tokens  # the same blocks, and nobody counts
print("A reads", repr(memory.read(a)), "  B reads", repr(memory.read(b)))
a.release()
memory.write(c.append(9), "PIN: 4711")
print("B reads", repr(memory.read(b)), "  tables:", b.blocks, c.blocks)

# %% [markdown]
# Pieces of C's secret: B's blocks were free, as far as the pool knew. So a block needs a **reference count**: how many
# tables name it. `share` adds a holder, `free` drops one, and the block is free when the count arrives at 0.
# This is the library's code (what a *cached* block is, section 8 says):

# %%
from coursekit.views.source_code import show_source

show_source(BlockPool.share, BlockPool.free)

# %% [markdown]
# Both look first and act afterwards, as in chapter 2: a call that is refused has changed nothing. The same
# story with counts, for one prompt and any number of users. *One set of blocks, N tables, a count for each
# block:*

# %%
pool, memory = BlockPool(num_blocks=8, block_size=4), TextMemory(8, 4)
users = [BlockTable(pool)]
memory.write(users[0].append(12), "Be brief. A:")
users += [users[0].fork() for _ in range(4)]
blocks = list(users[0].blocks)
named = {block for user in users for block in user.blocks}
counts = [pool.ref_count(block) for block in blocks]
print(f"{len(users)} tables, {len(named)} blocks, counts: {counts}")
for user in users[:4]:
    user.release()
    print("one leaves; counts:", [pool.ref_count(block) for block in blocks], "  free:", pool.num_free)
print("the last one still reads", repr(memory.read(users[4])))
users[4].release()
print("and when it leaves, free:", pool.num_free)

# %% [markdown]
# ## 2 What does a fork cost?
#
# A **fork** makes a second sequence that continues the first one's tokens. It is wanted where one prompt gets
# several answers (*parallel samples*) and where a search keeps several continuations (*beams*). The word is
# the operating system's, and so is the trick: `fork` copies no memory.

# %%
show_source(BlockTable.fork)

# %% [markdown]
# > **Predict.** A sequence has 2,000 tokens of Llama-3.1-70B in blocks of 16. It is forked three times. How
# > many bytes of keys and values are copied? How many blocks are taken?

# %%
from paged_ref import MODELS

llama = MODELS["llama-3.1-70b"]
big_pool = BlockPool(num_blocks=400, block_size=16)
first = BlockTable(big_pool)
first.append(2000)
before = big_pool.num_free
forks = [first.fork() for _ in range(3)]
print("blocks taken by three forks:", before - big_pool.num_free)
print("copies ordered by them:", sum(len(fork.pending_copies) for fork in forks))
print(f"a copy instead, three times: {3 * llama.kv_bytes(2000) / 1e9:.2f} GB")
print(f"work done: {3 * len(first.blocks)} counts raised by one")

# %% [markdown]
# ## 3 Copy-on-write, step by step
#
# So far everybody only reads. Now the forks go on, each with tokens of its own. Where do they write?
#
# > **Predict.** A has 10 tokens in blocks of 4, so its third block is half full. B is a fork of A. A writes
# > "X" into its next slot, then B writes "Y" into its next slot. What does A read afterwards, if both use the
# > slot that the table gives?

# %%
pool, memory = BlockPool(num_blocks=8, block_size=4), TextMemory(8, 4)
a = BlockTable(pool)
memory.write(a.append(10), "the cat is")
b = a.fork()
for table, text in ((a, "X"), (b, "Y")):
    table.num_tokens += 1  # no look at the count
    memory.write([table.slot(10)], text)
print("A reads", repr(memory.read(a)), "  B reads", repr(memory.read(b)))

# %% [markdown]
# Both wrote into the same slot, and A has B's token. The rule that prevents it:
#
# **Before a write into a block with several holders, the writer takes a block of its own, copies the old one
# into it, and drops its hold on the old one.** That is *copy-on-write*. A block with one holder is written in
# place. A **full** block is never written again, so it is never copied, however many hold it.
#
# Now watch it. Three sequences, a small pool in random order. (`take_copies` hands the ordered copies to
# whoever owns the storage; they are performed before anything is written.)
#
# > **Predict.** A, B and C share everything after two forks. Then A, B and C write one token each, in this
# > order. How many blocks are copied?

# %%
from coursekit.views.pool import History

pool, memory = BlockPool(num_blocks=8, block_size=4), TextMemory(8, 4)
pool.allocate(8)
pool.free([5, 2, 7, 0, 6, 1, 4, 3])
tables = {0: BlockTable(pool)}
history = History(pool, tables)


def say(number, text):
    """One sequence writes; the copies that this orders come first."""
    slots = tables[number].append(len(text))
    copies = tables[number].take_copies()
    memory.copy(copies)
    memory.write(slots, text)
    how = f"block {copies[0][0]} is copied to {copies[0][1]}" if copies else "nothing is copied"
    history.note(f"{'ABC'[number]} writes {text!r}: {how}")


say(0, "the cat is")
for number in (1, 2):
    tables[number] = tables[0].fork()
    history.note(f"{'ABC'[number]} is forked from A: no block is taken")
for number, text in ((0, "X"), (1, "Y"), (2, "Z"), (0, "xx"), (1, "yyyy")):
    say(number, text)
tables.pop(0).release()
history.note("A is done")
for step, event in enumerate(history.events):
    print(f"{step:2} {event}")
print("B reads", repr(memory.read(tables[1])), "  C reads", repr(memory.read(tables[2])))

# %% [markdown]
# Two copies for three writers: A and B leave the shared block, and C, by then its only holder, writes in
# place. With `k` holders there are `k − 1` copies. Each copies one block, and at most one block a fork is
# ever copied: the partly full one. The first two blocks stay shared to the end.
#
# The map right after A's copy:

# %%
history.explore(start=4)

# %% [markdown]
# The same rule in the library is the branch in the middle of `grow`. The block is allocated before anything
# else changes, so that a dry pool leaves the table as it was; and the copy is *noted*, not performed, because
# all copies of a step are made together, in every layer.

# %%
show_source(BlockTable.grow)

# %% [markdown]
# > **Predict.** The pool has no free block. A and B share a half-full block, and A wants to write one token,
# > for which its last block has room. Does it succeed?

# %%
pool = BlockPool(num_blocks=3, block_size=4)
a = BlockTable(pool)
a.append(10)
b = a.fork()
try:
    a.append(1)
except OutOfBlocks as error:
    print("A:", error)
b.release()
a.append(1)
print("after B has left, in place:", a.num_tokens, "tokens, copies:", a.take_copies())

# %% [markdown]
# A copy needs a block too. An admission rule that forgets this admits forks that cannot take a single step;
# `blocks_to_append` counts the copy.
#
# ## 4 Four samples and four beams of a real model
#
# SmolLM2, twice at once in one engine: four random continuations of a prompt (`n=4`), and a search with four
# beams (`beam_width=4`). Lengths are Alpaca's means, 19 tokens in and 58 out.
#
# A **beam search** keeps the `k` likeliest continuations. In each step it looks at all one-token extensions
# of all beams and keeps the best `k`. One beam may get two successors and another none: a fork and a release,
# in every step.
#
# > **Predict.** Which of the two shares more at its end, samples or beams? Why?

# %%
import transformers

from paged_ref import LLM, SamplingParams
from paged_ref.model.hf_model import PagedModel

transformers.utils.logging.disable_progress_bar()
model = PagedModel.load("smollm2-135m", dtype="float32")

PROMPT, NEW, WIDTH, SIZE = 19, 58, 4, 16
text = "Once there was a keeper of a lighthouse who counted the ships that passed in the night. One night"
prompt = model.tokenizer(text).input_ids[:PROMPT]
llm = LLM(model, num_blocks=128, block_size=SIZE, enable_prefix_caching=False)
samples = llm.add_request(
    prompt, SamplingParams(max_tokens=NEW, n=WIDTH, temperature=1.0, seed=0, ignore_eos=True)
)
search = llm.add_request(prompt, SamplingParams(max_tokens=NEW, beam_width=WIDTH, ignore_eos=True))
parents, computed, copied = [], [], 0
while llm.scheduler.has_work:
    beams = {tuple(beam.token_ids): number for number, beam in enumerate(search.sequences)}
    step = llm.step()
    computed.append(step.num_tokens)
    copied += len(step.copies)
    if search.sequences:  # which beam of the step before does each beam extend?
        parents.append([beams[tuple(beam.token_ids[:-1])] for beam in search.sequences])
print("tokens computed in the first steps:", computed[:4])
print("the prompt is computed once for each request:", computed[0] == 2 * len(prompt))
print("every answer has its length:", {len(s.output_token_ids) for s in samples.finished} == {NEW})

# %% [markdown]
# One prefill for four answers: without forks the prompt would have been computed, and stored, four times.
#
# In `parents` we noted the search's tree. What a search holds depends on its tree and on nothing else, so we
# can **replay** it with a pool and tables, without the model: fork, release the parents, append. Samples are
# a tree, too, one that forks once. Does the replay hold as many blocks as the engine did, at every step?


# %%
def replay(prompt_tokens, parents, block_size):
    """(blocks held, entries of all tables) after each step, and how many blocks were copied in all."""
    width = len(parents[-1])
    pool = BlockPool((prompt_tokens + len(parents)) * (width + 1), block_size)
    beams, counts, copies = [BlockTable(pool)], [], 0
    beams[0].append(prompt_tokens)
    for row in parents:
        grown = [beams[parent].fork() for parent in row]
        for old in beams:
            old.release()
        for beam in grown:
            beam.append(1)
            copies += len(beam.take_copies())
        beams = grown
        counts.append((pool.num_used, sum(len(beam.blocks) for beam in beams)))
    pool.check()
    return counts, copies


def forked_once(width, steps):
    return [[0] * width] + [list(range(width))] * (steps - 1)


four_samples, sample_copies = replay(PROMPT, forked_once(WIDTH, NEW - 1), SIZE)
four_beams, beam_copies = replay(PROMPT, parents, SIZE)
held = [point.used_blocks for point in llm.metrics.history][1:]  # without the prefill
both = [x + y for (x, _), (y, _) in zip(four_samples, four_beams, strict=True)]
print("the same number of blocks at every step:", held == both)
print("the same number of copies:", copied == sample_copies + beam_copies)

# %% [markdown]
# A close decision of a search may fall the other way on another machine, because sums are rounded in another
# order. So from here on we use trees that were recorded from SmolLM2 (`bench/beams.py`). This is the
# beginning of one, over blocks of 4 so that one sees something:

# %%
import json

from coursekit import ROOT
from coursekit.views.explore import explore
from coursekit.views.fork import beam_tree, sharing_curves

searches = json.loads((ROOT / "bench/results/beams.json").read_text())["searches"]
trees = {width: [] for width in (2, 4, 6)}
for one in searches:
    trees[one["width"]].append([[int(digit) for digit in row] for row in one["steps"].split()])


def tree_at(step):
    return beam_tree(6, trees[4][0][:step], 4)


explore(tree_at, "a slider over the steps of the search", start={"step": 13}, step=range(1, 25))

# %% [markdown]
# The living beams descend from few ancestors. What those filled is shared, although it is no part of the
# prompt. What a dropped beam held alone is free at once. One step further and a single beam has won all four
# places:

# %%
for step in (12, 13, 14, 15):
    print(f"after step {step}: {tree_at(step).summary}")

# %% [markdown]
# Now at Alpaca's lengths and with blocks of 16, beside four samples:

# %%
four_beams, beam_copies = replay(PROMPT, trees[4][0][: NEW - 1], SIZE)
sharing_curves({"four samples": four_samples, "four beams": four_beams}).show()
print("blocks copied:", sample_copies, "for the samples,", beam_copies, "for the beams")
rows = trees[4][0][1 : NEW - 1]
print(f"steps in which a beam dies: {sum(len(set(row)) < WIDTH for row in rows)} of {len(rows)}")

# %% [markdown]
# Samples share the prompt's full blocks, copy its partly full one once for each sample but the last, and never
# share anything again. Beams keep sharing, and keep copying, because in most steps a beam dies and another
# takes its place. Such a copy moves one block; without sharing, the beam that takes the place would need a
# copy of its parent's *whole* cache.
#
# ## 5 How much is saved, and why the paper's figure is another
#
# The vLLM paper measured the share of blocks saved by sharing, for 2, 4 and 6 samples or beams: on Alpaca 6.1
# to 9.8 % and 37.6 to 55.2 %, on ShareGPT 16.2 to 30.5 % and 44.3 to 66.3 %. Ours, over the life of one
# request of the traces' mean lengths (for beams: trees that were recorded from searches of SmolLM2, by
# `bench/beams.py`):

# %%
from paged_ref.workload import TRACES, make_workload

PAPER = {
    ("alpaca", "samples"): (0.061, 0.098),
    ("alpaca", "beams"): (0.376, 0.552),
    ("sharegpt", "samples"): (0.162, 0.305),
    ("sharegpt", "beams"): (0.443, 0.663),
}


def tree_of(kind, width, steps, number=0):
    """The tree of so many steps; a recorded one is continued with its own rows if it is too short."""
    if kind == "samples":
        return forked_once(width, steps)
    rows = trees[width][number % len(trees[width])]
    return rows[:1] + [rows[1:][i % (len(rows) - 1)] for i in range(steps - 1)]


def saved(counts):
    return 1 - sum(held for held, _ in counts) / sum(entries for _, entries in counts)


mean = {}
for trace, kind in PAPER:
    lengths = round(TRACES[trace].prompt_tokens), round(TRACES[trace].output_tokens)
    for width in trees:
        counts = []
        for number in range(3):
            counts += replay(lengths[0], tree_of(kind, width, lengths[1] - 1, number), SIZE)[0]
        mean[trace, kind, width] = saved(counts)


def table_of(title, shares):
    print(f"{title:38}      2      4      6   the paper, 2 to 6")
    for (trace, kind), (low, high) in PAPER.items():
        ours = "  ".join(f"{shares[trace, kind, width]:5.1%}" for width in trees)
        print(f"  {trace:9} {kind:29} {ours}   {low:.1%} to {high:.1%}")


table_of("saved, one request of mean lengths", mean)

# %% [markdown]
# The order of the four cases is the paper's, but most of our shares are larger. Have we shown that our sharing is
# better? No: we have averaged something else.
#
# > **Predict.** Real requests differ in length. A request with a long answer is in memory for many steps, and
# > what does it share with its siblings in the last of them? And what of Alpaca's prompts that are shorter
# > than a block? Will the average over a trace's requests be higher or lower?

# %%
traced = {}
for trace, kind in PAPER:
    jobs = make_workload(TRACES[trace], 400 if kind == "samples" else 40, rate=np.inf, seed=1)
    for width in trees:
        if kind == "samples":  # these have a formula: only the prompt's full blocks stay shared
            held = entries = 0
            for job in jobs:
                stored = job.prompt_tokens + np.arange(1, job.output_tokens)
                full, needed = job.prompt_tokens // SIZE, -(-stored // SIZE)
                held += (full + width * (needed - full)).sum()
                entries += (width * needed).sum()
            traced[trace, kind, width] = 1 - held / entries
        else:
            counts = []
            for i, job in enumerate(jobs):
                if job.output_tokens > 1:
                    tree = tree_of(kind, width, job.output_tokens - 1, i)
                    counts += replay(job.prompt_tokens, tree, SIZE)[0]
            traced[trace, kind, width] = saved(counts)
table_of("saved, the requests of a trace", traced)

# %%
from coursekit.views.fork import saved_beside_paper

ours = {
    f"{trace}, {kind}": {
        "one request of mean lengths": {width: mean[trace, kind, width] for width in trees},
        "the requests of a trace": {width: traced[trace, kind, width] for width in trees},
    }
    for trace, kind in PAPER
}
saved_beside_paper(ours, {f"{trace}, {kind}": PAPER[trace, kind] for trace, kind in PAPER}).show()

# %% [markdown]
# How far do the living beams have to look back for an ancestor that all of them share? What lies before it is in
# memory once:

# %%
from coursekit.beam_tree import living

for width in trees:
    back = [
        next(n for n, alive in enumerate(reversed(living(tree[:step]))) if len(alive) == 1)
        for tree in trees[width]
        for step in range(50, len(tree), 10)
    ]
    print(f"{width} beams: {np.mean(back):4.1f} tokens back on average, {max(back)} at most")

# %% [markdown]
# For samples this explains the difference: averaged over requests as a server holds them, ours come down to the
# paper's ranges, or close to them. Sharing is what the prompt contributes, and at a random moment a server holds
# mostly requests with long answers. For beams it does not: with conversations of ShareGPT's lengths, searches with
# four and six beams save more here than in the paper. On average only the last few blocks differ, however long the
# answer is. Which beams live depends on the model and the texts, and ours is a much smaller model. (And the lengths
# are drawn to have the traces' means; they are not the traces.)
#
# So a figure such as "sharing saves 55 %" needs its question: of which blocks, averaged over what?
#
# ## 6 When may another prompt use my block?
#
# Forks share because one sequence *came from* another. Two users with the same system prompt have no common
# ancestor. Their blocks could be the same all the same, if someone noticed. **Prefix caching** notices: it
# files every full block under its contents, and a new prompt looks up how much of its beginning is there.
#
# Contents means: the tokens. But which? *A block with the same 16 tokens can be used, wherever they stand*,
# some say.
#
# > **Predict.** Two prompts of 32 tokens. Their second halves are the same 16 tokens, their first halves
# > differ. Compare the keys and values that the model stores for the second halves. Are they equal in the
# > first layer? In the last?

# %%
import torch

words = model.tokenizer(
    "The keeper of the lighthouse counts the ships that pass in the night and writes their number into a book. "
    "The baker in the village bakes bread before the sun rises and sells it from a cart beside the old bridge."
).input_ids
one, other, common = words[:16], words[16:32], words[-16:]


def stored(tokens):
    """Keys and values of the last 16 tokens, in every layer."""
    llm = LLM(model, num_blocks=8, block_size=SIZE)
    request = llm.add_request(tokens, SamplingParams(max_tokens=2, ignore_eos=True))
    llm.step()
    table = request.sequences[0].table
    slots = torch.tensor(table.slots(len(tokens) - 16, len(tokens)))
    kept = [cache.flatten(1, 2)[:, slots].clone() for cache in (llm.cache.keys, llm.cache.values)]
    llm.abort(request)
    return kept


def compare(name, x, y):
    for what, ours, theirs in zip(("keys", "values"), x, y, strict=True):
        change = (ours - theirs).flatten(1).norm(dim=1) / ours.flatten(1).norm(dim=1)
        kind = ["equal" if share < 1e-4 else "other" for share in change.tolist()]
        print(f"{name:30} {what:6}  first layer: {kind[0]}   layers 2 to {len(kind)}: {set(kind[1:])}")


reference = stored(one + common)
compare("the same beginning", reference, stored(one + common))
compare("another beginning", reference, stored(other + common))
compare("another place (16 later)", reference, stored(one + other + common))

# %% [markdown]
# In the first layer a key depends on the token and its place, a value on the token alone. From the second
# layer on, everything has passed through attention and depends on **all tokens before**. So a block may be
# used again exactly when *every* token up to its end is the same. A prefix hit can only start at the
# beginning of a sequence, and that is why it is called a *prefix* cache.
#
# > **Predict.** Somebody does it all the same: a cache that looks at a block's own tokens only. What does the
# > model do with a block that was computed after another beginning: raise an error, talk nonsense, or go on
# > talking?

# %%
from paged_ref.blocks.prefix_cache import PrefixCache


class AnyPlaceCache(PrefixCache):
    """Finds a block by its own tokens, whatever stands before."""

    def find(self, parent, tokens, extras=None):
        filed = self._by_block.values()
        return next((entry for entry in filed if entry.tokens == tuple(tokens)), None)


def answer_with(cache):
    """Tokens taken from the cache for other + common, when common is known after another beginning; the answer."""
    llm = LLM(model, num_blocks=32, block_size=SIZE)
    llm.pool.prefix_cache = cache
    for known in (one + common, other):
        llm.generate([[*known, 1]], SamplingParams(max_tokens=1))
    before = llm.metrics.cached_tokens
    prompt = [*other, *common, words[0]]
    [result] = llm.generate([prompt], SamplingParams(max_tokens=12, ignore_eos=True))
    return llm.metrics.cached_tokens - before, result.outputs[0].token_ids


right, wrong = answer_with(PrefixCache()), answer_with(AnyPlaceCache())
print("tokens from the cache: by the whole beginning", right[0], "  by the block alone", wrong[0])
print("the same answer:", right[1] == wrong[1])

# %% tags=["nbval-ignore-output"]
print("right:", repr(model.tokenizer.decode(right[1])))
print("wrong:", repr(model.tokenizer.decode(wrong[1])))

# %% [markdown]
# It goes on talking, from a text that nobody sent. Nothing fails and nothing looks odd.
#
# ## 7 A chain of keys
#
# So what is a block filed under? Not under its 16 tokens, but under all tokens up to its end. These may be
# thousands. A hash makes it short, and a **chain** makes it cheap: the key of a block is made of the key of
# the block before it.
#
#     key(block i) = hash(key(block i − 1), the block's tokens, extras)
#
# Extras are what else the keys and values depend on, or should: a tenant's salt (section 11), an adapter, an
# image.

# %%
from paged_ref.blocks.prefix_cache import HashedKey, chained_key

cat, mat, hat = (1, 2, 3, 4), (5, 6, 7, 8), (9, 9, 9, 9)
root = b""
key_cat, key_hat = chained_key(root, cat, None), chained_key(root, hat, None)
print("mat after cat:", chained_key(key_cat, mat, None).hex()[:12])
print("mat after hat:", chained_key(key_hat, mat, None).hex()[:12])
print("mat at the beginning:", chained_key(root, mat, None).hex()[:12])

# %% [markdown]
# `chained_key` is the kind of key that vLLM uses: SHA-256 of the three parts. Inside one process the chain is shorter
# still: the first part can be the parent's *entry* itself. Our cache does that. Each entry holds a dictionary of the
# entries that continue it, and the dictionary's key is the block's tokens, with the extras if there are any.
#
# The look-up walks along the chain, from the beginning of the sequence, block by block, and stops at the
# first block that is missing:

# %%
show_source(PrefixCache.match)

# %% [markdown]
# Look at `usable`. A prompt of n tokens may take at most **n − 1** from the cache. Even if everything is
# known, the model must run on the last token: keys and values say nothing about which token comes *next*,
# only the model's output at the last position does. (An engine that forgot this had a batch of zero queries,
# and crashed.) As blocks are found whole or not at all, this costs a whole block when the prompt fills its
# last block exactly.
#
# > **Predict.** Blocks of 16. A prompt of n tokens is served, then once more. How many tokens does the second
# > time take from the cache, for n = 16, 17, 48 and 49?

# %%
print("  n   from the cache   computed   same token")
for n in (16, 17, 48, 49):
    llm = LLM(model, num_blocks=16, block_size=SIZE)
    many = (words * 2)[:n]
    tokens = [llm.generate([many], SamplingParams(max_tokens=1))[0].outputs[0].token_ids for _ in range(2)]
    cached = llm.metrics.cached_tokens
    print(f"{n:3}   {cached:14}   {n - cached:8}   {tokens[0] == tokens[1]}")

# %% [markdown]
# Two more rules, each an engine's real fault:
#
# - **Only full blocks are filed.** A partly full one will be written again, by its holder.
# - **A block is filed when its keys and values are written**, not when it is allocated. Two equal prompts that
#   arrive in the same step must not find each other's empty blocks. In our engine short ones are computed twice, and
#   one copy is filed. Where the first spares the second a long prefill, the second waits a step and finds its blocks:

# %%
sampling = SamplingParams(max_tokens=4, ignore_eos=True)
for n in (40, 200):
    many = (words * 8)[:n]
    [once] = LLM(model, num_blocks=32, block_size=SIZE).generate([many], sampling)
    llm = LLM(model, num_blocks=32, block_size=SIZE)
    twice = llm.generate([many, many], sampling)
    right = all(result.outputs[0].token_ids == once.outputs[0].token_ids for result in twice)
    print(f"two prompts of {n:3} tokens: {llm.metrics.cached_tokens:3} from the cache, both right: {right}")

# %% [markdown]
# ## 8 Which block leaves first?
#
# A cached block that nobody holds costs nothing: it is **free**, and findable until somebody else needs it.
# So a prefix cache has no size of its own. It lives in the free blocks, and the order in which free blocks
# are handed out *is* the eviction order:
#
#     head ->  [worth nothing]  [cached, freed first … cached, freed last]  <- tail
#
# > **Predict.** A prompt of four full blocks is computed and ends; its table gives the blocks back, **last
# > block first**. Then others take one block after the other. Which part of the prompt is lost first, the
# > beginning or the end? And if the table gave its first block back first?


# %%
def lose_slowly(first_first):
    """How many blocks of a prompt of four are still found, after each block that somebody else takes."""
    pool = BlockPool(num_blocks=8, block_size=4, enable_prefix_caching=True)
    table, tokens, entry = BlockTable(pool), list(range(16)), None
    table.append(16)
    for i, block in enumerate(table.blocks):
        entry = pool.prefix_cache.publish(entry, tokens[4 * i : 4 * i + 4], None, block)
    if first_first:
        pool.free(table.blocks)
    else:
        table.release()
    found = [len(pool.prefix_cache.match([*tokens, 99], 4))]
    for _ in range(8):
        pool.allocate(1)
        found.append(len(pool.prefix_cache.match([*tokens, 99], 4)))
        pool.check()
    return found


print("blocks taken by others:        ", list(range(9)))
print("found, last block freed first: ", lose_slowly(first_first=False))
print("found, first block freed first:", lose_slowly(first_first=True))

# %% [markdown]
# The four blocks that were never used go first, in both cases. Then the chain is eaten: from its end, if the
# end was freed first, and what is left can still be found. From its beginning otherwise, and then one lost
# block makes the others worthless, because nobody can reach them any more. A beginning is also what *other*
# prompts are likelier to share. Hence `release` frees in reverse.
#
# A hit takes a block out of the middle of the free list, and back among the living. The same as a film: A and
# B have the same first block, C evicts.

# %%
pool = BlockPool(num_blocks=8, block_size=4, enable_prefix_caching=True)
cache, tables = pool.prefix_cache, {}
history = History(pool, tables)


def start(number, tokens, event):
    """Look up, adopt what is found, compute the rest, file the full blocks."""
    table = tables[number] = BlockTable(pool)
    hits = cache.match(tokens, 4)
    table.adopt([entry.block for entry in hits])
    table.append(len(tokens) - table.num_tokens)
    entry = hits[-1] if hits else None
    for i in range(len(hits), len(tokens) // 4):
        entry = cache.publish(entry, tokens[4 * i : 4 * i + 4], None, table.blocks[i])
    history.note(f"{event}: {len(hits)} block{'s' * (len(hits) != 1)} found")


start(0, [1, 2, 3, 4, 5, 6, 7, 8, 9], "A starts")
tables.pop(0).release()
history.note("A ends; its full blocks stay findable")
start(1, [1, 2, 3, 4, 0, 0], "B starts with A's first block")
start(2, list(range(50, 71)), "C starts, 21 tokens")
tables.pop(2).release()
history.note("C ends")
start(3, [1, 2, 3, 4, 5, 6, 7, 8, 9], "D starts, with A's tokens")
for number, event in enumerate(history.events):
    print(number, event)
history.explore(start=4)

# %% [markdown]
# In step 4 C takes every free block, and A's second one is among them: its contents are lost. A's first one
# was not free, because B holds it. So D finds one block where A had filed two, and shares it with B, whom it
# has never met.
#
# ### Broken: a recycled block that keeps its entry
#
# When a free block is handed out for new contents, its entry must go *before* the first write. The library's
# `allocate` calls `forget`. Leave it out:
#
# > **Predict.** A's block is recycled for B. Then somebody sends A's prompt. What do they read?


# %%
class Forgetful(BlockPool):
    def forget(self, block):
        """Does not: the entry stays."""


for kind in (Forgetful, BlockPool):
    pool, memory = kind(1, 8, enable_prefix_caching=True), TextMemory(1, 8)
    a, b, a_again = BlockTable(pool), BlockTable(pool), BlockTable(pool)
    memory.write(a.append(8), "what is ")
    pool.prefix_cache.publish(None, "what is ", None, a.blocks[0])
    a.release()
    memory.write(b.append(8), "PIN 4711")
    b.release()
    hits = pool.prefix_cache.match("what is a page?", 8)
    a_again.adopt([entry.block for entry in hits])
    print(f"{kind.__name__:9}  found: {len(hits)}  read: {memory.read(a_again)!r}")

# %% [markdown]
# *So freed blocks need zeroing?* No. Zeros under the old entry would be as wrong as the PIN, only less
# talkative. What must be cleared is the **entry**; the bytes are overwritten before anybody reads them.
#
# ## 9 What if two keys collide?
#
# A hash is shorter than what it stands for, so two contents may have the same. How likely? With keys of b
# bits and n blocks in the cache, some pair collides with a probability of about n² / 2^(b+1).

# %%
for bits, name in ((32, "CRC-32"), (64, "Python's hash()"), (256, "SHA-256")):
    chance = min(1, 1e6**2 / 2 ** (bits + 1))
    print(f"{name:16} {bits:3} bits, a million blocks: {chance:.0e}")
print("Python's hash() of (-1,) and of (-2,):", hash((-1,)) == hash((-2,)))

# %% [markdown]
# Chance is not the only danger. Python's `hash()` of integers has no secret, so somebody who wants a
# collision can compute one: the last line needs no luck. A collision is not an error message, it is *another
# user's context*.
#
# There are two remedies: a cryptographic hash, for which nobody knows how to make a collision, and
# **comparing the contents on every hit**. Our cache compares. A Python dictionary finds a key by its hash and then
# compares the whole key, and our keys are the contents themselves. So Python's fast `hash()` is good enough here: a
# collision costs a second comparison. An engine that trusts its keys, or sends them to another process in place of
# the tokens, needs the cryptographic hash. Let us force the worst: a hash function that always returns the same.
#
# > **Predict.** With that function, a cache that trusts its keys answers every look-up with the same block.
# > What does ours do?


# %%
class TrustingCache:
    """One block for each key, and the key is believed."""

    def __init__(self, hash_function):
        self.hash, self.blocks = hash_function, {}

    def publish(self, tokens, block):
        self.blocks[self.hash(b"", tokens, None)] = block

    def find(self, tokens):
        return self.blocks.get(self.hash(b"", tokens, None))


def always_the_same(parent, tokens, extras):
    return b"collision"


trusting, ours = TrustingCache(always_the_same), PrefixCache(hash_function=always_the_same)
for block, tokens in enumerate([(1, 2, 3, 4), (5, 6, 7, 8), (9, 9, 9, 9)]):
    trusting.publish(tokens, block)
    ours.publish(None, tokens, None, block)
for tokens in ((1, 2, 3, 4), (5, 6, 7, 8), (0, 0, 0, 0)):
    found = ours.find(None, tokens)
    print(f"{tokens}: trusting {trusting.find(tokens)}, ours {found.block if found else None}")
show_source(PrefixCache.find, HashedKey)

# %% [markdown]
# `find` looks in the parent's own dictionary, so the parent is right. A `HashedKey` has the hash that we forced on it,
# and is equal to another only if the contents are. With a colliding hash the cache becomes slower, and stays right.
# The whole model on that cache:

# %%
safe = LLM(model, num_blocks=64, block_size=SIZE)
collided = LLM(model, num_blocks=64, block_size=SIZE)
collided.pool.prefix_cache = PrefixCache(hash_function=always_the_same)
prompts = [one + common, other + common, one + other, one + common + other]
sampling, same = SamplingParams(max_tokens=3, ignore_eos=True), True
for prompt in prompts:  # one after the other, so that the later ones find the earlier ones' blocks
    x, y = safe.generate([prompt], sampling), collided.generate([prompt], sampling)
    same &= x[0].outputs[0].token_ids == y[0].outputs[0].token_ids
print("the same tokens:", same)
print("from the cache:", safe.metrics.cached_tokens, "and", collided.metrics.cached_tokens)

# %% [markdown]
# ## 10 A system prompt of 2,000 tokens
#
# The case where all this pays: 200 conversations that begin with the same 2,000 tokens. First the bytes,
# exactly, for the 70B model and for ours.
#
# > **Predict.** How many gigabytes do 200 copies take for Llama-3.1-70B? How many with sharing? And if the
# > system prompt had 2,001 tokens?

# %%
print("                     one copy     200 copies     shared")
for name, shape in (("llama-3.1-70b", llama), ("smollm2, float32", model.shape)):
    copy = shape.kv_bytes(2000)
    shared = 2000 // SIZE * shape.kv_bytes_per_block(SIZE)
    print(f"{name:17} {copy / 1e6:8.1f} MB   {200 * copy / 1e9:8.1f} GB   {shared / 1e6:6.1f} MB")
for length in (2000, 2001, 2015):
    full, rest = divmod(length, SIZE)
    print(f"{length} tokens: {full} full blocks are shared, {rest} tokens are each one's own")

# %% [markdown]
# Memory is one half. The other is **compute**: blocks that are found need no prefill. We measure both on
# SmolLM2. A text of 2,000 tokens is the system prompt, and a conversation adds a few tokens.
#
# > **Predict.** The first conversation must compute 2,012 tokens, the second 12. By which factor does the
# > time to the first token fall? And by which factor does each *further* token become faster?

# %%
SYSTEM = np.random.default_rng(0).integers(1000, 40000, size=2000).tolist()
QUESTIONS = np.random.default_rng(1).integers(1000, 40000, size=(8, 12)).tolist()
llm = LLM(model, num_blocks=256, block_size=SIZE)
conversations = []
for question in (QUESTIONS[0], QUESTIONS[1]):
    request = llm.add_request(SYSTEM + question, SamplingParams(max_tokens=9, ignore_eos=True))
    before = llm.metrics.computed_tokens
    llm.step()
    print("computed before the first token:", llm.metrics.computed_tokens - before, "tokens")
    before = llm.metrics.computed_tokens
    while request.sequences:
        llm.step()
    print("computed for each further token: ", (llm.metrics.computed_tokens - before) / 8)
    conversations.append(request)

# %% tags=["nbval-ignore-output"]
cold, warm = (r.first_token_time - r.arrival_time for r in conversations)
after = [(r.finish_time - r.first_token_time) / 8 for r in conversations]
print(f"time to the first token: {cold:.2f} s without, {warm:.2f} s with the cache: {cold / warm:.0f} times")
print(f"each further token:      {after[0] * 1e3:.0f} ms and {after[1] * 1e3:.0f} ms")

# %% [markdown]
# *Prefix caching speeds up decode*, says the misconception. It does not: a decode step computes one token and
# reads the keys and values of **all** tokens before, wherever they come from. (Times differ between machines;
# that the number of computed tokens is the same does not.) What falls is the time to the first token, and the
# number of blocks.
#
# Is the answer the same as without a cache? And how do the tables look when eight conversations run at once?

# %%
same_again = llm.generate([SYSTEM + QUESTIONS[0]], SamplingParams(max_tokens=9, ignore_eos=True))
print(
    "cold and warm give the same tokens:",
    same_again[0].outputs[0].token_ids == conversations[0].finished[0].output_token_ids,
)
running = [
    llm.add_request(SYSTEM + question, SamplingParams(max_tokens=4, ignore_eos=True))
    for question in QUESTIONS
]
llm.step()
tables = [request.sequences[0].table for request in running]
first = tables[0].blocks[:125]
same = all(table.blocks[:125] == first for table in tables)
print("tables:", len(tables), "  all begin with the same 125 entries:", same)
print("holders of each of these blocks:", {llm.pool.ref_count(block) for block in first})
print(f"blocks held: {llm.pool.num_used}, entries of all tables: {sum(len(t.blocks) for t in tables)}")
llm.abort(*running)
print("after they end, held:", llm.pool.num_used, " still findable:", len(llm.pool.prefix_cache) >= 125)

# %% [markdown]
# **This is what the table is for.** Without the indirection, a sequence's memory *is* its place, and two
# sequences cannot have the same. With it, sharing a prefix is writing the same integers into two lists.
#
# ## 11 The neighbour can measure what you asked
#
# A cache that all tenants share answers a question that nobody should be able to ask: *has someone sent this
# prompt before?* The time to the first token says it.
#
# Alice's prompt is a form with one secret word in its first block; the rest of the form is public. Mallory
# sends the form with each possible word and looks at the clock.
#
# > **Predict.** Only one word of the form is secret. Why does a wrong guess find nothing at all, and not most
# > of it?

# %%
WORDS = ["flu", "asthma", "measles", "diabetes"]
FORM = " The patient asks for advice on food, sleep, travel and work. Answer in plain words." * 12


def form(word):
    ids = model.tokenizer(f"Diagnosis: {word}.").input_ids
    return ids + model.tokenizer(FORM).input_ids[: 8 * SIZE + 4 - len(ids)]


def guess(llm, salt):
    """For each word: tokens computed and seconds to the first token, as Mallory's requests meet them."""
    seen = []
    for word in WORDS:
        request = llm.add_request(form(word), SamplingParams(max_tokens=1, cache_salt=salt))
        step = llm.step()
        seen.append((step.num_tokens, request.first_token_time - request.arrival_time))
    return seen


llm = LLM(model, num_blocks=256, block_size=SIZE)
llm.generate([form("measles")], SamplingParams(max_tokens=1))  # Alice
leak = guess(llm, salt=None)
print("tokens computed for Mallory:", dict(zip(WORDS, [tokens for tokens, _ in leak], strict=True)))

# %% tags=["nbval-ignore-output"]
print("milliseconds:", {word: round(1e3 * seconds) for word, (_, seconds) in zip(WORDS, leak, strict=True)})

# %% [markdown]
# A wrong word is another first block, and all blocks after it have other keys. One request had little to
# compute, its answer came sooner, and Mallory knows the word. (Each guess puts Mallory's own form into the
# cache, so a word can be tried once. That is enough.)
#
# The remedy is a **salt**: a tenant's own value that goes into every key of the chain. Requests of different
# salts live in different trees. The price: what two tenants have in common is stored and computed for each.
#
# > **Predict.** Alice and Mallory have different salts. How many tokens are computed for each guess? And if
# > Alice sends her form again?

# %%
llm = LLM(model, num_blocks=256, block_size=SIZE)
for _ in range(2):
    before = llm.metrics.computed_tokens
    llm.generate([form("measles")], SamplingParams(max_tokens=1, cache_salt="alice"))
    print("computed for Alice:", llm.metrics.computed_tokens - before)
salted = guess(llm, salt="mallory")
print("computed for Mallory:", dict(zip(WORDS, [tokens for tokens, _ in salted], strict=True)))

# %% tags=["nbval-ignore-output"]
print("milliseconds:", {word: round(1e3 * seconds) for word, (_, seconds) in zip(WORDS, salted, strict=True)})

# %% [markdown]
# ## 12 A tree of runs instead of a chain of blocks
#
# Chained keys form a tree, and one can build that tree directly. SGLang's **RadixAttention** does: a *radix
# tree* whose edges are runs of tokens of any length, split where two prompts part. A run need not end at a
# block's edge, so with pages of one token a match is exact to the token, and a chain of blocks loses up to
# `block_size − 1` tokens at each parting. The tree knows its leaves: it evicts the least recently used leaf,
# which gives by construction what the chain gets from freeing tail first. In exchange the chain never splits
# anything, costs one dictionary look-up a block, and has keys that can leave the machine, for a cache on another
# one. Both find prefixes only; both count holders.

# %%
from coursekit.views.prefix import two_trees

two_trees(
    {
        "A": "you are a helpful assistant . what is a page ?",
        "B": "you are a helpful assistant . what is a block ?",
        "C": "you are a pirate . say hello to the crew",
    },
    block_size=4,
).show()

# %% [markdown]
# C shares three tokens with the others. The radix tree sees it; the chain of blocks does not, because its
# first block differs.
#
# ## 13 Two threads, one count
#
# `ref_counts[block] += 1` looks like one thing and is three: read, add, write.
#
# > **Predict.** A block has one holder. Two threads share it at the same time, so there should be three. Each
# > does the three steps. Which counts are possible at the end?

# %%
from coursekit.views.prefix import Moment, race

race([Moment(0, "read", 1), Moment(1, "read", 1), Moment(0, "write", 2), Moment(1, "write", 2)], 1,
     "The lost update").show()  # fmt: skip

# %% [markdown]
# It happens rarely by itself, which makes it worse. The library has a function that makes it happen for
# certain: it stops each thread between its read and its write until the other has read, too (or for `patience`
# seconds, where the other is kept out).

# %%
from paged_ref.blocks.lost_update import LockedBlockPool, share_from_two_threads

print("one holder, two more come, without a lock:", share_from_two_threads(BlockPool(8, 4), patience=5))
print("one holder, two more come, with a lock:   ", share_from_two_threads(LockedBlockPool(8, 4)))
show_source(LockedBlockPool.share)

# %% [markdown]
# With a lock around the operation, the second thread cannot read before the first has written. The *whole*
# operation must be inside: count, free list, prefix cache. (`allocate` moves links of the free list; two
# threads that do it at once can get the same block.) Two locked calls in a row are not atomic together: between a
# look at `num_free` and an `allocate` another thread may come, so ask for forgiveness, not for permission.
#
# Python's global lock is no remedy: which operations it keeps together differs between versions, and
# free-threaded builds have none. In C++ or Rust the count would be an atomic integer. And the best remedy is
# not to share: our engine, like vLLM's and SGLang's, gives the pool to one scheduler thread, and nobody else
# touches it.
#
# ## 14 What must hold, and what breaks if it does not
#
# 1. A block's count is the number of tables that name it.
# 2. A block that is written has one holder.
# 3. A filed block is full, its keys and values are written, and its entry goes before its contents do.
# 4. A hit starts at the beginning and ends before the last token.
#
# Sections 3, 8 and 9 broke the second, the third and the keys. Left is the first, and it is the one that
# spoils silently.
#
# ### Broken: a count that is too low
#
# A lost update has left the count of A's and B's first block at 1 instead of 2.
#
# > **Predict.** B ends and frees the block. C starts. When does somebody get an error: at once, when B ends,
# > when C starts, when A ends, or never?

# %%
pool, memory = BlockPool(num_blocks=6, block_size=4), TextMemory(6, 4)
a = BlockTable(pool)
memory.write(a.append(8), "my cat's")
b, c = a.fork(), BlockTable(pool)
pool._ref_counts[a.blocks[0]] -= 1  # the lost update
pool.check()
print("pool.check() finds nothing: seen from the pool alone, the counts are possible")
b.release()
memory.write(c.append(4), "4711")
print("A reads", repr(memory.read(a)))
a.release()
try:
    c.release()
except ValueError as error:
    print("only when C ends:", error)

# %% [markdown]
# A has read C's text, and the error came last and hit C, which had done nothing wrong. Whoever looks for the
# cause looks in the wrong place.
#
# What finds it is a check that knows **all tables**, not only the pool: the manager counts how often each
# block is named, and compares. The same damage again, one line later the check:

# %%
from paged_ref.scheduling.block_manager import BlockManager
from paged_ref.scheduling.request import Request, Sequence

pool = BlockPool(num_blocks=6, block_size=4)
a = BlockTable(pool)
a.append(8)
b = a.fork()
requests = [
    Request(number, [0] * 8, SamplingParams(), 1, [Sequence([0] * 8, 8, table)])
    for number, table in enumerate((a, b))
]
BlockManager(pool).check(requests)
print("two requests, counts", [pool.ref_count(block) for block in a.blocks], "as they should be")
pool._ref_counts[a.blocks[0]] -= 1

# %% tags=["raises-exception"]
BlockManager(pool).check(requests)

# %% [markdown]
# The tests of this course call it after every step. A server cannot afford that, so it checks now and then,
# and watches two numbers that are cheap: `used + free = all`, and blocks held while nobody runs, which must
# be 0.
#
# A count that is **too high** is the milder fault: a leak. The block is never free again, as in chapter 2.

# %%
pool._ref_counts[a.blocks[0]] += 2  # now one too many
a.release(), b.release()
print("nobody runs, held:", pool.num_used)
try:
    BlockManager(pool).check([])
except AssertionError as error:
    print("found:", error)

# %% [markdown]
# ## 15 What you have now
#
# A count for each block makes it safe that many tables name it. A fork raises counts and copies nothing; the
# first write into a shared block copies that block; a full block is never copied. The same counts carry the
# prefix cache, which finds blocks by a chained key of all tokens up to their end, keeps them as long as they
# are free, and forgets them before they are written. It saves blocks and prefill. It does not make decode
# faster.
#
# Now write counts, copy-on-write, the chain and the arithmetic of beams yourself: [exercises of chapter
# 4](../exercises/04_sharing.ipynb).
#
# Three interview questions. Answer aloud, then look for the cell that shows it.
#
# 1. Three sequences share a half-full block and each appends a token. How many copies are made, and who does not
#    pay?
# 2. A prompt of exactly 48 tokens is sent twice, blocks of 16, prefix caching on. How many tokens does the second
#    prefill compute, and why not none?
# 3. Why does a sequence free its last block first, and why would a salt be part of the first block's key?
#
# Next: [chapter 5](05_triton_kernel.ipynb) turns attention through a table into a GPU kernel. You can see
# forks and a shared prompt in the engine in [chapter 7](07_batched_decode.ipynb).
