"""An answer's source: the packages it imports, the earlier answers it uses, and the line that raised an error.

One rule for imports holds in the notebook, for `course.py check` and for the grader: an answer may use Python's
standard library and NumPy, but none of the packages in `Exercise.without`. The sandbox refuses them on import. Here the
same rule is read from the compiled code, because a notebook has already imported whatever its other cells need.
"""

from __future__ import annotations

import dis
import inspect
import traceback
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

CELL = "<exercise "  # prefix of an answer's file name in the grader and in the tests: `<exercise 2.1>`
_OTHER_CELLS = ("<cell", "<ipython")
_SOLUTION = "paged_ref"
CELLS: dict[str, str] = {}  # a notebook cell's file name → the exercise whose answer it holds


def import_refused(name: str) -> str:
    """Return the sentence on a package that an answer must not use."""
    package = name.partition(".")[0]
    why = "contains the solution of this exercise" if package == _SOLUTION else "is not needed here"
    return f"The answer uses {package}, which {why}. Use Python's standard library and NumPy only."


def used(things: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Yield (name, object) for each global that functions and classes use, directly or through their helpers."""
    seen: set[int] = set()
    waiting: list[Any] = list(things)
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, type):
            waiting += [member for member in vars(thing).values() if _functions(member)]
            continue
        for function in _functions(thing):
            if (function.__module__ or "").partition(".")[0] in ("coursekit", "paged_ref"):
                continue  # part of the course, such as `launch`, and not of the answer
            for name in _names(function.__code__):
                if name in function.__globals__:
                    found = function.__globals__[name]
                    yield name, found
                    if _is_own(found, function.__globals__):
                        waiting.append(found)


def imported(things: Iterable[Any]) -> set[str]:
    """Names of the top-level packages that these functions and classes use or import."""
    things = list(things)
    helpers = [found for _, found in used(things) if isinstance(found, FunctionType | type)]
    packages = {_package(found) for _, found in used(things)}
    for thing in [*things, *helpers]:
        members = vars(thing).values() if isinstance(thing, type) else [thing]
        for function in (function for member in members for function in _functions(member)):
            if function.__module__ == "__main__" or function.__code__.co_filename.startswith(CELL):
                packages |= {name.partition(".")[0] for name in _imports(function.__code__)}
    return packages - {""}


def line_of(error: BaseException) -> str:
    """Return `line 3: …` for the line that raised; a line of another cell is preceded by that cell's name."""
    if isinstance(error, SyntaxError) and error.lineno:
        return f"line {error.lineno}: {(error.text or '').strip()}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_cell(frame.filename)]
    if not frames:
        return ""
    last = frames[-1]
    line = f"line {last.lineno}: {last.line or ''}".rstrip(": ")
    return f"{_cell_name(last.filename)}, {line}"


def remember(id: str, things: Iterable[Any]) -> None:
    """Note the cells that hold these answers, so that a later error can name the exercise."""
    for thing in things:
        members = vars(thing).values() if isinstance(thing, type) else [thing]
        for function in (function for member in members for function in _functions(member)):
            CELLS[function.__code__.co_filename] = id


def in_own_cell(where: str, id: str) -> str:
    """Shorten a line of the exercise's own cell to `line 3: …`; leave other lines as they are."""
    return where.removeprefix(f"exercise {id}, ")


def _cell_name(filename: str) -> str:
    if filename.startswith(CELL):
        return f"exercise {filename[len(CELL) : -1]}"
    return f"exercise {CELLS[filename]}" if filename in CELLS else "another cell"


def _is_cell(filename: str) -> bool:
    return filename.startswith((CELL, *_OTHER_CELLS)) or "ipykernel_" in filename


def _functions(thing: Any) -> list[FunctionType]:
    """Return the Python functions behind a function, method, property, jitted kernel or wrapper."""
    if isinstance(thing, property):
        return [f for f in (thing.fget, thing.fset) if isinstance(f, FunctionType)]
    if isinstance(thing, staticmethod | classmethod | MethodType):
        return _functions(thing.__func__)
    inner = getattr(thing, "fn", None) if not isinstance(thing, type | ModuleType) else None
    thing = inspect.unwrap(inner if isinstance(inner, FunctionType) else thing) if callable(thing) else thing
    return [thing] if isinstance(thing, FunctionType) else []


def _is_own(thing: Any, namespace: dict[str, Any]) -> bool:
    """True for the functions and classes that the same notebook defines."""
    if isinstance(thing, type):
        return thing.__module__ == namespace.get("__name__")
    return any(function.__globals__ is namespace for function in _functions(thing))


def _names(code: CodeType) -> Iterator[str]:
    """The globals that the code reads, not the attributes of the same names."""
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield str(step.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _imports(code: CodeType) -> Iterator[str]:
    yield from (str(step.argval) for step in dis.get_instructions(code) if step.opname == "IMPORT_NAME")
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _imports(constant)


def _package(thing: Any) -> str:
    name = thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", "")
    return str(name or "").partition(".")[0]
