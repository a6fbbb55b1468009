"""The views of pools and tables: what they say is what is so, and static and interactive are one thing."""

from __future__ import annotations

import html
import re
from typing import Any

import ipywidgets
import pytest

from coursekit.views import pool as pool_view
from coursekit.views import table as table_view
from coursekit.views import waste as waste_view
from coursekit.views.explore import controls, explore, first_values
from coursekit.views.memory_map import Snapshot, step_slider, take_snapshot
from coursekit.views.style import Picture, figure, to_png
from paged_ref import BlockPool, BlockTable


@pytest.fixture
def busy() -> Snapshot:
    """A (11 tokens) and C (11, forked from A after 8) share two blocks; B has 6; one free block is cached."""
    pool = BlockPool(16, 4, enable_prefix_caching=True)
    pool.free([*(wanted := [7, 1, 12, 9, 4, 11, 3]), *sorted(set(pool.allocate(16)) - set(wanted))])
    tables = {0: BlockTable(pool), 1: BlockTable(pool)}
    tables[0].append(8), tables[1].append(6), tables[0].append(3)
    tables[2] = tables[0].fork(8)
    tables[2].append(3)
    gone = BlockTable(pool)
    gone.append(4)
    assert pool.prefix_cache is not None
    pool.prefix_cache.publish(None, (1, 2, 3, 4), None, gone.blocks[0])
    gone.release()
    pool.check()
    return take_snapshot(pool, tables)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What was displayed, by anything in `coursekit.views.style`."""
    outputs: list[dict[str, Any]] = []
    monkeypatch.setattr(
        "coursekit.views.style.display", lambda data, raw, metadata=None: outputs.append(data)
    )
    return outputs


def words_of(view: ipywidgets.VBox) -> str:
    return html.unescape(view.children[-1].value)


def alt_of(view: ipywidgets.VBox) -> str:
    return html.unescape(re.search(r'alt="([^"]*)"', view.children[-2].value)[1])  # type: ignore[index]


def test_a_snapshot_knows_holders_lengths_and_cached_blocks(busy: Snapshot) -> None:
    assert busy.tables == {0: (7, 1, 4), 1: (12, 9), 2: (7, 1, 11)}
    assert busy.lengths == {0: 11, 1: 6, 2: 11}
    assert busy.holders_of(7) == [(0, 0), (2, 0)]
    assert busy.cached.nonzero()[0].tolist() == [3]
    assert (busy.num_written, busy.num_held) == (8 + 3 + 6 + 3, 6 * 4)


def test_a_block_is_told_in_words(busy: Snapshot) -> None:
    assert busy.block_words(1) == (
        "Block 1 (slots 4 to 7): shared by 2: held by A as its logical block 1 and C as its logical block 1; "
        "4 of 4 slots hold a token"
    )
    assert busy.block_words(9).endswith("held by B as its logical block 1; 2 of 4 slots hold a token")
    assert busy.block_words(3).endswith("not held, but the prefix cache can still find it")
    assert busy.block_words(0) == "Block 0 (slots 0 to 3): free"


def test_the_map_says_who_holds_what(busy: Snapshot) -> None:
    picture = pool_view.pool_map(busy)
    assert "A holds blocks 7, 1, 4 for 11 tokens" in picture.alt
    assert "shared: blocks 1, 7; free but still in the prefix cache: block 3" in picture.alt
    assert "20 of 64 slots hold a token" in picture.summary
    assert pool_view.pool_map(busy, selected=9).summary == f"{busy.block_words(9)}."
    labels = [text.get_text() for text in picture.fig.axes[0].texts]
    assert labels.count("A+C") == 2 and labels.count("B") == 2
    names = [text.get_text() for text in picture.fig.legends[0].get_texts()]
    assert names == ["holds a token", "held, empty", "free", "shared", "free, still cached"]


def test_the_map_of_an_empty_and_of_a_full_pool() -> None:
    pool = BlockPool(3, 4)
    empty = pool_view.pool_map(take_snapshot(pool, {}))
    assert "free: blocks 0, 1, 2" in empty.alt and len(empty.fig.legends[0].get_texts()) == 3
    table = BlockTable(pool)
    table.append(12)
    assert "no block is free" in pool_view.pool_map(take_snapshot(pool, {0: table})).alt


def test_every_block_has_a_button_that_tells_its_holder(busy: Snapshot) -> None:
    view = pool_view.block_buttons(busy, selected=7)
    buttons = view.children[0].children
    assert [b.description for b in buttons[:4]] == ["0: free", "1: A+C", "2: free", "3: free"]
    assert words_of(view) == f"{busy.block_words(7)}."
    before = view.children[-2].value
    buttons[9].click()
    assert words_of(view) == f"{busy.block_words(9)}." and view.children[-2].value != before
    assert all(b.tooltip == busy.block_words(i) for i, b in enumerate(buttons))


def test_a_history_keeps_each_moment(shown: list[dict[str, Any]]) -> None:
    pool = BlockPool(4, 4)
    tables = {0: BlockTable(pool)}
    history = pool_view.History(pool, tables)
    tables[0].append(5)
    history.note("A gets 5 tokens")
    tables.pop(0).release()
    history.note("A is done")
    assert [s.num_written for s in history.snapshots] == [0, 5, 0]
    assert history.picture(1).summary.startswith("After step 1 (A gets 5 tokens): 5 of 16 slots hold a token")
    history.explore(start=1)
    assert shown[0]["text/plain"] == f"[Picture: {history.picture(1).alt}]"
    assert "a slider over the 3 steps" in shown[-1]["text/plain"]


def test_tables_are_arrows_and_words(busy: Snapshot) -> None:
    picture = table_view.draw_tables(busy)
    arrows = [p for p in picture.fig.axes[0].patches if type(p).__name__ == "FancyArrowPatch"]
    assert len(arrows) == 8
    assert (
        "C (11 tokens): logical 0 to physical 7, logical 1 to physical 1, logical 2 to physical 11"
        in picture.alt
    )
    assert picture.summary.startswith("8 table entries; 5 of the 5 steps")


def test_of_a_large_pool_only_the_named_blocks_are_drawn() -> None:
    pool = BlockPool(1024, 16)
    pool.allocate(1024)
    pool.free([731, 12])
    table = BlockTable(pool)
    table.append(20)
    labels = [t.get_text() for t in table_view.draw_tables(take_snapshot(pool, {0: table})).fig.axes[0].texts]
    assert labels.count("731") == labels.count("12") == 1 and labels.count("…") == 1


@pytest.mark.parametrize("block_size", [1, 4, 16, 32])
def test_the_address_is_the_tables_own(block_size: int) -> None:
    pool = BlockPool(64, block_size)
    pool.free(list(reversed(pool.allocate(64))))
    table = BlockTable(pool)
    table.append(38)
    for token in (0, 15, 16, 37):
        picture = table_view.address(table.blocks, block_size, token, bytes_per_token=8, num_tokens=38)
        slot = table.slot(token)
        assert f"slot {slot}, bytes {slot * 8:,} to {slot * 8 + 7:,}" in picture.summary
    with pytest.raises(IndexError, match="token 38 has no slot"):
        table_view.address(table.blocks, block_size, 38, num_tokens=38)


def test_waste_bars_are_shares_of_each_bar() -> None:
    picture = waste_view.waste_bars(
        {"reserved": {"tokens": 1, "reserved": 3}, "paged": {"tokens": 9, "internal": 1}}, "Waste"
    )
    assert picture.summary == "Fraction that holds tokens: reserved 25.0%, paged 90.0%."
    assert "reserved: tokens 25.0%, reserved 75.0% of 4 slots" in picture.alt
    drawn = {round(float(bar.get_width()), 3) for bar in picture.fig.axes[0].patches}
    assert {0.25, 0.75, 0.9, 0.1} <= drawn


@pytest.mark.parametrize(
    ("bars", "message"),
    [({"a": {"lost": 1.0}}, "part 'lost'"), ({"a": {"tokens": -1.0}}, "0 or more"), ({"a": {}}, "not all 0")],
)
def test_waste_bars_refuse_nonsense(bars: dict[str, dict[str, float]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        waste_view.waste_bars(bars, "Waste")


def test_growth_and_the_curve_say_what_they_draw() -> None:
    picture = waste_view.growth(range(3, 10), 4)
    assert picture.summary.startswith("A block is allocated with token 5 and 9;")
    assert [t.get_text() for t in picture.fig.axes[0].texts] == ["a block is allocated"] * 2
    names = [text.get_text() for text in picture.fig.legends[0].get_texts()]
    assert names == ["holds a token", "the newest token", "held, empty"]
    curve = waste_view.waste_curve("trace", [8, 16, 32], [0.01, 0.03, 0.06], [40, 20, 10], 0.04)
    labels = [[text.get_text() for text in axes.texts] for axes in curve.fig.axes]
    assert labels == [["limit: 4%", "chosen: 16"], ["chosen: 16"]]
    assert curve.summary == (
        "trace: blocks of 16 waste 3.0%, with 20 look-ups on average; blocks of 32 would waste 6.0%."
    )


def numbered(step: int, colour: str = "blue") -> Picture:
    fig, axes = figure(width=2, height=1)
    axes.bar([0], [step])
    return Picture(fig, alt=f'step {step} in "{colour}"', summary=f"{step} < 10, {colour}")


def test_what_is_stored_is_what_the_controls_begin_with(shown: list[dict[str, Any]]) -> None:
    explore(numbered, "a slider", start={"step": 2}, step=range(5), colour=["blue", "red"])
    assert shown[0]["text/plain"] == '[Picture: step 2 in "blue"]'
    assert shown[-1]["text/plain"].endswith(
        "a slider; the picture above is its state at step = 2, colour = blue]"
    )
    view = controls(numbered, {"step": range(5), "colour": ["blue", "red"]}, {"step": 2})
    assert (alt_of(view), words_of(view)) == ('step 2 in "blue"', "2 < 10, blue")


def test_controls_change_picture_alt_text_and_words() -> None:
    view = controls(
        numbered,
        {
            "step": range(5),
            "colour": ["blue", "red"],
        },
        None,
    )
    slider, choice = view.children[:2]
    assert isinstance(slider, ipywidgets.IntSlider) and isinstance(choice, ipywidgets.Dropdown)
    before = view.children[-2].value
    slider.value = 3
    assert alt_of(view) == 'step 3 in "blue"' and view.children[-2].value != before
    choice.value = "red"
    assert words_of(view) == "3 < 10, red"
    sizes = controls(lambda size: numbered(size), {"size": [4, 8, 16]}).children[0]
    assert isinstance(sizes, ipywidgets.SelectionSlider) and sizes.options == (4, 8, 16)


@pytest.mark.parametrize(
    ("values", "start", "message"),
    [
        ({"step": range(0)}, {}, "step has no values"),
        ({"step": range(3)}, {"step": 3}, "step = 3 is not one of its values"),
        ({"step": range(3)}, {"size": 1}, "start names size"),
    ],
)
def test_a_start_that_is_not_offered_is_refused(values: Any, start: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        first_values(values, start)


def test_the_step_slider_counts_from_one() -> None:
    view = step_slider(lambda step: (numbered(step).fig, f"state {step}"), num_steps=4, start=2)
    assert (view.children[0].value, words_of(view)) == (3, "state 2")
    view.children[0].value = 1
    assert words_of(view) == "state 0"


def test_pictures_are_the_same_bytes_every_time(busy: Snapshot) -> None:
    for draw in (
        lambda: pool_view.pool_map(busy, selected=3),
        lambda: table_view.draw_tables(busy),
        lambda: table_view.address([731, 12], 16, 20),
        lambda: waste_view.growth(range(3, 6), 4),
    ):
        first = to_png(draw().fig)
        assert first == to_png(draw().fig) and len(first) < 40_000
