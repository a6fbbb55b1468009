"""A learner's answer stands beside the course's; without one, a sentence says where it is expected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coursekit.learner import compare
from coursekit.learner.comparison import comparison
from coursekit.learner.places import VARIABLE
from coursekit.views import style


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(VARIABLE, raising=False)
    solved = "def f(x):\n    ### BEGIN SOLUTION\n    return x < 1\n    ### END SOLUTION\n"
    put(tmp_path / "solutions/02_x.ipynb", solved)
    put(tmp_path / "exercises/02_x.ipynb", "def f(x):\n    raise NotImplementedError('exercise 2.1')\n")
    return tmp_path


def put(path: Path, source: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cell = {"cell_type": "code", "id": "exercise-2-1", "source": source.splitlines(keepends=True)}
    path.write_text(json.dumps({"cells": [{"cell_type": "markdown"}, cell]}), encoding="utf-8")


def test_the_copy_is_read_before_the_original(root: Path) -> None:
    assert "not written yet in exercises/02_x.ipynb" in comparison("2.1", root)
    put(root / "work/exercises/02_x.ipynb", "def f(x):\n    y = x\n    return y < 1\n")
    both = comparison("2.1", root)
    assert "<b>Yours</b>, 3 lines" in both and "return y &lt; 1" in both
    assert "<b>The course's</b>, 2 lines" in both and "SOLUTION" not in both


@pytest.mark.parametrize("content", ["", "[]", '{"cells": 3}', '{"cells": [3]}'])
def test_a_damaged_notebook_is_no_answer(root: Path, content: str) -> None:
    (root / "work/exercises").mkdir(parents=True)
    (root / "work/exercises/02_x.ipynb").write_text(content)
    assert "not written yet in work/exercises/02_x.ipynb" in comparison("2.1", root)


def test_an_unknown_exercise_is_refused(root: Path) -> None:
    with pytest.raises(KeyError, match="no solution of exercise"):
        comparison("2.9", root)


def test_a_course_without_its_solutions_says_so(root: Path) -> None:
    assert comparison("9.1", root) == "The solutions of chapter 9 are not in this copy of the course."


def test_a_stored_page_shows_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, str]] = []
    monkeypatch.setattr(style, "display", lambda data, **_: shown.append(data))
    compare("1.1")
    assert shown[0]["text/plain"].endswith("your saved answer to exercise 1.1 beside the course's]")
