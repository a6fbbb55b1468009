"""Block tables as arrows from logical to physical blocks, and the way from a token to its bytes (chapter 2)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

from coursekit.views.memory_map import Snapshot, name_of
from coursekit.views.pool import draw_block, legend
from coursekit.views.style import BLUE, FAINT, INK, ORANGE, PALETTE, PANEL, Picture, figure

MOST_DRAWN = 20  # physical blocks; in a larger pool only blocks that a table names are drawn
GAP = 0.8


def draw_tables(snapshot: Snapshot, title: str = "") -> Picture:
    """Draw each sequence's logical blocks in order above, the physical blocks in memory below, arrows between."""
    shown = _shown_blocks(snapshot)
    places, width = _places(shown)
    logical = sum(len(blocks) for blocks in snapshot.tables.values())
    sequences = [number for number, blocks in snapshot.tables.items() if blocks]
    total = max(width, logical + GAP * (len(sequences) - 1))
    fig, axes = figure(width=min(9.5, max(6, 0.62 * total + 1.6)), height=3.5)
    x, top = (total - logical - GAP * (len(sequences) - 1)) / 2, 2.4
    shift = (total - width) / 2
    for number in sequences:
        blocks, size = snapshot.tables[number], snapshot.block_size
        colour = PALETTE[number % len(PALETTE)]
        axes.text(
            x + 0.05,
            top + 0.98,
            f"{name_of(number)}: {snapshot.lengths[number]} tokens",
            fontsize=10,
            va="bottom",
        )
        for i, block in enumerate(blocks):
            filled = min(size, snapshot.lengths[number] - i * size)
            axes.add_patch(
                Rectangle((x + 0.05, top), 0.9 * filled / size, 0.6, facecolor=colour, edgecolor="none")
            )
            axes.add_patch(Rectangle((x + 0.05, top), 0.9, 0.6, facecolor="none", edgecolor=INK))
            axes.text(x + 0.05, top + 0.64, str(i), fontsize=8.5, va="bottom")
            _arrow(axes, (x + 0.5, top), (places[block] + shift + 0.5, 0.86), colour)
            x += 1
        x += GAP
    for block in shown:
        draw_block(axes, snapshot, block, places[block] + shift, 0)
    for left, right in pairwise(shown):
        if right != left + 1:
            axes.text((places[left] + 1 + places[right]) / 2 + shift, 0.3, "…", ha="center", va="center")
    axes.text(-0.15, top + 0.3, "logical", ha="right", va="center", fontsize=10)
    axes.text(-0.15, 0.3, "physical", ha="right", va="center", fontsize=10)
    axes.set_xlim(-1.5, total + 0.1)
    axes.set_ylim(-0.1, top + 1.45)
    axes.axis("off")
    axes.set_title(title or "Block tables: logical blocks in order, physical blocks anywhere")
    fig.legend(handles=legend(snapshot), loc="outside lower center", ncols=5)
    said = "; ".join(
        f"{name_of(n)} ({snapshot.lengths[n]} tokens): "
        + ", ".join(f"logical {i} to physical {block}" for i, block in enumerate(snapshot.tables[n]))
        for n in sequences
    )
    jumps = sum(b != a + 1 for n in sequences for a, b in pairwise(snapshot.tables[n]))
    steps = sum(max(0, len(snapshot.tables[n]) - 1) for n in sequences)
    return Picture(
        fig,
        alt=f"Arrows from logical to physical blocks. {said}.",
        summary=f"{logical} table entries; {jumps} of the {steps} steps from one logical block to the next "
        "jump in memory.",
    )


