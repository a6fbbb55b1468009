"""The operator's view: metrics over time, the latency of each token, swap against recompute (chapter 6).

Everything is drawn from recorded `Metrics` and a `Timeline`; nothing is counted a second time.
Invariant: the text gives the figures that the picture shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.ticker import StrMethodFormatter

from coursekit.views.memory_map import name_of
from coursekit.views.style import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, VERMILION, Picture, figure
from coursekit.views.timeline import Timeline
from paged_ref.simulation.cost_model import CostModel
from paged_ref.telemetry.metrics import Metrics


def dashboard(metrics: Metrics, title: str) -> Picture:
    """Draw four panels: pool usage, queue length, preemptions, and the two latencies."""
    now = metrics.snapshot()
    points = metrics.history
    seconds = [point.seconds for point in points]
    total = metrics.scheduler.pool.num_blocks
    fig, panels = figure(2, 2, width=9.5, height=5.0)
    pool, queue, preempted, latency = panels.flat
    pool.plot(seconds, [100 * point.used_blocks / total for point in points], color=BLUE, linewidth=1.3)
    pool.axhline(100, color=INK, linewidth=1, linestyle="--")
    pool.set_ylim(0, 108)
    pool.set_title("Blocks in use, %")
    queue.plot(seconds, [point.running for point in points], color=GREEN, label="running", linewidth=1.3)
    queue.plot(
        seconds, [point.waiting for point in points], color=ORANGE, linestyle="--", label="waiting",
        linewidth=1.6,
    )  # fmt: skip
    queue.set_title("Requests")
    queue.set_ylim(0, 1.45 * max(1, metrics.peak_running, *(point.waiting for point in points)))
    queue.legend(loc="upper left", ncols=2)
    preempted.plot(seconds, [point.preemptions for point in points], color=VERMILION)
    preempted.set_title("Preemptions so far")
    preempted.set_ylim(0, max(10, 1.1 * metrics.preemptions))
    for axes in (pool, queue, preempted):
        axes.set_xlabel("seconds")
    _latency_bars(latency, metrics)
    fig.suptitle(title, x=0.02, ha="left", fontweight="bold")
    peak = metrics.peak_used_blocks
    said = (
        f"at most {peak} of {total} blocks were in use; at most {metrics.peak_running} requests ran and "
        f"{max(point.waiting for point in points)} waited; {metrics.preemptions} preemptions"
    )
    times = ", ".join(
        f"{name} p50 {_ms(now[f'{key}_p50'])} and p99 {_ms(now[f'{key}_p99'])}"
        for name, key in (("time to first token", "ttft"), ("inter-token latency", "itl"))
    )
    return Picture(fig, f"Four panels. {said.capitalize()}; {times}.", f"{title}: {said}; {times}.")


def _latency_bars(axes: Axes, metrics: Metrics) -> None:
    """Draw the median and 99th percentile of both latencies on a logarithmic axis."""
    rows = (("TTFT", metrics.time_to_first_token), ("ITL", metrics.inter_token_latency))
    for row, (_, histogram) in enumerate(rows):
        for shift, quantile, colour in ((-0.19, 0.5, BLUE), (0.19, 0.99, PURPLE)):
            value = 1e3 * (histogram.quantile(quantile) or 0.0)
            name = "median" if quantile == 0.5 else "p99"
            axes.barh(row + shift, value, height=0.34, color=colour, label=name if row == 0 else None)
            axes.text(value * 1.1, row + shift, f"{name} {value:,.0f}", va="center", fontsize=9)
    axes.set_xscale("log")
    axes.set_xlim(5, 10 * axes.get_xlim()[1])
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.invert_yaxis()
    axes.set_title("Latency, ms")


def latency_plot(timelines: Mapping[str, Timeline], requests: Sequence[int], title: str) -> Picture:
    """Draw the gap before each token of some requests: one panel per timeline, one logarithmic scale."""
    fig, panels = figure(1, len(timelines), width=9.5, height=3.2, sharey=True, squeeze=False)
    said, worst = [], 0.0
    for axes, (name, timeline) in zip(panels[0], timelines.items(), strict=True):
        for place, request in enumerate(requests):
            times, gaps = timeline.tokens[request][1:], [1e3 * gap for gap in timeline.gaps(request)]
            colour = (BLUE, VERMILION, GREEN)[place % 3]
            above = {"zorder": 3 - place % 3}  # where curves overlap, the first stays visible
            axes.plot(
                times, gaps, "os^"[place % 3], color=colour, markersize=4, label=name_of(request), **above
            )
            worst = max(worst, *gaps)
            said.append(
                f"{name}, {name_of(request)}: median {_middle(gaps):.0f} ms, longest {max(gaps):.0f} ms"
            )
        axes.set_title(name)
        axes.set_xlabel("seconds")
        axes.grid(axis="y", color=FAINT)
        axes.legend(loc="upper right", ncols=3)
    panels[0][0].set_ylabel("gap before the token, ms")
    panels[0][0].set_yscale("log")
    panels[0][0].set_ylim(5, 10 * worst)
    panels[0][0].yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    fig.suptitle(title, x=0.02, ha="left", fontweight="bold")
    return Picture(fig, f"A curve of gaps for each request. {'; '.join(said)}.", f"{'; '.join(said)}.")


def break_even(
    name: str, cost: CostModel, link: float, lengths: Sequence[int], block_size: int = 16
) -> Picture:
    """Draw the seconds to swap a sequence out and in again, and to recompute it, against its length.

    Args:
        link: bytes per second of the copies, in one direction.
    """
    per_block = cost.shape.kv_bytes_per_block(block_size)
    swap = [2e3 * -(-n // block_size) * per_block / link for n in lengths]
    again = [1e3 * cost.recompute_seconds(n) for n in lengths]
    fig, axes = figure(width=7.5, height=3.4)
    axes.plot(lengths, swap, "-", color=BLUE, label=f"swap out and in, {link / 1e9:g} GB/s")
    axes.plot(lengths, again, "--", color=VERMILION, label="recompute, in a separate step")
    axes.set_xlabel("tokens of the preempted sequence")
    axes.set_ylabel("ms")
    axes.set_ylim(bottom=0)
    axes.set_title(f"{name}: which is cheaper?")
    axes.legend(loc="upper left")
    cheaper = ["swap" if s < a else "recompute" for s, a in zip(swap, again, strict=True)]
    changes = [n for n, (before, now) in zip(lengths[1:], pairwise(cheaper), strict=True) if before != now]
    where = f"changes at about {changes[0]:,} tokens" if changes else "is the same at every length"
    return Picture(
        fig,
        f"Two curves against {lengths[0]:,} to {lengths[-1]:,} tokens. Swap rises from {swap[0]:.1f} to "
        f"{swap[-1]:.1f} ms, recompute from {again[0]:.1f} to {again[-1]:.1f} ms.",
        f"{name} over a link of {link / 1e9:g} GB/s: the cheaper one at {lengths[-1]:,} tokens is {cheaper[-1]}; "
        f"it {where}.",
    )


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _ms(value: float | None) -> str:
    return "none" if value is None else f"{1e3 * value:,.0f} ms"
