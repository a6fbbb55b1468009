"""The grid: inputs on which every attention backend must be correct (chapters 3 and 5).

Wrong kernels pass easy inputs. With one sequence, full blocks, a table in order and one KV head per query head,
about half of all plausible mistakes still give the right answer. So here

* tables are shuffled, entries past a sequence's last block are garbage, and slots without a token hold NaN;
* lengths are at, just below and just above block boundaries, and differ within a batch;
* scores are large enough to matter: the last key of a sequence is a *needle* that takes most of a head's weight;
* each value row contains its position, so a row read from the wrong place shows.

The axes have 158,760 combinations. A fault typically shows with one or two particular values, rarely only with
three, so a *covering array*, in which every pair of values of two axes occurs at least once, finds the faults
with fewer than a hundred cases.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from itertools import combinations, product
from typing import Any

import numpy as np
import torch

from .oracle import oracle

AXES: dict[str, tuple[Any, ...]] = {
    "head_dim": (24, 40, 64, 80, 96, 128, 256),
    "block_size": (1, 5, 8, 16, 32),
    "heads": ((4, 4), (8, 2), (5, 1), (9, 3), (7, 1), (32, 8)),
    "context": ("1", "B-1", "B", "B+1", "2B", "37", "523", "2011", "ragged"),
    "queries": ("decode", "prefill", "chunk", "mixed"),
    "extra": ("none", "window 1", "window short", "window long", "softcap", "strided", "empty sequence"),
    "dtype": ("float32", "float16", "bfloat16"),
}
TOLERANCE = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 1e-2}
EMPTY = -(2**31)  # garbage for table entries that must not be read


@dataclass(frozen=True)
class Case:
    """One combination of the axes. `score_size` multiplies the queries; with 1, scores are a few units in size."""

    head_dim: int
    block_size: int
    heads: tuple[int, int]
    context: str
    queries: str
    extra: str
    dtype: str
    score_size: float = 1.0

    def __str__(self) -> str:
        parts = (
            f"d{self.head_dim} b{self.block_size} h{self.heads[0]}/{self.heads[1]} n={self.context}",
            self.queries,
        )
        big = (f"scores x{self.score_size:g}",) if self.score_size != 1 else ()
        return ", ".join((*parts, self.extra, self.dtype, *big))

    @property
    def tolerance(self) -> float:
        """Largest allowed |got - expected| / (1 + |expected|). The rounding error of a score grows with the score."""
        return TOLERANCE[self.dtype] * max(1.0, min(self.score_size, 100.0))

    def lengths(self) -> list[tuple[int, int]]:
        """Return (query tokens, tokens in the cache) for each sequence."""
        size = self.block_size
        named = {"1": 1, "B-1": max(1, size - 1), "B": size, "B+1": size + 1, "2B": 2 * size}
        if self.context == "ragged":
            contexts = [1, max(1, size - 1), size, size + 1, 2 * size, 37, 100]
        else:
            contexts = [named.get(self.context) or int(self.context), 19, 2 * size + 1]
        if self.queries == "decode":
            lengths = [(1, n) for n in contexts]
        elif self.queries == "prefill":
            lengths = [(n, n) for n in contexts]
        elif self.queries == "chunk":
            lengths = [(min(n, 2 + n // 8), n) for n in contexts]
        else:
            n = contexts[0] if len(contexts) == 3 else 100
            lengths = [(1, n), (min(n, 29), min(n, 29)), (min(n, 7), n), (1, 37), (1, 2 * size)]
        if self.extra == "empty sequence":
            lengths.insert(1, (0, 0))
            lengths.append((0, 7))  # in the batch, but without a query token in this call
        return lengths


@dataclass(frozen=True)
class Inputs:
    """Arguments of `paged_attention` for one case, as torch tensors, and the oracle's result.

    query [num_tokens, num_heads, d] and caches [num_blocks, block_size, num_kv_heads, d] of the case's dtype;
    block_tables, seq_lens, query_start_loc int32 (None for a pure decode batch).
    """

    query: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    block_tables: torch.Tensor
    seq_lens: torch.Tensor
    query_start_loc: torch.Tensor | None
    options: dict[str, Any]

    def arguments(self, device: str = "cpu", kind: type = torch.Tensor) -> tuple[Any, ...]:
        """Return the positional arguments, on a device, or as NumPy arrays with `kind=np.ndarray`."""
        tensors = [getattr(self, f.name) for f in fields(self)[:6]]
        if kind is np.ndarray:
            return tuple(None if t is None else t.numpy() for t in tensors)
        return tuple(None if t is None else _to_device(t, device) for t in tensors)

    def expected(self) -> np.ndarray:
        """Return the oracle's result, float64."""
        return oracle(*self.arguments(), **self.options)


def covering_array(axes: dict[str, tuple[Any, ...]], allowed: Callable[..., bool]) -> list[tuple[Any, ...]]:
    """Return rows, with one value for each axis, in which every pair of values of every two axes occurs.

    Greedy: start a row with the first pair still missing, then give each other axis the value that adds the most
    missing pairs. `allowed(**row)` may reject combinations, but must leave every pair possible.
    """
    names = list(axes)
    pairs = ((a, x, b, y) for a, b in combinations(names, 2) for x, y in product(axes[a], axes[b]))
    missing = dict.fromkeys(pairs)  # an ordered set, so that the result is always the same
    rows = []
    while missing:
        a, x, b, y = next(iter(missing))
        row = {a: x, b: y}
        for name in (n for n in names if n not in row):
            choices = [v for v in axes[name] if allowed(**row, **{name: v})]
            row[name] = max(
                choices, key=lambda v: sum(p in missing for p in _pairs_with(row, name, v, names))
            )
        for p, q in combinations(names, 2):
            missing.pop((p, row[p], q, row[q]), None)
        rows.append(tuple(row[name] for name in names))
    return rows


