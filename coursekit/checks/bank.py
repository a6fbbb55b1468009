"""The bank of wrong answers and alternative right answers: `curriculum/mistakes/NN/EXERCISE.py`.

    # %% wrong="swapped"            the check must name exactly this misconception
    # %% wrong="crashed"            no misconception: the answer raises
    # %% right="with divmod"        every part must pass

Each cell is a complete answer that a learner might write, with its helpers. A test runs them all in the notebook's
order: after the setup cells and the reference answers to the earlier exercises.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coursekit.build.exercises import cells_of, sources
from coursekit.build.percent import notebook_from_text
from coursekit.cells import Cell
from coursekit.checks.answers import CELL, LocalHost
from coursekit.checks.framework import CRASHED, Verdict, exercise
from coursekit.checks.run_cell import define


@dataclass(frozen=True)
class Entry:
    """One answer of the bank. `right` describes a right answer's approach; `wrong` is a misconception's key."""

    exercise: str
    code: str
    right: str | None = None
    wrong: str | None = None

    @property
    def label(self) -> str:
        """The label, for instance `2.1-wrong-swapped`."""
        kind = f"right-{self.right}" if self.right else f"wrong-{self.wrong}"
        return f"{self.exercise}-{re.sub(r'[^a-z0-9]+', '-', kind.lower())}"


@functools.cache
def entries(root: Path) -> tuple[Entry, ...]:
    """Return the whole bank, in order."""
    found = []
    for path in sorted((root / "curriculum/mistakes").glob("*/*.py")):
        for cell in notebook_from_text(path.read_text(encoding="utf-8")).cells:
            if cell.cell_type == "code":
                found.append(Entry(path.stem, cell.source, **dict(cell.metadata)))
    return tuple(found)


@functools.cache
def cells_until(root: Path, id: str) -> tuple[Cell, ...]:
    """Return the notebook's code cells before the exercise's answer: setup and earlier answers."""
    cells, _ = cells_of(sources(root)[f"{int(id.split('.')[0]):02}"].read_text(encoding="utf-8"))
    until = [(cell.kind, cell.exercise) for cell in cells].index(("answer", id))
    return tuple(cell for cell in cells[:until] if cell.kind in ("code", "answer"))


def judge(root: Path, id: str, code: str, seed: int) -> Verdict:
    """Judge an answer in this process: for the bank and for authors, not for untrusted code."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells_until(root, id)):
        define(cell.solved, f"<cell {number}>", namespace)
    define(code, f"{CELL}{id}>", namespace)
    task, host = exercise(id), LocalHost()
    answers = [namespace[name] for name in task.answers]
    if refused := task.refused(answers):
        return task.fail_all(CRASHED, refused)
    return task.run(
        [host.proxy(answer, name) for answer, name in zip(answers, task.answers, strict=True)], seed
    )
