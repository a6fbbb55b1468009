"""The named blocks of a pool: holders, shared, cached and free blocks, and the partial tail (chapters 2 and 4).

One box per block, with its id above it, its slots from left to right, and the names of its holders inside. Kinds of
block differ by more than colour: letters for holders, hatching for shared blocks, dots for cached ones.

All views use the same snapshot: the static map, an allocation history step by step, and a map with clickable blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ipywidgets as widgets
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.patches import Patch, Rectangle

from coursekit.views.explore import PictureFrame, explore
from coursekit.views.memory_map import AnyPool, AnyTable, Snapshot, name_of, slot_colours, take_snapshot
from coursekit.views.style import FAINT, INK, PALETTE, PANEL, Picture, display_widget, figure

SHARED, CACHED = "////", "...."
MANY = 12  # number of blocks in one row


def pool_map(snapshot: Snapshot, title: str = "", selected: int | None = None, per_row: int = 8) -> Picture:
    """Draw the pool at one moment. `selected` frames one block, and the summary is then about it."""
    rows = -(-snapshot.num_blocks // per_row)
    fig, axes = figure(width=8, height=1.05 + 0.62 * rows)
    draw_pool(axes, snapshot, selected, per_row)
    axes.set_title(title or f"{snapshot.num_blocks} blocks of {snapshot.block_size} slots")
    fig.legend(handles=legend(snapshot), loc="outside lower center", ncols=5)
    summary = snapshot.words() if selected is None else snapshot.block_words(selected)
    return Picture(fig, alt=f"{_all_blocks(snapshot)}.", summary=f"{summary}.")


def draw_pool(axes: Axes, snapshot: Snapshot, selected: int | None = None, per_row: int = 8) -> None:
    """Draw boxes in rows of `per_row`, block 0 at the upper left."""
    colours = slot_colours(snapshot.owner, snapshot.written)
    for block in range(snapshot.num_blocks):
        row, column = divmod(block, per_row)
        draw_block(axes, snapshot, block, column, -row, colours[block], block == selected)
    rows = -(-snapshot.num_blocks // per_row)
    axes.set_xlim(-0.05, per_row + 0.05)
    axes.set_ylim(-rows + 0.9, 1.02)
    axes.axis("off")


def draw_block(
    axes: Axes,
    snapshot: Snapshot,
    block: int,
    x: float,
    y: float,
    colours: Any = None,
    selected: bool = False,
    label: str | None = None,
) -> None:
    """Draw one block with its lower left corner at (x, y), 0.9 wide and 0.6 high, its id above it."""
    width, size = 0.9, snapshot.block_size
    colours = (
        slot_colours(snapshot.owner[block : block + 1], snapshot.written[block : block + 1])[0]
        if colours is None
        else colours
    )
    for offset in range(size):
        place = (x + 0.05 + offset * width / size, y)
        axes.add_patch(Rectangle(place, width / size, 0.6, facecolor=colours[offset], edgecolor="none"))
        if offset > 0 and size <= 32:
            axes.plot([place[0]] * 2, [y, y + 0.6], color=INK, linewidth=0.25, alpha=0.35)
    shared, cached = snapshot.holders[block] > 1, snapshot.cached[block]
    hatch = SHARED if shared else CACHED if cached and not snapshot.holders[block] else None
    box: dict[str, Any] = {
        "facecolor": "none",
        "edgecolor": INK,
        "linewidth": 2.6 if selected else 0.8,
        "zorder": 3,
    }
    if hatch:
        axes.add_patch(
            Rectangle((x + 0.05, y), width, 0.6, facecolor="none", edgecolor=INK, hatch=hatch, alpha=0.35)
        )
    axes.add_patch(Rectangle((x + 0.05, y), width, 0.6, **box))
    names = "+".join(name_of(number) for number, _ in snapshot.holders_of(block)) if label is None else label
    if names:
        ground = {"boxstyle": "round,pad=0.12", "facecolor": PANEL, "edgecolor": "none", "alpha": 0.9}
        axes.text(x + 0.5, y + 0.3, names, ha="center", va="center", bbox=ground, zorder=4, fontsize=9.5)
    weight = "bold" if selected else "normal"
    axes.text(x + 0.05, y + 0.64, str(block), ha="left", va="bottom", fontsize=8.5, fontweight=weight)


def legend(snapshot: Snapshot) -> list[Patch]:
    """Build a legend of only the kinds of block in the snapshot."""
    pale = slot_colours(snapshot.owner[:1] * 0, snapshot.written[:1] & False)[0, 0]
    handles = [
        Patch(facecolor=PALETTE[0], edgecolor=INK, label="holds a token"),
        Patch(facecolor=pale, edgecolor=INK, label="held, empty"),
        Patch(facecolor="white", edgecolor=INK, label="free"),
    ]
    if (snapshot.holders > 1).any():
        handles.append(Patch(facecolor=FAINT, edgecolor=INK, hatch=SHARED, label="shared"))
    if (snapshot.cached & (snapshot.holders == 0)).any():
        handles.append(Patch(facecolor="white", edgecolor=INK, hatch=CACHED, label="free, still cached"))
    return handles


class History:
    """The history of a pool, one snapshot after each event.

        history = History(pool, {0: a, 1: b})
        a.append(5); history.note("A gets 5 tokens")

    The mapping of tables is read at each note, so sequences may be added and removed.
    """

    def __init__(self, pool: AnyPool, tables: Mapping[int, AnyTable]) -> None:
        self.pool, self.tables = pool, tables
        self.events: list[str] = []
        self.snapshots: list[Snapshot] = []
        self.note("nothing is allocated")

    def note(self, event: str) -> None:
        """Take a snapshot and record the event that led to it."""
        self.events.append(event)
        self.snapshots.append(take_snapshot(self.pool, self.tables))

    def picture(self, step: int) -> Picture:
        """Draw the pool after an event; step 0 is the start."""
        drawn = pool_map(self.snapshots[step], title=f"Step {step}: {self.events[step]}")
        return Picture(drawn.fig, drawn.alt, f"After step {step} ({self.events[step]}): {drawn.summary}")

    def explore(self, start: int) -> None:
        """Show the picture of one step, and a slider over all of them."""
        explore(
            self.picture,
            f"a slider over the {len(self.events)} steps of this history",
            start={"step": start},
            step=range(len(self.events)),
        )


def pick_block(snapshot: Snapshot, selected: int, title: str = "") -> None:
    """Show the map with one block framed, and below it the blocks as buttons: a click shows the block's holders."""
    pool_map(snapshot, title, selected).show()
    text = (
        f"a button for each block that shows its holders; in the picture above, block {selected} is selected"
    )
    display_widget(block_buttons(snapshot, selected, title), text)


