"""Merge a new version of a notebook into a learner's copy, cell by cell.

Three notebooks take part: the version from which the copy was made (base), the learner's copy (mine) and the new
version (new). A cell is the same in two of them if it has the same id. Ids of lesson cells follow from their text, so a
reworded cell has a new id: it is paired with the cell of the base that stood in its place.

Invariants: text that the learner wrote is never dropped; merging the same version twice changes nothing more; the
arguments are not changed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

Cell = dict[str, Any]
Notebook = dict[str, Any]
CONFLICT = "new-version-"  # prefix of the id of a cell that shows the course's version beside the learner's


@dataclass
class Merge:
    """The merged notebook, and the number of cells by what happened to them."""

    notebook: Notebook
    updated: int = 0
    added: int = 0
    removed: int = 0
    kept: int = 0  # edited by the learner
    conflicts: list[str] = field(default_factory=list)  # the first line of each

    @property
    def changed(self) -> bool:
        """True if the new version changed the copy."""
        return bool(self.updated or self.added or self.removed or self.conflicts)


def merge(base: Notebook | None, mine: Notebook, new: Notebook) -> Merge:
    """Return the learner's copy with the changes between base and new.

    Without a base, every difference between mine and new counts as the learner's.
    """
    before = [*base["cells"]] if base else []
    ours = with_ids(mine["cells"], before or new["cells"])
    pairs = counterparts(before, new["cells"])  # id in new → id in base
    by_id = {cell["id"]: cell for cell in ours}
    base_of = {cell["id"]: cell for cell in before}
    result = Merge(copy.deepcopy(mine))
    if "course" in new.get("metadata", {}):  # what the build wrote; the rest is JupyterLab's
        result.notebook.setdefault("metadata", {})["course"] = copy.deepcopy(new["metadata"]["course"])
    for key in ("nbformat", "nbformat_minor"):
        result.notebook[key] = new.get(key, mine.get(key))
    merged: dict[str, list[Cell]] = {}  # id in mine or new → the cells that stand there
    name_in_mine: dict[str, str] = {}  # id in new → id in mine
    for cell in new["cells"]:
        old_id = pairs.get(cell["id"])
        own = by_id.get(cell["id"]) or by_id.get(old_id or "")
        if own is not None:
            name_in_mine[cell["id"]] = own["id"]
            merged[own["id"]] = _one(base_of.get(old_id or ""), own, cell, by_id, result)
        elif old_id is None or _text(base_of[old_id]) != _text(cell) or _is_graded(cell):
            merged[cell["id"]] = [copy.deepcopy(cell)]
            result.added += 1
    gone = set(base_of) - set(pairs.values())
    for cell in ours:
        if cell["id"] in merged:
            continue
        dropped = cell["id"] in gone
        if dropped and _text(cell) == _text(base_of[cell["id"]]):
            result.removed += 1
        else:
            merged[cell["id"]] = [copy.deepcopy(cell)]
            result.kept += dropped
    mine_order = [cell["id"] for cell in ours if cell["id"] in merged]
    new_order = [name_in_mine.get(cell["id"], cell["id"]) for cell in new["cells"]]
    new_order = [id for id in new_order if id in merged]
    now = [pairs[cell["id"]] for cell in new["cells"] if cell["id"] in pairs]
    moved = now != [cell["id"] for cell in before if cell["id"] in set(now)]
    order = weave(new_order, mine_order) if moved else weave(mine_order, new_order)
    result.notebook["cells"] = [cell for id in order for cell in merged[id]]
    return result


def _one(base: Cell | None, own: Cell, cell: Cell, by_id: dict[str, Cell], result: Merge) -> list[Cell]:
    """Merge one cell; a conflict adds a cell that shows the course's version."""
    if _text(own) == _text(cell):
        return [_same_text(base, own, cell)]
    if base is not None and _text(own) == _text(base):
        result.updated += 1
        return [copy.deepcopy(cell)]
    result.kept += 1
    kept = copy.deepcopy(own)
    if _is_graded(cell) if base is None else _text(base) == _text(cell):
        return [kept]
    id = f"{CONFLICT}{cell['id']}"[:64]
    title, fence = "**The course's new version of the cell above.** Yours was kept.", "````"
    text = cell_source(cell)
    shown = f"{fence}python\n{text}\n{fence}" if cell.get("cell_type") == "code" else text
    beside: Cell = {"cell_type": "markdown", "id": id, "metadata": {}, "source": f"{title}\n\n{shown}"}
    if id in by_id:  # shown by an earlier update: replaced in place
        if cell_source(by_id[id]) != beside["source"]:
            by_id[id]["source"] = beside["source"]
            result.conflicts.append(_first_line(cell))
        return [kept]
    result.conflicts.append(_first_line(cell))
    return [kept, beside]


