"""Every backend against the oracle on the grid, and the grid against what it promises."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
import torch

from paged_ref.attention import Batch, numpy_blocks, paged_attention
from paged_ref.verify.grid import AXES, EMPTY, Case, Inputs, error, make_inputs
from tests.helpers.needs import runnable


@pytest.mark.parametrize("backend", runnable())
def test_backend_meets_the_oracle(
    backend: str, case: Case, inputs_and_answer: tuple[Inputs, np.ndarray]
) -> None:
    inputs, expected = inputs_and_answer
    got = paged_attention(*inputs.arguments(), **inputs.options, backend=backend)
    assert got.dtype == inputs.query.dtype
    assert error(got, expected) <= case.tolerance


def test_numpy_block_by_block_meets_the_oracle(short_case: Case) -> None:
    case, inputs = short_case, make_inputs(short_case)
    query, keys, values = (x.float().numpy() for x in inputs.arguments()[:3])  # NumPy has no bfloat16
    plan = numpy_blocks.plan(Batch.of(*inputs.arguments()[3:]), case.block_size)
    window, softcap = inputs.options.get("sliding_window"), inputs.options.get("softcap")
    got = plan.run(query, keys, values, case.head_dim**-0.5, window, softcap)
    assert error(got, inputs.expected()) <= case.tolerance


@pytest.mark.parametrize("backend", runnable())
@pytest.mark.parametrize("queries", ["decode", "mixed"])
def test_numpy_arrays_in_numpy_arrays_out(backend: str, queries: str) -> None:
    inputs = make_inputs(Case(40, 5, (9, 3), "ragged", queries, "none", "float32"))
    got = paged_attention(*inputs.arguments(kind=np.ndarray), backend=backend)
    assert isinstance(got, np.ndarray)
    assert got.dtype == np.float32
    assert error(got, inputs.expected()) <= 1e-5


@pytest.mark.parametrize("backend", runnable())
def test_empty_batch(backend: str) -> None:
    caches = torch.zeros(4, 8, 3, 16), torch.zeros(4, 8, 3, 16)
    tables, lens = torch.zeros(0, 2, dtype=torch.int32), torch.zeros(0, dtype=torch.int32)
    got = paged_attention(torch.zeros(0, 9, 16), *caches, tables, lens, backend=backend)
    assert got.shape == (0, 9, 16)


def test_covering_array_has_every_pair(grid_cases: list[Case]) -> None:
    names = list(AXES)
    rows = [[getattr(case, name) for name in names] for case in grid_cases]
    for a, b in combinations(range(len(names)), 2):
        wanted = set(product(AXES[names[a]], AXES[names[b]]))
        assert wanted == {(row[a], row[b]) for row in rows}, f"pairs of {names[a]} and {names[b]}"
    assert len(rows) < 100


def test_inputs_are_hostile() -> None:
    inputs = make_inputs(Case(24, 8, (9, 3), "ragged", "decode", "none", "float32"))
    used = -(-inputs.seq_lens // 8)
    for i, n in enumerate(used.tolist()):
        assert (inputs.block_tables[i, n:] == EMPTY).all()
    tables = torch.cat([row[:n] for row, n in zip(inputs.block_tables, used.tolist(), strict=True)])
    assert (tables.diff() != 1).any(), "the table must not be in order"
    owned = int(inputs.seq_lens.sum())
    assert int((~inputs.key_cache.isnan().any(-1).any(-1)).sum()) == owned, (
        "slots that no token owns hold NaN"
    )


def test_error_is_infinite_for_nan_and_for_a_wrong_shape() -> None:
    assert error(torch.tensor([1.0, torch.nan]), np.ones(2)) == np.inf
    assert error(torch.ones(3), np.ones(2)) == np.inf
    assert error(torch.zeros(2), np.ones(2)) == 0.5
