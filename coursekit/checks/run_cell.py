"""Runs one cell as a notebook would: magics have no effect, and `await` works outside of functions."""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import time
from collections.abc import Coroutine
from typing import Any


def define(source: str, name: str, namespace: dict[str, Any], *, secret: bool = False) -> None:
    """Run a cell and, unless it is secret, keep its source lines, so that an error can show the line that raised it."""
    if not secret:
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    code = compile(source, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if code.co_flags & inspect.CO_COROUTINE:
        _finish(eval(code, namespace))
    else:
        exec(code, namespace)


def python_of(source: str) -> str:
    """Return a cell without IPython's magics, which have no effect here. A cell that is already Python is unchanged."""
    try:
        compile(source, "<cell>", "exec", flags=ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        return source
    except (SyntaxError, ValueError):
        source = re.sub(r"\A(\s*)%%.*", r"\1pass", source)
        source = re.sub(r"^(\s*)(?:[%!?].*|[\w.]+\?{1,2}\s*)$", r"\1pass", source, flags=re.M)
        return re.sub(r"^(\s*[\w.]+\s*=)\s*[%!].*$", r"\1 None", source, flags=re.M)


def _finish(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine in an event loop without sockets: it has timers and tasks, which is all a sandbox allows."""
    import asyncio

    class Loop(asyncio.BaseEventLoop):
        def __init__(self) -> None:
            super().__init__()
            self._selector = self

        def select(self, timeout: float | None) -> list[Any]:
            time.sleep(1 if timeout is None else timeout)
            return []

        def _process_events(self, events: list[Any]) -> None:
            pass

        def _write_to_self(self) -> None:
            pass

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(coroutine)
