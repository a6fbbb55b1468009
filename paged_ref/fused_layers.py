"""A Llama decoder layer with fewer calls, for a CPU (chapter 7).

With the products packed, a good part of a decode step is still neither product nor attention: in each layer, some
thirty small operations that take longer to call than to compute. Here one layer is eight calls:

    transformers' layer                                               here
    norm; Q, K and V product; rotary embedding; write; attend         norm, one product, rotate and write, attend
    output product; add                                               one product that adds
    norm; gate and up product; silu; multiply                         norm, one product, gate
    down product; add                                                 one product that adds

The weights, and what is computed from them, are the same. In bfloat16 sums are rounded less often. Layers of another
kind than Llama's stay as transformers wrote them, and so does what is outside the layers: embedding, last norm, output.
(Engines for GPUs fuse the same things: one QKV product, one gate-and-up product, add and norm in one kernel.)
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers.models.llama import modeling_llama as llama

from .packed_weights import can_pack, pack_together, unpack

if TYPE_CHECKING:
    from .hf_model import PagedStep


class FusedLayer:
    """What takes the place of a Llama decoder layer's `forward`; packs the layer's weights when made.

    The batch is flat: [1, num_tokens, hidden_size]. A call that brings no step of a paged cache goes to the layer's own
    `forward`, whose linear layers still find their weights, each as a part of a packed product.
    """

    def __init__(self, layer: Any) -> None:
        attn, mlp = layer.self_attn, layer.mlp
        self.layer, self.index = layer, attn.layer_idx
        self.head_dim, self.scale = attn.head_dim, attn.scaling
        self.qkv = pack_together([attn.q_proj, attn.k_proj, attn.v_proj])
        self.output = pack_together([attn.o_proj])
        self.gate_and_up = pack_together([mlp.gate_proj, mlp.up_proj])
        self.down = pack_together([mlp.down_proj])
        self.norms = [
            (one.weight.detach().float().numpy(), one.variance_epsilon)
            for one in (layer.input_layernorm, layer.post_attention_layernorm)
        ]

    def __call__(
        self,
        hidden_states: torch.Tensor,
        *args: Any,
        position_embeddings: Any = None,
        paged_step: PagedStep | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """One layer on a flat batch."""
        if paged_step is None:
            own: torch.Tensor = type(self.layer).forward(
                self.layer, hidden_states, *args, position_embeddings=position_embeddings, **kwargs
            )
            return own
        from .row_loops import gate, norm  # numba takes a second to import

        hidden = hidden_states[0]
        qkv = self.qkv(norm(hidden, *self.norms[0]))
        hidden = self.output(self.attend(qkv, position_embeddings, paged_step), add=hidden)
        gated = gate(self.gate_and_up(norm(hidden, *self.norms[1])))
        return self.down(gated, add=hidden).unsqueeze(0)

    def attend(self, qkv: torch.Tensor, position_embeddings: Any, step: PagedStep) -> torch.Tensor:
        """Write this step's keys and values, then attend through the table: [num_tokens, num_heads * head_dim]."""
        from .row_loops import rotate_and_write

        step.layers.append(self.index)
        keys, values = step.cache.keys[self.index], step.cache.values[self.index]
        cos, sin = position_embeddings
        query = rotate_and_write(qkv, cos[0], sin[0], keys, values, step.slots)
        attended: torch.Tensor = step.plan.run(query, keys, values, self.scale, None, None)
        return attended.flatten(1)


def fuse(model: nn.Module) -> int:
    """Fuse a model's Llama layers, in place; returns how many.

    None is fused where weights cannot be packed (`packed_weights`), without numba, or if a layer's parts were exchanged
    or have hooks, which nothing would call: then it stays as it is.
    """
    fused = 0
    for layer in list(model.modules()):
        if type(layer) is llama.LlamaDecoderLayer and "forward" not in vars(layer) and _is_known(layer):
            unpack(layer)
            if all(map(can_pack, _linears(layer))):
                layer.forward = FusedLayer(layer)
                fused += 1
    return fused


def unfuse(model: nn.Module) -> None:
    """Give fused layers their own `forward` and their plain weights back, bit by bit."""
    for layer in model.modules():
        if isinstance(vars(layer).get("forward"), FusedLayer):
            del layer.forward
            unpack(layer)


def _is_known(layer: Any) -> bool:
    """Whether every part is what `FusedLayer` computes, and there is numba to compute it."""
    attn, mlp = layer.self_attn, layer.mlp
    kinds = {
        llama.LlamaAttention: [attn],
        llama.LlamaMLP: [mlp],
        llama.LlamaRMSNorm: [layer.input_layernorm, layer.post_attention_layernorm],
        nn.Linear: _linears(layer),
    }
    return (
        find_spec("numba") is not None
        and attn.config.hidden_act == "silu"
        and all(type(part) is kind for kind, parts in kinds.items() for part in parts)
        and len({parameter.dtype for parameter in layer.parameters()}) == 1
        and not any(part._forward_hooks or part._forward_pre_hooks for part in layer.modules())
    )


def _linears(layer: Any) -> list[nn.Module]:
    attn, mlp = layer.self_attn, layer.mlp
    return [attn.q_proj, attn.k_proj, attn.v_proj, attn.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj]
