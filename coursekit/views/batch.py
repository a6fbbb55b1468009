"""A picture of one step's flat batch: one box per token, with positions, slots and each sequence's metadata."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from coursekit.views.style import INK, PALETTE, Picture, figure
from paged_ref.model.batch import StepBatch


def draw_batch(axes: Axes, batch: StepBatch) -> None:
    """Draw the row of tokens, one colour per sequence, with a frame around the sampled rows."""
    starts = batch.attention.query_start_loc
    sequence = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    sampled = set(batch.sample_rows.tolist())
    small = len(sequence) > 30
    style: dict[str, Any] = {"ha": "center", "color": INK, "fontsize": 8.5 if small else 11, "zorder": 4}
    for row, number in enumerate(sequence):
        box = Rectangle((row + 0.04, 0), 0.92, 1, facecolor=PALETTE[number % len(PALETTE)], alpha=0.55)
        if row in sampled:
            box.set(edgecolor=INK, linewidth=2.2, zorder=3)
        axes.add_patch(box)
        axes.text(row + 0.5, 0.5, str(batch.positions[row]), va="center", **style)
        slot = str(batch.slot_mapping[row])
        axes.text(row + 0.5, -0.25, slot, va="top", rotation=90 if small else 0, **style)
    for name, (start, stop) in enumerate(pairwise(starts)):
        wide = stop - start > 0.12 * len(sequence)
        label = f"sequence {name}" if wide else str(name)
        axes.text((start + stop) / 2, 1.15, label, ha="center", va="bottom", fontsize=10, color=INK)
    axes.text(-0.3, 0.5, "position", ha="right", va="center", fontsize=10)
    axes.text(-0.3, -0.3, "slot", ha="right", va="top", fontsize=10)
    axes.set_xlim(-0.12 * len(sequence) - 0.6, len(sequence))
    axes.set_ylim(-0.95 if small else -0.7, 1.6)
    axes.axis("off")


def step_picture(batch: StepBatch, title: str, block_size: int) -> Picture:
    """Draw the row of tokens and a line for each sequence: its start, its length and its blocks."""
    attention = batch.attention
    starts, lens = attention.query_start_loc.tolist(), attention.seq_lens.tolist()
    used = [row[: -(-n // block_size)].tolist() for row, n in zip(attention.block_tables, lens, strict=True)]
    fig, (top, below) = figure(
        2, 1, width=10, height=2.9 + 0.3 * len(lens), height_ratios=[2.3, 0.75 + 0.3 * len(lens)]
    )
    draw_batch(top, batch)
    top.set_title(title)
    widest = 0.62 / max(map(len, used))
    columns = {"query_start_loc": 0.17, "seq_lens": 0.3, "block_tables": 0.36}
    for name, x in columns.items():
        side = "left" if name == "block_tables" else "right"
        below.text(x, 0, name, ha=side, va="center", fontsize=10, fontweight="bold")
    for i, blocks in enumerate(used):
        y, colour = -1 - i, PALETTE[i % len(PALETTE)]
        below.add_patch(Rectangle((0, y - 0.36), 0.016, 0.72, facecolor=colour, alpha=0.55))
        below.text(0.022, y, str(i), va="center", fontsize=10)
        below.text(columns["query_start_loc"], y, f"{starts[i]}", ha="right", va="center", fontsize=10)
        below.text(columns["seq_lens"], y, f"{lens[i]}", ha="right", va="center", fontsize=10)
        for k, block in enumerate(blocks):
            x = columns["block_tables"] + k * min(widest, 0.06)
            below.text(x, y, str(block), va="center", fontsize=10)
    y = -1 - len(lens)
    below.text(columns["query_start_loc"], y, f"{starts[-1]}", ha="right", va="center", fontsize=10)
    below.text(columns["query_start_loc"] + 0.012, y, "the end of the row", va="center", fontsize=9)
    below.set_xlim(0, 1)
    below.set_ylim(y - 0.5, 0.6)
    below.axis("off")
    said = "; ".join(
        f"sequence {i} computes {stop - start} of its {n} tokens, at positions {batch.positions[start]} to "
        f"{batch.positions[stop - 1]}, in slots {', '.join(map(str, batch.slot_mapping[start:stop]))}"
        for i, ((start, stop), n) in enumerate(zip(pairwise(starts), lens, strict=True))
    )
    counts = [stop - start for start, stop in pairwise(starts)]
    return Picture(
        fig,
        alt=f"A row of {starts[-1]} boxes, one colour for each sequence; sampled rows, framed: "
        f"{', '.join(map(str, batch.sample_rows))}. {said}.",
        summary=f"{title}: {starts[-1]} tokens of {len(lens)} sequences, none padded; a rectangle would have "
        f"{len(counts) * max(counts)}.",
    )
