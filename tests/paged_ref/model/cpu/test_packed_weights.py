"""Packed weights: the same products, the plain weights back bit by bit, and nothing packed that cannot be."""

from __future__ import annotations

import copy
import platform
import sys

import pytest
import torch
from torch import nn

from paged_ref import LLM, SamplingParams
from paged_ref.model.cpu.packed_weights import pack, unpack
from paged_ref.model.hf_model import PagedModel
from tests.helpers.onednn import HAS_ONEDNN, PACKED_DTYPES, needs_onednn
from tests.helpers.tiny import Tiny


def test_torch_has_onednn_where_it_is_part_of_the_package() -> None:
    """Else the tests of packed weights and fused layers would be skipped, and everybody served slowly, unnoticed."""
    if sys.platform == "linux" and platform.machine() == "x86_64":
        assert HAS_ONEDNN and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@needs_onednn
@pytest.mark.parametrize("dtype", PACKED_DTYPES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(40,), (1, 40), (3, 40), (1, 17, 40), (0, 40), (1, 0, 40)])
@torch.inference_mode()
def test_products_are_the_same(dtype: torch.dtype, bias: bool, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(40, 24, bias=bias, dtype=dtype)
    rows = torch.randn(shape, dtype=dtype)
    expected = linear(rows)
    assert pack(linear) == 1
    assert linear.weight.is_mkldnn
    assert linear(rows).shape == expected.shape
    torch.testing.assert_close(
        linear(rows), expected, rtol=2e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5
    )


@needs_onednn
def test_the_plain_weights_come_back(tiny: Tiny) -> None:
    model = copy.deepcopy(tiny.dense)
    model.lm_head.weight = model.model.embed_tokens.weight  # tied
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    assert pack(model) == 2 * 7 + 1
    assert not model.lm_head.weight.is_mkldnn, "the embedding needs it as it is"
    assert "forward" in vars(model.lm_head)
    assert pack(model) == 0, "what is packed is not packed again"
    unpack(model)
    unpack(model)
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert not any("forward" in vars(module) for module in model.modules())


def test_nothing_is_packed_where_it_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    half = nn.Linear(8, 8, dtype=torch.float16)
    assert pack(half) == 0
    assert "forward" not in vars(half)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert pack(nn.Linear(8, 8)) == 0


@needs_onednn
def test_a_packed_model_generates_the_same_tokens(tiny: Tiny, prompts: list[list[int]]) -> None:
    model = copy.deepcopy(tiny.dense)
    pack(model)
    paged = PagedModel(model)
    outputs = LLM(paged, num_blocks=256, block_size=8).generate(prompts, SamplingParams(max_tokens=12))
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.outputs[0].token_ids == tiny.generate(prompt, 12)
    dense = paged.restore()
    assert not any(parameter.is_mkldnn for parameter in dense.parameters())
    assert all(torch.equal(a, b) for a, b in zip(dense.parameters(), tiny.dense.parameters(), strict=True))
