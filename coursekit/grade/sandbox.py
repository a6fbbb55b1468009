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
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coursekit import ROOT
from coursekit.checks.answers import AnswerRaised, Proxy
from coursekit.checks.codec import BadMessage, decode, encode
from coursekit.checks.framework import HostLost
from coursekit.grade.channel import Channel, Closed, OutOfTime

_START = "import sys; sys.path.insert(0, {root!r}); from coursekit.grade.zygote import main; main({number}, {root!r})"


class Broken(HostLost):
    """The sandbox ended: out of time, out of memory, or because its code ended it."""


@dataclass(frozen=True)
class Rules:
    """The limits of a sandbox: time, memory, and which course modules it may import."""

    seconds: float = 10
    memory_mb: int = 1024
    without: tuple[str, ...] = ("paged_ref",)


class Zygote:
    """The process that forks sandboxes for this judge. Started on first use, and restarted if it died."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        self.process: subprocess.Popen[bytes] | None = None
        self.folder = tempfile.TemporaryDirectory(prefix="grade-")
        (Path(self.folder.name) / "paged_ref").symlink_to(root / "paged_ref")

    def start(self, rules: Rules) -> Sandbox:
        """Start a fresh sandbox."""
        ours, theirs = socket.socketpair()
        allowed = "paged_ref" not in rules.without
        order = {
            "do": "start",
            "seconds": rules.seconds,
            "memory_mb": rules.memory_mb,
            "without": list(rules.without),
            "readable": [str(self.root / "paged_ref"), self.folder.name] * allowed,
            "paths": [self.folder.name] * allowed,
        }
        with theirs:
            pid = self._ask(order, theirs)["pid"]
        return Sandbox(self, pid, Channel(ours), rules)

    def end(self, pid: int) -> dict[str, int]:
        """End a sandbox; return how it ended if it was already dead."""
        return self._ask({"do": "end", "pid": pid})

    def close(self, *, wait: bool = True) -> None:
        """End the zygote and all its sandboxes. Use `wait=False` in a signal handler."""
        if self.process is not None:
            self.process.kill()
            if wait:
                self.control.close()
                self.process.wait()
                self.process = None
        self.folder.cleanup()

    def _ask(self, order: dict[str, Any], attached: socket.socket | None = None) -> dict[str, int]:
        if self.process is None or self.process.poll() is not None:
            if order["do"] == "end":
                return {}  # it died with its parent
            self._launch()
        try:
            data = json.dumps(order).encode()
            socket.send_fds(self.control, [data], [attached.fileno()] if attached else [])
            return dict(json.loads(self.control.recv(4096)))
        except (OSError, ValueError):
            raise RuntimeError("the process that starts sandboxes died; run the grader again") from None

    def _launch(self) -> None:
        self.control, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-c", _START.format(root=str(self.root), number=theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd=self.folder.name,
                env={"PATH": os.environ.get("PATH", ""), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )


@dataclass
class Sandbox:
    """One running sandbox, and the host of the objects in it (see `coursekit.checks.answers.Host`)."""

    zygote: Zygote
    pid: int
    channel: Channel
    rules: Rules
    layers: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.channel.deadline = time.monotonic() + self.rules.seconds
        hello = self._await()
        if "fault" in hello:
            raise RuntimeError(f"a sandbox could not be set up:\n{hello['fault']}")
        self.layers = hello["layers"]

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *exception: object) -> None:
        self.channel.socket.close()
        self.zygote.end(self.pid)

    def run(self, source: str, name: str) -> AnswerRaised | None:
        """Run a cell; return the exception it raised, or None."""
        try:
            self._do({"do": "run", "source": source, "name": name}, "the cell")
        except AnswerRaised as raised:
            return raised
        return None

    def answers(self, names: tuple[str, ...]) -> dict[str, Any]:
        """Return proxies for the objects that the cells defined under these names."""
        reply = self._do({"do": "names", "names": list(names)}, "the cell")
        found = reply.get("found")
        if not isinstance(found, list) or not all(isinstance(x, list) and len(x) == 2 for x in found):
            raise self._broken(BadMessage("a list of names was expected"))
        return {str(name): self._value(data, str(name)) for name, data in found}

    def request(self, number: int, operation: str, arguments: tuple[Any, ...], call: str) -> Any:
        """Perform one of the check's calls."""
        data = encode(arguments, _number_of)
        order = {"do": "call", "number": number, "operation": operation, "arguments": data}
        reply = self._do(order, call, arguments)
        return self._value(reply.get("value"), None if operation == "call" else call)

    def _value(self, data: Any, label: str | None) -> Any:
        try:
            return decode(data, lambda number, kind: Proxy(self, number, label or kind))
        except (BadMessage, RecursionError) as error:
            raise self._broken(error) from None

    def _do(self, order: dict[str, Any], call: str, arguments: tuple[Any, ...] = ()) -> dict[str, Any]:
        """Send one request and return its reply. `arguments` get the changes the answer made, even if it raised."""
        try:
            self.channel.send(order)
        except (Closed, OutOfTime) as error:
            raise self._broken(error) from None
        reply = self._await()
        if "changed" in reply:
            try:
                _update(arguments, decode(reply["changed"], lambda n, kind: None))
            except (BadMessage, TypeError, ValueError) as error:
                raise self._broken(error) from None
        if "raised" in reply:
            match reply["raised"]:
                case [str(name), [*bases], str(message), str(where)] if all(
                    isinstance(b, str) for b in bases
                ):
                    raise AnswerRaised(name[:80], tuple(bases[:20]), message[:500], call, where[:200])
            raise self._broken(BadMessage("an exception was expected"))
        return reply

    def _await(self) -> dict[str, Any]:
        try:
            reply = self.channel.receive()
        except (Closed, OutOfTime, BadMessage) as error:
            raise self._broken(error) from None
        if not isinstance(reply, dict):
            raise self._broken(BadMessage("a reply was expected"))
        return reply

    def _broken(self, error: Exception) -> Broken:
        """End the sandbox and return the reason."""
        if isinstance(error, OutOfTime):
            return Broken("timeout", f"not finished after {self.rules.seconds:g} seconds")
        ended: dict[str, int] = {}
        if isinstance(error, Closed):
            with contextlib.suppress(RuntimeError):
                time.sleep(0.02)
                ended = self.zygote.end(self.pid)
        if "signal" in ended:
            if ended["signal"] == signal.SIGXCPU:
                return Broken(
                    "timeout", f"not finished after {self.rules.seconds:g} seconds of processor time"
                )
            return Broken("died", f"the process was killed by {signal.Signals(ended['signal']).name}")
        if isinstance(error, Closed):
            return Broken("died", f"the code ended its own process (exit code {ended.get('exit', 0)})")
        return Broken("died", f"the code broke the connection to the grader ({str(error)[:80]})")


def _number_of(thing: Any) -> int:
    if isinstance(thing, Proxy):
        return int(thing._number)
    raise TypeError(f"a check cannot pass a {type(thing).__name__} to an answer")


def _update(old: Any, new: Any) -> None:
    """Update lists, dicts and arrays that were passed to match the answer's changes."""
    if isinstance(old, tuple) and isinstance(new, tuple) and len(old) == len(new):
        for one, other in zip(old, new, strict=True):
            _update(one, other)
    elif type(old) is type(new) and isinstance(old, list):
        kept = any(isinstance(item, Proxy | tuple | dict) or type(item).__name__ == "ndarray" for item in old)
        if kept and len(old) == len(new):
            for one, other in zip(old, new, strict=True):
                _update(one, other)
        else:
            old[:] = new
    elif type(old) is type(new) and isinstance(old, dict):
        if any(isinstance(item, Proxy) for item in old.values()):
            return
        for key in old.keys() & new.keys():
            _update(old[key], new[key])
        for key in old.keys() - new.keys():
            del old[key]
        old.update(
            {key: value for key, value in new.items() if not isinstance(value, list | dict) or key not in old}
        )
    elif type(old).__name__ == "ndarray" and type(new).__name__ == "ndarray":
        old[...] = new
