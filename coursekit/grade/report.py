"""The grader's output: `grades.json`, `grades.csv` and a feedback page for each student.

Everything that came from a submission is treated as data: escaped in pages, and never a formula in the table.
"""

from __future__ import annotations

import csv
import html
import io
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from coursekit.checks.framework import PASSED
from coursekit.grade.judge import ExerciseResult, StudentResult
from coursekit.grade.submission import Book

STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem}
body{color:#222;background:#fff}
h2{margin-top:2rem}.ok{color:#006b4f}.no{color:#a33c00}li{margin:.3rem 0}.note{color:#555}
table{border-collapse:collapse}td,th{padding:.2rem .8rem;border-bottom:1px solid #ccc;text-align:left}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#1b1b1b}.ok{color:#4fc3a1}.no{color:#ff9b66}.note{color:#aaa}}"""


def write_report(folder: Path, book: Book, results: list[StudentResult], facts: dict[str, Any]) -> None:
    """Write the whole report. `facts` are the run's seed and limits."""
    pages = folder / "students"
    pages.mkdir(parents=True, exist_ok=True)
    names = page_names([result.student for result in results])
    data = {"chapter": book.chapter, **facts, "students": [as_data(result) for result in results]}
    _write(folder / "grades.json", json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    _write(folder / "grades.csv", table(book, results))
    for result, name in zip(results, names, strict=True):
        _write(pages / name, page(book, result))
    rows = "".join(
        f'<tr><td><a href="students/{html.escape(name)}">{html.escape(result.student)}</a></td>'
        f"<td>{result.earned} of {result.points}</td><td>{html.escape(result.problem or '')}</td></tr>"
        for result, name in zip(results, names, strict=True)
    )
    head = "<tr><th>student</th><th>points</th><th></th></tr>"
    _write(folder / "index.html", _html(book.name, f"<table>{head}{rows}</table>"))


def as_data(result: StudentResult) -> dict[str, Any]:
    """One student's result as JSON data."""
    exercises = {
        id: {
            "status": one.status,
            "earned": one.verdict.earned,
            "points": one.verdict.points,
            "blocked_by": one.blocked_by,
            "notes": one.notes,
            "parts": [asdict(part) for part in one.verdict.parts],
        }
        for id, one in result.exercises.items()
    }
    return {
        "student": result.student,
        "file": result.file,
        "earned": result.earned,
        "points": result.points,
        "problem": result.problem,
        "sandbox": result.layers,
        "exercises": exercises,
    }


def table(book: Book, results: list[StudentResult]) -> str:
    """The CSV table: one row per student, one column per exercise."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["student", *book.ids, "total", "points", "problem"])
    for result in results:
        earned = [result.exercises[id].verdict.earned for id in book.ids]
        row = [result.student, *earned, result.earned, result.points, result.problem or ""]
        writer.writerow([_no_formula(value) for value in row])
    return text.getvalue()


def page(book: Book, result: StudentResult) -> str:
    """The page with one student's feedback."""
    parts = [f"<p>{result.earned} of {result.points} points · {html.escape(result.file)}</p>"]
    if result.problem:
        parts.append(f'<p class="no">{html.escape(result.problem)}</p>')
    for id in book.ids:
        parts.append(_section(id, result.exercises[id]))
    return _html(f"{book.name} · {result.student}", "\n".join(parts))


def page_names(students: list[str]) -> list[str]:
    """A unique file name of plain letters for each student."""
    names: list[str] = []
    for student in students:
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", student).strip(".-")[:60] or "student"
        name, number = f"{plain}.html", 1
        while name.lower() in {other.lower() for other in names}:
            number += 1
            name = f"{plain}-{number}.html"
        names.append(name)
    return names


def _write(path: Path, text: str) -> None:
    """Write text that may contain invalid characters from a submission (half of a surrogate pair)."""
    path.write_text(text, encoding="utf-8", errors="backslashreplace", newline="")


def _section(id: str, one: ExerciseResult) -> str:
    mark = "ok" if one.status == PASSED else "no"
    lines = [f'<h2 class="{mark}">Exercise {id}: {one.verdict.earned} of {one.verdict.points}</h2>', "<ul>"]
    told: set[str] = set()
    for part in one.verdict.parts:
        text = "right" if part.status == PASSED else part.message
        text = "as above" if text in told else text
        told.add(part.message)
        mark = "ok" if part.status == PASSED else "no"
        points = f"{part.earned} of {part.points}"
        lines.append(
            f'<li><span class="{mark}">{points}</span> · {html.escape(part.name)}: {html.escape(text)}</li>'
        )
    lines.append("</ul>")
    lines += [f'<p class="note">{html.escape(note)}</p>' for note in one.notes]
    return "\n".join(lines)


def _html(title: str, body: str) -> str:
    title = html.escape(title)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
        f"<h1>{title}</h1>\n{body}\n</html>\n"
    )


def _no_formula(value: Any) -> Any:
    """Prefix a text with an apostrophe if a spreadsheet would treat it as a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in set("=+-@\t\r") else value
