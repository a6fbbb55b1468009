"""Build two notebooks from a chapter's exercise source: the stubs for learners, and the solutions.

`curriculum/exercises/NN_name.py` uses the py:percent format like a lesson, with two more kinds of cell:

    # %% [raw] exercise="2.1"       YAML: title, objective, difficulty, …, the prediction, three hints
    # %% exercise="2.1"             the answer; the code between the solution markers is removed from the stub

The build adds a heading, a prediction, hints and a check cell to each exercise. Markers and cell metadata follow
nbgrader's schema 3. Invariants: both notebooks have the same cells in the same order with the same ids; the grader
finds an answer by its `grade_id` alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nbformat
import yaml  # type: ignore[import-untyped]
from nbformat import NotebookNode

from coursekit.build.percent import METADATA, BuildError, first_lines, notebook_from_text
from coursekit.cells import Cell, grade_id
from coursekit.checks.framework import Exercise, exercise

FIELDS = {
    "title": str, "objective": str, "difficulty": int, "importance": int, "minutes": int, "lines": int,
    "predict": str, "predicted": str, "hints": list,
}  # fmt: skip
_SOLUTION = re.compile(
    r"^(?P<indent>[ \t]*)### BEGIN SOLUTION[^\n]*\n.*?^[ \t]*### END SOLUTION[^\n]*$", re.M | re.S
)
_HIDDEN = re.compile(
    r"^[ \t]*### BEGIN HIDDEN TESTS[^\n]*\n.*?^[ \t]*### END HIDDEN TESTS[^\n]*\n?", re.M | re.S
)


def cells_of(text: str) -> tuple[list[Cell], dict[str, Any]]:
    """Return the cells of a source, including the generated ones, and its `course` header."""
    read = notebook_from_text(text)
    lines = first_lines(text, read)
    cells: list[Cell] = []
    headers: dict[str, dict[str, Any]] = {}
    answered: set[str] = set()
    for cell, line in zip(read.cells, lines, strict=True):
        id = cell.metadata.get("exercise")
        id = None if id is None else str(id)
        if cell.cell_type == "raw":
            headers[_known(id)] = header = _header(id, cell.source)
            cells.append(_text(_heading(id, header), id, "task", line))
        elif id is None or cell.cell_type == "markdown":
            kind = "text" if cell.cell_type == "markdown" else "code"
            cells.append(Cell(kind, cell.source, stub_of(cell.source, None), id, cell.id, line))
        elif id not in headers:
            raise BuildError(
                f'the answer of exercise {id} comes before its header (`# %% [raw] exercise="{id}"`)'
            )
        else:
            answered.add(id)
            cells.append(_text(_prediction(headers[id]), id, "predict", line))
            hints = tuple(str(hint).strip() for hint in headers[id]["hints"])
            cells.append(Cell("answer", cell.source, stub_of(cell.source, id), id, grade_id(id), line, hints))
            cells.append(_text(_hints(hints), id, "hints", line))
            check = check_source(exercise(id))
            cells.append(Cell("check", check, check, id, f"{grade_id(id)}-check", line))
    if missing := set(headers) - answered:
        raise BuildError(
            f'exercise {min(missing)} has no cell for its answer (`# %% exercise="{min(missing)}"`)'
        )
    return cells, dict(read.metadata["course"])


def expand(text: str, *, solved: bool) -> tuple[NotebookNode, list[int | None]]:
    """Return the unexecuted notebook, and for each cell its line in the source."""
    cells, header = cells_of(text)
    new = {"text": nbformat.v4.new_markdown_cell}
    notebook = nbformat.v4.new_notebook(metadata=METADATA)
    notebook.metadata["course"] = header
    notebook.nbformat_minor = 5
    for cell in cells:
        make = new.get(cell.kind, nbformat.v4.new_code_cell)
        metadata = {"nbgrader": _nbgrader(cell)} if cell.kind in ("answer", "check") else {}
        notebook.cells.append(
            make(source=cell.solved if solved else cell.stub, id=cell.id, metadata=metadata)
        )
    return notebook, [cell.line for cell in cells]


def check_source(task: Exercise) -> str:
    """The cell that checks an answer."""
    return f'from coursekit.checks import check\n\ncheck("{task.id}", {", ".join(task.answers)})'


def stub_of(source: str, id: str | None) -> str:
    """Return a cell's source without its solution and hidden tests."""
    if id is not None and not _SOLUTION.search(source):
        raise BuildError(f"the answer of exercise {id} has no `### BEGIN SOLUTION` … `### END SOLUTION`")
    message = f'raise NotImplementedError("exercise {id}: write this")' if id else "raise NotImplementedError"
    stub = _SOLUTION.sub(lambda m: f"{m['indent']}# YOUR CODE HERE\n{m['indent']}{message}", source)
    stub = _HIDDEN.sub("", stub)
    if "### BEGIN" in stub or "### END" in stub:
        raise BuildError(
            f"a marker of {id or 'a cell'} has no matching marker: {stub[stub.index('###') :].splitlines()[0]}"
        )
    return stub


