"""The bank of wrong and of differently right answers: `curriculum/mistakes/NN/EXERCISE.py`.

    # %% wrong="swapped"            the check must name exactly this misconception
    # %% wrong="crashed"            no misconception: the answer raises
    # %% right="with divmod"        every part must pass

Each cell is an answer that a learner might write, complete with its helpers. A test runs them all, as the notebook
would: after the setup cells and the reference's answers to the exercises before.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coursekit.build.exercises import cells_of, sources
from coursekit.build.percent import notebook_from_text
from coursekit.cells import Cell
from coursekit.checks.answers import CELL, LocalHost, define
from coursekit.checks.framework import Verdict, exercise


@dataclass(frozen=True)
class Entry:
    """One answer of the bank. `right` says how a right one differs; `wrong` is a misconception's key."""

    exercise: str
    code: str
    right: str | None = None
    wrong: str | None = None

    @property
    def label(self) -> str:
        """For instance `2.1-wrong-swapped`."""
        kind = f"right-{self.right}" if self.right else f"wrong-{self.wrong}"
        return f"{self.exercise}-{re.sub(r'[^a-z0-9]+', '-', kind.lower())}"


def entries(root: Path) -> list[Entry]:
    """The whole bank, in order."""
    found = []
    for path in sorted((root / "curriculum/mistakes").glob("*/*.py")):
        for cell in notebook_from_text(path.read_text(encoding="utf-8")).cells:
            if cell.cell_type == "code":
                found.append(Entry(path.stem, cell.source, **dict(cell.metadata)))
    return found


def cells_until(root: Path, id: str) -> list[Cell]:
    """The code cells of the exercise's notebook before its own answer: setup and earlier answers."""
    cells, _ = cells_of(sources(root)[f"{int(id.split('.')[0]):02}"].read_text(encoding="utf-8"))
    until = [(cell.kind, cell.exercise) for cell in cells].index(("answer", id))
    return [cell for cell in cells[:until] if cell.kind in ("code", "answer")]


def judge(root: Path, id: str, code: str, seed: int) -> Verdict:
    """The verdict on an answer, run in this process: for the bank and for authors, not for strangers' code."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells_until(root, id)):
        define(cell.solved, f"<cell {number}>", namespace)
    define(code, f"{CELL}{id}>", namespace)
    task, host = exercise(id), LocalHost()
    return task.run([host.proxy(namespace[name], name) for name in task.answers], seed)
