"""A reader that has seen enough (`course.py check 2 | head -1`) ends a command without a traceback."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from coursekit import ROOT

COMMANDS = [
    ["course.py", "help"],
    ["-m", "coursekit", "help"],
    pytest.param(["-m", "coursekit", "check", "2"], marks=pytest.mark.slow),
    ["-m", "coursekit", "build", "--check", "exercises/02"],
    ["-m", "paged_ref", "plan"],
]


@pytest.mark.skipif(os.name != "posix", reason="Windows reports a closed pipe as another error")
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_closed_pipe_ends_a_command_quietly(command: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=ROOT,
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")
