"""The suite without Triton, and without POSIX calls: what cannot run is skipped, and says why."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from coursekit import ROOT
from tests.helpers.without import POSIX, TRITON, VARIABLE

# The files that import or call what is taken away.
AFFECTED = {
    TRITON: [
        "tests/coursekit/cli/test_doctor.py",
        "tests/paged_ref/attention/test_triton_kernels.py",
        "tests/paged_ref/attention/test_grid.py",
        "tests/paged_ref/attention/test_extremes.py",
        "tests/paged_ref/attention/test_mutants.py",
        "tests/paged_ref/attention/test_invalid_input.py",
        "tests/paged_ref/verify/test_traffic.py",
        "tests/paged_ref/verify/test_compile_report.py",
        "tests/coursekit/kernels/test_worker.py",
    ],
    POSIX: [
        "tests/coursekit/grade",
        "tests/coursekit/quiz/test_quiz_terminal.py",
    ],
}
# Those of them that take seconds.
QUICK = {
    TRITON: ["tests/paged_ref/verify/test_traffic.py", "tests/paged_ref/verify/test_compile_report.py"],
    POSIX: ["tests/coursekit/grade/test_grade_cheats.py"],
}
REASON = {TRITON: r"Triton (is not installed|has no package)", POSIX: r"needs os\.fork|module pty is missing"}


def run(without: str, *arguments: str) -> str:
    """Run pytest with names taken away; returns its output. Exit codes but 0 fail."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.helpers.without", "-p", "no:cacheprovider"]
    environment = os.environ | {VARIABLE: without, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    done = subprocess.run(
        [*command, *arguments], cwd=ROOT, env=environment, capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


@pytest.mark.parametrize("without", [TRITON, POSIX], ids=["no Triton", "no POSIX"])
def test_the_whole_suite_is_collected(without: str, full: bool) -> None:
    if not full:
        pytest.skip("collecting the suite again takes half a minute: --full does it")
    assert re.search(r"[1-9]\d* tests collected", run(without, "--collect-only", "tests"))


@pytest.mark.slow
@pytest.mark.parametrize("without", [TRITON, POSIX], ids=["no Triton", "no POSIX"])
def test_what_cannot_run_is_skipped_with_what_it_lacks(without: str, full: bool) -> None:
    files = (AFFECTED if full else QUICK)[without]
    reasons = re.findall(r"^SKIPPED \[\d+\] \S+ (.*)$", run(without, *files), re.MULTILINE)
    assert [reason for reason in reasons if re.search(REASON[without], reason)]
