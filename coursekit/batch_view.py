"""A picture of one step's flat batch: one box a token, positions inside, slots below."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from coursekit.show import INK, PALETTE
from paged_ref.batch import StepBatch


def draw_batch(axes: Axes, batch: StepBatch) -> None:
    """Draw the row of tokens; a colour a sequence, a frame around the rows that are sampled."""
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
        label = f"sequence {name}" if stop - start > 2 or not small else str(name)
        axes.text((start + stop) / 2, 1.15, label, ha="center", va="bottom", fontsize=10, color=INK)
    axes.text(-0.3, 0.5, "position", ha="right", va="center", fontsize=10)
    axes.text(-0.3, -0.3, "slot", ha="right", va="top", fontsize=10)
    axes.set_xlim(-0.12 * len(sequence) - 0.6, len(sequence))
    axes.set_ylim(-0.95 if small else -0.7, 1.6)
    axes.axis("off")
