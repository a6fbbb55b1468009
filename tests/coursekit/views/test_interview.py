"""Chapter 10's own pieces: a rubric that adds up, pictures that say their figures, faults that naive tests miss."""

from __future__ import annotations

from typing import Any

import pytest

from coursekit import ROOT
from coursekit.checks.bank import cells_until, judge
from coursekit.checks.framework import exercise
from coursekit.checks.run_cell import define
from coursekit.views import rubric
from coursekit.views.interview import block_size_choice, memory_bars, pool_pressure
from coursekit.views.style import to_png
from paged_ref.telemetry.metrics import Point

NAMES = {"10.1": "decode", "10.2": "offsets", "10.3": "merge", "10.4": "block_keys"}
NAIVE = {"10.1": "decode", "10.2": "offsets", "10.3": "merge", "10.4": "keys"}
POINTS = [(1, "asked back"), (2, "rounded up"), (3, "named | the limit")]


@pytest.mark.parametrize("id", NAMES)
def test_what_is_delivered_passes_its_naive_test_and_earns_nothing(id: str) -> None:
    namespace: dict[str, Any] = {}
    for number, cell in enumerate(cells_until(ROOT, id)):
        define(cell.solved, f"<cell {number}>", namespace)
    assert namespace[f"naive_test_of_{NAIVE[id]}"](namespace[f"broken_{NAMES[id]}"])
    for seed in range(20):
        verdict = judge(ROOT, id, f"{NAMES[id]} = broken_{NAMES[id]}", seed)
        assert verdict.earned == 0
        assert {part.misconception for part in verdict.parts} == {"unchanged"}
    assert exercise(id).answers == (NAMES[id],)


def test_a_rubric_adds_up_what_is_ticked() -> None:
    box = rubric.boxes(POINTS)
    *ticks, said = box.children
    assert (
        "0 of 6 points: tick the points" in said.value
        and [tick.description for tick in ticks][1] == "rounded up (2)"
    )
    ticks[0].value = ticks[2].value = True
    assert "4 of 6 points: sound" in said.value
    ticks[1].value = True
    assert "6 of 6 points: strong" in said.value
    ticks[2].value = False
    assert "3 of 6 points" in said.value


def test_a_rubric_is_a_table_without_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, str]] = []
    monkeypatch.setattr(rubric, "display", lambda data, **_: shown.append(data))
    monkeypatch.setattr(rubric, "display_widget", lambda widget, text: shown.append({"text": text}))
    rubric.rubric(POINTS)
    table = shown[0]["text/markdown"].splitlines()
    assert table[0] == "| points of 6 | your answer … |" and table[2] == "| 1 | asked back |"
    assert table[4] == r"| 3 | named \| the limit |"
    assert "sum" in shown[1]["text"]


@pytest.mark.parametrize("points", [[], [(0, "nothing")], [(2, "good"), (-1, "bad")]])
def test_a_rubric_refuses_points_that_are_worth_nothing(points: list[tuple[int, str]]) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        rubric.rubric(points)


def test_the_memory_bars_say_what_they_draw() -> None:
    bars = {"reserve": {"weights": 141.0, "empty": 220.0}, "blocks": {"weights": 141.0, "empty": 2.4}}
    picture = memory_bars(bars, 288, "On four")
    assert picture.summary == "Needed: reserve 361 GB, blocks 143 GB; available: 288 GB."
    assert "blocks: weights 141 GB, empty 2 GB" in picture.alt
    assert to_png(picture.fig).startswith(b"\x89PNG")


def test_the_pool_s_pressure_counts_until_the_end_that_is_shown() -> None:
    def history(rate: int) -> list[Point]:
        return [Point(float(s), s, 90, 10, 0, 0, 5, 2, rate * s) for s in range(0, 50, 5)]

    picture = pool_pressure({"none": history(3), "5 %": history(1)}, 100, until=20)
    assert picture.summary == "Preemptions in the first 20 seconds: none: 60, 5 %: 20."


def test_the_choice_of_a_block_size_names_the_flat_part() -> None:
    picture = block_size_choice([1, 8, 16, 64], {"tail": [0, 0.01, 0.02, 0.07]}, [0.6, 0.985, 1.0, 0.9], 16)
    assert picture.summary == "Between 8 and 16 tokens per block the throughput is within 2 % of the best."
    assert "tail: 1: 0.0%, 8: 1.0%, 16: 2.0%, 64: 7.0%" in picture.alt
