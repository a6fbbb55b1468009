"""The two accumulators of a softmax computed block by block (chapter 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from coursekit.views.style import BLUE, INK, ORANGE, PANEL, VERMILION, Picture, figure


@dataclass(frozen=True)
class SoftmaxStep:
    """A running softmax after one block. `acc` is one element of the accumulator, the same one in every step.

    Attributes:
        scores: the block's scores.
        top, total, acc: the state afterwards.
        rescale: the factor applied to the old total and the old acc.
    """

    scores: tuple[float, ...]
    top: float
    rescale: float
    total: float
    acc: float


def accumulators(steps: Sequence[SoftmaxStep], exact: float, title: str = "") -> Picture:
    """Draw the scores with the running maximum; `total` and `acc`, carried over and added; their quotient.

    Args:
        exact: the attention over all blocks, which the quotient must reach.
    """
    fig, ((scores, total), (quotient, acc)) = figure(2, 2, width=9, height=5.4)
    _draw_scores(scores, steps)
    _draw_sum(total, [step.total for step in steps], steps, "total: sum of exp(score - top)")
    _draw_sum(acc, [step.acc for step in steps], steps, "acc: sum of exp(score - top) x value")
    output = [step.acc / step.total for step in steps]
    quotient.plot(range(len(steps)), output, "o-", color=BLUE)
    quotient.axhline(exact, color=INK, linewidth=1, linestyle="--")
    ground = {"boxstyle": "square,pad=0.05", "facecolor": PANEL, "edgecolor": "none", "alpha": 0.85}
    place: dict[str, Any] = {"textcoords": "offset points", "fontsize": 9, "bbox": ground}
    quotient.annotate("over all blocks", (-0.55, exact), (0, 5), **place)
    quotient.set_title("acc / total: the output so far")
    quotient.margins(y=0.25)
    for axes in (scores, total, acc, quotient):
        axes.set_xticks(range(len(steps)))
        axes.set_xlim(-0.6, len(steps) - 0.4)
    for axes in (acc, quotient):
        axes.set_xlabel("after block")
    if title:
        fig.suptitle(title, x=0.02, ha="left", fontsize=12, fontweight="bold")
    handles = [
        Patch(facecolor=BLUE, edgecolor=INK, label="carried over, rescaled"),
        Patch(facecolor=ORANGE, edgecolor=INK, hatch="///", label="added by this block"),
        Patch(
            facecolor="none", edgecolor=VERMILION, linestyle="--", label="carried over, before the rescaling"
        ),
    ]
    fig.legend(handles=handles, loc="outside lower center", ncols=3)
    said = "; ".join(
        f"block {i}: top {step.top:.1f}, factor {step.rescale:.3f}, total {step.total:.2f}, acc {step.acc:.2f}, "
        f"output {value:.3f}"
        for i, (step, value) in enumerate(zip(steps, output, strict=True))
    )
    rises = [i for i in range(1, len(steps)) if steps[i].top > steps[i - 1].top]
    where = f"block{'s' * (len(rises) > 1)} {' and '.join(map(str, rises))}"
    summary = (
        f"The top rises with {where}, and both sums shrink by one factor; "
        if rises
        else "No block raises the top, and nothing shrinks; "
    )
    return Picture(
        fig,
        alt=f"Four charts over the blocks: scores with the running maximum, total, acc, and acc / total. {said}.",
        summary=f"{summary}acc / total ends at {output[-1]:.3f}, and over all blocks at once it is {exact:.3f}.",
    )


def _draw_scores(axes: Axes, steps: Sequence[SoftmaxStep]) -> None:
    for i, step in enumerate(steps):
        n = len(step.scores)
        places = [i + 0.5 * ((j + 0.5) / n - 0.5) for j in range(n)]
        axes.plot(places, step.scores, "o", color=ORANGE, markeredgecolor=INK, markersize=6)
    edges = [x for i in range(len(steps)) for x in (i - 0.4, i + 0.4)]
    axes.plot(edges, [step.top for step in steps for _ in (0, 1)], color=VERMILION, linewidth=1.5)
    axes.annotate(
        "top",
        (edges[-1], steps[-1].top),
        (0, 3),
        textcoords="offset points",
        ha="right",
        color=INK,
        fontsize=9.5,
    )
    axes.set_title("scores, and the largest so far")
    axes.margins(y=0.2)


def _draw_sum(axes: Axes, sums: Sequence[float], steps: Sequence[SoftmaxStep], title: str) -> None:
    before = 0.0
    for i, (value, step) in enumerate(zip(sums, steps, strict=True)):
        carried = before * step.rescale
        style: dict[str, Any] = {"width": 0.34, "edgecolor": INK, "linewidth": 0.7}
        # Next to each other, not stacked: a part may be negative.
        axes.bar(i - 0.18, carried, color=BLUE, **style)
        axes.bar(i + 0.18, value - carried, color=ORANGE, hatch="///", **style)
        if i and step.rescale < 1:
            axes.bar(
                i - 0.18,
                before,
                width=0.34,
                facecolor="none",
                edgecolor=VERMILION,
                linestyle="--",
                linewidth=1.4,
            )
        before = value
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.set_title(title)
    axes.margins(y=0.15)
