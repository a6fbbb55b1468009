"""Loads and registers of kernels that are written in a notebook, and that every kernel of chapter 5 compiles."""

from __future__ import annotations

import ast
import linecache
from typing import Any

import numpy as np
import pytest

from coursekit import ROOT
from coursekit.build.percent import notebook_from_text
from coursekit.kernels import lab as kernel_lab
from coursekit.kernels import worker as kernel_elsewhere
from coursekit.kernels.worker import Launch, accesses, call, resources

pytestmark = pytest.mark.skipif(not kernel_lab.HAS_TRITON, reason="Triton has no package for this system")

SOURCE = """
@triton.jit
def gather(out_ptr, x_ptr, table_ptr, D: tl.constexpr):
    i, d = tl.program_id(0), tl.arange(0, D)
    tl.store(out_ptr + i * D + d, tl.load(x_ptr + tl.load(table_ptr + i) * D + d))
"""


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> Launch:
    """A kernel as a notebook's cell defines it, with its arguments."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    linecache.cache["<cell of a test>"] = (
        len(SOURCE),
        None,
        SOURCE.splitlines(keepends=True),
        "<cell of a test>",
    )
    names: dict[str, Any] = {"triton": kernel_lab.triton, "tl": kernel_lab.tl}
    exec(compile(SOURCE, "<cell of a test>", "exec"), names)
    x = np.arange(64, dtype=np.float32)
    args = (np.zeros(32, np.float32), x, np.array([2, 0], np.int32))
    return Launch(names["gather"], (2,), args, {"D": 16})


def test_loads_are_the_same_from_another_process(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    here = accesses([launch, launch])
    monkeypatch.setattr(kernel_lab, "is_interpreted", lambda kernel: False)
    there = accesses([launch, launch])

    def plain(found: list[kernel_lab.Access]) -> list[tuple[Any, ...]]:
        return [(a.program, a.name, a.offsets.tolist(), a.kind) for a in found]

    assert plain(here) == plain(there) and len(here) == 12
    assert plain(here)[1] == ((0, 0, 0), "x_ptr", list(range(32, 48)), "load")


def test_registers_are_read_without_a_gpu(launch: Launch) -> None:
    narrow, wide = resources(
        {"narrow": launch, "wide": Launch(launch.kernel, (2,), launch.args, {"D": 4096})}
    )
    assert (narrow.kernel, wide.kernel, narrow.target) == ("narrow", "wide", "sm_90")
    assert 0 < narrow.registers < wide.registers and narrow.spills == wide.spills == 0
    [other] = resources({"narrow": launch}, target="sm_80", number="fp32", D=4096)
    assert (other.target, other.registers > narrow.registers) == ("sm_80", True)


def test_a_kernel_that_does_not_compile_is_told(launch: Launch) -> None:
    with pytest.raises(RuntimeError, match="arange"):
        resources({"odd": launch}, D=24)


def test_the_library_s_loads_here_and_there(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    query = rng.normal(size=(1, 4, 16)).astype(np.float32)
    cache = rng.normal(size=(3, 4, 2, 16)).astype(np.float32)
    tables, lens = np.array([[2, 0]], np.int32), np.array([7], np.int32)
    arguments = (query, cache, cache + 1, tables, lens)
    everything_once = 2 * 7 * 2 * 16 * 4
    assert call(kernel_elsewhere.library_reads, *arguments) == everything_once
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    here: list[object] = []
    monkeypatch.setattr(kernel_elsewhere, "_elsewhere", lambda *args, **named: here.append(args))
    assert call(len, [1, 2, 3]) == 3 and here == []


def kernels_of(path: str) -> list[str]:
    """The source of every kernel in a lesson's or an exercise's cells."""
    cells = notebook_from_text((ROOT / path).read_text(encoding="utf-8")).cells
    found = []
    for cell in cells:
        if cell.cell_type == "code" and "@triton.jit" in cell.source:
            tree = ast.parse(cell.source)
            functions = [f for f in tree.body if isinstance(f, ast.FunctionDef) and f.decorator_list]
            found += [f"@triton.jit\n{ast.get_source_segment(cell.source, f)}\n" for f in functions]
    return found


SIZES = {
    "TILE": 16, "MAX_BLOCKS": 6, "HEADS": 6, "KV_HEADS": 2, "HEAD_DIM": 16, "BLOCK": 16, "BLOCK_SIZE": 16, "D": 16,
    "B": 16, "MASK_V": False, "ROWS": 16, "PAGED": True, "SPLITS": 4, "NUMBERS": 16384, "UPCAST": False,
}  # fmt: skip
INTEGERS = ("tables_ptr", "table_ptr", "lens_ptr", "block_ptr")


@pytest.mark.parametrize("path", ["lessons/05_triton_kernel.py", "exercises/05_triton_kernel.py"])
def test_every_kernel_of_the_chapter_compiles_for_a_gpu(path: str) -> None:
    """What runs interpreted here must run compiled where there is a GPU."""
    calls = []
    for source in kernels_of(f"curriculum/{path}"):
        function = next(f for f in ast.parse(source).body if isinstance(f, ast.FunctionDef))
        names = [arg.arg for arg in function.args.args]
        number = "*bf16" if function.name == "product" else "*fp32"
        types = {
            name: "*i32"
            if name in INTEGERS
            else number
            if name.endswith("_ptr")
            else "fp32"
            if name == "scale"
            else "i32"
            for name in names
            if name not in SIZES
        }
        constants = {name: SIZES[name] for name in names if name in SIZES}
        calls.append((function.name, source, function.name, constants, types, "sm_90"))
    rows = kernel_elsewhere._elsewhere(kernel_elsewhere._resources, calls, interpret=False)
    assert len(rows) == len(calls) >= 4
    assert all(row.spills == 0 and row.registers > 0 for row in rows)
