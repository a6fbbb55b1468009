"""Marks for tests that need what some systems lack; each skip names what is missing."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

import pytest

from paged_ref.attention import BACKENDS

NO_TRITON = "Triton is not installed: it has no package for this system"
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason=NO_TRITON)


def _can_import(name: str) -> bool:
    try:
        __import__(name, globals())
    except ImportError:
        return False
    return True


_PARTS = {
    "os.fork": hasattr(os, "fork"),
    "signal.SIGKILL": hasattr(signal, "SIGKILL"),
    "socket.send_fds": hasattr(socket, "send_fds"),
    "resource": _can_import("resource"),
}
_missing = [name for name, there in _PARTS.items() if not there]
needs_sandbox = pytest.mark.skipif(
    bool(_missing), reason=f"the grader's sandbox needs {', '.join(_missing)}, missing on this system"
)
needs_pty = pytest.mark.skipif(not _can_import("pty"), reason="the module pty is missing on this system")


def runnable(backends: Iterable[str] = BACKENDS) -> list[Any]:
    """Return parameters for `backend`: those that need Triton are skipped where it is missing."""
    return [pytest.param(name, marks=needs_triton) if name == "triton" else name for name in backends]
