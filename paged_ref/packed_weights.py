"""A model's matrix products on a CPU, with the weights laid out once as the processor reads them (chapter 7).

A decode step is a few rows of activations times every weight of the model. A weight lies in memory row by row; oneDNN,
torch's library for such products, wants it in small tiles, and with a plain weight it makes those tiles anew in every
call. For sixteen rows that takes as long as the product. So the tiles are made once:

    plain    w00 w01 w02 w03 ...          packed    [w00 w10 w20 ...] [w01 w11 w21 ...] ...
             w10 w11 w12 w13 ...                    one tile after the other, in the order of use

The numbers are the same ones and are summed in float32 as before, in another order. `unpack` gives back the plain
weights, bit by bit. (torch.compile does the same with frozen weights; this needs no compiler.)
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn


def pack(model: nn.Module) -> int:
    """Pack the weights of a model's linear layers, in place; returns of how many layers.

    None is packed on a GPU, in float16, or where torch was built without oneDNN: then everything stays as it is. A
    weight that another module uses too (an output layer tied to the embedding) stays beside its packed copy.
    """
    used = [id(p) for module in model.modules() for p in module.parameters(recurse=False)]
    packed = 0
    for linear in model.modules():
        if type(linear) is nn.Linear and _can_pack(linear.weight):
            weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
            linear.forward = partial(_product, weight, linear.bias)  # type: ignore[method-assign]
            if used.count(id(linear.weight)) == 1:
                linear.weight = nn.Parameter(weight, requires_grad=False)
            packed += 1
    return packed


def unpack(model: nn.Module) -> None:
    """Give a model's linear layers their plain weights back. Harmless for layers that were not packed."""
    for linear in model.modules():
        if type(linear) is nn.Linear:
            vars(linear).pop("forward", None)
            if linear.weight.is_mkldnn:
                linear.weight = nn.Parameter(linear.weight.to_dense(), requires_grad=False)


def _can_pack(weight: torch.Tensor) -> bool:
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32 and not weight.is_mkldnn


def _product(weight: torch.Tensor, bias: torch.Tensor | None, rows: torch.Tensor) -> torch.Tensor:
    """rows [..., in_features] times a packed weight: [..., out_features]."""
    if not rows.numel():
        return rows.new_empty((*rows.shape[:-1], weight.shape[0]))
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return product
