"""`test` runs every step to the end, and no failure is lost on the way to its exit code."""

import pytest

from coursekit.cli import test as testing
from coursekit.cli.test import Result, Step

GREEN = Step("green", ["pytest", "tests"])


def result(code: int, **counts: int) -> Result:
    return Result(GREEN, code, 1.5, counts)


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ("===== 3 passed in 0.12s =====", {"passed": 3}),
        ("= 1 failed, 30 passed, 2 skipped in 61.00s (0:01:01) =", {"failed": 1, "passed": 30, "skipped": 2}),
        ("12 passed, 3 warnings in 4.00s", {"passed": 12}),
        ("==== 2 errors in 0.30s ====", {"error": 2}),
    ],
)
def test_pytest_closing_lines_are_read(line: str, counts: dict[str, int]) -> None:
    assert testing.CLOSING.match(line)
    assert testing.read_counts(line) == counts


@pytest.mark.parametrize("line", ["loaded in 3s", "3 passed", "tests/test_a.py ... 3 passed"])
def test_other_lines_are_not(line: str) -> None:
    assert not testing.CLOSING.match(line)


def test_every_step_runs_and_one_failure_fails_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names: list[str] = []

    def run(step: Step) -> Result:
        names.append(step.name)
        return Result(
            step, int(step.name == "lint"), 0.1, {"passed": 4} if step.command[0] == "pytest" else {}
        )

    monkeypatch.setattr(testing, "run", run)
    assert testing.main([]) == 1
    assert names == [step.name for step in testing.steps(fast=False, pytest_arguments=[])]
    output = capsys.readouterr().out
    assert "FAILED    0.1 s  lint" in output
    assert output.splitlines()[-1] == "tests: 8 passed, 0 failed"
    monkeypatch.setattr(testing, "run", lambda step: Result(step, 0, 0.1, {}))
    assert testing.main([]) == 0


def test_errors_count_as_failures() -> None:
    lines = testing.summary([result(0, passed=3, skipped=1), result(1, passed=2, error=1)])
    assert lines[-1] == "tests: 5 passed, 1 failed, 1 skipped"


def test_arguments_reach_pytest_and_fast_leaves_out_what_is_slow() -> None:
    whole = testing.steps(fast=False, pytest_arguments=["-k", "pool"])
    assert whole[-2].command[-2:] == ["-k", "pool"]
    notebooks = " ".join(whole[-1].command)
    assert "--nbval --nbval-current-env --nbval-cell-timeout=300 notebooks solutions" in notebooks
    assert "pool" not in notebooks
    fast = testing.steps(fast=True, pytest_arguments=[])
    assert [step.name for step in fast] == [step.name for step in whole[:-1]]
    assert fast[-1].command[-2:] == ["-m", "not slow"]


def test_a_step_is_really_run(capfd: pytest.CaptureFixture[str]) -> None:
    ended = testing.run(Step("a word that is none", ["coursekit", "nothing"]))
    assert ended.code == 2
    assert "there is no command 'nothing'" in capfd.readouterr().out
