"""Broken answers, files that are no submission, and the whole command: everything gets a row that says what it is."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from nbformat import NotebookNode

from coursekit import ROOT
from coursekit.grade import command
from coursekit.grade.judge import Judge
from coursekit.grade.submission import Submission, chapter_of, read_submission
from tests.helpers.grading import (
    BOOK,
    RIGHT,
    SLOT,
    WEAK,
    WEAKLY,
    cells_in,
    code_cell,
    grade,
    message,
    notebook,
    points,
    write,
)
from tests.helpers.needs import needs_sandbox

pytestmark = needs_sandbox


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    made = Judge(BOOK, 5, weak=WEAK, seconds=1.5, memory_mb=700)
    yield made
    made.close()


@pytest.fixture(scope="module")
def patient_judge() -> Iterator[Judge]:
    """For what breaks by itself, however slow the machine is: only what never ends has to wait for a limit."""
    made = Judge(BOOK, 5, weak=WEAK, seconds=60, memory_mb=700)
    yield made
    made.close()


# --- answers that break ---

BREAKS = cells_in("breaks.py")


@pytest.mark.parametrize("cell", BREAKS, ids=lambda cell: cell.metadata["breaks"])
def test_what_breaks_is_told_and_harms_no_other_exercise(
    cell: NotebookNode, judge: Judge, patient_judge: Judge, tmp_path: Path
) -> None:
    never_ends = "timeout" in cell.metadata["status"].split()
    judge = judge if never_ends else patient_judge
    result = grade(judge, tmp_path, notebook({"2.1": cell.source, "2.4": RIGHT["2.4"]}))
    assert points(result) == {"2.1": 0, "2.2": 0, "2.3": 0, "2.4": 5}
    assert result.exercises["2.1"].status in cell.metadata["status"].split()
    assert cell.metadata["says"] in message(result, "2.1")


def test_bytes_that_are_no_text_in_an_answer(judge: Judge, tmp_path: Path) -> None:
    result = grade(
        judge, tmp_path, notebook({"2.1": "def slot(b, i, s):\n    return '\0'", "2.4": RIGHT["2.4"]})
    )
    assert result.exercises["2.1"].status == "crashed" and points(result)["2.4"] == 5


# --- files that are no submission ---

CHAPTER_5 = {"cells": [code_cell("x", nbgrader={"grade_id": "exercise-5-1"})]}
PROBLEMS: dict[str, tuple[Any, str]] = {
    "empty": (b"", "not a notebook: the file could not be parsed (empty file)"),
    "text": ("hello", "not a notebook"),
    "binary": (bytes(range(256)) * 40, "not a notebook"),
    "deep": (b"[" * 100_000, "not a notebook"),
    "a-list": ([1, 2], "not a notebook: the file has no cells"),
    "cells-no-list": ({"cells": 3}, "not a notebook: the file has no cells"),
    "cut-off": (json.dumps(notebook())[:5000], "not a notebook"),
    "wrong-chapter": (CHAPTER_5, "wrong chapter: this one has exercises of chapter 05, not 02"),
    "no-answers": ({"cells": [{"cell_type": "markdown", "source": "Hello", "metadata": {}}]}, "no answers"),
    "odd-cells": (
        {"cells": [3, None, {}, {"cell_type": "code", "metadata": 4, "source": {"a": 1}}]},
        "no answers",
    ),
}


@pytest.mark.parametrize(("data", "problem"), PROBLEMS.values(), ids=PROBLEMS)
def test_a_file_that_is_no_submission_gets_a_row_that_says_so(
    data: Any, problem: str, judge: Judge, tmp_path: Path
) -> None:
    result = grade(judge, tmp_path, data)
    assert result.problem is not None and problem in result.problem
    assert result.earned == 0 and set(points(result)) == set(BOOK.ids)


def test_a_file_too_large_or_absent_is_not_read(tmp_path: Path) -> None:
    large = write(tmp_path / "large.ipynb", b"")
    os.truncate(large, 30_000_000)
    assert "larger than 20 MB" in str(read_submission(large, "x", BOOK).problem)
    os.mkfifo(tmp_path / "pipe.ipynb")
    for path in (tmp_path / "none.ipynb", tmp_path / "pipe.ipynb", tmp_path):
        assert "no such file" in str(read_submission(path, "x", BOOK).problem)
    assert chapter_of(large) is None and chapter_of(write(tmp_path / "a.ipynb", notebook())) == "02"


def test_a_submission_of_any_shape_has_the_same_exercises(tmp_path: Path) -> None:
    found = read_submission(write(tmp_path / "a.ipynb", notebook(RIGHT)), "x", BOOK)
    assert isinstance(found, Submission) and list(found.answers) == BOOK.ids and found.answers == RIGHT


# --- the command ---


@pytest.mark.slow
def test_the_command_grades_a_class_in_parallel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    subs = tmp_path / "submissions"
    write(subs / "ann" / "02_block_table.ipynb", notebook(solved=True))
    write(subs / "bob" / "my solution.ipynb", notebook({"2.1": SLOT}))
    write(subs / "bob" / "07_other.ipynb", CHAPTER_5)
    write(
        subs / "=cmd()" / "02_block_table.ipynb",
        notebook({"2.1": "raise ValueError('<script>alert(1)</script>\\ud800')"}),
    )
    write(subs / "dot" / "02_block_table.ipynb", "no notebook")
    (subs / "empty").mkdir()
    out = tmp_path / "report"
    places = [str(path) for path in sorted(subs.iterdir())]
    assert command.main([*places, "--out", str(out), "--jobs", "2", "--seed", "11", *WEAKLY]) == 1
    rows = list(csv.reader((out / "grades.csv").open(encoding="utf-8")))
    head = ["student", "2.1", "2.2", "2.3", "2.4", "total", "points", "problem", "file", "not graded"]
    assert rows[0] == head
    assert {row[0]: row[1:6] for row in rows[1:]} == {
        "'=cmd()": ["0", "0", "0", "0", "0"],
        "ann": ["4", "8", "8", "5", "25"],
        "bob": ["4", "0", "0", "0", "4"],
        "dot": ["0", "0", "0", "0", "0"],
        "empty": ["0", "0", "0", "0", "0"],
    }
    assert "not a notebook" in rows[4][7] and "no notebook of chapter 02" in rows[5][7]
    assert rows[3][8] == "my solution.ipynb" and rows[1][7] == "no part passed; the student's page says why"
    data = json.loads((out / "grades.json").read_text(encoding="utf-8"))
    assert (data["chapter"], data["seed"], data["complete"]) == ("02", 11, True)
    assert [student["earned"] for student in data["students"]] == [0, 25, 4, 0, 0]
    assert data["students"][1]["exercises"]["2.2"]["parts"][0]["status"] == "passed"
    pages = {path.name for path in (out / "students").iterdir()}
    assert pages == {"cmd.html", "ann.html", "bob.html", "dot.html", "empty.html"}
    page = (out / "students/cmd.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;" in page and "<script>" not in page
    assert "<script>" not in (out / "index.html").read_text(encoding="utf-8")
    assert "5 submissions graded" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("signal_name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGKILL"])
def test_a_run_that_is_ended_leaves_no_process(signal_name: str, tmp_path: Path) -> None:
    number = signal.Signals[signal_name]
    for name in ("a", "b", "c", "d"):
        write(tmp_path / name / "02_block_table.ipynb", notebook({"2.1": "while True:\n    pass"}))
    write(tmp_path / "0" / "02_block_table.ipynb", notebook())
    out = tmp_path / "report"
    places = [str(tmp_path / name) for name in ("0", "a", "b", "c", "d")]
    command_line = [sys.executable, "-m", "coursekit", "grade", *places, "--out", str(out)]
    command_line += ["--jobs", "2", "--seconds", "300", "--chapter", "2", *WEAKLY]
    process = subprocess.Popen(command_line, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "Chapter 2.\n"
        assert "1 of 5 graded" in process.stdout.readline()
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) >= 4
        process.send_signal(number)
        assert process.wait(timeout=20) == (-number if number == signal.SIGKILL else 128 + number)
        assert psutil.wait_procs(family, timeout=10)[1] == []
    finally:
        process.kill()
    assert (
        len((out / "results.jsonl").read_text(encoding="utf-8").splitlines()) == 2
    )  # the run, and student 0
    if number != signal.SIGKILL:
        data = json.loads((out / "grades.json").read_text(encoding="utf-8"))
        assert data["complete"] is False and [row["student"] for row in data["students"]] == ["0"]


def test_wrong_requests_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([str(tmp_path), "--chapter", "77"]) == 2
    assert "chapter 77 has no exercises" in capsys.readouterr().err
    assert command.main([str(tmp_path)]) == 2
    assert "name the chapter" in capsys.readouterr().err


def test_two_students_of_one_name_stay_apart(tmp_path: Path) -> None:
    first = write(tmp_path / "a/ann/02_block_table.ipynb", notebook())
    write(tmp_path / "b/ann/x.ipynb", notebook())
    jobs = command.find_jobs([tmp_path / "a/ann", tmp_path / "b/ann", first], "02")
    assert len({job.student for job in jobs}) == 3
