"""Memory that this process may still take: the machine's, its container's, and its own limits (chapter 6).

Free memory of the machine is not what a process may use. A container (a Linux control group) has a limit of its own,
and so may each group around it; beyond it the kernel kills the process. A process can have limits too (`ulimit -v`),
beyond which an allocation fails. The smallest amount counts:

    machine  64 GB free
      group /pod        limit 8 GB, 5 GB used    -> 3 GB
        group /pod/job  limit 4 GB, 2 GB used    -> 2 GB   <- this one
          process       no limit

The page cache counts as used memory of a group, but its inactive part is given up first, so it is subtracted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

PROC = Path("/proc/self")
CGROUPS = Path("/sys/fs/cgroup")


class Room(NamedTuple):
    """Bytes that can still be allocated, and what limits them; "" for the machine itself."""

    num_bytes: int
    limited_by: str


class _Names(NamedTuple):
    """The files of a memory group, which version 1 and version 2 of control groups name differently."""

    limits: tuple[str, ...]
    usage: str
    inactive: str


V1 = _Names(("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")
V2 = _Names(("memory.max", "memory.high"), "memory.current", "inactive_file")


def free_memory() -> Room:
    """Return the smallest of the machine's free memory and what each limit leaves."""
    rooms = [Room(psutil.virtual_memory().available, ""), *_container_rooms(), *_process_rooms()]
    return min(rooms, key=lambda room: room.num_bytes)


def _container_rooms() -> Iterator[Room]:
    """Yield what this process's control groups, and all groups around them, leave."""
    for line in _read(PROC / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            names, mount = V2, CGROUPS if (CGROUPS / "cgroup.controllers").exists() else CGROUPS / "unified"
        elif "memory" in controllers.split(","):
            names, mount = V1, CGROUPS / "memory"
        else:
            continue
        # Inside a container, the group may be mounted as the root and have another path: then only the root exists.
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            yield from _group_rooms(mount.joinpath(*parts[:depth]), names)


def _group_rooms(group: Path, names: _Names) -> Iterator[Room]:
    limits = [int(text) for name in names.limits if (text := _read(group / name).strip()).isdigit()]
    used = _read(group / names.usage).strip()
    if limits and used.isdigit():
        statistics = dict(line.split() for line in _read(group / "memory.stat").splitlines())
        held = max(0, int(used) - int(statistics.get(names.inactive, 0)))
        yield Room(max(0, min(limits) - held), "the container's memory limit")


def _process_rooms() -> Iterator[Room]:
    """Yield what the limits on this process's address space and data leave."""
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return
    used = psutil.Process().memory_info()._asdict()
    for name, field in (("RLIMIT_AS", "vms"), ("RLIMIT_DATA", "data")):
        limit, _ = resource.getrlimit(getattr(resource, name))
        if limit != resource.RLIM_INFINITY and field in used:
            yield Room(max(0, limit - used[field]), f"this process's {name}")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:  # not Linux, not mounted, or not readable
        return ""
