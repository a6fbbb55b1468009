"""A rubric to score oneself with: a table that can be read anywhere, and with a kernel boxes to tick (chapter 10).

Each point can be ticked or not without doubt, and says what it is worth. What must hold: the table and the boxes show
the same points in the same order; the sum is of what is ticked.
"""

from __future__ import annotations

from collections.abc import Sequence

import ipywidgets as widgets
from IPython.display import display

from coursekit.views.style import display_widget

STRONG, SOUND = 0.8, 0.5  # shares of all points


def rubric(points: Sequence[tuple[int, str]]) -> None:
    """Show (points, what the answer must have said) as a table, and below it the same as boxes that add up.

    Raises:
        ValueError: no points, or one that is worth nothing.
    """
    if not points or min(worth for worth, _ in points) < 1:
        raise ValueError("rubric: every point must be worth 1 or more, and there must be one")
    total = sum(worth for worth, _ in points)
    rows = "\n".join(f"| {worth} | {text.replace('|', chr(92) + '|')} |" for worth, text in points)
    head = f"| points of {total} | your answer … |\n|---|---|\n"
    plain = "\n".join(f"{worth} {text}" for worth, text in points)
    display({"text/markdown": head + rows, "text/plain": plain}, raw=True)
    display_widget(boxes(points), "boxes to tick, and their sum")


def boxes(points: Sequence[tuple[int, str]]) -> widgets.VBox:
    """A box for each point, and the sum of those that are ticked."""
    total = sum(worth for worth, _ in points)
    ticks = [
        widgets.Checkbox(
            description=f"{text} ({worth})".replace("`", ""),
            indent=False,
            layout=widgets.Layout(width="100%"),
        )
        for worth, text in points
    ]
    said = widgets.HTML()

    def add_up(_: object = None) -> None:
        earned = sum(worth for tick, (worth, _) in zip(ticks, points, strict=True) if tick.value)
        said.value = f'<div role="status"><b>{earned} of {total} points: {verdict(earned, total)}</b></div>'

    for tick in ticks:
        tick.observe(add_up, names="value")
    add_up()
    return widgets.VBox([*ticks, said])


def verdict(earned: int, total: int) -> str:
    """A score in words."""
    if not earned:
        return "tick what your answer said"
    if earned >= STRONG * total:
        return "strong"
    return "sound, with gaps" if earned >= SOUND * total else "read the solution, and try again tomorrow"
