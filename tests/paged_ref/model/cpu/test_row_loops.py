"""The loops between a layer's products: against float64, rounded as torch rounds, and nothing written elsewhere."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
import torch
from numba import njit
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from paged_ref.model.cpu import row_loops
from paged_ref.model.cpu.row_loops import MANY_ROWS, gate, norm, rotate_and_write

ROOT = Path(__file__).parents[4]
DTYPES = [torch.float32, torch.bfloat16]
FEW_AND_MANY = [0, 1, 5, MANY_ROWS - 1, MANY_ROWS, 2 * MANY_ROWS + 3]


def near(got: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    """As near as one rounding to `dtype` allows."""
    assert got.dtype == dtype
    tolerance = 2.0**-8 if dtype == torch.bfloat16 else 2e-6
    torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", FEW_AND_MANY)
@pytest.mark.parametrize("size", [1, 33, 576])
def test_norm(dtype: torch.dtype, num_rows: int, size: int) -> None:
    torch.manual_seed(num_rows)
    rows, weight = (3 * torch.randn(num_rows, size)).to(dtype), torch.rand(size)
    wide = rows.double()
    expected = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5) * weight.double()
    near(norm(rows, weight.numpy(), 1e-5), expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", FEW_AND_MANY)
@pytest.mark.parametrize("size", [1, 33, 1536])
def test_gate(dtype: torch.dtype, num_rows: int, size: int) -> None:
    torch.manual_seed(num_rows)
    rows = (4 * torch.randn(num_rows, 2 * size)).to(dtype)
    first, second = rows.double().chunk(2, dim=-1)
    near(gate(rows), torch.nn.functional.silu(first) * second, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gate_at_the_edges(dtype: torch.dtype) -> None:
    edges = torch.tensor(
        [0.0, -0.0, 1e-30, -1e-30, 80, -80, 90, -90, 1e30, -1e30, torch.inf, -torch.inf, torch.nan]
    )
    rows = torch.cat([edges, torch.ones(len(edges))]).to(dtype)[None]
    expected = torch.nn.functional.silu(rows[:, : len(edges)].double())
    torch.testing.assert_close(gate(rows).double(), expected, rtol=2.0**-8, atol=1e-30, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_tokens", FEW_AND_MANY)
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(9, 3, 64), (1, 1, 2), (4, 4, 6)])
def test_rotate_and_write(
    dtype: torch.dtype, num_tokens: int, num_heads: int, num_kv_heads: int, head_dim: int
) -> None:
    torch.manual_seed(num_tokens)
    qkv = torch.randn(num_tokens, (num_heads + 2 * num_kv_heads) * head_dim).to(dtype)
    angles = 100 * torch.rand(
        num_tokens, head_dim
    )  # the two halves differ, so that none is taken for the other
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    keys, values = (torch.full((num_tokens // 2 + 1, 4, num_kv_heads, head_dim), 7.0).to(dtype) for _ in "kv")
    slots = torch.randperm(4 * len(keys))[:num_tokens]
    query = rotate_and_write(qkv, cos, sin, keys, values, slots)

    heads = qkv.view(num_tokens, num_heads + 2 * num_kv_heads, head_dim).double()
    q, k, v = heads.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
    q, k = apply_rotary_pos_emb(q, k, cos.double(), sin.double())
    near(query, q, dtype)
    near(keys.flatten(0, 1)[slots], k, dtype)
    assert torch.equal(values.flatten(0, 1)[slots].double(), v), "values are copied bit by bit"
    others = torch.ones(4 * len(keys), dtype=torch.bool)
    others[slots] = False
    assert (keys.flatten(0, 1)[others] == 7).all() and (values.flatten(0, 1)[others] == 7).all()


@njit
def store(numbers: np.ndarray, row: np.ndarray) -> None:
    """The rounding alone."""
    row_loops._store(numbers, row)


def test_bfloat16_is_rounded_as_torch_rounds() -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 200_000, dtype=np.uint32)  # all kinds: subnormal, huge, NaN of every sort
    halfway = (rng.integers(0, 2**16, 20_000, dtype=np.uint32) << 16) | 0x8000
    special = np.array(
        [0, 0x80000000, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF]
    )
    numbers = np.concatenate([bits, halfway, halfway - 1, halfway + 1, special.astype(np.uint32)]).view(
        np.float32
    )
    row = np.empty(len(numbers), np.uint16)
    store(numbers, row)
    got = torch.from_numpy(row).view(torch.bfloat16)
    expected = torch.from_numpy(numbers).to(torch.bfloat16)
    number = ~expected.isnan()
    assert torch.equal(got[number].view(torch.uint16), expected[number].view(torch.uint16))
    assert got[~number].isnan().all() and not number.all()


def test_few_and_many_rows_give_the_same_bits() -> None:
    torch.manual_seed(0)
    rows = torch.randn(3 * MANY_ROWS, 96).to(torch.bfloat16)
    weight = np.linspace(0.5, 2, 96, dtype=np.float32)
    for loop in (gate, lambda rows: norm(rows, weight, 1e-5)):
        pieces = [loop(piece) for piece in rows.split(MANY_ROWS - 1)]
        assert torch.equal(loop(rows), torch.cat(pieces))


def test_what_the_loops_do_not_take_is_refused() -> None:
    for dtype in (torch.float64, torch.float16):
        with pytest.raises(ValueError, match="float32 and bfloat16, not"):
            gate(torch.ones(2, 8, dtype=dtype))
    qkv, cache, turn = torch.ones(3, 6), torch.zeros(2, 2, 1, 2), torch.ones(3, 2)
    slots = torch.arange(3)
    for cos, sin, where in ((turn[:, :1], turn, slots), (turn, turn[:2], slots), (turn, turn, slots[:2])):
        with pytest.raises(ValueError, match="3 tokens with heads of 2"):
            rotate_and_write(qkv, cos, sin, cache, cache, where)
    scattered = torch.zeros(2, 2, 1, 2).transpose(0, 1)
    with pytest.raises(RuntimeError, match="view"):
        rotate_and_write(qkv, turn, turn, scattered, scattered, slots)


def test_nothing_is_said_of_loops_that_could_not_be_made_parallel() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gate(torch.randn(MANY_ROWS, 4))


def test_a_warm_up_compiles_all_that_is_called_later() -> None:
    code = """
        from paged_ref.model.cpu import row_loops
        from tests.paged_ref.model.cpu import test_row_loops as tests
        loops = [row_loops._norm, row_loops._gate, row_loops._rotate]
        loops += [row_loops._norm_all, row_loops._gate_all, row_loops._rotate_all]
        row_loops.warm_up()
        compiled = [len(loop.signatures) for loop in loops]
        for dtype in tests.DTYPES:
            for num_rows in tests.FEW_AND_MANY:
                tests.test_rotate_and_write(dtype, num_rows, 9, 3, 64)
                tests.test_norm(dtype, num_rows, 33)
                tests.test_gate(dtype, num_rows, 33)
        assert [len(loop.signatures) for loop in loops] == compiled, compiled
    """
    subprocess.run([sys.executable, "-c", dedent(code)], cwd=ROOT, check=True)
