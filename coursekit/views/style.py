"""The style of pictures and widgets in lessons, with text for readers who do not see the picture.

Every picture has alt text, a one-line summary, and its own light panel with round corners, so it reads on a light
and on a dark page. Colours are Okabe and Ito's (Color Universal Design, 2008), which colour-blind readers can
distinguish. Invariants: the same data give the same bytes, and no picture is shown without its text.
"""

from __future__ import annotations

import html
import io
import logging
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from cycler import cycler
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from PIL import Image

# Okabe and Ito's palette, in the order in which lines and bars use it, and two neutral tones.
BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE, YELLOW = "#56B4E9", "#CC79A7", "#F0E442"
INK, PANEL, FAINT = "#222222", "#FBFBF8", "#D9D9D4"
PALETTE = (BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE, YELLOW)

DPI = 144  # rendered; shown at 96 dpi, so that a picture is sharp on a high-resolution screen
STYLE: dict[Any, Any] = {
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.h_pad": 0.14,
    "figure.constrained_layout.w_pad": 0.14,
    "figure.facecolor": "none",
    "axes.facecolor": PANEL,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 11,
    "axes.prop_cycle": cycler(color=PALETTE),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": False,
    "grid.color": FAINT,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "legend.fontsize": 10,
    "legend.frameon": False,
    "font.family": "DejaVu Sans",
    "font.size": 10.5,
    "hatch.linewidth": 0.8,
    "lines.linewidth": 2,
    "svg.hashsalt": "paged_ref",
}


def use_style() -> None:
    """Set the course's style for all later matplotlib figures."""
    mpl.rcParams.update(STYLE)
    # Its warnings about a broken font cache would stand in the cells.
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)


def figure(
    rows: int = 1, columns: int = 1, *, width: float = 7.5, height: float = 3.0, **subplots: Any
) -> tuple[Figure, Any]:
    """Return a figure in the course's style (inches) and its axes: one, or an array as from `plt.subplots`."""
    use_style()
    fig = Figure(figsize=(width, height))
    return fig, fig.subplots(rows, columns, **subplots)


@dataclass(frozen=True)
class Picture:
    """A figure and its text, made together by one function, so that neither is shown without the other.

    Attributes:
        alt: a description of the picture, with the figures that matter, for readers who do not see it.
        summary: one line for everyone: the main thing to see in it.
    """

    fig: Figure
    alt: str
    summary: str

    def show(self) -> None:
        """Show the picture without controls. `coursekit.views.explore` adds controls."""
        display_figure(self.fig, alt=self.alt, summary=self.summary)


def display_figure(fig: Figure, *, alt: str, summary: str) -> None:
    """Show `fig` with its text.

    `alt` describes the picture, with the figures that matter, for readers who do not see it. `summary` is one line
    for everyone: the main thing to see in it. nbval compares both, but not the pixels.
    """
    for name, words in (("alt", alt), ("summary", summary)):
        if not words.strip():
            raise ValueError(f"display_figure: {name} is empty; describe what the picture shows")
    width, height = fig.get_size_inches()
    data = {"image/png": to_png(fig), "text/plain": f"[Picture: {alt}]"}
    size = {"alt": alt, "width": round(width * 96), "height": round(height * 96)}
    display(data, metadata={"image/png": size}, raw=True)
    folded = f"<details><summary>{html.escape(summary)}</summary>\n\n{html.escape(alt)}\n\n</details>"
    display({"text/markdown": folded, "text/plain": summary}, raw=True)


def to_png(fig: Figure) -> bytes:
    """Render the picture on its panel, with the same bytes every time."""
    width, height = (float(inches) for inches in fig.get_size_inches())
    panel = FancyBboxPatch(
        (0.02, 0.02),
        width - 0.04,
        height - 0.04,
        boxstyle="round,pad=0,rounding_size=0.12",
        facecolor=PANEL,
        edgecolor=FAINT,
        transform=fig.dpi_scale_trans,
        zorder=-10,
    )
    fig.add_artist(panel, clip=False)
    buffer = io.BytesIO()
    try:
        fig.savefig(buffer, format="png", dpi=DPI, facecolor="none", metadata={"Software": None})
    finally:
        panel.remove()
    return _with_palette(buffer)


def _with_palette(picture: io.BytesIO) -> bytes:
    """Reduce the picture to 256 colours and a quarter of the bytes. Transparency outside the panel is kept."""
    reduced = Image.open(picture).quantize(256, method=Image.Quantize.FASTOCTREE)
    colours = reduced.getpalette("RGBA") or []
    # The quantizer averages nearly opaque colours to 254 of 255; the panel must be opaque.
    colours[3::4] = [255 if alpha > 250 else alpha for alpha in colours[3::4]]
    reduced.putpalette(colours, "RGBA")
    small = io.BytesIO()
    reduced.save(small, "png", optimize=True)
    return small.getvalue()


def label_bar(axes: Axes, x: float, y: float, text: str, **style: Any) -> None:
    """Put a label in the middle of a coloured bar, on a light background so that it is readable on every colour."""
    ground = {"boxstyle": "round,pad=0.15", "facecolor": PANEL, "edgecolor": "none", "alpha": 0.85}
    axes.text(x, y, text, ha="center", va="center", bbox=ground, **{"fontsize": 10, **style})


def display_widget(widget: Any, text: str) -> None:
    """Show an ipywidget; `text` replaces it where no notebook kernel runs, as on a static page.

    Show a static picture of the same thing next to it with `display_figure`.
    """
    if not text.strip():
        raise ValueError(
            "display_widget: text is empty; say what the view shows and where its static picture is"
        )
    data = dict(widget._repr_mimebundle_())
    data["text/plain"] = f"[Interactive, needs a running notebook kernel: {text}]"
    display(data, raw=True)