def sources(root: Path) -> dict[str, Path]:
    """Chapter as two digits → source text of its exercises."""
    return {path.name[:2]: path for path in sorted((root / "curriculum/exercises").glob("[0-9][0-9]_*.py"))}


def _known(id: str | None) -> str:
    if id is None:
        raise BuildError('a raw cell must be an exercise header: write `# %% [raw] exercise="2.1"`')
    try:
        exercise(id)
    except KeyError as error:
        raise BuildError(f"{error.args[0]}: add it under coursekit/checks/") from None
    return id


def _header(id: str | None, text: str) -> dict[str, Any]:
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BuildError(f"the header of exercise {id} is not valid YAML: {error}") from None
    if not isinstance(data, dict) or set(data) != set(FIELDS):
        odd = sorted(set(FIELDS) ^ set(data if isinstance(data, dict) else {}))
        raise BuildError(f"the header of exercise {id} has missing or unknown keys: {', '.join(odd)}")
    wrong = [name for name, kind in FIELDS.items() if not isinstance(data[name], kind)]
    if wrong or len(data["hints"]) != 3 or not all(1 <= data[k] <= 5 for k in ("difficulty", "importance")):
        raise BuildError(
            f"the header of exercise {id}: {wrong or 'it needs three hints, and difficulty and importance from 1 to 5'}"
        )
    return data


def _heading(id: str | None, header: dict[str, Any]) -> str:
    facts = [
        f"{exercise(str(id)).points} points",
        f"about {header['minutes']} minutes",
        f"about {header['lines']} line{'s' * (header['lines'] != 1)}",
        f"difficulty {header['difficulty']} of 5",
        f"importance {header['importance']} of 5",
    ]
    objective = header["objective"].strip()
    return f"## Exercise {id} · {header['title']}\n\n*{' · '.join(facts)}*\n\n**You will be able to** {objective}"


def _prediction(header: dict[str, Any]) -> str:
    return (
        f"**Predict first.** {header['predict'].strip()}\n\n"
        f"<details><summary>I have a guess: show the answer</summary>\n\n{header['predicted'].strip()}\n\n</details>"
    )


def _hints(hints: Iterable[str]) -> str:
    """Three hints, each nested in the previous one, so that they open one at a time."""
    text = ""
    for number, hint in reversed(list(enumerate(hints, 1))):
        inner = f"{text}\n\n" if text else ""
        text = f"<details><summary>Hint {number} of 3</summary>\n\n{hint}\n\n{inner}</details>"
    return text


def _text(source: str, id: str | None, name: str, line: int | None) -> Cell:
    return Cell("text", source, source, id, f"{grade_id(str(id))}-{name}", line)


def _nbgrader(cell: Cell) -> dict[str, Any]:
    answer = cell.kind == "answer"
    data: dict[str, Any] = {
        "cell_type": "code",
        "grade": not answer,
        "grade_id": cell.id,
        "locked": not answer,
        "schema_version": 3,
        "solution": answer,
        "task": False,
    }
    return data if answer else data | {"points": exercise(str(cell.exercise)).points}
