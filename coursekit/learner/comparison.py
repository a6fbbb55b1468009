"""A learner's answer to an exercise beside the course's own, in the lesson that explains it.

Both are read from the saved notebooks, without running anything.
"""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from coursekit import ROOT
from coursekit.cells import grade_id
from coursekit.learner.places import copy_or_original, shown_path
from coursekit.views.style import display_widget

_MARKER = re.compile(r"^[ \t]*### (BEGIN|END) SOLUTION[^\n]*\n?", re.M)


def show_comparison(id: str) -> None:
    """Show both versions in two columns; raises KeyError for an unknown exercise."""
    display_widget(
        widgets.VBox([widgets.HTML(comparison(id))]),
        f"your saved answer to exercise {id} beside the course's",
    )


def comparison(id: str, root: Path = ROOT) -> str:
    """Return the two columns as HTML, or a sentence if the learner's notebook has no answer yet."""
    chapter = f"{int(id.partition('.')[0]):02}"
    solutions = next(iter(sorted((root / "solutions").glob(f"{chapter}_*.ipynb"))), None)
    if solutions is None:
        return f"The solutions of chapter {int(chapter)} are not in this copy of the course."
    reference = _source(solutions, id)
    if reference is None:
        raise KeyError(f"there is no solution of exercise {id!r}")
    path = copy_or_original("exercises", solutions.name, root)
    yours = _source(path, id)
    if yours is None or "raise NotImplementedError" in yours:
        place = html.escape(shown_path(path, root))
        return f"Exercise {id} is not written yet in {place}: save your answer, then run this cell again."
    columns = [("Yours", yours), ("The course's", _MARKER.sub("", reference))]
    cells = "".join(
        f'<div style="flex: 1; min-width: 20rem; overflow-x: auto"><b>{title}</b>, '
        f"{len([line for line in code.splitlines() if line.strip()])} lines<pre>{html.escape(code.strip())}</pre></div>"
        for title, code in columns
    )
    return f'<div style="display: flex; flex-wrap: wrap; gap: 1rem">{cells}</div>'


def _source(path: Path, id: str) -> str | None:
    """Return the answer's cell in a notebook; None if the notebook or the cell cannot be read."""
    try:
        cells: list[Any] = json.loads(path.read_text(encoding="utf-8"))["cells"]
        found = [cell["source"] for cell in cells if cell.get("id") == grade_id(id)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return "".join(found[-1]) if found else None
