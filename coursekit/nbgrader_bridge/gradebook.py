"""The points of a `grades.json` in nbgrader's gradebook.

Invariants: everything is checked before anything is written, and all grades are written in one transaction; a score
that a person gave (`manual_score`) is kept.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coursekit.cells import grade_id
from coursekit.nbgrader_bridge.export import COURSE_ID


class CannotImport(Exception):
    """The report or the gradebook cannot be used. The message is one sentence."""


@dataclass
class Imported:
    """The result of an import: the assignment, and the students by what happened to their scores."""

    assignment: str
    written: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)  # in the report, but not in the gradebook
    left: list[str] = field(default_factory=list)  # submitted in nbgrader, but not in the report
    manual: list[str] = field(default_factory=list)  # a person's score stands


def read_report(path: Path) -> dict[str, Any]:
    """Return the data of a `grades.json`. Raises CannotImport if it is not a complete report."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not JSON"
        raise CannotImport(f"{path} cannot be read: {reason}.") from None
    if not isinstance(data, dict) or not isinstance(data.get("students"), list) or "chapter" not in data:
        raise CannotImport(f"{path} is not a grades.json of `course.py grade`.")
    if not data.get("complete"):
        raise CannotImport(f"{path} covers a run that was interrupted; repeat its command first.")
    return data


def import_grades(
    database: Path, report: dict[str, Any], assignment: str, *, add_students: bool = False
) -> Imported:
    """Write the points of every exercise into the gradebook, in place of nbgrader's own automatic scores.

    `assignment` names the assignment and its notebook. A student unknown to the gradebook is skipped, or added with
    `add_students`. A submission with a problem gets 0 and is marked for grading by hand.
    """
    try:
        from nbgrader.api import Gradebook, MissingEntry
    except ImportError:
        raise CannotImport("nbgrader is not installed; `pip install nbgrader` installs it.") from None
    if not database.is_file():
        raise CannotImport(f"there is no gradebook {database}; `nbgrader generate_assignment` makes one.")
    done = Imported(assignment)
    with Gradebook(f"sqlite:///{database.resolve()}", course_id=COURSE_ID) as book:
        try:
            cells = {
                cell.name: cell.max_score for cell in book.find_notebook(assignment, assignment).grade_cells
            }
        except MissingEntry:
            raise CannotImport(
                f"the gradebook has no assignment {assignment}; run `nbgrader generate_assignment {assignment}` first."
            ) from None
        _compare(report, cells, assignment)
        known = {student.id for student in book.students}
        listed = {row["student"] for row in report["students"]}
        submitted = {submission.student.id for submission in book.assignment_submissions(assignment)}
        done.left = sorted(submitted - listed)
        for row in report["students"]:
            student = row["student"]
            if student not in known and not add_students:
                done.unknown.append(student)
                continue
            book.update_or_create_student(student)
            book.update_or_create_submission(assignment, student)
            _write(book, row, assignment, done)
        book.db.commit()
    return done


def _compare(report: dict[str, Any], cells: dict[str, float], assignment: str) -> None:
    """Raise CannotImport unless the gradebook has a cell with the right number of points for every exercise."""
    for row in report["students"]:
        for id, one in row["exercises"].items():
            name = f"{grade_id(id)}-check"
            if cells.get(name) != one["points"]:
                raise CannotImport(
                    f"exercise {id} has {one['points']} points, but its cell {name} in the gradebook's assignment "
                    f"{assignment} has {cells.get(name, 'none')}; export and generate the assignment again."
                )


def _write(book: Any, row: dict[str, Any], assignment: str, done: Imported) -> None:
    student = row["student"]
    done.written.append(student)
    for id, one in row["exercises"].items():
        grade = book.find_grade(f"{grade_id(id)}-check", assignment, assignment, student)
        grade.auto_score = float(one["earned"])
        grade.needs_manual_grade = bool(row["problem"]) and grade.manual_score is None
        if grade.manual_score is not None and student not in done.manual:
            done.manual.append(student)
