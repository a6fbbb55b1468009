"""A test is worth what it catches: every backend, broken on purpose in every way we know, must fail the grid.

A mutant is a backend's own source with a line replaced. `caught` runs it on a few cases of the grid, chosen to be small;
without a replacement all of them pass. Where a fault cannot be made in a backend, the table says why.
"""

# ruff: noqa: E501  (the table of mutants)

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numba
import numpy as np
import pytest

from paged_ref import attention
from paged_ref.attention import Batch
from paged_ref.verify.grid import EMPTY, Case, Inputs, error, make_inputs
from tests.helpers.needs import needs_triton, runnable

CASES = (
    Case(24, 5, (8, 2), "ragged", "decode", "none", "float32"),
    Case(24, 5, (8, 2), "37", "chunk", "none", "float32"),
    Case(24, 8, (8, 2), "37", "decode", "window short", "float32"),
    Case(24, 8, (8, 2), "B+1", "decode", "softcap", "float32"),
    Case(24, 8, (9, 3), "B+1", "mixed", "none", "float32"),
    Case(64, 16, (9, 3), "ragged", "decode", "none", "float32", 100.0),
)
FILES = {
    "numpy": "numpy_gather.py",
    "numpy blocks": "numpy_blocks.py",
    "torch": "torch_paged.py",
    "numba": "numba_loop.py numba_paged.py",
    "triton": "triton_kernels.py",
}
ONE_SOFTMAX = "all keys go through one softmax: there is nothing to rescale or to merge"
CUT_OFF = "what lies past the end is never read, so there is nothing to mask"
INDEXED = "NumPy computes the addresses"

