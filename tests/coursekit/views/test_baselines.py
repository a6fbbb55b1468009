"""The paper's systems, simulated: their order in memory and in speed is the paper's."""

from __future__ import annotations

import math

import pytest

from coursekit.views.baselines import static_batches, usage_by_system
from paged_ref.simulation.cost_model import SETUPS
from paged_ref.simulation.simulator import simulate
from paged_ref.workload import TRACES, make_workload

SETUP = SETUPS["opt-13b-a100"]


def test_each_system_accounts_for_all_slots_and_blocks_use_most() -> None:
    found = usage_by_system(TRACES["sharegpt"], SETUP, num_slots=15_728)
    used = {name: usage.shares()["used"] for name, usage in found.items()}
    assert list(used) == ["Orca (Max)", "Orca (Pow2)", "Orca (Oracle)", "vLLM"]
    assert sorted(used.values()) == list(used.values()) and used["vLLM"] > 0.9
    assert all(sum(usage.shares().values()) == pytest.approx(1) for usage in found.values())


def test_a_static_batch_lies_between_one_at_a_time_and_a_continuous_batch() -> None:
    jobs = make_workload(TRACES["alpaca"], num_requests=40, rate=math.inf, seed=0)
    one = simulate(jobs, SETUP, num_blocks=1, block_size=2048, max_num_seqs=1).tokens_per_second
    assert static_batches(jobs, SETUP, 2048, 1) == pytest.approx(one)
    static = static_batches(jobs, SETUP, 2048, 7)
    continuous = simulate(jobs, SETUP, num_blocks=7, block_size=2048, max_num_seqs=256).tokens_per_second
    assert 1.2 * one < static < continuous
