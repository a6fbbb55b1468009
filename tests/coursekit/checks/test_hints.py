"""Every mistake that a check can name has a hint that answers it, and no hint is left without a mistake."""

from __future__ import annotations

import pytest

from coursekit import ROOT
from coursekit.build.exercises import sources
from coursekit.checks import report
from coursekit.checks.bank import entries, judge
from coursekit.checks.framework import exercise
from coursekit.checks.hints import COMMON, hint_for, hints
from coursekit.grade.submission import load_book

IDS = [id for chapter in sources(ROOT) for id in load_book(ROOT, chapter).ids]


@pytest.mark.parametrize("id", IDS)
def test_every_named_mistake_has_its_own_hint(id: str) -> None:
    named = [key for key in exercise(id).misconceptions if not key.startswith("other-")]
    missing = [key for key in named if not hint_for(id, key)]
    assert missing == []
    texts = [hint_for(id, key) for key in named]
    assert all(20 < len(text) < 240 and text[-1] in ".?)" for text in texts)
    assert set(hints()[id]) <= set(named), "a hint for a mistake that the check cannot name"
    answer = load_book(ROOT, id.split(".")[0]).answer(id).solved
    lines = {line.strip() for line in answer.splitlines() if len(line.strip()) > 30}
    assert not any(line in text for line in lines for text in texts), "a hint contains a line of the solution"


def test_only_exercises_have_hints() -> None:
    assert set(hints()) == {*IDS, COMMON}
    assert hint_for("2.1", None) == hint_for("2.1", "other-slot") == ""


def test_a_failed_check_shows_the_hint_of_the_first_mistake() -> None:
    wrong = next(entry for entry in entries(ROOT) if entry.exercise == "2.1" and entry.wrong == "swapped")
    told = report(judge(ROOT, "2.1", wrong.code, 100))
    assert told.splitlines()[-1] == f"  Hint: {hint_for('2.1', 'swapped')}"
