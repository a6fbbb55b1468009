"""The pictures of chapter 5: what they count is what was loaded, and their words say what they draw."""

from __future__ import annotations

import numpy as np
import pytest

from coursekit.kernels.lab import Access
from coursekit.views import kernel as kernel_view
from coursekit.views.kernel import Loads, access_map, count, load_bars, roofline, slowdown, tokens_read
from coursekit.views.style import to_png

HEAD_DIM, BLOCK_NUMBERS = 4, 16  # blocks of 4 tokens, one KV head


def load(program: tuple[int, int, int], name: str, *tokens: int, kind: str = "load") -> Access:
    offsets = np.concatenate([np.arange(t * HEAD_DIM, (t + 1) * HEAD_DIM) for t in tokens])
    return Access(program, name, offsets, kind)


@pytest.fixture
def found() -> list[Access]:
    """Sequence A reads 5 tokens from blocks 1 and 0, B reads 2 from block 3, each in two programs."""
    accesses = []
    for head in range(2):
        for seq, tiles in enumerate([[(4, 5, 6, 7), (0,)], [(12, 13)]]):
            for tile in tiles:
                accesses.append(Access((seq, head, 0), "tables_ptr", np.array([seq]), "load"))
                accesses += [load((seq, head, 0), name, *tile) for name in ("k_ptr", "v_ptr")]
            accesses.append(load((seq, head, 0), "out_ptr", 0, kind="store"))
    return accesses


def test_loads_are_counted(found: list[Access]) -> None:
    assert count(found, number_bytes=2) == Loads(cache=2 * 7 * 2 * HEAD_DIM * 2, entries=6, steps=2)
    assert count([], number_bytes=2) == Loads(0, 0, 0)


def test_who_reads_which_block(found: list[Access]) -> None:
    reads = tokens_read(found, 4, BLOCK_NUMBERS, HEAD_DIM)
    assert {name: row.tolist() for name, row in reads.items()} == {
        "A, 0": [1, 4, 0, 0], "B, 0": [0, 0, 0, 2], "A, 1": [1, 4, 0, 0], "B, 1": [0, 0, 0, 2],
    }  # fmt: skip
    picture = access_map("A test", reads, [[1, 0], [3]], "sequence, head")
    assert "4 programs and 4 blocks" in picture.alt and "reads from 1 to 2 blocks" in picture.alt
    assert "each block in use is read by 2 programs, the other 1 by none" in picture.alt
    texts = [text.get_text() for text in picture.fig.axes[0].texts]
    assert sorted(texts) == ["1", "1", "2", "2", "4", "4"]
    labels = [label.get_text() for label in picture.fig.axes[0].get_xticklabels()]
    assert labels == ["0\nA", "1\nA", "2\n–", "3\nB"]
    assert to_png(picture.fig) == to_png(picture.fig)


def test_splits_have_their_own_rows(found: list[Access]) -> None:
    split = [load((0, 0, 0), "k_ptr", 4), load((0, 0, 1), "k_ptr", 0)]
    assert list(tokens_read(split, 4, BLOCK_NUMBERS, HEAD_DIM)) == ["A, 0, 0", "A, 0, 1"]


def test_bars_say_their_numbers() -> None:
    picture = load_bars({"first": Loads(300, 9, 75), "last": Loads(100, 9, 2)}, fewest=100)
    assert "first: 3.00×, 75 rounds; last: 1.00×, 2 rounds" in picture.alt
    assert picture.summary.startswith("From “first” to “last”: loads fall from 3.00× to 1.00×")
    labels = [text.get_text() for axes in picture.fig.axes for text in axes.texts]
    assert labels == ["3.00×", "1.00×", "75", "2"]


def test_the_roof_is_the_lower_of_two() -> None:
    points = {"decode": (1.0, 0.5), "prefill": (1000.0, None)}
    picture = roofline("A device", peak=100e12, bandwidth=1e12, points=points)
    assert "meet at 100 operations per byte" in picture.alt
    assert (
        "decode: 1 operations per byte, limited by memory, roof 1 TFLOP/s, of which it reaches 50%"
        in picture.alt
    )
    assert "prefill: 1e+03 operations per byte, limited by arithmetic, roof 100 TFLOP/s" in picture.alt
    drawn = [line.get_xydata()[0].tolist() for line in picture.fig.axes[0].lines if line.get_marker() in "os"]
    assert drawn == [[1.0, 0.5], [1000.0, 100.0]]
    assert "Memory-bound here: decode." in picture.summary
    everything = roofline("A", 1e9, 1e9, {"prefill": (50.0, None)}, unit="GFLOP/s")
    assert "none of them" in everything.summary and "1 GFLOP/s" in everything.alt


def test_slowdown_says_every_point() -> None:
    picture = slowdown({"here": {1: 3.4, 16: 1.2}, "there": {1: 1.59, 16: 1.01}}, "A table")
    assert "here: 1 → 3.40×, 16 → 1.20×; there: 1 → 1.59×, 16 → 1.01×" in picture.alt
    assert "here: 1.20× with blocks of 16" in picture.summary
    assert [line.get_label() for line in picture.fig.axes[0].lines][:2] == ["here", "there"]


def test_the_lesson_s_names_for_the_caches() -> None:
    assert kernel_view.CACHES == ("k_ptr", "v_ptr")
