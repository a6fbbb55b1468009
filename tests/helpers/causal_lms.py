"""A tiny, random model of every causal-LM type that transformers knows, built from its config class.

One table gives small values to the names that configs use for their sizes; a config takes the names that it has. Types
that need more than that are not constructible this way, and the tests record them as such.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

TYPES = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
WINDOW = 5

# Four layers of 64: four query heads and two KV heads of 16. Every size is a power of two, so that all fit together.
SIZES = {
    64: "hidden_size d_model n_embd intermediate_size ffn_dim decoder_ffn_dim encoder_ffn_dim n_inner dim_ff dff d_inner "
        "ffn_hidden_size moe_intermediate_size expert_ffn_hidden_size shared_expert_intermediate_size embedding_size "
        "shared_intermediate_size attention_hidden_size word_embed_proj_dim moe_shared_expert_intermediate_size "
        "dense_intermediate_size intermediate_size_mlp lru_width emb_dim input_embedding_size output_embedding_size "
        "mamba_d_ssm router_hidden_size embedding_dim",
    4: "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_decoder_layers "
       "num_encoder_layers num_attention_heads n_head n_heads num_heads decoder_attention_heads encoder_attention_heads "
       "num_encoder_attention_heads num_decoder_attention_heads swa_num_attention_heads num_experts n_routed_experts "
       "num_local_experts moe_num_experts linear_num_heads linear_num_value_heads index_n_heads "
       "attention_heads",
    2: "index_topk index_topk_blocks index_block_size index_local_blocks max_window_layers num_key_value_heads num_kv_heads swa_num_key_value_heads num_experts_per_tok num_experts_per_token moe_k "
       "moe_topk linear_num_key_heads sliding_window_pattern _sliding_window_pattern global_attn_every_n_layers",
    1: "n_group topk_group",
    16: "head_dim swa_head_dim kv_channels attention_head_size qk_nope_head_dim v_head_dim "
        "kv_lora_rank q_lora_rank linear_key_head_dim linear_value_head_dim linear_head_dim index_head_dim "
        "dim_head mamba_head_dim",
    8: "qk_rope_head_dim rotary_dim",
    24: "qk_head_dim",
    256: "vocab_size max_position_embeddings n_positions n_ctx max_seq_len model_max_length max_target_positions "
         "vocab_size_per_layer_input",
    WINDOW: "sliding_window sliding_window_size window_size attention_window_size",
}  # fmt: skip
TINY: dict[str, Any] = {name: size for size, names in SIZES.items() for name in names.split()}
TINY |= {"initializer_range": 0.2, "init_std": 0.2, "use_sliding_window": True, "is_decoder": True}
TINY |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
# What single types need beside that, mostly because their config checks one size against another.
LATENT = {"head_dim": 8, "num_key_value_heads": 4}
ALSO: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        ("axk1 axk2 bailing_hybrid deepseek_v2 deepseek_v3 deepseek_v32 dots3_note dots3_note_text glm4_moe_lite "
         "glm_moe_dsa longcat_flash minicpm3 sarvam_mla youtu").split(), LATENT),
    "cohere_compass_text": {"rope_parameters": None},
    **dict.fromkeys(("lfm2", "lfm2_moe"), {"layer_types": ["conv", "full_attention"] * 2}),
    **dict.fromkeys(("laguna", "mellum"), {"layer_types": ["sliding_attention", "full_attention"] * 2}),
    **dict.fromkeys(("jamba", "bamba", "granitemoehybrid"), {}),
    "dots1": {"n_shared_experts": 1},
    "falcon_h1": {"mamba_n_heads": 4, "mamba_d_head": 16},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "mamba2": {"num_heads": 8},
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip


def tiny_config(model_type: str) -> PreTrainedConfig:
    """The type's config with small sizes. Raises whatever the config class raises if they do not fit."""
    default = AutoConfig.for_model(model_type)
    return AutoConfig.for_model(model_type, **_small(default) | ALSO.get(model_type, {}))


def tiny_model(model_type: str) -> PreTrainedModel:
    """A random model of the type, float32, in evaluation mode."""
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(tiny_config(model_type)).eval()


def _small(config: PreTrainedConfig) -> dict[str, Any]:
    """The arguments that make a config small, its parts included."""
    arguments: dict[str, Any] = {}
    for name, value in vars(config).items():
        if isinstance(value, PreTrainedConfig):
            arguments[name] = _small(value)
        elif name in TINY:
            arguments[name] = TINY[name]
    return arguments
