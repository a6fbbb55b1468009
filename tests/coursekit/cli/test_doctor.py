"""The doctor says what is so, and a machine that is not well does not pass."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from coursekit.cli import doctor
from coursekit.cli.doctor import Check

NAMES = ["Python", "machine", "memory", "disk", "packages", "PyTorch"]
NAMES += ["GPU", "kernel", "model", "JupyterLab", "port"]


@pytest.fixture(scope="module")
def checks() -> list[Check]:
    return doctor.check()


def test_the_checks_are_the_same_everywhere_and_this_machine_passes(checks: list[Check]) -> None:
    assert [one.name for one in checks] == NAMES
    assert doctor.ready(checks), doctor.as_text(checks)
    assert all(one.remedy for one in checks if one.status != "OK")


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton has no package for this system"
)
def test_the_kernel_really_runs(checks: list[Check]) -> None:
    found = checks[NAMES.index("kernel")]
    assert found.status == "OK"
    assert "equal to NumPy" in found.detail


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton has no package for this system"
)
@pytest.mark.parametrize("fault", ["zeros", "table ignored"])
def test_a_wrong_kernel_is_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from coursekit.cli import doctor_kernel

    class Wrong:
        """A kernel that writes nothing, or reads the blocks in order as if there were no table."""

        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            return self.launch

        def launch(self, cache: Any, table: Any, out: Any, tokens: int, **sizes: int) -> None:
            if fault == "table ignored":
                out.copy_(cache[:tokens])

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(doctor_kernel, "gather_kernel", Wrong())
    difference = doctor_kernel.run()["difference"]
    assert isinstance(difference, float)
    assert np.isnan(difference) if fault == "table ignored" else difference > 1


def stub_kernel_process(
    monkeypatch: pytest.MonkeyPatch, stdout: str, stderr: str = "", code: int = 0
) -> None:
    done = SimpleNamespace(stdout=stdout, stderr=stderr, returncode=code)
    monkeypatch.setattr(doctor.subprocess, "run", lambda *arguments, **options: done)
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: object())


@pytest.mark.parametrize("difference", [0.25, float("nan")])
def test_a_difference_fails(difference: float, monkeypatch: pytest.MonkeyPatch) -> None:
    stub_kernel_process(monkeypatch, json.dumps({"where": "there", "difference": difference}))
    found = doctor.kernel()
    assert not found.ok
    assert "differs from NumPy" in found.detail


def test_a_kernel_that_does_not_run_fails_with_what_it_said(monkeypatch: pytest.MonkeyPatch) -> None:
    stub_kernel_process(monkeypatch, "", "Traceback\nRuntimeError: Failed to find C compiler", 1)
    monkeypatch.setattr(doctor, "gpu_count", lambda: 1)
    found = doctor.kernel()
    assert not found.ok
    assert "Failed to find C compiler" in found.detail
    assert "install gcc" in found.remedy


def test_a_kernel_that_hangs_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*arguments: object, **options: object) -> None:
        raise subprocess.TimeoutExpired("kernel", doctor.KERNEL_TIMEOUT_S)

    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(doctor.subprocess, "run", hang)
    assert not doctor.kernel().ok


@pytest.mark.parametrize(("system", "status"), [("darwin", "WARN"), ("win32", "WARN"), ("linux", "FAIL")])
def test_no_triton(system: str, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(doctor.platform, "machine", lambda: "x86_64")
    found = doctor.kernel()
    assert found.status == status
    assert ("-m pip install --force-reinstall --no-deps -c constraints.txt triton" in found.remedy) is (
        status == "FAIL"
    )
    assert ("chapter 5 explains itself" in found.remedy) is (status == "WARN")


def test_another_version_than_the_pinned_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = doctor.importlib.metadata.version
    monkeypatch.setattr(
        doctor.importlib.metadata, "version", lambda name: "1.0" if name.lower() == "numpy" else real(name)
    )
    found = doctor.packages()
    assert found.status == "WARN"
    assert found.detail.startswith("numpy 1.0 (pinned: ")


def test_without_constraints_the_doctor_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    found = doctor.packages()
    assert (found.status, found.ok) == ("WARN", True)
    assert "has no constraints.txt: the versions were not compared" in found.detail


def test_text_has_a_line_for_each_check_and_for_each_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    checks = [Check("Python", "OK", "3.11"), Check("kernel", "FAIL", "wrong", "do this")]
    doctor.report(checks)
    assert capsys.readouterr().out.splitlines() == [
        "OK    Python  3.11",
        "FAIL  kernel  wrong",
        "              -> do this",
        "Not ready: kernel.",
    ]
    assert not doctor.ready(checks)


@pytest.mark.parametrize(("status", "code"), [("OK", 0), ("WARN", 0), ("FAIL", 1)])
def test_exit_code(status: Any, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "check", lambda: [Check("one", status, "detail", "remedy")])
    assert doctor.main([]) == code
