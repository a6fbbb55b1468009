"""The estimator's controls: every choice has an answer, and the answer changes with the choice."""

from __future__ import annotations

from typing import Any

import pytest

from coursekit.estimator import Question, estimate, estimator


def controls(widget: Any) -> dict[str, Any]:
    boxes = widget.children[0].children
    return {control.description: control for box in boxes for control in box.children}


def test_the_beginning_is_the_articles_example() -> None:
    _, words = estimate(Question())
    assert "327,680 bytes per token" in words[0]
    assert "2.68 GB per request, 89.6% of it wasted; 162 requests at once" in words[1]
    assert "283 MB per request, 1.6% of it wasted; 1536 requests at once" in words[2]
    assert words[3].startswith("9.5 times the requests at once")


def test_a_control_changes_picture_and_words() -> None:
    widget = estimator()
    _, picture, words = widget.children
    before = (picture.value, words.value)
    controls(widget)["output tokens"].value = 1000
    assert picture.value != before[0] and words.value != before[1]
    assert bytes(picture.value).startswith(b"\x89PNG") and picture.alt


def test_what_does_not_fit_is_said_and_can_be_mended() -> None:
    widget = estimator()
    ask, (_, picture, words) = controls(widget), widget.children
    ask["how many"].value = 1
    ask["GPU"].value = "l4"
    assert "do not hold 141 GB of weights" in words.value and bytes(picture.value).startswith(b"\x89PNG")
    ask["model"].value = "llama-3.1-8b"
    assert "requests at once" in words.value


@pytest.mark.parametrize("name", ["model", "GPU", "longest allowed", "block size"])
def test_every_choice_has_an_answer(name: str) -> None:
    widget = estimator()
    ask, words = controls(widget)[name], widget.children[2]
    for option in ask.options:
        ask.value = option[1] if isinstance(option, tuple) else option
        assert words.value.count("<div>") in (1, 4)


def test_the_price_is_money_for_the_whole_machine() -> None:
    costs = [estimate(Question(price=price))[1][2].split()[-1] for price in (2.0, 4.0)]
    one, two = (float(text) for text in costs)
    assert two == pytest.approx(2 * one, rel=0.01)
