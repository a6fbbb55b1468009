"""The process that forks sandboxes, and the code that runs in a sandbox.

Each judge starts one *nursery*, which has imported the packages that answers commonly import and no check code, and has
run nothing of a submission. It forks a *zygote* for each student and ends the one before. The judge asks the zygote to
start a sandbox, passing the socket's other end, and to end one. So a student or a sandbox costs only a fork
(milliseconds), and always starts from the same clean state.

In the sandbox, `serve` runs the cells that it receives and performs the judge's calls on the objects they made. A
submission can take this code over; nothing depends on it being honest.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.abc
import importlib.util
import json
import os
import signal
import socket
import sys
import traceback
import types
from pathlib import Path
from typing import Any

from coursekit.checks.answers import Answers, Message, describe
from coursekit.checks.codec import encode
from coursekit.checks.kernel_source import constants_and_kernels, only_kernels
from coursekit.checks.run_cell import define, python_of
from coursekit.checks.source import import_refused
from coursekit.grade.channel import Channel, Closed
from coursekit.grade.lockdown import lock_down

with contextlib.suppress(ImportError):
    import numpy as np  # noqa: F401  preloaded, so that no sandbox has to import it

# The module that runs chapter 5's kernels. It contains no solution.
_LAB = {
    f"coursekit.kernels.{name}": (Path(__file__).parents[1] / f"kernels/{name}.py").read_text(
        encoding="utf-8"
    )
    for name in ("lab", "numpy_triton")
}


def main(number: int, course: str) -> None:
    """Fork zygotes for the judge at the other end of file descriptor `number` until the judge exits."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the judge handles Ctrl-C; all of these end with the judge
    nursery, zygote = socket.socket(fileno=number), 0
    for name in [name for name in sys.modules if name.partition(".")[0] in ("coursekit", "paged_ref")]:
        del sys.modules[
            name
        ]  # loaded code keeps working; a submission's imports of these names get something else
    sys.path[:] = [path for path in sys.path if path and Path(path).resolve() != Path(course).resolve()]
    gc.collect()
    gc.freeze()
    while True:
        data, files, _, _ = socket.recv_fds(nursery, 1 << 10, 1)
        if zygote:
            _end(zygote)
        if not data:
            return
        zygote = os.fork()
        if zygote == 0:
            nursery.close()
            _serve_student(socket.socket(fileno=files[0]), Path(course))
            os._exit(0)
        os.close(files[0])
        nursery.sendall(json.dumps({"pid": zygote}).encode())


def _serve_student(control: socket.socket, course: Path) -> None:
    """Start and end sandboxes until the judge closes the connection."""
    while True:
        data, files, _, _ = socket.recv_fds(control, 1 << 16, 1)
        if not data:
            return
        order = json.loads(data)
        if order["do"] == "start":
            pid = os.fork()
            if pid == 0:
                _become_sandbox(files[0], course, order)
            os.close(files[0])
            control.sendall(json.dumps({"pid": pid}).encode())
        else:
            control.sendall(json.dumps(_end(order["pid"])).encode())


def _end(pid: int) -> dict[str, int]:
    """Kill a sandbox and its whole process group; return how it ended if it had already ended."""
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return {}  # requested twice
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
    if not ended:
        os.waitpid(pid, 0)
        return {}
    code = os.waitstatus_to_exitcode(status)
    return {"signal": -code} if code < 0 else {"exit": code}


def _become_sandbox(file: int, course: Path, order: dict[str, Any]) -> None:
    """In the forked process: close the zygote's sockets, apply the lock, then serve. Never returns."""
    end = socket.socket(fileno=os.dup2(file, 3))
    try:
        try:
            layers = _enter(course, order)
        except Exception:  # noqa: BLE001  any error here is a fault of the grader
            Channel(end).send({"fault": traceback.format_exc()})
        else:
            serve(Channel(end), layers)
    finally:
        os._exit(0)


def _enter(course: Path, order: dict[str, Any]) -> list[str]:
    """Close all connections to the zygote and apply the lock."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.closerange(4, 4096)
    os.chdir("/")
    _hide(order["without"])
    return lock_down(hidden=course, seconds=order["seconds"], memory_mb=order["memory_mb"])


def serve(channel: Channel, layers: list[str]) -> None:
    """Run cells and perform calls until the judge closes the connection."""
    namespace: dict[str, Any] = {
        "__name__": "__main__",
        "get_ipython": lambda: None,
        "display": lambda *a, **k: None,
    }

    def ask(question: list[Any]) -> Message:
        channel.send({"ask": question})
        reply: Message = channel.receive()
        return reply

    answers = Answers(ask)
    channel.send({"layers": layers})
    while True:
        try:
            order = channel.receive()
        except Closed:
            return
        try:
            channel.send(_perform(order, namespace, answers))
        except BaseException as error:  # noqa: BLE001  SystemExit and KeyboardInterrupt too
            channel.send({"raised": list(describe(error))})
        del order  # a cell's source, which may be the reference's


def _perform(order: Message, namespace: dict[str, Any], answers: Answers) -> Message:
    if order["do"] == "run":
        source = python_of(order["source"])
        if order["kernels"]:  # of a learner's cell, nothing else runs in this process
            source = only_kernels(source, order["kernels"], constants_and_kernels(namespace))
        define(source, order["name"], namespace, secret=order["secret"])
        return {}
    if order["do"] == "names":
        names = [name for name in order["names"] if name in namespace]
        return {"found": [[name, encode(namespace[name], answers.keep)] for name in names]}
    return answers.perform(order)


class _Refused(importlib.abc.MetaPathFinder):
    """Refuses to import some packages, and says why."""

    def __init__(self, packages: list[str]) -> None:
        self.packages = packages

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] in self.packages:
            raise ImportError(import_refused(name))


class _Silent(types.ModuleType):
    """A stand-in for `coursekit` in a sandbox: a copied check cell runs, and does nothing."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments, **named: None


class _Lab(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Provide the course modules that setup cells may import. Read before the lock, executed on import."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return importlib.util.spec_from_loader(name, self) if name in _LAB else None

    def get_source(self, name: str) -> str:
        return _LAB[name]


def _hide(packages: list[str]) -> None:
    sys.meta_path[:0] = [_Refused(packages), _Lab()]
    silent = ("coursekit", "coursekit.checks", "coursekit.kernels", "coursekit.views")
    for name in (*silent, "coursekit.views.source_code", "coursekit.views.style"):
        sys.modules[name] = _Silent(name)
