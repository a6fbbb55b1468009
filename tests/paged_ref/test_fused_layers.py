"""Fused layers: the same tokens from every backend, plain layers back bit by bit, and none fused that is unknown."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from paged_ref import LLM, SamplingParams, fused_layers
from paged_ref.attention import BACKENDS, Batch
from paged_ref.batch import StepBatch
from paged_ref.fused_layers import FusedLayer, fuse, unfuse
from paged_ref.hf_model import PagedModel
from paged_ref.packed_weights import pack, packed_part

from .conftest import Tiny

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN"
)
CPU_BACKENDS = [name for name in BACKENDS if name != "triton"]


def small(**options: Any) -> LlamaForCausalLM:
    """Another small Llama; its weights are drawn at random, biases too."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=64, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, **options,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model


def mixed_step() -> StepBatch:
    """A sequence of 7 tokens prefills, one of 3 does, in blocks of 4; every row's logits are wanted."""
    return StepBatch(
        token_ids=np.arange(10, dtype=np.int32),
        positions=np.array([0, 1, 2, 3, 4, 5, 6, 0, 1, 2], dtype=np.int32),
        slot_mapping=np.array([8, 9, 10, 11, 0, 1, 2, 4, 5, 6], dtype=np.int32),
        sample_rows=np.arange(10, dtype=np.int32),
        attention=Batch.of(np.array([[2, 0], [1, 0]]), np.array([7, 3]), np.array([0, 7, 10])),
    )


def is_fused(model: nn.Module) -> list[bool]:
    return [isinstance(vars(layer).get("forward"), FusedLayer) for layer in model.model.layers]


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_a_fused_model_generates_the_same_tokens(tiny: Tiny, prompts: list[list[int]], backend: str) -> None:
    model = copy.deepcopy(tiny.dense)
    assert fuse(model) == 2
    llm = LLM(PagedModel(model), num_blocks=256, block_size=8, backend=backend)
    outputs = llm.generate(prompts, SamplingParams(max_tokens=12))
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.outputs[0].token_ids == tiny.generate(prompt, 12)


