"""One cell of a chapter's exercises, shared by the build and the grader.

Separate from the build, whose libraries take a second to import: every grader process would pay for that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """One cell of both notebooks. `kind` is text, code (written by the author), answer or check.

    `exercise` is the id of the cell's exercise; `solved` and `stub` are its two sources; `line` is its
    line in the source file, or None if the cell was generated.
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
    """The exercise's name in nbgrader's metadata, which does not allow dots: `exercise-2-1`."""
    return f"exercise-{id.replace('.', '-')}"
