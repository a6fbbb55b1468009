"""Conversion of a py:percent text into a notebook, and queries on a notebook's cells.

Invariants: the same text gives the same notebook on every machine, byte for byte (cell ids, metadata, order); a new
cell does not change the ids of other cells.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import jupytext
import nbformat
import yaml  # type: ignore[import-untyped]
from nbformat import NotebookNode

METADATA: dict[str, Any] = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"file_extension": ".py", "mimetype": "text/x-python", "name": "python"},
}


class BuildError(Exception):
    """A source or a request that cannot be built; the message says where and what to do."""


def notebook_from_text(text: str) -> NotebookNode:
    """Return the unexecuted notebook of a py:percent text, with the text's `course` header in `metadata.course`."""
    read = jupytext.reads(text, fmt="py:percent")
    header = _header(read.cells.pop(0).source) if read.cells and read.cells[0].cell_type == "raw" else {}
    seen: Counter[str] = Counter()
    cells = []
    for cell in read.cells:
        content = f"{cell.cell_type}\n{cell.source}"
        # The id depends on the content and, among equal cells, on their order; not on the cell's place.
        key = hashlib.sha256(f"{seen[content]}\n{content}".encode()).hexdigest()[:12]
        seen[content] += 1
        metadata = {name: value for name, value in cell.metadata.items() if name != "lines_to_next_cell"}
        new = {"code": nbformat.v4.new_code_cell, "markdown": nbformat.v4.new_markdown_cell}.get(
            cell.cell_type, nbformat.v4.new_raw_cell
        )
        cells.append(new(source=cell.source, id=key, metadata=metadata))
    notebook = nbformat.v4.new_notebook(cells=cells, metadata=METADATA)
    notebook.metadata["course"] = header
    notebook.nbformat_minor = 5
    return notebook


def _header(text: str) -> dict[str, Any]:
    """Parse the YAML under `course:` between the two `# ---` lines at the top of a source."""
    try:
        data = yaml.safe_load(text.strip().strip("-"))
    except yaml.YAMLError as error:
        raise BuildError(f"the header between the `# ---` lines is not valid YAML: {error}") from None
    course = data.get("course") if isinstance(data, dict) else None
    if (
        not isinstance(course, dict)
        or set(course) - {"depends"}
        or not isinstance(course.get("depends", []), list)
    ):
        raise BuildError(
            "the header between the `# ---` lines may contain only `course:` with `depends: [files]`"
        )
    return course


def first_lines(text: str, notebook: NotebookNode) -> list[int | None]:
    """Return for each cell the line of its `# %%` marker in the text (None if unclear)."""
    markers = [number for number, line in enumerate(text.splitlines(), 1) if re.match(r"# %%( |$)", line)]
    if len(markers) != len(notebook.cells):
        return [None] * len(notebook.cells)
    return list(markers)


def tags(cell: NotebookNode) -> list[str]:
    """The cell's tags, in order."""
    return list(cell.metadata.get("tags", []))


def is_ignored(cell: NotebookNode) -> bool:
    """Return True if nbval does not compare this cell's output."""
    return bool({"nbval-ignore-output", "nbval-skip"} & set(tags(cell)))


def is_code(cell: NotebookNode) -> bool:
    """Return True for a code cell that is not empty."""
    return cell.cell_type == "code" and bool(cell.source.strip())


def to_text(notebook: NotebookNode) -> str:
    """Return the bytes on disk: sorted keys, one-space indent, a final newline."""
    return str(nbformat.writes(notebook, version=4)).rstrip("\n") + "\n"


def read_notebook(path: Path) -> NotebookNode | None:
    """Return the notebook at `path`, or None if it is missing or invalid."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict):
            return None
        nbformat.validate(data, version=4)
        return nbformat.reads(json.dumps(data), as_version=4)
    except (OSError, ValueError, nbformat.ValidationError):
        return None
