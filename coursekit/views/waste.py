"""Pictures of memory use: bars of tokens and waste, and their dependence on the block size (chapters 1 and 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.patches import Patch, Rectangle

from coursekit.views.style import BLUE, FAINT, GREEN, INK, ORANGE, VERMILION, Picture, figure, label_bar
from paged_ref.sizing import blocks_for

# The order of the parts, their colours and their hatching.
PARTS = {
    "tokens": (BLUE, ""),
    "held, empty": (ORANGE, "////"),
    "internal": (ORANGE, "////"),
    "reserved": (VERMILION, "...."),
    "external": (GREEN, "xxxx"),
    "free": (FAINT, ""),
}


def waste_bars(bars: Mapping[str, Mapping[str, float]], title: str, unit: str = "slots") -> Picture:
    """Draw one stacked bar per name: part → amount, as fractions of the bar's total.

    Raises:
        ValueError: a part is unknown, an amount is negative, or a bar is empty.
    """
    for name, parts in bars.items():
        if unknown := sorted(set(parts) - set(PARTS)):
            raise ValueError(
                f"waste_bars: {name} has the unknown part {unknown[0]!r}; known: {', '.join(PARTS)}"
            )
        if min(parts.values(), default=0) < 0 or not sum(parts.values()):
            raise ValueError(f"waste_bars: {name} is {dict(parts)}: amounts must be 0 or more, and not all 0")
    fig, axes = figure(width=8, height=1.3 + 0.5 * len(bars))
    used = [part for part in PARTS if any(parts.get(part) for parts in bars.values())]
    for row, parts in enumerate(bars.values()):
        left, total = 0.0, sum(parts.values())
        for part in used:
            colour, hatch = PARTS[part]
            share = parts.get(part, 0) / total
            axes.barh(
                row,
                share,
                left=left,
                color=colour,
                hatch=hatch,
                edgecolor="white",
                label=part if row == 0 else None,
            )
            if share > 0.06:
                label_bar(axes, left + share / 2, row, f"{share:.1%}")
            left += share
    axes.set_yticks(range(len(bars)), list(bars))
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    axes.set_title(title)
    fig.legend(loc="outside lower center", ncols=len(used))
    said = [f"{name}: {_said(parts)} of {sum(parts.values()):,.0f} {unit}" for name, parts in bars.items()]
    shares = {name: parts.get("tokens", 0) / sum(parts.values()) for name, parts in bars.items()}
    summary = "Fraction that holds tokens: " + ", ".join(
        f"{name} {share:.1%}" for name, share in shares.items()
    )
    return Picture(fig, alt=f"Stacked bars. {'; '.join(said)}.", summary=f"{summary}.")


def growth(lengths: Sequence[int], block_size: int) -> Picture:
    """Draw a row for each length of one growing sequence: full slots, the new token, and empty slots."""
    fig, axes = figure(width=7, height=1.1 + 0.4 * len(lengths))
    gap, taken = 0.4, [n for n in lengths if blocks_for(n, block_size) > blocks_for(n - 1, block_size)]
    widest = blocks_for(max(lengths), block_size) * (block_size + gap)
    for row, length in enumerate(lengths):
        for slot in range(blocks_for(length, block_size) * block_size):
            colour = "white" if slot >= length else ORANGE if slot == length - 1 else BLUE
            place = (slot + slot // block_size * gap, -row)
            axes.add_patch(Rectangle(place, 0.92, 0.62, facecolor=colour, edgecolor=INK, linewidth=0.7))
        if length in taken:
            end = blocks_for(length, block_size) * (block_size + gap)
            axes.text(end, 0.31 - row, "a block is allocated", va="center", fontsize=10)
    axes.set_yticks([0.31 - row for row in range(len(lengths))], [f"{length} tokens" for length in lengths])
    axes.tick_params(length=0)
    axes.set_xlim(-0.1, widest + block_size)
    axes.set_ylim(-len(lengths) + 0.9, 0.8)
    axes.set_xticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    colours = (
        (BLUE, "holds a token"),
        (ORANGE, "the newest token"),
        ("white", "held, empty"),
    )
    handles = [Patch(facecolor=colour, edgecolor=INK, label=label) for colour, label in colours]
    fig.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    said = " and ".join(str(n) for n in taken) or "none"
    axes.set_title(f"Block size {block_size}: a block is allocated with token {said}")
    rows = "; ".join(f"{n} tokens: {-n % block_size} empty in {blocks_for(n, block_size)}" for n in lengths)
    return Picture(
        fig,
        alt=f"A row of slots for each length, in blocks of {block_size}; empty slots and blocks: {rows}.",
        summary=f"A block is allocated with token {said}; a full last block alone does not cause an allocation.",
    )


def waste_curve(
    name: str, sizes: Sequence[int], waste: Sequence[float], entries: Sequence[float], limit: float
) -> Picture:
    """Draw waste and table length against the block size; mark the largest size whose waste is below `limit`.

    Args:
        waste: fraction of the held slots, one per size, rising.
        entries: mean number of table entries, one per size.
    """
    at = max((i for i, share in enumerate(waste) if share < limit), default=0)
    fig, (left, right) = figure(1, 2, width=9, height=3.2)
    left.plot(sizes, [100 * share for share in waste], "o-", color=ORANGE)
    left.axhline(100 * limit, color=INK, linewidth=1, linestyle="--")
    left.annotate(
        f"limit: {limit:.0%}", (sizes[0], 100 * limit), (0, 4), textcoords="offset points", fontsize=9.5
    )
    left.set_ylabel("wasted slots, %")
    left.set_title(f"Waste ({name})")
    right.plot(sizes, entries, "s-", color=BLUE)
    right.set_yscale("log")
    right.set_ylabel("table entries")
    right.set_title("Look-ups per sequence and layer")
    for axes in (left, right):
        axes.axvline(sizes[at], color=INK, linewidth=1, linestyle=":")
        place = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "fontsize": 9.5}
        side, shift = ("left", 4) if at < len(sizes) / 3 else ("right", -4)  # the label stays inside
        axes.annotate(f"chosen: {sizes[at]}", (sizes[at], 0.92), (shift, 0), ha=side, **place)
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.minorticks_off()
        axes.set_xlabel("block size, tokens")
    after = f"; blocks of {sizes[at + 1]} would waste {waste[at + 1]:.1%}" if at + 1 < len(sizes) else ""
    return Picture(
        fig,
        alt=f"Two curves against block sizes {sizes[0]} to {sizes[-1]}. Wasted slots rise from {waste[0]:.0%} to "
        f"{waste[-1]:.0%} and pass {limit:.0%} above {sizes[at]}. Table entries fall from {entries[0]:.0f} to "
        f"{entries[-1]:.1f}.",
        summary=f"{name}: blocks of {sizes[at]} waste {waste[at]:.1%}, with {entries[at]:.0f} look-ups on "
        f"average{after}.",
    )


def _said(parts: Mapping[str, float]) -> str:
    total = sum(parts.values())
    return ", ".join(f"{part} {amount / total:.1%}" for part, amount in parts.items() if amount)
