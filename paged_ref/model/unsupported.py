"""The models that this engine refuses, as far as their config tells (chapter 7)."""

from __future__ import annotations

from typing import Any


class UnsupportedModel(ValueError):
    """The engine would not compute this model's logits; the message gives the reason."""


def reason_in_config(config: Any) -> str | None:
    """Return the feature that this engine would compute wrongly, as text after the model's name; None if none."""
    if config.is_encoder_decoder:
        return "is an encoder-decoder; only decoders have the cache this engine pages"
    varying = {"head_dim", "num_key_value_heads"} & set(getattr(config, "per_layer_attributes", None) or ())
    if varying:
        return f"has layers that differ in {' and '.join(sorted(varying))}; the cache has one size for all layers"
    if getattr(config, "attention_chunk_size", None):
        return "attends within chunks, a mask that the paged backends do not compute"
    if getattr(config, "use_bidirectional_attention", False):
        return "lets tokens see later ones, which a cache cannot serve"
    if any(getattr(config, name, None) for name in ("index_topk", "index_topk_blocks", "indexer_budget")):
        return "lets an indexer select the keys of long sequences, which the paged backends do not compute"
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = {str(part.get("rope_type")) for part in (rope, *rope.values()) if isinstance(part, dict)}
    for kind in sorted(kinds & {"dynamic", "longrope"}):
        return (
            f"rescales positions by the longest sequence of a batch ({kind!r} rotary embedding), "
            "so one request would change the results of another"
        )
    return None
