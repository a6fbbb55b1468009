"""The CPU fast path, a guest of the engine: `optimize(model)` and `restore(model)` are its only entrance (chapter 7).

The engine computes the same tokens without this folder, only slower. Inside:

    packed_weights   matmuls with the weights laid out once as the processor reads them (private torch operators)
    fused_layers     a Llama layer as nine calls instead of some forty
    row_loops        the compiled loops between the matmuls

Packing covers every plain linear layer, fusing only Llama's layers. What cannot be optimized (float16, a GPU, no
oneDNN, no numba) is left as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


def optimize(model: nn.Module, fuse_layers: bool = True) -> None:
    """Pack the model's weights for the CPU and, unless told otherwise, fuse its Llama layers, in place.

    Call `restore` before the model is changed, copied, converted or saved.
    """
    from .fused_layers import fuse
    from .packed_weights import pack

    if fuse_layers:
        fuse(model)
    pack(model)


def restore(model: nn.Module) -> None:
    """Undo `optimize`: the modules' own `forward` and their plain weights, bit by bit. Harmless if nothing was done."""
    from .packed_weights import unpack

    unpack(model)
