"""Pictures of chapter 1: the use of every slot of a memory, with contiguous reservations and with blocks.

A map is an array with one of four states per slot, in the order of `STATES`; `paged_ref.sizing.Usage` defines the four
states. Invariants: both ways of serving get the same queue, and no request overtakes another in either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch

from coursekit.views.style import INK
from coursekit.views.waste import PARTS
from paged_ref.blocks.block_pool import BlockPool
from paged_ref.blocks.block_table import BlockTable
from paged_ref.contiguous.arena import Arena
from paged_ref.contiguous.server import ContiguousServer, Reserve
from paged_ref.sizing import Usage, split_reservation
from paged_ref.workload import Job

STATES = ("used", "reserved", "internal", "external")
COLOURS = {state: PARTS["tokens" if state == "used" else state][0] for state in STATES}
LABELS = {
    "used": "holds a token",
    "reserved": "reserved: a token will come",
    "internal": "internal: will never be filled",
    "external": "free or rounded up: external",
}


def map_contiguous(
    jobs: Iterable[Job], arena: Arena, reserve: Reserve, max_tokens: int, steps: int
) -> tuple[np.ndarray, int]:
    """Map the arena's slots after this many steps of one token each, and count the running requests."""
    server = ContiguousServer(jobs, arena, reserve, max_tokens)
    for _ in range(steps):
        server.admit()
        server.advance(min(1, server.steps_to_next_end()))
    server.admit()
    states = np.full(arena.num_slots, STATES.index("external"))
    for running in server.running.values():
        end = running.start + running.num_slots  # the slots after it, added by rounding up, stay external
        states[running.start : end] = _in_order(running.usage)
    return states, len(server.running)


def map_paged(jobs: Iterable[Job], pool: BlockPool, steps: int) -> tuple[np.ndarray, int]:
    """Map the pool's slots after this many steps, and count the running requests.

    A request is admitted if its blocks and one for growth are free. When the pool is empty, the youngest request is
    preempted and goes back to the head of the queue (chapter 6 has the real scheduler).
    """
    waiting, running = deque(jobs), deque[tuple[Job, BlockTable]]()
    _admit(waiting, running, pool)
    for _ in range(steps):
        for job, table in list(running):
            while (job, table) in running and table.blocks_to_append(1) > pool.num_free:
                youngest, lost = running.pop()
                lost.release()
                waiting.appendleft(youngest)
            if (job, table) in running:
                table.append(1)
                if table.num_tokens == job.prompt_tokens + job.output_tokens:
                    table.release()
                    running.remove((job, table))
        _admit(waiting, running, pool)
    states = np.full(pool.num_blocks * pool.block_size, STATES.index("external"))
    for job, table in running:
        held = len(table.blocks) * pool.block_size
        usage = split_reservation(table.num_tokens, job.prompt_tokens + job.output_tokens, held)
        slots = [np.arange(b * pool.block_size, (b + 1) * pool.block_size) for b in table.blocks]
        states[np.concatenate(slots)] = _in_order(usage)
    return states, len(running)


def _admit(waiting: deque[Job], running: deque[tuple[Job, BlockTable]], pool: BlockPool) -> None:
    while waiting:
        table = BlockTable(pool)
        if table.blocks_to_append(waiting[0].prompt_tokens) + 1 > pool.num_free:
            return
        job = waiting.popleft()
        table.append(job.prompt_tokens)
        running.append((job, table))


def _in_order(usage: Usage) -> np.ndarray:
    """The states of the slots of one request, in its own order: tokens, promised, never used."""
    return np.repeat([0, 1, 2], [int(usage.used), int(usage.reserved), int(usage.internal)])


def shares(states: np.ndarray) -> dict[str, float]:
    """Return each state's fraction of the slots."""
    return {name: float((states == number).mean()) for number, name in enumerate(STATES)}


def draw_map(axes: Axes, states: np.ndarray) -> None:
    """Draw the memory as one strip, slot 0 at the left."""
    colours = np.array([to_rgb(COLOURS[name]) for name in STATES])
    axes.imshow(
        colours[states][None], aspect="auto", extent=(0, len(states), 0, 1), interpolation="antialiased"
    )
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(True)


def draw_bar(axes: Axes, row: float, usage: Usage) -> None:
    """Draw a usage as one stacked bar in percent, labelled with the fraction in use."""
    left = 0.0
    for name, share in usage.shares().items():
        axes.barh(row, 100 * share, left=left, color=COLOURS[name], edgecolor=INK, linewidth=0.6, height=0.62)
        left += 100 * share
    used = 100 * usage.shares()["used"]
    style: dict[str, Any] = {"ha": "center", "va": "center", "color": "white", "fontweight": "bold"}
    axes.text(used / 2, row, f"{used:.1f}", **style)


def legend_handles() -> list[Patch]:
    """Build the legend of the four states."""
    return [Patch(facecolor=COLOURS[name], edgecolor=INK, label=LABELS[name]) for name in STATES]
