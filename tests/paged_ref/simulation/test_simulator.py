"""The simulator: the short cut changes nothing, the workload is what it says, the cost model's sums are right."""

import math
import time

import numpy as np
import pytest

from paged_ref.blocks.block_pool import BlockPool
from paged_ref.scheduling.scheduler import NeverFits, Scheduler
from paged_ref.simulation.cost_model import A100, H100, SETUPS, CostModel
from paged_ref.simulation.simulator import Simulator, simulate
from paged_ref.sizing import MODELS
from paged_ref.workload import TRACES, Job, make_workload

COST = SETUPS["opt-13b-a100"]


@pytest.mark.parametrize(
    ("rate", "options"),
    [
        (1.0, {}),  # nobody waits
        (4.0, {}),  # the pool is full, requests are preempted
        (math.inf, {"num_blocks": 300}),
        (4.0, {"preemption": "swap", "num_blocks": 400}),
        (4.0, {"enable_prefix_caching": True, "num_blocks": 400}),
        (3.0, {"block_size": 1, "num_blocks": 6000, "watermark": 0.05}),
        (3.0, {"max_num_seqs": 8, "max_num_batched_tokens": 64}),
    ],
)
@pytest.mark.parametrize("urgent", [0.0, 0.3])
def test_skipping_alike_steps_changes_neither_times_nor_counts(
    rate: float, options: dict[str, object], urgent: float
) -> None:
    jobs = make_workload(
        TRACES["sharegpt"], 80, rate, seed=3, urgent=urgent, shared_tokens=40, max_tokens=1024
    )
    results = [simulate(jobs, COST, skip=skip, **options) for skip in (True, False)]  # type: ignore[arg-type]
    short, long = results
    assert short.finished_at == long.finished_at
    assert short.metrics.snapshot() == long.metrics.snapshot()
    assert short.metrics.prometheus() == long.metrics.prometheus()
    assert short.scheduled_steps < long.scheduled_steps == long.metrics.steps


def test_every_job_generates_its_tokens_and_every_block_comes_back() -> None:
    jobs = make_workload(TRACES["alpaca"], 300, rate=50, seed=1)
    pool = BlockPool(200, 16)
    scheduler = Scheduler(pool)
    result = Simulator(scheduler, COST).run(jobs)
    assert result.metrics.generated_tokens == sum(job.output_tokens for job in jobs)
    assert result.metrics.prompt_tokens == sum(job.prompt_tokens for job in jobs)
    assert scheduler.finished == {"length": 300}
    assert pool.num_used == 0
    assert all(end > job.seconds for end, job in zip(result.finished_at, jobs, strict=True))
    scheduler.check()


