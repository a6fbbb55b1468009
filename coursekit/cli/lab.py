"""The command `lab`: JupyterLab on the learner's copy of a chapter's notebook; offline, without prompts."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

from coursekit import ROOT, course_command
from coursekit.learner.places import copy_or_original, shown_path, work_folder
from coursekit.update.copies import Unreadable, make_copies, outdated


def chapters(folder: Path) -> dict[str, Path]:
    """The lessons on disk: "07" → notebooks/07_batched_decode.ipynb."""
    found = {}
    for path in sorted(folder.glob("*.ipynb")):
        match = re.match(r"(\d\d)_", path.name)
        if match:
            found[match[1]] = path
    return found


def find_chapter(chapter: str, folder: Path) -> Path:
    """Return the notebook of a chapter given as 7, 07 or 07_batched_decode.

    Raises:
        ValueError: there is no such chapter; the message lists the chapters that exist.
    """
    found = chapters(folder)
    number = re.match(r"(\d{1,2})(_|$)", chapter)
    key = number[1].zfill(2) if number else ""
    if key not in found:
        titles = [f"  {key}  {path.stem[3:].replace('_', ' ')}" for key, path in found.items()]
        listing = "\n".join(titles) or f"  none: run `{course_command()} build`"
        raise ValueError(f"There is no chapter {chapter!r}. The chapters are:\n{listing}")
    return found[key]


def command(notebook: Path, *, root: Path, port: int | None, browser: bool) -> list[str]:
    """Return the command line that starts JupyterLab."""
    line = [
        sys.executable,
        "-m",
        "jupyterlab",
        f"--ServerApp.root_dir={root}",
        f"--LabApp.default_url=/lab/tree/{notebook.relative_to(root).as_posix()}",
        "--LabApp.extension_manager=readonly",  # do not look for extensions, so the page opens offline
        "--ServerApp.answer_yes=True",  # a single Ctrl-C stops it
    ]
    if port is not None:
        line.append(f"--ServerApp.port={port}")
    if not browser:
        line.append("--no-browser")
    if hasattr(os, "geteuid") and os.geteuid() == 0:  # containers and rented machines
        line.append("--allow-root")
    return line


def prepare_copies() -> None:
    """Make the working copies that do not exist yet; without them the course's own notebooks are opened."""
    try:
        if made := make_copies(ROOT):
            where = shown_path(work_folder(ROOT), ROOT)
            print(f"Made your copies of {len(made)} notebooks in {where}: what you write there stays yours.")
        elif changed := outdated(ROOT):
            print(
                f"{len(changed)} notebooks have a newer version. `{course_command()} update` brings it into your "
                "copies and keeps what you wrote."
            )
    except (OSError, Unreadable, ValueError) as error:
        print(f"Your copies could not be made ({error}); opening the course's own notebook.", file=sys.stderr)


def port_number(text: str) -> int:
    """Parse a TCP port from the command line."""
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: give a number from 1 to 65535")
    return int(text)


def main(arguments: list[str]) -> int:
    """Start JupyterLab and wait until it exits."""
    parser = argparse.ArgumentParser(prog="course.py lab", description="Open the course in JupyterLab.")
    parser.add_argument("chapter", nargs="?", default="0", help="chapter number, such as 7 (default: 0)")
    parser.add_argument(
        "--no-browser", action="store_true", help="print the address instead of opening a browser"
    )
    parser.add_argument(
        "--port", type=port_number, help="port to serve on (default: 8888 or the next free port)"
    )
    options = parser.parse_args(arguments)
    try:
        notebook = find_chapter(options.chapter, ROOT / "notebooks")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    prepare_copies()
    notebook = copy_or_original("notebooks", notebook.name)
    root = ROOT if notebook.is_relative_to(ROOT) else work_folder()
    line = command(notebook, root=root, port=options.port, browser=not options.no_browser)
    # This settings folder turns off JupyterLab's news prompt and its update check.
    folders = [str(ROOT / "coursekit" / "jupyter"), *filter(None, [os.environ.get("JUPYTER_CONFIG_PATH")])]
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(folders)
    print(f"Opening {shown_path(notebook)} in JupyterLab. Ctrl-C here stops it.", flush=True)
    if sys.platform != "win32":
        os.execv(line[0], line)
    try:
        return subprocess.call(line)
    except KeyboardInterrupt:
        return 130
