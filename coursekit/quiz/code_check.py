"""Run the answer to a code question against the real check, in a separate process (chapter 10).

    parent: run_check(question, source)  ->  python -m coursekit.quiz.code_check  <- one JSON object, one back

The check is an exercise's, the same one that grades chapters 1 to 7, or the question's own `check`. Invariant: an
answer that hangs, exits or crashes its process is a wrong answer with a reason, and never harms the quiz. It is the
learner's own code on their own machine, so nothing is locked down; other people's code is graded by
`coursekit.grade`.
"""

from __future__ import annotations

import contextlib
import io
import json
import secrets
import subprocess
import sys
from typing import Any

from coursekit import ROOT
from coursekit.checks.answers import LocalHost, describe
from coursekit.checks.framework import exercise
from coursekit.checks.run_cell import define
from coursekit.quiz.bank import Code

SECONDS = 30.0
_CELL = "<cell of the answer>"


def run_check(question: Code, source: str, seconds: float = SECONDS) -> tuple[bool, str]:
    """Return whether the check passes, and its message if not."""
    names = question.names or (exercise(question.exercise).answers if question.exercise else ())
    told = {
        "given": question.given,
        "source": source,
        "names": names,
        "exercise": question.exercise,
        "check": question.check,
        "seed": secrets.randbits(32),
    }
    command = [sys.executable, "-m", "coursekit.quiz.code_check"]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(told),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=seconds,
            cwd=ROOT,
        )
    except subprocess.TimeoutExpired:
        return False, f"The code did not finish within {seconds:g} s."
    try:
        passed, message = json.loads(done.stdout.strip().rpartition("\n")[2])
    except ValueError:
        return False, f"The code ended its process (exit status {done.returncode}) before the check was done."
    return bool(passed), str(message)


def judge_here(told: dict[str, Any]) -> tuple[bool, str]:
    """The child's work: define the names, run the check."""
    namespace: dict[str, Any] = {"__name__": "answer"}
    try:
        exec(told["given"], namespace)
        define(told["source"], _CELL, namespace)
        missing = [name for name in told["names"] if name not in namespace]
        if missing:
            return False, f"The code must still define {missing[0]}."
        given = [namespace[name] for name in told["names"]]
        if told["exercise"]:
            return _by_exercise(told["exercise"], given, told["seed"])
        own: dict[str, Any] = {}
        exec(told["check"], own)
        own["check"](*given)
    except AssertionError as error:
        return False, str(error) or "The check fails."
    except Exception as error:  # noqa: BLE001  an answer may raise anything
        name, _, message, where = describe(error)
        return False, f"{name}: {message}" + (f" ({where})" if where else "")
    return True, ""


def _by_exercise(id: str, given: list[Any], seed: int) -> tuple[bool, str]:
    host, task = LocalHost(), exercise(id)
    proxies = [host.proxy(one, name) for one, name in zip(given, task.answers, strict=True)]
    failure = task.run(proxies, seed).first_failure
    return (True, "") if failure is None else (False, failure.message)


def main() -> int:
    """Read one question, print one verdict; output of the answer is discarded."""
    told = json.loads(sys.stdin.read())
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        verdict = judge_here(told)
    print("\n" + json.dumps(verdict))
    return 0


if __name__ == "__main__":
    sys.exit(main())