# mutant -> backend -> [(line, its replacement)], or why there is none
MUTANTS: dict[str, dict[str, list[tuple[str, str]] | str]] = {
    "all-zero output": {
        "numpy": [("output[mine] = attend(", "output[mine] = 0 * attend(")],
        "numpy blocks": [("return (acc / total", "return (0 * acc / total")],
        "torch": [("return attended.reshape(", "return (0 * attended).reshape(")],
        "numba": [
            ("out[token, h, d] = acc[h, d] / total[h]", "out[token, h, d] = 0"),
            (") / sum_of_both", ") * 0"),
        ],
        "triton": [("return acc / total[:, None]", "return acc * 0.0")],
    },
    "length + 1": {
        "numpy": [("in enumerate(self.batch.seq_lens)", "in enumerate(self.batch.seq_lens + 1)")],
        "numpy blocks": [("in enumerate(self.batch.seq_lens)", "in enumerate(self.batch.seq_lens + 1)")],
        "torch": [
            (
                "seq_lens = batch.seq_lens[seqs].astype(np.int64)",
                "seq_lens = batch.seq_lens[seqs].astype(np.int64) + 1",
            )
        ],
        "numba": [("batch.seq_lens.astype(np.int64)", "batch.seq_lens.astype(np.int64) + 1")],
        "triton": [("seq_len = tl.load(lens_ptr + seq)", "seq_len = tl.load(lens_ptr + seq) + 1")],
    },
    "length - 1": {
        "numpy": [("in enumerate(self.batch.seq_lens)", "in enumerate(self.batch.seq_lens - 1)")],
        "numpy blocks": [("in enumerate(self.batch.seq_lens)", "in enumerate(self.batch.seq_lens - 1)")],
        "torch": [
            (
                "seq_lens = batch.seq_lens[seqs].astype(np.int64)",
                "seq_lens = batch.seq_lens[seqs].astype(np.int64) - 1",
            )
        ],
        "numba": [("batch.seq_lens.astype(np.int64)", "batch.seq_lens.astype(np.int64) - 1")],
        "triton": [("seq_len = tl.load(lens_ptr + seq)", "seq_len = tl.load(lens_ptr + seq) - 1")],
    },
    "two blocks swapped": {
        "numpy": [("cache[block_table[:num_blocks]]", "cache[block_table[np.arange(num_blocks) ^ 1]]")],
        "numpy blocks": [("block_table[logical]", "block_table[logical ^ 1]")],
        "torch": [("(position // block_size,", "((position // block_size) ^ 1,")],
        "numba": [("np.int64(table[logical])", "np.int64(table[logical ^ 1])")],
        "triton": [("table_ptr + token // BLOCK_SIZE", "table_ptr + ((token // BLOCK_SIZE) ^ 1)")],
    },
    "order of blocks reversed": {
        "numpy": [("cache[block_table[:num_blocks]]", "cache[block_table[:num_blocks][::-1]]")],
        "numpy blocks": [("block_table[logical]", "block_table[-(-last // block_size) - 1 - logical]")],
        "torch": [
            (
                "np.take(block.astype(np.int64), logical",
                "np.take(block.astype(np.int64), logical.max() - logical",
            )
        ],
        "numba": [("table[logical]", "table[(last + block_size - 1) // block_size - 1 - logical]")],
        "triton": [
            ("table_ptr + token // BLOCK_SIZE", "table_ptr + (last - 1) // BLOCK_SIZE - token // BLOCK_SIZE")
        ],
    },
    "h % num_kv_heads": {
        "numpy": [
            (
                "reshape(q, num_kv_heads, num_heads // num_kv_heads, head_dim)",
                "reshape(q, num_heads // num_kv_heads, num_kv_heads, head_dim).swapaxes(1, 2)",
            ),
            ("attended.reshape(", "attended.swapaxes(1, 2).reshape("),
        ],
        "numpy blocks": [("// (num_heads // num_kv_heads)", "% num_kv_heads")],
        "torch": [
            (
                ".view(s, q, num_kv_heads, group, head_dim).permute(0, 2, 3, 1, 4)",
                ".view(s, q, group, num_kv_heads, head_dim).permute(0, 3, 2, 1, 4)",
            ),
            ("group, q, head_dim).permute(0, 3, 1, 2, 4)", "group, q, head_dim).permute(0, 3, 2, 1, 4)"),
        ],
        "numba": [
            ("range(kv_head * group, (kv_head + 1) * group)", "range(kv_head, query.shape[0], num_kv_heads)")
        ],
        "triton": [("head = kv_head * GROUP + row\n", "head = row * tl.num_programs(1) + kv_head\n")],
    },
    "tail not masked": {
        "numpy": CUT_OFF,
        "numpy blocks": [("end = min(last - logical * block_size, block_size)", "end = block_size")],
        "torch": [
            (
                "visible = part.key_position <= part.query_position",
                "visible = part.key_position <= part.query_position + 10**6",
            )
        ],
        "numba": [
            ("rows = min(last - logical * block_size, block_size) - begin", "rows = block_size - begin")
        ],
        "triton": [
            (
                "visible = exists[None, :] & (token[None, :] <= position[:, None])",
                "visible = (token[None, :] >= 0) & (position[:, None] >= 0)",
            )
        ],
    },
    "scores masked but V not": {
        "numpy": CUT_OFF,
        "numpy blocks": CUT_OFF,
        "torch": [("values.masked_fill(absent, 0)", "values")],
        "numba": CUT_OFF,
        "triton": [
            ("v = tl.load(v_ptr + v_address, mask=mask, other=0.0)\n", "v = tl.load(v_ptr + v_address)\n")
        ],
    },
    "scale missing": {
        "numpy": [("scores = scale * ", "scores = ")],
        "numpy blocks": [("scores = scale * ", "scores = ")],
        "torch": [("attn_mask=mask, scale=scale", "attn_mask=mask, scale=1.0")],
        "numba": [("dot * scale", "dot"), *[(f"dot_{i} * scale", f"dot_{i}") for i in range(4)]],
        "triton": [('input_precision="ieee") * scale', 'input_precision="ieee")')],
    },
    "scale twice": {
        "numpy": [("scores = scale * ", "scores = scale * scale * ")],
        "numpy blocks": [("scores = scale * ", "scores = scale * scale * ")],
        "torch": [("attn_mask=mask, scale=scale", "attn_mask=mask, scale=scale * scale")],
        "numba": [
            ("dot * scale", "dot * scale * scale"),
            *[(f"dot_{i} * scale", f"dot_{i} * scale * scale") for i in range(4)],
        ],
        "triton": [('input_precision="ieee") * scale', 'input_precision="ieee") * scale * scale')],
    },
    "accumulator not rescaled": {
        "numpy": ONE_SOFTMAX,
        "numpy blocks": [("acc = acc * rescale[:, None]", "acc = acc")],
        "torch": ONE_SOFTMAX,
        "numba": [("acc[d] * rescale +", "acc[d] +")],
        "triton": [("acc = acc * rescale[:, None]", "acc = acc")],
    },
    "no max subtracted": {
        "numpy": [("scores - scores.max(axis=-1, keepdims=True, initial=-np.inf)", "scores")],
        "numpy blocks": [("new_top = np.maximum(top, scores.max(axis=1))", "new_top = np.zeros_like(top)")],
        "torch": "the softmax is torch's",
        "numba": [("highest = max(highest, score[i])", "highest = np.float32(0)")],
        "triton": [
            ("new_top = tl.maximum(top, tl.max(scores, axis=1))", "new_top = tl.zeros([ROWS], tl.float32)")
        ],
    },
    "block id used as slot": {
        "numpy": [("cache[block_table[:num_blocks]]", "cache[block_table[:num_blocks] // cache.shape[1]]")],
        "numpy blocks": [("block_table[logical]", "block_table[logical] // block_size")],
        "torch": [("block * block_size + position", "block + position")],
        "numba": [("block * caches.block_k", "block * slot_k")],
        "triton": [("block * k_block + slot", "block * k_slot + slot")],
    },
    "offset dropped": {
        "numpy": [
            ("return blocks.reshape(", "return np.repeat(blocks[:, :1], cache.shape[1], axis=1).reshape(")
        ],
        "numpy blocks": [("key_cache[block, begin:end]", "key_cache[block, np.zeros(end - begin, int)]")],
        "torch": [("block * block_size + position % block_size", "block * block_size + position * 0")],
        "numba": [("address + i * stride", "address")],
        "triton": [("block * k_block + slot * k_slot)", "block * k_block + slot * 0)")],
    },
    "last block skipped": {
        "numpy": [
            ("num_blocks = -(-seq_len // cache.shape[1])", "num_blocks = (seq_len - 1) // cache.shape[1]")
        ],
        "numpy blocks": [("-(-last // block_size)):", "(last - 1) // block_size):")],
        "torch": [
            (
                "exists = position < seq_lens[:, None]",
                "exists = position < (seq_lens[:, None] - 1) // block_size * block_size",
            )
        ],
        "numba": [("(last + block_size - 1) // block_size):", "(last - 1) // block_size):")],
        "triton": [("exists = token < last", "exists = token < (last - 1) // BLOCK_SIZE * BLOCK_SIZE")],
    },
    "first block of another sequence": {
        "numpy": [
            (
                "gather(key_cache, self.batch.block_tables[i],",
                "gather(key_cache, np.append(self.batch.block_tables[0, :1], self.batch.block_tables[i, 1:]),",
            )
        ],
        "numpy blocks": [
            (
                "table = self.batch.block_tables[i]",
                "table = np.append(self.batch.block_tables[0, :1], self.batch.block_tables[i, 1:])",
            )
        ],
        "torch": [
            (
                "np.take(block.astype(np.int64), logical, axis=1)",
                "np.where(logical == 0, batch.block_tables[0, 0], np.take(block.astype(np.int64), logical, axis=1))",
            )
        ],
        "numba": [("caches, tables[sequence],", "caches, np.append(tables[0, :1], tables[sequence, 1:]),")],
        "triton": [
            ("        tables_ptr + seq * table_stride,\n        k_ptr", "        tables_ptr,\n        k_ptr")
        ],
    },
    "causal mask off by one in a chunk": {
        "numpy": [("key_position <= query_position", "key_position <= query_position + 1")],
        "numpy blocks": [
            ("position = seq_len - (end - token)", "position = min(seq_len - 1, seq_len - (end - token) + 1)")
        ],
        "torch": [
            ("part.key_position <= part.query_position", "part.key_position <= part.query_position + 1")
        ],
        "numba": [
            (
                "position = seq_len[sequence] - query_lens[sequence] + nth",
                "position = np.minimum(seq_len[sequence] - query_lens[sequence] + nth + 1, seq_len[sequence] - 1)",
            )
        ],
        "triton": [("token[None, :] <= position[:, None]", "token[None, :] <= position[:, None] + 1")],
    },
    "window off by one": {
        "numpy": [
            (
                "key_position > query_position - sliding_window",
                "key_position >= query_position - sliding_window",
            )
        ],
        "numpy blocks": [("position - sliding_window + 1", "position - sliding_window")],
        "torch": [
            (
                "key_position > part.query_position - sliding_window",
                "key_position >= part.query_position - sliding_window",
            )
        ],
        "numba": [("max(0, position + 1 - scoring.window)", "max(0, position - scoring.window)")],
        "triton": [
            ("begin = tl.maximum(seq_len - window, 0)", "begin = tl.maximum(seq_len - window - 1, 0)")
        ],
    },
    "softcap before scale": {
        "numpy": [
            ("softcap * np.tanh(scores / softcap)", "scale * softcap * np.tanh(scores / scale / softcap)")
        ],
        "numpy blocks": [
            ("softcap * np.tanh(scores / softcap)", "scale * softcap * np.tanh(scores / scale / softcap)")
        ],
        "torch": [
            (
                "softcap * torch.tanh(scores / softcap)",
                "scale * softcap * torch.tanh(scores / scale / softcap)",
            )
        ],
        "numba": [
            (
                "scoring.softcap * np.tanh(score[i] / scoring.softcap)",
                "scoring.scale * scoring.softcap * np.tanh(score[i] / scoring.scale / scoring.softcap)",
            )
        ],
        "triton": [("softcap * tanh(scores / softcap)", "scale * softcap * tanh(scores / scale / softcap)")],
    },
    "merge without weights": {
        "numpy": ONE_SOFTMAX,
        "numpy blocks": "one walk over all blocks: there is nothing to merge",
        "torch": ONE_SOFTMAX,
        "numba": [
            (
                "old, new = np.exp(top - highest), np.exp(part[head_dim] - highest)",
                "old, new = np.float32(1), np.float32(1)",
            )
        ],
        "triton": [
            ("weights = tl.exp(lse - tl.max(lse, axis=0))", "weights = tl.where(lse > -1e30, 1.0, 0.0)")
        ],
    },
    "K and V swapped": {
        "numpy": [("attend(query[mine], keys, values,", "attend(query[mine], values, keys,")],
        "numpy blocks": [("query[token], key_cache, value_cache,", "query[token], value_cache, key_cache,")],
        "torch": [
            ("keys = gather_rows(key_cache,", "keys = gather_rows(value_cache,"),
            ("values = gather_rows(value_cache,", "values = gather_rows(key_cache,"),
        ],
        "numba": [("Caches(keys, values, kind, *sizes,", "Caches(values, keys, kind, *sizes,")],
        "triton": [
            (
                "k = tl.load(k_ptr + k_address, mask=mask, other=0.0)  #",
                "k = tl.load(v_ptr + k_address, mask=mask, other=0.0)  #",
            ),
            (
                "v = tl.load(v_ptr + v_address, mask=mask, other=0.0)\n",
                "v = tl.load(k_ptr + v_address, mask=mask, other=0.0)\n",
            ),
        ],
    },
    "32-bit offset": {
        "numpy": INDEXED,
        "numpy blocks": INDEXED,
        "torch": "below, by its slots",
        "numba": "below, by its addresses",
        "triton": "in test_triton_compiled, by the types of its addresses",
    },
}


