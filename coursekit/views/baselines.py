"""The systems that the vLLM paper compares, simulated for chapter 1: what their memory holds, and how fast they serve.

The reserving servers run on contiguous arenas, the last one on this course's scheduler. Only lengths matter: no model
runs. Every server gets the same queue, in which all requests wait from the beginning.
"""

from __future__ import annotations

import math
from itertools import pairwise

from paged_ref.contiguous.arena import BuddyArena
from paged_ref.contiguous.server import reserve_max, reserve_oracle, reserve_power_of_two, serve
from paged_ref.simulation.cost_model import CostModel
from paged_ref.simulation.simulator import simulate
from paged_ref.sizing import Usage
from paged_ref.workload import Job, Trace, make_workload

WARM_UP = 500  # steps that are left out: at first all requests are equally young
RESERVING = {
    "Orca (Max)": reserve_max,
    "Orca (Pow2)": reserve_power_of_two,
    "Orca (Oracle)": reserve_oracle,
}


def usage_by_system(
    trace: Trace, setup: CostModel, num_slots: int, block_size: int = 16, seed: int = 0
) -> dict[str, Usage]:
    """Return each system's average usage of `num_slots`, under the names that the paper gives them."""
    jobs = make_workload(trace, num_requests=1000, rate=math.inf, seed=seed)
    found = {
        name: serve(jobs, BuddyArena(num_slots), rule, warm_up=WARM_UP).average
        for name, rule in RESERVING.items()
    }
    return found | {"vLLM": paged_usage(jobs, setup, num_slots, block_size)}


def paged_usage(jobs: list[Job], setup: CostModel, num_slots: int, block_size: int) -> Usage:
    """Return the usage under the course's scheduler, averaged over the steps in which requests wait."""
    metrics = simulate(jobs, setup, num_blocks=num_slots // block_size, block_size=block_size).metrics
    total, weight = Usage(0, 0, 0, 0), 0
    for point, after in pairwise(metrics.history):
        if point.waiting and point.step >= WARM_UP:
            held = point.used_blocks * block_size
            state = Usage(held - point.wasted_slots, 0, point.wasted_slots, point.free_blocks * block_size)
            total, weight = total + state * (after.step - point.step), weight + after.step - point.step
    return total * (1 / weight)


def static_batches(jobs: list[Job], setup: CostModel, slots_each: int, at_once: int) -> float:
    """Return the tokens per second if requests run in fixed groups, each of which starts when the last one ended."""
    groups = [jobs[first : first + at_once] for first in range(0, len(jobs), at_once)]
    results = [
        simulate(group, setup, num_blocks=at_once, block_size=slots_each, max_num_seqs=at_once)
        for group in groups
    ]
    tokens = sum(result.metrics.generated_tokens for result in results)
    return tokens / sum(result.simulated_seconds for result in results)
