"""Every pin of constraints.txt, resolved to wheels for each supported system and the oldest patch of each Python.

Run it after a change of pyproject.toml or constraints.txt, with uv on the PATH (`pip install uv`) and a network:

    python3 tests/resolve_pins.py

or as a test: `python3 course.py test -- --full -k resolve`. It takes about two minutes, reads metadata alone and
downloads no wheel. It prints one line for each system and Python; its exit code is 1 if a line says so. A pin whose
newest release dropped an early patch release of Python (3.11.0 to 3.11.4, say) is found here, not by a learner.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11.0", "3.12.0", "3.13.0", "3.14.0")
SYSTEMS = (
    "x86_64-manylinux_2_28",
    "aarch64-manylinux_2_28",
    "aarch64-apple-darwin",
    "x86_64-pc-windows-msvc",
)
MACOS = "14.0"
TIMEOUT_S = 300
CUDA = re.compile(r"(nvidia|cuda)-")  # PyTorch's own metadata pins these
UNREACHABLE = re.compile(
    r"Failed to fetch|error sending request|dns error|Network is unreachable|timed out", re.I
)


class CannotResolve(Exception):
    """Nothing could be found out: uv is missing or its index cannot be reached."""


@dataclass(frozen=True)
class Resolution:
    """Packages that one system and Python get, `name` to version, or the resolver's reason why there are none."""

    system: str
    python: str
    packages: dict[str, str]
    problem: str = ""


def canonical(name: str) -> str:
    """Return a distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(text: str) -> dict[str, str]:
    """Return {name: version} of the `name==version` lines; markers and comments are dropped."""
    found = re.findall(r"^([\w.-]+)==([^\s;+]+)", text, re.MULTILINE)
    return {canonical(name): version for name, version in found}


def resolve(system: str, python: str, constraints: Path = ROOT / "constraints.txt") -> Resolution:
    """Resolve the project with every extra, from wheels alone.

    Raises:
        CannotResolve: uv is not installed, or it cannot reach its index.
    """
    uv = shutil.which("uv")
    if uv is None:
        raise CannotResolve("uv is not installed (pip install uv)")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [f"--extra={name}" for name in project["optional-dependencies"]]
    command = [uv, "pip", "compile", str(ROOT / "pyproject.toml"), *extras, f"--constraint={constraints}"]
    command += ["--only-binary=:all:", f"--python-platform={system}", f"--python-version={python}"]
    command += ["--no-header", "--no-annotate", "--no-progress", "--quiet"]
    environment = os.environ | {"MACOSX_DEPLOYMENT_TARGET": MACOS, "NO_COLOR": "1"}
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            encoding="utf-8",
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CannotResolve(f"uv did not answer within {TIMEOUT_S} s") from error
    if done.returncode == 0:
        return Resolution(system, python, read_pins(done.stdout))
    if UNREACHABLE.search(done.stderr):
        raise CannotResolve(f"uv cannot reach its index: {done.stderr.strip().splitlines()[0]}")
    return Resolution(system, python, {}, done.stderr.strip())


def without_pin(resolution: Resolution, pins: dict[str, str]) -> list[str]:
    """Return "name version" of the packages that the resolver was free to choose."""
    return sorted(
        f"{name} {version}"
        for name, version in resolution.packages.items()
        if not CUDA.match(name) and pins.get(name) != version
    )


def resolve_all() -> Iterator[tuple[Resolution, list[str]]]:
    """Resolve each system and Python; yields the resolution and what in it has no pin."""
    pins = read_pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    for system in SYSTEMS:
        for python in PYTHONS:
            resolution = resolve(system, python)
            yield resolution, without_pin(resolution, pins)


def main() -> int:
    """Print a line for each system and Python; 0: every pin has wheels, 1: some have none, 2: nothing found out."""
    failed = False
    try:
        for resolution, unpinned in resolve_all():
            bad = resolution.problem or (f"without a pin: {', '.join(unpinned)}" if unpinned else "")
            failed = failed or bool(bad)
            verdict = bad or f"{len(resolution.packages)} packages, every one as pinned"
            print(f"{resolution.system:<24} {resolution.python}  {verdict}", flush=True)
    except CannotResolve as error:
        print(f"resolve_pins: {error}", file=sys.stderr)
        return 2
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
