"""A tiny random model of every causal-LM type that transformers has, and what the engine makes of it.

One table gives small values to the names that configs use for their sizes, and each config takes the names that it
has. A type that needs more than that is recorded as not constructible.

    python -m tests.helpers.causal_lms > tests/paged_ref/model/causal_lms.toml      after a new version of transformers
"""

from __future__ import annotations

import re
import sys
import warnings
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from paged_ref import LLM, SamplingParams
from paged_ref.model.hf_model import PagedModel, UnsupportedModel

TYPES = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
KINDS = ("equal", "refused", "not constructible")
MOST_PARAMETERS = 20_000_000

# Four layers of width 64, with four query heads and two KV heads of 16; windows of 5 tokens.
SIZES = {
    64: """hidden_size d_model n_embd intermediate_size ffn_dim decoder_ffn_dim encoder_ffn_dim n_inner dim_ff dff
        d_inner ffn_hidden_size moe_intermediate_size expert_ffn_hidden_size shared_expert_intermediate_size
        shared_intermediate_size dense_intermediate_size intermediate_size_mlp moe_shared_expert_intermediate_size
        attention_hidden_size word_embed_proj_dim embedding_size embedding_dim emb_dim input_embedding_size
        output_embedding_size lru_width mamba_d_ssm router_hidden_size""",
    4: """num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_decoder_layers
        num_encoder_layers num_attention_heads n_head n_heads num_heads attention_heads decoder_attention_heads
        encoder_attention_heads num_encoder_attention_heads num_decoder_attention_heads swa_num_attention_heads
        num_experts n_routed_experts num_local_experts moe_num_experts linear_num_heads linear_num_value_heads
        index_n_heads""",
    2: """num_key_value_heads num_kv_heads swa_num_key_value_heads num_experts_per_tok num_experts_per_token moe_k
        moe_topk linear_num_key_heads sliding_window_pattern _sliding_window_pattern global_attn_every_n_layers
        max_window_layers index_topk index_topk_blocks index_block_size index_local_blocks""",
    1: "n_group topk_group",
    16: """head_dim swa_head_dim kv_channels attention_head_size qk_nope_head_dim v_head_dim kv_lora_rank q_lora_rank
        linear_key_head_dim linear_value_head_dim linear_head_dim index_head_dim dim_head mamba_head_dim""",
    8: "qk_rope_head_dim rotary_dim",
    24: "qk_head_dim",
    256: """vocab_size vocab_size_per_layer_input max_position_embeddings n_positions n_ctx max_seq_len model_max_length
        max_target_positions""",
    5: "sliding_window sliding_window_size window_size attention_window_size",
}
TINY: dict[str, Any] = {name: size for size, names in SIZES.items() for name in names.split()}
TINY |= {"initializer_range": 0.2, "init_std": 0.2, "use_sliding_window": True, "is_decoder": True}
TINY |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}

# Some types need other values, because their config checks one against another, or to have every kind of their layers.
LATENT = """axk1 axk2 bailing_hybrid deepseek_v2 deepseek_v3 deepseek_v32 dots3_note dots3_note_text glm4_moe_lite
    glm_moe_dsa longcat_flash minicpm3 sarvam_mla youtu"""
SPECIAL: dict[str, dict[str, Any]] = {
    **{name: {"head_dim": 8, "num_key_value_heads": 4} for name in LATENT.split()},
    **{name: {"layer_types": ["conv", "full_attention"] * 2} for name in ("lfm2", "lfm2_moe")},
    **{name: {"layer_types": ["sliding_attention", "full_attention"] * 2} for name in ("laguna", "mellum")},
    "bamba": {"attn_layer_indices": [1, 3]},
    "dots1": {"n_shared_experts": 1},
    "falcon_h1": {"mamba_n_heads": 4, "mamba_d_head": 16},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "mamba2": {"num_heads": 8},
    "zaya": {"num_experts_per_tok": 1},
}


def tiny_model(model_type: str, **options: Any) -> PreTrainedModel:
    """Return a random float32 model of the type. Raises whatever transformers raises if the sizes do not fit."""
    arguments = _small(AutoConfig.for_model(model_type)) | SPECIAL.get(model_type, {}) | options
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **arguments))
    size = sum(parameter.numel() for parameter in empty.parameters())
    if size > MOST_PARAMETERS:
        raise ValueError("too many parameters with these sizes")
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **arguments)).eval()


def prompts() -> list[list[int]]:
    """A short prompt, and one that is many windows long. None holds a special token."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, 256, (length,), generator=generator).tolist() for length in (7, 90)]


@torch.inference_mode()
def own_tokens(model: PreTrainedModel, num_tokens: int = 6) -> list[list[int]]:
    """The model's own next tokens for each prompt, each from a whole forward pass: greedy, and without a cache."""
    rows = []
    for prompt in prompts():
        row = list(prompt)
        for _ in range(num_tokens):
            row.append(int(model(input_ids=torch.tensor([row]), use_cache=False).logits[0, -1].argmax()))
        rows.append(row[len(prompt) :])
    return rows


def paged_tokens(model: PreTrainedModel | PagedModel, num_tokens: int = 6) -> list[list[int]]:
    """The engine's tokens for the same prompts, in one batch whose prefills are chunked."""
    llm = LLM(model, num_blocks=64, block_size=4, backend="torch", max_num_seqs=4, max_num_batched_tokens=32)
    outputs = llm.generate(prompts(), SamplingParams(max_tokens=num_tokens, ignore_eos=True))
    return [output.outputs[0].token_ids for output in outputs]


def verdict(model_type: str) -> tuple[str, str]:
    """Return one of KINDS, or "wrong", and the reason."""
    try:
        model = tiny_model(model_type)
        expected = own_tokens(model)
    except Exception as error:  # noqa: BLE001  transformers raises what it likes
        return "not constructible", f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"
    try:
        paged = PagedModel(model)
    except UnsupportedModel as error:
        return "refused", re.sub(r" \(relative error \S+\)", "", str(error))
    return ("equal" if paged_tokens(paged) == expected else "wrong"), ""


def _small(config: PreTrainedConfig) -> dict[str, Any]:
    """Return the arguments that make a config small, its parts included."""
    arguments: dict[str, Any] = {}
    for name, value in vars(config).items():
        if isinstance(value, PreTrainedConfig):
            arguments[name] = _small(value)
        elif name in TINY:
            arguments[name] = TINY[name]
    return arguments


def _print_table() -> None:
    """Print the verdicts of all types as TOML."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    found = {}
    for model_type in TYPES:
        found[model_type] = verdict(model_type)
        print(model_type, *found[model_type], file=sys.stderr, flush=True)
    print("# Every causal-LM type, tiny and random, on block tables. Written by tests/helpers/causal_lms.py")
    print(f'transformers = "{transformers.__version__}"')
    for kind in (*KINDS, "wrong"):
        if kind in [kind for kind, _ in found.values()]:
            print(f'\n["{kind}"]' if " " in kind else f"\n[{kind}]")
            for model_type, (its_kind, reason) in found.items():
                if its_kind == kind:
                    quoted = reason.replace("\\", "\\\\").replace('"', '\\"')
                    print(f'{model_type} = "{quoted}"')


if __name__ == "__main__":
    _print_table()
