"""The sandbox's rules: it refuses to run without a layer or in a readable folder, and every wait ends."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from coursekit import ROOT
from coursekit.checks.framework import HostLost
from coursekit.grade import command, judge, lockdown, sandbox, syscalls
from coursekit.grade.judge import Judge
from coursekit.grade.lockdown import WeakSandbox, exposed, unprotected
from coursekit.grade.sandbox import Rules, Zygote
from tests.helpers.grading import BOOK, WEAK, notebook, write
from tests.helpers.needs import needs_sandbox

pytestmark = needs_sandbox


def test_without_a_layer_the_grader_refuses_and_names_what_is_exposed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(judge, "missing_layers", lambda: ["landlock"])
    with pytest.raises(WeakSandbox, match=r"no landlock here\. Files: only Python's audit hook"):
        Judge(BOOK, 5)
    Judge(BOOK, 5, weak=True).close()
    monkeypatch.setattr(command, "missing_layers", lambda: ["landlock", "seccomp"])
    path = write(tmp_path / "02_block_table.ipynb", notebook())
    assert command.main([str(path), "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert "no landlock and no seccomp" in told and "--weak-sandbox" in told and "other submissions" in told
    assert not (tmp_path / "out").exists() and len(exposed(["seccomp", "landlock"])) == 2


@pytest.mark.skipif(WEAK, reason="this system lacks Landlock or seccomp, so the refusal would name that")
def test_a_layer_that_fails_when_it_is_applied_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "REQUIRED", ("landlock", "another"))
    made = Zygote()
    try:
        with pytest.raises(WeakSandbox, match="no another here"):
            made.start(Rules())
    finally:
        made.close()


def test_files_where_answers_can_read_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert unprotected([ROOT, tmp_path]) == []
    (tmp_path / "link").symlink_to(sys.prefix)
    for path in (Path(sys.prefix) / "submissions", Path("/usr/course"), tmp_path / "link" / "ann"):
        assert "which answers can read: move it elsewhere" in unprotected([path])[0]
    assert command.main([str(tmp_path / "link"), "--chapter", "2"]) == 2
    assert "which answers can read" in capsys.readouterr().err
    monkeypatch.setattr(lockdown, "readable_paths", lambda: [str(ROOT)])
    with pytest.raises(WeakSandbox, match="answers can read"):
        Zygote()


def test_a_copy_of_the_course_among_the_packages_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site-packages/paged_ref").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "site-packages")])
    assert "is a copy of the course, which answers can read" in unprotected([ROOT])[0]


def test_a_zygote_that_stops_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Zygote(weak=WEAK)
    try:
        made.start(Rules()).close()
        assert made.control is not None
        os.kill(made.pid, signal.SIGSTOP)
        made.control.settimeout(0.3)
        with pytest.raises(HostLost, match="did not answer"):
            made.start(Rules())
        made.start(Rules()).close()  # a fresh one
    finally:
        made.close()


def test_each_student_has_a_zygote_and_the_one_before_is_gone() -> None:
    made = Zygote(weak=WEAK)
    try:
        made.start(Rules()).close()
        first, nursery = made.pid, made.process
        assert nursery is not None
        made.start(Rules()).close()
        assert made.pid == first  # the same student
        made.renew()
        left_open = made.start(Rules())
        assert made.pid != first and made.process is nursery and not psutil.pid_exists(first)
        second, sandbox = psutil.Process(made.pid), psutil.Process(left_open.pid)
        made.renew()  # a sandbox that was not ended ends with its zygote
        made.start(Rules()).close()
        assert psutil.wait_procs([second, sandbox], timeout=5)[1] == [] or WEAK
        os.kill(nursery.pid, signal.SIGKILL)
        nursery.wait()
        made.start(Rules()).close()  # a new nursery
        assert made.process is not nursery
    finally:
        made.close()
    assert made.process is None and not made.pid


def test_every_signal_has_a_name() -> None:
    assert sandbox._signal(9) == "SIGKILL" and sandbox._signal(40) == "signal 40"


def test_the_filter_allows_what_is_listed_and_ends_with_denial() -> None:
    for column, machine in syscalls._MACHINES.values():
        program = syscalls._program(column, machine)
        assert program[-1] == (syscalls._RETURN, 0, 0, syscalls._DENY)
        jumps = [
            (at, line) for at, line in enumerate(program) if line[0] in (syscalls._EQUAL, syscalls._HAS_BIT)
        ]
        assert all(at + 1 + max(yes, no) < len(program) for at, (_, yes, no, _) in jumps)
        numbers = [numbers[column] for numbers in syscalls._CALLS.values() if numbers[column] >= 0]
        assert len(numbers) == len(set(numbers))
