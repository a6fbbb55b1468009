"""The tree of prefixes, as blocks and as a radix tree; two threads that update one count (chapter 4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from coursekit.views.style import BLUE, FAINT, INK, ORANGE, PANEL, SKY, VERMILION, Picture, figure

Words = Sequence[str]


@dataclass
class Node:
    """A run of tokens, and the runs that continue it. `users` are the prompts that pass through it."""

    tokens: tuple[str, ...]
    users: list[str] = field(default_factory=list)
    children: list[Node] = field(default_factory=list)

    def all(self) -> Iterator[Node]:
        """Yield this node and all nodes below it."""
        yield self
        for child in self.children:
            yield from child.all()


def chain_tree(prompts: Mapping[str, Words], block_size: int) -> Node:
    """Build the tree of the prompts' full blocks, as in a prefix cache: one node per block."""
    root = Node(())
    for name, words in prompts.items():
        node = root
        for start in range(0, len(words) - block_size + 1, block_size):
            node = _step(node, tuple(words[start : start + block_size]))
            node.users.append(name)
    return root


def radix_tree(prompts: Mapping[str, Words]) -> Node:
    """Build the radix tree of the prompts: a node is the longest run of tokens without a branch."""
    root = Node(())
    for name, words in prompts.items():
        node = root
        for word in words:
            node = _step(node, (word,))
            node.users.append(name)
    return _merge(root)


def _step(node: Node, tokens: tuple[str, ...]) -> Node:
    for child in node.children:
        if child.tokens == tokens:
            return child
    node.children.append(Node(tokens))
    return node.children[-1]


def _merge(node: Node) -> Node:
    """Merge each node with its only child, as long as the same prompts pass through both."""
    tokens, children = node.tokens, node.children
    while node.tokens and len(children) == 1 and children[0].users == node.users:
        tokens, children = tokens + children[0].tokens, children[0].children
    return Node(tokens, node.users, [_merge(child) for child in children])


def two_trees(texts: Mapping[str, str], block_size: int) -> Picture:
    """Draw the same prompts stored in blocks, and in a radix tree. Each word of a text is a token."""
    prompts = {name: text.split() for name, text in texts.items()}
    trees = {
        f"Chained blocks of {block_size}": chain_tree(prompts, block_size),
        "Radix tree": radix_tree(prompts),
    }
    heights = [_leaves(tree) + 0.4 for tree in trees.values()]
    fig, (upper, lower) = figure(2, 1, width=9.2, height=1 + 0.62 * sum(heights), height_ratios=heights)
    right = 0.0
    for axes, (title, tree) in zip((upper, lower), trees.items(), strict=True):
        right = max(right, _draw_node(axes, tree, 0.0, 0.0))
        axes.axis("off")
        axes.set_title(title)
    for axes, height in zip((upper, lower), heights, strict=True):  # the same scale for both
        axes.set_xlim(-0.1, right + 0.2)
        axes.set_ylim(0.75 - height, 0.75)
    filed = {title: sum(len(node.tokens) for node in tree.all()) for title, tree in trees.items()}
    found = {title: _reused(tree) for title, tree in trees.items()}
    said = [
        f"{title}: " + "; ".join(f"'{' '.join(node.tokens)}' used by {' and '.join(node.users)}"
                                 for node in tree.all() if node.tokens)
        for title, tree in trees.items()
    ]  # fmt: skip
    counts = "; ".join(f"{title.lower()}: {found[title]} of {filed[title]}" for title in trees)
    return Picture(
        fig,
        alt=f"Two trees of the prompts {', '.join(prompts)}. {'. '.join(said)}.",
        summary=f"Tokens stored once and used by several prompts: {counts}.",
    )


def _reused(tree: Node) -> int:
    return sum(len(node.tokens) for node in tree.all() if len(node.users) > 1)


def _leaves(node: Node) -> int:
    return sum(_leaves(child) for child in node.children) or 1


