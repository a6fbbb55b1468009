"""The judge's end of a sandbox: it sends cells and calls, enforces time limits, and reports how the sandbox ended.

Nothing that arrives here is trusted: a message that is late, too large or not part of the protocol ends the sandbox,
with the reason in `Broken`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coursekit import ROOT
from coursekit.checks.answers import AnswerRaised, Host, Message
from coursekit.checks.codec import BadMessage
from coursekit.checks.framework import HostLost
from coursekit.grade.channel import Channel, Closed, OutOfTime
from coursekit.grade.lockdown import REQUIRED, WeakSandbox, exposed, unprotected
from coursekit.grade.text import clean

_PATIENCE = 60.0  # seconds for the zygote to start, or to answer
_START = "import sys; sys.path.insert(0, {root!r}); from coursekit.grade.zygote import main; main({number}, {root!r})"


class Broken(HostLost):
    """The sandbox ended: out of time, out of memory, or because its code ended it."""


@dataclass(frozen=True)
class Rules:
    """The limits of a sandbox: time and memory, and the packages that cannot be imported."""

    seconds: float = 10
    memory_mb: int = 1024
    without: tuple[str, ...] = ("paged_ref",)


class Zygote:
    """The process that forks one student's sandboxes, and the nursery that forked it (`zygote.py`).

    Both are started on first use, and again if they died.

    Args:
        root: the course's folder.
        weak: allow sandboxes that lack a layer of `REQUIRED`.

    Raises:
        WeakSandbox: every sandbox could read the course, because of where it is.
    """

    def __init__(self, root: Path = ROOT, *, weak: bool = False) -> None:
        self.root, self.weak = root, weak
        self.process: subprocess.Popen[bytes] | None = None  # the nursery
        self.control: socket.socket | None = None  # to the zygote
        self.pid = 0  # of the zygote
        if problems := unprotected([root]):
            raise WeakSandbox(problems[0])

    def start(self, rules: Rules) -> Sandbox:
        """Start a fresh sandbox; raises WeakSandbox if it lacks a required layer."""
        ours, theirs = socket.socketpair()
        order = {
            "do": "start",
            "seconds": rules.seconds,
            "memory_mb": rules.memory_mb,
            "without": list(rules.without),
        }
        with theirs:
            pid = self._ask(order, theirs)["pid"]
        sandbox = Sandbox(self, pid, Channel(ours), rules)
        lacking = [layer for layer in REQUIRED if layer not in sandbox.layers]
        if lacking and not self.weak:
            sandbox.close()
            raise WeakSandbox(f"no {' and no '.join(lacking)} here. {' '.join(exposed(lacking))}")
        return sandbox

    def end(self, pid: int) -> dict[str, int]:
        """End a sandbox; return how it ended if it was already dead."""
        try:
            return self._ask({"do": "end", "pid": pid})
        except Broken:
            return {}  # the sandbox has ended with its zygote

    def renew(self) -> None:
        """Let the next sandbox come from a fresh zygote, in which nothing of another student has run."""
        if self.control is not None:
            self.control.close()
            self.control, self.pid = None, 0

    def close(self, *, wait: bool = True) -> None:
        """End the nursery, the zygote and all its sandboxes. Use `wait=False` in a signal handler."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                if self.pid and self.process.poll() is None:  # so the number still belongs to the zygote
                    os.kill(self.pid, signal.SIGKILL)
            self.process.kill()
            if wait:
                self.renew()
                self.nursery.close()
                self.process.wait()
                self.process = None

    def _ask(self, order: dict[str, Any], attached: socket.socket | None = None) -> dict[str, int]:
        alive = self.process is not None and self.process.poll() is None
        if order["do"] == "end" and not (alive and self.control):
            return {}  # it died with its zygote
        try:
            if not alive:
                self._launch()
            if self.control is None:
                self.control, theirs = socket.socketpair()
                self.control.settimeout(_PATIENCE)
                with theirs:
                    self.pid = _exchange(self.nursery, {"do": "student"}, theirs)["pid"]
            return _exchange(self.control, order, attached)
        except (OSError, ValueError, KeyError):
            self.close()
            raise Broken("died", "the process that starts sandboxes died or did not answer") from None

    def _launch(self) -> None:
        self.renew()
        self.nursery, theirs = socket.socketpair()
        self.nursery.settimeout(_PATIENCE)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-c", _START.format(root=str(self.root), number=theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd="/",
                env={"PATH": os.environ.get("PATH", ""), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )


