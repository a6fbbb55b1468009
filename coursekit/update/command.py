"""`course.py update`: bring new versions of lessons and exercises into the learner's working copies."""

from __future__ import annotations

import argparse
import sys

from coursekit import ROOT, course_command
from coursekit.learner.places import shown_path, work_folder
from coursekit.update.copies import Copy, Unreadable, all_copies, make_copies, update
from coursekit.update.merge import Merge


def main(arguments: list[str]) -> int:
    """Update every copy; exit code 0, or 1 if a copy could not be updated."""
    parser = argparse.ArgumentParser(
        prog="course.py update",
        description="Bring new versions of the lessons and exercises into your copies. What you wrote is kept; where "
        "you and the course changed the same cell, you get both. Close the notebooks in JupyterLab first.",
    )
    parser.parse_args(arguments)
    failed = 0
    try:
        made = {copy.path for copy in make_copies(ROOT)}
        for copy in all_copies(ROOT):
            if copy.path in made:
                print(f"{copy.name}: new")
                continue
            try:
                print_result(copy, update(copy))
            except Unreadable as error:
                failed += 1
                print(
                    f"{copy.name}: not updated, because {error}. Rename it, and `{course_command()} update` makes a "
                    "fresh copy.",
                    file=sys.stderr,
                )
    except OSError as error:
        print(f"update: {error}", file=sys.stderr)
        return 1
    print(f"Your copies are in {shown_path(work_folder(ROOT))}.")
    return 1 if failed else 0


def print_result(copy: Copy, done: Merge) -> None:
    """Print one line for a notebook, and one for each conflict."""
    if not done.changed:
        print(f"{copy.name}: up to date")
        return
    counts = {"updated": done.updated, "new": done.added, "removed": done.removed, "yours": done.kept}
    told = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    print(f"{copy.name}: {told or 'updated'}")
    for line in done.conflicts:
        print(f"  both changed, so you have both versions: {line}")
