"""Canaries: the private torch operators behind the packed weights, one test each.

torch may rename or drop them in any release. Each failure says what to do; the engine itself works without them
(`can_pack` answers False, and the model keeps its plain weights).
"""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch.nn import functional

from coursekit import ROOT
from paged_ref.model.cpu import packed_weights
from tests.helpers.onednn import needs_bfloat16, needs_onednn

GONE = (
    "torch.ops.mkldnn.{name} has changed in torch {version}. Until packed_weights.py is adapted, `can_pack` must "
    "answer False there: the engine then runs on plain weights. See how torch/_inductor/mkldnn_ir.py calls it now."
)
WEIGHT = torch.randn(24, 16)
ROWS = torch.randn(3, 16)


def schema(name: str, overload: str = "default") -> str:
    """The operator's signature."""
    operator = getattr(getattr(torch.ops.mkldnn, name, None), overload, None)
    assert operator is not None, GONE.format(name=name, version=torch.__version__)
    return str(operator._schema)


@needs_onednn
def test_reorder_linear_weight_keeps_the_values() -> None:
    name = "_reorder_linear_weight"
    assert "(Tensor self, int? batch_size=None)" in schema(name), GONE.format(
        name=name, version=torch.__version__
    )
    packed = torch.ops.mkldnn._reorder_linear_weight(WEIGHT, None)
    assert packed.is_mkldnn and torch.equal(packed.to_dense(), WEIGHT)


@needs_onednn
def test_linear_pointwise_multiplies_and_adds() -> None:
    message = GONE.format(name="_linear_pointwise", version=torch.__version__)
    assert "(Tensor X, Tensor W, Tensor? B, str attr," in schema("_linear_pointwise"), message
    assert "Tensor other, Tensor W, Tensor? B, str attr)" in schema("_linear_pointwise", "binary"), message
    operator, packed = (
        torch.ops.mkldnn._linear_pointwise,
        torch.ops.mkldnn._reorder_linear_weight(WEIGHT, None),
    )
    expected, other = functional.linear(ROWS, WEIGHT), torch.randn(3, 24)
    torch.testing.assert_close(operator(ROWS, packed, None, "none", [], ""), expected, msg=message)
    torch.testing.assert_close(
        operator.binary(ROWS, other, packed, None, "add"), expected + other, msg=message
    )


@needs_onednn
def test_is_mkldnn_bf16_supported_answers() -> None:
    name = "_is_mkldnn_bf16_supported"
    assert "-> bool" in schema(name), GONE.format(name=name, version=torch.__version__)
    assert isinstance(torch.ops.mkldnn._is_mkldnn_bf16_supported(), bool)


@needs_bfloat16
def test_bfloat16_weights_multiply() -> None:
    packed = torch.ops.mkldnn._reorder_linear_weight(WEIGHT.bfloat16(), None)
    got = torch.ops.mkldnn._linear_pointwise(ROWS.bfloat16(), packed, None, "none", [], "")
    torch.testing.assert_close(got, functional.linear(ROWS.bfloat16(), WEIGHT.bfloat16()))


@needs_onednn
@pytest.mark.parametrize("name", packed_weights.PRIVATE_OPERATORS)
def test_without_an_operator_nothing_is_packed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    linear = torch.nn.Linear(4, 4, bias=False)
    assert packed_weights.can_pack(linear)
    monkeypatch.setattr(packed_weights, "PRIVATE_OPERATORS", (f"{name}_that_is_gone",))
    assert not packed_weights.can_pack(linear)


WITHOUT_THE_FOLDER = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("paged_ref.model.cpu"):
            raise ImportError(f"{name} was taken away")

sys.meta_path.insert(0, Hidden())
from paged_ref import LLM, SamplingParams
from tests.helpers.tiny import make_tiny

tiny = make_tiny()
[output] = LLM(tiny.paged, num_blocks=16, block_size=8).generate([[1, 2, 3]], SamplingParams(max_tokens=8))
assert output.outputs[0].token_ids == tiny.generate([1, 2, 3], 8)
assert not any(name.startswith("paged_ref.model.cpu") for name in sys.modules)
tiny.paged.restore()
"""


def test_the_engine_works_without_the_fast_path() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_THE_FOLDER], cwd=ROOT, check=True)
