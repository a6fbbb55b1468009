"""Restrictions on a sandbox, in layers. Called once in a fresh process, before any line of a submission runs.

1. *Limits* (any POSIX system): memory, processor time and open files are limited; no file can grow.
2. *Landlock* (Linux 5.13 and newer): the operating system exposes only Python's own files and the system's libraries,
   for reading. Newer kernels also deny TCP, signals to processes outside, and abstract sockets.
3. *Seccomp* (Linux, x86-64 and ARM): a list of the system calls that answers need (`syscalls.py`); all others fail.
4. *An audit hook* (everywhere): Python's own functions for such actions raise PermissionError with a clear message.

Limits: layers 2 and 3 are enforced by the operating system and hold against any code. Where one of them is missing
(macOS, an old Linux), the grader refuses to run unless it is told to (`--weak-sandbox`), and `exposed` lists what is
then at risk. Points cannot be forged in either case: see the package's docstring.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from coursekit.grade import syscalls

# Landlock's rights: system call numbers are the same on every machine.
_READ_FILE, _READ_FOLDER, _WRITE_FILE = 0b100, 0b1000, 0b10
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_SYSTEM = (
    "/usr",
    "/lib",
    "/lib64",
    "/bin",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/dev/urandom",
    "/dev/null",
)

_DENIED = ("ctypes.", "os.fork", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.kill", "os.remove",
           "os.rename", "os.rmdir", "os.mkdir", "os.chmod", "os.chown", "os.link", "os.symlink", "os.truncate",
           "os.startfile", "os.setxattr", "os.removexattr", "os.utime", "subprocess.", "pty.", "socket.", "shutil.",
           "sqlite3.", "resource.", "signal.pthread_kill", "sys.addaudithook", "syslog.", "fcntl.")  # fmt: skip

REQUIRED = ("landlock", "seccomp")
_EXPOSED = {
    "landlock": "Files: only Python's audit hook keeps an answer from reading the solutions, the other submissions and "
    "everything else that you can read, and from emptying files that you can write.",
    "seccomp": "Processes: an answer can open network connections, start programs that outlive the run, and signal or "
    "trace the grader and your other processes.",
}


class WeakSandbox(Exception):
    """The operating system lacks a layer of the sandbox, and the grader was not told to run without it."""


def lock_down(*, seconds: float, memory_mb: int, hidden: Path) -> list[str]:
    """Apply every layer that this machine supports, and return their names. `hidden` is the course's folder."""
    layers = ["limits"]
    _limit(seconds, memory_mb)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG: end with the parent
        libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS: no program started from here gains rights
        header, none = struct.pack("Ii", 0x20080522, 0), bytes(24)
        libc.capset(header, none)
        layers += ["landlock"] * _landlock(libc)
        layers += ["seccomp"] * syscalls.restrict(libc)
    sys.addaudithook(_audit_hook(os.path.realpath(hidden)))
    return [*layers, "audit hook"]


def missing_layers() -> list[str]:
    """Return the required layers that this machine lacks."""
    have = {"landlock": landlock_version() > 0, "seccomp": syscalls.supported()}
    return [layer for layer in REQUIRED if not have[layer]]


def exposed(missing: Iterable[str]) -> list[str]:
    """Return one sentence for each missing layer: what answers can reach without it."""
    return [_EXPOSED[layer] for layer in REQUIRED if layer in missing]


def readable_paths() -> list[str]:
    """Paths where this interpreter and the system keep the files that a program needs: what a sandbox can read."""
    own = {sys.prefix, sys.base_prefix, *(path for path in sys.path if "-packages" in path)}
    return [path for path in (*sorted(own), *_SYSTEM) if path != "/" and Path(path).exists()]


def unprotected(paths: Iterable[Path]) -> list[str]:
    """Return a sentence for each of these paths that every answer could read, because of where it is.

    A copy of the course among the interpreter's packages is readable, too, wherever the course that grades is.
    """
    found = []
    for folder in (path for path in sys.path if "-packages" in path):
        if (copy := Path(folder) / "paged_ref").exists():
            found.append(
                f"{copy} is a copy of the course, which answers can read: uninstall it, or install with -e"
            )
    for path in paths:
        for folder in readable_paths():
            if path.resolve().is_relative_to(Path(folder).resolve()):
                found.append(f"{path} is below {folder}, which answers can read: move it elsewhere")
                break
    return found


def _limit(seconds: float, memory_mb: int) -> None:
    import resource  # Windows has none; there the grader says so instead

    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CPU: int(seconds) + 2,
        resource.RLIMIT_AS: memory_mb << 20,
    }
    for kind, value in limits.items():
        hard = resource.getrlimit(kind)[1]
        if kind == resource.RLIMIT_AS and sys.platform == "darwin":
            continue  # the system does not allow this limit
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def landlock_version() -> int:
    """The Landlock version of this system; 0 or less if it has none."""
    if sys.platform != "linux":
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1)))


def _landlock(libc: Any) -> bool:
    """Handle every right that this kernel's version knows, and grant reading of `readable_paths`."""
    version = landlock_version()
    if version < 1:
        return False
    files = (1 << 13) - 1 | (1 << 13) * (version >= 2)  # link and rename across folders
    files |= (1 << 14) * (version >= 3) | (1 << 15) * (version >= 5)  # truncate, ioctl on devices
    network = 0b11 * (version >= 4)  # bind and connect, TCP
    scopes = 0b11 * (version >= 6)  # abstract sockets and signals, to processes outside
    attributes = struct.pack("=QQQ", files, network, scopes)
    ruleset = libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(24), ctypes.c_uint32(0))
    if ruleset < 0:
        return False
    for path in readable_paths():
        folder = os.open(path, os.O_PATH)
        rights = _READ_FILE | _READ_FOLDER * Path(path).is_dir() | _WRITE_FILE * (path == "/dev/null")
        rule = struct.pack("=Qi", rights, folder)
        libc.syscall(_ADD_RULE, ruleset, 1, ctypes.c_char_p(rule), ctypes.c_uint32(0))
        os.close(folder)
    done = libc.syscall(_RESTRICT_SELF, ruleset, ctypes.c_uint32(0)) == 0
    os.close(ruleset)
    return bool(done)


def _audit_hook(hidden: str) -> Any:
    """Deny actions by raising. Uses no names that a submission could replace in the modules it knows."""
    realpath, denied, flags = os.path.realpath, _DENIED, os.O_WRONLY | os.O_RDWR | os.O_CREAT
    real = (os.path.realpath(path) + os.sep for path in readable_paths())
    own = tuple(path for path in real if path.startswith(hidden + os.sep))  # an environment inside the course

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" or event in ("os.listdir", "os.scandir"):
            path = arguments[0]
            if not isinstance(path, str | bytes):
                return
            name = realpath(path.decode(errors="replace") if isinstance(path, bytes) else path)
            if event == "open" and (arguments[2] or 0) & flags and name != "/dev/null":
                raise PermissionError("answers cannot write files here")
            secret = (name + os.sep).startswith(hidden + os.sep) and not (name + os.sep).startswith(own)
            if secret or name.startswith("/proc"):
                raise PermissionError("answers cannot read the course's files or other processes here")
        elif event.startswith(denied):
            raise PermissionError(f"answers cannot do this here ({event})")

    return hook
