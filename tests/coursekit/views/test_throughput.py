"""The views of chapter 7: the batch of a step and the serving benchmark, in pictures that say what the data say."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest

from coursekit import ROOT
from coursekit.build.pictures import PICTURES
from coursekit.views import throughput as serve_view
from coursekit.views.batch import step_picture
from coursekit.views.style import to_png
from coursekit.views.throughput import serving, step_bars
from paged_ref.attention import Batch
from paged_ref.model.batch import StepBatch

RECORDED = json.loads((ROOT / "bench/results/serve.json").read_text(encoding="utf-8"))


def row(server: str, throughput: float, workload: str = "uniform", dtype: str = "float32") -> dict[str, Any]:
    return {
        "server": server,
        "workload": workload,
        "dtype": dtype,
        "throughput": throughput,
        "spread": [0.9 * throughput, 1.1 * throughput],
    }


RESULT: dict[str, Any] = {
    "model": "tiny",
    "device": "CPU, made up",
    "threads": 3,
    "torch": "1.2",
    "transformers": "3.4",
    "ours": "fused layers",
    "rounds": 3,
    "quick": False,
    "rows": [
        row("ours", 60.0),
        row("generate", 30.0),
        row("generate_batch", 20.0),
        row("ours", 80.0, "two words"),
        row("generate", 20.0, "two words"),
        row("generate_batch", 40.0, "two words"),
    ],
    "profiles": [
        {
            "dtype": "float32",
            "how": "fused layers",
            "num_seqs": 4,
            "parts": {"matmuls": 30.0, "attention": 10.0, "bookkeeping": 2.0, "the rest": 8.0},
            "limit": 25.0,
        }
    ],
}


def drawn(axes: Any) -> Any:
    """Axes whose rectangles and lines are looked at."""
    return axes


def test_the_bars_are_the_files_figures() -> None:
    picture = serving(RESULT)
    throughput, steps = map(drawn, picture.fig.axes)
    heights = sorted(float(bar.get_height()) for bar in throughput.patches)
    assert heights == [20.0, 20.0, 30.0, 40.0, 60.0, 80.0]
    assert [tick.get_text() for tick in throughput.get_xticklabels()] == ["uniform", "two\nwords"]
    lengths = sorted(round(float(bar.get_width()), 6) for bar in steps.patches)
    assert lengths == [2.0, 8.0, 10.0, 30.0]
    assert any(list(line.get_xdata()) == [25.0, 25.0] for line in steps.lines), "the limit is drawn"


def test_the_words_name_the_machine_and_the_figures() -> None:
    picture = serving(RESULT)
    for text in (
        "CPU, made up",
        "3 threads",
        "torch 1.2",
        "transformers 3.4",
        "3 rounds, medians",
        "ours with fused layers",
    ):
        assert text in picture.alt
    assert "uniform in float32, paged_ref: 60 tokens/s" in picture.alt
    assert "takes 50 ms: matmuls 60%" in picture.alt and "matmuls alone take 25 ms" in picture.alt
    # 60 against 30, 80 against 40
    assert "float32: 2.0× to 2.0×" in picture.summary
    written = [text.get_text() for text in picture.fig.texts]
    assert any("CPU, made up" in text for text in written), "the machine stands in the picture, too"


def test_a_quick_sample_and_a_single_round_say_so() -> None:
    assert "1 round of the quick sample" in serving(RESULT | {"rounds": 1, "quick": True}).alt


def test_without_profiles_there_are_only_the_bars() -> None:
    assert len(serving(RESULT | {"profiles": []}).fig.axes) == 1


def test_every_dtype_has_a_panel_on_the_same_scale() -> None:
    more = [one | {"dtype": "bfloat16", "throughput": 3 * one["throughput"]} for one in RESULT["rows"]]
    left, right, _ = serving(RESULT | {"rows": RESULT["rows"] + more}).fig.axes
    assert (left.get_title(loc="left"), right.get_title(loc="left")) == ("float32", "bfloat16")
    assert left.get_ylim() == right.get_ylim()


def test_the_recorded_run_can_be_drawn() -> None:
    picture = serving(RECORDED)
    panels = len({one["dtype"] for one in RECORDED["rows"]})
    assert len(picture.fig.axes) == panels + bool(RECORDED["profiles"])
    first = to_png(picture.fig)
    assert first == to_png(serving(RECORDED).fig) and len(first) < 120_000


def test_what_the_view_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match="has no rows"):
        serving(RESULT | {"rows": []})
    with pytest.raises(ValueError, match="unknown server 'other'"):
        serving(RESULT | {"rows": [row("other", 1.0)]})
    strange = copy.deepcopy(RESULT["profiles"])
    strange[0]["parts"]["coffee"] = 1.0
    with pytest.raises(ValueError, match="unknown part 'coffee'"):
        step_bars(strange)
    with pytest.raises(ValueError, match="no profile"):
        step_bars([])


def test_the_step_says_what_most_of_it_is() -> None:
    picture = step_bars(RESULT["profiles"])
    assert picture.summary.startswith("Most of a decode step is matmuls;")
    assert set(serve_view.PARTS) == set(RESULT["profiles"][0]["parts"])


def test_the_readmes_picture_is_the_recorded_run() -> None:
    notebook, index = PICTURES["docs/serving.png"]
    cells = json.loads((ROOT / notebook).read_text(encoding="utf-8"))["cells"]
    shown = [
        "".join(output["data"]["text/plain"])
        for cell in cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    assert shown[index].startswith("[Picture: Bars of throughput, measured on")


def batch_of(parts: list[tuple[int, int, list[int]]], size: int) -> StepBatch:
    """A step of sequences of (tokens, computed, blocks)."""
    positions = [p for n, computed, _ in parts for p in range(computed, n)]
    slots = [blocks[p // size] * size + p % size for n, computed, blocks in parts for p in range(computed, n)]
    starts = np.cumsum([0] + [n - computed for n, computed, _ in parts])
    tables = np.zeros((len(parts), max(len(blocks) for *_, blocks in parts)), dtype=np.int32)
    for line, (*_, blocks) in zip(tables, parts, strict=True):
        line[: len(blocks)] = blocks
    return StepBatch(
        token_ids=np.zeros(len(positions), dtype=np.int32),
        positions=np.array(positions, dtype=np.int32),
        slot_mapping=np.array(slots, dtype=np.int32),
        sample_rows=(starts[1:] - 1).astype(np.int32),
        attention=Batch.of(tables, np.array([n for n, *_ in parts]), starts),
    )


def test_a_step_is_drawn_with_its_positions_slots_and_tables() -> None:
    picture = step_picture(batch_of([(10, 9, [7, 1, 4]), (3, 0, [2]), (6, 5, [5, 6])], 4), "One step", 4)
    row_axes, below = map(drawn, picture.fig.axes)
    words = [text.get_text() for text in row_axes.texts]
    assert words[:10] == ["9", "17", "0", "8", "1", "9", "2", "10", "5", "25"]
    framed = [box for box in row_axes.patches if box.get_linewidth() > 2]
    assert [round(box.get_x()) for box in framed] == [0, 3, 4]
    told = [text.get_text() for text in below.texts]
    assert told[3:9] == ["0", "0", "10", "7", "1", "4"] and "the end of the row" in told
    assert picture.summary == ("One step: 5 tokens of 3 sequences, none padded; a rectangle would have 9.")
    assert "sequence 1 computes 3 of its 3 tokens, at positions 0 to 2, in slots 8, 9, 10" in picture.alt
