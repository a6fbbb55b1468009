"""The bytes of one key, and the path of one query over scattered blocks (chapter 3)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle
from matplotlib.path import Path

from coursekit.views.style import BLUE, FAINT, INK, ORANGE, PANEL, SKY, Picture, figure

HEIGHT = 0.22  # height of an arrow for each block that it jumps over


def kv_address(
    blocks: Sequence[int],
    block_size: int,
    token: int,
    query_head: int,
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    itemsize: int,
) -> Picture:
    """Draw the way to the elements that one query head reads of one token: block, slot, KV head, bytes.

    Args:
        blocks: the block table.
        itemsize: bytes of a stored element. The offsets are in one layer's keys; its values are in a second array.

    Raises:
        IndexError: there is no such token or head.
    """
    if not 0 <= token < len(blocks) * block_size or not 0 <= query_head < num_heads:
        raise IndexError(
            f"token {token} of {len(blocks) * block_size}, head {query_head} of {num_heads}: there is no such key"
        )
    logical, offset = divmod(token, block_size)
    group = num_heads // num_kv_heads
    block, kv_head = blocks[logical], query_head // group
    slot = block * block_size + offset
    first = (slot * num_kv_heads + kv_head) * head_dim
    fig, axes = figure(width=9, height=4.5)
    axes.set_xlim(-0.1, 11.2)
    axes.set_ylim(-0.5, 6.3)
    axes.axis("off")
    axes.set_title(f"Which bytes of token {token} does query head {query_head} read?")
    rows = (
        (4.9, block_size, offset, f"block {block}", f"slot {slot}"),
        (3.0, num_kv_heads, kv_head, f"slot {slot}", f"KV head {kv_head}"),
        (1.1, 1, 0, f"KV head {kv_head}", f"{head_dim} elements"),
    )
    steps = (
        f"table[{token} // {block_size}] = table[{logical}] = {block};  {block} x {block_size} + {offset} = {slot}",
        f"{query_head} // ({num_heads} // {num_kv_heads}) = {kv_head};  {slot} x {num_kv_heads} + {kv_head} = "
        f"{slot * num_kv_heads + kv_head}",
        f"{slot * num_kv_heads + kv_head} x {head_dim} = {first:,};  x {itemsize} bytes = {first * itemsize:,}",
    )
    for (y, parts, chosen, outer, inner), text in zip(rows, steps, strict=True):
        _row(axes, y, parts, chosen, inner, zoomed=y > 2)
        axes.text(1.75, y + 0.35, outer, ha="right", va="center", fontsize=10.5, weight="bold")
        ground = {"boxstyle": "square,pad=0.1", "facecolor": PANEL, "edgecolor": "none"}
        axes.text(2.03, y + 0.84, text, ha="left", va="bottom", fontsize=10, bbox=ground)
    last = (first + head_dim) * itemsize - 1
    told = f"bytes {first * itemsize:,} to {last:,} of this layer's keys"
    axes.text(2, 0.35, told, ha="left", va="center", fontsize=11.5, weight="bold")
    sharing = [h for h in range(num_heads) if h // group == kv_head]
    names = f"query head{'s' * (len(sharing) > 1)} {', '.join(map(str, sharing))}"
    axes.text(2, -0.15, f"read by {names}", ha="left", va="center", fontsize=10)
    words = (
        f"token {token} is in block {block} at offset {offset}, slot {slot}; "
        f"query head {query_head} reads KV head {kv_head}"
    )
    return Picture(
        fig,
        alt=f"Three rows of boxes, each a part of the one above: the slots of block {block}, the KV heads of "
        f"slot {slot}, the {head_dim} elements of KV head {kv_head}. {words[:1].upper()}{words[1:]}; {told}, "
        f"read by {names}.",
        summary=f"{words[:1].upper()}{words[1:]}: {told}.",
    )


def _row(axes: Axes, y: float, parts: int, chosen: int, label: str, zoomed: bool) -> None:
    """Draw a row of equal boxes from x = 2 to 11, highlight one, and connect it to the row below."""
    width = 9 / parts
    for i in range(parts):
        colour = ORANGE if i == chosen else "white"
        axes.add_patch(
            Rectangle((2 + i * width, y), width, 0.7, facecolor=colour, edgecolor=INK, linewidth=0.8)
        )
        if parts <= 8 and i != chosen:
            axes.text(2 + (i + 0.5) * width, y + 0.35, str(i), ha="center", va="center", fontsize=9)
    middle = 2 + (chosen + 0.5) * width
    if width >= 0.9:
        axes.text(middle, y + 0.35, label, ha="center", va="center", fontsize=10, weight="bold")
    else:
        side, shift = ("left", -width / 2) if middle < 7 else ("right", width / 2)
        axes.text(middle + shift, y - 0.08, label, ha=side, va="top", fontsize=10, weight="bold")
    if zoomed:
        for start, end in ((2 + chosen * width, 2), (2 + (chosen + 1) * width, 11)):
            axes.plot([start, end], [y, y - 1.2], color=INK, linewidth=0.7, linestyle=":", zorder=0)


def walk(
    blocks: Sequence[int],
    num_blocks: int,
    block_size: int,
    scores: Sequence[float],
    weights: Sequence[Sequence[float]],
    step: int,
) -> Picture:
    """Draw one query's path over its blocks in memory, after `step` of them, and the attention weights at that point.

    Args:
        blocks: the block table; `num_blocks` are in the cache.
        scores: one for each token of the sequence.
        weights: for each step, the weights of the tokens read so far.

    Raises:
        IndexError: there are more steps than used blocks in the table.
    """
    if not 0 <= step <= len(weights):
        raise IndexError(f"step {step}: the sequence has {len(weights)} blocks")
    n = len(scores)
    read = min(step * block_size, n)
    fig, (memory, chart) = figure(2, 1, width=9, height=4.6, height_ratios=(1.25, 1))
    owner = {block: i for i, block in enumerate(blocks)}
    for block in range(num_blocks):
        _draw_slots(memory, block, owner.get(block), block_size, n, step)
    for number, (left, right) in enumerate(pairwise(blocks[: max(step, 1)]), 1):
        _jump(memory, number, left + 0.5, right + 0.5)
    memory.set_xlim(-0.1, num_blocks + 0.1)
    memory.set_ylim(-0.6, 1.2 + HEIGHT * num_blocks / 2)
    memory.axis("off")
    memory.set_title(f"Memory: the query's path after {step} of {len(weights)} blocks")
    _draw_weights(chart, n, block_size, weights[step - 1] if step else [], step)
    handles = [
        Patch(facecolor=ORANGE, edgecolor=INK, label="read now"),
        Patch(facecolor=BLUE, edgecolor=INK, label="read before"),
        Patch(facecolor=SKY, edgecolor=INK, hatch="...", label="not read yet"),
        Patch(facecolor="white", edgecolor=INK, hatch="xxx", label="own block, no token"),
        Patch(facecolor=FAINT, edgecolor=INK, label="others"),
    ]
    fig.legend(handles=handles, loc="outside lower center", ncols=5)
    return Picture(fig, *_walk_words(blocks, block_size, scores, weights, step, read))


def _walk_words(
    blocks: Sequence[int],
    block_size: int,
    scores: Sequence[float],
    weights: Sequence[Sequence[float]],
    step: int,
    read: int,
) -> tuple[str, str]:
    order = ", then ".join(str(block) for block in blocks[: max(step, 1)])
    table = f"The table names blocks {', '.join(map(str, blocks))}"
    if not step:
        summary = f"Nothing has been read yet: {len(scores)} tokens in {len(blocks)} blocks."
        return f"Blocks of {block_size} slots in one row, and an empty chart of weights. {table}.", summary
    now = weights[step - 1]
    top = max(range(read), key=lambda t: now[t])
    first = (step - 1) * block_size
    summary = (
        f"Step {step}: logical block {step - 1} is physical block {blocks[step - 1]}, tokens {first} to {read - 1}; "
        f"of the {read} tokens read so far, token {top} has the largest weight, {now[top]:.2f}."
    )
    listed = ", ".join(f"{w:.2f}" for w in now)
    alt = f"Blocks of {block_size} slots in one row, with arrows in reading order: {order}. {table}. "
    return f"{alt}Below, the weights of tokens 0 to {read - 1}: {listed}.", summary


def _jump(axes: Axes, number: int, start: float, end: float) -> None:
    """Draw a numbered arrow from block to block; the farther, the higher."""
    height = 0.3 + HEIGHT * abs(end - start)
    path = Path(
        [(start, 0.78), ((start + end) / 2, 0.78 + height), (end, 0.78)],
        [Path.MOVETO, Path.CURVE3, Path.CURVE3],
    )
    axes.add_patch(
        FancyArrowPatch(path=path, arrowstyle="-|>", mutation_scale=12, color=INK, linewidth=1.4, zorder=3)
    )
    ring = {"boxstyle": "circle,pad=0.15", "facecolor": PANEL, "edgecolor": INK}
    middle = ((start + end) / 2, 0.78 + height / 2)
    axes.text(*middle, str(number), fontsize=9.5, ha="center", va="center", zorder=4, bbox=ring)


def _draw_slots(axes: Axes, block: int, logical: int | None, size: int, n: int, step: int) -> None:
    """Draw one block of the memory; colour and hatching show the role of its slots for this query."""
    width = 0.84 / size
    for offset in range(size):
        colour, hatch = FAINT, ""
        if logical is not None:
            token = logical * size + offset
            colour, hatch = (
                (ORANGE, "") if logical == step - 1 else (BLUE, "") if logical < step else (SKY, "...")
            )
            if token >= n:
                colour, hatch = "white", "xxx"
        place = (block + 0.08 + offset * width, 0)
        axes.add_patch(
            Rectangle(place, width, 0.75, facecolor=colour, edgecolor=INK, hatch=hatch, linewidth=0.6)
        )
    axes.text(block + 0.5, -0.06, str(block), ha="center", va="top", fontsize=9.5)
    if logical is not None:
        axes.text(block + 0.5, -0.36, f"logical {logical}", ha="center", va="top", fontsize=8.5)


def _draw_weights(axes: Axes, n: int, block_size: int, weights: Sequence[float], step: int) -> None:
    now = range((step - 1) * block_size, len(weights))
    axes.bar(
        range(len(weights)), weights, color=[ORANGE if t in now else BLUE for t in range(len(weights))],
        edgecolor=INK, linewidth=0.6,
    )  # fmt: skip
    for boundary in range(block_size, n, block_size):
        axes.axvline(boundary - 0.5, color=INK, linewidth=0.8, linestyle=":")
    axes.set_xlim(-0.6, n - 0.4)
    axes.set_ylim(0, 1)
    axes.set_xticks(range(n))
    axes.set_xlabel("token, in the order of the text")
    axes.set_ylabel("weight so far")