def test_waiting_begins_when_a_job_arrives_and_not_when_it_is_received() -> None:
    """The second job arrives during the first one's prefill, and its time to first token includes the rest of that."""
    result = simulate([Job(0.0, 2000, 1), Job(0.001, 10, 1)], COST)
    prefill = COST.seconds(2000, 2000, 2000 * 2001 // 2)
    assert result.metrics.time_to_first_token.smallest == pytest.approx(prefill)
    assert result.metrics.time_to_first_token.largest == pytest.approx(
        prefill + COST.seconds(10, 10, 55) - 0.001
    )


def test_a_shared_system_prompt_is_computed_once() -> None:
    jobs = [Job(float(i), 512 + 20, 4, shared_tokens=512) for i in range(5)]
    without, cached = (simulate(jobs, COST, enable_prefix_caching=on) for on in (False, True))
    assert (without.metrics.cached_tokens, cached.metrics.cached_tokens) == (0, 4 * 512)
    assert cached.metrics.time_to_first_token.total < without.metrics.time_to_first_token.total


def test_a_smaller_pool_preempts_more_and_delays_some() -> None:
    jobs = make_workload(TRACES["sharegpt"], 200, rate=3, seed=2)
    small, large = (simulate(jobs, COST, num_blocks=blocks) for blocks in (300, 2000))
    assert small.metrics.preemptions > 0 == large.metrics.preemptions
    assert small.simulated_seconds > large.simulated_seconds


def test_urgent_jobs_go_first() -> None:
    jobs = make_workload(TRACES["sharegpt"], 200, rate=math.inf, seed=2, urgent=0.2)
    result = simulate(jobs, COST, num_blocks=300)
    ends = {priority: [end for end, job in zip(result.finished_at, jobs, strict=True) if job.priority == priority]
            for priority in (-1, 0)}  # fmt: skip
    assert np.mean(ends[-1]) < 0.5 * np.mean(ends[0])


def test_a_job_that_never_fits_is_an_error() -> None:
    with pytest.raises(NeverFits, match="needs up to 128 blocks of 16 tokens, but the pool has 100"):
        simulate([Job(0.0, 100, 4)], COST, num_blocks=100)


def test_thousands_of_requests_in_seconds() -> None:
    jobs = make_workload(TRACES["alpaca"], 3000, rate=10)
    started = time.process_time()
    simulate(jobs, COST)
    assert time.process_time() - started < 10  # 0.5 s on a quiet machine


# ---- workload


@pytest.mark.parametrize("trace", TRACES.values(), ids=lambda trace: trace.name)
def test_lengths_have_the_means_of_the_papers_traces(trace) -> None:  # type: ignore[no-untyped-def]
    jobs = make_workload(trace, 20_000, rate=1)
    assert np.mean([job.prompt_tokens for job in jobs]) == pytest.approx(trace.prompt_tokens, rel=0.05)
    assert np.mean([job.output_tokens for job in jobs]) == pytest.approx(trace.output_tokens, rel=0.05)
    assert min(min(job.prompt_tokens, job.output_tokens) for job in jobs) >= 1
    assert max(job.prompt_tokens + job.output_tokens for job in jobs) <= 2048


def test_arrivals_are_a_poisson_process_and_follow_the_seed() -> None:
    jobs = make_workload(TRACES["alpaca"], 20_000, rate=5, seed=1)
    gaps = np.diff([job.seconds for job in jobs])
    assert np.mean(gaps) == pytest.approx(0.2, rel=0.03)
    assert np.std(gaps) == pytest.approx(0.2, rel=0.05)
    assert (
        jobs
        == make_workload(TRACES["alpaca"], 20_000, rate=5, seed=1)
        != make_workload(TRACES["alpaca"], 20_000, rate=5)
    )


@pytest.mark.parametrize(
    "wrong", [{"num_requests": -1}, {"rate": 0}, {"rate": math.nan}, {"urgent": 2}, {"shared_tokens": 2047}]
)
def test_a_workload_out_of_range(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} = "):
        make_workload(TRACES["alpaca"], **{"num_requests": 1, "rate": 1.0, **wrong})  # type: ignore[arg-type]


# ---- cost model


def test_decode_reads_the_weights_once_for_the_whole_batch() -> None:
    one, many = COST.seconds(1, 500, 500), COST.seconds(16, 16 * 500, 16 * 500)
    assert one < many < 1.5 * one, "sixteen times the tokens in hardly more time"
    weights = COST.weight_bytes / (A100.bandwidth * COST.bandwidth_efficiency)
    assert one == pytest.approx(COST.overhead + weights, rel=0.03)


def test_prefill_is_bound_by_arithmetic() -> None:
    flop = 2 * 13e9 * 2048 + 4 * 40 * 40 * 128 * (2048 * 2049 // 2)
    expected = COST.overhead + flop / (A100.flops * COST.compute_efficiency)
    assert COST.recompute_seconds(2048) == pytest.approx(expected)
    assert COST.seconds(0, 0, 0) == 0


def test_swapping_moves_bytes_over_pcie() -> None:
    num_bytes = 2 * 40 * 40 * 128 * 2 * 16  # K and V, layers, heads, head size, bytes a number, tokens
    assert COST.swap_seconds(10, 16) == pytest.approx(10 * num_bytes / 25e9)


def test_the_papers_pool_and_chapter_ones() -> None:
    slots = COST.num_blocks(16) * 16
    assert slots == pytest.approx(15_700, rel=0.08), "the paper's table 1 says 12 GB and 15.7K slots"
    big = SETUPS["llama-3.1-70b-8xh100"]
    assert big.num_blocks(16) * big.shape.kv_bytes_per_block(16) == pytest.approx(435e9, rel=0.002)
    with pytest.raises(MemoryError, match=r"llama-3.1-70b does not fit on 1 x H100"):
        CostModel(MODELS["llama-3.1-70b"], 70.6e9, H100).num_blocks(16)
