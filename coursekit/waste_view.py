"""Bars of what a memory is spent on: tokens, and the kinds of waste (chapters 1 and 2)."""

from __future__ import annotations

from collections.abc import Mapping

from coursekit.show import BLUE, FAINT, GREEN, ORANGE, VERMILION, Picture, figure, label_bar

# The order in which the parts stand, their colours and their hatching.
PARTS = {
    "tokens": (BLUE, ""),
    "internal": (ORANGE, "////"),
    "reserved": (VERMILION, "...."),
    "external": (GREEN, "xxxx"),
    "free": (FAINT, ""),
}


def waste_bars(bars: Mapping[str, Mapping[str, float]], title: str, unit: str = "slots") -> Picture:
    """One stacked bar for each name: part → amount, drawn as shares of the bar's own total.

    Raises:
        ValueError: an unknown part, a negative amount, or a bar of nothing.
    """
    for name, parts in bars.items():
        if unknown := sorted(set(parts) - set(PARTS)):
            raise ValueError(f"waste_bars: {name} has the part {unknown[0]!r}; parts are {', '.join(PARTS)}")
        if min(parts.values(), default=0) < 0 or not sum(parts.values()):
            raise ValueError(f"waste_bars: {name} is {dict(parts)}: amounts are 0 or more, and not all 0")
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
    summary = "Share that holds tokens: " + ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
    return Picture(fig, alt=f"Stacked bars. {'; '.join(said)}.", summary=f"{summary}.")


def _said(parts: Mapping[str, float]) -> str:
    total = sum(parts.values())
    return ", ".join(f"{part} {amount / total:.1%}" for part, amount in parts.items() if amount)
