"""Pictures of kernels: which program reads which block, the loads of each version, and the roofline (chapter 5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import MaxNLocator

from coursekit.kernels.lab import Access
from coursekit.views.style import BLUE, FAINT, GREEN, INK, ORANGE, PANEL, VERMILION, Picture, figure

CACHES = ("k_ptr", "v_ptr")  # the names of the two caches in the lesson's kernels
_SHADES = LinearSegmentedColormap.from_list("reads", [PANEL, BLUE])


@dataclass(frozen=True)
class Loads:
    """The loads of a launch. cache: bytes of keys and values; entries: of block tables; steps: see `count`."""

    cache: int
    entries: int
    steps: int


def count(accesses: Iterable[Access], number_bytes: int) -> Loads:
    """Count a launch's loads. steps: rounds of the longest program, each of which waits for keys."""
    cache = entries = 0
    rounds: dict[tuple[int, ...], int] = {}
    for access in accesses:
        if access.kind == "load" and access.name in CACHES:
            cache += len(access.offsets) * number_bytes
            rounds[access.program] = rounds.get(access.program, 0) + (access.name == CACHES[0])
        elif access.kind == "load" and access.name == "tables_ptr":
            entries += len(access.offsets)
    return Loads(cache, entries, max(rounds.values(), default=0))


