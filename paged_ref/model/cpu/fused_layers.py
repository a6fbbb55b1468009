"""A Llama decoder layer with fewer calls, for a CPU (chapter 7).

With the weights packed, a good part of a decode step is still neither matmul nor attention: in each layer, some
thirty small operations take longer to call than to compute. Here one layer is nine calls:

    transformers' layer                                               here
    norm; Q, K and V matmuls; rotary embedding; write; attend         norm, one matmul, rotate and write, attend
    output matmul; add                                                one matmul that adds
    norm; gate and up matmuls; silu; multiply                         norm, one matmul, gate
    down matmul; add                                                  one matmul that adds

The weights and the mathematics are the same. In bfloat16, sums are rounded less often. Only Llama layers are fused;
other kinds of layer stay as transformers wrote them, and so do the embedding, the last norm and the output layer.
(Engines for GPUs fuse the same operations: one QKV matmul, one gate-and-up matmul, add and norm in one kernel.)
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.models.llama import modeling_llama as llama

from .packed_weights import Tuned, can_pack, pack_together, packed_part, unpack, weight_uses

if TYPE_CHECKING:
    from ...blocks.kv_cache import LayerCache
    from ..paged_step import PagedStep


class FusedLayer(Tuned):
    """A replacement for a Llama decoder layer's `forward`; creating it packs the layer's weights.

    The batch is flat: [1, num_tokens, hidden_size]. A call without a `paged_step` goes to the layer's own `forward`,
    whose linear layers still work, each computing its part of a packed matmul.
    """

    def __init__(self, layer: Any) -> None:
        attn, mlp = layer.self_attn, layer.mlp
        self.layer = weakref.ref(layer)  # weak, because the layer holds this object
        self.index, self.scale = attn.layer_idx, attn.scaling
        self.norms = [
            (one.weight.detach().float().numpy(), one.variance_epsilon)
            for one in (layer.input_layernorm, layer.post_attention_layernorm)
        ]
        self.qkv, self.output, self.gate_and_up, self.down = map(pack_together, _products(attn, mlp))

    def __call__(
        self,
        hidden_states: torch.Tensor,
        *args: Any,
        position_embeddings: Any = None,
        paged_step: PagedStep | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Run the layer on a flat batch."""
        if paged_step is None:
            layer: Any = self.layer()
            own: torch.Tensor = type(layer).forward(
                layer, hidden_states, *args, position_embeddings=position_embeddings, **kwargs
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

        cos, sin = position_embeddings

        def write(cache: LayerCache, slots: torch.Tensor) -> torch.Tensor:
            keys, values, *scales = cache
            return rotate_and_write(qkv, cos[0], sin[0], keys, values, slots, *scales)

        return step.write_then_attend(self.index, write, self.scale).flatten(1)


def fuse(model: nn.Module) -> int:
    """Fuse a model's Llama layers in place and return how many. `unfuse`, or `packed_weights.unpack`, undoes it.

    A fused layer reads its weights once. It ignores later changes inside it (adapters, hooks, new weights): unfuse the
    model before you make them. A layer is not fused if its weights cannot be packed, numba is missing, or its parts
    were replaced, have hooks, or share weights with other modules.
    """
    fused, used = 0, weight_uses(model)
    for layer in list(model.modules()):
        if type(layer) is llama.LlamaDecoderLayer and _can_fuse(layer, used):
            unpack(layer)
            try:
                layer.forward = FusedLayer(layer)
            except Exception:
                unpack(layer)
                raise
            fused += 1
    return fused


def unfuse(model: nn.Module) -> None:
    """Restore the own `forward` and the plain weights of fused layers, bit for bit."""
    for layer in model.modules():
        if isinstance(vars(layer).get("forward"), FusedLayer):
            unpack(layer)


def _products(attn: Any, mlp: Any) -> list[list[nn.Linear]]:
    """Return a layer's linear layers, grouped by the input they read."""
    return [
        [attn.q_proj, attn.k_proj, attn.v_proj],
        [attn.o_proj],
        [mlp.gate_proj, mlp.up_proj],
        [mlp.down_proj],
    ]


def _can_fuse(layer: Any, used: Counter[int]) -> bool:
    """Return True if numba is installed and every part of the layer is what `FusedLayer` computes, unmodified."""
    attn, mlp = layer.self_attn, layer.mlp
    if type(attn) is not llama.LlamaAttention or type(mlp) is not llama.LlamaMLP:
        return False
    norms = [layer.input_layernorm, layer.post_attention_layernorm]
    products = _products(attn, mlp)
    linears = [linear for product in products for linear in product]
    parameters = list(layer.parameters())
    return (
        all(type(norm) is llama.LlamaRMSNorm for norm in norms)
        and type(mlp.act_fn) is type(ACT2FN["silu"])
        and all(can_pack(linear) or packed_part(linear) is not None for linear in linears)
        and all(len({linear.bias is None for linear in product}) == 1 for product in products)
        and all(used[id(linear.weight)] == 1 for linear in linears)
        and len({(parameter.dtype, parameter.device) for parameter in parameters}) == 1
        and not any(map(_is_changed, layer.modules()))
        and _has_numba()
    )


def _is_changed(module: nn.Module) -> bool:
    """Return True if a module's `forward` has hooks or was replaced, other than by packing."""
    around = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    return any(around) or ("forward" in vars(module) and packed_part(module) is None)


def _has_numba() -> bool:
    try:
        import numba  # noqa: F401
    except ImportError:  # not installed, or not compatible with this NumPy
        return False
    return True
