"""Pictures of a KV memory: the owner of each slot, and which slots hold a token or are free.

A snapshot is the state of a pool at one moment, taken from the block tables on it. Every view draws from one: this file
shows the memory at one moment, block by block, and the memory over time, one column per step; `pool.py` and `table.py`
show named blocks, and the tables that lead to them. Each view has a sentence that says the same as the picture. A held
slot without a token has a paler shade of its owner's colour, which makes the waste visible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import ipywidgets as widgets
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from coursekit.views.explore import controls
from coursekit.views.style import FAINT, INK, PALETTE, SKY, Picture

FREE = -1
OWNERS = (*(colour for colour in PALETTE if colour != SKY), "#555555")  # SKY is too close to a pale BLUE
NAMED_SLOTS = 100  # over time, a request's letter is drawn where it holds at least so many slots in a row
PALE = 0.72  # how far the colour of a held, empty slot is mixed with white


class AnyPool(Protocol):
    """The interface of a pool: the library's pool has it, and so do the pools written in lessons."""

    num_blocks: int
    block_size: int


class AnyTable(Protocol):
    """The interface of a block table."""

    blocks: list[int]
    num_tokens: int


@dataclass(frozen=True)
class Snapshot:
    """A pool at one moment.

    Attributes:
        owner: [num_blocks, block_size] int: index of the sequence that holds the slot, or -1. A shared slot
            shows the first of its holders.
        written: [num_blocks, block_size] bool: the slot holds a token.
        holders: [num_blocks] int: how many tables name the block.
        cached: [num_blocks] bool: the prefix cache can find the block by its contents.
        tables: for each sequence, its physical blocks in order.
        lengths: for each sequence, how many tokens it has.
    """

    owner: np.ndarray
    written: np.ndarray
    holders: np.ndarray
    cached: np.ndarray
    tables: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    lengths: Mapping[int, int] = field(default_factory=dict)

    @property
    def num_blocks(self) -> int:
        """Number of blocks in the pool."""
        return self.owner.shape[0]

    @property
    def block_size(self) -> int:
        """Slots per block."""
        return self.owner.shape[1]

    @property
    def num_held(self) -> int:
        """Number of slots held by a sequence."""
        return int((self.owner != FREE).sum())

    @property
    def num_written(self) -> int:
        """Number of slots that hold a token."""
        return int(self.written.sum())

    def words(self) -> str:
        """Describe the snapshot in one sentence."""
        total, held, written = self.owner.size, self.num_held, self.num_written
        shared = int((self.holders > 1).sum())
        extra = f", {shared} blocks are shared" if shared else ""
        return (
            f"{written} of {total} slots hold a token ({written / total:.0%}), "
            f"{held - written} are held and empty, {total - held} are free{extra}"
        )

    def holders_of(self, block: int) -> list[tuple[int, int]]:
        """The holders of a block: (sequence, its logical block), in the order of the sequences."""
        return [
            (number, logical)
            for number, blocks in self.tables.items()
            for logical, held in enumerate(blocks)
            if held == block
        ]

    def block_words(self, block: int) -> str:
        """Describe one block in a sentence: its holders, their logical block numbers, and how full it is."""
        slots = f"slots {block * self.block_size} to {(block + 1) * self.block_size - 1}"
        holders = self.holders_of(block)
        if not holders:
            state = "not held, but the prefix cache can still find it" if self.cached[block] else "free"
            return f"Block {block} ({slots}): {state}"
        who = " and ".join(f"{name_of(number)} as its logical block {logical}" for number, logical in holders)
        filled = int(self.written[block].sum())
        shared = f"shared by {len(holders)}: " if len(holders) > 1 else ""
        return f"Block {block} ({slots}): {shared}held by {who}; {filled} of {self.block_size} slots hold a token"


def name_of(number: int) -> str:
    """A sequence's name in pictures: A, B, C, … and numbers after Z."""
    return chr(ord("A") + number) if number < 26 else str(number)


def take_snapshot(pool: AnyPool, tables: Mapping[int, AnyTable]) -> Snapshot:
    """Take a snapshot of a pool through the tables on it; the keys number the owners from 0."""
    owner = np.full((pool.num_blocks, pool.block_size), FREE)
    written = np.zeros((pool.num_blocks, pool.block_size), dtype=bool)
    holders = np.zeros(pool.num_blocks, dtype=int)
    for number, table in tables.items():
        for logical, block in enumerate(table.blocks):
            holders[block] += 1
            if holders[block] == 1:
                owner[block] = number
            first = logical * pool.block_size
            written[block, : max(0, min(pool.block_size, table.num_tokens - first))] = True
    cache = getattr(pool, "prefix_cache", None)
    cached = np.array([cache is not None and block in cache for block in range(pool.num_blocks)])
    names = {number: tuple(table.blocks) for number, table in tables.items()}
    lengths = {number: table.num_tokens for number, table in tables.items()}
    return Snapshot(owner, written, holders, cached, names, lengths)


