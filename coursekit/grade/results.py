"""The output folder of a run: a lock, the results so far (`results.jsonl`), and the files of a killed run.

Each result is appended as soon as it is ready. The first line describes the run: chapter, seed, limits, and a digest
of the course. A later run with the same chapter and limits, and with the same course, continues: it uses the seed of
the first one and skips every submission whose file has not changed. The final report removes `results.jsonl`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from coursekit.checks.framework import PartResult, Verdict
from coursekit.grade.judge import ExerciseResult, StudentResult
from coursekit.grade.report import as_data, replace_file
from coursekit.grade.submission import Book


class CannotWrite(Exception):
    """The output folder cannot be used. The message is one sentence."""


class Results:
    """An output folder, locked for one run. Use it in a `with` statement."""

    def __init__(self, folder: Path, run: dict[str, Any], fresh_seed: int) -> None:
        """Lock `folder` and read the results of an unfinished run.

        `run` holds everything that must be equal for results to be reused, and the seed if it was asked for.
        Raises CannotWrite if the folder cannot be written, or if another grader uses it.
        """
        self.folder, self.path = folder, folder / "results.jsonl"
        self.earlier: dict[str, StudentResult] = {}
        self._lock: TextIO | None = None
        self._file: TextIO | None = None
        with in_one_sentence(folder):
            self._prepare()
            kept = self._read(run)
            self.seed = int(kept[0]["seed"]) if kept else int(run.get("seed", fresh_seed))
            lines = kept or [{**run, "seed": self.seed}]
            replace_file(self.path, "".join(_line(line) for line in lines))
            self._file = self.path.open("a", encoding="utf-8")

    def __enter__(self) -> Results:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in (self._file, self._lock):
            if file:
                with contextlib.suppress(OSError):
                    file.close()

    def add(self, key: str, result: StudentResult) -> None:
        """Append one result. A kill can lose the line that is being written, and no other."""
        assert self._file
        with in_one_sentence(self.folder):
            self._file.write(_line({"key": key, "result": as_data(result)}))
            self._file.flush()

    def finish(self) -> None:
        """Remove the results of a run whose report is complete."""
        with in_one_sentence(self.folder):
            self.path.unlink(missing_ok=True)

    def _prepare(self) -> None:
        import fcntl  # not available on Windows, where the grader does not run

        if os.path.lexists(self.folder) and not self.folder.is_dir():
            raise CannotWrite(f"--out {self.folder} is a file; name a folder.")
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "students").mkdir(exist_ok=True)
        self._lock = (self.folder / ".lock").open("w", encoding="utf-8")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CannotWrite(f"another grader is writing to {self.folder}; name another --out.") from None
        replace_file(self.folder / "students" / ".probe", "")
        (self.folder / "students" / ".probe").unlink()

    def _read(self, run: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the lines of an unfinished run with the same settings, and fill `earlier`; skip a cut-off line."""
        try:
            lines = [*_parsed(self.path.read_text(encoding="utf-8"))]
        except (FileNotFoundError, UnicodeDecodeError):
            return []
        if not lines or {name: lines[0].get(name) for name in run} != run or "seed" not in lines[0]:
            return []
        kept = lines[:1]
        for line in lines[1:]:
            with contextlib.suppress(KeyError, TypeError, AttributeError):
                self.earlier[str(line["key"])] = from_data(line["result"])
                kept.append(line)
        return kept


def course_digest(root: Path, book: Book) -> str:
    """A digest of the chapter's original notebook, its checks and the grader."""
    digest = hashlib.sha256(repr(book.cells).encode())
    for path in sorted(
        [*(root / "coursekit/checks").rglob("*.py"), *(root / "coursekit/grade").glob("*.py")]
    ):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def from_data(data: dict[str, Any]) -> StudentResult:
    """Return the result that `as_data` turned into JSON data."""
    exercises = {
        id: ExerciseResult(
            Verdict(id, tuple(PartResult(**part) for part in one["parts"])), one["notes"], one["blocked_by"]
        )
        for id, one in data["exercises"].items()
    }
    return StudentResult(data["student"], data["file"], exercises, data["problem"], data["sandbox"])


def _line(data: dict[str, Any]) -> str:
    return json.dumps(data) + "\n"


def _parsed(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            data = json.loads(line)
            if isinstance(data, dict):
                yield data


@contextlib.contextmanager
def in_one_sentence(folder: Path) -> Iterator[None]:
    """Turn an error of the file system into CannotWrite."""
    try:
        yield
    except OSError as error:
        raise CannotWrite(f"cannot write to {folder}: {error.strerror or error}.") from None
