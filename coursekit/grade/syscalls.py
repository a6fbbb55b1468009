"""The system calls that answers need. All others fail with "operation not permitted".

The list was found by running every solution and every answer of the bank. It has no call that makes a process, a
program, a socket, a signal to anything, a key, an attribute or a file; none that changes a file's name, size, times or
rights; and none that changes a priority or a limit.
"""

from __future__ import annotations

import ctypes
import platform
import struct
import sys
from typing import Any

Line = tuple[int, int, int, int]

_CALLS = {  # name: (x86-64, aarch64); -1: the architecture does not have it
    # files, open for reading only: Landlock and the limits see to it
    "open": (2, -1), "openat": (257, 56), "close": (3, 57), "read": (0, 63), "write": (1, 64), "readv": (19, 65),
    "writev": (20, 66), "pread64": (17, 67), "lseek": (8, 62), "dup": (32, 23), "dup2": (33, -1), "dup3": (292, 24),
    "pipe": (22, -1), "pipe2": (293, 59), "stat": (4, -1), "fstat": (5, 80), "lstat": (6, -1),
    "newfstatat": (262, 79), "statx": (332, 291), "access": (21, -1), "faccessat": (269, 48),
    "faccessat2": (439, 439), "readlink": (89, -1), "readlinkat": (267, 78), "getdents64": (217, 61),
    "getcwd": (79, 17), "chdir": (80, 49),
    # memory and threads
    "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "brk": (12, 214), "mremap": (25, 216),
    "madvise": (28, 233), "mincore": (27, 232), "futex": (202, 98), "set_robust_list": (273, 99),
    "set_tid_address": (218, 96), "rseq": (334, 293), "membarrier": (324, 283), "arch_prctl": (158, -1),
    "sched_yield": (24, 124), "sched_getaffinity": (204, 123), "getcpu": (309, 168), "exit": (60, 93),
    "exit_group": (231, 94), "restart_syscall": (219, 128),
    # its own signals and timers
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136),
    "rt_sigtimedwait": (128, 137), "rt_sigsuspend": (130, 133), "sigaltstack": (131, 132), "pause": (34, -1),
    "alarm": (37, -1), "getitimer": (36, 102), "setitimer": (38, 103),
    # clocks, random bytes, facts about the process and the machine
    "nanosleep": (35, 101), "clock_nanosleep": (230, 115), "clock_gettime": (228, 113), "clock_getres": (229, 114),
    "gettimeofday": (96, 169), "times": (100, 153), "getrusage": (98, 165), "getrlimit": (97, 163),
    "getrandom": (318, 278), "uname": (63, 160), "sysinfo": (99, 179), "getpid": (39, 172), "getppid": (110, 173),
    "gettid": (186, 178), "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177),
    # the connection to the judge, which exists already
    "sendto": (44, 206), "recvfrom": (45, 207), "poll": (7, -1), "ppoll": (271, 73), "select": (23, -1),
    "pselect6": (270, 72),
}  # fmt: skip

_DUPFD, _GETFD, _SETFD, _GETFL, _SETFL, _DUPFD_CLOEXEC = 0, 1, 2, 3, 4, 1030
_TCGETS, _TIOCGWINSZ, _FIONREAD, _FIONBIO, _FIONCLEX, _FIOCLEX = (
    0x5401,
    0x5413,
    0x541B,
    0x5421,
    0x5450,
    0x5451,
)
_THREAD = 0x10000  # of clone's flags
_CLONE3 = 435

# Calls that are allowed for some values of their second argument only.
_FCNTL = (_DUPFD, _GETFD, _SETFD, _GETFL, _SETFL, _DUPFD_CLOEXEC)
_IOCTL = (_TCGETS, _TIOCGWINSZ, _FIONREAD, _FIONBIO, _FIONCLEX, _FIOCLEX)

_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column, audit code
_LOAD, _EQUAL, _HAS_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _DENY, _UNKNOWN = 0x7FFF0000, 0x00050001, 0x00050026  # EPERM, ENOSYS


def supported() -> bool:
    """Return True if this machine can filter system calls with the list above."""
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        return False
    return int(ctypes.CDLL(None).prctl(21, 0, 0, 0, 0)) >= 0  # PR_GET_SECCOMP


def restrict(libc: Any) -> bool:
    """Deny this thread, and those that it starts, all other system calls. Return False where that is impossible."""
    if platform.machine() not in _MACHINES:
        return False
    code = _program(*_MACHINES[platform.machine()])
    buffer = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
    header = struct.pack("HxxxxxxQ", len(code), ctypes.addressof(buffer))
    return bool(libc.prctl(22, 2, ctypes.c_char_p(header), 0, 0) == 0)  # PR_SET_SECCOMP, a filter


def _program(column: int, machine: int) -> list[Line]:
    """The filter, in the kernel's BPF: an architecture, then a block for each call, and denial at the end."""
    code: list[Line] = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, machine), (_RETURN, 0, 0, _DENY), (_LOAD, 0, 0, 0)]
    for numbers in _CALLS.values():
        if numbers[column] >= 0:
            code += _if_call(numbers[column], [])
    code += _if_call((72, 25)[column], _one_of(1, _FCNTL))  # fcntl: neither an owner nor a signal
    code += _if_call((16, 29)[column], _one_of(1, _IOCTL))
    code += _if_call((302, 261)[column], [*_one_of(0, (0,)), *_null(2)])  # prlimit64: its own limits, reading
    is_thread: list[Line] = [_argument(0), (_HAS_BIT, 1, 0, _THREAD), (_RETURN, 0, 0, _DENY)]
    code += _if_call((56, 220)[column], is_thread)  # clone
    code += [(_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _UNKNOWN)]  # not inspectable: libc falls back to clone
    return [*code, (_RETURN, 0, 0, _DENY)]


def _if_call(number: int, tests: list[Line]) -> list[Line]:
    """Allow the call if its tests do not deny it."""
    return [(_EQUAL, 0, len(tests) + 1, number), *tests, (_RETURN, 0, 0, _ALLOW)]


def _argument(index: int, half: int = 0) -> Line:
    return (_LOAD, 0, 0, 16 + 8 * index + 4 * half)


def _one_of(index: int, values: tuple[int, ...]) -> list[Line]:
    tests: list[Line] = [(_EQUAL, len(values) - i, 0, value) for i, value in enumerate(values)]
    return [_argument(index), *tests, (_RETURN, 0, 0, _DENY)]


def _null(index: int) -> list[Line]:
    high: Line = _argument(index, 1)
    return [*_one_of(index, (0,)), high, (_EQUAL, 1, 0, 0), (_RETURN, 0, 0, _DENY)]
