"""The command `lab`: JupyterLab on the first notebook or a chapter's; offline, without prompts."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

from coursekit import ROOT, course_command


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
    line = command(notebook, root=ROOT, port=options.port, browser=not options.no_browser)
    # This settings folder turns off JupyterLab's news prompt and its update check.
    folders = [str(ROOT / "coursekit" / "jupyter"), *filter(None, [os.environ.get("JUPYTER_CONFIG_PATH")])]
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(folders)
    print(f"Opening {notebook.relative_to(ROOT)} in JupyterLab. Ctrl-C here stops it.", flush=True)
    if sys.platform != "win32":
        os.execv(line[0], line)
    try:
        return subprocess.call(line)
    except KeyboardInterrupt:
        return 130
