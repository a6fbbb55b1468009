"""The trainer's memory: every answer, in one file on the learner's own machine and nowhere else (chapter 10).

The file is small JSON in the user's data folder (`PAGED_COURSE_PROGRESS` names another). It is replaced atomically:
written to a temporary file, flushed to disk, then renamed, so a crash at any moment leaves either the old or the new
file. A file that cannot be parsed is renamed with a notice and never overwritten; a file of a newer course version is
left alone. Each answer is added to the file's current contents, so a terminal and a notebook can be used at once. The
order of the answers is their order in the file, so a clock that is set back does no harm. `quiz --forget` deletes it.

Invariants: no answer reported as saved is lost; no content of the file can make the trainer fail.
"""

from __future__ import annotations

import glob
import itertools
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import platformdirs

from coursekit.files import locked, replace_bytes
from coursekit.quiz.ability import Answer

VARIABLE = "PAGED_COURSE_PROGRESS"
_VERSION = 1
_KEEP = 20_000  # answers; the oldest are dropped first


@dataclass(frozen=True)
class Record:
    """One answer. `when` is a date and time in UTC, `test` the kind of test: test, daily or exam."""

    when: str
    question: str
    topic: str
    level: int
    score: float
    guess: float
    test: str

    @property
    def answer(self) -> Answer:
        """Convert to the ability model's input."""
        return Answer(self.topic, self.level, self.score, self.guess)


@dataclass
class Progress:
    """All answers, the oldest first. `notice` describes a problem with the file, or is None."""

    path: Path | None = None
    records: list[Record] = field(default_factory=list)
    notice: str = ""

    @property
    def answers(self) -> list[Answer]:
        """The answers as the ability model's input."""
        return [record.answer for record in self.records]

    def add(self, record: Record) -> None:
        """Save one more answer to disk at once. A write error is reported in `notice`, once."""
        self._save(lambda records: [*records, record])

    def merge(self, others: Sequence[Record]) -> int:
        """Add the answers that are not here yet, by date, and save them; return how many there were."""
        new = len(set(others) - set(self.records))
        self._save(lambda records: merged(records, others))
        return new

    def _save(self, change: Callable[[list[Record]], list[Record]]) -> None:
        """Apply a change to the answers here and to those in the file."""
        self.records = change(self.records)[-_KEEP:]
        if self.path is None:
            return
        try:
            with locked(self.path.parent):
                by_now = load(self.path)
                if by_now.path is None:
                    raise OSError(by_now.notice)
                if by_now.notice:  # the file was set aside: these answers start the new one
                    self.notice = by_now.notice
                else:
                    self.records = change(by_now.records)[-_KEEP:]
                data = {"version": _VERSION, "answers": [asdict(one) for one in self.records]}
                replace_bytes(self.path, json.dumps(data).encode())
        except OSError as error:
            self.notice = f"Your progress cannot be saved: {error}. You can continue without it."
            self.path = None


def merged(records: Sequence[Record], others: Sequence[Record]) -> list[Record]:
    """Return the answers of both, each once, by date; answers of one second stay in their order."""
    known = set(records)
    new = [record for record in dict.fromkeys(others) if record not in known]
    return sorted([*records, *new], key=lambda record: record.when)


def read_export(path: Path) -> list[Record]:
    """Read a file that the trainer on another device has saved. The file is never changed.

    Raises:
        ValueError: it cannot be read, or it is not such a file; the message says so.
    """
    try:
        return _records(json.loads(path.read_text(encoding="utf-8")))
    except _Newer:
        raise ValueError(
            f"{path} was written by a newer version of the course: update the course first"
        ) from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise ValueError(f"{path} is not a file of saved progress") from None


def default_path() -> Path:
    """Return the path of the file for this machine and user."""
    chosen = os.environ.get(VARIABLE, "").strip()
    if chosen:
        return Path(chosen).expanduser()
    return platformdirs.user_data_path("paged-attention-course") / "interview.json"


def load(path: Path | None = None) -> Progress:
    """Load the saved answers. A broken file is set aside, and `notice` says where."""
    path = path or default_path()
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Progress(path)
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError):
            return Progress(
                None,
                [],
                f"{path} cannot be read ({error.strerror}): this session runs without saved progress.",
            )
        text = ""
    try:
        return Progress(path, _records(json.loads(text)))
    except _Newer:
        told = f"{path} was written by a newer version of the course; it is left unchanged"
        return Progress(None, [], f"{told}, and this session runs without saved progress.")
    except (ValueError, RecursionError):
        aside = _aside(path)
    try:
        path.rename(aside)
    except OSError as failed:
        return Progress(None, [], f"{path} is damaged and cannot be moved ({failed}): progress is off.")
    return Progress(
        path,
        [],
        f"The file with your progress is damaged. It was renamed to {aside}, and a new one was started.",
    )


def forget(path: Path | None = None) -> bool:
    """Delete the file and damaged ones that were set aside; return True if there were any."""
    path = path or default_path()
    files = [file for file in (path, *_set_aside(path)) if file.exists()]
    for file in files:
        file.unlink(missing_ok=True)
    return bool(files)


class _Newer(Exception):
    """A file of a later version, which is not damage."""


def _records(data: Any) -> list[Record]:
    """Parse the answers in a file.

    Raises:
        ValueError: the file was not written by `add`.
        _Newer: a later version wrote the file.
    """
    if isinstance(data, dict) and type(data.get("version")) is int and data["version"] > _VERSION:
        raise _Newer
    if (
        not isinstance(data, dict)
        or data.get("version") != _VERSION
        or not isinstance(data.get("answers"), list)
    ):
        raise ValueError("this file was not written by the trainer")
    names = {one.name for one in fields(Record)}
    records = []
    for entry in data["answers"]:
        if not isinstance(entry, dict) or set(entry) != names:
            raise ValueError(f"not an answer: {entry!r}")
        record = Record(**entry)
        texts = (record.when, record.question, record.topic, record.test)
        shares = (record.score, record.guess)
        if (
            not all(isinstance(text, str) for text in texts)
            or not all(type(share) in (int, float) and 0 <= share <= 1 for share in shares)
            or type(record.level) is not int
            or not 1 <= record.level <= 5
            or record.guess == 1
        ):
            raise ValueError(f"not an answer: {entry!r}")
        records.append(record)
    return records


def _aside(path: Path) -> Path:
    """Return an unused name for a file that cannot be parsed."""
    stamp = time.strftime("%Y-%m-%d")
    names = (path.with_name(f"{path.stem}.damaged-{stamp}-{n}{path.suffix}") for n in itertools.count(1))
    return next(name for name in names if not name.exists())


def _set_aside(path: Path) -> list[Path]:
    """Return the files that `_aside` has named."""
    return list(path.parent.glob(f"{glob.escape(path.stem)}.damaged-*{glob.escape(path.suffix)}"))
