"""The rounding: its bound, its edges, and the same result wherever it is computed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from paged_ref.blocks.quantise import SMALLEST, dequantise, quantise, quantise_array
from paged_ref.kv_dtype import QUANTISED
from paged_ref.verify.quantised import element_bound

DTYPES = {kv_dtype: getattr(torch, name) for kv_dtype, (name, _) in QUANTISED.items()}
vectors = arrays(
    np.float32,
    array_shapes(min_dims=2, max_dims=3, max_side=9),
    elements=st.floats(-(2.0**120), 2.0**120, width=32),
)


@pytest.mark.parametrize("kv_dtype", QUANTISED)
@given(rows=vectors)
@settings(max_examples=200, deadline=None)
def test_the_error_stays_below_the_bound(kv_dtype: str, rows: np.ndarray) -> None:
    elements, scale = quantise(torch.from_numpy(rows), DTYPES[kv_dtype])
    assert elements.dtype == DTYPES[kv_dtype] and scale.shape == rows.shape[:-1] and (scale >= SMALLEST).all()
    distance = np.abs(dequantise(elements, scale).double().numpy() - rows.astype(np.float64))
    assert (distance <= element_bound(rows.astype(np.float64), kv_dtype) + SMALLEST).all()


@pytest.mark.parametrize("kv_dtype", QUANTISED)
def test_half_of_the_bound_would_not_do(kv_dtype: str) -> None:
    rows = torch.randn(100, 64)
    elements, scale = quantise(rows, DTYPES[kv_dtype])
    distance = (dequantise(elements, scale) - rows).double().numpy()
    assert (np.abs(distance) > element_bound(rows.double().numpy(), kv_dtype) / 2).any()


@pytest.mark.parametrize("kv_dtype", QUANTISED)
def test_every_vector_has_its_own_scale(kv_dtype: str) -> None:
    """A token or head of large numbers takes nothing from its neighbours."""
    rows = torch.randn(5, 3, 64)
    alone = quantise(rows[2:3, 1:2], DTYPES[kv_dtype])
    rows[:2], rows[3:], rows[2, 0], rows[2, 2] = 1e6, -1e6, 1e5, 1e-9
    elements, scale = quantise(rows, DTYPES[kv_dtype])
    assert torch.equal(elements[2:3, 1:2].float(), alone[0].float()) and torch.equal(
        scale[2:3, 1:2], alone[1]
    )


@pytest.mark.parametrize("kv_dtype", QUANTISED)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_stays_so(kv_dtype: str, bad: float) -> None:
    rows = torch.ones(3, 8)
    rows[1, 5] = bad
    elements, scale = quantise(rows, DTYPES[kv_dtype])
    back = dequantise(elements, scale)
    assert not back[1].isfinite().any()
    assert torch.equal(back[[0, 2]], torch.ones(2, 8))


@pytest.mark.parametrize("kv_dtype", QUANTISED)
def test_edges(kv_dtype: str) -> None:
    assert torch.equal(dequantise(*quantise(torch.zeros(2, 4), DTYPES[kv_dtype])), torch.zeros(2, 4))
    elements, scale = quantise(torch.empty(0, 3, 8), DTYPES[kv_dtype])
    assert elements.shape == (0, 3, 8) and scale.shape == (0, 3)
    largest = torch.finfo(torch.float32).max / 2
    back = dequantise(*quantise(torch.tensor([[largest, -largest, 1.0]]), DTYPES[kv_dtype]))
    torch.testing.assert_close(back[0, :2], torch.tensor([largest, -largest]))
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        assert dequantise(*quantise(torch.ones(1, 4, dtype=dtype), DTYPES[kv_dtype])).dtype == torch.float32


def test_int8_is_symmetric_and_ties_go_to_even() -> None:
    rows = torch.tensor([[127.0, -127.0, 0.5, 1.5, 2.5, -0.5, 126.4, -126.6]])
    elements, scale = quantise(rows, torch.int8)
    assert scale.tolist() == [1.0] and elements.tolist() == [[127, -127, 0, 2, 2, 0, 126, -127]]


def test_numpy_rounds_as_torch_does() -> None:
    rows = (torch.randn(1000, 33) * torch.logspace(-42, 38, 1000)[:, None]).numpy()
    elements, scale = quantise_array(rows, np.dtype(np.int8))
    by_torch = quantise(torch.from_numpy(rows), torch.int8)
    np.testing.assert_array_equal(scale, by_torch[1].numpy())
    np.testing.assert_array_equal(elements, by_torch[0].numpy())
    assert np.isnan(quantise_array(np.array([[np.nan, 1.0]], np.float32), np.dtype(np.int8))[1]).all()
