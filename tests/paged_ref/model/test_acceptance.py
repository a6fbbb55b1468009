"""A model runs on block tables as it does by itself, or it is refused with the true reason. Nothing in between."""

from __future__ import annotations

import copy
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from paged_ref.model import acceptance, cpu
from paged_ref.model.hf_model import PagedModel, UnsupportedModel
from tests.helpers.causal_lms import KINDS, TYPES, own_tokens, paged_tokens, prompts, tiny_model, verdict
from tests.helpers.onednn import needs_onednn

TABLE = Path(__file__).with_name("causal_lms.toml")

# Each type, and the windows of its four layers.
ACCEPTED = {
    "llama": [None] * 4,
    "qwen2": [None, None, 5, 5],
    "qwen3": [None, None, 5, 5],
    "mistral": [5] * 4,
    "gemma2": [5, None, 5, None],
    "gemma3_text": [5, 5, 5, 5],
    "gemma3": [5, 5, 5, 5],  # the text part of a multimodal model
    "phi3": [5] * 4,
    "gpt2": [None] * 4,
    "opt": [None] * 4,
    "exaone4": [
        5,
        None,
        5,
        None,
    ],  # the full layers pass sliding_window=None, and have the attribute all the same
    "phimoe": [5] * 4,  # the window is in the mask alone
    "whisper": [None] * 4,  # knows no logits_to_keep
}

REFUSED = {
    "bart": "it takes no position_ids: it counts positions along the row",
    "xlm-roberta": "it does not number positions from 0",
    "falcon_h1": "it keeps something from token to token beside keys and values",
    "zaya": "it keeps something from token to token beside keys and values",
    "jamba": "in 2 of its 4 layers only: the others keep another state",
    "dory": "attends 8 times per token in 4 layers",
    "doge": "builds or changes its attention mask itself",
    "inkling_text": "passes position_bias to its attention function",
    "gpt_oss": "attention sinks",
    "gemma4_text": "has layers that differ in head_dim; the cache has one size for all layers",
    "deepseek_v3": "has keys of 4 heads of 24, but the cache has 4 heads of 8",
    "minimax_m3_vl_text": "an indexer select the keys of long sequences",
    "stablelm": "does not pass keyword arguments on",
    **dict.fromkeys(
        ("bloom", "falcon", "mpt", "xglm", "gpt_neo"),
        "computes attention in its own code, not through transformers' attention interface",
    ),
}


@pytest.mark.parametrize("model_type", ACCEPTED)
def test_accepted_models_generate_their_own_tokens(model_type: str) -> None:
    model = tiny_model(model_type)
    expected = own_tokens(model)
    paged = PagedModel(model)
    assert [paged.windows[layer] for layer in range(4)] == ACCEPTED[model_type]
    assert paged_tokens(paged) == expected
    assert own_tokens(paged.restore()) == expected


@pytest.mark.parametrize("model_type", REFUSED)
def test_refused_models_are_refused_for_the_true_reason_and_left_as_they_were(model_type: str) -> None:
    model = tiny_model(model_type).train()
    model.get_input_embeddings().eval()
    before = state(model)
    with pytest.raises(UnsupportedModel) as error:
        PagedModel(model)
    assert str(error.value).startswith(type(model).__name__)
    assert REFUSED[model_type] in str(error.value)
    assert state(model) == before


def state(model: Any) -> Any:
    """Everything that acceptance must not change: attributes of all modules, hooks, training modes and weights."""
    return (
        model.config._attn_implementation,
        {name: sorted(vars(module)) for name, module in model.named_modules()},
        {name: (module.training, len(module._forward_pre_hooks)) for name, module in model.named_modules()},
        {name: id(weight) for name, weight in model.named_parameters()},
    )


@needs_onednn
def test_a_refused_model_gets_its_plain_weights_back() -> None:
    model = tiny_model("falcon_h1")
    before, weights = state(model)[:3], copy.deepcopy(model.state_dict())
    cpu.optimize(model)
    assert state(model)[:3] != before
    with pytest.raises(UnsupportedModel, match="beside keys and values"):
        PagedModel(model)
    assert state(model)[:3] == before
    assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())


