"""Maps of a memory: each slot has one state, and the states are those that the server counts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from coursekit.views.arena import (
    STATES,
    draw_bar,
    draw_map,
    legend_handles,
    map_contiguous,
    map_paged,
    shares,
)
from coursekit.views.style import figure, to_png
from paged_ref.blocks.block_pool import BlockPool
from paged_ref.contiguous.arena import BuddyArena, FirstFitArena
from paged_ref.contiguous.server import reserve_max, reserve_oracle
from paged_ref.sizing import Usage
from paged_ref.workload import Job, Trace, make_workload

JOB = Job(0.0, prompt_tokens=6, output_tokens=8)


def test_one_request_in_a_piece() -> None:
    states, running = map_contiguous([JOB], FirstFitArena(20), reserve_max, max_tokens=16, steps=3)
    assert running == 1
    assert states.tolist() == [0] * 9 + [1] * 5 + [2] * 2 + [3] * 4


def test_one_request_in_blocks() -> None:
    pool = BlockPool(5, 4)
    states, running = map_paged([JOB], pool, steps=3)
    assert running == 1 and states.tolist() == [0] * 9 + [1] * 3 + [3] * 8
    states, _ = map_paged([JOB], BlockPool(5, 4), steps=7)
    assert states.tolist() == [0] * 13 + [1] + [2] * 2 + [3] * 4


@pytest.mark.parametrize("steps", [0, 1, 40, 200])
def test_blocks_are_used_better_than_the_oracle_and_nobody_is_lost(steps: int) -> None:
    jobs = make_workload(Trace("t", 30, 40), 300, math.inf, seed=1, max_tokens=200)
    pool = BlockPool(64, 16)
    paged, many = map_paged(jobs, pool, steps)
    pool.check()
    oracle, few = map_contiguous(jobs, BuddyArena(1024), reserve_oracle, 200, steps)
    assert (paged == 0).sum() > (oracle == 0).sum() and many > few
    assert math.isclose(sum(shares(paged).values()), 1)


def test_pictures_are_drawn() -> None:
    fig, (strip, bars) = figure(2, 1)
    draw_map(strip, np.arange(400) // 100)
    draw_bar(bars, 0, Usage(1, 2, 3, 4))
    assert [text.get_text() for text in bars.texts] == ["10.0"]
    assert [bar.get_width() for bar in bars.patches] == pytest.approx([10, 20, 30, 40])
    assert len(legend_handles()) == len(STATES)
    assert to_png(fig).startswith(b"\x89PNG")
