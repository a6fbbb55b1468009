"""One cell of a chapter's exercises, as the build and the grader know it.

Kept apart from the build, whose libraries take a second to import: each of the grader's processes would.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """One cell of both notebooks. `kind` is text, code (the author's own), answer or check.

    `exercise` is the id of the exercise it belongs to; `solved` and `stub` are its two sources; `line` is where it
    stands in the text, if it stands there.
    """

    kind: str
    solved: str
    stub: str
    exercise: str | None = None
    id: str | None = None
    line: int | None = None
    hints: tuple[str, ...] = ()


def hints_of(cells: Iterable[Cell], id: str) -> tuple[str, ...]:
    """The three hints of an exercise."""
    return next(cell.hints for cell in cells if cell.kind == "answer" and cell.exercise == id)


def grade_id(id: str) -> str:
    """An exercise's name in nbgrader's metadata, which allows no dot: `exercise-2-1`."""
    return f"exercise-{id.replace('.', '-')}"
