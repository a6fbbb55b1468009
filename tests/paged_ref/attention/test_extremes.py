"""Numbers at the ends of their types, and a pool with more than 2 ** 31 elements."""

from __future__ import annotations

import mmap
import sys

import numpy as np
import pytest
import torch

from paged_ref.attention import paged_attention
from paged_ref.verify.grid import error
from paged_ref.verify.oracle import oracle
from tests.helpers.needs import needs_triton, runnable

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")


def tables_and_lengths() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([[2, 0, 1]], dtype=torch.int32), torch.tensor([19], dtype=torch.int32)


@pytest.mark.parametrize("backend", runnable())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("sign", [-1, 1])
def test_scores_of_half_a_million(backend: str, dtype: torch.dtype, sign: int) -> None:
    """Before scaling every score is 64 * 128 * 64 = 524,288, eight times the largest float16, but for one."""
    query = torch.full((1, 8, 64), 128.0, dtype=dtype)
    keys = torch.full((4, 8, 2, 64), 64.0 * sign, dtype=dtype)
    keys[2, 3] *= 0.99  # the largest score where sign is -1
    values = torch.randn(4, 8, 2, 64).to(dtype)
    arguments = (query, keys, values, *tables_and_lengths())
    assert torch.isfinite(torch.tensor(oracle(*arguments))).all()
    assert error(paged_attention(*arguments, backend=backend), oracle(*arguments)) <= 1e-2


@pytest.mark.parametrize("backend", runnable())
def test_softcap_bounds_infinite_scores(backend: str) -> None:
    """A product beyond float32's largest number is infinite; the cap makes it 50 again, or -50."""
    query = torch.full((1, 4, 32), 1e20)
    keys = torch.full((4, 8, 2, 32), 1e20)
    keys[0] *= -1
    values = torch.randn(4, 8, 2, 32)
    arguments = (query, keys, values, *tables_and_lengths())
    got = paged_attention(*arguments, softcap=50.0, backend=backend)
    assert error(got, oracle(*arguments, softcap=50.0)) <= 1e-5


@pytest.mark.parametrize("backend", runnable())
def test_one_token_is_its_value(backend: str) -> None:
    query, cache = torch.randn(1, 9, 64), torch.full((2, 16, 3, 64), torch.nan)
    values = cache.clone()
    cache[1, 0], values[1, 0] = -1e4, torch.randn(3, 64)
    got = paged_attention(
        query, cache, values, torch.tensor([[1]]), torch.tensor([1]), sliding_window=1, backend=backend
    )
    assert torch.equal(got[0], values[1, 0].repeat_interleave(3, dim=0))


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="asks Linux for memory that is never touched"
)
@pytest.mark.parametrize("backend", ["numpy", "torch", "numba"])
def test_pool_past_two_billion_elements(backend: str) -> None:
    """The blocks used lie past element 2 ** 31 of a pool of which only they are ever touched.

    Triton's interpreter copies a storage whole, so its kernels are held by the types of their addresses instead
    (test_triton_compiled), and on a GPU by the test below.
    """
    shape = (2**17 + 4, 16, 8, 128)
    keys, values = _untouched(shape), _untouched(shape)
    _fill_the_end(keys, values)
    query = torch.randn(2, 8, 128).half()
    tables, lens = torch.tensor([[2**17 + 3, 2**17 + 1], [2**17 + 2, 0]]), torch.tensor([20, 9])
    arguments = (query, keys, values, tables, lens)
    got = paged_attention(*(x.numpy() for x in arguments), backend=backend)
    assert error(got, _expected_of_small_pool(arguments)) <= 1e-2


@needs_triton
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU with room for 9 GB")
def test_pool_past_two_billion_elements_on_a_gpu() -> None:
    shape = (2**17 + 4, 16, 8, 128)
    keys, values = (torch.zeros(shape, dtype=torch.float16, device=DEVICE) for _ in range(2))
    _fill_the_end(keys, values)
    query = torch.randn(2, 8, 128, device=DEVICE).half()
    tables, lens = torch.tensor([[2**17 + 3, 2**17 + 1], [2**17 + 2, 0]]), torch.tensor([20, 9])
    arguments = (query, keys, values, tables.to(DEVICE), lens.to(DEVICE))
    got = paged_attention(*arguments, backend="triton")
    assert error(got, _expected_of_small_pool(arguments)) <= 1e-2


def _untouched(shape: tuple[int, ...]) -> torch.Tensor:
    """float16 zeros that take address space only: a page becomes memory when it is written."""
    no_reserve = 0x4000  # MAP_NORESERVE, which the mmap module does not name before Python 3.13
    size = 2 * int(np.prod(shape))
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    return torch.from_numpy(np.frombuffer(mmap.mmap(-1, size, flags), dtype=np.float16).reshape(shape))


def _fill_the_end(keys: torch.Tensor, values: torch.Tensor) -> None:
    torch.manual_seed(0)
    for cache in (keys, values):
        cache[2**17 :] = torch.randn(4, *cache.shape[1:]).half()


def _expected_of_small_pool(arguments: tuple[torch.Tensor, ...]) -> np.ndarray:
    query, keys, values, tables, lens = arguments
    small = (tables.long() - 2**17).clamp(min=0)
    return oracle(query, keys[2**17 :], values[2**17 :], small, lens)