def address(
    blocks: Sequence[int],
    block_size: int,
    token: int,
    bytes_per_token: int = 0,
    num_tokens: int | None = None,
) -> Picture:
    """Draw one token's path: divide, look up, multiply, add. One picture from the request to the bytes.

    Args:
        blocks: the block table.
        bytes_per_token: of one layer's keys (values are in a second array of the same form); 0: leave bytes out.
        num_tokens: tokens of the sequence; default: all its blocks are full.

    Raises:
        IndexError: the table has no such token.
    """
    num_tokens = len(blocks) * block_size if num_tokens is None else num_tokens
    if not 0 <= token < min(num_tokens, len(blocks) * block_size):
        raise IndexError(f"token {token} has no slot: the table has {num_tokens} tokens")
    logical, offset = divmod(token, block_size)
    slot = blocks[logical] * block_size + offset
    fig, axes = figure(width=9, height=3.4)
    _stage(axes, 0, "request", f"token {token}", f"of {num_tokens}")
    _stage(
        axes,
        2.1,
        "logical",
        f"block {logical}, offset {offset}",
        f"{token} = {logical} x {block_size} + {offset}",
    )
    _table(axes, 4.75, blocks, logical)
    _stage(axes, 6.6, "physical", f"block {blocks[logical]}", f"table[{logical}]")
    _slots(axes, 8.6, blocks[logical], block_size, offset)
    for start, end in ((1.5, 2.1), (4.1, 4.7), (6.0, 6.6), (8.1, 8.6)):
        _arrow(axes, (start, 0), (end, 0), INK)
    axes.text(
        0, -1.6, f"slot = {blocks[logical]} x {block_size} + {offset} = {slot}", fontsize=11.5, weight="bold"
    )
    told = f"slot {slot}"
    if bytes_per_token:
        first = slot * bytes_per_token
        axes.text(
            0, -2.05, f"bytes {first:,} to {first + bytes_per_token - 1:,}", fontsize=11.5, weight="bold"
        )
        axes.text(0, -2.4, "of this layer's keys", fontsize=10)
        told += f", bytes {first:,} to {first + bytes_per_token - 1:,} of this layer's keys"
    _stage(axes, 8.2, "kernel", "reads every slot", "in the table: q . k, softmax, v", y=-1.8, width=2.9)
    _stage(axes, 5.7, "", "next token", "after all slots", y=-1.8, width=2.0)
    _arrow(axes, (9.8, -0.75), (9.8, -1.25), INK)
    _arrow(axes, (8.2, -1.8), (7.7, -1.8), INK)
    axes.set_xlim(-0.1, 11.2)
    axes.set_ylim(-2.5, 1.45)
    axes.axis("off")
    axes.set_title("From a token to its place in memory")
    words = (
        f"token {token} is in logical block {logical} at offset {offset}; the table says physical block "
        f"{blocks[logical]}; {told}"
    )
    return Picture(
        fig,
        alt=f"A chain: request, division by {block_size}, look-up in the table {_shorten(blocks)}, memory, kernel, "
        f"next token: {words}.",
        summary=f"{words[:1].upper()}{words[1:]}.",
    )


def _stage(
    axes: Axes, x: float, name: str, value: str, small: str, y: float = 0, width: float | None = None
) -> None:
    """Draw one station of the path: its name above the box, its content, and its origin."""
    width = width or (2.0 if name == "logical" else 1.5)
    axes.add_patch(Rectangle((x, y - 0.55), width, 1.1, facecolor="white", edgecolor=INK))
    if y == 0:
        axes.text(x + width / 2, 0.75, name, ha="center", va="bottom", fontsize=10)
    elif name:
        value = f"{name} {value}"
    size = 10.5 if len(value) < 14 else 9
    axes.text(x + width / 2, y + 0.16, value, ha="center", va="center", fontsize=size, weight="bold")
    axes.text(x + width / 2, y - 0.26, small, ha="center", va="center", fontsize=9)


def _table(axes: Axes, x: float, blocks: Sequence[int], chosen: int) -> None:
    """Draw a window of the block table around the chosen entry."""
    first = max(0, min(chosen - 1, len(blocks) - 3))
    window = range(first, min(len(blocks), first + 3))
    axes.text(x + 0.62, 1.05, "block table", ha="center", va="bottom", fontsize=10)
    for row, i in enumerate(window):
        y = 0.45 - row * 0.55
        colour = ORANGE if i == chosen else "white"
        axes.add_patch(Rectangle((x + 0.35, y), 0.85, 0.55, facecolor=colour, edgecolor=INK))
        axes.text(x + 0.28, y + 0.27, str(i), ha="right", va="center", fontsize=9)
        axes.text(x + 0.78, y + 0.27, str(blocks[i]), ha="center", va="center", fontsize=10)
    if window.stop < len(blocks):
        axes.text(x + 0.78, 0.45 - len(window) * 0.55 + 0.25, "…", ha="center", va="center")


def _slots(axes: Axes, x: float, block: int, block_size: int, offset: int) -> None:
    width = 2.4 / block_size
    axes.text(x + 1.2, 0.75, f"memory (HBM), block {block}", ha="center", va="bottom", fontsize=10)
    for i in range(block_size):
        colour = BLUE if i == offset else FAINT
        axes.add_patch(
            Rectangle((x + i * width, -0.35), width, 0.7, facecolor=colour, edgecolor=PANEL, linewidth=0.8)
        )
    axes.add_patch(Rectangle((x, -0.35), 2.4, 0.7, facecolor="none", edgecolor=INK))
    axes.text(
        x + (offset + 0.5) * width,
        -0.42,
        f"slot {block * block_size + offset}",
        ha="center",
        va="top",
        fontsize=9,
    )


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
    axes.add_patch(
        FancyArrowPatch(
            start, end, arrowstyle="-|>", mutation_scale=11, color=colour, linewidth=1.6, zorder=2
        )
    )


def _shown_blocks(snapshot: Snapshot) -> list[int]:
    if snapshot.num_blocks <= MOST_DRAWN:
        return list(range(snapshot.num_blocks))
    return sorted({block for blocks in snapshot.tables.values() for block in blocks})


def _places(shown: Sequence[int]) -> tuple[dict[int, float], float]:
    """Return the place of each physical block, with a gap where ids are left out, and the total width."""
    places, x = {}, 0.0
    for i, block in enumerate(shown):
        if i and block != shown[i - 1] + 1:
            x += GAP
        places[block] = x
        x += 1
    return places, x


def _shorten(blocks: Sequence[int]) -> str:
    return str(list(blocks)) if len(blocks) <= 8 else f"of {len(blocks)} entries"
