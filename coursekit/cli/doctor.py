"""The doctor: is this machine ready for the course? Chapter 0, and `python3 course.py doctor`.

Versions prove little, so the main check runs a known kernel: the one in `doctor_kernel.py`, compiled where
there is a GPU and interpreted elsewhere, compared with NumPy. `check()` returns facts; their names, their
order and, on a healthy machine, `ok` are the same everywhere, while `detail` says what this machine is.
`report()` shows them.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from coursekit import ROOT, quoted

PIP = f"{quoted(sys.executable)} -m pip install"
SET_UP_AGAIN = f'run `{PIP} -c constraints.txt -e ".[lab,serve,test]"` in the course\'s folder'
REINSTALL_TRITON = f"run `{PIP} --force-reinstall --no-deps -c constraints.txt triton` in the course's folder"
KERNEL_TIMEOUT_S = 180


@dataclass(frozen=True)
class Check:
    """One finding. WARN: the course works, with a limit that `remedy` explains. FAIL: it does not."""

    name: str
    status: Literal["OK", "WARN", "FAIL"]
    detail: str
    remedy: str = ""

    @property
    def ok(self) -> bool:
        """Whether the course can be used as far as this check goes."""
        return self.status != "FAIL"


def python() -> Check:
    """Which Python runs this; course.py and pip refuse one that is too old."""
    return Check("Python", "OK", platform.python_version())


def machine() -> Check:
    """What the machine is; nothing here can be wrong."""
    return Check("machine", "OK", f"{platform.system()} {platform.machine()}, {usable_cores()} cores")


def usable_cores() -> int:
    """The cores this process may use, which a container may have made fewer."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory() -> Check:
    """Enough free memory for the model in float32, a cache and a notebook."""
    import psutil

    now = psutil.virtual_memory()
    detail = f"{now.available / 1e9:.1f} GB free of {now.total / 1e9:.1f} GB"
    if now.available < 3e9:
        return Check("memory", "WARN", detail, "3 GB free are needed: shut down other notebooks and programs")
    return Check("memory", "OK", detail)


def disk() -> Check:
    """Enough room for the model in its cache and for outputs."""
    free = shutil.disk_usage(ROOT).free / 1e9
    if free < 1:
        return Check(
            "disk", "WARN", f"{free:.1f} GB free", "make 1 GB of room: the model and its cache take 0.6 GB"
        )
    return Check("disk", "OK", f"{free:.1f} GB free")


def packages() -> Check:
    """The installed versions are the pinned ones."""
    try:
        text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    except FileNotFoundError:
        detail = f"{ROOT} has no constraints.txt: the versions were not compared with the pinned ones"
        return Check("packages", "WARN", detail, "get constraints.txt from the course's repository")
    pins = re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE)
    other = []
    for name, pin in pins:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # another platform's
        if version.partition("+")[0] != pin:
            other.append(f"{name} {version} (pinned: {pin})")
    if other:
        return Check("packages", "WARN", ", ".join(other), SET_UP_AGAIN)
    return Check("packages", "OK", "every installed version is the pinned one")


def torch() -> Check:
    """PyTorch imports and computes."""
    try:
        import torch

        right = torch.equal(torch.ones(2, 3) @ torch.ones(3, 2), torch.full((2, 2), 3.0))
    except (ImportError, OSError, RuntimeError) as error:
        return Check("PyTorch", "FAIL", str(error).splitlines()[0], SET_UP_AGAIN)
    if not right:
        return Check(
            "PyTorch", "FAIL", f"{torch.__version__} multiplies wrongly", "reinstall it: remove .venv first"
        )
    return Check("PyTorch", "OK", torch.__version__)


def gpu_count() -> int:
    """The CUDA devices PyTorch sees. Asks without starting CUDA, which would take GPU memory here."""
    try:
        import torch
    except (ImportError, OSError):
        return 0
    return torch.cuda.device_count()


def gpu() -> Check:
    """Whether there is a GPU. None is fine."""
    count = gpu_count()
    return Check("GPU", "OK", f"{count} found" if count else "none: everything runs on the CPU")


