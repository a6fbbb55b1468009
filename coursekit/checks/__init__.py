"""The checks of the exercises: `check("2.1", slot)` in a notebook, and the same parts in the grader.

`framework.py` says what a check is, `answers.py` how it calls an answer, `chapter_NN/` hold the checks.
"""

from __future__ import annotations

import secrets
from typing import Any

from coursekit.checks.answers import LocalHost
from coursekit.checks.framework import PASSED, Verdict, exercise


class CheckFailed(AssertionError):
    """An answer is not right yet. Shown in a notebook as its message alone, without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def check(id: str, *answers: Any) -> None:
    """Checks an answer with fresh random inputs; prints the points, or raises CheckFailed with what is wrong."""
    task = exercise(id)
    host = LocalHost()
    given = [host.proxy(answer, name) for answer, name in zip(answers, task.answers, strict=True)]
    verdict = task.run(given, secrets.randbits(32))
    text = report(verdict)
    if not verdict.passed:
        raise CheckFailed(text)
    print(text)


def report(verdict: Verdict) -> str:
    """The verdict in words: a line for the whole and, unless all is right, a line for each part."""
    head = f"Exercise {verdict.exercise}: {verdict.earned} of {verdict.points} points"
    if verdict.passed:
        return f"{head}. All right."
    lines = [head]
    told = set()
    for part in verdict.parts:
        mark = "✓" if part.status == PASSED else "✗"
        text = "the same" if part.message in told else part.message
        told.add(part.message)
        lines.append(f"  {mark} {part.name}" + (f": {text}" if part.status != PASSED else ""))
    return "\n".join(lines)
