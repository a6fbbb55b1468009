"""Extraction of a student's cells from a submitted file: answers by exercise id, and the cells that the student added.

Everything else in the file is ignored: check cells, outputs, tags, metadata and the order of cells come from the
original notebook. Invariant: any bytes give a `Submission`, with a description of the problem if there is one.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coursekit.cells import Cell, grade_id

MAX_FILE = 20_000_000


@dataclass(frozen=True)
class Book:
    """The original notebook of a chapter's exercises, and the hints for each exercise."""

    chapter: str
    name: str
    cells: tuple[Cell, ...]

    @property
    def ids(self) -> list[str]:
        """The exercise ids in order."""
        return [cell.exercise for cell in self.cells if cell.kind == "answer" and cell.exercise]

    def answer(self, id: str) -> Cell:
        """The cell of an exercise's answer."""
        return next(cell for cell in self.cells if cell.kind == "answer" and cell.exercise == id)


class NoSuchChapter(ValueError):
    """The requested chapter has no exercises."""


def load_book(root: Path, chapter: str) -> Book:
    """Return the original notebook of a chapter (`2`, `02`)."""
    from coursekit.build.exercises import cells_of, sources  # imported late: see coursekit.cells

    found = sources(root)
    if chapter.zfill(2) not in found:
        raise NoSuchChapter(
            f"chapter {chapter} has no exercises; those that have: {', '.join(found) or 'none'}"
        )
    path = found[chapter.zfill(2)]
    return Book(chapter.zfill(2), path.stem, tuple(cells_of(path.read_text(encoding="utf-8"))[0]))


@dataclass
class Submission:
    """One student's notebook. `before` holds the added cells, by the exercise whose answer follows them."""

    student: str
    file: str
    problem: str | None = None
    answers: dict[str, str] = field(default_factory=dict)
    before: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    after: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    notes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    untouched: bool = False
    harmful: set[str] = field(default_factory=set)  # added cells that were present when a sandbox died


def read_submission(path: Path, student: str, book: Book) -> Submission:
    """Read the student's cells from the file at `path`."""
    found = Submission(student, path.name)
    try:
        cells = _cells(path)
    except ValueError as error:
        found.problem = str(error)
        return found
    _sort(cells, book, found)
    if not found.answers:
        others = sorted(set(_chapters(cells)))
        added = any(found.before.values()) or any(found.after.values())
        if others and book.chapter not in others:
            found.problem = (
                f"wrong chapter: this one has exercises of chapter {', '.join(others)}, not {book.chapter}"
            )
        elif not added:
            found.problem = "no answers: the notebook has no exercise cell and no code of its own"
    added = any(found.before.values()) or any(found.after.values())
    stubs = (_plain(source) == _plain(book.answer(id).stub) for id, source in found.answers.items())
    found.untouched = not added and all(stubs)
    return found


def _plain(source: str) -> str:
    """An answer without the message in its `raise NotImplementedError(…)`, which nbgrader's release lacks."""
    return re.sub(r"(raise NotImplementedError)\([^)\n]*\)", r"\1", source.strip())


def chapter_of(path: Path) -> str | None:
    """Guess the chapter of a file from the exercises in it."""
    try:
        known = _chapters(_cells(path))
    except ValueError:
        return None
    return max(set(known), key=known.count) if known else None


def describe_notebook(path: Path) -> tuple[str, str | None]:
    """Return the kind of a file (`exercise`, `lesson`, `solutions` or `unknown`) and the chapter of its exercises.

    The metadata that the course's build wrote tells lessons and solutions; cell ids and grade ids tell the chapter.
    """
    try:
        data = _notebook(path)
    except ValueError:
        return "unknown", None
    known = _chapters(data["cells"])
    chapter = max(sorted(set(known)), key=known.count) if known else None
    metadata = data.get("metadata")
    course = metadata.get("course") if isinstance(metadata, dict) else None
    course = course if isinstance(course, dict) else {}
    if str(course.get("source")).startswith("curriculum/lessons/"):
        return "lesson", chapter
    if "depends_on" in course:  # only executed notebooks list their dependencies: lessons and solutions
        return "solutions", chapter
    return ("exercise" if chapter else "unknown"), chapter


