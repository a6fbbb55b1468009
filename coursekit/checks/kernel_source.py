"""A kernel's source: it may use what a Triton kernel can use, and nothing of Python beside it.

A kernel on a GPU cannot import modules, call NumPy or look into Python's objects. In the interpreter it could, and so
it could patch the `launch` that its check calls. So the notebook, `course.py check` and the grader accept the same
kernels: functions under `@triton.jit` made of arithmetic, loops, `tl` and other kernels. Of a learner's cell, the
grader runs only these functions and constants (`only_kernels`), in a process that runs nothing else of the submission.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

# The names of `tl`, and the attributes of a tile or a pointer, that a kernel may use.
_TL = frozenset({
    "abs", "arange", "argmax", "argmin", "associative_scan", "assume", "atomic_add", "atomic_max", "atomic_min",
    "bfloat16", "broadcast", "broadcast_to", "cast", "cat", "cdiv", "ceil", "clamp", "constexpr", "cos", "cumprod",
    "cumsum", "debug_barrier", "device_assert", "device_print", "div_rn", "dot", "erf", "exp", "exp2",
    "expand_dims", "fdiv", "flip", "float16", "float32", "float64", "floor", "fma", "full", "gather", "int1",
    "int16", "int32", "int64", "int8", "interleave", "join", "load", "log", "log2", "max", "max_constancy",
    "max_contiguous", "maximum", "min", "minimum", "multiple_of", "num_programs", "permute", "philox", "program_id",
    "range", "ravel", "reduce", "reshape", "rsqrt", "sigmoid", "sin", "softmax", "sort", "split", "sqrt", "sqrt_rn",
    "static_assert", "static_print", "static_range", "store", "sum", "swizzle2d", "trans", "uint16", "uint32",
    "uint64", "uint8", "umulhi", "view", "where", "xor_sum", "zeros", "zeros_like",
})  # fmt: skip
_TRITON = frozenset({"cdiv", "next_power_of_2"})
_METHODS = frozenset({
    "T", "abs", "broadcast_to", "cast", "cumsum", "dtype", "element_ty", "exp", "expand_dims", "log", "max", "min",
    "numel", "permute", "ravel", "reshape", "shape", "sigmoid", "softmax", "sqrt", "sum", "to", "trans", "type",
    "value", "view",
})  # fmt: skip
_PYTHON = frozenset(
    {"NotImplementedError", "abs", "bool", "float", "int", "len", "max", "min", "range", "tuple"}
)
_REFUSED: dict[type[ast.AST], str] = {
    ast.Import: "import", ast.ImportFrom: "import", ast.Lambda: "lambda", ast.ClassDef: "class",
    ast.FunctionDef: "a function inside", ast.AsyncFunctionDef: "async", ast.Await: "await", ast.Yield: "yield",
    ast.YieldFrom: "yield", ast.With: "with", ast.AsyncWith: "async", ast.AsyncFor: "async", ast.Try: "try",
    ast.Global: "global", ast.Nonlocal: "nonlocal", ast.Delete: "del", ast.ListComp: "a comprehension",
    ast.SetComp: "a comprehension", ast.DictComp: "a comprehension", ast.GeneratorExp: "a comprehension",
    ast.Match: "match",
}  # fmt: skip


class NotAKernel(ValueError):
    """A function uses something that a kernel on a GPU cannot use."""


def not_a_kernel(reason: str) -> str:
    """Return the message for a learner."""
    return f"This is not a kernel that Triton can compile: {reason}."


def kernels_refused(things: Iterable[Any]) -> str:
    """Return why one of these objects of this process is not a kernel, or ""; helpers are followed."""
    waiting, seen = list(things), set[int]()
    while waiting:
        kernel = waiting.pop()
        function = getattr(kernel, "fn", None)
        if id(kernel) in seen or not inspect.isfunction(function):
            continue
        seen.add(id(kernel))
        known = constants_and_kernels(function.__globals__)
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
            check_kernel(tree, set(known))
        except NotAKernel as error:
            return str(error)
        except (OSError, TypeError, SyntaxError, IndexError):
            continue  # without its source it cannot be read here; the grader reads the cell
        waiting += [known[name] for name in function.__code__.co_names if name in known]
    return ""


def only_kernels(source: str, names: Iterable[str], known: Iterable[str] = ()) -> str:
    """Return a cell with its kernels and constants alone, each at its own line.

    Args:
        source: the cell, as plain Python.
        names: the names that the exercise asks for; a function of such a name must be a kernel.
        known: kernels and constants of earlier cells.

    Raises:
        NotAKernel: a kernel uses what a kernel cannot use, or a function of `names` is not one. SyntaxError as usual.
    """
    tree = ast.parse(source)
    kept: list[ast.stmt] = []
    found = set(known)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and any(map(_is_jit, node.decorator_list)):
            kept.append(node)
            found.add(node.name)
        elif isinstance(node, ast.FunctionDef) and node.name in names:
            raise _error(f"`{node.name}` is not a kernel: put @triton.jit above it", node)
        elif targets := _constants(node):
            kept.append(node)
            found |= targets
    if taken := found & {"launch", "tl", "triton"}:
        raise NotAKernel(f"the name `{min(taken)}` is taken")
    for node in kept:
        if isinstance(node, ast.FunctionDef):
            check_kernel(node, found)
    module = ast.Module(kept, [])
    text = _lines_of(source, kept)
    return text if _is_same(text, module) else ast.unparse(module)  # a line may hold a second statement


def constants_and_kernels(namespace: dict[str, Any]) -> dict[str, Any]:
    """The kernels and the numbers among a notebook's names: what another kernel may use."""
    return {name: value for name, value in namespace.items() if _is_usable(value)}


