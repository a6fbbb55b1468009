"""Pictures of the serving benchmark (chapter 7): throughput by workload and server, and the parts of a step.

`bench serve --output` writes a JSON file; `serving` draws it. The file also describes the machine, so a picture
cannot be mistaken for a measurement of another one. Invariants: every figure in the text comes from the file, and
each dtype has its own panel on the same scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from coursekit.views.style import BLUE, FAINT, GREEN, INK, ORANGE, SKY, VERMILION, Picture, figure, label_bar

SERVERS = {
    "ours": (BLUE, "", "paged_ref"),
    "generate": (ORANGE, "////", "transformers generate"),
    "generate_batch": (GREEN, "....", "transformers generate_batch"),
}
PARTS = {
    "matmuls": (FAINT, ""),
    "the rest": (SKY, "...."),
    "attention": (BLUE, ""),
    "bookkeeping": (VERMILION, "////"),
}


def serving(result: Mapping[str, Any]) -> Picture:
    """Draw a recorded run of `bench serve`: throughput above, and below the parts of a decode step if recorded.

    Raises:
        ValueError: the file has no rows, or has a server or a part that this view does not know.
    """
    rows, profiles = result.get("rows", []), result.get("profiles", [])
    if not rows:
        raise ValueError("serving: the result has no rows; run `python3 course.py bench serve --output FILE`")
    if unknown := sorted({row["server"] for row in rows} - set(SERVERS)):
        raise ValueError(f"serving: unknown server {unknown[0]!r}; known are {', '.join(SERVERS)}")
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    ratios = [3.4, 0.7 + 0.45 * len(profiles)] if profiles else [3.4]
    fig, _ = figure(width=10, height=1.2 + sum(ratios))
    fig.clear()
    grid = fig.add_gridspec(len(ratios), len(dtypes), height_ratios=ratios)
    panels = [fig.add_subplot(grid[0, i]) for i in range(len(dtypes))]
    top = 1.18 * max(row["spread"][1] for row in rows)
    for axes, dtype in zip(panels, dtypes, strict=True):
        draw_throughput(axes, [row for row in rows if row["dtype"] == dtype], workloads)
        axes.set_ylim(0, top)
        axes.set_title(dtype)
    panels[0].set_ylabel("new tokens per second")
    if profiles:
        draw_steps(fig.add_subplot(grid[1, :]), profiles)
    machine = about(result)
    names = {server: SERVERS[server][2] for server in dict.fromkeys(row["server"] for row in rows)}
    handles = [
        Patch(facecolor=SERVERS[s][0], hatch=SERVERS[s][1], edgecolor="white", label=n)
        for s, n in names.items()
    ]
    fig.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    fig.supxlabel(machine, fontsize=8.5, color=INK)
    said = "; ".join(
        f"{row['workload']} in {row['dtype']}, {SERVERS[row['server']][2]}: {row['throughput']:.0f} tokens/s"
        for row in rows
    )
    steps = " ".join(_said(profile) for profile in profiles)
    return Picture(
        fig,
        alt=f"Bars of throughput, measured on {machine}. {said}. {steps}".strip(),
        summary=_gain(rows, dtypes),
    )


def draw_throughput(axes: Axes, rows: Sequence[Mapping[str, Any]], workloads: Sequence[str]) -> None:
    """Draw the bars of one dtype: a group per workload, a bar per server, a line from slowest to fastest round."""
    servers = [server for server in SERVERS if any(row["server"] == server for row in rows)]
    width = 0.8 / len(servers)
    for k, server in enumerate(servers):
        colour, hatch, _ = SERVERS[server]
        for x, workload in enumerate(workloads):
            found = [row for row in rows if (row["server"], row["workload"]) == (server, workload)]
            if not found:
                continue
            speed, (low, high) = found[0]["throughput"], found[0]["spread"]
            at = x - 0.4 + (k + 0.5) * width
            axes.bar(at, speed, width, color=colour, hatch=hatch, edgecolor="white")
            if high > low:
                axes.plot([at, at], [low, high], color=INK, linewidth=1.2)
            axes.annotate(
                f"{speed:.0f}", (at, high), (0, 2), textcoords="offset points", ha="center", fontsize=8.5
            )
    axes.set_xticks(range(len(workloads)), [name.replace(" ", "\n") for name in workloads])
    axes.tick_params(axis="x", length=0)


def step_bars(profiles: Sequence[Mapping[str, Any]]) -> Picture:
    """Draw the time of a decode step's parts, one bar per profile, and the limit set by its matmuls."""
    if not profiles:
        raise ValueError("step_bars: there is no profile to draw")
    fig, axes = figure(width=9, height=1.5 + 0.5 * len(profiles))
    draw_steps(axes, profiles)
    lead = max(profiles[-1]["parts"], key=profiles[-1]["parts"].get)
    return Picture(
        fig,
        alt=" ".join(_said(profile) for profile in profiles),
        summary=f"Most of a decode step is {lead}; the dashed line is the time of the matmuls alone.",
    )


