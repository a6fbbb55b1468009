"""Every answer of the bank gets its verdict, with its own message; the bank reaches all a check can say."""

from __future__ import annotations

from collections import Counter

import pytest

from coursekit import ROOT
from coursekit.build.exercises import cells_of, sources
from coursekit.checks.bank import Entry, cells_until, entries, judge
from coursekit.checks.framework import CRASHED, UNSOLVED, WRONG, Exercise, exercise

BANK = entries(ROOT)
IDS = [
    cell.exercise
    for path in sources(ROOT).values()
    for cell in cells_of(path.read_text(encoding="utf-8"))[0]
    if cell.kind == "answer" and cell.exercise
]
SLOW = ("5.1", "5.2", "5.3")  # Triton's interpreter


def seeds(id: str, full: bool) -> range:
    """The seeds of a run: a verdict must not depend on them, which --full shows on 20."""
    return range(100, 120 if full else 101 if id in SLOW else 102)


def task_of(id: str) -> Exercise:
    return exercise(id)


@pytest.mark.parametrize("entry", BANK, ids=lambda entry: entry.label)
def test_every_answer_gets_its_verdict(entry: Entry, full: bool) -> None:
    for seed in seeds(entry.exercise, full):
        verdict = judge(ROOT, entry.exercise, entry.code, seed)
        if entry.right:
            assert verdict.passed, verdict
            continue
        failure = verdict.first_failure
        assert failure is not None, f"seed {seed}: the wrong answer passed"
        if entry.wrong in (CRASHED, UNSOLVED):
            assert failure.status == entry.wrong
        else:
            assert (failure.status, failure.misconception) == (WRONG, entry.wrong), failure
            told = task_of(entry.exercise).misconceptions[str(entry.wrong)]
            assert failure.message.startswith(told) and len(failure.message) > len(told) + 10
        assert verdict.earned < verdict.points


@pytest.mark.parametrize("id", IDS)
def test_the_bank_is_large_enough_and_reaches_every_misconception(id: str) -> None:
    own = [entry for entry in BANK if entry.exercise == id]
    reached = {entry.wrong for entry in own if entry.wrong}
    assert set(task_of(id).misconceptions) - reached == set(), "a check can say what no wrong answer provokes"
    assert reached - set(task_of(id).misconceptions) <= {CRASHED, UNSOLVED}, (
        "a misconception no check declares"
    )
    kinds = Counter("right" if entry.right else "wrong" for entry in own)
    assert kinds["wrong"] >= 3 and kinds["right"] >= 2
    assert len(reached & set(task_of(id).misconceptions)) >= 3


@pytest.mark.parametrize("id", IDS)
def test_the_reference_passes_and_the_stub_earns_nothing(id: str, full: bool) -> None:
    task = task_of(id)
    cells = cells_of(sources(ROOT)[f"{int(id.split('.')[0]):02}"].read_text(encoding="utf-8"))[0]
    answer = next(cell for cell in cells if cell.kind == "answer" and cell.exercise == id)
    for seed in seeds(id, full):
        assert judge(ROOT, id, answer.solved, seed).passed
    stub = judge(ROOT, id, answer.stub, 1)
    assert stub.earned == 0 and stub.first_failure is not None and stub.first_failure.status == UNSOLVED
    assert task.points > 0 and len({part.name for part in task.parts}) == len(task.parts)


def test_every_answer_of_the_bank_belongs_to_an_exercise() -> None:
    assert {entry.exercise for entry in BANK} == set(IDS)
    assert all(bool(entry.right) != bool(entry.wrong) for entry in BANK)


def test_the_bank_is_run_as_its_notebook_would() -> None:
    assert [cell.kind for cell in cells_until(ROOT, "2.1")].count("answer") == 0
