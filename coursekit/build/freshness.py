"""Decide whether a built notebook is up to date with its source and the code it imports.

Invariants: a notebook is executed again exactly when its code or one of its dependencies changed; the dependencies at
execution time are stored in the notebook's metadata, so no cache outside the repository is needed.
"""

from __future__ import annotations

import nbformat
from nbformat import NotebookNode

from coursekit.build.dependencies import dependencies
from coursekit.build.percent import METADATA, is_code, is_ignored, tags
from coursekit.build.targets import Target


def depends_on(target: Target, fresh: NotebookNode) -> dict[str, str]:
    """The notebook's current dependencies: file or library → hash or version."""
    return dependencies(target.root, target.code(), list(fresh.metadata["course"].get("depends", [])))


def changes(target: Target, stored: NotebookNode, fresh: NotebookNode) -> list[str]:
    """The files and libraries that changed since the stored notebook was executed."""
    before = dict(stored.metadata.get("course", {}).get("depends_on", {}))
    now = depends_on(target, fresh)
    return [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]


def same_code(stored: NotebookNode, fresh: NotebookNode) -> bool:
    """Return True if both have the same code cells with the same tags, whatever the prose between them."""
    one, other = ([(c.source, tags(c)) for c in nb.cells if is_code(c)] for nb in (stored, fresh))
    return one == other


def reason_to_execute(target: Target, stored: NotebookNode | None, fresh: NotebookNode) -> str | None:
    """The reason to execute the notebook again, or None. A change of prose is not a reason."""
    if stored is None:
        return "not built yet"
    if not same_code(stored, fresh):
        return "its code changed"
    if any(cell.execution_count is None for cell in stored.cells if is_code(cell)):
        return "some cells were never run"
    changed = changes(target, stored, fresh)
    more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    return f"changed: {', '.join(changed[:3])}{more}" if changed else None


def with_outputs_of(stored: NotebookNode, fresh: NotebookNode) -> NotebookNode:
    """Return `fresh` with the outputs of a stored notebook that has the same code cells."""
    have = [cell for cell in stored.cells if is_code(cell)]
    for cell, old in zip(filter(is_code, fresh.cells), have, strict=True):
        cell.outputs, cell.execution_count = old.outputs, old.execution_count
    return fresh


def keep_ignored(stored: NotebookNode, fresh: NotebookNode) -> None:
    """Keep the outputs that differ on every run, so that new timings do not fill the git history."""
    old = {cell.id: cell for cell in stored.cells if is_code(cell) and cell.execution_count}
    for cell in fresh.cells:
        before = old.get(cell.id)
        if before is None or not (is_ignored(cell) and is_ignored(before)):
            continue
        cell.outputs = before.outputs
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = cell.execution_count


def finish(target: Target, fresh: NotebookNode) -> NotebookNode:
    """Return the notebook in the form it is stored in, once its cells have outputs."""
    course = {"depends_on": depends_on(target, fresh), "source": target.relative(target.source)}
    fresh.metadata = nbformat.from_dict(METADATA | {"course": course})  # the kernel wrote its version there
    return fresh


def finish_stubs(target: Target, fresh: NotebookNode) -> NotebookNode:
    """Return a notebook without outputs in the form it is stored in. It depends on the source alone."""
    fresh.metadata = nbformat.from_dict(METADATA | {"course": {"source": target.relative(target.source)}})
    return fresh
