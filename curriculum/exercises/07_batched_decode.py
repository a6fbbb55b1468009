# %% [markdown]
# # 7 · Exercises: batched decode
#
# You lay out the batch of one step, write the attention function that a real model calls, decode requests of
# different lengths together, and count what four samples of one prompt cost. In the last cell your own functions
# carry SmolLM2. Read the [lesson](../notebooks/07_batched_decode.ipynb) first.
#
# 115 minutes · needs the lesson of chapter 7, and attention through a table (exercise 3.3) · GPU: not needed
#
# Write your answer in the cell of each exercise and run the check below it. The check draws new numbers each
# time. If you are stuck, the hints open one after the other. Helper functions and cells of your own are welcome.
#
# Use Python's standard library and NumPy; PyTorch and the course's own `paged_ref` are refused. Do not change a
# function's arguments, unless the text asks for it or allows it.

# %%
import numpy as np

# %% [raw] exercise="7.1"
# title: The batch of one step
# objective: turn sequences, wherever each of them stands, into the arrays of integers that a model and a cache need.
# difficulty: 3
# importance: 5
# minutes: 25
# lines: 14
# predict: |
#   Blocks of 4. Sequence A has 10 tokens, 9 of them computed, and the blocks `[7, 1, 4]`. B has 3 tokens, none
#   computed, and the block `[2]`. Which positions and slots does the step compute, and which rows are sampled?
# predicted: |
#   A computes its token 9, in slot 4 · 4 + 1 = 17. B computes its tokens 0, 1, 2, in the slots 8, 9, 10. The row is
#   `a9 b0 b1 b2`, so `query_start_loc` is `[0, 1, 4]`. A's last token is row 0, B's is row 3: these are sampled.
# hints:
#   - "Go through the sequences. Sequence i computes its tokens from `num_computed[i]` to the end. Their positions are
#     just that: `range(num_computed[i], len(token_ids[i]))`."
#   - "The slot of position p is the one of chapter 2: `table[p // block_size] * block_size + p % block_size`. What is
#     stored now is token p itself, so its slot is taken at p and not at p + 1."
#   - "After each sequence note how long the row is by now: these numbers, with a 0 before them, are
#     `query_start_loc`. The last row of a sequence is one less than where the next one begins."

# %% [markdown]
# Sequence i has the tokens `token_ids[i]`; of these the first `num_computed[i]` have their keys and values in the
# cache. The step computes the rest, at least one token. `tables[i]` lists the sequence's blocks, enough for all its
# tokens. Return a dictionary of these seven, as NumPy arrays of an integer dtype, the sequences in the given order:
#
# | name | holds |
# |---|---|
# | `token_ids` | `[num_tokens]`: the tokens to compute, one sequence after the other, nothing padded |
# | `positions` | `[num_tokens]`: each token's place in its own sequence, from 0 |
# | `slot_mapping` | `[num_tokens]`: the slot in which its key and value are stored |
# | `query_start_loc` | `[num_seqs + 1]`: where each sequence begins in the row, and at last the row's length |
# | `seq_lens` | `[num_seqs]`: tokens in the cache once this step has stored its own |
# | `sample_rows` | `[num_seqs]`: the row of each sequence's last token |
# | `block_tables` | `[num_seqs, longest table]`: row i begins with `tables[i]`; what follows may be anything |