def _draw_node(axes: Axes, node: Node, x: float, top: float) -> float:
    """Draw a node and the nodes below it; `top` is the height of its first leaf. Return the rightmost place used."""
    y = top - (_leaves(node) - 1) / 2
    text = " ".join(node.tokens) if node.tokens else "root"
    width = 0.16 * len(text) + 0.4
    colour = FAINT if not node.tokens else ORANGE if len(node.users) > 1 else SKY
    box = FancyBboxPatch(
        (x, y - 0.22), width, 0.44, boxstyle="round,pad=0.02", facecolor=colour, edgecolor=INK
    )
    axes.add_patch(box)
    axes.text(x + width / 2, y, text, ha="center", va="center", fontsize=9)
    if node.users:
        axes.text(x + width, y + 0.25, "+".join(node.users), ha="right", va="bottom", fontsize=8)
    right, child_top = x + width, top
    for child in node.children:
        child_y = child_top - (_leaves(child) - 1) / 2
        axes.add_patch(
            FancyArrowPatch(
                (x + width, y), (x + width + 0.5, child_y), arrowstyle="-|>", mutation_scale=9, color=INK
            )
        )
        right = max(right, _draw_node(axes, child, x + width + 0.52, child_top))
        child_top -= _leaves(child)
    return right


@dataclass(frozen=True)
class Moment:
    """One action of one thread: "read", "write" or "wait", with the number read or written."""

    thread: int
    action: str
    value: int | None = None


def race(moments: Sequence[Moment], start: int, title: str) -> Picture:
    """Draw two threads from left to right, and between them the count in memory after each moment."""
    fig, axes = figure(width=8.5, height=2.5)
    places = {0: 1.0, 1: -1.0}
    colours = {"read": SKY, "write": ORANGE, "wait": FAINT}
    count, said = start, []
    axes.text(0.5, 0, f"{start}", ha="center", va="center", fontsize=12, weight="bold")
    for i, moment in enumerate(moments):
        x, y = 1.2 + 1.3 * i, places[moment.thread]
        text = moment.action if moment.value is None else f"{moment.action}s {moment.value}"
        box = FancyBboxPatch(
            (x, y - 0.28), 1.0, 0.56, boxstyle="round,pad=0.03", facecolor=colours[moment.action]
        )
        box.set_edgecolor(INK)
        axes.add_patch(box)
        axes.text(x + 0.5, y, text, ha="center", va="center", fontsize=10)
        if moment.action == "write" and moment.value is not None:
            count = moment.value
        axes.text(x + 0.5, 0, f"{count}", ha="center", va="center", fontsize=12, weight="bold")
        if moment.action != "wait":
            inner = 0.22 if y > 0 else -0.22
            ends = ((x + 0.5, inner), (x + 0.5, y - 0.32 * (1 if y > 0 else -1)))
            begin, end = ends if moment.action == "read" else ends[::-1]
            colour = BLUE if moment.action == "read" else VERMILION
            axes.add_patch(FancyArrowPatch(begin, end, arrowstyle="-|>", mutation_scale=11, color=colour))
        said.append(f"thread {'AB'[moment.thread]} {text}")
    for name, y in (("thread A", 1.0), ("the count", 0.0), ("thread B", -1.0)):
        axes.text(-0.1, y, name, ha="right", va="center", fontsize=10.5)
    axes.axhline(0, xmin=0.15, color=PANEL, zorder=0)
    axes.set_xlim(-1.3, 1.2 + 1.3 * len(moments))
    axes.set_ylim(-1.5, 1.5)
    axes.axis("off")
    axes.set_title(title)
    writes = sum(moment.action == "write" for moment in moments)
    return Picture(
        fig,
        alt=f"Two threads and one count that starts at {start}: {', '.join(said)}. The count is {count} at the end.",
        summary=f"{title}: {writes} holders were added, and the count rose by {count - start}.",
    )