def counterparts(base: list[Cell], new: list[Cell]) -> dict[str, str]:
    """Pair each cell of the new version with its cell in the base, by id, or else by its place between the others."""
    ids = {cell["id"] for cell in base}
    pairs = {cell["id"]: cell["id"] for cell in new if cell["id"] in ids}
    kept = set(pairs)
    matcher = SequenceMatcher(None, [c["id"] for c in base], [c["id"] for c in new], autojunk=False)
    for kind, a0, a1, b0, b1 in matcher.get_opcodes():
        if kind != "replace":
            continue
        old = [cell for cell in base[a0:a1] if cell["id"] not in kept]
        for cell in (cell for cell in new[b0:b1] if cell["id"] not in pairs):
            alike = [o for o in old if o.get("cell_type") == cell.get("cell_type")]
            best = max(alike, key=lambda o: _likeness(o, cell), default=None)
            if best is not None and _likeness(best, cell) > 0.5:
                pairs[cell["id"]] = best["id"]
                old = old[old.index(best) + 1 :]
    return pairs


def weave(spine: list[str], guests: list[str]) -> list[str]:
    """Return `spine` with the other ids of `guests` inserted, each after the id that precedes it in `guests`."""
    order = list(spine)
    last: str | None = None
    for id in guests:
        if id not in order:
            order.insert(order.index(last) + 1 if last is not None else 0, id)
        last = id
    return order


def with_ids(cells: Iterable[Cell], known: list[Cell]) -> list[Cell]:
    """Return the learner's cells, each with an id of its own.

    A cell without an id, or with one that the course does not know, gets the id of the exercise's cell it holds, or of
    the cell with the same text. A second cell with the same id counts as the learner's own.
    """
    ids = {cell["id"] for cell in known}
    taken = {cell.get("id") for cell in cells}
    used: set[str] = set()
    found = []
    for number, cell in enumerate(cells):
        own = copy.deepcopy(cell)
        id = own.get("id")
        if id not in ids or id in used:
            same = [c["id"] for c in known if c["id"] not in taken and _text(c) == _text(own)]
            grade_id = own.get("metadata", {}).get("nbgrader", {}).get("grade_id")
            if grade_id in ids and grade_id not in used and grade_id not in taken:
                id = grade_id
            elif same and not (isinstance(id, str) and id.startswith(CONFLICT)):
                id = same[0]
            elif not isinstance(id, str) or id in used:
                id = next(
                    name for n in range(number, number + 10_000) if (name := f"yours-{n}") not in taken | used
                )
        used.add(str(id))
        taken.add(id)
        own["id"] = id
        found.append(own)
    return found


def cell_source(cell: Cell) -> str:
    """A cell's text, however the file stores it."""
    source = cell.get("source", "")
    return "".join(source) if isinstance(source, list) else str(source)


def _text(cell: Cell) -> tuple[str, str]:
    return str(cell.get("cell_type")), cell_source(cell).strip()


def _is_graded(cell: Cell) -> bool:
    return "nbgrader" in cell.get("metadata", {})


def _same_text(base: Cell | None, own: Cell, cell: Cell) -> Cell:
    """The new cell; outputs and metadata that the learner's run changed since the base stay the learner's."""
    kept = copy.deepcopy(cell)
    for key in ("outputs", "execution_count", "metadata"):
        if key in own and key in kept and own[key] != (base or cell).get(key):
            kept[key] = copy.deepcopy(own[key])
    if "nbgrader" in cell.get("metadata", {}):
        kept["metadata"]["nbgrader"] = copy.deepcopy(cell["metadata"]["nbgrader"])
    return kept


def _likeness(one: Cell, other: Cell) -> float:
    return SequenceMatcher(None, cell_source(one), cell_source(other), autojunk=False).ratio()


def _first_line(cell: Cell) -> str:
    return next((line.strip() for line in cell_source(cell).splitlines() if line.strip()), "(empty)")[:70]
