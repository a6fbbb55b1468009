"""Sharing between forks (chapter 4): beam searches as trees over blocks, blocks over the steps, published savings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from coursekit.beam_tree import living, versions
from coursekit.views.style import BLUE, FAINT, INK, ORANGE, PALETTE, VERMILION, Picture, figure
from paged_ref.sizing import blocks_for

DROPPED = "#A8A8A2"  # a token that no live beam has


def beam_tree(prompt_tokens: int, parents: Sequence[Sequence[int]], block_size: int) -> Picture:
    """Draw beams as lines from left to right, one place per token; blocks are frames; tokens of dropped beams are pale.

    Args:
        parents: for each step, the beam of the previous step that each new beam extends; the first step has zeros.
    """
    width, total = len(parents[-1]), prompt_tokens + len(parents)
    held = versions(prompt_tokens, parents, block_size)
    alive = living(parents)
    fig, axes = figure(width=9, height=1.9 + 0.42 * width)
    middle = -(width - 1) / 2
    for block in range(len(held)):
        left, right = block * block_size, min(total, (block + 1) * block_size)
        axes.axvspan(left + 0.02, right - 0.02, color=FAINT, alpha=0.35 if block % 2 else 0.75, linewidth=0)
        text = f"block {block}\n{held[block]} version{'s' * (held[block] > 1)}"
        axes.text((left + right) / 2, 0.62, text, ha="center", va="bottom", fontsize=9)
    for token in range(prompt_tokens):
        _token(axes, token, middle, BLUE)
    for step, row in enumerate(parents):
        x = prompt_tokens + step
        # Draw the pale lines first, so that the live ones are on top.
        for beam, parent in sorted(enumerate(row), key=lambda pair: pair[0] in alive[step]):
            strong = beam in alive[step]
            start = (x - 0.5, middle) if step == 0 else (x - 0.5, -parent)
            colour = ORANGE if strong else DROPPED
            axes.plot([start[0], x + 0.5], [start[1], -beam], color=colour, linewidth=1.4, zorder=2)
            _token(axes, x, -beam, colour)
    axes.set_xlim(-0.1, total + 0.1)
    axes.set_ylim(-width + 0.45, 1.5)
    axes.set_yticks([-beam for beam in range(width)], [f"beam {beam}" for beam in range(width)])
    axes.set_xticks([])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    physical, logical = sum(held), width * blocks_for(total, block_size)
    axes.set_title(f"{physical} blocks held, {logical} entries in the {width} tables")
    handles = [
        Patch(facecolor=BLUE, edgecolor=INK, label="prompt"),
        Patch(facecolor=ORANGE, edgecolor=INK, label="token of a live beam"),
        Patch(facecolor=DROPPED, edgecolor=INK, label="token of a dropped beam"),
    ]
    fig.legend(handles=handles, loc="outside lower center", ncols=3)
    said = ", ".join(f"block {i} in {n}" for i, n in enumerate(held))
    return Picture(
        fig,
        alt=f"A tree of {width} beams over {total} tokens, the first {prompt_tokens} of them the prompt, cut into "
        f"blocks of {block_size}. Versions held: {said}.",
        summary=f"{physical} physical blocks for {logical} table entries: {1 - physical / logical:.0%} saved.",
    )


def _token(axes: Axes, x: float, y: float, colour: str) -> None:
    axes.add_patch(
        Rectangle((x + 0.2, y - 0.17), 0.6, 0.34, facecolor=colour, edgecolor=INK, linewidth=0.6, zorder=3)
    )


def sharing_curves(runs: Mapping[str, Sequence[tuple[int, int]]]) -> Picture:
    """Draw each run's (physical blocks, table entries) step by step; the area between the two lines is saved."""
    fig, plots = figure(1, len(runs), width=9, height=3.1, sharey=True, squeeze=False)
    said = []
    for axes, (name, counts) in zip(plots[0], runs.items(), strict=True):
        steps = range(1, len(counts) + 1)
        physical, logical = zip(*counts, strict=True)
        axes.fill_between(steps, physical, logical, step="mid", color=FAINT, label="saved")
        axes.step(steps, logical, where="mid", color=VERMILION, linestyle="--", label="entries of all tables")
        axes.step(steps, physical, where="mid", color=BLUE, label="blocks held")
        axes.set_title(f"{name}: {saved(counts):.0%} saved")
        axes.set_xlabel("step")
        axes.set_ylim(0)
        said.append(
            f"{name}: at the end {physical[-1]} blocks for {logical[-1]} entries, {saved(counts):.0%} saved over all "
            "steps"
        )
    plots[0][0].set_ylabel("blocks")
    handles, labels = plots[0][0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=3)
    return Picture(fig, alt=f"Two lines over the steps. {'; '.join(said)}.", summary=f"{'. '.join(said)}.")