def block_buttons(snapshot: Snapshot, selected: int, title: str = "", per_row: int = 8) -> widgets.VBox:
    """Build buttons in the order and colours of the map; the clicked block is framed and described."""
    frame = PictureFrame()
    colours = slot_colours(snapshot.owner[:, :1], snapshot.written[:, :1])[:, 0]
    buttons = [_button(snapshot, block, to_hex(colours[block])) for block in range(snapshot.num_blocks)]

    def choose(block: int) -> None:
        frame.put(pool_map(snapshot, title, block, per_row))

    for block, button in enumerate(buttons):
        button.on_click(lambda _, block=block: choose(block))
    choose(selected)
    columns = f"repeat({per_row}, minmax(48px, 92px))"
    grid = widgets.GridBox(buttons, layout=widgets.Layout(grid_template_columns=columns))
    return widgets.VBox([grid, frame.image, frame.words])


def _button(snapshot: Snapshot, block: int, colour: str) -> widgets.Button:
    names = "+".join(name_of(number) for number, _ in snapshot.holders_of(block))
    button = widgets.Button(
        description=f"{block}: {names}" if names else f"{block}: free",
        tooltip=snapshot.block_words(block),
        layout=widgets.Layout(width="auto", margin="1px"),
    )
    button.style.button_color = colour if names else "#FFFFFF"
    button.style.text_color = "#FFFFFF" if names and _is_dark(colour) else INK
    return button


def _is_dark(colour: str) -> bool:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue < 125


def _all_blocks(snapshot: Snapshot) -> str:
    """Describe every block: by holder, then the cached and the free ones."""
    parts: list[str] = []
    for number, blocks in snapshot.tables.items():
        if blocks:
            tokens = snapshot.lengths[number]
            parts.append(f"{name_of(number)} holds {_ids(blocks)} for {tokens} tokens")
    unheld = [block for block in range(snapshot.num_blocks) if not snapshot.holders[block]]
    cached = [block for block in unheld if snapshot.cached[block]]
    free = [block for block in unheld if not snapshot.cached[block]]
    shared = [block for block in range(snapshot.num_blocks) if snapshot.holders[block] > 1]
    parts += [f"shared: {_ids(shared)}"] if shared else []
    parts += [f"free but still in the prefix cache: {_ids(cached)}"] if cached else []
    parts += [f"free: {_ids(free)}"] if free else ["no block is free"]
    return f"A map of {snapshot.num_blocks} blocks of {snapshot.block_size} slots. " + "; ".join(parts)


def _ids(blocks: Sequence[int]) -> str:
    if len(blocks) > MANY:
        return f"{len(blocks)} blocks"
    return f"block{'s' if len(blocks) > 1 else ''} {', '.join(map(str, blocks))}"