def kernel() -> Check:
    """A Triton kernel runs here and gathers through a block table exactly as NumPy does."""
    name = "kernel"
    if importlib.util.find_spec("triton") is None:
        if sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64"):
            return Check(name, "FAIL", "Triton is not installed", REINSTALL_TRITON)
        system = platform.system()
        remedy = "nothing to do: chapter 5 explains itself with stored results, every other chapter runs here"
        return Check(name, "WARN", f"Triton has no package for {system} {platform.machine()}", remedy)
    environment = dict(os.environ)
    environment.pop("TRITON_INTERPRET", None)
    if not gpu_count():
        environment["TRITON_INTERPRET"] = "1"
    command = [sys.executable, "-m", "coursekit.cli.doctor_kernel"]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=KERNEL_TIMEOUT_S,
            check=False,
        )
        found = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return Check(
            name, "FAIL", f"no result in {KERNEL_TIMEOUT_S} s", "stop other work on this machine, try again"
        )
    except (IndexError, ValueError):
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        remedy = "a GPU kernel needs a C compiler: install gcc" if gpu_count() else SET_UP_AGAIN
        return Check(name, "FAIL", f"the Triton kernel did not run: {said}", remedy)
    if found["difference"] != 0.0:
        detail = f"{found['where']}: the Triton kernel differs from NumPy by {found['difference']}"
        return Check(
            name, "FAIL", detail, "remove .venv and set up again; if it stays, report it with this table"
        )
    return Check(name, "OK", f"Triton gather through a block table on {found['where']}: equal to NumPy")


def model() -> Check:
    """Whether the course's model is in this user's cache; chapters 0 and 7 need it."""
    from paged_ref import weights

    recipe = weights.RECIPES[weights.DEFAULT_MODEL]
    if weights.is_complete(weights.cache_folder() / "models" / recipe.folder_name):
        return Check("model", "OK", f"{recipe.name} is in the cache")
    fetch = f"{quoted(sys.executable)} -m paged_ref.weights"
    remedy = f"`{fetch}` fetches it once, with a network; chapters 1 to 6 do without"
    return Check("model", "WARN", f"{recipe.name} is not in the cache", remedy)


def jupyter() -> Check:
    """JupyterLab and the kernel that its notebooks run in are installed."""
    missing = [
        name for name in ("jupyterlab", "ipykernel", "ipywidgets") if importlib.util.find_spec(name) is None
    ]
    if missing:
        return Check("JupyterLab", "FAIL", f"{', '.join(missing)} not installed", SET_UP_AGAIN)
    return Check("JupyterLab", "OK", importlib.metadata.version("jupyterlab"))


def port() -> Check:
    """Whether JupyterLab gets its usual port; it takes the next free one otherwise."""
    with socket.socket() as probe:
        taken = probe.connect_ex(("127.0.0.1", 8888)) == 0
    return Check(
        "port", "OK", "8888 is in use: JupyterLab takes the next free one" if taken else "8888 is free"
    )


CHECKS: tuple[Callable[[], Check], ...] = (
    python, machine, memory, disk, packages, torch, gpu, kernel, model, jupyter, port,
)  # fmt: skip


def check() -> list[Check]:
    """Examine this machine. About five seconds, most of them for starting PyTorch twice."""
    return [examine() for examine in CHECKS]


def ready(checks: list[Check]) -> bool:
    """Whether none of the checks failed."""
    return all(one.ok for one in checks)


def as_text(checks: list[Check]) -> str:
    """The checks as aligned plain text, a remedy below what needs it."""
    width = max(len(one.name) for one in checks)
    lines = []
    for one in checks:
        lines.append(f"{one.status:<4}  {one.name:<{width}}  {one.detail}")
        if one.remedy:
            lines.append(f"{'':<4}  {'':<{width}}  -> {one.remedy}")
    return "\n".join(lines)


def verdict(checks: list[Check]) -> str:
    """One closing sentence."""
    failed = [one.name for one in checks if not one.ok]
    return f"Not ready: {', '.join(failed)}." if failed else "This machine is ready for the course."


def report(checks: list[Check] | None = None) -> None:
    """Print the checks: a table in a terminal, plain text in a notebook or a file."""
    checks = check() if checks is None else checks
    if not sys.stdout.isatty():
        print(as_text(checks) + "\n" + verdict(checks))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    colours = {"OK": "green", "WARN": "yellow", "FAIL": "bold red"}
    table = Table(show_header=False)
    for one in checks:
        detail = one.detail + (f"\n-> {one.remedy}" if one.remedy else "")
        table.add_row(f"[{colours[one.status]}]{one.status}", one.name, escape(detail))
    console = Console()
    console.print(table)
    console.print(verdict(checks))


def main(arguments: list[str]) -> int:
    """Report; 1 if something failed."""
    purpose = "Tell whether this machine is ready for the course, by running a known kernel on it."
    argparse.ArgumentParser(prog="course.py doctor", description=purpose).parse_args(arguments)
    print("Examining this machine: importing PyTorch, running a kernel (about ten seconds) ...", flush=True)
    checks = check()
    report(checks)
    return 0 if ready(checks) else 1
