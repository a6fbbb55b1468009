"""Checks of the exercises: `check("2.1", slot)` in a notebook, and the same parts in the grader.

`framework.py` defines a check, `answers.py` calls the answers, `chapter_NN` contain the checks, and `hints.toml` has a
hint for each mistake that they name. `run_cell.py` runs a cell, and `kernel_source.py` says what a kernel may contain.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

from coursekit.checks.answers import LocalHost
from coursekit.checks.framework import CRASHED, PASSED, Exercise, Verdict, exercise
from coursekit.checks.hints import hint_for
from coursekit.checks.source import remember, used

USED_AND_WRONG = "was used here and does not pass its own check: fix that first."


class CheckFailed(AssertionError):
    """The answer is not right yet. A notebook shows only the message, without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def check(id: str, *answers: Any) -> None:
    """Check an answer with fresh random inputs; print the points, or raise CheckFailed with the problem."""
    task, seed = exercise(id), secrets.randbits(32)
    remember(id, answers)
    refused = task.refused(answers)
    verdict = task.fail_all(CRASHED, refused) if refused else run_here(task, answers, seed)
    text = report(verdict)
    if not verdict.passed:
        blamed = failing_needs(task, answers, seed)
        text = "\n".join([*(f"Your {need} {USED_AND_WRONG}" for need in blamed), text])
        raise CheckFailed(text)
    print(text)


def run_here(task: Exercise, answers: Iterable[Any], seed: int) -> Verdict:
    """Run the check in this process."""
    host = LocalHost()
    given = [host.proxy(answer, name) for answer, name in zip(answers, task.answers, strict=True)]
    return task.run(given, seed)


def failing_needs(task: Exercise, answers: Iterable[Any], seed: int) -> list[str]:
    """Return the ids of earlier exercises whose answers this one uses and that fail their own checks."""
    found = dict(used(answers))
    found |= {name: answer for name, answer in zip(task.answers, answers, strict=True) if name not in found}
    blamed = []
    for need in task.needs:
        earlier = exercise(need)
        if all(name in found for name in earlier.answers):
            needed = [found[name] for name in earlier.answers]
            if not run_here(earlier, needed, seed).passed:
                blamed.append(need)
    return blamed


def report(verdict: Verdict) -> str:
    """Format the verdict: one summary line and, unless everything passed, one line per part and a hint."""
    head = f"Exercise {verdict.exercise}: {verdict.earned} of {verdict.points} points"
    if verdict.passed:
        return f"{head}. Everything passed."
    lines = [head]
    told = set()
    for part in verdict.parts:
        mark = "✓" if part.status == PASSED else "✗"
        text = "the same" if part.message in told else part.message
        told.add(part.message)
        lines.append(f"  {mark} {part.name}" + (f": {text}" if part.status != PASSED else ""))
    failure = verdict.first_failure
    if failure and (hint := hint_for(verdict.exercise, failure.misconception)):
        lines.append(f"  Hint: {hint}")
    return "\n".join(lines)