def tokens_read(
    accesses: Iterable[Access], num_blocks: int, block_numbers: int, head_dim: int
) -> dict[str, np.ndarray]:
    """For each program ("A, 1": sequence, place on the other grid axes), the tokens whose keys it reads, by block."""
    found: dict[tuple[int, ...], np.ndarray] = {}
    for access in accesses:
        if access.kind == "load" and access.name == CACHES[0]:
            row = found.setdefault(access.program, np.zeros(num_blocks))
            row += np.bincount(access.offsets // block_numbers, minlength=num_blocks)
    axes = 3 if any(program[2] for program in found) else 2
    return {
        ", ".join([chr(ord("A") + program[0]), *map(str, program[1:axes])]): row / head_dim
        for program, row in found.items()
    }


def access_map(
    title: str, reads: Mapping[str, np.ndarray], tables: Sequence[Sequence[int]], axes: str
) -> Picture:
    """Draw a heat map: one row per program, one column per physical block, each cell the tokens whose keys are read.

    Args:
        reads: from `tokens_read`.
        tables: the used part of each sequence's table, to write its letter below its blocks.
        axes: the meaning of a program's indices, for instance "sequence, head".
    """
    counts = np.array(list(reads.values()))
    owner = {block: chr(ord("A") + seq) for seq, table in enumerate(tables) for block in table}
    fig, panel = figure(width=8, height=max(3.2, 1.5 + 0.24 * len(counts)))
    panel.imshow(counts, cmap=_SHADES, aspect="auto", vmin=0, vmax=counts.max() * 1.25)
    for (row, block), tokens in np.ndenumerate(counts):
        if tokens:
            panel.text(block, row, f"{tokens:.0f}", ha="center", va="center", fontsize=9,
                       color="white" if tokens > 0.75 * counts.max() else INK)  # fmt: skip
    panel.set_xticks(
        range(counts.shape[1]), [f"{block}\n{owner.get(block, '–')}" for block in range(counts.shape[1])]
    )
    panel.set_yticks(range(len(counts)), list(reads), fontsize=9)
    panel.set_xticks(np.arange(counts.shape[1] + 1) - 0.5, minor=True)
    panel.set_yticks(np.arange(len(counts) + 1) - 0.5, minor=True)
    panel.grid(which="minor", color=FAINT, linewidth=0.8)
    panel.tick_params(which="both", length=0)
    panel.set_xlabel("physical block, and its sequence")
    panel.set_ylabel(f"program ({axes})")
    panel.set_title(title)
    readers = (counts > 0).sum(axis=0)[sorted(owner)]
    blocks_each = (counts > 0).sum(axis=1)
    return Picture(
        fig,
        alt=f"Heat map of {len(counts)} programs and {counts.shape[1]} blocks. A program reads from "
        f"{_span(blocks_each)} blocks, always of one sequence; each block in use is read by "
        f"{_span(readers)} programs, the other {counts.shape[1] - len(owner)} by none.",
        summary=f"{title}: {len(counts)} programs, each reads the blocks of its sequence, and each block is "
        f"read by {_span(readers)} of them.",
    )


def _span(numbers: np.ndarray) -> str:
    low, high = int(numbers.min()), int(numbers.max())
    return str(low) if low == high else f"{low} to {high}"


def load_bars(versions: Mapping[str, Loads], fewest: int) -> Picture:
    """Draw each version's loads relative to the minimum, and the number of rounds of its longest program."""
    fig, (left, right) = figure(1, 2, width=9, height=1.4 + 0.36 * len(versions), sharey=True)
    rows = range(len(versions))
    shares = [loads.cache / fewest for loads in versions.values()]
    steps = [loads.steps for loads in versions.values()]
    for axes, numbers, colour, hatch, form in (
        (left, shares, BLUE, "", "{:.2f}×"),
        (right, steps, ORANGE, "////", "{:d}"),
    ):
        bars = axes.barh(rows, numbers, color=colour, hatch=hatch, edgecolor=PANEL, height=0.62)
        axes.bar_label(bars, [form.format(number) for number in numbers], padding=4, fontsize=10)
        axes.set_xlim(0, max(numbers) * 1.2)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    left.axvline(1, color=INK, linewidth=1, linestyle="--")
    left.set_yticks(rows, list(versions))
    left.invert_yaxis()
    left.set_title("Keys and values loaded")
    left.set_xlabel("relative to the minimum")
    right.set_title("Rounds, one after the other")
    right.set_xlabel("in the longest program")
    right.tick_params(axis="y", length=0)
    said = "; ".join(
        f"{name}: {share:.2f}×, {number} rounds"
        for name, share, number in zip(versions, shares, steps, strict=True)
    )
    first, last = next(iter(versions)), list(versions)[-1]
    return Picture(
        fig,
        alt=f"Bars for {len(versions)} kernels. Keys and values loaded, relative to the minimum, and rounds: {said}.",
        summary=f"From “{first}” to “{last}”: loads fall from {shares[0]:.2f}× to {shares[-1]:.2f}× the "
        f"minimum, rounds from {steps[0]} to {steps[-1]}.",
    )


def roofline(
    title: str,
    peak: float,
    bandwidth: float,
    points: Mapping[str, tuple[float, float | None]],
    unit: str = "TFLOP/s",
) -> Picture:
    """Draw attainable performance against operations per byte, on logarithmic axes.

    Args:
        peak: operations per second; bandwidth: bytes per second.
        points: name → (operations per byte, fraction of the roof that is reached; None: only the roof is shown).
        unit: of the vertical axis, TFLOP/s or GFLOP/s.
    """
    scale = {"TFLOP/s": 1e12, "GFLOP/s": 1e9}[unit]
    ridge = peak / bandwidth
    known = [intensity for intensity, _ in points.values()]
    low, high = min([*known, ridge]) / 3, max([*known, ridge]) * 4
    fig, axes = figure(width=8, height=3.9)
    axes.plot(
        [low, ridge, high], np.minimum(peak, np.array([low, ridge, high]) * bandwidth) / scale, color=INK
    )
    axes.axvline(ridge, color=INK, linewidth=1, linestyle=":")
    axes.set_xscale("log")
    axes.set_yscale("log")
    floor = low * bandwidth / scale / 4
    axes.set_ylim(floor, peak / scale * 3)
    axes.set_xlim(low, high)
    for text, side, shift in (
        (f"← below {ridge:.0f}: memory", "right", -6),
        ("above: arithmetic →", "left", 6),
    ):
        place = {"xytext": (shift, 0), "textcoords": "offset points", "ha": side, "fontsize": 9.5}
        axes.annotate(text, (ridge, peak / scale * 1.5), **place)
    said = []
    markers = zip(points.items(), "osD^vP", (BLUE, GREEN, ORANGE, VERMILION, BLUE, GREEN), strict=False)
    for i, ((name, (intensity, share)), marker, colour) in enumerate(markers):
        roof = min(peak, intensity * bandwidth)
        size = max(6, 13 - 3 * i)  # decreasing, so that overlapping points are both visible
        axes.plot(intensity, roof * (share or 1) / scale, marker, color=colour, markersize=size, markeredgecolor=INK,
                  label=name if share is None else f"{name}: {share:.0%} of its roof")  # fmt: skip
        waits = "memory" if intensity < ridge else "arithmetic"
        reached = "" if share is None else f", of which it reaches {share:.0%}"
        said.append(
            f"{name}: {intensity:.3g} operations per byte, limited by {waits}, roof {roof / scale:.3g} {unit}{reached}"
        )
    axes.set_xlabel("operations per byte read")
    axes.set_ylabel(unit)
    axes.set_title(title)
    axes.legend(loc="lower right", fontsize=9.5, frameon=True, facecolor=PANEL, edgecolor=FAINT, framealpha=1)
    bound = [name for name, (intensity, _) in points.items() if intensity < ridge]
    return Picture(
        fig,
        alt=f"Roofline: {peak / scale:.4g} {unit} and {bandwidth / 1e9:,.0f} GB/s, which meet at {ridge:.0f} "
        f"operations per byte. {'; '.join(said)}.",
        summary=f"{title}: below {ridge:.0f} operations per byte a kernel is memory-bound. Memory-bound here: "
        f"{'; '.join(bound) or 'none of them'}.",
    )


def slowdown(curves: Mapping[str, Mapping[int, float]], title: str) -> Picture:
    """Draw attention's time with a table relative to without one, against the block size; one line per device."""
    fig, axes = figure(width=7.5, height=3.4)
    for (name, curve), marker in zip(curves.items(), "osD", strict=False):
        axes.plot(list(curve), list(curve.values()), f"{marker}-", label=name, markersize=7)
    axes.axhline(1, color=INK, linewidth=1, linestyle="--")
    sizes = sorted({size for curve in curves.values() for size in curve})
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("block size, tokens")
    axes.set_ylabel("time relative to contiguous")
    axes.set_title(title)
    fig.legend(loc="outside lower center", ncols=len(curves), fontsize=9.5)
    said = "; ".join(
        f"{name}: " + ", ".join(f"{size} → {ratio:.2f}×" for size, ratio in curve.items())
        for name, curve in curves.items()
    )
    ends = "; ".join(
        f"{name}: {curve[max(curve)]:.2f}× with blocks of {max(curve)}" for name, curve in curves.items()
    )
    return Picture(
        fig,
        alt=f"Time relative to contiguous, against block size. {said}.",
        summary=f"{ends}; small blocks cost more.",
    )
