"""Where the learner's working copies are: `work/notebooks` and `work/exercises`, which git ignores.

`PAGED_COURSE_WORK` names another folder, for a course that several people share.
"""

from __future__ import annotations

import os
from pathlib import Path

from coursekit import ROOT

VARIABLE = "PAGED_COURSE_WORK"
FOLDERS = ("notebooks", "exercises")


def work_folder(root: Path = ROOT) -> Path:
    """Return the folder of the working copies; it may not exist yet."""
    chosen = os.environ.get(VARIABLE, "").strip()
    return Path(chosen).expanduser().absolute() if chosen else root / "work"


def copy_or_original(folder: str, name: str, root: Path = ROOT) -> Path:
    """Return the learner's copy of a notebook if there is one, otherwise the course's own."""
    copy = work_folder(root) / folder / name
    return copy if copy.is_file() else root / folder / name


def shown_path(path: Path, root: Path = ROOT) -> str:
    """Return a path as messages name it: relative to the course if it is inside."""
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
