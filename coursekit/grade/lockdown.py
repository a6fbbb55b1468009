"""Restrictions on a sandbox, in layers. Called once in a fresh process, before any line of a submission runs.

1. *Limits* (any POSIX system): memory, processor time and open files are limited; writing to files is not allowed.
2. *Landlock* (Linux 5.13 and newer): the operating system exposes only Python's own files and the system's libraries.
   Solutions, the bank, the checks, other submissions and the report cannot be opened by any method.
3. *Seccomp* (Linux, x86-64 and ARM): no new process or program, no signal to another process, no socket, no tracing,
   no change of file modes. Root's capabilities are dropped first.
4. *An audit hook* (everywhere): Python's own functions for such actions raise PermissionError with a clear message.

Limits: layers 2 and 3 are enforced by the operating system and hold against any code. Where they are missing (macOS,
old Linux), only layer 4 protects the solutions, and code that manipulates the interpreter's memory can bypass it;
a report made there says so. Points cannot be forged in either case: see the package's docstring.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct
import sys
from pathlib import Path
from typing import Any

# Landlock's rights on files, and its system call numbers, the same on every machine.
_READ = 0b1101  # execute, read a file, read a folder
_ALL_BY_VERSION = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF}
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

# System calls that a sandbox does not need, by number (0: the architecture does not have it).
_FORBIDDEN = {  # name: (x86-64, aarch64)
    "fork": (57, 0), "vfork": (58, 0), "execve": (59, 221), "execveat": (322, 281),
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_send_signal": (424, 424), "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438), "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "setsid": (112, 157), "setpgid": (109, 154),
    "io_uring_setup": (425, 425), "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "chmod": (90, 0), "fchmod": (91, 52),
    "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, 0), "fchown": (93, 55), "lchown": (94, 0),
    "fchownat": (260, 54), "utime": (132, 0), "utimes": (235, 0), "utimensat": (280, 88), "shmget": (29, 194),
    "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
}  # fmt: skip
_MACHINES = {"x86_64": (0, 0xC000003E, 56), "aarch64": (1, 0xC00000B7, 220)}  # column, audit code, clone
_CLONE3, _CLONE_THREAD = 435, 0x10000

_DENIED = ("ctypes.", "os.fork", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.kill", "os.remove",
           "os.rename", "os.rmdir", "os.mkdir", "os.chmod", "os.chown", "os.link", "os.symlink", "os.truncate",
           "os.startfile", "subprocess.", "pty.", "socket.", "shutil.", "sqlite3.", "resource.", "signal.pthread_kill",
           "sys.addaudithook", "syslog.", "fcntl.")  # fmt: skip


def lock_down(*, seconds: float, memory_mb: int, hidden: Path, readable: list[str]) -> list[str]:
    """Apply every layer that this machine supports, and return their names.

    `hidden` is the course's folder, in which only the paths in `readable` may be read.
    """
    layers = ["limits"]
    _limit(seconds, memory_mb)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG: end with the parent
        libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS: no program started from here gains rights
        header, none = struct.pack("Ii", 0x20080522, 0), bytes(24)
        libc.capset(header, none)
        layers += ["landlock"] * _landlock(libc, readable)
        layers += ["seccomp"] * _seccomp(libc)
    sys.addaudithook(_audit_hook(os.path.realpath(hidden), [os.path.realpath(path) for path in readable]))
    return [*layers, "audit hook"]


def python_paths() -> list[str]:
    """Paths where this interpreter and the system keep the files that a program needs."""
    own = {sys.prefix, sys.base_prefix, *(path for path in sys.path if "-packages" in path)}
    return [path for path in (*sorted(own), *_SYSTEM) if path != "/" and Path(path).exists()]


def _limit(seconds: float, memory_mb: int) -> None:
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


def _landlock(libc: Any, readable: list[str]) -> bool:
    version = landlock_version()
    if version < 1:
        return False
    handled = ctypes.c_uint64(_ALL_BY_VERSION[min(version, 3)])
    ruleset = libc.syscall(_CREATE_RULESET, ctypes.byref(handled), ctypes.c_size_t(8), ctypes.c_uint32(0))
    if ruleset < 0:
        return False
    for path in readable:
        folder = os.open(path, os.O_PATH)
        rights = _READ if Path(path).is_dir() else 0b101
        rights |= 0b10 * (path == "/dev/null")
        rule = struct.pack("=Qi", rights, folder)
        libc.syscall(_ADD_RULE, ruleset, 1, ctypes.c_char_p(rule), ctypes.c_uint32(0))
        os.close(folder)
    done = libc.syscall(_RESTRICT_SELF, ruleset, ctypes.c_uint32(0)) == 0
    os.close(ruleset)
    return bool(done)


def _seccomp(libc: Any) -> bool:
    if platform.machine() not in _MACHINES:
        return False
    column, audit_code, clone = _MACHINES[platform.machine()]
    numbers = [pair[column] for pair in _FORBIDDEN.values() if pair[column]]
    load, equal, has_bit, end = 0x20, 0x15, 0x45, 0x06
    allow, deny, unknown = 0x7FFF0000, 0x00050001, 0x00050026  # EPERM, ENOSYS
    code = [(load, 0, 0, 4), (equal, 1, 0, audit_code), (end, 0, 0, deny), (load, 0, 0, 0)]
    for number in numbers:
        code += [(equal, 0, 1, number), (end, 0, 0, deny)]
    code += [
        (equal, 0, 1, _CLONE3),
        (end, 0, 0, unknown),
    ]  # its flags cannot be inspected; libc falls back to clone
    code += [(equal, 0, 3, clone), (load, 0, 0, 16), (has_bit, 1, 0, _CLONE_THREAD), (end, 0, 0, deny)]
    code += [(end, 0, 0, allow)]
    program = b"".join(struct.pack("HBBI", *line) for line in code)
    buffer = ctypes.create_string_buffer(program)
    header = struct.pack("HxxxxxxQ", len(code), ctypes.addressof(buffer))
    return bool(libc.prctl(22, 2, ctypes.c_char_p(header), 0, 0) == 0)


def _audit_hook(hidden: str, readable: list[str]) -> Any:
    """Deny actions by raising. Uses no names that a submission could replace in the modules it knows."""
    realpath, denied, flags = os.path.realpath, _DENIED, os.O_WRONLY | os.O_RDWR | os.O_CREAT
    inside = tuple(path + os.sep for path in readable if path.startswith(hidden + os.sep))

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" or event in ("os.listdir", "os.scandir"):
            path = arguments[0]
            if not isinstance(path, str | bytes):
                return
            name = realpath(path.decode(errors="replace") if isinstance(path, bytes) else path)
            if event == "open" and (arguments[2] or 0) & flags and name != "/dev/null":
                raise PermissionError("answers cannot write files here")
            secret = (name + os.sep).startswith(hidden + os.sep) and not (name + os.sep).startswith(inside)
            if secret or name.startswith("/proc"):
                raise PermissionError("answers cannot read the course's files or other processes here")
        elif event.startswith(denied):
            raise PermissionError(f"answers cannot do this here ({event})")

    return hook
