"""Fused layers: the same tokens from every backend, plain layers back bit by bit, and none fused that is unknown."""

from __future__ import annotations

import copy
import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from paged_ref import LLM, SamplingParams
from paged_ref.attention import BACKENDS, Batch
from paged_ref.model.batch import StepBatch
from paged_ref.model.cpu import fused_layers
from paged_ref.model.cpu.fused_layers import FusedLayer, fuse, unfuse
from paged_ref.model.cpu.packed_weights import pack, pack_together, packed_part, unpack
from paged_ref.model.hf_model import PagedModel, UnsupportedModel
from tests.helpers.onednn import PACKED_DTYPES, needs_bfloat16, needs_onednn
from tests.helpers.tiny import Tiny

pytestmark = needs_onednn
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
    model.lm_head.weight.requires_grad_(False)
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


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"attention_bias": True, "mlp_bias": True},
        {"head_dim": 6, "rms_norm_eps": 0.5},
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}},
    ],
)
@pytest.mark.parametrize("dtype", PACKED_DTYPES)
def test_logits_and_cache_are_those_of_the_layers(options: dict[str, Any], dtype: torch.dtype) -> None:
    results = []
    for make in (lambda model: model, lambda model: fuse(model) and model):
        model = small(**options).to(dtype)
        model.model.layers[0].self_attn.scaling = 0.7
        paged = PagedModel(make(model))
        cache = paged.new_cache(3, 4)
        logits = paged.forward(mixed_step(), cache)
        slots = torch.from_numpy(mixed_step().slot_mapping.astype(np.int64))
        results.append([logits] + [half.flatten(1, 2)[:, slots] for half in (cache.keys, cache.values)])
    tolerance = 2e-1 if dtype == torch.bfloat16 else 1e-4
    for plain, fused in zip(*results, strict=True):
        torch.testing.assert_close(fused, plain, rtol=tolerance, atol=tolerance * float(plain.float().std()))


@needs_bfloat16
def test_in_bfloat16_fused_layers_are_not_less_exact() -> None:
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
    trained = {name: p.requires_grad for name, p in model.named_parameters()}
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
    assert {name: p.requires_grad for name, p in model.named_parameters()} == trained
    assert not any("forward" in vars(module) for module in model.modules())
    unfuse(model)


def test_what_comes_back_in_inference_mode_can_be_trained() -> None:
    model = small()
    with torch.inference_mode():
        fuse(model), unpack(model)
    assert is_fused(model) == [False, False], "unpacking leaves no layer that holds old weights"
    assert not any(parameter.is_inference() for parameter in model.parameters())


def test_a_weight_of_two_layers_stays_one() -> None:
    model = small()
    model.model.layers[1].mlp.up_proj.weight = model.model.layers[0].mlp.up_proj.weight
    assert fuse(model) == 0
    pack(model), unpack(model)
    assert model.model.layers[1].mlp.up_proj.weight is model.model.layers[0].mlp.up_proj.weight


def test_a_failure_leaves_the_layer_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model, done = small(), []

    def six_times(linears: list[nn.Linear]) -> Any:
        if len(done) == 6:
            raise RuntimeError("no memory left")
        done.append(linears)
        return pack_together(linears)

    monkeypatch.setattr(fused_layers, "pack_together", six_times)
    with pytest.raises(RuntimeError, match="no memory left"):
        fuse(model)
    assert is_fused(model) == [True, False]
    assert not any("forward" in vars(module) for module in model.model.layers[1].modules())
    unpack(model)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), small().parameters(), strict=True))


def test_gradients_are_refused_not_forgotten() -> None:
    model = small()
    fuse(model)
    with pytest.raises(RuntimeError, match="packed weights give no gradients"):
        model(torch.arange(5)[None])


def test_a_rotary_embedding_of_a_part_of_the_head_is_refused() -> None:
    rope = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    for make in (lambda model: model, lambda model: fuse(model) and model):
        with pytest.raises(UnsupportedModel, match="cannot be replaced"):
            PagedModel(make(small(rope_parameters=rope)))


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


def exchange_a_product(layer: Any) -> None:
    old = layer.self_attn.k_proj
    layer.self_attn.k_proj = Louder(old.in_features, old.out_features, bias=False)


def exchange_the_activation(layer: Any) -> None:
    layer.mlp.act_fn = nn.GELU()


def watch(layer: Any) -> None:
    layer.mlp.down_proj.register_forward_hook(lambda *_: None)


def watch_gradients(layer: Any) -> None:
    layer.self_attn.o_proj.register_full_backward_hook(lambda *_: None)


def wrap_a_product(layer: Any) -> None:
    layer.mlp.up_proj.forward = lambda rows: 2 * nn.Linear.forward(layer.mlp.up_proj, rows)


def wrap_the_mlp(layer: Any) -> None:
    layer.mlp.forward = lambda rows: 2 * type(layer.mlp).forward(layer.mlp, rows)


def give_one_product_a_bias(layer: Any) -> None:
    layer.self_attn.q_proj.bias = nn.Parameter(torch.ones(48))


def mix_the_dtypes(layer: Any) -> None:
    layer.input_layernorm.to(torch.bfloat16)


def leave_no_norm(layer: Any) -> None:
    layer.post_attention_layernorm.to("meta")


CHANGES = [
    exchange_a_product, exchange_the_activation, watch, watch_gradients, wrap_a_product, wrap_the_mlp,
    give_one_product_a_bias, mix_the_dtypes, leave_no_norm,
]  # fmt: skip


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_changed_layer_stays_as_it_is(change: Callable[[Any], None], packed: bool) -> None:
    model = small()
    change(model.model.layers[1])
    if packed:
        pack(model)
    before = [vars(module).get("forward") for module in model.model.layers[1].modules()]
    assert fuse(model) == 1 and is_fused(model) == [True, False]
    assert before == [vars(module).get("forward") for module in model.model.layers[1].modules()]


def test_what_somebody_put_in_place_of_a_product_is_not_packed_over() -> None:
    model = small()
    wrap_a_product(model.model.layers[1])
    put = vars(model.model.layers[1].mlp.up_proj)["forward"]
    pack(model), unpack(model)
    assert vars(model.model.layers[1].mlp.up_proj)["forward"] is put


def test_what_cannot_be_fused_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fuse(small(hidden_act="gelu")) == 0
    assert fuse(small().to(torch.float16)) == 0
    assert fuse(small().to(torch.float64)) == 0
    config = Qwen2Config(vocab_size=64, hidden_size=48, intermediate_size=80, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2)  # fmt: skip
    assert fuse(Qwen2ForCausalLM(config)) == 0
    monkeypatch.setitem(sys.modules, "numba", None)  # as if it were not installed
    assert fuse(small()) == 0


def test_a_fused_model_is_freed_at_once() -> None:
    model = small()
    fuse(model)
    alive = weakref.ref(model.model.layers[0])
    gc.disable()
    try:
        del model
        assert alive() is None
    finally:
        gc.enable()


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
