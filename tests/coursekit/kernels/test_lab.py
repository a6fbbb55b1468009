"""The bench for kernels: right answers, wrong addresses caught, loads seen; the stand-in for Triton does the same."""

from __future__ import annotations

import importlib.util
import os
import platform
import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest

from coursekit import ROOT
from coursekit.kernels import lab as kernel_lab
from coursekit.kernels import numpy_triton
from coursekit.kernels.lab import accesses, launch
from coursekit.kernels.numpy_triton import OutOfBounds

tl: Any = numpy_triton.tl  # the language of the kernels below; a test puts Triton's in its place
triton: Any = numpy_triton.triton
needs_triton = pytest.mark.skipif(not kernel_lab.HAS_TRITON, reason="Triton has no package for this system")


def test_only_systems_without_a_package_do_without_triton() -> None:
    """Else a broken installation would skip the tests of real kernels, and give learners the stand-in, unnoticed."""
    packaged = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")
    assert packaged == kernel_lab.HAS_TRITON


class Kernels:
    """The same kernels in either language. `triton` and `tl` are looked up when a kernel runs."""

    def __init__(self) -> None:
        @triton.jit
        def copy_rows(out_ptr, x_ptr, table_ptr, shift, n, D: tl.constexpr):
            i = tl.program_id(0)
            d = tl.arange(0, D)
            row = tl.load(table_ptr + i).to(tl.int64)
            tl.store(
                out_ptr + i * n + d, tl.load(x_ptr + row * n + d + shift, mask=d < n, other=0.0), mask=d < n
            )

        @triton.jit
        def narrow(out_ptr, x_ptr, block_ptr, SIZE: tl.constexpr):
            tl.store(out_ptr, tl.load(x_ptr + tl.load(block_ptr) * SIZE))

        @triton.jit
        def wide(out_ptr, x_ptr, block_ptr, SIZE: tl.constexpr):
            tl.store(out_ptr, tl.load(x_ptr + tl.load(block_ptr).to(tl.int64) * SIZE))

        @triton.jit
        def softmax(out_ptr, x_ptr, scale, n, D: tl.constexpr):
            d = tl.arange(0, D)
            x = tl.where(d < n, tl.load(x_ptr + d, mask=d < n, other=0.0) * scale, -float("inf"))
            weights = tl.exp(x - tl.max(x, axis=0))
            tl.store(out_ptr + d, weights / tl.sum(weights, axis=0), mask=d < n)

        @triton.jit
        def other_words(out_ptr, x_ptr, STEPS: tl.constexpr):
            x = tl.load(x_ptr + tl.arange(0, 4))
            for _ in tl.static_range(STEPS):
                x = tl.sqrt(tl.exp2(2 * tl.log2(x))) + 1
            tl.store(out_ptr + tl.arange(0, 4), x)

        self.copy_rows, self.narrow, self.wide, self.softmax = copy_rows, narrow, wide, softmax
        self.other_words = other_words