def _sort(cells: list[dict[str, Any]], book: Book, found: Submission) -> None:
    """Sort each code cell into the answers or the added cells, or drop it."""
    ours = {cell.id: cell for cell in book.cells}
    sources_of_ours = {source.strip() for cell in book.cells for source in (cell.solved, cell.stub)}
    answer_of = {grade_id(id): id for id in book.ids}
    waiting: list[str] = []
    last: str | None = None
    for cell in cells:
        key, source = _key(cell), _source(cell)
        id = answer_of.get(key or "")
        if cell.get("cell_type") != "code":
            if id:
                _note(found, id, "The cell for the answer is not a code cell, so it was not used.")
            continue
        if id:
            _take(found, id, source, book.answer(id).stub)
            found.before[id] += waiting
            waiting, last = [], id
        elif source.strip() and source.strip() not in sources_of_ours:
            if key in ours and ours[key].kind == "check":
                continue
            waiting.append(source)
            if last:
                found.after[last].append(source)
    for id in book.ids:
        if id not in found.answers:
            found.notes[id].append(f"The cell with the id {grade_id(id)} is not in the notebook.")
            found.before[id] += [source for source in waiting if not found.answers]


def _take(found: Submission, id: str, source: str, stub: str) -> None:
    """Of several cells with the same exercise id, use the last one that was changed."""
    if id in found.answers:
        _note(found, id, "Several cells have this exercise's id; the last one that was changed is graded.")
        if source.strip() == stub.strip():
            return
    found.answers[id] = source


def _note(found: Submission, id: str, text: str) -> None:
    """Add a note once, however many cells call for it."""
    if text not in found.notes[id]:
        found.notes[id].append(text)


def _cells(path: Path) -> list[dict[str, Any]]:
    """Return the file's cells; raises ValueError with a description of the problem."""
    return list(_notebook(path)["cells"])


def _notebook(path: Path) -> dict[str, Any]:
    """Return the file's notebook, with the well-formed ones of its cells; raises ValueError like `_cells`."""
    text = bytes_of(path)
    try:
        data = json.loads(text)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        reason = type(error).__name__ if text else "empty file"
        raise ValueError(f"not a notebook: the file could not be parsed ({reason})") from None
    cells = data.get("cells") if isinstance(data, dict) else None
    if not isinstance(cells, list):
        raise ValueError("not a notebook: the file has no cells (only notebook format 4 is supported)")
    return data | {"cells": [cell for cell in cells if isinstance(cell, dict)]}


def bytes_of(path: Path) -> bytes:
    """Return a file's contents; raises ValueError with a description of the problem.

    A pipe or a device is never opened for long, and no more is read than a notebook may have, whatever the file
    becomes while it is read.
    """
    try:
        number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(number, "rb") as file:
            if not stat.S_ISREG(os.fstat(number).st_mode):
                raise ValueError("there is no such file")
            text = file.read(MAX_FILE + 1)
    except (FileNotFoundError, IsADirectoryError):
        raise ValueError("there is no such file") from None
    except OSError as error:
        raise ValueError(f"the file cannot be read: {error.strerror or type(error).__name__}") from None
    if len(text) > MAX_FILE:
        raise ValueError(f"the file is larger than {MAX_FILE // 1_000_000} MB")
    return text


def _key(cell: dict[str, Any]) -> str | None:
    """Return a cell's name: nbgrader's id, or else the cell's own id."""
    metadata = cell.get("metadata")
    nbgrader = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    key = nbgrader.get("grade_id") if isinstance(nbgrader, dict) else None
    key = key if isinstance(key, str) else cell.get("id")
    return key if isinstance(key, str) else None


def _source(cell: dict[str, Any]) -> str:
    source = cell.get("source", "")
    if isinstance(source, list):
        source = "".join(line for line in source if isinstance(line, str))
    return source if isinstance(source, str) else ""


def _chapters(cells: list[dict[str, Any]]) -> list[str]:
    """Return the chapters, as two digits, of cells named `exercise-2-1`, `exercise-2-1-check` and so on."""
    named = (re.match(r"exercise-(\d+)-\d+", _key(cell) or "") for cell in cells)
    return [match[1].zfill(2) for match in named if match]
