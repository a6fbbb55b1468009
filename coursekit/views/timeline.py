"""The requests that run in each step: one row per request, one box per step, and the pool below (chapter 6).

A `Timeline` is recorded step by step, from a scheduler alone or from the whole engine:

    timeline = Timeline(llm.scheduler)
    while llm.scheduler.has_work:
        timeline.note(llm.step())

Colour, hatching and a sign show what a request did: tokens that are recomputed after a preemption have their own
kind of box. Invariants: one note per step, after the step's tokens were taken; the picture of all steps and the
picture with one step framed differ only in the frame.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from coursekit.views.explore import explore
from coursekit.views.memory_map import name_of
from coursekit.views.style import BLUE, INK, ORANGE, PANEL, SKY, VERMILION, Picture, figure
from paged_ref.scheduling.request import Request, Sequence, Status
from paged_ref.scheduling.scheduler import Scheduler
from paged_ref.scheduling.step import Step

# Kind of box: colour, hatching, text in the legend.
KINDS = {
    "prefill": (ORANGE, "", "prefill (tokens)"),
    "decode": (BLUE, "", "decode"),
    "again": (VERMILION, "////", "recomputed (tokens)"),
    "back": (SKY, "....", "decode, swapped in"),
    "preempted": (PANEL, "", "preempted"),
    "waiting": (PANEL, "", "waits"),
    "swapped": (PANEL, "", "waits, blocks on the host"),
}
# Waiting requests have no box, but a line.
LINES: dict[str, dict[str, Any]] = {
    "waiting": {"color": "#8A8A85", "linestyle": ":", "linewidth": 1.4},
    "swapped": {"color": "#8A8A85", "linestyle": "-", "linewidth": 3.0},
}


@dataclass(frozen=True)
class Box:
    """One request's work in one step, and the number of tokens computed for it."""

    kind: str
    tokens: int = 0


@dataclass(frozen=True)
class Moment:
    """One step: the work of each request, the blocks held at its end, and the second at which it ended."""

    boxes: dict[int, Box]
    used: int
    ended: float


