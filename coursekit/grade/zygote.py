"""The process that forks sandboxes, and what runs in one.

A *zygote* is started once for each judge. It has imported what answers commonly import and nothing of a check, so a
sandbox costs a fork (milliseconds) and starts from the same clean state each time. The judge asks for a sandbox
with the socket's other end attached, and for its end.

In the sandbox `serve` runs the cells that it is sent and performs the judge's calls on the objects they made. It is
at the mercy of the submission; nothing depends on its honesty.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib.abc
import importlib.util
import json
import os
import re
import signal
import socket
import sys
import traceback
import types
from pathlib import Path
from typing import Any

from coursekit.checks.answers import define, describe, perform
from coursekit.checks.codec import BadMessage, decode, encode
from coursekit.grade.channel import Channel, Closed
from coursekit.grade.lockdown import lock_down, python_paths

with contextlib.suppress(ImportError):
    import numpy as np  # noqa: F401  so that no sandbox has to

# The bench on which chapter 5's kernels run. It holds no solution.
_LAB = {
    f"coursekit.kernels.{name}": (Path(__file__).parents[1] / f"kernels/{name}.py").read_text(
        encoding="utf-8"
    )
    for name in ("lab", "numpy_triton")
}


def main(number: int, course: str) -> None:
    """Serves the judge at the other end of file `number` until it goes away."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the judge's; the zygote ends with it
    control = socket.socket(fileno=number)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("coursekit", "paged_ref")]:
        del sys.modules[
            name
        ]  # what is loaded keeps working; a submission imports something else by these names
    sys.path[:] = [path for path in sys.path if path and Path(path).resolve() != Path(course).resolve()]
    gc.collect()
    gc.freeze()
    while True:
        data, files, _, _ = socket.recv_fds(control, 1 << 16, 1)
        if not data:
            return
        order = json.loads(data)
        if order["do"] == "start":
            pid = os.fork()
            if pid == 0:
                _become_sandbox(files[0], Path(course), order)
            os.close(files[0])
            control.sendall(json.dumps({"pid": pid}).encode())
        else:
            control.sendall(json.dumps(_end(order["pid"])).encode())


def _end(pid: int) -> dict[str, int]:
    """Kills a sandbox and all of its process group; returns how it ended if it had ended by itself."""
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return {}  # asked for twice
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
    if not ended:
        os.waitpid(pid, 0)
        return {}
    code = os.waitstatus_to_exitcode(status)
    return {"signal": -code} if code < 0 else {"exit": code}


def _become_sandbox(file: int, course: Path, order: dict[str, Any]) -> None:
    """In the forked process: no way back to the zygote's sockets, then the lock, then the service. Never returns."""
    end = socket.socket(fileno=os.dup2(file, 3))
    try:
        try:
            layers = _enter(course, order)
        except Exception:  # noqa: BLE001  the grader's own fault, whatever it is
            Channel(end).send({"fault": traceback.format_exc()})
        else:
            serve(Channel(end), layers)
    finally:
        os._exit(0)


def _enter(course: Path, order: dict[str, Any]) -> list[str]:
    """Cuts every tie to the zygote and applies the lock."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.closerange(4, 4096)
    os.chdir("/")
    readable = [*python_paths(), *order["readable"]]
    sys.path += order["paths"]
    _hide(order["without"])
    return lock_down(hidden=course, readable=readable, seconds=order["seconds"], memory_mb=order["memory_mb"])


def serve(channel: Channel, layers: list[str]) -> None:
    """Runs cells and performs calls until the judge goes away."""
    namespace: dict[str, Any] = {
        "__name__": "__main__",
        "get_ipython": lambda: None,
        "display": lambda *a, **k: None,
    }
    objects: list[Any] = []

    def keep(thing: Any) -> int:
        objects.append(thing)
        return len(objects) - 1

    def own(data: Any) -> Any:
        return decode(data, lambda number, kind: objects[number])

    channel.send({"layers": layers})
    while True:
        try:
            order = channel.receive()
        except Closed:
            return
        try:
            reply: dict[str, Any] = {}
            if order["do"] == "run":
                define(python_of(order["source"]), order["name"], namespace)
            elif order["do"] == "names":
                reply = {
                    "found": [
                        [name, encode(namespace[name], keep)] for name in order["names"] if name in namespace
                    ]
                }
            else:
                arguments = own(order["arguments"])
                try:
                    value = perform(objects[order["number"]], order["operation"], arguments)
                    reply["value"] = encode(value, keep)
                except BaseException as error:  # noqa: BLE001  what it changed before it failed is told, too
                    reply["raised"] = raised(error)
                after = encode(
                    arguments, lambda thing: next((i for i, o in enumerate(objects) if o is thing), -1)
                )
                reply |= {"changed": after} if _plain(after) != _plain(order["arguments"]) else {}
            channel.send(reply)
        except BaseException as error:  # noqa: BLE001  SystemExit and KeyboardInterrupt too
            channel.send({"raised": raised(error)})


def raised(error: BaseException) -> list[Any]:
    """An exception as it travels; what cannot travel itself is a TypeError."""
    if isinstance(error, BadMessage):
        return ["TypeError", ["TypeError", "Exception"], str(error), ""]
    return list(describe(error))


def python_of(source: str) -> str:
    """A cell without IPython's magics: they have no effect here. A cell that is Python already stays as it is."""
    try:
        ast.parse(source)
        return source
    except (SyntaxError, ValueError):
        source = re.sub(r"\A(\s*)%%.*", r"\1pass", source)
        source = re.sub(r"^(\s*)(?:[%!?].*|[\w.]+\?{1,2}\s*)$", r"\1pass", source, flags=re.M)
        return re.sub(r"^(\s*[\w.]+\s*=)\s*[%!].*$", r"\1 None", source, flags=re.M)


def _plain(data: Any) -> Any:
    """Message data in which a handle is its number alone: the type's name differs between the two sides."""
    if isinstance(data, list):
        return data[:2] if data[:1] == ["handle"] else [_plain(item) for item in data]
    return data


class _Hidden(importlib.abc.MetaPathFinder):
    """Says why a package cannot be imported."""

    def __init__(self, packages: list[str]) -> None:
        self.packages = set(packages)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] in self.packages:
            raise ImportError(f"{name} holds the solution of this exercise: write it without")


class _Silent(types.ModuleType):
    """Stands for `coursekit` in a sandbox: a copied check cell runs, and does nothing."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments, **named: None


class _Lab(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Hands out what setup cells may import of the course. Read before the lock, run when a cell asks for it."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return importlib.util.spec_from_loader(name, self) if name in _LAB else None

    def get_source(self, name: str) -> str:
        return _LAB[name]


def _hide(packages: list[str]) -> None:
    sys.meta_path[:0] = [_Hidden(packages), _Lab()]
    silent = ("coursekit", "coursekit.checks", "coursekit.kernels", "coursekit.views")
    for name in (*silent, "coursekit.views.source_code", "coursekit.views.style"):
        sys.modules[name] = _Silent(name)