def draw_steps(axes: Axes, profiles: Sequence[Mapping[str, Any]]) -> None:
    """Draw stacked bars in milliseconds; a dashed line over each bar marks the time of its matmuls alone."""
    for profile in profiles:
        if unknown := sorted(set(profile["parts"]) - set(PARTS)):
            raise ValueError(f"unknown part {unknown[0]!r} of a step; known are {', '.join(PARTS)}")
    widest = max(max(sum(p["parts"].values()), p["limit"]) for p in profiles)
    for y, profile in enumerate(profiles):
        left, whole = 0.0, sum(profile["parts"].values())
        for part, (colour, hatch) in PARTS.items():
            length = profile["parts"].get(part, 0.0)
            axes.barh(y, length, 0.62, left=left, color=colour, hatch=hatch, edgecolor="white")
            if length > 0.055 * widest:
                label_bar(axes, left + length / 2, y, f"{length / whole:.0%}", fontsize=9)
            left += length
        axes.text(whole + 0.01 * widest, y, f"{whole:.0f} ms", va="center", fontsize=9.5)
        axes.plot(
            [profile["limit"]] * 2, [y - 0.42, y + 0.42], color=INK, linewidth=1.8, linestyle=(0, (3, 1.5))
        )
    axes.set_yticks(range(len(profiles)), [f"{p['dtype']}, {p['how']}" for p in profiles])
    axes.set_ylim(len(profiles) - 0.45, -0.55)
    axes.set_xlim(0, 1.09 * widest)
    axes.set_xlabel(f"milliseconds of a decode step of {profiles[0]['num_seqs']} sequences")
    handles = [Patch(facecolor=c, hatch=h, edgecolor="white", label=part) for part, (c, h) in PARTS.items()]
    [limit] = axes.plot(
        [], [], color=INK, linewidth=1.8, linestyle=(0, (3, 1.5)), label="matmuls alone: the limit"
    )
    axes.legend(handles=[*handles, limit], loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=5, fontsize=9)


def about(result: Mapping[str, Any]) -> str:
    """Describe the machine, the versions and the settings of the run, in one line."""
    rounds = result["rounds"]
    how = f"{rounds} rounds, medians" if rounds > 1 else "1 round"
    if result.get("quick"):
        how += " of the quick sample"
    return (
        f"{result['device']}, {result['threads']} threads; torch {result['torch']}, transformers "
        f"{result['transformers']}; {result['model']}; {how}; ours with {result['ours']}"
    )


def _said(profile: Mapping[str, Any]) -> str:
    whole = sum(profile["parts"].values())
    parts = ", ".join(
        f"{part} {profile['parts'][part] / whole:.0%}" for part in PARTS if part in profile["parts"]
    )
    return (
        f"A decode step of {profile['num_seqs']} sequences in {profile['dtype']} with {profile['how']} takes "
        f"{whole:.0f} ms: {parts}; the matmuls alone take {profile['limit']:.0f} ms."
    )


def _gain(rows: Sequence[Mapping[str, Any]], dtypes: Sequence[str]) -> str:
    """Return our speedup over the faster of the others, over the workloads of each dtype."""
    parts = []
    for dtype in dtypes:
        speed: dict[str, dict[str, float]] = {}
        for row in rows:
            if row["dtype"] == dtype:
                speed.setdefault(row["workload"], {})[row["server"]] = row["throughput"]
        gains = [
            own["ours"] / max(others)
            for own in speed.values()
            if "ours" in own and (others := [s for name, s in own.items() if name != "ours"])
        ]
        if gains:
            low, high, middle = min(gains), max(gains), float(np.median(gains))
            parts.append(f"{dtype}: {low:.1f}× to {high:.1f}×, median {middle:.1f}×")
    return f"Our speedup over the faster of transformers' two modes: {'; '.join(parts) or 'not measured'}."
