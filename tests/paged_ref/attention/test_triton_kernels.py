"""The Triton kernels one by one, where `paged_attention` alone does not reach them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paged_ref.attention import Batch, paged_attention
from paged_ref.blocks.kv_cache import write_kv
from paged_ref.verify.grid import Case, Inputs, error, make_inputs
from tests.helpers.needs import NO_TRITON

triton_paged = pytest.importorskip("paged_ref.attention.triton_paged", reason=NO_TRITON)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def test_plain_decode_meets_the_oracle(plain_case: Case) -> None:
    inputs = make_inputs(plain_case)
    scale = plain_case.head_dim**-0.5
    got = triton_paged.decode_plain(*inputs.arguments(DEVICE)[:5], scale=scale)
    assert error(got, inputs.expected()) <= plain_case.tolerance


@pytest.mark.parametrize("num_splits", [1, 2, 4, 16])
@pytest.mark.parametrize("extra", ["none", "window short", "softcap"])
def test_every_number_of_splits(num_splits: int, extra: str) -> None:
    inputs = make_inputs(Case(40, 5, (9, 3), "523", "decode", extra, "float32"))
    assert error(_run(inputs, num_splits), inputs.expected()) <= 1e-5


@pytest.mark.parametrize("num_splits", [1, 4])
def test_splits_in_a_mixed_batch(num_splits: int) -> None:
    inputs = make_inputs(Case(24, 8, (8, 2), "523", "mixed", "empty sequence", "float32"))
    assert error(_run(inputs, num_splits), inputs.expected()) <= 1e-5


def _run(inputs: Inputs, num_splits: int) -> torch.Tensor:
    query, keys, values, tables, lens, starts = inputs.arguments(DEVICE)
    plan = triton_paged.plan(Batch.of(tables, lens, starts), keys.shape[1], query.device).with_splits(
        num_splits
    )
    options = inputs.options.get("sliding_window"), inputs.options.get("softcap")
    return plan.run(query, keys, values, query.shape[-1] ** -0.5, *options)


@pytest.mark.parametrize("queries", ["decode", "mixed"])
def test_unvalidated_call_reads_no_integer_on_the_host(queries: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, reading a tensor on the host waits for everything before it; `validate=False` must not."""
    inputs = make_inputs(Case(64, 16, (9, 3), "37", queries, "none", "float32"))

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("an integer tensor was read on the host")

    monkeypatch.setattr(Batch, "of", forbidden)
    got = paged_attention(*inputs.arguments(DEVICE), backend="triton", validate=False)
    assert error(got, inputs.expected()) <= 1e-5


@pytest.mark.parametrize(
    ("programs", "longest", "splits"),
    [(256, 8192, 2), (1024, 4096, 1), (8, 16384, 64), (64, 4096, 8), (8, 300, 1), (48, 600, 2), (0, 0, 1)],
)
def test_split_rule(programs: int, longest: int, splits: int) -> None:
    assert triton_paged.choose_splits(programs, longest, num_multiprocessors=132) == splits


def test_splits_must_be_a_power_of_two() -> None:
    plan = triton_paged.plan(Batch.of(np.zeros((1, 1), np.int32), np.ones(1, np.int32)), 16)
    with pytest.raises(ValueError, match="num_splits = 3"):
        plan.with_splits(3)


@pytest.mark.parametrize("strided", [False, True])
def test_write_kv_kernel(strided: bool) -> None:
    torch.manual_seed(0)
    caches = [
        torch.randn(7, 3, 5, 24, device=DEVICE) for _ in range(2)
    ]  # [num_blocks, num_kv_heads, block_size, d]
    caches = [c.transpose(1, 2) if strided else c.transpose(1, 2).contiguous() for c in caches]
    key, value = torch.randn(2, 4, 3, 24, device=DEVICE)
    slots = torch.tensor([33, -1, 0, 17], device=DEVICE)
    expected = [cache.clone() for cache in caches]
    write_kv(key, value, *expected, slots)
    triton_paged.write_kv(key, value, *caches, slots)
    for got, wanted in zip(caches, expected, strict=True):
        assert torch.equal(got, wanted)


def test_write_kv_kernel_takes_no_tokens() -> None:
    cache = torch.zeros(2, 4, 1, 16, device=DEVICE)
    nothing = torch.zeros(0, 1, 16, device=DEVICE)
    triton_paged.write_kv(nothing, nothing, cache, cache, torch.zeros(0, dtype=torch.int64, device=DEVICE))
    assert not cache.any()


def test_copy_blocks_kernel() -> None:
    torch.manual_seed(0)
    keys, values = torch.randn(2, 3, 6, 5, 3, 40, device=DEVICE)  # block_size 5: a block is not a whole tile
    before = keys.clone(), values.clone()
    triton_paged.copy_blocks(keys, values, [(0, 4), (0, 2), (5, 3)])
    for old, new in zip(before, (keys, values), strict=True):
        for source, destination in ((0, 4), (0, 2), (5, 3), (0, 0), (1, 1), (5, 5)):
            assert torch.equal(new[:, destination], old[:, source])


def test_copy_blocks_refuses_a_chain() -> None:
    cache = torch.zeros(1, 4, 4, 1, 16, device=DEVICE)
    with pytest.raises(ValueError, match="block 1 is both"):
        triton_paged.copy_blocks(cache, cache, [(0, 1), (1, 2)])
