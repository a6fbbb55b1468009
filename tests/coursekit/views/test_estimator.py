"""The estimator: the article's example first, an answer for every choice, and answers that change with it."""

from __future__ import annotations

from typing import Any

import pytest

from coursekit.views.estimator import CHOICES, START, estimate
from coursekit.views.explore import controls
from coursekit.views.style import to_png


def test_it_starts_at_the_articles_example() -> None:
    picture = estimate(**START)
    assert "327,680 bytes per token" in picture.alt
    assert "2.68 GB per request, 89.6% of it wasted when it ends, 162 requests at once" in picture.alt
    assert "283 MB per request, 1.6% of it wasted when it ends, 1,536 requests at once" in picture.alt
    assert "162 requests at once with reservations, 1,536 with blocks (9.5 times)" in picture.summary


def test_a_control_changes_picture_and_words() -> None:
    widget = controls(estimate, CHOICES, START)
    *chosen, image, words = widget.children
    by_name = {control.description: control for control in chosen}
    before = (image.value, words.value)
    by_name["output tokens"].value = 1000
    assert image.value != before[0] and words.value != before[1]
    by_name["num gpus"].value = 1
    assert "do not hold 141 GB of weights" in words.value
    by_name["model"].value = "llama-3.1-8b"
    assert "requests at once" in words.value


@pytest.mark.parametrize("name", CHOICES)
def test_every_choice_has_an_answer(name: str) -> None:
    assert START[name] in CHOICES[name]
    values = list(CHOICES[name])
    for value in values if len(values) < 20 else (values[0], values[-1]):
        asked: dict[str, Any] = START | {name: value}
        picture = estimate(**asked)
        assert picture.summary.endswith(".") and picture.alt
        if name in ("num_gpus", "model"):
            assert to_png(picture.fig).startswith(b"\x89PNG")


def test_the_price_is_for_the_whole_machine() -> None:
    costs = [
        float(estimate(**START | {"price_per_gpu_hour": price}).summary.split()[-1].rstrip("."))
        for price in (2, 4)
    ]
    assert costs[1] == pytest.approx(2 * costs[0], rel=0.02)
    assert estimate(**START).summary == estimate(**START | {"price_per_gpu_hour": 2.5}).summary


def test_a_window_is_said_to_make_the_comparison_uneven() -> None:
    assert "differ in scope" in estimate(**START | {"model": "gemma-3-27b"}).summary
    assert "differ in scope" not in estimate(**START).summary
