"""The check of the pins: what it sees and, with --full and a network, that every system and Python gets wheels."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import course
from tests import resolve_pins
from tests.resolve_pins import PYTHONS, SYSTEMS, CannotResolve, Resolution, resolve


def test_the_oldest_patch_of_each_accepted_python_is_resolved() -> None:
    accepted = [f"3.{minor}.0" for minor in range(course.OLDEST_PYTHON[1], course.NEWEST_PYTHON[1] + 1)]
    assert list(PYTHONS) == accepted
    assert f"manylinux_{course.OLDEST_GLIBC[0]}_{course.OLDEST_GLIBC[1]}" in SYSTEMS[0]
    assert f"{course.OLDEST_MACOS[0]}.{course.OLDEST_MACOS[1]}" == resolve_pins.MACOS


def test_a_package_without_a_pin_is_named() -> None:
    packages = {"numpy": "2.4.6", "new-one": "1.0", "torch": "2.12.0", "nvidia-cublas": "13.0"}
    found = Resolution(SYSTEMS[0], PYTHONS[0], packages)
    pins = resolve_pins.read_pins("numpy==2.4.6\n# torch==1.0\ntorch==2.13.0\n")
    assert resolve_pins.without_pin(found, pins) == ["new-one 1.0", "torch 2.12.0"]


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in for uv is a shell script")
@pytest.mark.parametrize(
    ("does", "outcome"),
    [
        ("echo 'numpy==2.4.6'", {"numpy": "2.4.6"}),
        ("echo 'error: No solution found' >&2; exit 1", "No solution found"),
        ("echo 'error: Failed to fetch: an address' >&2; exit 2", CannotResolve),
        (None, CannotResolve),
    ],
    ids=["resolved", "no wheel", "no network", "no uv"],
)
def test_a_missing_wheel_and_a_missing_network_are_told_apart(
    does: str | None, outcome: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if does is not None:
        (tmp_path / "uv").write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    if outcome is CannotResolve:
        with pytest.raises(CannotResolve, match=r"uv (cannot reach|is not installed)"):
            resolve(SYSTEMS[0], PYTHONS[0])
        return
    found = resolve(SYSTEMS[0], PYTHONS[0])
    assert outcome == found.packages or str(outcome) in found.problem


def resolve_or_skip(system: str, python: str, constraints: Path) -> Resolution:
    try:
        return resolve(system, python, constraints)
    except CannotResolve as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("system", SYSTEMS)
def test_every_pin_resolves_to_wheels(system: str, python: str, full: bool) -> None:
    if not full:
        pytest.skip("resolving takes a network and two minutes: --full does it")
    constraints = course.ROOT / course.CONSTRAINTS
    found = resolve_or_skip(system, python, constraints)
    assert found.problem == ""
    assert resolve_pins.without_pin(found, resolve_pins.read_pins(constraints.read_text("utf-8"))) == []


@pytest.mark.parametrize(
    ("system", "problem"),
    [
        (SYSTEMS[0], "soupsieve"),
        ("x86_64-apple-darwin", "no usable wheels"),
        ("x86_64-manylinux_2_17", "no usable wheels"),
    ],
)
def test_the_resolver_sees_a_pin_without_wheels(
    system: str, problem: str, full: bool, tmp_path: Path
) -> None:
    """soupsieve 4.1.3 needs Python 3.11.5; numba has no wheels for Intel Macs and none for glibc 2.17."""
    if not full:
        pytest.skip("resolving takes a network: --full does it")
    constraints = tmp_path / "constraints.txt"
    text = (course.ROOT / course.CONSTRAINTS).read_text("utf-8")
    if problem == "soupsieve":
        assert "soupsieve==2.10\n" in text
        text = text.replace("soupsieve==2.10\n", "soupsieve==4.1.3\n")
    constraints.write_text(text, "utf-8")
    assert problem in resolve_or_skip(system, "3.11.0", constraints).problem
