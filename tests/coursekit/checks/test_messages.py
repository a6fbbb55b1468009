"""A message states only what the check has seen: answers that were once blamed for something else.

Each row is an answer, the misconception that the check must name, and texts that the message must and must not contain.
"""

# ruff: noqa: E501  answers are written in one line per line of theirs
from __future__ import annotations

from typing import NamedTuple

import pytest

from coursekit import ROOT
from coursekit.checks.bank import judge
from coursekit.checks.framework import CRASHED, PartResult, exercise
from coursekit.grade.submission import load_book


class Row(NamedTuple):
    """An answer to an exercise, from the reference by replacements or written out, and what must be said about it."""

    label: str
    id: str
    answer: str | list[tuple[str, str]]
    named: str | None
    says: str = ""
    never: str = "\0"
    part: int | None = None  # None: the first that did not pass


ROWS = [
    Row("a request overtakes", "6.2", [
        ("        while self.waiting and blocks_for(self.waiting[0], self.block_size) <= self.num_free:\n"
         "            request = self.waiting.pop(0)\n",
         "        for request in list(self.waiting):\n"
         "            if blocks_for(request, self.block_size) > self.num_free:\n"
         "                continue\n"
         "            self.waiting.remove(request)\n"),
    ], "overtaken", "oldest waiting request comes first", "not enough free blocks"),
    Row("a request ends without a block", "6.2", [
        ("        preempted = []\n        while",
         "        preempted = []\n        if len(request.tokens) + 1 == request.end:\n            return []\n        while"),
    ], "finished-without-room", "got its last token", "neither running nor waiting"),
    Row("too many blocks", "6.2", [
        ("request.blocks < blocks_for(request, self.block_size)",
         "request.blocks < len(request.tokens) // self.block_size + 1"),
    ], "early-block", "has more blocks", "has fewer blocks"),
    Row("an array of objects", "7.1", [
        ("return ", "made = "), ("    ### END", "    return made | {'seq_lens': np.array(made['seq_lens'], object)}\n    ### END"),
    ], "not-arrays", "NumPy array with an integer dtype", "expected ["),
    Row("an IndexError of another kind", "3.2",
        "def gather(cache, block_table, seq_len):\n    return [][3]\n", None, "list index out of range", "past the sequence"),
    Row("a rounded row", "3.2",
        "def gather(cache, block_table, seq_len):\n    at = np.arange(seq_len)\n    size = cache.shape[1]\n"
        "    return cache[block_table[at // size], at % size].astype(np.float16)\n",
        "rounded", "values were rounded", "another one"),
    Row("another exception than ValueError", "2.2", [("ValueError", "AssertionError")], "wrong-exception",
        "with another exception than ValueError", "double free was accepted"),
    Row("the watermark of NEVER", "2.4",
        "def admit(num_prompt_tokens, num_free, num_blocks, block_size, watermark=0):\n"
        "    needed = -(-num_prompt_tokens // block_size) + 1\n"
        "    if needed > num_blocks:\n        return 'NEVER'\n"
        "    return 'OK' if needed + watermark <= num_free else 'LATER'\n",
        "never-too-late", "For NEVER, count", "not the right decision"),
    Row("swapped program ids", "5.3", [
        ("seq = tl.program_id(0)", "seq = tl.program_id(1)"), ("head = tl.program_id(1)", "head = tl.program_id(0)"),
    ], "program-ids", "program ids are exchanged", "each stride"),
    Row("one block more at a multiple", "6.4", [("-(-num_tokens // block_size)", "(num_tokens // block_size + 1)")],
        "extra-block", "one block too many"),
    Row("softmax over the heads", "3.3",
        "def paged_attention(query, key_cache, value_cache, block_tables, seq_lens):\n"
        "    out = np.zeros(query.shape)\n"
        "    group = query.shape[1] // key_cache.shape[2]\n"
        "    for i, n in enumerate(seq_lens):\n"
        "        keys, values = (np.repeat(gather(c, block_tables[i], n), group, axis=1) for c in (key_cache, value_cache))\n"
        "        scores = np.einsum('hd,nhd->hn', query[i], keys) / query.shape[-1] ** 0.5\n"
        "        weights = np.exp(scores - scores.max(axis=0))\n"
        "        weights /= weights.sum(axis=0)\n"
        "        out[i] = np.einsum('hn,nhd->hd', weights, values)\n"
        "    return out\n", "over-heads", "over the heads"),
    Row("reshape of the keys", "7.2", [("key[0].swapaxes(0, 1)", "key[0].reshape(-1, num_kv_heads, key.shape[-1])")],
        "reshaped", "several heads' keys"),
    Row("reshape of keys and values", "7.2", [
        ("key[0].swapaxes(0, 1)", "key[0].reshape(-1, num_kv_heads, key.shape[-1])"),
        ("value[0].swapaxes(0, 1)", "value[0].reshape(-1, num_kv_heads, key.shape[-1])"),
    ], "reshaped", "does not exchange two axes"),
    Row("a token that does not see itself", "7.2", [("rows, None] < seen", "rows, None] <= seen")], "not-itself",
        "does not see itself"),
    # NaN that comes from nowhere, zeros, and outputs that were never written
    Row("NaN in every result", "3.3", "def paged_attention(query, *a):\n    return np.full(query.shape, np.nan)\n",
        "other-attention", "got nan", "overflowed"),
    Row("NaN in every result, unused slots", "3.3", "def paged_attention(query, *a):\n    return np.full(query.shape, np.nan)\n",
        "other-attention", "got nan", "unused slot reached", part=2),
    Row("NaN in every result, large scores", "3.3", "def paged_attention(query, *a):\n    return np.full(query.shape, np.nan)\n",
        "other-attention", "got nan", "overflowed", part=3),
    Row("a kernel that writes nothing", "5.2", [("tl.store(", "tl.load(q_ptr) # ")], "other-result", "was not written",
        "NaN from an unused slot", part=1),
    Row("a kernel that writes nothing, large scores", "5.2", [("tl.store(", "tl.load(q_ptr) # ")], "other-result",
        "was not written", "overflowed", part=2),
    Row("zeros, large scores", "5.4", "def merge(out_a, lse_a, out_b, lse_b):\n    return 0 * lse_a[:, None] * out_a, 0 * lse_a\n",
        "other-merge", "", "overflows", part=1),
    Row("NaN in every result of a merge", "10.3", "def merge(tops, totals, accs):\n    return np.full(accs.shape[1:], np.nan)\n",
        "other-merge", "got nan", "overflowed"),
    Row("NaN in every layer", "7.2", [("return output", "return output * np.nan")], "other-attention", "got nan",
        "unused slot reached", part=2),
    # other relatives
    Row("zero bytes", "1.1", "def kv_bytes_per_token(config):\n    return 0\n", "other-bytes", "got 0", "rounded to whole bytes",
        part=1),
    Row("pieces from the end", "1.3",
        "class Arena:\n    def __init__(self, n):\n        self.end = n\n"
        "    def allocate(self, size):\n        self.end -= size\n        return self.end if self.end >= 0 else None\n"
        "    def free(self, start):\n        pass\n    def num_free(self):\n        return 0\n    largest_hole = num_free\n",
        "not-first", "first hole", "another piece holds", part=1),
    Row("a piece as a pair", "1.3", [("                return start\n", "                return start, start + size\n")],
        "not-a-start", "whole number", "another piece holds"),
    Row("blocks that are lost", "2.3",
        "class BlockTable:\n    def __init__(self, pool):\n        self.pool, self.blocks, self.num_tokens = pool, [], 0\n"
        "    def append(self, n):\n        size, start = self.pool.block_size, self.num_tokens\n        self.num_tokens += n\n"
        "        while len(self.blocks) * size < self.num_tokens:\n            self.blocks += self.pool.allocate(2)[:1]\n"
        "        return [slot(self.blocks, i, size) for i in range(start, self.num_tokens)]\n",
        "lost-blocks", "the others are lost", "must be allocated from the pool"),
    Row("a stale counter", "2.2",
        "class OutOfBlocks(RuntimeError):\n    pass\n"
        "class BlockPool:\n    def __init__(self, num_blocks, block_size):\n        self.ids, self.out = list(range(num_blocks)), set()\n"
        "        self.num_free = num_blocks\n"
        "    def allocate(self, n):\n        if n > len(self.ids):\n            raise OutOfBlocks\n"
        "        got, self.ids = self.ids[:n], self.ids[n:]\n        self.out |= set(got)\n        self.num_free -= n\n        return got\n"
        "    def free(self, blocks):\n        self.out -= set(blocks)\n        self.ids += blocks\n",
        "miscounted", "num_free is not the number", "shrink", part=1),
    Row("an append that does nothing", "4.2",
        "def append(table, memory, token):\n    if table.num_tokens < 6:\n        return append_right(table, memory, token)\n"
        "    return 0\n", "wrong-slot", "", "was written into a block", part=1),
    Row("one pass too many", "7.3", [
        ("    return [row[len", "    model.forward({**batch, 'query_start_loc': np.array([0, 1])})\n    return [row[len"),
    ], "done-stays", "", "did not run together", part=1),
    Row("an answer that is a coroutine", "2.1", "async def slot(blocks, i, block_size):\n    return 3\n", "other-slot",
        "not with `async def`"),
    Row("an answer without return", "2.1", "def slot(blocks, i, block_size):\n    blocks[i // block_size]\n", "other-slot",
        "it returned nothing: use `return`"),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.label)