@pytest.fixture(scope="module")
def prepared() -> list[tuple[Case, Inputs, np.ndarray]]:
    """The cases, with table entries that nobody may read naming an unowned block: a mutant may read them and live."""
    found = []
    for case in CASES:
        inputs = make_inputs(case)
        owned = inputs.block_tables[inputs.block_tables != EMPTY]
        free = next(b for b in range(len(inputs.key_cache)) if b not in owned)
        inputs.block_tables[inputs.block_tables == EMPTY] = free
        found.append((case, inputs, inputs.expected()))
    return found


def mutate(backend: str, changes: list[tuple[str, str]], folder: Path) -> ModuleType:
    """The backend's module with some lines replaced. Each must be there: a table that has aged fails here.

    Of the numba backend that is two files: the plan's module, with the mutated loop in it.
    """
    names = FILES[backend].split()
    sources = [(Path(attention.__file__).parent / name).read_text(encoding="utf-8") for name in names]
    for line, replacement in changes:
        assert any(line in source for source in sources), (
            f"{line!r} is not in {FILES[backend]} any more: bring the table up to date"
        )
        sources = [source.replace(line, replacement) for source in sources]
    modules = [load(folder / f"mutant_{name}", source) for name, source in zip(names, sources, strict=True)]
    if len(modules) == 2:
        modules[1].loop = modules[0]  # type: ignore[attr-defined]
    return modules[-1]


