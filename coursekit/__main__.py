"""`python -m coursekit COMMAND ...`: one table from commands to modules.

A command is known if its module exists; each module has `main(arguments) -> exit code`. This file uses only the
standard library, because course.py calls `check_command` before anything is installed.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import sys

from coursekit import ROOT, course_command
from paged_ref.openmp import limit_spinning
from paged_ref.utf8 import use_utf8

COMMANDS = {
    "lab": (
        "coursekit.cli.lab",
        "open JupyterLab on your copy of the first notebook or a chapter's notebook",
    ),
    "update": ("coursekit.update.command", "bring new versions of the course into your copies"),
    "test": ("coursekit.cli.test", "run every test and validate every notebook"),
    "serve": ("coursekit.cli.serve", "serve the model, with a live page of its memory"),
    "doctor": ("coursekit.cli.doctor", "check that this machine is ready, by running a kernel on it"),
    "check": ("coursekit.cli.check", "check your answers to a chapter's exercises"),
    "quiz": ("coursekit.quiz", "interview questions in the terminal"),
    "site": ("coursekit.site.command", "build the trainer as a web page that works offline"),
    "grade": ("coursekit.grade.command", "grade submitted notebooks"),
    "nbgrader": ("coursekit.nbgrader_bridge.command", "use the exercises with nbgrader"),
    "build": ("coursekit.build.command", "build the notebooks from curriculum/ (for authors)"),
    "bench": ("bench.__main__", "measure the reference implementation"),
}
# The other commands work on the course's own files, which an installed library does not contain.
WITHOUT_THE_COURSE = ("doctor", "bench", "serve")


def known_commands() -> dict[str, tuple[str, str]]:
    """The commands whose modules are installed: name → (module, purpose)."""
    known = {}
    for command, (module, purpose) in COMMANDS.items():
        package = module.partition(".")[0]
        if importlib.util.find_spec(package) and importlib.util.find_spec(module):
            known[command] = (module, purpose)
    return known


def check_command(command: str) -> str | None:
    """Return one sentence on why `command` is unknown, or None if it is known."""
    commands = ["help", *known_commands()]
    if command in commands:
        return None
    near = difflib.get_close_matches(command, commands, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return f"there is no command {command!r}.{hint} The commands are: {', '.join(commands)}."


def main(arguments: list[str]) -> int:
    """Run the module of the command with the remaining arguments; return its exit code."""
    command = arguments[0] if arguments else "help"
    use_utf8()
    os.environ.setdefault("COURSE_COMMAND", "python -m coursekit")  # course.py has set it already
    limit_spinning()  # notebook kernels, tests and benchmarks inherit it
    if command in ("help", "-h", "--help"):
        print(f"usage: {course_command()} COMMAND [ARGUMENTS]      (COMMAND --help explains one)\n")
        for name, (_, purpose) in known_commands().items():
            print(f"  {name:<8} {purpose}")
        return 0
    problem = check_command(command)
    if problem:
        print(problem, file=sys.stderr)
        return 2
    if command not in WITHOUT_THE_COURSE and not (ROOT / "curriculum").is_dir():
        print(
            f"{command} needs the course's files (notebooks, exercises, questions), which the installed library does "
            "not contain: get the course's repository and run `python3 course.py` there.",
            file=sys.stderr,
        )
        return 2
    module = importlib.import_module(known_commands()[command][0])
    return int(module.main(arguments[1:]) or 0)


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
        print(end="", flush=True)  # a closed pipe shows here, not after the last line
        sys.exit(code)
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # `check | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
