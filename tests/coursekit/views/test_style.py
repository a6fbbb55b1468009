"""Pictures and widgets carry their words, and a picture is the same bytes every time."""

from __future__ import annotations

import io
import subprocess
import sys
from itertools import pairwise
from typing import Any

import ipywidgets
import matplotlib.image
import pytest

from coursekit import ROOT
from coursekit.views.style import (
    INK,
    PALETTE,
    PANEL,
    display_figure,
    display_widget,
    figure,
    label_bar,
    to_png,
)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict[str, Any], Any]]:
    """What was displayed: the data by kind, and the metadata."""
    outputs: list[tuple[dict[str, Any], Any]] = []
    record = lambda data, raw, metadata=None: outputs.append((data, metadata))  # noqa: E731
    monkeypatch.setattr("coursekit.views.style.display", record)
    return outputs


def drawn() -> Any:
    fig, axes = figure(width=4, height=2)
    axes.bar(["used", "free"], [3, 1], color=PALETTE[:2])
    label_bar(axes, 0, 1.5, "3 GB")
    return fig


def luminance(colour: str) -> float:
    """Relative luminance of #RRGGBB (WCAG 2)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_a_picture_is_the_same_bytes_every_time_and_small() -> None:
    fig = drawn()
    first = to_png(fig)
    assert first == to_png(fig) == to_png(drawn())
    assert b"Software" not in first and b"matplotlib" not in first.lower()
    assert len(first) < 40_000


def test_a_font_that_is_missing_prints_nothing_into_the_cell() -> None:
    """In a fresh process, where matplotlib's logger has no handlers of pytest's: its messages go to stderr."""
    code = """
from matplotlib import font_manager
from coursekit.views.style import STYLE, figure, to_png
STYLE["font.family"] = "No Such Font"
fig, axes = figure(width=2, height=1)
axes.set_title("a title")
to_png(fig)
print(font_manager.fontManager.findfont("No Such Font").rpartition("DejaVuSans")[1])
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("DejaVuSans\n", "", 0)


def test_a_picture_is_shown_with_its_words(shown: Any) -> None:
    display_figure(drawn(), alt="Two bars: used 3 GB, free 1 GB.", summary="Most is <used>.")
    (picture, metadata), (words, _) = shown
    assert metadata["image/png"] == {
        "alt": "Two bars: used 3 GB, free 1 GB.",
        "width": 384,
        "height": 192,
    }
    assert picture["text/plain"] == "[Picture: Two bars: used 3 GB, free 1 GB.]"
    assert words["text/plain"] == "Most is <used>."
    assert "<summary>Most is &lt;used&gt;.</summary>" in words["text/markdown"]
    assert "Two bars: used 3 GB" in words["text/markdown"]


@pytest.mark.parametrize(("alt", "summary"), [("", "a"), ("a", " ")])
def test_a_picture_without_words_is_refused(shown: Any, alt: str, summary: str) -> None:
    with pytest.raises(ValueError, match="is empty"):
        display_figure(drawn(), alt=alt, summary=summary)
    assert shown == []


def test_the_panel_is_opaque_and_its_corners_are_not() -> None:
    pixels = matplotlib.image.imread(io.BytesIO(to_png(drawn())))
    assert pixels[0, 0, 3] == 0
    assert pixels[10:-10, 10:-10, 3].min() == 1


def test_text_reads_on_the_panel_and_neighbouring_colours_differ_in_lightness() -> None:
    assert (luminance(PANEL) + 0.05) / (luminance(INK) + 0.05) > 7
    assert min(abs(luminance(a) - luminance(b)) for a, b in pairwise(PALETTE[:3])) > 0.1


def test_a_widget_is_shown_with_the_text_that_stands_for_it(shown: Any) -> None:
    display_widget(ipywidgets.IntSlider(3), "a slider through the steps")
    ((data, _),) = shown
    assert data["text/plain"] == "[Interactive, needs a running notebook kernel: a slider through the steps]"
    assert "model_id" in data["application/vnd.jupyter.widget-view+json"]
    with pytest.raises(ValueError, match="text is empty"):
        display_widget(ipywidgets.IntSlider(3), "")
