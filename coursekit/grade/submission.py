"""From a submitted file to the student's cells: answers by exercise id, and the cells that the student added.

Whatever else the file holds counts for nothing: check cells, outputs, tags, metadata and the order of cells are the
pristine notebook's. What must hold: any bytes give a `Submission`, with its problem in words if there is one.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coursekit.cells import Cell, grade_id

MAX_FILE = 20_000_000


@dataclass(frozen=True)
class Book:
    """The pristine notebook of a chapter's exercises, and the hints to each."""

    chapter: str
    name: str
    cells: tuple[Cell, ...]

    @property
    def ids(self) -> list[str]:
        """The exercises in order."""
        return [cell.exercise for cell in self.cells if cell.kind == "answer" and cell.exercise]

    def answer(self, id: str) -> Cell:
        """The cell of an exercise's answer."""
        return next(cell for cell in self.cells if cell.kind == "answer" and cell.exercise == id)


class NoSuchChapter(ValueError):
    """There are no exercises of the chapter asked for."""


def load_book(root: Path, chapter: str) -> Book:
    """The pristine notebook of a chapter (`2`, `02`)."""
    from coursekit.build.exercises import cells_of, sources  # see coursekit.cells for why here

    found = sources(root)
    if chapter.zfill(2) not in found:
        raise NoSuchChapter(f"chapter {chapter} has no exercises; there are: {', '.join(found) or 'none'}")
    path = found[chapter.zfill(2)]
    return Book(chapter.zfill(2), path.stem, tuple(cells_of(path.read_text(encoding="utf-8"))[0]))


@dataclass
class Submission:
    """One student's notebook. `before` holds the added cells by the exercise whose answer follows them."""

    student: str
    file: str
    problem: str | None = None
    answers: dict[str, str] = field(default_factory=dict)
    before: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    after: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    notes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    untouched: bool = False
    harmful: set[str] = field(default_factory=set)  # added cells in whose company a sandbox was lost


def read_submission(path: Path, student: str, book: Book) -> Submission:
    """The student's cells in the file at `path`."""
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
                f"wrong chapter: this holds exercises of chapter {', '.join(others)}, not {book.chapter}"
            )
        elif not added:
            found.problem = "no answers: the notebook holds no cell of an exercise and no code of its own"
    added = any(found.before.values()) or any(found.after.values())
    stubs = (source.strip() == book.answer(id).stub.strip() for id, source in found.answers.items())
    found.untouched = not added and all(stubs)
    return found


def chapter_of(path: Path) -> str | None:
    """The chapter whose exercises a file seems to hold."""
    try:
        known = _chapters(_cells(path))
    except ValueError:
        return None
    return max(set(known), key=known.count) if known else None


def _sort(cells: list[dict[str, Any]], book: Book, found: Submission) -> None:
    """Puts each code cell where it belongs: to an answer, to the added cells, or nowhere."""
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
                found.notes[id].append("The cell for the answer is not a code cell, so it was not used.")
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
    """Of several cells with one exercise's id the last that was worked on counts."""
    if id in found.answers:
        found.notes[id].append(
            "Several cells carry this exercise's id; the last one that was worked on is graded."
        )
        if source.strip() == stub.strip():
            return
    found.answers[id] = source


def _cells(path: Path) -> list[dict[str, Any]]:
    """The file's cells; raises ValueError with the file's problem in words."""
    try:
        if not path.is_file():
            raise ValueError("there is no such file")
        if path.stat().st_size > MAX_FILE:
            raise ValueError(f"the file is larger than {MAX_FILE // 1_000_000} MB")
        data = json.loads(path.read_bytes())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        reason = "empty file" if path.is_file() and path.stat().st_size == 0 else type(error).__name__
        raise ValueError(f"not a notebook: the file cannot be read as one ({reason})") from None
    cells = data.get("cells") if isinstance(data, dict) else None
    if not isinstance(cells, list):
        raise ValueError("not a notebook: the file has no cells (notebooks of format 4 are read)")
    return [cell for cell in cells if isinstance(cell, dict)]


def _key(cell: dict[str, Any]) -> str | None:
    """What a cell is called: nbgrader's id, or else the cell's own."""
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
    """The chapters, as two digits, of the cells called `exercise-2-1`, `exercise-2-1-check` and so on."""
    named = (re.match(r"exercise-(\d+)-\d+", _key(cell) or "") for cell in cells)
    return [match[1].zfill(2) for match in named if match]