def draw_memory(axes: Axes, snapshot: Snapshot, blocks_per_row: int = 8, *, names: bool = False) -> None:
    """Draw the memory at one moment: one row of slots per row of blocks, ids at the left.

    With `names` each held block shows the name of its (first) holder.
    """
    num_blocks, block_size = snapshot.owner.shape
    rows = -(-num_blocks // blocks_per_row)
    image = np.ones((rows, blocks_per_row * block_size, 3))
    colours = slot_colours(snapshot.owner, snapshot.written)
    for block in range(num_blocks):
        row, column = divmod(block, blocks_per_row)
        image[row, column * block_size : (column + 1) * block_size] = colours[block]
    axes.imshow(image, aspect="auto", interpolation="nearest", extent=(0, blocks_per_row, rows, 0))
    for block in range(num_blocks if names else 0):
        if (number := int(snapshot.owner[block, 0])) != FREE:
            _label(axes, block % blocks_per_row + 0.09, block // blocks_per_row + 0.5, name_of(number))
    for x in range(1, blocks_per_row):
        axes.axvline(x, color=INK, linewidth=0.6)
    for y in range(1, rows):
        axes.axhline(y, color=INK, linewidth=0.6)
    axes.set_yticks([r + 0.5 for r in range(rows)], [str(r * blocks_per_row) for r in range(rows)])
    axes.set_xticks([])
    axes.set_ylabel("first block of the row")
    _frame(axes)


def draw_memory_over_time(axes: Axes, snapshots: Sequence[Snapshot]) -> None:
    """Draw the memory over time: one column per step, slot 0 at the top."""
    columns = [slot_colours(s.owner, s.written).reshape(-1, 3) for s in snapshots]
    image = np.stack(columns, axis=1)
    axes.imshow(image, aspect="auto", interpolation="nearest", extent=(0, len(snapshots), len(image), 0))
    for number, (step, slot) in _places(snapshots).items():
        _label(axes, step, slot, name_of(number))
    axes.set_xlabel("step")
    axes.set_ylabel("slot")
    _frame(axes)


def _places(snapshots: Sequence[Snapshot]) -> dict[int, tuple[float, float]]:
    """Return where each request's name fits: the middle, (step, slot), of a run of slots that it holds for long."""
    steps: dict[tuple[int, int, int], list[int]] = {}
    for step, snapshot in enumerate(snapshots):
        owner = snapshot.owner.reshape(-1)
        starts = np.flatnonzero(np.diff(owner, prepend=FREE - 1))
        for start, stop in zip(starts, [*starts[1:], len(owner)], strict=True):
            if owner[start] != FREE and stop - start >= NAMED_SLOTS:
                steps.setdefault((int(owner[start]), int(start), int(stop)), []).append(step)
    wide = {key: held for key, held in steps.items() if len(held) >= len(snapshots) / 60}
    return {n: ((held[0] + held[-1] + 1) / 2, (a + b) / 2) for (n, a, b), held in wide.items()}


def _label(axes: Axes, x: float, y: float, name: str) -> None:
    ground = {"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
    axes.text(x, y, name, ha="center", va="center", fontsize=7, color=INK, bbox=ground)


def step_slider(draw: Callable[[int], tuple[Figure, str]], num_steps: int, start: int = 0) -> widgets.VBox:
    """Build a slider over steps 1 .. num_steps, with the picture and text of that step: `draw(step - 1)`."""

    def picture(step: int) -> Picture:
        fig, sentence = draw(step - 1)
        return Picture(fig, alt=sentence, summary=sentence)

    return controls(picture, {"step": range(1, num_steps + 1)}, {"step": start + 1})


def legend_handles() -> list[Patch]:
    """Build the legend of the three kinds of slot."""
    return [
        Patch(facecolor=PALETTE[0], edgecolor=INK, label="holds a token (one colour per request)"),
        Patch(facecolor=_pale(PALETTE[0]), edgecolor=INK, label="held, but empty"),
        Patch(facecolor="white", edgecolor=INK, label="free"),
    ]


def slot_colours(owner: np.ndarray, written: np.ndarray) -> np.ndarray:
    """Return the RGB colour of every slot."""
    strong = np.array([to_rgb(c) for c in OWNERS])
    colours = np.ones((*owner.shape, 3))
    held = owner != FREE
    index = owner[held] % len(strong)
    pale = np.array([_pale(c) for c in strong])
    colours[held] = np.where(written[held][:, None], strong[index], pale[index])
    return colours


def _pale(colour: str | np.ndarray) -> tuple[float, float, float]:
    red, green, blue = (
        c + (1 - c) * PALE for c in to_rgb(tuple(colour) if isinstance(colour, np.ndarray) else colour)
    )
    return red, green, blue


def _frame(axes: Axes) -> None:
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_color(FAINT)
