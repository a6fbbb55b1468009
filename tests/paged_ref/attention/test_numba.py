"""The numba loop where the grid does not reach: widening of half precision, shares, memory it must not copy."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from numba import types

from paged_ref.attention import Batch, numba_loop, numba_paged, paged_attention
from paged_ref.verify.grid import Case, error, make_inputs


@pytest.mark.parametrize(
    ("dtype", "kind"), [(torch.bfloat16, numba_loop.BFLOAT16), (torch.float16, numba_loop.FLOAT16)]
)
def test_every_half_precision_number_is_widened_exactly(dtype: torch.dtype, kind: int) -> None:
    """All 65,536 of them: subnormals, infinities and NaN too."""
    source = np.arange(2**16, dtype=np.uint16)
    row = np.empty(2**16, np.float32)
    numba_loop._widen(source, 0, 2**13, 8, 2**13, kind, row, row.view(np.uint32))  # eight rows, side by side
    expected = torch.from_numpy(source).view(dtype).float().numpy()
    np.testing.assert_array_equal(row, expected)
    assert (np.signbit(row) == np.signbit(expected))[~np.isnan(expected)].all(), "-0 is not 0"


def test_the_vectorised_exp() -> None:
    x = -np.geomspace(1e-6, 87, 20_001).astype(np.float32)
    got = np.array([numba_loop.exp_of_negative(value) for value in x], dtype=np.float64)
    relative = np.abs(got / np.exp(x.astype(np.float64)) - 1)
    assert (relative <= 2e-7 + 8e-8 * -x).all()
    for value, expected in ((0.0, 1.0), (-87.5, 0.0), (-1e30, 0.0), (-np.inf, 0.0)):
        assert numba_loop.exp_of_negative(np.float32(value)) == expected
    assert np.isnan(numba_loop.exp_of_negative(np.float32(np.nan)))


@pytest.mark.parametrize("shares", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("extra", ["none", "window short"])
def test_any_number_of_shares(shares: int, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba_paged, "num_cores", lambda: shares)
    inputs = make_inputs(Case(40, 5, (9, 3), "ragged", "decode", extra, "float32"))
    query, keys, values, tables, lens, starts = inputs.arguments()
    plan = numba_paged.plan(Batch.of(tables, lens, starts), 5)
    got = plan.run(query, keys, values, 40**-0.5, inputs.options.get("sliding_window"))
    assert error(got, inputs.expected()) <= 1e-5


def test_two_compilations_serve_every_call() -> None:
    numba_paged.warm_up()
    compiled = len(numba_loop.run.signatures)
    plain = [
        keys for _, _, keys, *_ in numba_loop.run.signatures if keys.dtype not in (types.int8, types.uint8)
    ]
    assert len(plain) == 2
    for dtype in ("float32", "float16", "bfloat16"):
        inputs = make_inputs(Case(24, 8, (4, 4), "37", "mixed", "strided", dtype))
        paged_attention(*inputs.arguments(), backend="numba", sliding_window=5, softcap=9.0)
    assert len(numba_loop.run.signatures) == compiled


def test_caches_are_not_copied() -> None:
    cache = torch.zeros(3, 8, 4, 5, 16).transpose(2, 3)[
        1
    ]  # a layer of a larger storage, heads outermost in a block
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        typed = cache.to(dtype)
        keys, _, _, layout = numba_paged._as_bits(typed, typed)
        assert keys.ctypes.data == typed.data_ptr()
        assert layout.tolist() == [5, 4, *typed.stride()[:3], *typed.stride()[:3]]


def test_a_cache_with_scattered_heads_still_works() -> None:
    inputs = make_inputs(Case(24, 8, (4, 4), "37", "decode", "none", "float32"))
    query, keys, values, tables, lens, _ = inputs.arguments()
    scattered = [x.transpose(2, 3).contiguous().transpose(2, 3) for x in (keys, values)]
    assert scattered[0].stride(-1) != 1
    got = numba_paged.plan(Batch.of(tables, lens), 8).run(query, *scattered, 24**-0.5)
    assert error(got, inputs.expected()) <= 1e-5


@pytest.mark.parametrize("number", [1, 2])
def test_torch_keeps_its_number_of_threads(number: int) -> None:
    inputs = make_inputs(Case(24, 8, (4, 4), "37", "decode", "none", "float32"))
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        paged_attention(*inputs.arguments(), backend="numba")
        assert torch.get_num_threads() == number
    finally:
        torch.set_num_threads(before)


def test_threads_may_call_at_once() -> None:
    inputs = make_inputs(Case(24, 8, (4, 4), "37", "decode", "none", "float32"))
    query, keys, values, tables, lens, _ = inputs.arguments()
    plan = numba_paged.plan(Batch.of(tables, lens), 8)
    expected = plan.run(query, keys, values, 24**-0.5)
    results: list[torch.Tensor] = []

    def many() -> None:
        results.extend(plan.run(query, keys, values, 24**-0.5) for _ in range(20))

    threads = [threading.Thread(target=many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 80
    # Another thread may use another number of cores, and so add in another order.
    assert max(error(result, expected.double().numpy()) for result in results) <= 1e-6
