"""A picture of one step's flat batch: one box a token, positions inside, slots below."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from coursekit.show import INK, PALETTE, PANEL
from paged_ref.batch import StepBatch


def draw_batch(axes: Axes, batch: StepBatch) -> None:
    """Draw the row of tokens; a colour a sequence, a frame around the rows that are sampled."""
    starts = batch.attention.query_start_loc
    sequence = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    sampled = set(batch.sample_rows.tolist())
    small = len(sequence) > 30
    for row, (number, position, slot) in enumerate(zip(sequence, batch.positions, batch.slot_mapping, strict=True)):
        frame = {"edgecolor": INK, "linewidth": 2.2, "zorder": 3} if row in sampled else {"edgecolor": PANEL, "linewidth": 1}
        axes.add_patch(Rectangle((row + 0.04, 0), 0.92, 1, facecolor=PALETTE[number % len(PALETTE)], alpha=0.55, **frame))
        size = 8.5 if small else 11
        axes.text(row + 0.5, 0.5, str(position), ha="center", va="center", fontsize=size, color=INK, zorder=4)
        axes.text(row + 0.5, -0.25, str(slot), ha="center", va="top", fontsize=size, color=INK, rotation=90 if small else 0)
    for number, (start, stop) in enumerate(zip(starts, starts[1:], strict=False)):
        label = f"sequence {number}" if stop - start > 2 or not small else str(number)
        axes.text((start + stop) / 2, 1.15, label, ha="center", va="bottom", fontsize=10, color=INK)
    axes.text(-0.3, 0.5, "position", ha="right", va="center", fontsize=10)
    axes.text(-0.3, -0.3, "slot", ha="right", va="top", fontsize=10)
    axes.set_xlim(-0.12 * len(sequence) - 0.6, len(sequence))
    axes.set_ylim(-1.1, 1.6)
    axes.axis("off")
