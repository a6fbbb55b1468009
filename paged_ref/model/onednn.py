"""oneDNN, the CPU library that torch may be built with: packed weights and bfloat16 matmuls need it."""

from __future__ import annotations

import torch


def has_onednn() -> bool:
    """Return True if torch was built with oneDNN; builds for macOS often are not."""
    return torch.backends.mkldnn.is_available()


def multiplies_bfloat16() -> bool:
    """Return True if oneDNN is there and uses this processor's bfloat16 instructions."""
    if not has_onednn() or not hasattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported"):
        return False
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
