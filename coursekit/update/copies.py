"""Make a learner's working copies, and merge new versions of the course into them.

    work/notebooks/NN_name.ipynb, work/exercises/NN_name.ipynb      the learner's
    work/.base/…                                                    the version that each copy was made from
    work/.before-update/DATE/…                                      copies as they were before an update changed them

Invariants: a copy is never overwritten, only merged into; each file is replaced whole, the copy before its base, so an
update that was stopped is completed by the next one.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coursekit.build.targets import Target, targets
from coursekit.files import locked, replace_bytes
from coursekit.learner.places import FOLDERS, work_folder
from coursekit.update.merge import Merge, Notebook, merge


@dataclass(frozen=True)
class Copy:
    """One notebook of the course and its working copy."""

    target: Target
    path: Path
    base: Path
    backups: Path

    @property
    def name(self) -> str:
        """The name used in messages, for instance `exercises/02_block_table.ipynb`."""
        return f"{self.path.parent.name}/{self.path.name}"


class Unreadable(ValueError):
    """A working copy that is not a notebook; the message says why."""


def all_copies(root: Path) -> Iterator[Copy]:
    """Yield the copies of all lessons and exercises, made or not."""
    work = work_folder(root)
    for target in targets(root):
        folder, name = target.path.parent.name, target.path.name
        if folder in FOLDERS and target.path.is_file():
            yield Copy(target, work / folder / name, work / ".base" / folder / name, work / ".before-update")


def make_copies(root: Path) -> list[Copy]:
    """Make every copy that does not exist yet, and return these. Raises OSError."""
    work = work_folder(root)
    made = []
    with locked(work):
        for copy in all_copies(root):
            if copy.path.exists():
                continue
            _write(copy.base, _bytes(pristine(copy)))
            _write(copy.path, _bytes(_from_file(copy)))
            made.append(copy)
    return made


def outdated(root: Path) -> list[Copy]:
    """The copies whose notebook in the course has changed since."""
    made = [copy for copy in all_copies(root) if copy.path.exists()]
    return [copy for copy in made if _may_differ(copy) and _read_base(copy) != pristine(copy)]


def update(copy: Copy) -> Merge:
    """Merge the course's current version into a copy, and return what happened.

    Raises Unreadable if the copy is not a notebook (it is left as it is), or OSError.
    """
    with locked(work_folder(copy.target.root)):
        mine = read(copy.path)
        new = pristine(copy)
        done = merge(_read_base(copy), mine, new)
        if done.notebook != mine:
            day = time.strftime("%Y-%m-%d_%H%M%S")
            _write(copy.backups / day / copy.path.parent.name / copy.path.name, copy.path.read_bytes())
            _write(copy.path, _bytes(done.notebook))
        _write(copy.base, _bytes(new))
    return done


def pristine(copy: Copy) -> Notebook:
    """The course's own version, as a copy holds it.

    If somebody has edited the file of the course, its cells come from the source, without outputs.
    """
    data = _from_file(copy)
    fresh = copy.target.notebook()
    stored = [(cell["cell_type"], cell["source"]) for cell in data["cells"]]
    if [(cell.cell_type, relocate(cell.source, copy)) for cell in fresh.cells] != stored:
        data = json.loads(json.dumps(fresh))
        data["metadata"].pop("course", None)
        for cell in data["cells"]:
            cell["source"] = relocate(cell["source"], copy)
    return data


def relocate(text: str, copy: Copy) -> str:
    """Return prose with the links that leave lessons and exercises aimed at the course's folder."""
    try:
        back = Path(os.path.relpath(copy.target.root, copy.path.parent)).as_posix()
    except ValueError:  # another drive of a Windows machine
        back = copy.target.root.as_posix()
    return re.sub(rf"\]\(\.\./(?!(?:{'|'.join(FOLDERS)})/)", f"]({back}/", text)


def read(path: Path) -> Notebook:
    """Read a notebook's JSON; raises Unreadable."""
    try:
        data: Any = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise Unreadable(f"it cannot be read ({type(error).__name__})") from None
    cells = data.get("cells") if isinstance(data, dict) else None
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise Unreadable("it is not a notebook of format 4")
    for cell in cells:
        if isinstance(cell.get("source"), list):
            cell["source"] = "".join(map(str, cell["source"]))
        if not isinstance(cell.get("metadata"), dict):
            cell["metadata"] = {}
    return dict(data)


def _from_file(copy: Copy) -> Notebook:
    """The course's notebook as a copy holds it: links adjusted, and folded answers without their outputs.

    JupyterLab shows the first line of a folded output in its place, which would tell the answer.
    """
    data = read(copy.target.path)
    for cell in data["cells"]:
        if cell.get("cell_type") == "markdown":
            cell["source"] = relocate(cell["source"], copy)
        elif {"answers", "reference"} & set(cell["metadata"]):
            cell |= {"outputs": [], "execution_count": None}
            folded = {k: v for k, v in cell["metadata"].get("jupyter", {}).items() if k != "outputs_hidden"}
            cell["metadata"] = {k: v for k, v in cell["metadata"].items() if k != "jupyter"}
            cell["metadata"] |= {"jupyter": folded} if folded else {}
    return data


def _may_differ(copy: Copy) -> bool:
    """Return False if neither the course's notebook nor its source was written after the base."""
    if not copy.base.exists():
        return True
    newest = max(path.stat().st_mtime for path in (copy.target.path, copy.target.source))
    return newest >= copy.base.stat().st_mtime


def _read_base(copy: Copy) -> Notebook | None:
    try:
        return read(copy.base)
    except Unreadable:
        return None


def _bytes(notebook: Notebook) -> bytes:
    return (json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n").encode()


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_bytes(path, data, 0o644)
