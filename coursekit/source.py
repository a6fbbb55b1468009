"""From a text source to the notebook it describes, before anything is executed.

Authors edit `curriculum/lessons/NN_name.py` (jupytext's py:percent). This file turns such a text into a
notebook whose every byte follows from the text: cell ids, metadata and order. What must hold: the same
text gives the same notebook on every machine, and a cell inserted in the middle renames no other cell.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jupytext
import nbformat
import yaml  # type: ignore[import-untyped]
from nbformat import NotebookNode

# Where each kind of source lives, where its notebooks are built, and of which kind these are.
FOLDERS = (
    ("curriculum/lessons", "notebooks", "lesson"),
    ("curriculum/exercises", "exercises", "stubs"),
    ("curriculum/exercises", "solutions", "solutions"),
)

METADATA: dict[str, Any] = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"file_extension": ".py", "mimetype": "text/x-python", "name": "python"},
}


class BuildError(Exception):
    """A source or a request that cannot be built; the message says where and what to do."""


@dataclass(frozen=True)
class Target:
    """One notebook to build: its source and its place, both under the repository's root."""

    root: Path
    source: Path
    path: Path
    kind: str = "lesson"

    @property
    def title(self) -> str:
        """For instance `notebooks/07_batched_decode`: its place, as the build names it."""
        return f"{self.path.parent.name}/{self.name}"

    @property
    def name(self) -> str:
        """For instance `07_batched_decode`."""
        return self.path.stem

    def relative(self, path: Path) -> str:
        """A path as the repository names it."""
        return path.relative_to(self.root).as_posix()

    def text(self) -> str:
        """The source's text."""
        return self.source.read_text(encoding="utf-8")

    def code(self) -> str:
        """What decides what the notebook imports: its text, and for exercises their checks."""
        chapter = f"\nimport coursekit.checks\nimport coursekit.checks.chapter_{self.name[:2]}\n"
        return self.text() + chapter * (self.kind != "lesson")

    def notebook(self) -> NotebookNode:
        """The unexecuted notebook of the source."""
        return self.notebook_and_lines()[0]

    def notebook_and_lines(self) -> tuple[NotebookNode, list[int | None]]:
        """The unexecuted notebook, and for each cell the line of its source (None if unclear)."""
        text = self.text()
        if self.kind == "lesson":
            notebook = notebook_from_text(text)
            return notebook, first_lines(text, notebook)
        from coursekit.exercises import expand  # which itself needs this module

        return expand(text, solved=self.kind == "solutions")


def targets(root: Path, names: list[str] | None = None) -> list[Target]:
    """Every notebook with a source, in order; with `names` only those (`07`, `07_name`, `exercises/07`, a path)."""
    found = [
        Target(root, source, root / built / f"{source.stem}.ipynb", kind)
        for folder, built, kind in FOLDERS
        for source in sorted((root / folder).glob("*.py"))
    ]
    chosen: set[Target] = set()
    for name in names or []:
        stem, folder = Path(name).stem, Path(name).parent.name
        matching = [
            t
            for t in found
            if (t.name == stem or t.name.split("_")[0] == stem.zfill(2))
            and folder in ("", t.path.parent.name, t.source.parent.name)
        ]
        if not matching:
            known = ", ".join(dict.fromkeys(t.name for t in found)) or "none at all"
            raise BuildError(f"no source is called {name!r}; there are: {known}")
        chosen.update(matching)
    return [t for t in found if t in chosen] if names else found


def extra_notebooks(root: Path) -> Iterator[Path]:
    """Notebooks in the built folders that no source makes."""
    made = {target.path for target in targets(root)}
    for _, built, _ in FOLDERS:
        yield from (path for path in sorted((root / built).glob("*.ipynb")) if path not in made)


def notebook_from_text(text: str) -> NotebookNode:
    """The unexecuted notebook of a py:percent text, with the text's `course` header in `metadata.course`."""
    read = jupytext.reads(text, fmt="py:percent")
    header = _header(read.cells.pop(0).source) if read.cells and read.cells[0].cell_type == "raw" else {}
    seen: Counter[str] = Counter()
    cells = []
    for cell in read.cells:
        content = f"{cell.cell_type}\n{cell.source}"
        # The id follows from the content, and from which of several equal cells it is; not from the place.
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
    """What stands under `course:` between the two `# ---` lines at the top of a source (YAML)."""
    try:
        data = yaml.safe_load(text.strip().strip("-"))
    except yaml.YAMLError as error:
        raise BuildError(f"the header between the `# ---` lines is not YAML: {error}") from None
    course = data.get("course") if isinstance(data, dict) else None
    if (
        not isinstance(course, dict)
        or set(course) - {"depends"}
        or not isinstance(course.get("depends", []), list)
    ):
        raise BuildError(
            "the header between the `# ---` lines may hold only `course:` with `depends: [files]`"
        )
    return course


def first_lines(text: str, notebook: NotebookNode) -> list[int | None]:
    """For each cell the number of the line in the text where its `# %%` marker stands (None if unclear)."""
    markers = [number for number, line in enumerate(text.splitlines(), 1) if re.match(r"# %%( |$)", line)]
    if len(markers) != len(notebook.cells):
        return [None] * len(notebook.cells)
    return list(markers)


def tags(cell: NotebookNode) -> list[str]:
    """The cell's tags, in the order in which they stand."""
    return list(cell.metadata.get("tags", []))


def is_ignored(cell: NotebookNode) -> bool:
    """Whether nbval leaves this cell's output uncompared."""
    return bool({"nbval-ignore-output", "nbval-skip"} & set(tags(cell)))


def is_code(cell: NotebookNode) -> bool:
    """A code cell with something to run in it."""
    return cell.cell_type == "code" and bool(cell.source.strip())


def to_text(notebook: NotebookNode) -> str:
    """The bytes on disk: sorted keys, one-space indent, a newline at the end."""
    return str(nbformat.writes(notebook, version=4)).rstrip("\n") + "\n"


def read_notebook(path: Path) -> NotebookNode | None:
    """The notebook at `path`, or None where there is none or it cannot be read as one."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict):
            return None
        nbformat.validate(data, version=4)
        return nbformat.reads(json.dumps(data), as_version=4)
    except (OSError, ValueError, nbformat.ValidationError):
        return None
