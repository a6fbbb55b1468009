"""The learner's guesses, in one small JSON file beside the interview trainer's; nothing leaves the machine.

Invariants: the file is replaced whole; no content of it, and no failure to write it, raises an exception.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import platformdirs

from coursekit.files import locked, replace_bytes

VARIABLE = "PAGED_COURSE_PROGRESS"  # names the trainer's file; the guesses are saved beside it
_MAX_GUESS = 200  # characters


@dataclass(frozen=True)
class Guess:
    """A learner's guesses at one question. `when` is the time of the last one, in UTC."""

    first: str
    last: str
    right: bool
    right_first: bool
    tries: int
    when: str


def default_path() -> Path:
    """Return the path of the file for this machine and user."""
    chosen = os.environ.get(VARIABLE, "").strip()
    folder = (
        Path(chosen).expanduser().parent if chosen else platformdirs.user_data_path("paged-attention-course")
    )
    return folder / "predictions.json"


def load(path: Path | None = None) -> dict[str, Guess]:
    """Return the saved guesses by question; entries that cannot be read are left out."""
    try:
        data = json.loads((path or default_path()).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    entries = data.get("guesses") if isinstance(data, dict) else None
    found = {}
    for id, entry in entries.items() if isinstance(entries, dict) else ():
        with contextlib.suppress(TypeError):
            guess = Guess(**entry)
            if _valid(guess):
                found[id] = guess
    return found


def save(id: str, guess: str, right: bool, path: Path | None = None) -> str:
    """Add a guess to the file; return "", or the reason why it cannot be saved."""
    path, guess = path or default_path(), guess[:_MAX_GUESS]
    now = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    try:
        with locked(path.parent):
            _keep_damaged(path)
            known = load(path)
            old = known.get(id)
            if old is None:
                known[id] = Guess(guess, guess, right, right, 1, now)
            elif guess != old.last:
                known[id] = Guess(old.first, guess, old.right or right, old.right_first, old.tries + 1, now)
            data: dict[str, Any] = {"version": 1, "guesses": {key: asdict(one) for key, one in known.items()}}
            replace_bytes(path, json.dumps(data, indent=1).encode())
    except OSError as error:
        return f"it cannot be saved: {error.strerror or error}"
    return ""


def _keep_damaged(path: Path) -> None:
    """Rename a file that is not JSON, so that it is not overwritten."""
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    except (ValueError, RecursionError):
        path.replace(path.with_suffix(f".damaged-{time.strftime('%Y-%m-%d')}.json"))


def _valid(guess: Guess) -> bool:
    texts = (guess.first, guess.last, guess.when)
    flags = (guess.right, guess.right_first)
    return (
        all(isinstance(text, str) for text in texts)
        and all(isinstance(flag, bool) for flag in flags)
        and type(guess.tries) is int
    )
