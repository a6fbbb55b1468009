"""What this torch and this processor can do: packed weights need oneDNN, and in bfloat16 its instructions."""

from __future__ import annotations

import pytest
import torch

from paged_ref.model.onednn import has_onednn, multiplies_bfloat16

HAS_ONEDNN = has_onednn()
needs_onednn = pytest.mark.skipif(not HAS_ONEDNN, reason="torch was built without oneDNN")
needs_bfloat16 = pytest.mark.skipif(
    not multiplies_bfloat16(),
    reason="this processor has no bfloat16 instructions that oneDNN uses",
)
PACKED_DTYPES = [torch.float32, pytest.param(torch.bfloat16, marks=needs_bfloat16)]
