"""A rubric for scoring your own answer: a table, and boxes to tick in a running notebook (chapter 10).

Each point is either met or not, without doubt, and shows its worth. Invariants: the table and the boxes show the same
points in the same order; the sum covers the ticked points.
"""

from __future__ import annotations

from collections.abc import Sequence

import ipywidgets as widgets
from IPython.display import display

from coursekit.views.style import display_widget

STRONG, SOUND = 0.8, 0.5  # fractions of all points


def rubric(points: Sequence[tuple[int, str]]) -> None:
    """Show (points, what the answer must say) as a table, and below it the same as boxes with a sum.

    Raises:
        ValueError: there are no points, or one is worth nothing.
    """
    if not points or min(worth for worth, _ in points) < 1:
        raise ValueError("rubric: there must be at least one point, each worth 1 or more")
    total = sum(worth for worth, _ in points)
    rows = "\n".join(f"| {worth} | {text.replace('|', chr(92) + '|')} |" for worth, text in points)
    head = f"| points of {total} | your answer … |\n|---|---|\n"
    plain = "\n".join(f"{worth} {text}" for worth, text in points)
    display({"text/markdown": head + rows, "text/plain": plain}, raw=True)
    display_widget(boxes(points), "boxes to tick, and their sum")


def boxes(points: Sequence[tuple[int, str]]) -> widgets.VBox:
    """Build a box for each point, and the sum of the ticked ones."""
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
    """Describe a score."""
    if not earned:
        return "tick the points that your answer made"
    if earned >= STRONG * total:
        return "strong"
    return "sound, with gaps" if earned >= SOUND * total else "read the solution, and try again tomorrow"
