"""`course.py check [chapter]`: check a learner's progress from the saved notebooks in `work/exercises/`.

A chapter without a working copy is read from `exercises/`. Uses the grader's judge and sandbox. For an unsolved
exercise it shows the first problem and the hint that answers the named mistake. If there is none, or if the mistake is
still there after the answer has changed, the next of the exercise's own three hints opens, too.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import secrets
import sys
import time
from pathlib import Path
from typing import Any

import platformdirs

from coursekit import ROOT
from coursekit.build.exercises import sources
from coursekit.cells import hints_of
from coursekit.checks.hints import hint_for
from coursekit.grade.judge import ExerciseResult, Judge
from coursekit.grade.submission import Book, NoSuchChapter, Submission, load_book, read_submission
from coursekit.learner import guesses
from coursekit.learner.places import copy_or_original, shown_path
from coursekit.learner.question import questions

OPENED = platformdirs.user_state_path("paged-attention-course") / "hints.json"


def main(arguments: list[str]) -> int:
    """Check the chapters' exercises; exit code 0 if all are solved, 1 if not, 2 for an unknown chapter."""
    parser = argparse.ArgumentParser(
        prog="course.py check", description="Check the answers in your saved notebooks."
    )
    parser.add_argument("chapter", nargs="?", help="chapter number, such as 2 (default: all chapters)")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if os.name != "posix":
        print(
            "check needs Linux, macOS or WSL; the check cells in the notebooks work everywhere.",
            file=sys.stderr,
        )
        return 2
    try:
        books = [
            load_book(ROOT, chapter) for chapter in ([options.chapter] if options.chapter else sources(ROOT))
        ]
    except NoSuchChapter as error:
        print(f"check: {error}", file=sys.stderr)
        return 2
    opened = _read_opened()
    solved = []
    for book in books:
        name = f"{book.name}.ipynb"
        path = options.folder / name if options.folder else copy_or_original("exercises", name)
        solved.append(_check(book, path, opened))
    _write_opened(opened)
    sys.stdout.flush()
    return 0 if all(solved) else 1


def _check(book: Book, path: Path, opened: dict[str, Any]) -> bool:
    started = time.monotonic()
    submission = read_submission(path, "you", book)
    print(f"{book.name} ({shown_path(path)})")
    if submission.problem:
        print(f"  {submission.problem}. {_advice(path)}\n")
        return False
    judge = Judge(book, secrets.randbits(32))
    try:
        result = judge.grade(submission)
    finally:
        judge.close()
    for id, one in result.exercises.items():
        for line in lines(book, id, one, submission, opened):
            print(f"  {line}")
    print(f"  {result.earned} of {result.points} points, {time.monotonic() - started:.1f} s")
    if told := predictions(book.name):
        print(told)
    print()
    return result.earned == result.points


def predictions(lesson: str) -> str:
    """One line on the learner's guesses in a chapter's lesson; "" if the lesson has no Predict boxes."""
    source = ROOT / "curriculum/lessons" / f"{lesson}.py"
    boxes = questions(source.read_text(encoding="utf-8")) if source.is_file() else {}
    made = [guess for id, guess in guesses.load().items() if id in boxes]
    first = sum(guess.right_first for guess in made)
    return f"  Predictions: {len(made)} of {len(boxes)} made, {first} right at once" if boxes else ""


def _advice(path: Path) -> str:
    """How to go on with a notebook that cannot be read, without losing what is in it."""
    original = f"`git restore exercises/{path.name}` brings the original back."
    if not path.exists():
        return original
    return "Copy the file first, because your answers are in it; then open the copy in a text editor or ask for help."


def lines(
    book: Book, id: str, one: ExerciseResult, submission: Submission, opened: dict[str, Any]
) -> list[str]:
    """Return the lines to print for one exercise."""
    head = f"{id}  {one.verdict.earned} of {one.verdict.points}"
    failure = one.verdict.first_failure
    if failure is None:
        opened.pop(id, None)
        return [f"✓ {head}", *(f"    {note}" for note in one.notes)]
    own = hint_for(id, failure.misconception)
    number = _next_hint(id, submission.answers.get(id, ""), failure.misconception if own else None, opened)
    hints = [f"Hint: {own}"] * bool(own)
    hints += [f"Hint {number} of 3: {hints_of(book.cells, id)[number - 1]}"] * bool(number)
    first = failure.message.splitlines()[0] if failure.message else failure.status
    return [f"✗ {head}  {first}", *(f"    {line}" for line in [*one.notes, *hints])]


def _next_hint(id: str, answer: str, mistake: str | None, opened: dict[str, Any]) -> int:
    """Number of the exercise's open hints: one more for each new answer, unless a new mistake has its own hint."""
    digest = hashlib.sha256(answer.encode(errors="replace")).hexdigest()[:16]
    known = opened.get(id)
    if not isinstance(known, dict) or not isinstance(known.get("hint"), int):
        known = {"answer": "", "hint": 0, "mistakes": []}
    mistakes = [one for one in known.get("mistakes") or [] if isinstance(one, str)]
    if known.get("answer") != digest and (mistake is None or mistake in mistakes):
        known["hint"] = min(max(known["hint"], 0) + 1, 3)
    mistakes += [mistake] if mistake is not None and mistake not in mistakes else []
    opened[id] = {"answer": digest, "hint": known["hint"], "mistakes": mistakes}
    return int(known["hint"])


def _read_opened() -> dict[str, Any]:
    try:
        data = json.loads(OPENED.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _write_opened(opened: dict[str, Any]) -> None:
    try:
        OPENED.parent.mkdir(parents=True, exist_ok=True)
        OPENED.write_text(json.dumps(opened), encoding="utf-8")
    except OSError as error:
        print(f"(could not save which hints are open: {error})", file=sys.stderr)
