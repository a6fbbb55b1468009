"""Checks of the exercises: `check("2.1", slot)` in a notebook, and the same parts in the grader.

`framework.py` defines a check, `answers.py` calls the answers, and `chapter_NN` contain the checks.
"""

from __future__ import annotations

import secrets
from typing import Any

from coursekit.checks.answers import LocalHost
from coursekit.checks.framework import PASSED, Verdict, exercise


class CheckFailed(AssertionError):
    """The answer is not right yet. A notebook shows only the message, without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def check(id: str, *answers: Any) -> None:
    """Check an answer with fresh random inputs; print the points, or raise CheckFailed with the problem."""
    task = exercise(id)
    host = LocalHost()
    given = [host.proxy(answer, name) for answer, name in zip(answers, task.answers, strict=True)]
    verdict = task.run(given, secrets.randbits(32))
    text = report(verdict)
    if not verdict.passed:
        raise CheckFailed(text)
    print(text)


def report(verdict: Verdict) -> str:
    """Format the verdict: one summary line and, unless everything passed, one line per part."""
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
    return "\n".join(lines)
