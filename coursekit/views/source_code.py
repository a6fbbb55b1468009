"""Display of the code that runs, for lessons: `show_source(BlockPool.allocate)`.

A lesson never holds a copy of the library's code. It prints the source of the imported module, with its path in the
repository, so lesson and library cannot drift apart.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

from IPython.display import display


def source_of(thing: Any) -> tuple[str, str, int]:
    """Return `(code, file, first line)` of a function, method, property, class or module."""
    plain = _plain(thing)
    if not (inspect.isfunction(plain) or inspect.isclass(plain) or inspect.ismodule(plain)):
        raise TypeError(f"show_source takes a function, method, property, class or module, not {thing!r}")
    try:
        lines, first = inspect.getsourcelines(plain)
    except (OSError, TypeError) as error:
        raise TypeError(f"{thing!r} has no Python source that can be shown: {error}") from None
    return textwrap.dedent("".join(lines)).rstrip(), _place(plain), max(first, 1)


def show_source(*things: Any) -> None:
    """Show the source of each function, method, property, class or module, unchanged from its file."""
    for thing in things:
        code, file, first = source_of(thing)
        last = first + len(code.splitlines()) - 1
        where = f"{file}, line {first}" if first == last else f"{file}, lines {first} to {last}"
        fence = "````" if "```" in code else "```"
        markdown = f"`{file}`{where.removeprefix(file)}\n\n{fence}python\n{code}\n{fence}"
        display({"text/plain": f"# {where}\n{code}", "text/markdown": markdown}, raw=True)


def _plain(thing: Any) -> Any:
    """Return the Python function or class inside a method, a property or a compiled function (numba, Triton)."""
    if isinstance(thing, property):
        thing = thing.fget
    for inner in ("__func__", "py_func", "fn"):
        if not inspect.isclass(thing) and inspect.isroutine(getattr(thing, inner, None)):
            thing = getattr(thing, inner)
    return inspect.unwrap(thing) if callable(thing) else thing


def _place(thing: Any) -> str:
    """Return the file's path in the repository: from the top package's folder, never absolute."""
    file = Path(inspect.getsourcefile(thing) or "?")
    name = thing.__name__ if isinstance(thing, ModuleType) else thing.__module__
    if name == "__main__":
        return "this notebook"
    start = Path(getattr(sys.modules.get(name.split(".")[0]), "__file__", None) or "")
    return file.relative_to(start.parent.parent).as_posix() if start.name == "__init__.py" else file.name
