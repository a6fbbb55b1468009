"""Other architectures: each decodes through block tables exactly as it does by itself, or is refused."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import transformers as hf

from paged_ref import LLM, SamplingParams
from paged_ref.attention import Batch
from paged_ref.model import hf_model, onednn
from paged_ref.model.batch import StepBatch
from paged_ref.model.cpu.fused_layers import fuse
from paged_ref.model.hf_model import PagedModel, UnsupportedModel, choose_dtype
from tests.helpers.onednn import needs_onednn
from tests.helpers.tiny import Tiny

SMALL = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}

DECODERS = {
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL)),
    "llama with scaled rotary embedding": lambda: hf.LlamaForCausalLM(
        hf.LlamaConfig(**SMALL, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0})
    ),
    "qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**SMALL)),
    "qwen3, own head size": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**SMALL, head_dim=24)),
    "mistral, window 7": lambda: hf.MistralForCausalLM(hf.MistralConfig(**SMALL, sliding_window=7)),
    "gemma2, softcap and a window in every other layer": lambda: hf.Gemma2ForCausalLM(
        hf.Gemma2Config(**SMALL, head_dim=8, sliding_window=7, attn_logit_softcapping=5.0)
    ),
    "gpt2": lambda: hf.GPT2LMHeadModel(
        hf.GPT2Config(
            vocab_size=97, n_embd=48, n_layer=2, n_head=6, n_positions=128, initializer_range=0.3,
            bos_token_id=None, eos_token_id=None,
        )
    ),
}  # fmt: skip


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(97, (n,), generator=generator).tolist() for n in (1, 4, 5, 13, 30)]


@pytest.mark.parametrize("name", DECODERS)
def test_decoders_equal_themselves(name: str) -> None:
    torch.manual_seed(0)
    model = DECODERS[name]().eval()
    config = hf.GenerationConfig(max_new_tokens=8, do_sample=False)
    with torch.inference_mode():
        dense = [
            model.generate(torch.tensor([p]), attention_mask=torch.ones(1, len(p)), generation_config=config)[
                0, len(p) :
            ]
            for p in prompts()
        ]
    llm = LLM(model, num_blocks=40, block_size=4, backend="torch")
    outputs = llm.generate(prompts(), SamplingParams(max_tokens=8))
    assert [o.outputs[0].token_ids for o in outputs] == [d.tolist() for d in dense]


def test_restore_gives_the_model_its_own_attention_back() -> None:
    model = DECODERS["llama"]()
    before = model.config._attn_implementation
    first = PagedModel(model)
    second = PagedModel(model)
    assert model.config._attn_implementation == "paged_ref"
    assert second.restore().config._attn_implementation == before
    assert first.restore().config._attn_implementation == before


def refused(model: hf.PreTrainedModel) -> str:
    before = model.config._attn_implementation
    with pytest.raises(UnsupportedModel) as caught:
        PagedModel(model)
    assert model.config._attn_implementation == before
    return str(caught.value)


def test_encoder_decoder_is_refused() -> None:
    config = hf.T5Config(vocab_size=97, d_model=24, d_kv=8, d_ff=32, num_layers=1, num_heads=3)
    assert "encoder-decoder" in refused(hf.T5ForConditionalGeneration(config))


def test_model_without_attention_is_refused() -> None:
    config = hf.MambaConfig(vocab_size=97, hidden_size=24, state_size=4, num_hidden_layers=2)
    assert "MambaForCausalLM" in refused(hf.MambaForCausalLM(config))


def test_attention_sinks_are_refused() -> None:
    config = hf.GptOssConfig(**{**SMALL, "head_dim": 8}, num_local_experts=2, num_experts_per_tok=1)
    assert "sinks" in refused(hf.GptOssForCausalLM(config))


def test_masks_that_the_backends_do_not_compute_are_refused() -> None:
    chunked = hf.Llama4TextConfig(**{**SMALL, "head_dim": 8}, attention_chunk_size=8, num_local_experts=2)
    assert "within chunks" in refused(hf.Llama4ForCausalLM(chunked))
    both_ways = hf.BertConfig(
        vocab_size=97, hidden_size=48, num_hidden_layers=2, num_attention_heads=6, intermediate_size=64
    )
    assert "later ones" in refused(hf.BertLMHeadModel(both_ways))


def test_a_rotary_embedding_that_depends_on_the_batch_is_refused() -> None:
    rope = {
        "rope_type": "dynamic",
        "factor": 2.0,
        "rope_theta": 10000.0,
        "original_max_position_embeddings": 64,
    }
    assert "one request would change the results of another" in refused(
        hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL, rope_parameters=rope))
    )


def test_an_engine_on_a_restored_model_says_so() -> None:
    model = PagedModel(DECODERS["llama"]())
    llm = LLM(model, num_blocks=8, block_size=4)
    model.restore()
    with pytest.raises(RuntimeError, match="make a new PagedModel"):
        llm.generate([[1, 2, 3]], SamplingParams(max_tokens=2))
    assert llm.pool.num_used == 0


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="device = 'bogus' cannot be used here"):
        PagedModel.load("smollm2-135m", device="bogus")


def test_unknown_dtype_is_named() -> None:
    with pytest.raises(ValueError, match="dtype = 'int8': one of auto"):
        choose_dtype("int8", "cpu")
    assert choose_dtype("float16", "cpu") is torch.float16


@pytest.mark.parametrize("slots", [[3, 4, 5, 16], [3, 4, -1, 5], [3, 4, 10**8, 5], [3, 4], [1, 2, 3, 4, 5]])
@pytest.mark.parametrize("fused", [False, pytest.param(True, marks=needs_onednn)])
def test_a_wrong_slot_is_refused_before_anything_is_written(
    tiny: Tiny, slots: list[int], fused: bool
) -> None:
    paged = PagedModel(copy.deepcopy(tiny.dense))
    assert fuse(paged.model) == 2 if fused else True
    cache = paged.new_cache(4, 4)
    cache.keys.fill_(7), cache.values.fill_(7)
    batch = StepBatch(
        token_ids=np.zeros(4, np.int32), positions=np.arange(4, dtype=np.int32),
        slot_mapping=np.array(slots, np.int32), sample_rows=np.array([3], np.int32),
        attention=Batch.of(np.array([[0]]), np.array([4]), np.array([0, 4])),
    )  # fmt: skip
    with pytest.raises(IndexError, match="slot_mapping"):
        paged.forward(batch, cache)
    assert (cache.keys == 7).all() and (cache.values == 7).all()


def test_auto_dtype_needs_no_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds of torch without oneDNN lack the operator that tells of bfloat16 instructions."""
    monkeypatch.setattr(onednn, "has_onednn", lambda: False)
    assert hf_model.choose_dtype("auto", "cpu") is torch.float32
    monkeypatch.undo()
    monkeypatch.setattr(torch.ops, "mkldnn", object())
    assert hf_model.choose_dtype("auto", "cpu") is torch.float32