def _pairs_with(row: dict[str, Any], name: str, value: Any, names: list[str]) -> Iterator[tuple[Any, ...]]:
    for other, taken in row.items():
        first = names.index(other) < names.index(name)
        yield (other, taken, name, value) if first else (name, value, other, taken)


def _affordable(**row: Any) -> bool:
    """Allow long prefills only with few KV heads: an interpreted kernel does a few hundred tiles per second."""
    long = row.get("context") in ("523", "2011") and row.get("queries") in ("prefill", "chunk", "mixed")
    many = row.get("heads", (1, 1))[1] > 1
    long_prefill = row.get("context") == "2011" and row.get("queries") == "prefill"
    return not (long and many) and not (
        long_prefill and (row.get("head_dim", 0) > 64 or row.get("dtype") == "float32")
    )


def cases() -> list[Case]:
    """Return the covering array of `AXES`, then a few cases with scores large enough for exp to overflow."""
    rows = [Case(*row) for row in covering_array(AXES, _affordable)]
    large = [Case(64, 16, (9, 3), "ragged", q, "none", "float32", 100.0) for q in ("decode", "mixed")]
    return [*rows, *large]


def all_cases() -> Iterator[Case]:
    """Return all combinations of `AXES`."""
    return (Case(*row) for row in product(*AXES.values()))


def make_inputs(case: Case, seed: int = 0) -> Inputs:
    """Return random inputs for a case, determined by the case and the seed."""
    rng = np.random.default_rng([seed, zlib.crc32(str(case).encode())])
    (num_heads, num_kv_heads), size, d = case.heads, case.block_size, case.head_dim
    lengths = case.lengths()
    needed = [-(-n // size) for _, n in lengths]
    num_blocks = sum(needed) + 3
    # In half of the cases no sequence has block 0: it holds NaN, which a load that uses block 0 as padding will read.
    ids = iter((rng.permutation(num_blocks - 1) + int(rng.integers(2))).tolist())
    tables = np.full((len(lengths), max(needed, default=0) + 2), EMPTY, dtype=np.int32)
    keys = np.full((num_blocks, size, num_kv_heads, d), np.nan, dtype=np.float32)
    values = keys.copy()
    starts = np.cumsum([0] + [q for q, _ in lengths]).astype(np.int32)
    query = rng.standard_normal((starts[-1], num_heads, d), dtype=np.float32)
    for i, (q, n) in enumerate(lengths):
        tables[i, : needed[i]] = [next(ids) for _ in range(needed[i])]
        block, offset = tables[i, np.arange(n) // size], np.arange(n) % size
        keys[block, offset] = rng.standard_normal((n, num_kv_heads, d), dtype=np.float32)
        values[block, offset] = rng.standard_normal((n, num_kv_heads, d), dtype=np.float32)
        values[block, offset, :, 0] = (np.arange(n) / 64)[:, None]
        if q:
            # The first query head of every KV head
            asked = query[starts[i + 1] - 1, :: num_heads // num_kv_heads]
            keys[block[-1], offset[-1]] = asked * (np.log(n) + 3) * d**0.5 / (asked**2).sum(-1, keepdims=True)
    dtype = getattr(torch, case.dtype)
    q_t, k_t, v_t = (
        torch.from_numpy(x).to(dtype) for x in (query * np.float32(case.score_size), keys, values)
    )
    if case.extra == "strided":
        q_t, k_t, v_t = _strided(q_t, k_t, v_t)
    options: dict[str, Any] = {}
    if case.extra.startswith("window"):
        options["sliding_window"] = {"1": 1, "short": 7, "long": 10_000}[case.extra.split()[1]]
    if case.extra == "softcap":
        options["softcap"] = 50.0
    only_decodes = all(q == 1 for q, _ in lengths)
    seq_lens = torch.tensor([n for _, n in lengths], dtype=torch.int32)
    start_tensor = None if only_decodes else torch.from_numpy(starts)
    return Inputs(q_t, k_t, v_t, torch.from_numpy(tables), seq_lens, start_tensor, options)


def _strided(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the same values in another layout: heads outermost in a block of K, padded rows elsewhere."""
    query = q.new_full((q.shape[0], 2 * q.shape[1], q.shape[2] + 8), torch.nan)[:, ::2, : q.shape[2]]
    keys = k.new_full((k.shape[0], k.shape[2], k.shape[1], k.shape[3]), torch.nan).transpose(1, 2)
    values = v.new_full((v.shape[0] + 1, *v.shape[1:3], v.shape[3] + 8), torch.nan)[1:, :, :, : v.shape[3]]
    return query.copy_(q), keys.copy_(k), values.copy_(v)


def _to_device(tensor: torch.Tensor, device: str) -> torch.Tensor:
    if device == "cpu":
        return tensor
    span = (
        1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        if tensor.numel()
        else 0
    )
    flat = tensor.as_strided((span,), (1,)).to(device)  # `.to` alone would make a strided tensor contiguous
    return flat.as_strided(tensor.shape, tensor.stride())


def error(got: Any, expected: np.ndarray) -> float:
    """Return the largest |got - expected| / (1 + |expected|); infinite if a value is NaN or the shape differs."""
    result = np.asarray(got.double().cpu() if isinstance(got, torch.Tensor) else got, dtype=np.float64)
    if result.shape != expected.shape:
        return float("inf")
    distance = np.abs(result - expected) / (1 + np.abs(expected))
    return float(np.nan_to_num(distance, nan=np.inf).max(initial=0.0))
