"""The command `test`: every check that must pass before a change is accepted, quickest first.

All steps run even if one fails; the exit code is 0 only if all of them passed. The summary comes last, so that it is
visible without scrolling.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass

from coursekit import ROOT

CELL_TIMEOUT_S = 300
COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed)\b")
CLOSING = re.compile(r"^=* ?(?=.*\b\d+ (?:passed|failed|error|skipped)).* in [\d.]+s.*$")


@dataclass(frozen=True)
class Step:
    """One step: its name in the summary, and its command after `python -m`."""

    name: str
    command: list[str]


@dataclass(frozen=True)
class Result:
    """The result of a step. `counts` is parsed from pytest's closing line; it is empty for other tools."""

    step: Step
    code: int
    seconds: float
    counts: dict[str, int]


def steps(*, fast: bool, pytest_arguments: list[str]) -> list[Step]:
    """Return the steps of `test`. `fast` leaves out tests marked slow and the notebooks."""
    workers = str(min(os.cpu_count() or 1, 4))
    colour = ["--color=yes"] if sys.stdout.isatty() else []
    parallel = ["-n", workers, "--dist", "loadscope", *colour]
    unit = ["pytest", "tests", *parallel, *(["-m", "not slow"] if fast else []), *pytest_arguments]
    notebooks = [
        "pytest",
        "--nbval",
        "--nbval-current-env",
        f"--nbval-cell-timeout={CELL_TIMEOUT_S}",
        "notebooks",
        "solutions",
    ]
    return [
        Step("format", ["ruff", "format", "--check", "--output-format=concise", "."]),
        Step("lint", ["ruff", "check", "--output-format=concise", "."]),
        Step("types", ["mypy"]),
        Step("notebooks match their sources", ["coursekit", "build", "--check"]),
        Step("tests", unit),
        *([] if fast else [Step("notebooks run and reproduce their outputs", notebooks + parallel)]),
    ]


def read_counts(line: str) -> dict[str, int]:
    """Parse a pytest closing line: `3 passed, 1 skipped in 0.1s` → {"passed": 3, "skipped": 1}."""
    return {kind.removesuffix("s"): int(number) for number, kind in COUNT.findall(line)}


def run(step: Step) -> Result:
    """Run a step with its output on the screen, and parse pytest's closing line as it passes."""
    print(f"\n--- {step.name}: {' '.join(step.command)}", flush=True)
    environment = dict(os.environ)
    environment.setdefault("OMP_NUM_THREADS", "1")  # the workers share the cores
    environment.setdefault("HF_HUB_OFFLINE", "1")  # no test may depend on a network
    start = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", *step.command],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    counts: dict[str, int] = {}
    for line in process.stdout or []:
        print(line, end="", flush=True)
        plain = re.sub(r"\x1b\[[\d;]*m", "", line)
        if step.command[0] == "pytest" and CLOSING.match(plain):
            counts = read_counts(plain)
    return Result(step, process.wait(), time.monotonic() - start, counts)


def summary(results: list[Result]) -> list[str]:
    """Return one line per step, then one with the total number of tests."""
    lines = []
    for result in results:
        verdict = "ok    " if result.code == 0 else "FAILED"
        counts = ", ".join(f"{number} {kind}" for kind, number in result.counts.items())
        lines.append(
            f"{verdict} {result.seconds:6.1f} s  {result.step.name}{': ' + counts if counts else ''}"
        )
    lines.append(f"       {sum(result.seconds for result in results):6.1f} s  total")
    total = {
        kind: sum(result.counts.get(kind, 0) for result in results) for kind in ("passed", "failed", "error")
    }
    skipped = sum(result.counts.get("skipped", 0) for result in results)
    more = f", {skipped} skipped" if skipped else ""
    return [*lines, "", f"tests: {total['passed']} passed, {total['failed'] + total['error']} failed{more}"]


def main(arguments: list[str]) -> int:
    """Run every step; exit code 0 if all passed."""
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    own, rest = arguments[:cut], arguments[cut + 1 :]
    parser = argparse.ArgumentParser(
        prog="course.py test",
        description="Run every test. Arguments after -- go to pytest for the tests in tests/.",
    )
    parser.add_argument("--fast", action="store_true", help="skip tests marked slow and the notebooks")
    options = parser.parse_args(own)
    results = [run(step) for step in steps(fast=options.fast, pytest_arguments=rest)]
    print("\n" + "\n".join(summary(results)), flush=True)
    return 0 if all(result.code == 0 for result in results) else 1
