"""Build a lesson's notebook from its source: Predict boxes, folded cells and the places of exercises.

`curriculum/lessons/NN_name.py` uses the py:percent format with these keys in a cell's `# %%` line:

    # %% [raw] predict="1-bytes"          YAML, see coursekit/learner/question.py: becomes the question and its input
    # %% answers="1-bytes"                a code cell below whose output is folded until the learner runs it
    # %% reference="1.3"                  the course's version of an exercise, folded likewise; below the exercise
    # %% … hide="code"                    folds the code of such a cell, too
    # %% [markdown] exercise="1.3"        the place of an exercise: the build adds the link and the minutes

Invariants: every Predict box is answered by a cell below it, and every reference stands below its exercise; folding
changes no output and no code, so nothing is executed again.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import yaml  # type: ignore[import-untyped]
from nbformat import NotebookNode

from coursekit.build.percent import BuildError, first_lines, notebook_from_text
from coursekit.learner.question import BadQuestion, Question, parse

# The keys of a cell's `# %%` line, by the cell's type.
KEYS = {
    "raw": {"predict"},
    "markdown": {"exercise", "tags"},
    "code": {"answers", "reference", "hide", "tags"},
}


def expand_lesson(text: str, exercises: Path | None = None) -> tuple[NotebookNode, list[int | None]]:
    """Return a lesson's unexecuted notebook, and for each cell its line in the source.

    `exercises` is the source of the chapter's exercises, for the links to them. Raises BuildError.
    """
    notebook = notebook_from_text(text)
    lines = first_lines(text, notebook)
    cells: list[tuple[NotebookNode, int | None]] = []
    asked: dict[str, bool] = {}  # Predict box → answered
    placed: set[str] = set()
    for cell, line in zip(notebook.cells, lines, strict=True):
        if odd := sorted(set(cell.metadata) - KEYS[cell.cell_type]):
            raise BuildError(f"line {line}: a {cell.cell_type} cell cannot have {odd[0]!r}")
        keys = {name: str(cell.metadata.pop(name)) for name in list(cell.metadata) if name != "tags"}
        if cell.cell_type == "raw":
            id = keys.get("predict", "")
            if id in asked:
                raise BuildError(f"two Predict boxes are called {id!r}")
            asked[id] = False
            cells += [(made, line) for made in _predict_cells(_question(id, cell.source))]
            continue
        if "exercise" in keys:
            placed.add(keys["exercise"])
            cell.source += f"\n\n{exercise_link(keys['exercise'], exercises)}"
            cell.metadata["exercise"] = keys["exercise"]
        elif keys:
            _fold(cell, keys, line, asked, placed)
        cells.append((cell, line))
    if unanswered := [id for id, answered in asked.items() if not answered]:
        raise BuildError(
            f'no cell answers the Predict box {unanswered[0]}: mark it `answers="{unanswered[0]}"`'
        )
    notebook.cells = [cell for cell, _ in cells]
    return notebook, [line for _, line in cells]


def _question(id: str, text: str) -> Question:
    if not re.fullmatch(r"\d+(-[a-z0-9]+)+", id):
        raise BuildError(f"a Predict box is named by its chapter and words, such as 1-bytes, not {id!r}")
    try:
        return parse(id, text)
    except BadQuestion as error:
        raise BuildError(str(error)) from None


def _predict_cells(question: Question) -> list[NotebookNode]:
    """The question, and the input for a guess. Their ids stay when the words change."""
    code = f'from coursekit.learner import predict\n\npredict("{question.id}")'
    return [
        nbformat.v4.new_markdown_cell(source=question.markdown, id=f"predict-{question.id}"),
        nbformat.v4.new_code_cell(
            source=code, id=f"predict-{question.id}-guess", metadata={"predict": question.id}
        ),
    ]


def _fold(
    cell: NotebookNode, keys: dict[str, str], line: int | None, asked: dict[str, bool], placed: set[str]
) -> None:
    """Fold a cell that answers a Predict box or shows an exercise's reference, in JupyterLab's own terms."""
    answers, reference = keys.get("answers"), keys.get("reference")
    if bool(answers) == bool(reference) or keys.get("hide", "code") != "code":
        raise BuildError(f'line {line}: a folded cell has `answers` or `reference`, and may have hide="code"')
    if answers:
        if answers not in asked:
            raise BuildError(f"line {line}: no Predict box above this cell is called {answers!r}")
        asked[answers] = True
        cell.metadata["answers"] = answers
    else:
        if reference not in placed:
            raise BuildError(
                f"line {line}: the reference of exercise {reference} comes before the exercise "
                f'(`# %% [markdown] exercise="{reference}"`)'
            )
        cell.metadata["reference"] = reference
    cell.metadata["jupyter"] = {"outputs_hidden": True} | ({"source_hidden": True} if "hide" in keys else {})


def exercise_link(id: str, source: Path | None) -> str:
    """The line that leads from a lesson to an exercise, with the title and the minutes of its header."""
    header = exercise_headers(source).get(id)
    if source is None or header is None:
        raise BuildError(f"there is no exercise {id} to link to")
    title = f"Exercise {id} · {header['title']}"
    anchor = title.replace(" ", "-")
    return (
        f"**→ [{title}](../exercises/{source.stem}.ipynb#{anchor})** · about {header['minutes']} minutes. "
        "Come back when its check passes, or when you want to see one way to do it."
    )


def exercise_headers(source: Path | None) -> dict[str, dict[str, Any]]:
    """Exercise → the header of an exercise source, without its checks; empty without a source."""
    text = source.read_text(encoding="utf-8") if source and source.is_file() else ""
    cells = re.findall(r'^# %% \[raw\] exercise="([^"\n]+)"[^\n]*\n((?:#[^\n]*\n?)*)', text, re.M)
    return {id: yaml.safe_load(re.sub(r"^# ?", "", lines, flags=re.M)) for id, lines in cells}
