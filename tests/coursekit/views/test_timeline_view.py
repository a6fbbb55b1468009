"""The timeline: each request's box in each step is what the scheduler did, in the picture as in the words."""

from __future__ import annotations

from typing import Any

import ipywidgets
import pytest

from coursekit.views.explore import controls
from coursekit.views.style import to_png
from coursekit.views.timeline import KINDS, Timeline
from tests.helpers.timelines import ARRIVALS, tight


def kinds(timeline: Timeline, request: int) -> list[str]:
    return [m.boxes[request].kind if request in m.boxes else "" for m in timeline.moments]


@pytest.mark.parametrize("host_blocks", [0, 9])
def test_every_token_is_in_a_box_and_every_kind_is_what_happened(host_blocks: int) -> None:
    timeline = tight(host_blocks)
    assert [request.request_id for request in timeline.requests] == [0, 1, 2, 3, 4]
    for number, (_, prompt, new) in enumerate(ARRIVALS):
        assert len(timeline.tokens[number]) == new
        boxes = [m.boxes[number] for m in timeline.moments if number in m.boxes]
        fresh = sum(box.tokens for box in boxes if box.kind != "again")
        assert fresh == prompt + new - 1 - sum(box.kind == "again" for box in boxes)
    assert timeline.preemptions == [(7, 2), (18, 4)]
    away = kinds(timeline, 2)[6:12]
    if host_blocks:
        assert away == ["preempted", "swapped", "swapped", "swapped", "back", "decode"]
    else:
        assert away == ["preempted", "waiting", "waiting", "waiting", "again", "decode"]
        assert timeline.moments[10].boxes[2].tokens == 9  # five of the prompt, four that it had made


def test_a_chunked_prompt_is_a_prefill_in_both_steps() -> None:
    timeline = tight()
    assert [(m.boxes[1].kind, m.boxes[1].tokens) for m in timeline.moments[:3]] == [
        ("prefill", 6),
        ("prefill", 3),
        ("decode", 1),
    ]
    # The last token of D's prompt is a chunk of one token, and still no decode.
    assert [(m.boxes[3].kind, m.boxes[3].tokens) for m in timeline.moments[14:16]] == [
        ("prefill", 11),
        ("prefill", 1),
    ]


def test_gaps_are_in_the_seconds_of_the_steps() -> None:
    timeline = tight()
    assert timeline.gaps(0) == [0.5] * 13
    assert sorted(timeline.gaps(2))[-2:] == [0.5, 2.5]  # preempted for five steps
    assert timeline.tokens[3][0] == 8.0


def test_a_step_is_told_in_words() -> None:
    timeline = tight()
    assert timeline.words(1) == "Step 1: A prefills 6 tokens; B prefills 6 tokens; 5 of 9 blocks held"
    assert timeline.words(7) == "Step 7: A, B decode; C is preempted; D, E wait; 7 of 9 blocks held"
    assert timeline.words(11) == "Step 11: A decodes; C recomputes 9 tokens; D, E wait; 7 of 9 blocks held"
    assert "C waits, its blocks on the host" in tight(9).words(8)
    assert "C is swapped in and decodes" in tight(9).words(11)


def test_the_picture_has_a_box_and_a_legend_entry_for_all_that_happened() -> None:
    for timeline in (tight(), tight(9)):
        picture = timeline.picture()
        present = {box.kind for m in timeline.moments for box in m.boxes.values()}
        names = [text.get_text() for text in picture.fig.legends[0].get_texts()]
        assert names == [label for kind, (_, _, label) in KINDS.items() if kind in present]
        boxes = [box for m in timeline.moments for box in m.boxes.values()]
        lines = sum(box.kind in ("waiting", "swapped") for box in boxes)
        above = picture.fig.axes[0]
        assert len(above.patches) == len(boxes) - lines and len(above.lines) == lines
        assert [text.get_text() for text in above.texts].count("×") == 2
        assert picture.summary.endswith("preempted: C in step 7, E in step 18.")
    assert (
        "C: prefill 3, decode 4 to 6, preempted 7, swapped 8 to 10, back 11, decode 12 to 18" in picture.alt
    )


def test_one_step_framed_differs_in_frame_and_summary_alone() -> None:
    timeline = tight()
    whole, framed = timeline.picture(), timeline.picture(7)
    assert whole.alt == framed.alt and framed.summary == f"{timeline.words(7)}."
    added = [len(b.patches) - len(a.patches) for a, b in zip(whole.fig.axes, framed.fig.axes, strict=True)]
    assert added == [1, 1]
    assert to_png(framed.fig) == to_png(timeline.picture(7).fig) != to_png(whole.fig)


def test_the_slider_begins_with_the_stored_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, Any]] = []
    monkeypatch.setattr("coursekit.views.style.display", lambda data, raw, metadata=None: shown.append(data))
    timeline = tight()
    timeline.explore(start=7)
    assert shown[1]["text/plain"] == f"{timeline.words(7)}."
    assert "a slider over the 24 steps" in shown[-1]["text/plain"]
    view = controls(timeline.picture, {"step": range(1, 25)}, {"step": 7})
    slider = view.children[0]
    assert isinstance(slider, ipywidgets.IntSlider) and slider.value == 7
    slider.value = 11
    assert view.children[-1].value == f"{timeline.words(11)}."
