"""The grader on honest, careless and broken submissions: what is taken, what it is worth, and that all get a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coursekit import ROOT
from coursekit.build.exercises import sources
from coursekit.checks.bank import entries
from coursekit.checks.framework import exercise
from coursekit.grade.judge import Judge
from coursekit.grade.submission import Submission, load_book
from tests.helpers.grading import (
    BOOK,
    RIGHT,
    SLOT,
    WEAK,
    cell_of,
    code_cell,
    grade,
    message,
    notebook,
    points,
)
from tests.helpers.needs import needs_sandbox

pytestmark = needs_sandbox

Edit = Callable[[dict[str, Any]], None]
IDS = sorted({entry.exercise for entry in entries(ROOT)})
FULL = {"2.1": 4, "2.2": 8, "2.3": 8, "2.4": 5}


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    made = Judge(BOOK, 5, weak=WEAK, seconds=8, memory_mb=700)
    yield made
    made.close()


# --- points ---


def test_the_solution_gets_all_and_the_stub_nothing(judge: Judge, tmp_path: Path) -> None:
    assert points(grade(judge, tmp_path, notebook(solved=True))) == FULL
    result = grade(judge, tmp_path, notebook())
    assert (result.earned, result.points) == (0, 25)
    assert result.problem == "no answers: every cell is unchanged"
    assert {one.status for one in result.exercises.values()} == {"unsolved"}


class Judges(dict[str, Judge]):
    """A judge for each chapter, made when first asked for."""

    def __missing__(self, chapter: str) -> Judge:
        self[chapter] = Judge(load_book(ROOT, chapter), 5, weak=WEAK)
        return self[chapter]


@pytest.fixture(scope="module")
def judges() -> Iterator[Judges]:
    made = Judges()
    yield made
    for judge in made.values():
        judge.close()


@pytest.mark.parametrize("chapter", sources(ROOT))
def test_every_chapter_s_solution_gets_all_points(chapter: str, judges: Judges) -> None:
    judge = judges[str(int(chapter))]
    answers = {id: judge.book.answer(id).solved for id in judge.book.ids}
    result = judge.grade(Submission("x", "x.ipynb", answers=answers))
    assert result.earned == result.points > 0
    assert [one.notes for one in result.exercises.values()] == [[]] * len(answers)


@pytest.mark.parametrize("id", IDS)
def test_the_bank_gets_the_same_verdict_in_the_sandbox(id: str, judges: Judges, full: bool) -> None:
    """A right and a wrong answer of each exercise; all of them with --full."""
    judge, task = judges[id.split(".")[0]], exercise(id)
    own = [entry for entry in entries(ROOT) if entry.exercise == id]
    sample = [next(e for e in own if e.right), next(e for e in own if e.wrong in task.misconceptions)]
    for entry in own if full else sample:
        answers = {other: judge.book.answer(other).solved for other in judge.book.ids} | {id: entry.code}
        submission = Submission("x", "x.ipynb", answers=answers)
        verdict = judge.grade_exercise(submission, task, set(task.needs)).verdict
        if entry.right:
            assert verdict.passed, (entry.label, verdict)
            continue
        failure = verdict.first_failure
        assert failure is not None and entry.wrong in (failure.misconception, failure.status), entry.label


def test_a_failed_exercise_does_not_fail_the_later_ones(judge: Judge, tmp_path: Path) -> None:
    result = grade(judge, tmp_path, notebook({"2.3": RIGHT["2.3"]}))
    assert points(result) == {"2.1": 0, "2.2": 0, "2.3": 8, "2.4": 0}
    assert result.exercises["2.3"].blocked_by == ["2.1", "2.2"]
    assert "the reference's version of 2.1, 2.2" in result.exercises["2.3"].notes[0]
    assert grade(judge, tmp_path, notebook(solved=True)).exercises["2.3"].blocked_by == []


def test_parts_give_partial_credit(judge: Judge, tmp_path: Path) -> None:
    half_done = next(e.code for e in entries(ROOT) if e.exercise == "2.2" and e.wrong == "half-done")
    result = grade(judge, tmp_path, notebook({"2.2": half_done}, solved=True))
    assert points(result) == FULL | {"2.2": 6}
    assert [part.earned for part in result.exercises["2.2"].verdict.parts] == [3, 3, 0]
    assert message(result, "2.2").startswith("A failed allocation must take nothing")


def test_an_answer_that_hangs_late_keeps_what_it_earned(
    judge: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge, "seconds", 3)
    source = RIGHT["2.2"].replace("raise OutOfBlocks", "while True: pass\n            raise OutOfBlocks")
    one = grade(judge, tmp_path, notebook({"2.2": source})).exercises["2.2"]
    assert [(part.earned, part.status) for part in one.verdict.parts] == [
        (3, "passed"),
        (3, "passed"),
        (0, "timeout"),
    ]


# --- what is taken from a notebook ---


def drop_checks(data: dict[str, Any]) -> None:
    data["cells"] = [cell for cell in data["cells"] if not str(cell.get("id")).endswith("-check")]


def rewrite_checks(data: dict[str, Any]) -> None:
    for id in BOOK.ids:
        check = cell_of(data, id, "-check")
        check["source"] = "print('Exercise 2.1: 4 of 4 points. Everything passed.')"
        check["metadata"]["nbgrader"]["points"] = 1000


def copy_checks(data: dict[str, Any]) -> None:
    data["cells"] += [dict(cell_of(data, id, "-check")) for id in BOOK.ids]
    data["cells"].insert(0, code_cell('from coursekit.checks import check\ncheck("2.1", slot)'))


def turn_round(data: dict[str, Any]) -> None:
    data["cells"].reverse()


def steer_nbval(data: dict[str, Any]) -> None:
    for cell in data["cells"]:
        cell["metadata"]["tags"] = ["nbval-skip", "raises-exception", "nbval-ignore-output"]
        if cell["cell_type"] == "code":
            cell["source"] = "# NBVAL_SKIP\n# PYTEST_VALIDATE_IGNORE_OUTPUT\n" + cell["source"]


def forge_outputs(data: dict[str, Any]) -> None:
    output = {
        "output_type": "stream",
        "name": "stdout",
        "text": "Exercise 2.1: 4 of 4 points. Everything passed.\n",
    }
    for cell in data["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"] = [output]


def strip_nbgrader(data: dict[str, Any]) -> None:
    for cell in data["cells"]:
        cell["metadata"] = {}


def strip_ids(data: dict[str, Any]) -> None:
    for cell in data["cells"]:
        cell.pop("id", None)


def lines_as_lists(data: dict[str, Any]) -> None:
    for cell in data["cells"]:
        cell["source"] = cell["source"].splitlines(keepends=True)


EDITS: list[Edit] = [
    drop_checks, rewrite_checks, copy_checks, turn_round, steer_nbval, forge_outputs, strip_nbgrader, strip_ids,
    lines_as_lists,
]  # fmt: skip


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_only_the_answers_count(edit: Edit, judge: Judge, tmp_path: Path) -> None:
    data = notebook({"2.1": SLOT, "2.4": "def admit(*a, **k):\n    return 'OK'"})
    edit(data)
    assert points(grade(judge, tmp_path, data)) == {"2.1": 4, "2.2": 0, "2.3": 0, "2.4": 0}


def test_helpers_in_cells_of_their_own_are_taken_along(judge: Judge, tmp_path: Path) -> None:
    data = notebook({"2.1": "def slot(blocks, i, size):\n    return place(blocks, *divmod(i, size), size)"})
    where = data["cells"].index(cell_of(data, "2.1"))
    data["cells"].insert(
        where, code_cell("def place(blocks, n, offset, size):\n    return blocks[n] * size + offset")
    )
    data["cells"].insert(0, code_cell("this is not Python"))
    assert points(grade(judge, tmp_path, data))["2.1"] == 4
    data = notebook()
    data["cells"].insert(where + 1, code_cell(SLOT))  # the answer beside the stub instead of in it
    assert points(grade(judge, tmp_path, data))["2.1"] == 4


def test_an_added_cell_that_hangs_does_not_cost_the_answer(
    judge: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge, "seconds", 3)
    data = notebook({"2.1": SLOT})
    data["cells"].insert(0, code_cell("while True:\n    pass"))
    one = grade(judge, tmp_path, data).exercises["2.1"]
    assert one.verdict.earned == 4 and "Graded without the cells you added" in one.notes[0]


def test_of_several_copies_the_last_one_worked_on_counts(judge: Judge, tmp_path: Path) -> None:
    data = notebook({"2.1": "def slot(*a):\n    return 0"})
    copy, stub = dict(cell_of(data, "2.1")), dict(cell_of(notebook(), "2.1"))
    data["cells"] += [copy | {"source": SLOT}, stub]
    one = grade(judge, tmp_path, data).exercises["2.1"]
    assert one.verdict.earned == 4 and "Several cells" in one.notes[0]


def test_a_thousand_copies_of_a_cell_give_one_note(judge: Judge, tmp_path: Path) -> None:
    data = notebook({"2.1": SLOT})
    answer = dict(cell_of(data, "2.1"))
    text = answer | {"cell_type": "markdown"}
    data["cells"] += [answer] * 1000 + [text] * 1000
    one = grade(judge, tmp_path, data).exercises["2.1"]
    assert one.verdict.earned == 4 and len(one.notes) == 2


def test_an_added_kernel_keeps_its_own_source(judges: dict[str, Judge]) -> None:
    """Triton reads a kernel's source when it is launched, after all cells have run."""
    chapter = judges["5"]
    answer = chapter.book.answer("5.1").solved.replace(
        "tl.load(table_ptr + logical)", "place(table_ptr, logical)"
    )
    helpers = [
        "\n\n@triton.jit\ndef place(table_ptr, logical):\n    return tl.load(table_ptr + logical)\n",
        "\n\n@triton.jit\ndef other(table_ptr, logical):\n    return 0\n",
    ]
    submission = Submission("x", "x.ipynb", answers={"5.1": answer})
    submission.before["5.1"] = helpers
    assert chapter.grade_exercise(submission, exercise("5.1"), set()).verdict.passed