class Timeline:
    """The recorded steps of a scheduler. Requests are named A, B, C, … in the order in which they appear.

    Attributes:
        requests: in the order of arrival.
        moments: one per step.
        tokens: for each request, the times in seconds at which it got its tokens.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.requests: list[Request] = []
        self.moments: list[Moment] = []
        self.tokens: list[list[float]] = []
        self._computed: dict[Sequence, int] = {}  # the highest number of computed tokens of each
        self._known: dict[Sequence, int] = {}  # number of new tokens seen so far

    def note(self, step: Step, seconds: float = 1.0) -> None:
        """Record a step that took this many seconds; call it after the step's tokens were taken."""
        waiting = self.scheduler.waiting
        chunks = [chunk.request for chunk in step.chunks]
        self._meet([*chunks, *step.preempted, *self.scheduler.running, *waiting])
        now = seconds + (self.moments[-1].ended if self.moments else 0.0)
        boxes: dict[int, Box] = {}
        for chunk in step.chunks:
            at = self.requests.index(chunk.request)
            tokens = chunk.stop - chunk.start + (boxes[at].tokens if at in boxes else 0)
            back = chunk.request in step.admitted and chunk.start == self._computed.get(chunk.sequence, 0) > 0
            boxes[at] = Box(self._kind(chunk.sequence, chunk.start, back), tokens)
            self._computed[chunk.sequence] = max(chunk.stop, self._computed.get(chunk.sequence, 0))
            new = chunk.sequence.num_new_tokens
            self.tokens[at] += [now] * (new - self._known.get(chunk.sequence, 0))
            self._known[chunk.sequence] = new
        for request in waiting:
            kind = "swapped" if request.status is Status.SWAPPED else "waiting"
            boxes.setdefault(self.requests.index(request), Box(kind))
        for request in step.preempted:
            boxes[self.requests.index(request)] = Box("preempted")
        self.moments.append(Moment(boxes, self.scheduler.pool.num_used, now))

    def _meet(self, requests: Iterable[Request]) -> None:
        for request in sorted(set(requests) - set(self.requests), key=lambda r: r.request_id):
            self.requests.append(request)
            self.tokens.append([])

    def _kind(self, sequence: Sequence, start: int, back: bool) -> str:
        if start < self._computed.get(sequence, 0):
            return "again"
        return "prefill" if start < sequence.num_prompt_tokens else "back" if back else "decode"

    # ---- the recorded steps, in numbers and text

    @property
    def preemptions(self) -> list[tuple[int, int]]:
        """(step, request) of each preemption, with steps counted from 1."""
        return [
            (number, request)
            for number, moment in enumerate(self.moments, 1)
            for request, box in sorted(moment.boxes.items())
            if box.kind == "preempted"
        ]

    def gaps(self, request: int) -> list[float]:
        """Seconds between consecutive tokens of a request: the inter-token latency."""
        times = self.tokens[request]
        return [after - before for before, after in pairwise(times)]

    def words(self, step: int) -> str:
        """Describe one step, counted from 1, in a sentence."""
        moment = self.moments[step - 1]
        said = {
            "decode": ("decodes", "decode"),
            "back": ("is swapped in and decodes", "are swapped in and decode"),
            "preempted": ("is preempted", "are preempted"),
            "waiting": ("waits", "wait"),
            "swapped": ("waits, its blocks on the host", "wait, their blocks on the host"),
        }
        parts = []
        for kind in KINDS:
            who = {request: box for request, box in sorted(moment.boxes.items()) if box.kind == kind}
            if kind in ("prefill", "again") and who:
                verb = "prefills" if kind == "prefill" else "recomputes"
                parts += [f"{name_of(r)} {verb} {box.tokens} tokens" for r, box in who.items()]
            elif who:
                parts.append(f"{', '.join(map(name_of, who))} {said[kind][len(who) > 1]}")
        pool = self.scheduler.pool
        return f"Step {step}: {'; '.join(parts) or 'nothing'}; {moment.used} of {pool.num_blocks} blocks held"

    # ---- pictures

    def picture(self, step: int | None = None, title: str = "Who runs in which step") -> Picture:
        """Draw all steps; `step` (from 1) frames one, and then the summary is about it."""
        num = len(self.moments)
        width = min(11.0, max(6.0, 1.2 + 0.25 * num))
        fig, (above, below) = figure(
            2, 1, width=width, height=2.1 + 0.36 * len(self.requests), sharex=True,
            height_ratios=[0.36 * len(self.requests) + 0.2, 0.75],
        )  # fmt: skip
        for column, moment in enumerate(self.moments):
            for request, box in moment.boxes.items():
                _draw_box(above, column, request, box, small=num > 36)
        above.set_yticks([i + 0.5 for i in range(len(self.requests))], self._names())
        above.set_ylim(len(self.requests), -0.1)
        above.set_title(title)
        above.tick_params(length=0)
        for side in ("left", "bottom"):
            above.spines[side].set_visible(False)
        self._draw_pool(below)
        below.set_xlim(0, num)
        if step is not None:
            for axes in (above, below):
                low, high = sorted(axes.get_ylim())
                frame = Rectangle((step - 1, low), 1, high - low, fill=False, edgecolor=INK, linewidth=2)
                axes.add_patch(frame)
        self._legend(fig)
        return Picture(fig, f"{self._alt()}.", f"{self.words(step) if step else self._summary()}.")

    def explore(self, start: int = 1, title: str = "Who runs in which step") -> None:
        """Show the picture with one step framed, and a slider over all of them."""
        explore(
            lambda step: self.picture(step, title),
            f"a slider over the {len(self.moments)} steps of this timeline, with a description of each",
            start={"step": start},
            step=range(1, len(self.moments) + 1),
        )

    def _names(self) -> list[str]:
        return [f"{name_of(i)}: {len(r.prompt_token_ids)} + {r.max_new_tokens}" for i, r in
                enumerate(self.requests)]  # fmt: skip

    def _draw_pool(self, axes: Axes) -> None:
        used = [moment.used for moment in self.moments]
        total = self.scheduler.pool.num_blocks
        axes.stairs(used, range(len(used) + 1), fill=True, color=BLUE, alpha=0.35)
        axes.axhline(total, color=INK, linewidth=1, linestyle="--")
        axes.set_ylim(0, 1.15 * total)
        axes.set_yticks([0, total])
        axes.set_ylabel("blocks")
        every = 1 if len(used) <= 14 else 5
        ticks = [i for i in range(1, len(used) + 1) if i == 1 or i % every == 0]
        axes.set_xticks([i - 0.5 for i in ticks], [str(i) for i in ticks])
        axes.set_xlabel("step")

    def _legend(self, fig: Figure) -> None:
        present = {box.kind for moment in self.moments for box in moment.boxes.values()}
        handles: list[Any] = []
        for kind, (colour, hatch, label) in KINDS.items():
            if kind in present:
                if kind in LINES:
                    handles.append(Line2D([], [], label=label, **LINES[kind]))
                else:
                    edge = INK if kind == "preempted" else "white"
                    handles.append(Patch(facecolor=colour, hatch=hatch, edgecolor=edge, label=label))
        fig.legend(handles=handles, loc="outside lower center", ncols=3)

    def _summary(self) -> str:
        preempted = ", ".join(f"{name_of(request)} in step {step}" for step, request in self.preemptions)
        return f"{len(self.requests)} requests in {len(self.moments)} steps; preempted: {preempted or 'none'}"

    def _alt(self) -> str:
        rows = []
        for number in range(len(self.requests)):
            kinds = [moment.boxes[number].kind if number in moment.boxes else "" for moment in self.moments]
            runs, start = [], 0
            for i in range(1, len(kinds) + 1):
                if i == len(kinds) or kinds[i] != kinds[start]:
                    span = f"{start + 1}" if i == start + 1 else f"{start + 1} to {i}"
                    runs += [f"{kinds[start]} {span}"] if kinds[start] else []
                    start = i
            rows.append(f"{name_of(number)}: {', '.join(runs)}")
        return f"A row for each request, by steps. {'; '.join(rows)}"


def _draw_box(axes: Axes, column: int, row: int, box: Box, small: bool) -> None:
    """Draw one request in one step, in the cell whose upper left corner is (column, row)."""
    colour, hatch, _ = KINDS[box.kind]
    if box.kind in LINES:
        axes.plot([column, column + 1], [row + 0.5] * 2, **LINES[box.kind])
        return
    edge = INK if box.kind == "preempted" else "white"
    axes.add_patch(
        Rectangle((column + 0.05, row + 0.1), 0.9, 0.8, facecolor=colour, hatch=hatch, edgecolor=edge)
    )
    text = "×" if box.kind == "preempted" else str(box.tokens) if box.kind in ("prefill", "again") else ""
    if text:
        size = (7.5 if len(text) < 3 else 6.5) if small else (9 if len(text) < 3 else 8)
        ground = {"boxstyle": "round,pad=0.08", "facecolor": PANEL, "edgecolor": "none", "alpha": 0.85}
        axes.text(
            column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=size, bbox=ground, zorder=5
        )
