"""The views of chapter 3: what they say is what is so, in the cache itself and in the softmax itself."""

from __future__ import annotations

import html
import math
import re

import numpy as np
import pytest

from coursekit.views.explore import controls
from coursekit.views.kv import kv_address, walk
from coursekit.views.mutants import mutant_table, mutate
from coursekit.views.softmax import SoftmaxStep, accumulators
from coursekit.views.style import Picture, to_png


@pytest.mark.parametrize(("token", "head"), [(0, 0), (5, 4), (11, 8), (3, 2)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_bytes_of_a_key_are_where_the_address_says(token: int, head: int, dtype: type) -> None:
    blocks, size, heads, kv_heads, d = [7, 2, 4], 4, 9, 3, 16
    cache = np.arange(9 * size * kv_heads * d).reshape(9, size, kv_heads, d).astype(dtype)
    picture = kv_address(
        blocks,
        size,
        token,
        head,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=d,
        itemsize=cache.itemsize,
    )
    first, last = (
        int(x.replace(",", "")) for x in re.findall(r"bytes ([\d,]+) to ([\d,]+)", picture.summary)[0]
    )
    key = cache[blocks[token // size], token % size, head // 3]
    assert cache.tobytes()[first : last + 1] == key.tobytes()
    assert picture.alt.endswith(
        f"read by query heads {head // 3 * 3}, {head // 3 * 3 + 1}, {head // 3 * 3 + 2}."
    )


@pytest.mark.parametrize(("token", "head"), [(8, 0), (-1, 0), (0, 4), (0, -1)])
def test_there_is_no_address_outside_the_table_and_the_model(token: int, head: int) -> None:
    with pytest.raises(IndexError, match="there is no such key"):
        kv_address([3, 1], 4, token, head, num_heads=4, num_kv_heads=4, head_dim=8, itemsize=2)


SCORES = [0.0, 1.0, -1.0, 2.0, 0.5, 4.0]
WEIGHTS = [
    (np.exp(SCORES[:end]) / np.exp(SCORES[:end]).sum()).tolist()
    for end in (4, 6)
]  # fmt: skip


def way(step: int) -> Picture:
    return walk([5, 2], 8, 4, SCORES, WEIGHTS, step)


def test_the_walk_tells_what_is_read_and_who_has_the_weight() -> None:
    assert way(0).summary == "Nothing has been read yet: 6 tokens in 2 blocks."
    assert "logical block 0 is physical block 5, tokens 0 to 3" in way(1).summary
    assert "token 3 has the largest weight, 0.64" in way(1).summary
    assert (
        "tokens 4 to 5; of the 6 tokens read so far, token 5 has the largest weight, 0.81" in way(2).summary
    )
    assert "in reading order: 5, then 2." in way(2).alt
    with pytest.raises(IndexError, match="step 3: the sequence has 2 blocks"):
        way(3)


def test_the_walk_has_an_arrow_for_each_jump_and_marks_unused_slots() -> None:
    for step, arrows in ((0, 0), (1, 0), (2, 1)):
        patches = way(step).fig.axes[0].patches
        assert [type(p).__name__ for p in patches].count("FancyArrowPatch") == arrows
        assert sum(p.get_hatch() == "xxx" for p in patches) == 2


def test_the_walk_changes_behind_its_slider() -> None:
    view = controls(way, {"step": range(3)}, {"step": 1})
    before = view.children[-2].value
    view.children[0].value = 2
    assert view.children[-2].value != before and html.unescape(view.children[-1].value) == way(2).summary


def steps(*blocks: tuple[list[float], list[float]]) -> tuple[list[SoftmaxStep], float]:
    """The states of a running softmax, and the attention over all of it, each by its definition."""
    made, seen, top = [], ([], []), -math.inf
    for scores, values in blocks:
        seen[0].extend(scores), seen[1].extend(values)
        old, top = top, max(top, *scores)
        weights = np.exp(np.array(seen[0]) - top)
        made.append(
            SoftmaxStep(
                tuple(scores), top, math.exp(old - top), float(weights.sum()), float(weights @ seen[1])
            )
        )
    return made, made[-1].acc / made[-1].total


def test_the_accumulators_are_told_and_drawn() -> None:
    made, exact = steps(([0.0, 1.0], [1.0, 2.0]), ([3.0, 0.0], [-1.0, 0.0]), ([2.0], [5.0]))
    picture = accumulators(made, exact)
    assert picture.summary.startswith("The top rises with block 1, and both sums shrink by one factor;")
    assert f"ends at {exact:.3f}, and over all blocks at once it is {exact:.3f}" in picture.summary
    assert "block 1: top 3.0, factor 0.135" in picture.alt
    total = picture.fig.axes[1]
    heights = {round(float(bar.get_height()), 3) for bar in total.patches}
    carried = made[0].total * math.exp(1 - 3)
    assert {round(carried, 3), round(made[1].total - carried, 3), round(made[0].total, 3)} <= heights


def test_falling_scores_shrink_nothing() -> None:
    made, exact = steps(([3.0], [1.0]), ([2.0], [2.0]))
    picture = accumulators(made, exact, "Falling")
    assert picture.summary.startswith("No block raises the top, and nothing shrinks;")
    assert not [bar for bar in picture.fig.axes[1].patches if bar.get_linestyle() == "--"]


OFFSET = 10


def shifted(x: int) -> int:
    """Uses a global, as a function in a notebook does."""
    return x + OFFSET


def test_a_mutant_is_the_function_with_its_text_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    assert mutate(shifted, ("x + OFFSET", "x - OFFSET"))(3) == -7
    assert mutate(shifted, ("x + OFFSET", "2 * x + OFFSET"), ("2 * x", "3 * x"))(3) == 19
    monkeypatch.setitem(shifted.__globals__, "OFFSET", 100)
    assert (shifted(3), mutate(shifted, ("x +", "x -"))(3)) == (103, -97)


@pytest.mark.parametrize(("old", "times"), [("not there", 0), ("x", 2)])
def test_a_mutation_that_changes_nothing_or_too_much_is_refused(old: str, times: int) -> None:
    with pytest.raises(ValueError, match=f"occurs {times} times in shifted"):
        mutate(shifted, (old, "y"))


def test_the_table_of_mutants_says_which_test_lets_what_pass() -> None:
    picture = mutant_table({"scale missing": [False, True], "all zeros": [True, True]}, ["easy", "hard"])
    assert picture.summary == "easy: 1 of 2 pass, hard: 0 of 2 pass."
    assert picture.alt.endswith("easy lets pass: scale missing; hard lets pass: none.")
    words = [text.get_text() for text in picture.fig.axes[0].texts]
    assert words.count("PASSES") == 1 and words.count("caught") == 3


def test_pictures_are_the_same_bytes_every_time() -> None:
    made, exact = steps(([0.0, 1.0], [1.0, 2.0]), ([3.0], [-1.0]))
    for draw in (
        lambda: kv_address([7, 2], 16, 20, 3, num_heads=9, num_kv_heads=3, head_dim=64, itemsize=2),
        lambda: way(2),
        lambda: accumulators(made, exact),
        lambda: mutant_table({"a": [True, False]}, ["easy", "hard"]),
    ):
        first = to_png(draw().fig)
        assert first == to_png(draw().fig) and len(first) < 60_000
