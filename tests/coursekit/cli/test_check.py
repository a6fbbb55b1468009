"""`check` tells a learner the points, the first thing that is wrong, and one hint more with each new attempt."""

from __future__ import annotations

from pathlib import Path

import pytest

from coursekit import ROOT
from coursekit.build.exercises import expand, sources
from coursekit.cells import hints_of
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
        open_now = {1: 1, 2: 1, 3: 2, 4: 3, 5: 3}[number]  # the same answer again opens nothing
        assert f"Hint {open_now} of 3: {hints[open_now - 1]}" in text
    write(tmp_path / "02_block_table.ipynb", notebook({"2.1": SLOT}))
    assert "✓ 2.1  4 of 4" in check(tmp_path, capsys)[1]


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