def check_kernel(node: ast.AST, known: set[str]) -> None:
    """Raise NotAKernel if the function uses anything but its own variables, `tl`, and the `known` kernels."""
    if not isinstance(node, ast.FunctionDef):
        raise NotAKernel("a kernel is a function under @triton.jit")
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    for decorator in node.decorator_list:
        if not _is_jit(decorator):
            raise _error("a kernel has one decorator, @triton.jit", node)
    if arguments.vararg or arguments.kwarg or node.returns or getattr(node, "type_params", []):
        raise _error("a kernel has named arguments and no annotation of its result", node)
    for argument in every:
        if argument.annotation is not None and not _is_of(argument.annotation, "tl", {"constexpr"}):
            raise _error(f"the annotation of `{argument.arg}` is not tl.constexpr", node)
    for default in [*arguments.defaults, *filter(None, arguments.kw_defaults)]:
        if not _is_constant(default):
            raise _error("a default value in a kernel is a number", node)
    own = {argument.arg for argument in every}
    own |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    for statement in node.body:
        for part in ast.walk(statement):
            _check_part(part, own, known)


def _check_part(part: ast.AST, own: set[str], known: set[str]) -> None:
    if word := _REFUSED.get(type(part)):
        raise _error(f"a kernel cannot use {word}", part)
    if isinstance(part, ast.AnnAssign) and not _is_of(part.annotation, "tl", _TL):
        raise _error("a variable's annotation in a kernel is a type of tl", part)
    if isinstance(part, ast.Attribute):
        if part.attr not in _attributes_of(part.value, own):
            raise _error(f"a kernel cannot use `{ast.unparse(part)[:60]}`", part)
        if not isinstance(part.ctx, ast.Load):
            raise _error(f"a kernel cannot assign to `{ast.unparse(part)[:60]}`", part)
    if isinstance(part, ast.Name) and part.id not in own | known | _PYTHON | {"tl", "triton"}:
        raise _error(f"a kernel cannot use `{part.id}`: it knows its arguments, tl and other kernels", part)
    if isinstance(part, ast.Name) and part.id in own & {"tl", "triton", "launch"}:
        raise _error(f"the name `{part.id}` is taken", part)


def _attributes_of(base: ast.expr, own: set[str]) -> frozenset[str]:
    """The attributes that a kernel may use of this expression."""
    if isinstance(base, ast.Name) and base.id not in own and base.id in ("tl", "triton"):
        return _TL | {"math"} if base.id == "tl" else _TRITON
    return _TL if _is_of(base, "tl", {"math"}) else _METHODS


def _constants(node: ast.stmt) -> set[str]:
    """The names that a statement binds to constants, such as `TILE: tl.constexpr = 4`; else none."""
    targets: list[ast.expr]
    value: ast.expr | None
    if isinstance(node, ast.AnnAssign) and _is_of(node.annotation, "tl", {"constexpr"}):
        targets, value = [node.target], node.value
    elif isinstance(node, ast.Assign):
        targets, value = node.targets, node.value
    else:
        return set()
    if isinstance(value, ast.Call) and _is_of(value.func, "tl", {"constexpr"}) and not value.keywords:
        value = value.args[0] if len(value.args) == 1 else None
    names = {target.id for target in targets if isinstance(target, ast.Name)}
    return names if value is not None and _is_constant(value) and len(names) == len(targets) else set()


def _is_constant(node: ast.expr) -> bool:
    inner = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(inner, ast.Constant) and isinstance(inner.value, int | float | None)


def _is_jit(node: ast.expr) -> bool:
    return _is_of(node, "triton", {"jit"})


def _is_of(node: ast.AST, module: str, names: Iterable[str]) -> bool:
    """True for `module.name` with one of these names."""
    return (
        isinstance(node, ast.Attribute)
        and node.attr in names
        and isinstance(node.value, ast.Name)
        and node.value.id == module
    )


def _is_usable(value: Any) -> bool:
    """True for another kernel, or a constant of the notebook."""
    return inspect.isfunction(getattr(value, "fn", None)) or isinstance(
        getattr(value, "value", value), int | float
    )


def _lines_of(source: str, kept: Iterable[ast.stmt]) -> str:
    """The source with every line blank that belongs to no kept statement."""
    wanted = set(_numbers(kept))
    return "\n".join(line if number in wanted else "" for number, line in enumerate(source.split("\n"), 1))


def _is_same(text: str, module: ast.Module) -> bool:
    try:
        return ast.dump(ast.parse(text)) == ast.dump(module)
    except SyntaxError:
        return False


def _numbers(kept: Iterable[ast.stmt]) -> Iterator[int]:
    for node in kept:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        yield from range(first, (node.end_lineno or first) + 1)


def _error(message: str, node: ast.AST) -> NotAKernel:
    return NotAKernel(f"{message} (line {getattr(node, 'lineno', 1)})")
