"""Submissions made for the grader's tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from coursekit import ROOT
from coursekit.build.exercises import expand
from coursekit.build.percent import notebook_from_text
from coursekit.cells import grade_id
from coursekit.grade.judge import Judge, StudentResult
from coursekit.grade.lockdown import missing_layers
from coursekit.grade.submission import Book, load_book, read_submission

WEAK = bool(missing_layers())  # without all layers, the tests grade in a weak sandbox
WEAKLY = ["--weak-sandbox"] * WEAK
BOOK: Book = load_book(ROOT, "2")
TEXT = (ROOT / "curriculum/exercises/02_block_table.py").read_text(encoding="utf-8")
SLOT = "def slot(blocks, i, block_size):\n    return blocks[i // block_size] * block_size + i % block_size\n"
RIGHT = {id: BOOK.answer(id).solved for id in BOOK.ids}


def notebook(answers: dict[str, str] | None = None, *, solved: bool = False) -> dict[str, Any]:
    """The handed-out notebook (or the solved one) with some answers replaced."""
    data = json.loads(json.dumps(expand(TEXT, solved=solved)[0]))
    for id, source in (answers or {}).items():
        cell_of(data, id)["source"] = source
    return data


def cell_of(data: dict[str, Any], id: str, kind: str = "") -> dict[str, Any]:
    """The cell of an exercise's answer, or with `-check` of its check."""
    return next(cell for cell in data["cells"] if cell.get("id") == grade_id(id) + kind)


def code_cell(source: str, **metadata: Any) -> dict[str, Any]:
    """A cell that a student added."""
    return {
        "cell_type": "code",
        "source": source,
        "metadata": metadata,
        "outputs": [],
        "execution_count": None,
    }


def write(path: Path, data: Any) -> Path:
    """Writes a submission: a notebook, or any text or bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(data, bytes):
        path.write_bytes(data)
    else:
        path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return path


def cells_in(file: str) -> list[NotebookNode]:
    """The code cells of a file beside this one: hostile answers, kept in cells so that they can be read."""
    text = (Path(__file__).parent / "submissions" / file).read_text(encoding="utf-8")
    return [cell for cell in notebook_from_text(text).cells if cell.cell_type == "code"]


def grade(judge: Judge, folder: Path, data: Any) -> StudentResult:
    """The result of one submission."""
    return judge.grade(read_submission(write(folder / "02_block_table.ipynb", data), "x", BOOK))


def points(result: StudentResult) -> dict[str, int]:
    """Exercise → points."""
    return {id: one.verdict.earned for id, one in result.exercises.items()}


def message(result: StudentResult, id: str) -> str:
    """What the student is told first about an exercise."""
    failure = result.exercises[id].verdict.first_failure
    return failure.message if failure else "passed"
