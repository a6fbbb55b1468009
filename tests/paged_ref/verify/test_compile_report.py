"""Each kernel compiled for three devices that need not be there: no spills, wide loads, 64-bit addresses."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from paged_ref.verify.compile_report import TARGETS, Compiled, in_a_new_process
from tests.helpers.needs import needs_triton

pytestmark = needs_triton

SHARED_BYTES = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "gfx942": 64 * 1024}
REGISTERS = {"sm_80": 255, "sm_90": 255, "gfx942": 256}
KERNELS = {"decode", "decode, split", "merge", "prefill", "decode_plain", "write_kv", "copy_blocks"}


@pytest.fixture(scope="module")
def report() -> list[Compiled]:
    return in_a_new_process()


@pytest.mark.parametrize("target", TARGETS)
def test_kernels_fit_the_device(report: list[Compiled], target: str) -> None:
    rows = [row for row in report if row.target == target]
    assert {row.kernel for row in rows} == KERNELS
    for row in rows:
        assert row.spills == 0, row
        assert 0 < row.registers <= REGISTERS[target], row
        assert row.shared_bytes <= SHARED_BYTES[target], row


def test_attention_loads_are_wide(report: list[Compiled]) -> None:
    for row in report:
        if row.kernel in ("decode", "decode, split", "prefill", "decode_plain"):
            assert row.wide_loads > 0, row


def test_addresses_are_64_bit(report: list[Compiled]) -> None:
    for row in report:
        assert row.narrow_offsets == 0, row


def test_a_32_bit_offset_is_seen() -> None:
    """The check above can fail: drop one conversion to 64 bits from the kernels' source and compile that."""
    script = """
import importlib.util, inspect, pathlib, sys, tempfile
from paged_ref.attention import triton_kernels
from paged_ref.verify import compile_report
source = inspect.getsource(triton_kernels)
line = "block = tl.load(table_ptr + token // BLOCK_SIZE, mask=exists, other=0)"
assert source.count(line + ".to(tl.int64)") == 1
path = pathlib.Path(tempfile.mkdtemp()) / "narrow_kernels.py"
path.write_text(source.replace(line + ".to(tl.int64)", line))
spec = importlib.util.spec_from_file_location("narrow_kernels", path)
module = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = module
spec.loader.exec_module(module)
row = compile_report.compile_kernel("decode", compile_report.SHAPES[0], "sm_90", module)
print("narrow", row.narrow_offsets)
"""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > 0
