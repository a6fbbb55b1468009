"""The grader's output: `grades.json`, `grades.csv` and a feedback page for each student.

Everything that came from a submission is treated as data: escaped in pages, shortened, and never a formula in the
table. Each file is replaced as a whole, so a reader never sees half of one.
"""

from __future__ import annotations

import csv
import html
import io
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from coursekit.checks.framework import PASSED
from coursekit.grade.judge import ExerciseResult, StudentResult
from coursekit.grade.submission import Book
from coursekit.grade.text import clean

LONGEST_MESSAGE = 2000
# A character that starts a formula, at the start of a cell or after a separator of another spreadsheet's table.
_FORMULA = re.compile(r"(^|[;,|])(\s*)(?=[=+\-@＝＋－＠])")

STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem}
body{color:#222;background:#fff}
h2{margin-top:2rem}.ok{color:#006b4f}.no{color:#a33c00}li{margin:.3rem 0}.note{color:#555}
table{border-collapse:collapse}td,th{padding:.2rem .8rem;border-bottom:1px solid #ccc;text-align:left}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#1b1b1b}.ok{color:#4fc3a1}.no{color:#ff9b66}.note{color:#aaa}}"""


def write_report(
    folder: Path,
    book: Book,
    results: list[StudentResult],
    facts: dict[str, Any],
    others: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Write the whole report, and remove the pages of an earlier one.

    `facts` are the run's seed and limits; `others` says for each student which notebooks were not graded, and why.
    """
    others = others or {}
    pages = folder / "students"
    pages.mkdir(parents=True, exist_ok=True)
    names = page_names([result.student for result in results])
    for result, name in zip(results, names, strict=True):
        replace_file(pages / name, page(book, result, others.get(result.student, ())))
    data = {
        "chapter": book.chapter,
        **facts,
        "students": [
            as_data(result) | {"not_graded": list(others.get(result.student, ()))} for result in results
        ],
    }
    replace_file(folder / "grades.json", json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    replace_file(folder / "grades.csv", table(book, results, others))
    rows = "".join(
        f'<tr><td><a href="students/{html.escape(name)}">{html.escape(result.student)}</a></td>'
        f"<td>{result.earned} of {result.points}</td><td>{html.escape(clean(result.problem or ''))}</td></tr>"
        for result, name in zip(results, names, strict=True)
    )
    head = "<tr><th>student</th><th>points</th><th></th></tr>"
    replace_file(folder / "index.html", _html(book.name, f"<table>{head}{rows}</table>"))
    for old in {path.name for path in pages.glob("*.html")} - set(names):
        (pages / old).unlink()


def as_data(result: StudentResult) -> dict[str, Any]:
    """One student's result as JSON data."""
    exercises = {
        id: {
            "status": one.status,
            "earned": one.verdict.earned,
            "points": one.verdict.points,
            "blocked_by": one.blocked_by,
            "notes": [clean(note) for note in one.notes],
            "parts": [
                asdict(part) | {"message": clean(part.message, LONGEST_MESSAGE, lines=True)}
                for part in one.verdict.parts
            ],
        }
        for id, one in result.exercises.items()
    }
    return {
        "student": result.student,
        "file": result.file,
        "earned": result.earned,
        "points": result.points,
        "problem": None if result.problem is None else clean(result.problem),
        "sandbox": result.layers,
        "exercises": exercises,
    }


def table(book: Book, results: list[StudentResult], others: Mapping[str, Sequence[str]] | None = None) -> str:
    """The CSV table: one row per student, one column per exercise, and the files that were and were not graded."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["student", *book.ids, "total", "points", "problem", "file", "not graded"])
    for result in results:
        earned = [result.exercises[id].verdict.earned for id in book.ids]
        nothing = "no part passed; the student's page says why" if result.earned == 0 else ""
        told = [result.problem or nothing, result.file, "; ".join((others or {}).get(result.student, ()))]
        row = [result.student, *earned, result.earned, result.points, *told]
        writer.writerow([_no_formula(value) for value in row])
    return text.getvalue()


def page(book: Book, result: StudentResult, others: Sequence[str] = ()) -> str:
    """The page with one student's feedback."""
    parts = [f"<p>{result.earned} of {result.points} points · {html.escape(result.file)}</p>"]
    if result.problem:
        parts.append(f'<p class="no">{html.escape(clean(result.problem))}</p>')
    parts += [f'<p class="note">Not graded: {html.escape(other)}</p>' for other in others]
    for id in book.ids:
        parts.append(_section(id, result.exercises[id]))
    return _html(f"{book.name} · {result.student}", "\n".join(parts))


def page_names(students: list[str]) -> list[str]:
    """A unique file name of plain letters for each student."""
    names: list[str] = []
    taken: set[str] = set()
    numbers: Counter[str] = Counter()
    for student in students:
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", student).strip(".-")[:60] or "student"
        name = f"{plain}.html"
        while name.lower() in taken:
            numbers[plain.lower()] += 1
            name = f"{plain}-{numbers[plain.lower()] + 1}.html"
        taken.add(name.lower())
        names.append(name)
    return names


def replace_file(path: Path, text: str) -> None:
    """Replace the file at `path` as a whole: readers see the old text or the new one, even after a kill.

    The text may contain invalid characters from a submission (half of a surrogate pair).
    """
    new = path.with_name(f".{path.name}.new")
    new.write_text(text, encoding="utf-8", errors="backslashreplace", newline="")
    new.replace(path)


def _section(id: str, one: ExerciseResult) -> str:
    mark = "ok" if one.status == PASSED else "no"
    lines = [f'<h2 class="{mark}">Exercise {id}: {one.verdict.earned} of {one.verdict.points}</h2>', "<ul>"]
    told: set[str] = set()
    for part in one.verdict.parts:
        text = "right" if part.status == PASSED else clean(part.message, LONGEST_MESSAGE, lines=True)
        text = "as above" if text in told else text
        told.add(part.message)
        mark = "ok" if part.status == PASSED else "no"
        points = f"{part.earned} of {part.points}"
        lines.append(
            f'<li><span class="{mark}">{points}</span> · {html.escape(part.name)}: {html.escape(text)}</li>'
        )
    lines.append("</ul>")
    lines += [f'<p class="note">{html.escape(clean(note))}</p>' for note in one.notes]
    return "\n".join(lines)


def _html(title: str, body: str) -> str:
    title = html.escape(title)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
        f"<h1>{title}</h1>\n{body}\n</html>\n"
    )


def _no_formula(value: Any) -> Any:
    """Return a text in one line, with an apostrophe wherever a spreadsheet would begin a formula."""
    return _FORMULA.sub(r"\1\2'", clean(value, LONGEST_MESSAGE)) if isinstance(value, str) else value
