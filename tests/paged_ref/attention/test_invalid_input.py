"""Arguments that do not fit: each is refused before a backend sees it, with what, where and what to do."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
import torch

from paged_ref import attention, paged_attention
from paged_ref.attention import numba_paged
from paged_ref.attention.validate import Batch
from tests.helpers.needs import runnable


def good() -> dict[str, Any]:
    """Two sequences of 9 and 4 tokens in a pool of 6 blocks of 4; the second has 3 query tokens."""
    return {
        "query": torch.randn(4, 8, 16),
        "key_cache": torch.randn(6, 4, 2, 16),
        "value_cache": torch.randn(6, 4, 2, 16),
        "block_tables": torch.tensor([[5, 0, 3], [1, -7, 99]]),
        "seq_lens": torch.tensor([9, 4]),
        "query_start_loc": torch.tensor([0, 1, 4]),
    }


@pytest.mark.parametrize("backend", ["auto", *runnable()])
def test_the_good_call_is_good(backend: str) -> None:
    assert paged_attention(**good(), backend=backend).shape == (4, 8, 16)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"block_tables": torch.tensor([[5, -1, 3], [1, 0, 0]])}, r"block_tables\[0, 1\] = -1.*tokens 4\.\.7"),
    (
        {"block_tables": torch.tensor([[5, 0, 6], [1, 0, 0]])},
        r"block_tables\[0, 2\] = 6.*6 blocks.*tokens 8\.\.8",
    ),
    ({"block_tables": torch.tensor([[5, 0, 2**32], [1, 0, 0]])}, r"block_tables\[0, 2\]"),
    ({"block_tables": torch.tensor([[5, 0], [1, 0]])}, "2 columns, but sequence 0 needs 3 blocks"),
    ({"block_tables": torch.tensor([[5, 0, 3]])}, "1 rows, but seq_lens has 2"),
    ({"block_tables": torch.tensor([5, 0, 3])}, "2 dimensions"),
    ({"block_tables": torch.tensor([[5.0, 0, 3], [1, 0, 0]])}, "integer type"),
    ({"block_tables": [[5, 0, 3], [1, 0, 0]]}, "block_tables is a list"),
    ({"seq_lens": torch.tensor([9, 2])}, r"seq_lens\[1\] = 2, but sequence 1 has 3 query tokens"),
    ({"seq_lens": torch.tensor([-1, 4])}, r"seq_lens\[0\] = -1"),
    ({"seq_lens": torch.tensor([2**40, 4])}, "sequence 0 needs"),
    ({"query_start_loc": torch.tensor([0, 5, 4])}, "falls from 5 to 4 at sequence 1"),
    ({"query_start_loc": torch.tensor([1, 2, 4])}, "must run from 0 to 4"),
    ({"query_start_loc": torch.tensor([0, 1, 5])}, "must run from 0 to 4"),
    ({"query_start_loc": torch.tensor([0, 4])}, r"must be \[3\]"),
    ({"query_start_loc": None}, "4 tokens for 2 sequences"),
    ({"query": torch.randn(4, 8, 16).half()}, "one dtype"),
    ({"query": torch.randn(4, 8, 16).numpy()}, "use one kind"),
    ({"query": torch.randn(4, 8, 12)}, "head_dim 12, the cache 16"),
    ({"query": torch.randn(4, 7, 16)}, "7 query heads"),
    ({"query": torch.randn(4, 128)}, "3 dimensions"),
    ({"query": torch.ones(4, 8, 16, dtype=torch.int32)}, "one dtype"),
    ({"value_cache": torch.randn(6, 4, 2, 8)}, "value_cache"),
    ({"key_cache": torch.randn(6, 0, 2, 16), "value_cache": torch.randn(6, 0, 2, 16)}, "empty dimension"),
    ({"value_cache": torch.randn(6, 4, 2, 16, device="meta")}, "value_cache is on meta"),
    ({"sliding_window": 0}, "sliding_window = 0"),
    ({"softcap": 0.0}, "softcap = 0"),
    ({"softcap": float("nan")}, "softcap = nan"),
    ({"backend": "cuda"}, "unknown backend 'cuda'"),
]


@pytest.mark.parametrize(("change", "message"), BAD, ids=[message for _, message in BAD])
def test_a_bad_argument_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        paged_attention(**{**good(), **change})


@pytest.mark.parametrize("backend", runnable())
def test_every_backend_is_guarded(backend: str) -> None:
    with pytest.raises(ValueError, match=r"block_tables\[0, 0\] = 6"):
        paged_attention(**{**good(), "block_tables": torch.full((2, 3), 6)}, backend=backend)


def test_numba_names_what_it_cannot_take() -> None:
    doubles = {name: x.double() if x.is_floating_point() else x for name, x in good().items()}
    with pytest.raises(ValueError, match="float64"):
        paged_attention(**doubles, backend="numba")
    with pytest.raises(ValueError, match="on cuda"):
        numba_paged.plan(Batch.of(np.zeros((1, 1)), np.ones(1)), 16, torch.device("cuda"))


def test_auto_falls_back_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    query = torch.zeros(1, 1, 1)
    assert attention.choose_backend(query) == "numba"
    assert attention.choose_backend(query.numpy()) == "numba"
    find = importlib.util.find_spec
    monkeypatch.setattr(attention, "find_spec", lambda name: None if name == "numba" else find(name))
    assert attention.choose_backend(query) == "torch"
    assert attention.choose_backend(query.numpy()) == "numpy"


@pytest.mark.parametrize(("installed", "chosen"), [(True, "triton"), (False, "torch")])
def test_auto_on_a_gpu_asks_for_triton(installed: bool, chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class OnGpu:
        """Stands for a CUDA tensor."""

        is_cuda = True

    monkeypatch.setattr(attention, "is_torch", lambda array: True)
    monkeypatch.setattr(
        attention, "find_spec", lambda name: object() if installed or name != "triton" else None
    )
    assert attention.choose_backend(OnGpu()) == chosen


@pytest.mark.parametrize("backend", runnable())
def test_arguments_are_left_as_they_were(backend: str) -> None:
    arguments = good()
    before = {name: x.clone() for name, x in arguments.items()}
    paged_attention(**arguments, backend=backend)
    for name, x in arguments.items():
        assert torch.equal(x, before[name]), name
