"""What is installed: asked for once, pinned once, and the same with course.py and with conda."""

import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterable

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import course
from coursekit.__main__ import COMMANDS

PROJECT = tomllib.loads((course.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# The extra `cluster` joins a Dask cluster that exists already, with its own versions: nothing here installs or pins it.
EXTRAS = {name: texts for name, texts in PROJECT["optional-dependencies"].items() if name != "cluster"}
ASKED = [Requirement(text) for texts in (PROJECT["dependencies"], *EXTRAS.values()) for text in texts]
PIN_LINES = [
    line
    for line in (course.ROOT / course.CONSTRAINTS).read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]
PINS = {canonicalize_name(line.partition("==")[0]): line.partition("==")[2] for line in PIN_LINES}

# PyTorch's CUDA build names its libraries' versions in its own metadata.
CUDA = re.compile(r"(nvidia|cuda)-")


def closure(requirements: Iterable[Requirement]) -> dict[str, str]:
    """Every distribution that these requirements bring on this machine, with its installed version."""
    found: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(requirement, "") for requirement in requirements]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        found[name] = importlib.metadata.version(name)
        for wanted in ("", *requirement.extras):
            if (name, wanted) not in seen:
                seen.add((name, wanted))
                needed = importlib.metadata.requires(name) or []
                waiting += [(Requirement(text), wanted) for text in needed]
    return found


def differences(installed: dict[str, str], pins: dict[str, str]) -> list[str]:
    """What is installed without a pin or not as pinned; +cpu is a build of the same release."""
    return sorted(
        f"{name} {version}: {'pinned ' + pins[name] if name in pins else 'no pin'}"
        for name, version in installed.items()
        if not CUDA.match(name) and (name not in pins or Version(version).public != pins[name])
    )


def test_everything_installed_is_pinned_and_as_pinned() -> None:
    installed = closure(ASKED)
    assert len(installed) > 100
    assert {"torch", "setuptools", "pyzmq", "mypy"} <= installed.keys()
    assert differences(installed, PINS) == []


def test_a_wrong_or_missing_pin_is_seen() -> None:
    pins = PINS | {"numpy": "1.0"}
    del pins["jupyterlab"]
    installed = {"numpy": PINS["numpy"], "jupyterlab": PINS["jupyterlab"], "torch": PINS["torch"] + "+cpu"}
    assert differences(installed, pins) == [
        f"jupyterlab {PINS['jupyterlab']}: no pin",
        f"numpy {PINS['numpy']}: pinned 1.0",
    ]


def test_constraints_are_exact_and_listed_once() -> None:
    for line in PIN_LINES:
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9a-z.]*", line), line
    assert len(PINS) == len(PIN_LINES)
    assert (PINS["torch"], PINS["triton"]) == ("2.13.0", "3.7.1")


def test_every_requirement_is_listed_once_and_its_pin_satisfies_it() -> None:
    names = [canonicalize_name(requirement.name) for requirement in ASKED]
    assert sorted(set(names)) == sorted(names)
    for requirement in ASKED:
        assert requirement.specifier.contains(PINS[canonicalize_name(requirement.name)]), requirement


@pytest.mark.parametrize(
    ("system", "machine", "asked"),
    [
        ("linux", "x86_64", True),
        ("linux", "aarch64", True),
        ("darwin", "arm64", False),
        ("win32", "AMD64", False),
        ("linux", "ppc64le", False),
    ],
)
def test_triton_is_asked_for_where_it_has_wheels(system: str, machine: str, asked: bool) -> None:
    marker = next(requirement.marker for requirement in ASKED if requirement.name == "triton")
    assert marker is not None
    assert marker.evaluate({"sys_platform": system, "platform_machine": machine}) is asked


def test_conda_installs_what_course_installs() -> None:
    environment = yaml.safe_load((course.ROOT / "environment.yml").read_text(encoding="utf-8"))
    *names, last = environment["dependencies"]
    python, pip = names
    oldest = ".".join(map(str, course.OLDEST_PYTHON))
    after_newest = f"{course.NEWEST_PYTHON[0]}.{course.NEWEST_PYTHON[1] + 1}"
    assert (python, pip) == (f"python>={oldest},<{after_newest}", "pip")
    assert last == {"pip": [f"-e {course.REQUIREMENT}", f"-c {course.CONSTRAINTS}"]}


def test_course_installs_every_extra_on_the_pythons_it_accepts() -> None:
    extras = Requirement("project" + course.REQUIREMENT.removeprefix(".")).extras
    assert extras == set(EXTRAS)
    assert PROJECT["requires-python"] == ">=" + ".".join(map(str, course.OLDEST_PYTHON))
    assert course.OLDEST_PYTHON <= sys.version_info[:2] <= course.NEWEST_PYTHON
    assert set(course.NEEDS_MODEL) <= COMMANDS.keys()


def test_license_is_the_one_named() -> None:
    text = (course.ROOT / "LICENSE").read_text(encoding="utf-8")
    assert PROJECT["license"] == "Apache-2.0"
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