def test_a_message_states_only_what_was_seen(row: Row) -> None:
    for seed in (100, 101):
        failed = failure(row, seed)
        assert failed.misconception == row.named, failed
        if row.named:
            assert failed.message.startswith(exercise(row.id).misconceptions[row.named])
        assert row.says in failed.message and row.never not in failed.message, failed.message


def failure(row: Row, seed: int) -> PartResult:
    """The result of the row's part, or of the first that did not pass."""
    reference = load_book(ROOT, row.id.split(".")[0]).answer(row.id).solved
    source = row.answer if isinstance(row.answer, str) else replaced(reference, row.answer)
    if "append_right" in source:
        source = reference.replace("def append(", "def append_right(") + "\n\n" + source
    verdict = judge(ROOT, row.id, source, seed)
    found = verdict.first_failure if row.part is None else verdict.parts[row.part]
    assert found is not None and found.earned == 0, "the wrong answer passed"
    return found


def replaced(source: str, pairs: list[tuple[str, str]]) -> str:
    for old, new in pairs:
        assert old in source, (old, source)
        source = source.replace(old, new)
    return source


def test_an_error_of_the_answer_is_not_a_misconception() -> None:
    verdict = judge(ROOT, "2.4", "def admit(*a, **k):\n    return {}[3]\n", 1)
    failed = verdict.first_failure
    assert failed is not None and failed.status == CRASHED and failed.misconception is None
    assert "raised KeyError: 3 (line 2: return {}[3])" in failed.message