def _exchange(
    end: socket.socket, order: dict[str, Any], attached: socket.socket | None = None
) -> dict[str, int]:
    socket.send_fds(end, [json.dumps(order).encode()], [attached.fileno()] if attached else [])
    return dict(json.loads(end.recv(4096)))


class Sandbox(Host):
    """One running sandbox, and the host of the objects in it."""

    def __init__(self, zygote: Zygote, pid: int, channel: Channel, rules: Rules) -> None:
        super().__init__()
        self.zygote, self.pid, self.channel, self.rules = zygote, pid, channel, rules
        self.channel.deadline = time.monotonic() + self.rules.seconds
        hello = self._await()
        if "fault" in hello:
            raise RuntimeError(f"a sandbox could not be set up:\n{hello['fault']}")
        self.layers: list[str] = hello["layers"]

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the sandbox."""
        self.channel.socket.close()
        self.zygote.end(self.pid)

    def run(
        self, source: str, name: str, *, secret: bool = False, kernels: tuple[str, ...] = ()
    ) -> AnswerRaised | None:
        """Run a cell; return the exception it raised, or None. A secret cell's source is not kept in the sandbox.

        With `kernels`, the names that an exercise asks for, only the kernels and constants of the cell are run.
        """
        order = {"do": "run", "source": source, "name": name, "secret": secret, "kernels": list(kernels)}
        reply = self.exchange(order, "the cell")
        raised = self.raised(reply["raised"], "the cell") if "raised" in reply else None
        if raised is not None and not isinstance(raised, AnswerRaised):
            raise raised
        return raised

    def find(self, names: tuple[str, ...]) -> dict[str, Any]:
        """Return proxies for the objects that the cells defined under these names."""
        reply = self.exchange({"do": "names", "names": list(names)}, "the cell")
        if "raised" in reply:
            raise self.raised(reply["raised"], "the cell")
        found = reply.get("found")
        if not isinstance(found, list) or not all(isinstance(x, list) and len(x) == 2 for x in found):
            raise self.broken(BadMessage("a list of names was expected"))
        return {str(name): self.value(data, str(name)) for name, data in found}

    def exchange(self, order: Message, call: str) -> Message:
        """Send an order and return the reply to it, serving the answer's calls meanwhile."""
        try:
            self.channel.send(order)
            while "ask" in (reply := self._await()):
                self.channel.send(self.serve(reply["ask"]))
        except (Closed, OutOfTime, BadMessage) as error:
            raise self.broken(error) from None
        return reply

    def _await(self) -> dict[str, Any]:
        try:
            reply = self.channel.receive()
        except (Closed, OutOfTime, BadMessage) as error:
            raise self.broken(error) from None
        if not isinstance(reply, dict):
            raise self.broken(BadMessage("a reply was expected"))
        return reply

    def broken(self, error: Exception) -> Broken:
        """End the sandbox and return the reason."""
        if isinstance(error, OutOfTime):
            return Broken("timeout", f"not finished after {self.rules.seconds:g} seconds")
        ended: dict[str, int] = {}
        if isinstance(error, Closed):
            time.sleep(0.02)
            ended = self.zygote.end(self.pid)
        if "signal" in ended:
            if ended["signal"] == signal.SIGXCPU:
                return Broken(
                    "timeout", f"not finished after {self.rules.seconds:g} seconds of processor time"
                )
            return Broken("died", f"the process was killed by {_signal(ended['signal'])}")
        if isinstance(error, Closed):
            return Broken("died", f"the code ended its own process (exit code {ended.get('exit', 0)})")
        return Broken("died", f"the code broke the connection to the grader ({clean(str(error), 80)})")


def _signal(number: int) -> str:
    known = {one.value for one in signal.Signals}
    return signal.Signals(number).name if number in known else f"signal {number}"
