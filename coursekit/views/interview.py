"""Pictures for the whiteboards of chapter 10: a memory budget, a pool under pressure, a choice of block size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coursekit.views.style import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Picture,
    figure,
    label_bar,
)
from paged_ref.telemetry.metrics import Point

SPAN = 10  # seconds over which free blocks are averaged
_PARTS = ((BLUE, ""), (ORANGE, "//"), (GREEN, ".."), (SKY, "\\\\"), (PURPLE, "xx"))


def memory_bars(bars: Mapping[str, Mapping[str, float]], room: float, title: str) -> Picture:
    """Draw gigabytes by use, one bar for each way to serve, next to the available memory.

    Args:
        bars: name of a bar → name of a part → gigabytes. Parts have the same names in all bars.
        room: gigabytes available.
    """
    fig, axes = figure(width=8.5, height=1.4 + 0.5 * len(bars))
    names = list(dict.fromkeys(part for bar in bars.values() for part in bar))
    for row, bar in enumerate(bars.values()):
        left = 0.0
        for part, (colour, hatch) in zip(names, _PARTS, strict=False):
            width = bar.get(part, 0.0)
            axes.barh(
                row, width, 0.62, left, color=colour, edgecolor=INK, linewidth=0.6, hatch=hatch,
                label=part if row == 0 else None,
            )  # fmt: skip
            if width > 0.07 * max(sum(b.values()) for b in bars.values()):
                label_bar(axes, left + width / 2, row, f"{width:.0f}")
            left += width
    axes.axvline(room, color=VERMILION, linestyle="--")
    axes.annotate(
        f"{room:.0f} GB available", (room, len(bars) - 0.45), (5, 0), textcoords="offset points",
        color=INK, fontsize=9.5, va="center",
    )  # fmt: skip
    axes.set_yticks(range(len(bars)), list(bars))
    axes.set_ylim(len(bars) - 0.2, -0.6)
    axes.set_xlabel("GB")
    axes.set_title(title)
    handles, labels = axes.get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    said = "; ".join(
        f"{name}: " + ", ".join(f"{part} {size:.0f} GB" for part, size in bar.items())
        for name, bar in bars.items()
    )
    totals = ", ".join(f"{name} {sum(bar.values()):.0f} GB" for name, bar in bars.items())
    return Picture(
        fig, alt=f"Bars of gigabytes. {said}. A line marks the {room:.0f} GB available.",
        summary=f"Needed: {totals}; available: {room:.0f} GB.",
    )  # fmt: skip


def pool_pressure(histories: Mapping[str, Sequence[Point]], num_blocks: int, until: float) -> Picture:
    """Draw free blocks over time, and the number of preemptions so far, for each setting.

    Args:
        until: seconds to show.
    """
    fig, (left, right) = figure(1, 2, width=9.5, height=3.3)
    styles = ((VERMILION, "-", 2.0), (BLUE, "--", 2.0), (GREEN, ":", 2.2))
    counts = {}
    for (name, history), (colour, line, width) in zip(histories.items(), styles, strict=False):
        points = [point for point in history if point.seconds <= until]
        seconds = [point.seconds for point in points]
        spans: dict[int, list[float]] = {}
        for point in points:
            spans.setdefault(int(point.seconds // SPAN), []).append(100 * point.free_blocks / num_blocks)
        means = [sum(shares) / len(shares) for shares in spans.values()]
        left.plot([SPAN * (span + 0.5) for span in spans], means, line, color=colour, linewidth=width)
        right.plot(seconds, [p.preemptions for p in points], line, color=colour, linewidth=width, label=name)
        counts[name] = points[-1].preemptions
        right.annotate(
            f"{points[-1].preemptions}", (seconds[-1], points[-1].preemptions), (4, 0),
            textcoords="offset points", va="center", fontsize=9.5,
        )  # fmt: skip
    left.set_ylim(0, 100)
    left.set_ylabel(f"free, % (mean of {SPAN} s)")
    left.set_title("The pool runs out of blocks …")
    right.set_ylabel("preemptions so far")
    right.set_title("… and requests are preempted")
    for axes in (left, right):
        axes.set_xlim(0, until * 1.12)
        axes.set_xlabel("seconds")
    handles, labels = right.get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    said = ", ".join(f"{name}: {count}" for name, count in counts.items())
    return Picture(
        fig,
        alt=f"Two curves over {until:.0f} seconds for each setting: free blocks, and preemptions so far. Preemptions "
        f"after {until:.0f} seconds: {said}.",
        summary=f"Preemptions in the first {until:.0f} seconds: {said}.",
    )


def block_size_choice(
    sizes: Sequence[int], costs: Mapping[str, Sequence[float]], throughput: Sequence[float], chosen: int
) -> Picture:
    """Draw the loss from each cost, in percent, and the remaining throughput, relative to the best.

    Args:
        costs: name → fraction lost, one value per size.
        throughput: relative to the best size, one value per size.
        chosen: the size to mark.
    """
    fig, (left, right) = figure(1, 2, width=9.5, height=3.4)
    for (name, shares), (colour, mark) in zip(
        costs.items(), ((BLUE, "o-"), (ORANGE, "s-"), (GREEN, "^-"), (PURPLE, "d-")), strict=False
    ):
        left.plot(range(len(sizes)), [100 * share for share in shares], mark, color=colour, label=name)
    left.set_ylabel("lost, %")
    left.set_title("The costs of a block size")
    right.bar(
        range(len(sizes)), [100 * value for value in throughput], 0.65, edgecolor=INK, linewidth=0.6,
        color=[BLUE if size == chosen else FAINT for size in sizes],
    )  # fmt: skip
    for i, value in enumerate(throughput):
        right.annotate(
            f"{100 * value:.0f}", (i, 100 * value), (0, 2), textcoords="offset points", ha="center"
        )
    right.set_ylim(0, 112)
    right.set_ylabel("tokens/s, % of the best")
    right.set_title("The remaining throughput")
    for axes in (left, right):
        axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
        axes.set_xlabel("block size, tokens")
    handles, labels = left.get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    said = "; ".join(
        f"{name}: " + ", ".join(f"{size}: {share:.1%}" for size, share in zip(sizes, shares, strict=True))
        for name, shares in costs.items()
    )
    left_over = ", ".join(f"{size}: {value:.0%}" for size, value in zip(sizes, throughput, strict=True))
    flat = [size for size, value in zip(sizes, throughput, strict=True) if value >= 0.98]
    return Picture(
        fig, alt=f"Costs against the block size, {said}. Throughput relative to the best: {left_over}.",
        summary=f"Between {min(flat)} and {max(flat)} tokens per block the throughput is within 2 % of the best.",
    )  # fmt: skip
