"""Points fit the minutes, and one slip in one place does not cost the whole exercise."""

from __future__ import annotations

import re

import pytest

from coursekit import ROOT
from coursekit.build.exercises import sources
from coursekit.checks.bank import entries, judge
from coursekit.checks.framework import WRONG, exercise

MINUTES = {
    id: int(minutes)
    for path in sources(ROOT).values()
    for id, minutes in re.findall(
        r'\[raw\] exercise="([\d.]+)"(?:\n# .*)*?\n# minutes: (\d+)', path.read_text(encoding="utf-8")
    )
}
# Wrong answers of long exercises with a slip in one function, and the parts that must still earn their points.
SLIPS = {
    ("6.2", "wrong-victim"): 4, ("6.2", "too-many"): 4, ("6.2", "prompt-only"): 7, ("6.2", "preempt-alone"): 8,
    ("7.3", "wrong-row"): 6, ("7.3", "lengths"): 2, ("7.3", "one-by-one"): 7, ("7.3", "computed-again"): 7,
    ("7.3", "done-stays"): 7, ("7.3", "blocks-kept"): 9,
}  # fmt: skip


@pytest.mark.parametrize("id", MINUTES)
def test_points_fit_the_minutes(id: str) -> None:
    assert 0.3 <= exercise(id).points / MINUTES[id] <= 0.6


def test_every_exercise_has_minutes() -> None:
    assert len(MINUTES) == sum(
        path.read_text(encoding="utf-8").count("# minutes: ") for path in sources(ROOT).values()
    )
    assert set(MINUTES) == {entry.exercise for entry in entries(ROOT)}


def test_the_grading_manual_states_the_sum() -> None:
    total = sum(exercise(id).points for id in MINUTES)
    assert f"gives all {total} points" in (ROOT / "docs/grading.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("slip", "earned"), SLIPS.items(), ids=map("-".join, SLIPS))
def test_one_slip_costs_its_own_parts(slip: tuple[str, str], earned: int) -> None:
    id, key = slip
    entry = next(entry for entry in entries(ROOT) if (entry.exercise, entry.wrong) == slip)
    verdict = judge(ROOT, id, entry.code, 100)
    assert verdict.earned == earned
    assert {part.status for part in verdict.parts if not part.earned} == {WRONG}, key
