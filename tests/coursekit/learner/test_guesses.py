"""Guesses are remembered, whatever is in the file; the input shows what was guessed and never the answer."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from coursekit.learner import box, guesses, predict
from coursekit.learner.question import parse
from coursekit.views import style

NUMBER = parse("1-bytes", "question: How many?\nnumber: 12\nunit: blocks")
CHOICE = parse("1-fits", "question: Fits?\nchoice: 'No'\noptions: ['Yes', 'No']\nshown: None")


@pytest.fixture(autouse=True)
def own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(guesses.VARIABLE, str(tmp_path / "state/interview.json"))
    return tmp_path / "state/predictions.json"


def test_first_last_and_tries_are_kept(own_file: Path) -> None:
    for guess, right in (("7", False), ("7", False), ("12", True), ("3", False)):
        assert guesses.save("1-bytes", guess, right) == ""
    saved = guesses.load()["1-bytes"]
    assert (saved.first, saved.last, saved.right, saved.right_first, saved.tries) == (
        "7",
        "3",
        True,
        False,
        3,
    )
    assert guesses.default_path() == own_file and [p.name for p in own_file.parent.iterdir()] == [
        own_file.name
    ]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"guesses": 3}', '{"guesses": {"a": 1, "b": {"first": 1}}}', "[" * 5000]
)
def test_any_content_of_the_file_is_survived(own_file: Path, content: str) -> None:
    own_file.parent.mkdir()
    own_file.write_text(content)
    assert guesses.load() == {}
    assert guesses.save("1-bytes", "5", False) == "" and set(guesses.load()) == {"1-bytes"}
    kept = [path.read_text() for path in own_file.parent.glob("predictions.damaged-*.json")]
    assert kept == ([content] if content in ("", "{", "[" * 5000) else [])


def test_a_file_that_cannot_be_written_is_told(own_file: Path) -> None:
    own_file.parent.write_text("a file where the folder should be")
    assert guesses.save("1-bytes", "5", False).startswith("it cannot be saved:")
    view = box.make_box(NUMBER)
    view.children[0].children[0].value = "12"
    assert "Right." in view.children[1].value and "cannot be saved" in view.children[1].value


def test_two_notebooks_at_once_lose_no_guess() -> None:
    def guess(name: str) -> None:
        for number in range(15):
            guesses.save(f"{name}-{number}", "1", True)

    threads = [threading.Thread(target=guess, args=(name,)) for name in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(guesses.load()) == 45


def test_the_input_judges_remembers_and_fills_in(own_file: Path) -> None:
    view = box.make_box(NUMBER)
    (entry, unit, button), reply = view.children[0].children, view.children[1]
    assert unit.value == "blocks"
    button.click()
    assert reply.value.startswith("Type a guess first") and not own_file.exists()
    entry.value = "<b>7"
    assert reply.value.startswith("Type a number") and not own_file.exists()
    entry.value = "7"
    assert "too low" in reply.value and "12" not in reply.value
    entry.value = "12"
    assert "Right." in reply.value
    again = box.make_box(NUMBER)
    assert (
        again.children[0].children[0].value == "12"
        and "Your last guess: <b>12</b>" in again.children[1].value
    )


def test_a_choice_offers_its_options_and_none_is_chosen() -> None:
    view = box.make_box(CHOICE)
    radio = view.children[0].children[0]
    assert list(radio.options) == ["Yes", "No"] and radio.value is None
    radio.value = "No"
    assert "Right." in view.children[1].value
    assert box.make_box(CHOICE).children[0].children[0].value == "No"
    guesses.save("1-fits", "an option of an older version", False)
    assert box.make_box(CHOICE).children[0].children[0].value is None


def test_a_page_without_a_notebook_kernel_has_one_line_whatever_was_guessed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(box, "find", lambda id: NUMBER)
    lines: list[str] = []
    monkeypatch.setattr(style, "display", lambda data, **_: lines.append(data["text/plain"]))
    for _ in range(2):
        predict("1-bytes")
        guesses.save("1-bytes", "7", False)
    assert (
        lines
        == [
            "[Interactive, needs a running notebook kernel: run this cell to type your guess, a number (blocks)]"
        ]
        * 2
    )
    assert json.loads(guesses.default_path().read_text())["version"] == 1
