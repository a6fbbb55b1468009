"""A pytest plugin that takes modules and functions away, as they are missing on other systems.

    WITHOUT=triton,fcntl,os.fork python3 -m pytest -p tests.helpers.without tests

A package such as triton is hidden from everyone. A module of the standard library such as fcntl is hidden from the
course's own code alone: other libraries know which system they run on, and import what it has. A dotted name such as
os.fork is deleted. tests/test_other_systems.py uses this.
"""

from __future__ import annotations

import builtins
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = "WITHOUT"
TRITON = "triton"
POSIX = "fcntl,resource,pty,os.fork,signal.SIGKILL,socket.send_fds"


class Hiding:
    """A finder that does not find some packages, and leaves the others to the finder that it replaces."""

    def __init__(self, finder: Any, packages: set[str]) -> None:
        self._finder, self._packages = finder, packages

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> ModuleSpec | None:
        """Return None for a hidden package."""
        if name.partition(".")[0] in self._packages:
            return None
        return self._finder.find_spec(name, path, target)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)


def hide(names: list[str]) -> None:
    """Hide modules and delete attributes for the rest of this process."""
    attributes = [name for name in names if "." in name]
    modules = {name for name in names if "." not in name}
    stdlib = modules & sys.stdlib_module_names
    sys.meta_path[:] = [Hiding(finder, modules - stdlib) for finder in sys.meta_path]
    for name in [name for name in sys.modules if name.partition(".")[0] in modules - stdlib]:
        del sys.modules[name]
    if attributes:
        importlib.import_module(
            "torch.distributed.elastic.timer"
        )  # reads signal.SIGKILL: it is on this system
    for name in attributes:
        module, _, attribute = name.partition(".")
        if hasattr(importlib.import_module(module), attribute):
            delattr(importlib.import_module(module), attribute)
    real = builtins.__import__

    def guarded(name: str, globals: Mapping[str, Any] | None = None, *more: Any, **options: Any) -> Any:
        if name.partition(".")[0] in stdlib and _is_ours(globals or {}):
            raise ModuleNotFoundError(f"No module named {name!r} (taken away by {VARIABLE})", name=name)
        return real(name, globals, *more, **options)

    builtins.__import__ = guarded  # type: ignore[assignment]


def _is_ours(namespace: Mapping[str, Any]) -> bool:
    """Return True for the globals of a module of the repository itself, not of an environment inside it."""
    file = Path(namespace.get("__file__") or "/")
    return file.is_relative_to(ROOT) and ".venv" not in file.parts


hide([name for name in os.environ.get(VARIABLE, "").split(",") if name])
