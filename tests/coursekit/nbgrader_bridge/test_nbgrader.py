"""The nbgrader course folder, and our points in nbgrader's gradebook, with nbgrader itself."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coursekit import ROOT
from coursekit.build.exercises import sources
from coursekit.nbgrader_bridge.command import main
from tests.helpers.grading import BOOK

NAME = "02_block_table"
needs_nbgrader = pytest.mark.skipif(
    not importlib.util.find_spec("nbgrader"), reason="nbgrader is not installed: pip install nbgrader"
)


def report(folder: Path, earned: int, *, complete: bool = True, points: int | None = None) -> Path:
    full = {"2.1": 4, "2.2": 8, "2.3": 8, "2.4": 5}
    assert list(full) == BOOK.ids
    exercises = {id: {"earned": earned, "points": points or most} for id, most in full.items()}
    rows = [{"student": name, "problem": None, "exercises": exercises} for name in ("ann", "zoe")]
    path = folder / "grades.json"
    path.write_text(json.dumps({"chapter": "02", "complete": complete, "students": rows}))
    return path


def test_the_course_folder_has_one_assignment_for_each_chapter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(tmp_path)]) == main(["export", str(tmp_path)]) == 0
    for version in ("source", "release"):
        found = {path.parent.name: path.stem for path in (tmp_path / version).glob("*/*.ipynb")}
        assert found == {path.stem: path.stem for path in sources(ROOT).values()}
    assert "BEGIN SOLUTION" in (tmp_path / f"source/{NAME}/{NAME}.ipynb").read_text(encoding="utf-8")
    assert "BEGIN SOLUTION" not in (tmp_path / f"release/{NAME}/{NAME}.ipynb").read_text(encoding="utf-8")
    (tmp_path / "nbgrader_config.py").write_text("mine")
    assert main(["export", str(tmp_path)]) == 2
    assert "nbgrader_config.py exists and differs" in capsys.readouterr().err


def test_reports_that_cannot_be_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = str(tmp_path / "gradebook.db")
    assert main(["import", database, "--grades", str(tmp_path / "none")]) == 2
    assert main(["import", database, "--grades", str(report(tmp_path, 1, complete=False))]) == 2
    assert "interrupted" in capsys.readouterr().err


@needs_nbgrader
@pytest.mark.slow
def test_our_points_replace_nbgrader_s(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from nbgrader.api import Gradebook

    assert main(["export", str(tmp_path)]) == 0
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}
    for arguments in (["generate_assignment", NAME, "--force"], ["validate", f"source/{NAME}/{NAME}.ipynb"]):
        command = [sys.executable, "-m", "nbgrader", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert "passes all the tests" in done.stdout
    database = tmp_path / "gradebook.db"
    with Gradebook(f"sqlite:///{database}", course_id="paged-attention") as book:
        for student in ("ann", "bob"):
            book.add_student(student)
            book.add_submission(NAME, student)
        for number in range(1, 5):  # points that an answer gave itself
            book.find_grade(f"exercise-2-{number}-check", NAME, NAME, "ann").auto_score = 99
        book.find_grade("exercise-2-4-check", NAME, NAME, "ann").manual_score = 5
        book.db.commit()
    assert main(["import", str(database), "--grades", str(report(tmp_path, 2))]) == 1
    told = capsys.readouterr().out
    assert "does not know these students (--add-students adds them): zoe" in told
    assert "nbgrader's own scores stand: bob" in told and "by hand, which stands: ann" in told
    with Gradebook(f"sqlite:///{database}", course_id="paged-attention") as book:
        assert book.find_submission(NAME, "ann").score == 2 + 2 + 2 + 5
        assert not book.find_submission(NAME, "ann").needs_manual_grade
    assert main(["import", str(database), "--grades", str(report(tmp_path, 2, points=77))]) == 2
    assert "has 77 points" in capsys.readouterr().err