def saved(counts: Sequence[tuple[int, int]]) -> float:
    """Return the fraction of all table entries, over all steps, that need no block of their own."""
    return 1 - sum(physical for physical, _ in counts) / sum(logical for _, logical in counts)


def saved_beside_paper(
    ours: Mapping[str, Mapping[str, Mapping[int, float]]], paper: Mapping[str, tuple[float, float]]
) -> Picture:
    """Draw one row per case: the paper's range as a bar, our values as marked points.

    Args:
        ours: case → kind of average → width (samples or beams) → fraction saved.
        paper: case → the smallest and the largest fraction in the paper.

    Raises:
        ValueError: the two have different cases.
    """
    if set(ours) != set(paper):
        raise ValueError(f"saved_beside_paper: cases {sorted(ours)} and {sorted(paper)} must be the same")
    fig, axes = figure(width=8.5, height=1.6 + 0.62 * len(ours))
    kinds = list(dict.fromkeys(kind for rows in ours.values() for kind in rows))
    said = []
    for row, (case, averages) in enumerate(ours.items()):
        low, high = paper[case]
        label = "the paper's range" if row == 0 else None
        axes.barh(
            row, 100 * (high - low), left=100 * low, height=0.62, color=FAINT, edgecolor=INK, label=label
        )
        for number, kind in enumerate(kinds):
            for width, share in averages.get(kind, {}).items():
                y = row + (number - (len(kinds) - 1) / 2) * 0.34
                first = row == 0 and width == min(averages[kind])
                marker, colour = ("os^D"[number % 4], PALETTE[number % len(PALETTE)])
                axes.plot(100 * share, y, marker, color=colour, markersize=7, label=kind if first else None)
                near = [other - share for other in averages[kind].values() if 0 < abs(other - share) < 0.015]
                axes.annotate(
                    str(width),
                    (100 * share, y),
                    (
                        -3 * sum(gap > 0 for gap in near) + 3 * sum(gap < 0 for gap in near),
                        5 if number == 0 else -13,
                    ),
                    textcoords="offset points",
                    fontsize=8.5,
                    ha="center",
                )
        shares = "; ".join(
            f"{kind} " + ", ".join(f"{share:.0%} for {width}" for width, share in averages[kind].items())
            for kind in averages
        )
        said.append(f"{case}: paper {low:.1%} to {high:.1%}; {shares}")
    axes.set_yticks(range(len(ours)), list(ours))
    axes.invert_yaxis()
    axes.set_xlim(0, 82)
    axes.set_xlabel("table entries that need no block of their own, %")
    axes.set_title("Blocks saved, for 2, 4 and 6 samples or beams")
    fig.legend(loc="outside lower center", ncols=1 + len(kinds))
    inside = sum(
        low <= share <= high
        for case, (low, high) in paper.items()
        for share in ours[case].get(kinds[-1], {}).values()
    )
    points = sum(len(rows.get(kinds[-1], {})) for rows in ours.values())
    return Picture(
        fig,
        alt=f"Ranges and points. {'. '.join(said)}.",
        summary=f"Of the {points} points of the kind '{kinds[-1]}', {inside} lie within the paper's ranges.",
    )
