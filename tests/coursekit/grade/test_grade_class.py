"""The class around the sandbox: which file is graded, names, the results of a killed run, Dask workers."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coursekit import ROOT
from tests.helpers.grading import BOOK, RIGHT, WEAKLY, code_cell, notebook, write
from tests.helpers.needs import needs_sandbox

pytestmark = needs_sandbox

if not needs_sandbox.args[0]:
    from coursekit.grade import command
    from coursekit.grade.cluster import Cluster, NoCluster
    from coursekit.grade.finding import commonest_chapter, search, unique_names
    from coursekit.grade.judge import StudentResult
    from coursekit.grade.report import _no_formula, page_names
    from coursekit.grade.results import CannotWrite, Results
    from coursekit.grade.text import clean
    from coursekit.grade.workers import Settings, failed, read

NAME = "02_block_table.ipynb"

needs_distributed = pytest.mark.skipif(
    not importlib.util.find_spec("distributed"), reason="distributed is missing: pip install '.[cluster]'"
)


def lesson() -> dict[str, Any]:
    return json.loads((ROOT / "notebooks" / NAME).read_text(encoding="utf-8"))


def rows_of(out: Path) -> dict[str, dict[str, str]]:
    with (out / "grades.csv").open(encoding="utf-8") as file:
        return {row["student"]: row for row in csv.DictReader(file)}


# --- which file ---


def test_the_exercise_is_graded_and_not_the_lesson_of_the_same_name(tmp_path: Path) -> None:
    for student in ("ann", "bob"):
        course = tmp_path / "home" / student / "course"
        write(course / "exercises" / NAME, notebook())
        write(course / "notebooks" / NAME, lesson())
        write(course / "solutions" / NAME, notebook(solved=True))
        (course / "a" / NAME).mkdir(parents=True)  # a folder of this name hides nothing
        os.utime(course / "exercises" / NAME, (1, 1))
    jobs = command.find_jobs(sorted((tmp_path / "home").glob("*/course")), "02")
    assert [(job.student, job.label, job.problem) for job in jobs] == [
        ("ann", f"exercises/{NAME}", None),
        ("bob", f"exercises/{NAME}", None),
    ]
    assert set(jobs[0].others) == {
        f"notebooks/{NAME}: a lesson",
        f"solutions/{NAME}: a copy of the course's solutions",
    }


def test_the_lesson_alone_is_no_submission(tmp_path: Path) -> None:
    write(tmp_path / "ann" / NAME, lesson())
    (job,) = command.find_jobs([tmp_path / "ann"], "02")
    assert job.problem == f"no exercise notebook of chapter 02 was found: {NAME} is a lesson"


def test_one_vote_for_each_student(tmp_path: Path) -> None:
    first = {"cells": [code_cell("x", nbgrader={"grade_id": "exercise-1-1"})]}
    for number in range(6):
        write(tmp_path / "ann" / f"{number}.ipynb", first)
    for student in ("bob", "cem"):
        write(tmp_path / student / NAME, notebook())
    chapter, told = commonest_chapter(search(sorted(tmp_path.iterdir())))
    assert (chapter, told) == ("02", "Chapter 2: the newest exercise notebook of 2 of 3 students.")


def test_links_that_leave_the_folder_are_refused_by_name(tmp_path: Path) -> None:
    solved = write(tmp_path / "ann" / NAME, notebook(solved=True))
    for student in ("bob", "cem", "eve"):
        (tmp_path / student).mkdir()
    (tmp_path / "bob" / NAME).symlink_to(solved)
    write(tmp_path / "cem" / "deep" / NAME, notebook())
    (tmp_path / "cem" / "link.ipynb").symlink_to(tmp_path / "cem" / "deep" / NAME)
    (tmp_path / "dea").symlink_to(tmp_path / "ann")
    (tmp_path / "eve" / NAME).symlink_to(tmp_path / "eve" / NAME)
    jobs = {job.student: job for job in command.find_jobs(sorted(tmp_path.iterdir()), "02")}
    assert jobs["ann"].problem is None and jobs["cem"].problem is None
    assert f"{NAME} is a link that leads out of the student's folder" in str(jobs["bob"].problem)
    assert "dea is a link that leads out of the student's folder" in str(jobs["dea"].problem)
    assert f"{NAME} is a link that cannot be opened" in str(jobs["eve"].problem)
    solved.unlink()
    solved.symlink_to(tmp_path / "cem" / "deep" / NAME)
    assert read(jobs["ann"], BOOK).problem == "the file was replaced by a link while the grader ran"


@pytest.mark.parametrize(
    ("places", "names"),
    [
        (["home/ann/course/exercises", "home/bob/course/exercises"], ["ann", "bob"]),
        (["s/ann", "s/bob/"], ["ann", "bob"]),
        (["s/ann.ipynb", "s/bob.ipynb"], ["ann", "bob"]),
        ([f"s/ann/{NAME}", f"s/bob/{NAME}"], ["ann", "bob"]),
        (["a/ann", "a/bob", "b/ann"], ["a/ann", "a/bob", "b/ann"]),
        (["home/ann/course/exercises"], ["ann"]),
        ([f"s/02_{name}.ipynb" for name in ("ann", "bob")], ["02_ann", "02_bob"]),
        (["s/ann", "s/ann"], ["ann", "ann (2)"]),
    ],
)
def test_a_student_is_named_by_the_part_that_differs(
    places: list[str], names: list[str], tmp_path: Path
) -> None:
    assert [found.student for found in search([tmp_path / place for place in places])] == names


def test_names_are_unique_even_beside_a_real_second() -> None:
    found = unique_names(["ann", "ann", "ann (2)", "Ann"])
    assert len({name.casefold() for name in found}) == 4 and found[2] == "ann (2)"
    pages = page_names(["ann", "Ann", "a/n", "a n", *["x"] * 3000])
    assert len({page.lower() for page in pages}) == 3004


def test_text_is_safe_to_print_and_to_write() -> None:
    assert clean("a\x1b[31m\ud800\u202eb\nc") == "a?[31m??b c"
    assert clean("a\nb\r", lines=True) == "a\nb "
    assert len(clean("x" * 5_000_000)) == 500
    assert [_no_formula(x) for x in ("=1", "@x", "a;=1+1", "a-b", "x, -1", 3)] == [
        "'=1", "'@x", "a;'=1+1", "a-b", "x, '-1", 3,
    ]  # fmt: skip


def test_huge_files_and_pipes_cost_one_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for student in ("ann", "bob", "cem", "dea"):
        write(tmp_path / "s" / student / "notes.txt", "x")
    write(tmp_path / "s/ann" / NAME, notebook({"2.1": RIGHT["2.1"]}))
    with (tmp_path / "s/bob" / NAME).open("wb") as file:
        file.truncate(1 << 40)  # a file with a hole: it takes no room on the disk
    os.mkfifo(tmp_path / "s/cem" / NAME)
    for number in range(12):
        with (tmp_path / "s/dea" / f"{number:02}_x.ipynb").open("wb") as file:
            file.truncate(1 << 40)
    places = [str(path) for path in sorted((tmp_path / "s").iterdir())]
    out = tmp_path / "out"
    assert command.main([*places, "--out", str(out), "--jobs", "1", "--chapter", "2", *WEAKLY]) == 1
    rows = json.loads((out / "grades.json").read_text(encoding="utf-8"))["students"]
    assert [row["earned"] for row in rows] == [4, 0, 0, 0]
    assert "larger than 20 MB" in rows[1]["problem"] and "no such file" in rows[2]["problem"]
    assert "200 MB: name the notebook" in rows[3]["problem"]


# --- the output folder ---


def test_an_output_that_cannot_be_used_is_reported_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "s/ann" / NAME, notebook())
    (tmp_path / "file").write_text("x")
    for out in ("file", "file/below"):
        arguments = [str(tmp_path / "s/ann"), "--out", str(tmp_path / out), "--chapter", "2", *WEAKLY]
        assert command.main(arguments) == 2
        told = capsys.readouterr()
        assert "grade: " in told.err and "graded" not in told.out and len(told.err.splitlines()) == 1
    for option in (["--seconds", "0"], ["--seconds", "nan"], ["--jobs", "0"]):
        with pytest.raises(SystemExit) as stopped:
            command.main(["x", *option])
        assert stopped.value.code == 2


def result_of(student: str) -> StudentResult:
    (job,) = command.find_jobs([Path(student)], "02")
    return failed(read(job, BOOK), BOOK, "x")


def test_results_outlive_a_kill_and_two_graders_stay_apart(tmp_path: Path) -> None:
    run: dict[str, Any] = {"chapter": "02", "limits": 1}
    one = result_of("nobody")
    with Results(tmp_path / "out", run, 7) as store:
        store.add("key", one)
        with pytest.raises(CannotWrite, match="another grader"):
            Results(tmp_path / "out", run, 8)
    with (tmp_path / "out/results.jsonl").open("a") as file:
        file.write('{"key": "cut o')
    with Results(tmp_path / "out", run, 8) as store:
        assert store.seed == 7 and store.earlier == {"key": one}
    for other in ({"chapter": "03", "limits": 1}, run | {"seed": 9}):
        with Results(tmp_path / "out", other, 8) as store:
            assert store.earlier == {} and store.seed == other.get("seed", 8)


def test_a_killed_run_continues_and_old_pages_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for student in ("ann", "bob"):
        write(tmp_path / "s" / student / NAME, notebook({"2.1": RIGHT["2.1"]}))
    out = tmp_path / "out"
    write(out / "students/old.html", "old")
    places = [str(tmp_path / "s" / student) for student in ("ann", "bob")]
    arguments = [*places, "--out", str(out), "--jobs", "1", "--chapter", "2", *WEAKLY]

    def interrupted(*a: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(command, "_progress", interrupted)
        assert command.main(arguments) == 130
    assert "The same command continues" in capsys.readouterr().out
    first = json.loads((out / "grades.json").read_text(encoding="utf-8"))
    assert not first["complete"] and [row["student"] for row in first["students"]] == ["ann"]
    assert command.main(arguments) == 0
    assert "Continuing: 1 of 2" in capsys.readouterr().out
    data = json.loads((out / "grades.json").read_text(encoding="utf-8"))
    assert data["complete"] and data["seed"] == first["seed"]
    assert [row["earned"] for row in data["students"]] == [4, 4]
    assert {path.name for path in (out / "students").iterdir()} == {"ann.html", "bob.html"}
    assert not (out / "results.jsonl").exists()
    assert rows_of(out)["bob"]["file"] == NAME


def test_a_full_disk_gives_one_sentence(tmp_path: Path) -> None:
    write(tmp_path / "s/ann" / NAME, notebook({"2.1": RIGHT["2.1"]}))
    grade = [
        sys.executable,
        "-m",
        "coursekit",
        "grade",
        str(tmp_path / "s/ann"),
        "--chapter",
        "2",
        "--jobs",
        "1",
    ]
    limited = ["bash", "-c", 'ulimit -f 1; exec "$@"', "x", *grade, "--out", str(tmp_path / "out"), *WEAKLY]
    done = subprocess.run(limited, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr.strip() == f"grade: cannot write to {tmp_path / 'out'}: File too large."


# --- Dask ---


@pytest.mark.slow
@pytest.mark.skipif(
    not importlib.util.find_spec("distributed"),
    reason="Dask's distributed is not installed: pip install '.[cluster]'",
)
def test_two_dask_workers_grade_a_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from distributed import LocalCluster

    places = []
    for number in range(5):
        answers = {"2.1": RIGHT["2.1"] if number else "def slot(*a):\n    return 0"}
        places.append(tmp_path / "s" / f"s{number}")
        write(places[-1] / NAME, notebook(answers))
    with LocalCluster(
        n_workers=2, threads_per_worker=2, dashboard_address=None, worker_dashboard_address=None
    ) as cluster:
        arguments = ["--out", str(tmp_path / "out"), "--dask", cluster.scheduler_address, "--chapter", "2"]
        assert command.main([*map(str, places), *arguments, *WEAKLY]) == 0
        rows = rows_of(tmp_path / "out")
        assert [rows[f"s{number}"]["2.1"] for number in range(5)] == ["0", "4", "4", "4", "4"]
        monkeypatch.setattr("coursekit.grade.cluster.REQUIRED", ("landlock", "moat"))
        with pytest.raises(NoCluster, match="its sandbox lacks moat"):
            Cluster(cluster.scheduler_address, Settings(BOOK, 1, 10, 1024))
        other = replace(BOOK, cells=BOOK.cells[:3])
        monkeypatch.setattr("coursekit.grade.cluster.course_digest", lambda *a: "other")
        with pytest.raises(NoCluster, match="another version of the course"):
            Cluster(cluster.scheduler_address, Settings(other, 2, 10, 1024))


@pytest.mark.skipif(
    not importlib.util.find_spec("distributed"),
    reason="Dask's distributed is not installed: pip install '.[cluster]'",
)
def test_an_address_without_a_scheduler_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NoCluster, match="no Dask scheduler answers"):
        Cluster("tcp://127.0.0.1:9", Settings(BOOK, 1, 10, 1024))