# %% exercise="7.1"
def make_batch(token_ids, num_computed, tables, block_size):
    """The arrays of one step, by name."""
    ### BEGIN SOLUTION
    row, positions, slots, starts = [], [], [], [0]
    for tokens, computed, table in zip(token_ids, num_computed, tables, strict=True):
        new = range(computed, len(tokens))
        row += tokens[computed:]
        positions += new
        slots += [table[p // block_size] * block_size + p % block_size for p in new]
        starts.append(len(row))
    width = max(len(table) for table in tables)
    return {
        "token_ids": np.array(row),
        "positions": np.array(positions),
        "slot_mapping": np.array(slots),
        "query_start_loc": np.array(starts),
        "seq_lens": np.array([len(tokens) for tokens in token_ids]),
        "sample_rows": np.array(starts[1:]) - 1,
        "block_tables": np.array([table + [0] * (width - len(table)) for table in tables]),
    }
    ### END SOLUTION


# %% [markdown]
# A model rotates queries and keys by their positions before it asks for attention (the *rotary embedding*), so that a
# score depends on how far apart two tokens are. This is how; the next exercise's prediction asks about it.


# %%
def rotary(x, positions):
    """Rotate [..., num_tokens, head_dim] by each token's position."""
    half = x.shape[-1] // 2
    angle = positions[:, None] / 10_000 ** (np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    rotated = [a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)]
    return np.concatenate(rotated, axis=-1).astype(x.dtype)


# %% [raw] exercise="7.2"
# title: The attention function of a real model
# objective: write the function that transformers calls once in each layer, so that it stores and reads through blocks.
# difficulty: 4
# importance: 5
# minutes: 40
# lines: 18
# predict: |
#   A token at position 7 is decoded; positions 0 to 6 are in the cache. How many keys does its query see? In a prefill
#   chunk of positions 4 to 7, how many does each of the four see? And must you rotate the keys that you read back?
# predicted: |
#   Eight: it sees itself, so its key must be stored before the cache is read. In the chunk 5, 6, 7 and 8: each sees
#   the past and, of its own chunk, the tokens up to itself. Nothing is rotated here: keys come rotated, are stored
#   rotated, and stay at their position for ever.
# hints:
#   - "First store. `key[0].swapaxes(0, 1)` is `[num_tokens, num_kv_heads, head_dim]`, a row a token. Write it at
#     `[layer, slot // block_size, slot % block_size]`, in place, and the values likewise."
#   - "Then go through the sequences. The rows from `start[i]` to `start[i + 1]` are the last tokens of a sequence of
#     `seq_lens[i]`. Gather that many keys and values of this layer through row i of the tables, as in exercise 3.2."
#   - "The query in row r stands at position p = `positions[r]` and sees the gathered rows 0 to p. Repeat K and V for
#     the heads that share them: `np.repeat(keys, num_heads // num_kv_heads, axis=1)`. Scores times `scaling`, softmax,
#     weights times values; the result goes to `output[0, r]`."

# %% [markdown]
# The arguments have the shapes in which transformers hands them over, as NumPy arrays:
#
# - `query` `[1, num_heads, num_tokens, head_dim]`; `key` and `value` `[1, num_kv_heads, num_tokens, head_dim]`: of this
#   step's tokens alone, **after the rotary embedding**.
# - `layer`: which layer asks. `key_cache` and `value_cache` hold all of them: `[num_layers, num_blocks, block_size,
#   num_kv_heads, head_dim]`.
# - `batch`: the dictionary of exercise 7.1, its values as arrays.
# - `scaling`: multiplies the scores. It is the model's to choose, and need not be 1 / √`head_dim`.
#
# Store the step's keys and values in this layer's cache, **in place**. Then let every token attend to its own
# sequence, up to and including itself. Return `[1, num_tokens, num_heads, head_dim]`. Neighbouring query heads share a
# KV head. Unused slots may hold anything, NaN too.


# %% exercise="7.2"
def paged_forward(query, key, value, layer, key_cache, value_cache, batch, scaling):
    """One layer's attention of one step: [1, num_tokens, num_heads, head_dim]."""
    ### BEGIN SOLUTION
    block_size, num_kv_heads = key_cache.shape[2:4]
    num_heads, num_tokens = query.shape[1:3]
    block, offset = batch["slot_mapping"] // block_size, batch["slot_mapping"] % block_size
    key_cache[layer, block, offset] = key[0].swapaxes(0, 1)
    value_cache[layer, block, offset] = value[0].swapaxes(0, 1)

    output = np.empty((1, num_tokens, num_heads, query.shape[-1]), query.dtype)
    starts = batch["query_start_loc"]
    for i, seq_len in enumerate(batch["seq_lens"]):
        seen = np.arange(seq_len)
        block, offset = batch["block_tables"][i][seen // block_size], seen % block_size
        keys = np.repeat(key_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        values = np.repeat(value_cache[layer, block, offset], num_heads // num_kv_heads, axis=1)
        rows = slice(starts[i], starts[i + 1])
        scores = scaling * np.einsum("hqd,khd->hqk", query[0][:, rows], keys)
        scores[:, batch["positions"][rows, None] < seen] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        output[0, rows] = np.einsum("hqk,khd->qhd", weights, values)
    return output
    ### END SOLUTION


# %% [markdown]
# A model to try it with: a few layers in NumPy, with random weights. It calls your `paged_forward` once a layer.
# `grow` gives a sequence its blocks.


# %%
class TinyModel:
    """A decoder in NumPy over a paged cache. `calls` notes how many tokens each forward pass computed."""

    def __init__(self, weights, num_blocks, block_size):
        num_layers, num_kv_heads, _, head_dim = weights["k"].shape
        size = (num_layers, num_blocks, block_size, num_kv_heads, head_dim)
        self.keys, self.values = np.full(size, np.nan, np.float32), np.full(size, np.nan, np.float32)
        self.weights, self.block_size, self.calls = weights, block_size, []

    def forward(self, batch):
        """The logits of every row of the batch: [num_tokens, vocab_size]."""
        w, batch = self.weights, {name: np.asarray(values) for name, values in batch.items()}
        self.calls.append(len(batch["token_ids"]))
        x = w["embed"][batch["token_ids"]]
        for layer in range(len(w["q"])):
            q, k, v = (np.einsum("td,hde->hte", x, w[name][layer])[None] for name in "qkv")
            q, k = rotary(q, batch["positions"]), rotary(k, batch["positions"])
            attended = paged_forward(
                q, k, v, layer, self.keys, self.values, batch, scaling=q.shape[-1] ** -0.5
            )
            x = x + attended.reshape(len(x), -1) @ w["o"][layer]
        return x @ w["head"]


def grow(table, num_tokens, free, block_size):
    """Move blocks from the list `free` to `table` until it has room for so many tokens."""
    while len(table) * block_size < num_tokens:
        table.append(free.pop())


# %% [raw] exercise="7.3"
# title: A ragged batch equals each request alone
# objective: decode requests of different lengths in one batch, and give each exactly the tokens it would get alone.
# difficulty: 3
# importance: 5
# minutes: 30
# lines: 18
# predict: |
#   Prompts of 3, 7 and 4 tokens, new tokens wanted: 2, 4 and 3. How many forward passes does it take together, and
#   how many tokens does each compute? In the first pass, which rows of the logits are the next tokens chosen from?
# predicted: |
#   Four, as many as the longest answer has tokens: 14, 3, 2 and 1. The first pass computes all prompts and gives each
#   its first new token, from rows 2, 9 and 13. A last new token is never computed, for nobody asks what comes after
#   it. One after the other the requests would take 2 + 4 + 3 = 9 passes.
# hints:
#   - "Keep for each request its tokens, how many are computed, and its table. A request runs as long as it has fewer
#     new tokens than it was to get."
#   - "One pass: `grow` the tables of the running requests to the length of their tokens, `make_batch` of the running
#     ones, `model.forward`. Prefill and decode need no difference: the batch holds whatever is not computed yet."
#   - "The next token of the k-th *running* request is the argmax of `logits[batch['sample_rows'][k]]`. Then its
#     `num_computed` is the old number of tokens, and the new token is appended. A request that has ended gives its
#     blocks back: `free += table`."

# %% [markdown]
# Serve all requests together, greedily. `prompts` are lists of token ids, `new_tokens` says how many each is to get
# (at least 1), `free` is the list of free block ids (enough for all). `model.forward(batch)` takes the dictionary
# of 7.1 and returns the logits of **every row**, `[num_tokens, vocab_size]`; `model.block_size` is the block size.
#
# Return the new tokens of each request, a list of lists. They must be those that the request would get if it were
# alone. All requests that are not done take part in **every** pass, each with the tokens that are not computed yet and
# no others. When all are done, all blocks are in `free` again.


# %% exercise="7.3"
def generate(model, prompts, new_tokens, free):
    """The new tokens of each request."""
    ### BEGIN SOLUTION
    tokens = [list(prompt) for prompt in prompts]
    computed, tables = [0] * len(prompts), [[] for _ in prompts]
    total = [len(prompt) + n for prompt, n in zip(prompts, new_tokens, strict=True)]
    running = list(range(len(prompts)))
    while running:
        for i in running:
            grow(tables[i], len(tokens[i]), free, model.block_size)
        batch = make_batch(
            [tokens[i] for i in running],
            [computed[i] for i in running],
            [tables[i] for i in running],
            model.block_size,
        )
        logits = model.forward(batch)
        for i, row in zip(running, batch["sample_rows"], strict=True):
            computed[i] = len(tokens[i])
            tokens[i].append(int(logits[row].argmax()))
            if len(tokens[i]) == total[i]:
                free += tables[i]
        running = [i for i in running if len(tokens[i]) < total[i]]
    return [row[len(prompt) :] for row, prompt in zip(tokens, prompts, strict=True)]
    ### END SOLUTION


# %% [raw] exercise="7.4"
# title: Four samples of one prompt
# objective: say what n samples of one prompt cost, in blocks and in seconds, when they share it.
# difficulty: 3
# importance: 4
# minutes: 20
# lines: 8
# predict: |
#   Blocks of 16, a prompt of 40 tokens, 4 samples of 60 new tokens. How many blocks are held at the end? Which of the
#   prompt's three blocks are among the shared ones? How many tokens does the first pass compute?
# predicted: |
#   The prompt's two full blocks are shared. Its third holds 8 tokens and is written by every sample, so each ends up
#   with one of its own. A sequence stores 40 + 59 tokens (the last new one is never computed): 7 blocks, 2 of them
#   shared. 2 + 4 · 5 = 22 blocks, where four requests would hold 28. The first pass computes 40 tokens, once, and its
#   one row of logits gives all four samples their first token.
# hints:
#   - "A sample stores prompt + new − 1 tokens: the last new token was chosen, and nobody computes its key."
#   - "Blocks that are full when the samples part are shared for ever. Whatever comes after them is each sample's own,
#     and that begins with the prompt's partial block, which copy-on-write has copied. With one new token nothing is
#     written after the prompt, so nothing is copied."
#   - "Passes: one computes the prompt. The other new − 1 compute one token of each sample, all samples in one pass."

# %% [markdown]
# A prompt of `prompt` tokens gets `n` samples of `new` new tokens each. The samples fork after the prompt, share its
# blocks, and copy a shared block before they write into it. All samples run in one batch.
#
# 1. `blocks_held(prompt, new, n, block_size)`: the physical blocks held right before the samples end. A token's key and
#    value are stored when the token is *computed*; the last new token of a sample never is.
# 2. `seconds(prompt, new, n, per_pass, per_token)`: how long it takes, from the start to the last token, if a forward
#    pass takes `per_pass` seconds and `per_token` more for each token that it computes.


# %% exercise="7.4"
def blocks_held(prompt, new, n, block_size):
    """Physical blocks held right before the samples end."""
    ### BEGIN SOLUTION
    stored = prompt + new - 1
    if new == 1:
        return -(-stored // block_size)
    shared = prompt // block_size
    return shared + n * (-(-stored // block_size) - shared)
    ### END SOLUTION


def seconds(prompt, new, n, per_pass, per_token):
    """Seconds from the start to the last token of the last sample."""
    ### BEGIN SOLUTION
    prefill = per_pass + per_token * prompt
    return prefill + (new - 1) * (per_pass + per_token * n)
    ### END SOLUTION


# %% [markdown]
# ## Your own engine serves SmolLM2
#
# This cell puts your `paged_forward` in the place of SmolLM2's attention, and your `generate` with your `make_batch`
# in front of it. It knows nothing else: what runs is transformers' model and what you wrote. It compares with
# transformers' own `generate`, on the same weights. It needs 7.1, 7.2 and 7.3; without them it says so.

# %%
import torch
import transformers

from paged_ref.weights import resolve

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()
folder = resolve("smollm2-135m")
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
llama = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
TEXTS = (
    "The capital of France is",
    "Once",
    "Water boils at 100 degrees Celsius at sea level. In the mountains",
)
prompts, wanted = [tokenizer(text).input_ids for text in TEXTS], [10, 16, 12]
dense = []
for prompt, n in zip(prompts, wanted, strict=True):
    ids = torch.tensor([prompt])
    out = llama.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, min_new_tokens=n,
                         do_sample=False, pad_token_id=0)  # fmt: skip
    dense.append(out[0, len(prompt) :].tolist())
print("prompts of", [len(prompt) for prompt in prompts], "tokens,", wanted, "new ones")


# %%
def yours(module, query, key, value, attention_mask, scaling=None, step=None, **ignored):
    """What transformers calls once a layer: your function, with tensors seen as arrays."""
    q, k, v = query.numpy(), key.numpy(), value.numpy()
    out = paged_forward(q, k, v, module.layer_idx, step["keys"], step["values"], step["batch"], scaling)
    return torch.from_numpy(np.asarray(out, dtype=np.float32)), None


class RealModel:
    """SmolLM2 as `generate` wants it."""

    block_size, keys, values = 16, *np.full((2, 30, 16, 16, 3, 64), np.nan, np.float32)

    @torch.inference_mode()
    def forward(self, batch):
        row, positions = (torch.tensor(np.asarray(batch[name]))[None] for name in ("token_ids", "positions"))
        step = {"batch": batch, "keys": self.keys, "values": self.values}
        return llama(input_ids=row, position_ids=positions, use_cache=False, step=step).logits[0].numpy()


transformers.AttentionInterface.register("yours", yours)
transformers.AttentionMaskInterface.register("yours", lambda *args, **kwargs: None)
llama.set_attn_implementation("yours")
try:
    answers = generate(RealModel(), prompts, wanted, free=[11, 3, 14, 0, 8, 6, 1, 13, 5, 9])
    for text, answer, reference in zip(TEXTS, answers, dense, strict=True):
        print(f"{text!r:.28}: {len(answer)} tokens, equal to transformers' own: {answer == reference}")
except NotImplementedError as missing:
    print("Your engine cannot run yet:", missing)

# %% [markdown]
# And what it says:

# %% tags=["nbval-ignore-output"]
for prompt, answer in zip(prompts, dense, strict=True):
    print(repr(tokenizer.decode(prompt + answer)))

# %% [markdown]
# ## What you have built
#
# An engine: a batch of integers, one function in a real model's layers, and a loop. The course's own versions are
# `paged_ref/model/batch.py`, `paged_attention_forward` in `paged_ref/model/hf_model.py`, and `paged_ref/generation/llm.py`; compare them
# with yours. What theirs have beyond yours is a scheduler that lets requests wait and takes their blocks back (chapter
# 6), shared blocks (chapter 4), and a compiled kernel (chapter 5).
#
# Next: chapter 10 asks you about all of it.
