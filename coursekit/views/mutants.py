"""Functions broken on purpose, and a table of the tests that notice (chapter 3).

mutate(paged_decode, ("h // group", "h % num_kv_heads"))     the same function with this text replaced
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.patches import Rectangle

from coursekit.views.style import BLUE, INK, ORANGE, Picture, figure


def mutate(function: Callable[..., Any], *changes: tuple[str, str]) -> Callable[..., Any]:
    """Return the function with each (old, new) text of its source replaced; it uses the same globals.

    Raises:
        ValueError: an old text does not occur exactly once in the source, so the mutant would be unclear.
    """
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in changes:
        if source.count(old) != 1:
            raise ValueError(
                f"mutate: {old!r} occurs {source.count(old)} times in {function.__name__}; it must occur once"
            )
        source = source.replace(old, new)
    made: dict[str, Any] = {}
    exec(compile(source, f"<mutant of {function.__name__}>", "exec"), function.__globals__, made)
    broken: Callable[..., Any] = made[function.__name__]
    return broken


def mutant_table(caught: Mapping[str, Sequence[bool]], tests: Sequence[str]) -> Picture:
    """Draw one row per mutant and one column per test: caught, or passed.

    Args:
        caught: mutant → whether each test noticed it.
    """
    fig, axes = figure(width=8, height=0.9 + 0.27 * len(caught))
    for row, (name, seen) in enumerate(caught.items()):
        axes.text(-0.05, row + 0.5, name, ha="right", va="center", fontsize=10)
        for column, noticed in enumerate(seen):
            axes.add_patch(
                Rectangle(
                    (column, row), 0.96, 0.9, facecolor="white" if noticed else ORANGE, edgecolor=INK,
                    linewidth=0.6, hatch="" if noticed else "//",
                )
            )  # fmt: skip
            ground = (
                None if noticed else {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none"}
            )
            axes.text(
                column + 0.48, row + 0.45, "caught" if noticed else "PASSES", ha="center", va="center", fontsize=9,
                color=BLUE if noticed else INK, weight="normal" if noticed else "bold", bbox=ground,
            )  # fmt: skip
    for column, test in enumerate(tests):
        axes.text(column + 0.48, -0.25, test, ha="center", va="bottom", fontsize=10, weight="bold")
    axes.set_xlim(-2.2, len(tests))
    axes.set_ylim(len(caught), -1.1)
    axes.axis("off")
    axes.set_title("Wrong kernels, and which test notices")
    passing = {
        test: [name for name, seen in caught.items() if not seen[column]] for column, test in enumerate(tests)
    }
    counts = ", ".join(f"{test}: {len(names)} of {len(caught)} pass" for test, names in passing.items())
    said = "; ".join(f"{test} lets pass: {', '.join(names) or 'none'}" for test, names in passing.items())
    return Picture(fig, alt=f"A table of {len(caught)} wrong kernels. {said}.", summary=f"{counts}.")