@pytest.mark.parametrize("window", [1, 6, 4096, 100_000])
def test_a_window_of_any_length_is_read_exactly(window: int) -> None:
    model = tiny_model("mistral", sliding_window=window, max_position_embeddings=2**18)
    assert PagedModel(model).windows == dict.fromkeys(range(4), window)


def test_generate_while_an_engine_holds_the_model_says_what_to_do() -> None:
    model = tiny_model("llama")
    paged = PagedModel(model)
    ids = torch.tensor([prompts()[0]])
    for run in (model, model.generate):
        with pytest.raises(RuntimeError, match=r"call restore\(\) first"):
            run(ids)
    assert paged.restore().generate(ids, max_new_tokens=2, pad_token_id=0).shape == (1, 9)


# ---- one wrong layer out of four is enough, in every dtype


def rows_as_positions(attention: Any) -> None:
    """The layer takes a token's place in the row for its position."""
    own = attention.forward

    def forward(hidden_states: Any, position_embeddings: Any, **others: Any) -> Any:
        rows = torch.arange(hidden_states.shape[1])[None]
        return own(hidden_states, position_embeddings=attention.rotary(hidden_states, rows), **others)

    attention.forward = forward


def state_beside(attention: Any) -> None:
    """The layer mixes each token with the one before it in the row."""
    own = attention.forward

    def forward(hidden_states: Any, **others: Any) -> Any:
        before = torch.nn.functional.pad(hidden_states, (0, 0, 1, 0))[:, :-1]
        return own(hidden_states + before, **others)

    attention.forward = forward


def own_mask(attention: Any) -> None:
    """The layer hides a part of what the model's mask shows."""
    own = attention.forward

    def forward(hidden_states: Any, attention_mask: Any = None, **others: Any) -> Any:
        length = hidden_states.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool).tril().triu(-2)[None, None]
        return own(hidden_states, attention_mask=mask, **others)

    attention.forward = forward


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("spoil", [rows_as_positions, state_beside, own_mask])
def test_one_wrong_layer_is_found(spoil: Any, dtype: torch.dtype) -> None:
    model = tiny_model("llama").to(dtype)
    PagedModel(model).restore()
    attention = model.model.layers[2].self_attn
    attention.rotary = model.model.rotary_emb
    spoil(attention)
    with pytest.raises(UnsupportedModel):
        PagedModel(model)


def test_a_window_that_the_layers_ignore_is_found_by_the_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptance, "window_of", lambda mask, layer: None)
    with pytest.raises(UnsupportedModel, match="computes other logits"):
        PagedModel(tiny_model("mistral"))


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "gemma2", "qwen3_moe", "exaone4"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_is_no_reason_to_refuse(model_type: str, dtype: torch.dtype) -> None:
    PagedModel(tiny_model(model_type).to(dtype))


def test_logits_that_are_not_finite_are_refused() -> None:
    model = tiny_model("llama")
    torch.nn.init.constant_(model.lm_head.weight, torch.inf)
    with pytest.raises(UnsupportedModel, match="not finite even by itself"):
        PagedModel(model)


# ---- every type


def test_the_table_is_of_this_version_and_whole() -> None:
    table = tomllib.loads(TABLE.read_text())
    assert table["transformers"] == transformers.__version__
    assert sorted(name for kind in KINDS for name in table[kind]) == TYPES
    assert set(table) == {"transformers", *KINDS}, "no type is computed wrongly"


@pytest.mark.slow
@pytest.mark.parametrize("model_type", TYPES)
def test_every_causal_lm_is_what_the_table_says(model_type: str, full: bool) -> None:
    if not full:
        pytest.skip("196 model types take minutes: --full builds and compares them")
    kind, reason = verdict(model_type)
    table = tomllib.loads(TABLE.read_text())
    assert table.get(kind, {}).get(model_type) == reason
