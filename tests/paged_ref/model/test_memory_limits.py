"""Free memory under limits: control groups of both versions, nested ones, and limits of the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from paged_ref.model import memory_limits
from paged_ref.model.memory_limits import free_memory

GB = 10**9


class Machine:
    """A machine with 64 GB free, and control groups under a folder."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.cgroups = folder / "proc", folder / "cgroup"
        self.proc.mkdir()
        self.cgroups.mkdir()

    def join(self, *lines: str) -> None:
        (self.proc / "cgroup").write_text("".join(line + "\n" for line in lines))

    def group(self, path: str, **files: object) -> None:
        folder = self.cgroups / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name.replace("__", ".")).write_text(f"{content}\n")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.setattr(memory_limits, "PROC", made.proc)
    monkeypatch.setattr(memory_limits, "CGROUPS", made.cgroups)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=64 * GB))
    return made


def test_without_groups_the_machine_decides(machine: Machine) -> None:
    assert free_memory() == (64 * GB, "")


def test_version_2_as_a_container_sees_it(machine: Machine) -> None:
    machine.join("0::/")
    machine.group("", cgroup__controllers="memory", memory__max=8 * GB, memory__current=3 * GB)
    assert free_memory() == (5 * GB, "the container's memory limit")
    machine.group("", memory__stat=f"anon 1\ninactive_file {GB}\nactive_file 7")
    assert free_memory().num_bytes == 6 * GB
    machine.group("", memory__high=7 * GB)
    assert free_memory().num_bytes == 5 * GB
    machine.group("", memory__max="max", memory__high="max")
    assert free_memory() == (64 * GB, "")


def test_the_smallest_of_nested_groups_counts(machine: Machine) -> None:
    machine.join("0::/pod/job")
    machine.group("", cgroup__controllers="memory")
    machine.group("pod", memory__max=8 * GB, memory__current=7 * GB)
    machine.group("pod/job", memory__max=4 * GB, memory__current=2 * GB)
    assert free_memory().num_bytes == GB
    machine.group("pod", memory__current=5 * GB)
    assert free_memory().num_bytes == 2 * GB
    machine.group("pod/job", memory__max="max")
    assert free_memory().num_bytes == 3 * GB


def test_version_1(machine: Machine) -> None:
    machine.join("12:cpu,cpuacct:/a", "4:memory:/docker/abc", "0::/x")
    machine.group("memory", memory__limit_in_bytes=9223372036854771712, memory__usage_in_bytes=9 * GB)
    machine.group("memory/docker/abc", memory__limit_in_bytes=2 * GB, memory__usage_in_bytes=GB,
                  memory__stat=f"inactive_file 5\ntotal_inactive_file {GB // 2}")  # fmt: skip
    assert free_memory() == (3 * GB // 2, "the container's memory limit")


def test_a_container_whose_group_is_mounted_as_the_root(machine: Machine) -> None:
    machine.join("4:memory:/docker/abc")
    machine.group("memory", memory__limit_in_bytes=2 * GB, memory__usage_in_bytes=3 * GB)
    assert free_memory().num_bytes == 0, "above the limit already"


def test_limits_of_the_process() -> None:
    """In a process of its own, because a lowered limit stays."""
    pytest.importorskip("resource")
    code = """
import resource, sys
from paged_ref.model.memory_limits import free_memory
import psutil
name = sys.argv[1]
used = psutil.Process().memory_info()
limit = (used.vms if name == "RLIMIT_AS" else used.data) + 50_000_000
resource.setrlimit(getattr(resource, name), (limit, limit))
room = free_memory()
print(room.num_bytes, room.limited_by)
"""
    for name in ("RLIMIT_AS", "RLIMIT_DATA"):
        run = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True, check=True)
        room, limited_by = run.stdout.split(" ", 1)
        assert limited_by.strip() == f"this process's {name}"
        assert 30_000_000 < int(room) <= 50_000_000