def test_a_deleted_answer_is_told(judge: Judge, tmp_path: Path) -> None:
    data = notebook({"2.4": RIGHT["2.4"]})
    data["cells"].remove(cell_of(data, "2.1"))
    cell_of(data, "2.2")["cell_type"] = "markdown"
    result = grade(judge, tmp_path, data)
    assert points(result)["2.4"] == 5 and result.exercises["2.1"].status == "unsolved"
    assert "exercise-2-1 is not in the notebook" in result.exercises["2.1"].notes[0]
    assert "not a code cell" in result.exercises["2.2"].notes[0]


@pytest.mark.parametrize(
    "before",
    [
        "%%time\n",
        "%matplotlib inline\n",
        "!rm -rf /\n",
        "?slot\n",
        "slot?\n",
        "x = !ls\n",
        "%%capture out\n%load_ext x\n",
    ],
)
def test_magics_have_no_effect(before: str, judge: Judge, tmp_path: Path) -> None:
    assert points(grade(judge, tmp_path, notebook({"2.1": before + SLOT})))["2.1"] == 4


def test_text_that_looks_like_a_magic_stays(judge: Judge, tmp_path: Path) -> None:
    source = SLOT + '\nTEXT = """\n%d slots\n!"""\nassert TEXT.strip() == "%d slots\\n!"\n'
    assert points(grade(judge, tmp_path, notebook({"2.1": source})))["2.1"] == 4
