"""A kernel's source: Triton's language is accepted, everything that could reach Python's objects is refused."""

from __future__ import annotations

import ast
from types import SimpleNamespace

import pytest

from coursekit.checks.kernel_source import NotAKernel, kernels_refused, only_kernels

GOOD = """
import os
TILE = 4
WIDE: tl.constexpr = 8
SMALL = tl.constexpr(-2.5)


@triton.jit
def rows(x, WIDTH: tl.constexpr = 16):
    return x // WIDTH


@triton.jit
def kernel(out_ptr, x_ptr, n, SIZE: tl.constexpr):
    \"\"\"A docstring.\"\"\"
    i = rows(tl.program_id(0) * SIZE + tl.arange(0, SIZE))
    best, total = -float("inf"), 0.0
    for k in range(tl.cdiv(n, SIZE)):
        x = tl.load(x_ptr + i, mask=i < n, other=0.0).to(tl.float32)
        total += tl.sum(x[:, None] * x[None, :], axis=1)
        best = tl.maximum(best, tl.max(x, axis=0)) if k > 0 else tl.math.exp(x)
    while n > WIDE:
        n -= TILE
    tl.store(out_ptr + i, total + SMALL, mask=(i < n) & (i >= 0))


launch(kernel, (1,), out)
print(os.environ)
"""


def test_kernels_and_constants_are_kept_at_their_lines() -> None:
    kept = only_kernels(GOOD, ("kernel",))
    tree = ast.parse(kept)
    assert [type(node).__name__ for node in tree.body] == [
        "Assign",
        "AnnAssign",
        "Assign",
        "FunctionDef",
        "FunctionDef",
    ]
    assert kept.splitlines()[14] == GOOD.splitlines()[14] and "import" not in kept and "print" not in kept


@pytest.mark.parametrize("line", ["x = 1; import os", "import os; x = 1", "x = 1; launch = 3 + 4"])
def test_a_second_statement_in_a_line_is_not_kept(line: str) -> None:
    assert "import" not in only_kernels(line, ()) and "launch" not in only_kernels(line, ())


@pytest.mark.parametrize(
    "body",
    [
        "import sys", "from os import path", "sys.exit()", "np.zeros(3)", "tl.core.os", "triton.runtime.driver",
        "tl.load.__globals__", "x.handle.data", "x.__class__", "x.data", "getattr(x, 'a')", "eval('1')", "open('/')",
        "__import__('os')", "globals()", "print(tl)", "y = tl; y.core", "y = [z for z in x]", "y = lambda: x",
        "with x: pass", "try:\n        x\n    except x: pass", "def inner(): pass", "class A: pass", "x.shape = 3",
        "del x", "global launch", "f'{x.__class__}'", "'{0.__class__}'.format(x)", "launch(x)", "tl = x", "yield x",
        "tl.math.core.os", "tl.extra.cuda", "y: np.int8 = 3", "x.to.__self__", "launch = 3", "(lambda: 0)()",
        "type(x)", "x.dtype.__class__", "vars(x)", "super()", "breakpoint()", "await x",
        "match x:\n        case _: pass",
    ],
)  # fmt: skip
def test_what_a_gpu_cannot_do_is_refused(body: str) -> None:
    with pytest.raises((NotAKernel, SyntaxError)):
        only_kernels(f"@triton.jit\ndef kernel(x, n):\n    {body}\n", ("kernel",))


@pytest.mark.parametrize(
    "head",
    [
        "@triton.jit\ndef kernel(x=open('/etc/passwd')): pass",
        "@triton.jit\ndef kernel(x: open('/etc/passwd')): pass",
        "@triton.jit\ndef kernel(x) -> open('/'): pass",
        "@print\n@triton.jit\ndef kernel(x): pass",
        "@triton.jit\ndef kernel(*x): pass",
        "@triton.jit\ndef kernel(**x): pass",
        "@triton.jit\ndef launch(x): pass",
        "tl = 3\n@triton.jit\ndef kernel(x): pass",
        "def kernel(x): pass",
    ],
)
def test_code_that_would_run_when_the_kernel_is_defined_is_refused(head: str) -> None:
    with pytest.raises(NotAKernel):
        only_kernels(head, ("kernel",))


def test_a_call_is_no_constant() -> None:
    assert only_kernels("x = open('/')\ny: tl.constexpr = f()\nz: f() = 3\nw = [1]\n", ()).strip() == ""


def test_in_a_notebook_the_same_rule_holds_and_helpers_are_followed() -> None:
    assert kernels_refused([SimpleNamespace(fn=_right), print, 3]) == ""
    assert "a kernel cannot use `np`" in kernels_refused([SimpleNamespace(fn=_wrong)])
    assert "a kernel cannot use `np`" in kernels_refused([SimpleNamespace(fn=_uses_wrong)])


def _right(x, n):  # type: ignore[no-untyped-def]
    return x + n


def _wrong(x):  # type: ignore[no-untyped-def]
    return np(x)  # type: ignore[name-defined]  # noqa: F821


helper = SimpleNamespace(fn=_wrong)


def _uses_wrong(x):  # type: ignore[no-untyped-def]
    return helper(x)  # type: ignore[operator]
