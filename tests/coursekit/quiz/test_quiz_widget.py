"""The trainer in a notebook: every kind is asked, answered and counted; the stored page reads without a kernel."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from coursekit.quiz import progress
from coursekit.quiz.bank import Bank, Choice, Code, Number, Open, Question, Short, load_bank
from coursekit.quiz.choosing import Refused
from coursekit.quiz.progress import Progress
from coursekit.quiz.widget import Trainer, trainer

BANK = load_bank()


@pytest.fixture(autouse=True)
def own_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(progress.VARIABLE, str(tmp_path / "p.json"))
    return tmp_path / "p.json"


def one(kind: type[Question]) -> Trainer:
    """A trainer whose bank has one question of this kind."""
    question = next(question for question in BANK if isinstance(question, kind))
    return Trainer(Bank({question.id: question}, BANK.topics), Progress(), seed=1)


def press(view: Trainer) -> None:
    view.button.click()


def scores(view: Trainer) -> list[float]:
    return [record.score for record in view.progress.records]


def test_a_choice_is_told_right_or_why_not() -> None:
    view = one(Choice)
    assert view.heading.value.startswith("<b>1 of 1 · ") and view.button.description == "Answer"
    press(view)
    assert "Please give a letter from a to" in view.reply.value and not scores(view), "nothing was chosen yet"
    assert view.item is not None
    letters = {bool(why): "abcde"[i] for i, (_, why) in enumerate(view.item.options)}
    options, line = view.answer_area.children
    [right] = [button for button in options.children if button.description.startswith(letters[False])]
    line.value = f" {letters[False].upper()}"
    assert right.icon == "check", "what is typed is marked"
    line.value = "z"
    assert not any(button.icon for button in options.children)
    right.click()
    assert line.value == letters[False] and right.icon == "check"
    press(view)
    assert line.disabled and all(button.disabled for button in options.children)
    assert "✓ Right." in view.reply.value and scores(view) == [1] and view.button.description == "Result"
    press(view)
    assert "1 of 1 points." in view.reply.value and view.button.description == "Another test"
    press(view)
    assert view.item is not None
    view.field.value = next("abcde"[i] for i, (_, why) in enumerate(view.item.options) if why)
    view.field._handle_custom_msg({"event": "submit"}, [])
    assert scores(view) == [1, 0] and view.field.disabled and "The answer is <b>" in view.reply.value


def test_enter_sends_a_line_and_what_cannot_be_read_is_not_counted() -> None:
    view = one(Number)
    assert view.item is not None and view.item.numbers is not None
    for typed in ("many", "", "9e999"):
        view.field.value = typed
        view.field._handle_custom_msg({"event": "submit"}, [])
        assert view.reply.value and not scores(view)
    view.field.value = repr(view.item.numbers.answer)
    view.field._handle_custom_msg({"event": "submit"}, [])
    assert scores(view) == [1]
    assert "See notebooks/" in view.reply.value


def test_enter_waits_for_letters_that_it_has_overtaken() -> None:
    view = one(Number)
    assert view.item is not None and view.item.numbers is not None
    right = repr(view.item.numbers.answer)

    async def typed_fast() -> None:
        view.field.value = right[:-1] or "0"
        for _ in range(2):  # Enter twice is still one answer
            view.field._handle_custom_msg({"event": "submit"}, [])
        view.field.value = right
        await asyncio.sleep(0.6)

    asyncio.run(typed_fast())
    assert scores(view) == [1] and view.button.description == "Result"


def test_a_short_answer_in_other_words_can_be_claimed() -> None:
    for claimed in (True, False):
        view = one(Short)
        view.field.value = "something else"
        press(view)
        assert view.button.description == "Count" and not scores(view)
        view.points[0].value = claimed
        press(view)
        assert scores(view) == [float(claimed)]


def test_code_is_run_against_the_check() -> None:
    view = one(Code)
    assert view.item is not None
    press(view)
    assert "Nothing has been changed yet." in view.reply.value
    view.field.value = view.item.question.answer
    press(view)
    assert scores(view) == [1] and "✓ Right." in view.reply.value


def test_an_open_question_is_scored_by_its_rubric() -> None:
    view = one(Open)
    assert view.button.description == "Show a strong answer"
    press(view)
    assert len(view.points) >= 3 and view.button.description == "Count"
    view.points[0].value = view.points[1].value = True
    press(view)
    assert scores(view) == [pytest.approx(2 / len(view.points))]


def test_not_knowing_counts_as_wrong_and_only_once() -> None:
    for kind in (Choice, Open, Code):
        view = one(kind)
        view.unknown.click()
        view.unknown.click()
        assert scores(view) == [0] and view.unknown.disabled
        assert view.item is not None and "See notebooks/" in view.reply.value


def test_five_questions_and_the_result() -> None:
    view = Trainer(BANK, Progress(), seed=3)
    for number in range(1, 6):
        assert view.heading.value.startswith(f"<b>{number} of 5")
        view.unknown.click()
        press(view)
    assert "0 of 5 points." in view.reply.value and "Where you stand" in view.reply.value
    press(view)
    assert view.heading.value.startswith("<b>1 of 5")


def test_topic_and_level_can_be_changed() -> None:
    view = Trainer(BANK, Progress(), topic=2, level="2-3", seed=0)
    assert view.test is not None
    assert {q.chapter for q in view.test.choices} == {2} and {q.level for q in view.test.choices} == {2, 3}
    view.topic.value, view.level.value = "model", "5"
    assert {q.topic for q in view.test.choices} == {"model"} and {q.level for q in view.test.choices} == {5}
    few = Bank({q.id: q for q in BANK if q.level == 1}, BANK.topics)
    view = Trainer(few, Progress(), seed=0)
    view.level.value = "5"
    assert "no question of level 5" in view.reply.value
    press(view)
    view.level.value = "1"
    assert view.item is not None
    for wrong in ({"topic": "tables"}, {"level": 9}):
        with pytest.raises(Refused):
            Trainer(BANK, Progress(), **wrong)


def test_texts_are_shown_as_they_are() -> None:
    question = next(question for question in BANK if isinstance(question, Choice))
    view = one(Choice)
    evil = Progress()
    evil.notice = "<script>alert(1)</script>"
    view = Trainer(Bank({question.id: question}, BANK.topics), evil, seed=1)
    view.unknown.click()
    assert "<script>" not in view.reply.value and "&lt;script&gt;" in view.reply.value


def shown(**arguments: Any) -> list[dict[str, Any]]:
    InteractiveShell.instance()
    with capture_output() as captured:
        trainer(**arguments)
    return [output.data for output in captured.outputs]


def test_the_page_reads_without_a_kernel_and_is_the_same_for_everyone(own_progress: Path) -> None:
    first = shown()
    for _ in range(20):
        Progress(own_progress).add(progress.Record("", "1-budget", "sizing", 2, 0.0, 0.0, "test"))
    second = shown()
    for widget, folded in (first, second):
        assert widget["text/plain"].startswith(
            "[Interactive, needs a running notebook kernel: an interview test"
        )
        assert folded["text/plain"] == "5 questions to read, each with its answer folded"
        assert folded["text/markdown"].count("<details><summary>Answer</summary>") == 5
        assert folded["text/markdown"].count("**Answer.**") == 5
    assert first[1] == second[1] and first[0]["text/plain"] == second[0]["text/plain"]
    assert len(shown(shown=0)) == 1
    assert "7 questions" in shown(topic=2, level="2-4", shown=7)[1]["text/plain"]
