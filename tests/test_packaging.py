"""The wheel is the library, the source distribution is the whole course, and each says its version once."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

import paged_ref
from coursekit import ROOT
from coursekit.__main__ import COMMANDS, WITHOUT_THE_COURSE

BUILD = """
import sys
from setuptools import build_meta
sys.argv = ["setup.py"]
print("BUILT", getattr(build_meta, "build_" + sys.stdin.read())("out"))
"""


def repository_files() -> list[str]:
    """Every file that git keeps, or would keep once it is added."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("this is no clone: git is needed to list the repository's files")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", check=True).stdout
    return [name for name in listed.splitlines() if (ROOT / name).is_file()]


@dataclass(frozen=True)
class Built:
    """Both distributions: names of their files, metadata of the wheel, and the wheel unpacked."""

    sdist: set[str]
    wheel: set[str]
    metadata: Message
    site: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    source = tmp_path_factory.mktemp("source")
    for name in repository_files():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    (source / "out").mkdir()
    files = {kind: source / "out" / build(source, kind) for kind in ("sdist", "wheel")}
    with tarfile.open(files["sdist"]) as archive:
        sdist = {name.partition("/")[2] for name in archive.getnames()}
    site = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(files["wheel"]) as wheel:
        wheel.extractall(site)
        names = set(wheel.namelist())
    metadata = Parser().parsestr(next(site.glob("*.dist-info/METADATA")).read_text(encoding="utf-8"))
    return Built(sdist, names, metadata, site)


def build(source: Path, kind: str) -> str:
    """Build a distribution; returns the name of its file in out/."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", BUILD],
        cwd=source, env=environment, input=kind, capture_output=True, encoding="utf-8", timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return next(line for line in done.stdout.splitlines() if line.startswith("BUILT")).split()[1]


def test_the_source_distribution_holds_every_file_of_the_repository(built: Built) -> None:
    assert sorted(set(repository_files()) - built.sdist) == []
    assert not [name for name in built.sdist if "__pycache__" in name or name.startswith((".venv", "out/"))]


def test_the_wheel_holds_every_module_and_the_data_they_read(built: Built) -> None:
    packages = ("paged_ref/", "coursekit/", "bench/")
    modules = {name for name in repository_files() if name.startswith(packages) and name.endswith(".py")}
    assert sorted(modules - built.wheel) == []
    assert {"coursekit/checks/hints.toml", "coursekit/jupyter/labconfig/page_config.json"} <= built.wheel
    assert {"paged_ref/py.typed", "coursekit/py.typed"} <= built.wheel
    others = {name.partition("/")[0] for name in built.wheel} - {name.rstrip("/") for name in packages}
    assert [name for name in others if not name.endswith(".dist-info")] == []


def test_the_metadata_are_those_of_the_project(built: Built) -> None:
    assert built.metadata["Version"] == paged_ref.__version__
    assert built.metadata["Author"] == "PagedAttention course authors"
    classifiers = built.metadata.get_all("Classifier") or []
    assert {f"Programming Language :: Python :: 3.{minor}" for minor in range(11, 15)} <= set(classifiers)
    entry_points = next(built.site.glob("*.dist-info/entry_points.txt")).read_text(encoding="utf-8")
    assert "paged-ref = paged_ref.__main__:main" in entry_points


def test_the_version_stands_in_one_place() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert tomllib.loads(text)["project"]["dynamic"] == ["version"]
    assert paged_ref.__version__ not in text
    assert re.fullmatch(r"\d+\.\d+\.\d+", paged_ref.__version__)


def coursekit(built: Built, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the unpacked wheel, outside the repository."""
    return subprocess.run(
        [sys.executable, "-m", "coursekit", *arguments],
        cwd=built.site, env=os.environ | {"PYTHONPATH": str(built.site)}, stdin=subprocess.DEVNULL,
        capture_output=True, encoding="utf-8", timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("word", sorted(COMMANDS.keys() - set(WITHOUT_THE_COURSE)))
def test_a_command_that_needs_the_course_says_so(built: Built, word: str) -> None:
    done = coursekit(built, word)
    assert done.returncode == 2
    assert done.stderr.startswith(f"{word} needs the course's files")
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)


@pytest.mark.slow
def test_the_doctor_of_an_installed_library_examines_the_machine(built: Built) -> None:
    done = coursekit(built, "doctor")
    assert done.stderr == ""
    assert "has no constraints.txt: the versions were not compared" in done.stdout
    assert done.stdout.splitlines()[-1] == "This machine is ready for the course."
    assert done.returncode == 0


def test_help_and_bench_need_no_repository(built: Built) -> None:
    assert coursekit(built, "help").returncode == 0
    assert "usage: course.py bench" in coursekit(built, "bench", "--help").stdout
