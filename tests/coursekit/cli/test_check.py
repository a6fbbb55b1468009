"""`check` tells a learner the points, the first mistake, its hint, and one hint more with each new attempt."""

from __future__ import annotations

from pathlib import Path

import pytest

from coursekit import ROOT
from coursekit.build.exercises import expand, sources
from coursekit.cells import hints_of
from coursekit.checks.hints import hint_for
from coursekit.cli import check as check_command
from coursekit.learner import guesses
from coursekit.learner.places import VARIABLE
from coursekit.learner.question import questions
from tests.helpers.grading import BOOK, SLOT, notebook, write


@pytest.fixture(autouse=True)
def no_hints_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_command, "OPENED", tmp_path / "state" / "hints.json")


def check(folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = check_command.main([*(arguments or ["2"]), "--folder", str(folder)])
    return code, capsys.readouterr().out


def test_the_solved_chapter_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "02_block_table.ipynb", notebook(solved=True))
    code, text = check(tmp_path, capsys)
    assert code == 0 and "25 of 25 points" in text and "Hint" not in text


def test_a_chapter_of_two_digits_is_checked_and_comes_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(sources(ROOT)) == sorted(sources(ROOT), key=int) and list(sources(ROOT))[-1] == "10"
    source = sources(ROOT)["10"]
    book = expand(source.read_text(encoding="utf-8"), solved=True)[0]
    write(tmp_path / f"{source.stem}.ipynb", dict(book))
    code, text = check(tmp_path, capsys, "10")
    assert code == 0 and all(f"✓ 10.{number}  " in text for number in (1, 2, 3, 4)), text


def test_points_the_first_mistake_and_the_next_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hints = hints_of(BOOK.cells, "2.1")
    for number, wrong in enumerate(("i", "i", "i + 0", "i + 0 + 0", "0 + i"), 1):
        write(tmp_path / "02_block_table.ipynb", notebook({"2.1": f"def slot(b, i, s):\n    return {wrong}"}))
        code, text = check(tmp_path, capsys)
        line = text.splitlines()[1]
        assert code == 1 and line.startswith("  ✗ 2.1  0 of 4  The logical block number was used")
        assert f"    Hint: {hint_for('2.1', 'logical-for-physical')}" in text
        open_now = {1: 0, 2: 0, 3: 1, 4: 2, 5: 3}[number]  # the same answer again opens nothing
        assert ("of 3:" in text.partition("2.2  ")[0]) == bool(open_now)
        assert not open_now or f"Hint {open_now} of 3: {hints[open_now - 1]}" in text
    write(tmp_path / "02_block_table.ipynb", notebook({"2.1": SLOT}))
    assert "✓ 2.1  4 of 4" in check(tmp_path, capsys)[1]


def test_another_mistake_gets_its_own_hint_and_none_gets_the_next_in_the_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hints = hints_of(BOOK.cells, "2.1")
    for wrong, said in (
        ("i", hint_for("2.1", "logical-for-physical")),
        ("b[i // s] * s", hint_for("2.1", "offset-lost")),
        ("7", hints[0]),  # the check names no mistake
        ("[][0]", hints[1]),  # nor here
        ("b[i // s] + i % s", hint_for("2.1", "block-not-scaled")),
    ):
        write(tmp_path / "02_block_table.ipynb", notebook({"2.1": f"def slot(b, i, s):\n    return {wrong}"}))
        assert said and said in check(tmp_path, capsys)[1].partition("2.2  ")[0]


def test_await_outside_of_functions_works_as_in_a_notebook(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = (
        "import asyncio\nawait asyncio.sleep(0.01)\nasync def two():\n    return 2\nassert await two() == 2\n"
    )
    write(tmp_path / "02_block_table.ipynb", notebook({"2.1": source + SLOT}))
    assert "✓ 2.1  4 of 4" in check(tmp_path, capsys)[1]


def test_a_notebook_that_cannot_be_read_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "02_block_table.ipynb", "not a notebook")
    code, text = check(tmp_path, capsys)
    assert code == 1 and "Copy the file first" in text and "git restore" not in text
    assert path.read_text(encoding="utf-8") == "not a notebook"


def test_what_cannot_be_checked_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = check(tmp_path, capsys)
    assert (
        code == 1 and "there is no such file" in text and "git restore exercises/02_block_table.ipynb" in text
    )
    assert check_command.main(["99"]) == 2
    assert "chapter 99 has no exercises" in capsys.readouterr().err


def test_the_working_copy_is_read_first_and_the_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "mine"))
    assert check_command.main(["2"]) == 1
    assert "02_block_table (exercises/02_block_table.ipynb)" in capsys.readouterr().out
    (tmp_path / "mine/exercises").mkdir(parents=True)
    write(tmp_path / "mine/exercises/02_block_table.ipynb", notebook(solved=True))
    assert check_command.main(["2"]) == 0
    assert f"02_block_table ({tmp_path}/mine/exercises/02_block_table.ipynb)" in capsys.readouterr().out


def test_predictions_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(guesses.VARIABLE, str(tmp_path / "interview.json"))
    assert check_command.predictions("99_missing") == ""
    boxes = len(questions((ROOT / "curriculum/lessons/01_fragmentation.py").read_text(encoding="utf-8")))
    for id, right in (("1-bytes", True), ("1-dashboard", False), ("0-damage", True)):
        guesses.save(id, "a guess", right)
    assert (
        check_command.predictions("01_fragmentation") == f"  Predictions: 2 of {boxes} made, 1 right at once"
    )