@pytest.fixture(params=[pytest.param("triton", marks=needs_triton), "stand-in"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kernels:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    real = request.param == "triton"
    monkeypatch.setattr(kernel_lab, "HAS_TRITON", real)
    language = kernel_lab if real else numpy_triton
    for name in ("triton", "tl"):
        monkeypatch.setitem(globals(), name, getattr(language, name))
    return Kernels()


X = np.arange(24, dtype=np.float32).reshape(8, 3)


def test_a_kernel_changes_the_arrays_that_it_is_given(kernels: Kernels) -> None:
    out, table = np.zeros((3, 3), np.float32), np.array([6, 1, 4], np.int32)
    launch(kernels.copy_rows, (3,), out, X, table, 0, 3, D=4)
    assert (out == X[table]).all()
    launch(kernels.copy_rows, (3,), out_ptr=out, x_ptr=X, table_ptr=table[::-1].copy(), shift=0, n=3, D=4)
    assert (out == X[table[::-1]]).all()


def test_numbers_and_reductions(kernels: Kernels) -> None:
    out, x = np.zeros(5, np.float32), np.array([1, 2, 3, 4, 500], np.float32)
    launch(kernels.softmax, (1,), out, x, 0.5, np.int64(5), D=8)
    expected = np.exp(0.5 * (x - 500))
    assert np.allclose(out, expected / expected.sum(), rtol=1e-6)


def test_words_that_the_course_s_kernels_do_without(kernels: Kernels) -> None:
    out, x = np.zeros(4, np.float32), np.array([1, 2, 3, 4], np.float32)
    launch(kernels.other_words, (1,), out, x, STEPS=3)
    assert np.allclose(out, x + 3, rtol=1e-6)


@pytest.mark.parametrize(
    ("table", "shift", "message"),
    [
        (
            [6, 9, 4],
            0,
            "program (1, 0, 0) reads outside of `x_ptr`, which has 24 elements: at offset 27 and 2 more",
        ),
        (
            [-1, 1, 4],
            0,
            "program (0, 0, 0) reads outside of `x_ptr`, which has 24 elements: at offset -3 and 2 more",
        ),
        ([6, 1, 7], 1, "program (2, 0, 0) reads outside of `x_ptr`, which has 24 elements: at offset 24"),
    ],
)
def test_an_address_outside_is_an_error_that_names_it(
    kernels: Kernels, table: list[int], shift: int, message: str
) -> None:
    with pytest.raises(OutOfBounds) as caught:
        launch(
            kernels.copy_rows, (3,), np.zeros((3, 3), np.float32), X, np.array(table, np.int32), shift, 3, D=4
        )
    assert str(caught.value) == message


def test_a_write_outside_is_an_error_too(kernels: Kernels) -> None:
    with pytest.raises(OutOfBounds, match=r"program \(1, 0, 0\) writes outside of `out_ptr`"):
        launch(
            kernels.copy_rows, (2,), np.zeros((1, 3), np.float32), X, np.array([1, 2], np.int32), 0, 3, D=4
        )


def test_after_an_error_all_is_as_before(kernels: Kernels) -> None:
    table = np.array([1], np.int32)
    for _ in range(2):
        with pytest.raises(OutOfBounds):
            launch(kernels.copy_rows, (1,), np.zeros(3, np.float32), X, table, 10**9, 3, D=4)
        out = np.zeros(3, np.float32)
        launch(kernels.copy_rows, (1,), out, X, table, 0, 3, D=4)
        assert (out == X[1]).all()


def test_only_what_is_not_masked_is_seen(kernels: Kernels) -> None:
    found = accesses(
        kernels.copy_rows, (2,), np.zeros((2, 3), np.float32), X, np.array([5, 0], np.int32), 0, 3, D=4
    )
    seen = [(a.program, a.name, a.offsets.tolist(), a.kind) for a in found]
    assert seen == [
        ((0, 0, 0), "table_ptr", [0], "load"), ((0, 0, 0), "x_ptr", [15, 16, 17], "load"),
        ((0, 0, 0), "out_ptr", [0, 1, 2], "store"),
        ((1, 0, 0), "table_ptr", [1], "load"), ((1, 0, 0), "x_ptr", [0, 1, 2], "load"),
        ((1, 0, 0), "out_ptr", [3, 4, 5], "store"),
    ]  # fmt: skip


def test_a_part_of_an_array_too_large_to_have(kernels: Kernels) -> None:
    block, size = 20_000_000, 120
    out, x, blocks = np.zeros(1, np.float32), np.full(size, 7, np.float32), np.array([block], np.int32)
    launch(kernels.wide, (1,), out, x, blocks, before={1: block * size}, SIZE=size)
    assert out[0] == 7
    with pytest.raises(OutOfBounds), np.errstate(over="ignore"):
        launch(kernels.narrow, (1,), out, x, blocks, before={1: block * size}, SIZE=size)


def test_what_is_no_kernel_is_told(kernels: Kernels) -> None:
    for thing in (lambda out: None, 5):
        with pytest.raises(TypeError, match=r"put @triton\.jit above"):
            launch(thing, (1,), X)
    with pytest.raises(TypeError, match="missing a required argument"):
        launch(kernels.copy_rows, (1,), X)


@needs_triton
def test_an_argument_must_fit_into_the_arena(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    for name in ("triton", "tl"):
        monkeypatch.setitem(globals(), name, getattr(kernel_lab, name))
    with pytest.raises(ValueError, match="argument x_ptr is larger than 8 MiB"):
        launch(Kernels().softmax, (1,), X, np.zeros(3 << 20, np.float32), 1.0, 5, D=8)


@needs_triton
def test_the_way_over_a_device_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of compiled kernels, with the CPU in the GPU's place."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    for name in ("triton", "tl"):
        monkeypatch.setitem(globals(), name, getattr(kernel_lab, name))
    out, table = np.zeros((3, 3), np.float32), np.array([6, 1, 4], np.int32)
    with kernel_lab._interpreted_language():
        kernel_lab._launch_on_gpu(Kernels().copy_rows, (3,), (out, X, table, 0, 3), {"D": 4}, device="cpu")
    assert (out == X[table]).all()


def run_python(code: str, **environment: str) -> str:
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"} | environment
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


CELL = """
import os{before}
os.environ["TRITON_INTERPRET"] = "1"
import sys, numpy as np
from coursekit.checks.run_cell import define
source = '''
from coursekit.kernels.lab import launch, tl, triton
@triton.jit
def total(out_ptr, x_ptr, D: tl.constexpr):
    tl.store(out_ptr, tl.sum(tl.load(x_ptr + tl.arange(0, D)), axis=0))
'''
names = {{}}
define(source, "<exercise 0>", names)
out = np.zeros(1, np.float32)
names["launch"](names["total"], (1,), out, np.ones(8, np.float32), D=8)
print(out[0], "torch" in sys.modules)
"""


@needs_triton
def test_kernels_run_without_torch_also_from_a_text() -> None:
    assert run_python(CELL.format(before="")) == "8.0 False"


@needs_triton
def test_the_switch_may_come_after_triton() -> None:
    assert run_python(CELL.format(before=", triton")) == "8.0 False"


WITHOUT_TRITON = """
import contextlib, io, sys, warnings

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "triton":
            raise ImportError("no Triton here")

sys.meta_path.insert(0, Blocked())
warnings.simplefilter("ignore")
from coursekit import ROOT
from coursekit.kernels import lab as kernel_lab
from coursekit.checks.bank import entries, judge

assert not kernel_lab.HAS_TRITON
bank = [entry for entry in entries(ROOT) if entry.exercise in ("5.1", "5.2", "5.3")]
for entry in bank:
    with contextlib.redirect_stdout(io.StringIO()):
        verdict = judge(ROOT, entry.exercise, entry.code, 100)
    failure = verdict.first_failure
    told = None if failure is None else failure.misconception or failure.status
    assert told == entry.wrong, (entry.label, failure)
print(len(bank) > 30)
"""


def test_without_triton_the_bank_gets_the_same_verdicts() -> None:
    assert run_python(WITHOUT_TRITON) == "True"


def test_the_stand_in_refuses_what_triton_refuses() -> None:
    words = numpy_triton.tl
    with pytest.raises(ValueError, match="has 24 elements: it must be a power of two"):
        words.arange(0, 24)
    with pytest.raises(ValueError, match="needs an inner dimension of at least 16"):
        words.dot(words.zeros([16, 8], np.float32), words.zeros([8, 16], np.float32))
    assert words.dot(words.full([2, 16], 1.0, np.float32), words.full([16, 4], 2.0, np.float32)).max() == 32
    with pytest.raises(ValueError, match="argument x_ptr is not contiguous"):

        @numpy_triton.triton.jit
        def nothing(x_ptr):
            pass

        nothing[(1,)](X.T)


def test_the_stand_in_s_integers_wrap_as_triton_s() -> None:
    words = numpy_triton.tl
    with np.errstate(over="ignore"):
        product = words.full([1], 131_072, np.int32) * 16_384
    assert product.tolist() == [-(2**31)]
    assert (words.full([1], 131_072, np.int32).to(words.int64) * 16_384).tolist() == [2**31]


def test_triton_is_found_if_it_is_installed() -> None:
    installed = importlib.util.find_spec("triton") is not None
    assert installed == kernel_lab.HAS_TRITON


LESSON_WITHOUT_TRITON = """
import contextlib, io, linecache, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "triton":
            raise ImportError("no Triton here")

sys.meta_path.insert(0, Blocked())
from coursekit import ROOT
from coursekit.views import source_code, style
from coursekit.build.percent import is_ignored, read_notebook, tags

source_code.display = style.display = lambda *args, **named: None
notebook = read_notebook(ROOT / "notebooks/05_triton_kernel.ipynb")
names, same, needing = {"__name__": "__main__"}, 0, 0
for number, cell in enumerate(notebook.cells):
    if cell.cell_type != "code" or is_ignored(cell) or "raises-exception" in tags(cell):
        continue
    file = f"<cell {number}>"
    linecache.cache[file] = (len(cell.source), None, cell.source.splitlines(keepends=True), file)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(cell.source, file, "exec"), names)
    stored = "".join(o.text for o in cell.outputs if o.output_type == "stream")
    if "HAS_TRITON:" in cell.source:
        needing += 1
    else:
        assert printed.getvalue() == stored, (cell.source, printed.getvalue(), stored)
        same += bool(stored)
print(same > 20, needing)
"""


def test_without_triton_the_lesson_says_the_same() -> None:
    """Every compared cell, but those that say that they need Triton."""
    assert run_python(LESSON_WITHOUT_TRITON) == "True 6"