@pytest.mark.parametrize("options", [{}, {"attention_bias": True, "mlp_bias": True}, {"head_dim": 6}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_and_cache_are_those_of_the_layers(options: dict[str, Any], dtype: torch.dtype) -> None:
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this processor has no bfloat16 instructions that oneDNN uses")
    results = []
    for make in (lambda model: model, lambda model: fuse(model) and model):
        paged = PagedModel(make(small(**options).to(dtype)))
        cache = paged.new_cache(3, 4)
        logits = paged.forward(mixed_step(), cache)
        slots = torch.from_numpy(mixed_step().slot_mapping.astype(np.int64))
        results.append([logits] + [half.flatten(1, 2)[:, slots] for half in (cache.keys, cache.values)])
    tolerance = 2e-1 if dtype == torch.bfloat16 else 1e-4
    for plain, fused in zip(*results, strict=True):
        torch.testing.assert_close(fused, plain, rtol=tolerance, atol=tolerance * float(plain.float().std()))


def test_in_bfloat16_fused_layers_are_not_less_exact() -> None:
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this processor has no bfloat16 instructions that oneDNN uses")
    half = small().to(torch.bfloat16)
    exact = PagedModel(copy.deepcopy(half).float())
    wanted = exact.forward(mixed_step(), exact.new_cache(3, 4), "torch").double()
    errors = []
    for fused in (False, True):
        model = copy.deepcopy(half)
        assert fuse(model) == 2 if fused else True
        paged = PagedModel(model)
        errors.append(
            (paged.forward(mixed_step(), paged.new_cache(3, 4)).double() - wanted).pow(2).mean().sqrt()
        )
    assert errors[1] <= 1.1 * errors[0]


def test_an_empty_choice_of_rows_and_one_token_are_no_special_case() -> None:
    paged = PagedModel(small())
    fuse(paged.model)
    batch = StepBatch(
        token_ids=np.zeros(1, np.int32), positions=np.zeros(1, np.int32), slot_mapping=np.zeros(1, np.int32),
        sample_rows=np.zeros(0, np.int32), attention=Batch.of(np.array([[0]]), np.array([1])),
    )  # fmt: skip
    assert paged.forward(batch, paged.new_cache(1, 4)).shape == (0, 64)


@pytest.mark.parametrize("packed_before", [False, True])
def test_the_plain_layers_come_back(packed_before: bool) -> None:
    model = small(attention_bias=True, tie_word_embeddings=True)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    if packed_before:
        assert pack(model) == 2 * 7 + 1
    assert fuse(model) == 2 and fuse(model) == 0, "what is fused is not fused again"
    assert pack(model) == (0 if packed_before else 1), "only the output layer is left to pack"
    assert is_fused(model) == [True, True]
    paged = PagedModel(model)
    assert paged.restore() is model
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
    assert not any("forward" in vars(module) for module in model.modules())
    unfuse(model)


def test_the_plain_weights_are_not_kept_beside_the_packed_ones() -> None:
    model = small()
    plain = sum(parameter.numel() for parameter in model.parameters())
    fuse(model)
    assert sum(parameter.numel() for parameter in model.parameters()) == plain, "each weight is there once"
    attn = model.model.layers[0].self_attn
    assert attn.q_proj.weight is attn.k_proj.weight is attn.v_proj.weight


@torch.inference_mode()
def test_without_a_paged_step_a_fused_layer_is_the_layer() -> None:
    model, ids = small(attention_bias=True), torch.arange(12)[None]
    expected = model(ids, output_hidden_states=True)
    fuse(model)
    got = model(ids, output_hidden_states=True)
    torch.testing.assert_close(got.logits, expected.logits, rtol=1e-4, atol=1e-4)
    assert len(got.hidden_states) == len(expected.hidden_states)
    ours = model.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0)
    unfuse(model)
    assert torch.equal(ours, model.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0))


class Louder(nn.Linear):
    """A linear layer that somebody changed, as an adapter does."""


def exchange(model: Any) -> None:
    old = model.model.layers[0].self_attn.k_proj
    model.model.layers[0].self_attn.k_proj = Louder(old.in_features, old.out_features, bias=False)


def test_a_layer_that_is_not_known_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = small()
    exchange(changed)
    assert fuse(changed) == 1 and is_fused(changed) == [False, True]
    watched = small()
    watched.model.layers[1].mlp.down_proj.register_forward_hook(lambda *_: None)
    assert fuse(watched) == 1 and is_fused(watched) == [True, False]
    assert fuse(small(hidden_act="gelu")) == 0
    assert fuse(small().to(torch.float16)) == 0
    mixed = small()
    mixed.model.layers[0].input_layernorm.to(torch.bfloat16)
    assert fuse(mixed) == 1
    config = Qwen2Config(vocab_size=64, hidden_size=48, intermediate_size=80, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2)  # fmt: skip
    assert fuse(Qwen2ForCausalLM(config)) == 0
    packed = small(hidden_act="gelu")
    pack(packed)
    assert fuse(packed) == 0 and packed_part(packed.model.layers[0].mlp.up_proj) is not None
    monkeypatch.setattr(fused_layers, "find_spec", lambda name: None)
    assert fuse(small()) == 0


def test_load_fuses_unless_told_not_to(tmp_path: Any) -> None:
    small().save_pretrained(tmp_path)
    for options, fused, packed in (
        ({}, True, True),
        ({"fuse_layers": False}, False, True),
        ({"pack_weights": False}, False, False),
    ):
        model = PagedModel.load(tmp_path, "float32", "cpu", **options).model
        assert is_fused(model) == [fused] * 2
        assert (packed_part(model.lm_head) is not None) == packed
