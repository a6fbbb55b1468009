"""How the lessons show pictures and widgets: one style, and text for everyone who does not see the picture.

Every picture has alt text, a line that says what it shows, and its own light panel with round corners, so
it reads on a light and on a dark page. Colours are Okabe and Ito's (Color Universal Design, 2008), which
colour-blind readers can tell apart. What must hold: the same data give the same bytes, and nothing is
shown without its words.
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

# Okabe and Ito's palette, in the order in which lines and bars take it, and two neutral tones.
BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE, YELLOW = "#56B4E9", "#CC79A7", "#F0E442"
INK, PANEL, FAINT = "#222222", "#FBFBF8", "#D9D9D4"
PALETTE = (BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE, YELLOW)

DPI = 144  # rendered; shown at 96 to the inch, so that a picture is sharp on a fine screen
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
    """Sets the course's style for everything matplotlib draws from here on."""
    mpl.rcParams.update(STYLE)
    # Its warnings about a broken font cache would stand in the cells.
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)


def figure(
    rows: int = 1, columns: int = 1, *, width: float = 7.5, height: float = 3.0, **subplots: Any
) -> tuple[Figure, Any]:
    """A figure in the course's style (inches) and its axes: one, or an array as from `plt.subplots`."""
    use_style()
    fig = Figure(figsize=(width, height))
    return fig, fig.subplots(rows, columns, **subplots)


@dataclass(frozen=True)
class Picture:
    """A figure and its words, made together by one function, so that neither is shown without the other.

    Attributes:
        alt: what is drawn, with the figures that matter, for someone who does not see it.
        summary: one line for everyone: what one should see in it.
    """

    fig: Figure
    alt: str
    summary: str

    def show(self) -> None:
        """Show it as it stands. `coursekit.views.explore` adds controls."""
        display_figure(self.fig, alt=self.alt, summary=self.summary)


def display_figure(fig: Figure, *, alt: str, summary: str) -> None:
    """Shows `fig` with its words.

    `alt` describes the picture to a reader who does not see it (what is drawn, and the figures that matter).
    `summary` is one line for everyone: what one should see in it. nbval compares both, but not the pixels.
    """
    for name, words in (("alt", alt), ("summary", summary)):
        if not words.strip():
            raise ValueError(f"display_figure: {name} is empty; say in words what the picture shows")
    width, height = fig.get_size_inches()
    data = {"image/png": to_png(fig), "text/plain": f"[Picture: {alt}]"}
    size = {"alt": alt, "width": round(width * 96), "height": round(height * 96)}
    display(data, metadata={"image/png": size}, raw=True)
    folded = f"<details><summary>{html.escape(summary)}</summary>\n\n{html.escape(alt)}\n\n</details>"
    display({"text/markdown": folded, "text/plain": summary}, raw=True)


def to_png(fig: Figure) -> bytes:
    """The picture on its panel, the same bytes every time."""
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
    """The same picture with 256 colours, in a quarter of the bytes. Transparency stays, outside the panel."""
    reduced = Image.open(picture).quantize(256, method=Image.Quantize.FASTOCTREE)
    colours = reduced.getpalette("RGBA") or []
    # The method averages nearly opaque colours to 254 of 255; the panel is opaque.
    colours[3::4] = [255 if alpha > 250 else alpha for alpha in colours[3::4]]
    reduced.putpalette(colours, "RGBA")
    small = io.BytesIO()
    reduced.save(small, "png", optimize=True)
    return small.getvalue()


def label_bar(axes: Axes, x: float, y: float, text: str, **style: Any) -> None:
    """A label in the middle of a coloured bar, on a light ground so that it reads on every colour."""
    ground = {"boxstyle": "round,pad=0.15", "facecolor": PANEL, "edgecolor": "none", "alpha": 0.85}
    axes.text(x, y, text, ha="center", va="center", bbox=ground, **{"fontsize": 10, **style})


def display_widget(widget: Any, text: str) -> None:
    """Shows an ipywidget; `text` stands in its place where no kernel runs, as in a page that is only read.

    Put the static picture of the same thing beside it with `display_figure`.
    """
    if not text.strip():
        raise ValueError(
            "display_widget: text is empty; say what the view shows and where its static picture is"
        )
    data = dict(widget._repr_mimebundle_())
    data["text/plain"] = f"[Interactive, needs a running kernel: {text}]"
    display(data, raw=True)
