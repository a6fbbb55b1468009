"""Course tools: build notebooks from `curriculum/`, check the machine, run the tests.

Uses `paged_ref`, never the reverse. Importing this package imports nothing heavy.
"""

import os
import shlex
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The course's folder, which contains `course.py`, `curriculum/` and `notebooks/`."""


def course_command() -> str:
    """Return the command as this user starts it, such as "python3 course.py" or "py -3.12 course.py"."""
    return os.environ.get("COURSE_COMMAND", "python course.py" if os.name == "nt" else "python3 course.py")


def quoted(path: str) -> str:
    """Return a path as the system's shell takes it."""
    if os.name == "nt":
        return f'"{path}"' if " " in path else path
    return shlex.quote(path)