def load(path: Path, source: str) -> ModuleType:
    path.write_text(source, encoding="utf-8")
    name = f"paged_ref.attention.{path.stem}"  # inside the package, so that its relative imports work
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def attend(backend: str, module: ModuleType, inputs: Inputs) -> object:
    query, keys, values, tables, lens, starts = inputs.arguments()
    batch = Batch.of(tables, lens, starts)
    if backend == "triton":
        from paged_ref.attention import triton_paged

        plan = triton_paged.plan(batch, keys.shape[1]).with_splits(2)
    else:
        plan = module.plan(batch, keys.shape[1])
    if backend.startswith("numpy"):
        query, keys, values = query.numpy(), keys.numpy(), values.numpy()
    window, softcap = inputs.options.get("sliding_window"), inputs.options.get("softcap")
    return plan.run(query, keys, values, query.shape[-1] ** -0.5, window, softcap)


def caught(
    backend: str,
    changes: list[tuple[str, str]],
    prepared: list[tuple[Case, Inputs, np.ndarray]],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Case | None:
    """The first case that the mutated backend gets wrong."""
    monkeypatch.setattr(
        numba.config, "DISABLE_JIT", True
    )  # as Python: slower, but there is nothing to compile
    module = mutate(backend, changes, folder)
    if backend == "triton":
        from paged_ref.attention import triton_paged

        monkeypatch.setattr(triton_paged, "kernels", module)
    if backend == "numba":
        monkeypatch.setattr(module, "num_cores", lambda: 3)
        monkeypatch.setattr(module, "MAX_QUERY_TOKENS", 10)  # else torch attends the chunks
    for case, inputs, expected in prepared:
        try:
            distance = error(attend(backend, module, inputs), expected)
        except (IndexError, ValueError, RuntimeError, ZeroDivisionError):
            return case
        if not distance <= case.tolerance:
            return case
    return None


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("mutant", "backend"),
    [
        pytest.param(mutant, name, marks=[needs_triton] if name == "triton" else [])
        for mutant, of in MUTANTS.items()
        for name in FILES
        if not isinstance(of[name], str)
    ],
)
def test_mutant_is_caught(
    mutant: str,
    backend: str,
    prepared: list[tuple[Case, Inputs, np.ndarray]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changes = MUTANTS[mutant][backend]
    assert not isinstance(changes, str)
    assert caught(backend, changes, prepared, tmp_path, monkeypatch) is not None


@pytest.mark.parametrize("backend", runnable(FILES))
def test_without_a_mutation_all_cases_pass(
    backend: str,
    prepared: list[tuple[Case, Inputs, np.ndarray]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert caught(backend, [], prepared, tmp_path, monkeypatch) is None


class Memory:
    """Stands for a cache too large to allocate: remembers how far it was read."""

    dtype = np.float32

    def __init__(self) -> None:
        self.farthest = -1

    def __getitem__(self, part: slice) -> np.ndarray:
        assert part.start >= 0, "an address wrapped around"
        self.farthest = max(self.farthest, int(part.stop) - 1)
        return np.ones(part.stop - part.start, np.float32)


def farthest_slot_of_torch(module: ModuleType) -> int:
    batch = Batch.of(np.array([[2**28]]), np.array([1]))
    return int(module.plan(batch, 16).parts[0].slots.max())


def farthest_address_of_numba(module: ModuleType) -> int:
    sizes = (16, 1, 16 * 64, 64, 64, 16 * 64, 64, 64)  # block_size 16, one KV head of 64
    loop = module.loop
    tile = np.empty(16 * 64, np.float32)
    acc, ones = np.empty((1, 64), np.float32), np.empty((2, 1), np.float32)
    scratch = loop.Scratch(np.empty((1, 16), np.float32), tile, tile.view(np.uint32), acc, *ones)
    keys, values = Memory(), Memory()
    table = np.array([2**22], np.int32)
    none = np.empty(0, np.float32), np.empty(0, np.float32)
    caches, scoring = loop.Caches(keys, values, 0, *sizes, *none), loop.Scoring(1, 1.0, 0.0)
    loop._attend(np.ones((1, 64), np.float32), caches, table, 0, 1, scoring, scratch)
    assert keys.farthest == values.farthest
    return keys.farthest


def test_offsets_of_torch_are_64_bit(tmp_path: Path) -> None:
    assert farthest_slot_of_torch(mutate("torch", [], tmp_path)) == 2**32
    narrow = [("block.astype(np.int64), logical", "block.astype(np.int32), logical")]
    assert farthest_slot_of_torch(mutate("torch", narrow, tmp_path)) != 2**32


def test_offsets_of_numba_are_64_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "DISABLE_JIT", True)
    assert farthest_address_of_numba(mutate("numba", [], tmp_path)) == 2**32 + 63
    narrow = [
        ("block * caches.block_k +", "np.int64(block * caches.block_k).astype(np.int32) +"),
        ("block * caches.block_v +", "np.int64(block * caches.block_v).astype(np.int32) +"),
    ]
    assert farthest_address_of_numba(mutate("numba", narrow, tmp_path)) != 2**32 + 63
