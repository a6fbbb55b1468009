"""A model's matmuls on a CPU, with the weights stored once in the order in which the processor reads them (chapter 7).

A decode step multiplies a few rows of activations with every weight of the model. A weight is stored row by row, but
oneDNN, torch's library for these matmuls, needs it in small tiles, and rearranges a plain weight into tiles in every
call. For sixteen rows that takes as long as the matmul itself. So the tiles are made once:

    plain    w00 w01 w02 w03 ...          packed    [w00 w10 w20 ...] [w01 w11 w21 ...] ...
             w10 w11 w12 w13 ...                    one tile after the other, in the order of use

The values are unchanged and are summed in float32 as before, in a different order. `unpack` restores the plain
weights, bit for bit. (torch.compile does the same with frozen weights; this needs no compiler.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import nn

from ..onednn import has_onednn, multiplies_bfloat16

# Operators of torch's own compiler, without a promise of stability: tests/…/test_private_operators.py watches each.
PRIVATE_OPERATORS = ("_reorder_linear_weight", "_linear_pointwise", "_is_mkldnn_bf16_supported")


class Tuned:
    """A replacement for a module's `forward`, in place until `unpack`."""


class PackedProduct:
    """The matmul of rows with the weights of one or more linear layers, concatenated.

    weight: [sum of out_features, in_features], float32 or bfloat16, in oneDNN's layout.
    bias: [sum of out_features], or None.
    """

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        weight = torch.cat([linear.weight.detach() for linear in linears])
        self.weight: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
        self.bias = torch.cat(biases) if biases else None

    def __call__(self, rows: torch.Tensor, add: torch.Tensor | None = None) -> torch.Tensor:
        """Multiply rows [..., in_features] by the weights, and add `add` [..., out_features] if given.

        Returns:
            [..., out_features].

        Raises:
            RuntimeError: a gradient is needed, which oneDNN's operator does not compute.
        """
        if rows.requires_grad and torch.is_grad_enabled():
            raise RuntimeError("packed weights give no gradients: unpack the model, or use torch.no_grad()")
        if not rows.numel():
            return rows.new_empty((*rows.shape[:-1], self.weight.shape[0]))
        operator = torch.ops.mkldnn._linear_pointwise
        product: torch.Tensor
        if add is None:
            product = operator(rows, self.weight, self.bias, "none", [], "")
        else:
            product = operator.binary(rows, add, self.weight, self.bias, "add")
        return product


class _Part(Tuned):
    """The `forward` of a packed linear layer: its columns of the packed matmul."""

    def __init__(self, product: PackedProduct, first: int, last: int, requires_grad: bool) -> None:
        self.product, self.first, self.last = product, first, last
        self.requires_grad = requires_grad

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        whole = self.product(rows)
        return whole if whole.shape[-1] == self.last - self.first else whole[..., self.first : self.last]

    def plain_weight(self) -> nn.Parameter:
        weight = self.product.weight.to_dense()[self.first : self.last].clone()
        return nn.Parameter(weight, requires_grad=self.requires_grad)


def pack(model: nn.Module) -> int:
    """Pack the weights of a model's linear layers in place, and return the number of packed layers.

    Nothing is packed on a GPU, in float16, or if torch was built without oneDNN. A weight that another module uses too
    (an output layer tied to the embedding) is kept in addition to its packed copy. Packed weights cannot be copied,
    converted or saved by torch, and have no gradients: call `unpack` first.
    """
    used = weight_uses(model)
    packed = 0
    for linear in model.modules():
        if can_pack(linear):
            pack_together([linear], keep=used[id(linear.weight)] > 1)  # type: ignore[list-item]
            packed += 1
    return packed


@torch.inference_mode(False)
def pack_together(linears: Sequence[nn.Linear], keep: bool = False) -> PackedProduct:
    """Pack linear layers that read the same input as one matmul. `can_pack` is true for each; all or none have a bias.

    keep: keep the plain weights, too.
    """
    product = PackedProduct(linears)
    shared, first = nn.Parameter(product.weight, requires_grad=False), 0
    for linear in linears:
        part = _Part(product, first, first + linear.out_features, linear.weight.requires_grad)
        linear.forward = part  # type: ignore[method-assign, assignment]
        first += linear.out_features
        if not keep:
            linear.weight = shared
    return product


@torch.inference_mode(False)
def unpack(model: nn.Module) -> None:
    """Restore the own `forward` and the plain weights of a model's modules. Harmless if nothing was packed."""
    for module in model.modules():
        part = packed_part(module)
        if isinstance(module, nn.Linear) and part is not None and module.weight.is_mkldnn:
            module.weight = part.plain_weight()
        if isinstance(vars(module).get("forward"), Tuned):
            del module.forward


def packed_part(module: nn.Module) -> _Part | None:
    """Return the part of a packed matmul that a module computes; None if the module is not packed."""
    part = vars(module).get("forward")
    return part if isinstance(part, _Part) else None


def weight_uses(model: nn.Module) -> Counter[int]:
    """Return the number of modules that hold each parameter, keyed by the parameter's id."""
    return Counter(id(p) for module in model.modules() for p in module.parameters(recurse=False))


def can_pack(module: nn.Module) -> bool:
    """Return True for an unmodified torch linear layer with a dtype and device that oneDNN can pack."""
    if type(module) is not nn.Linear or "forward" in vars(module) or module._forward_pre_hooks:
        return False
    weight = module.weight
    if weight.device.type != "cpu" or not has_onednn():
        return False
    if not all(hasattr(torch.ops.mkldnn, name) for name in PRIVATE_OPERATORS):
        return False
    if weight.dtype == torch.bfloat16:
        return multiplies_bfloat16()
    return weight.dtype == torch.float32
