"""The metrics: every number against one counted by hand, bounded memory, and text that Prometheus can read."""

import math
import random
import re
import statistics
import time
from itertools import pairwise
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from paged_ref.blocks.block_pool import BlockPool, OutOfBlocks
from paged_ref.telemetry.histogram import Histogram
from paged_ref.telemetry.metrics import HISTORY, Metrics, TimedBlockPool
from tests.helpers.fake_engine import FakeEngine


class Clock:
    """Time that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Watched:
    """A fake engine with metrics, in which each step takes a second unless told otherwise."""

    def __init__(self, **options: object) -> None:
        self.engine = FakeEngine(**options)  # type: ignore[arg-type]
        self.clock = Clock()
        self.metrics = Metrics(self.engine.scheduler, self.clock)
        scheduler = self.engine.scheduler
        complete = scheduler.complete

        def complete_and_observe(step) -> None:  # type: ignore[no-untyped-def]
            complete(step)
            self.metrics.observe(step)

        scheduler.complete = complete_and_observe  # type: ignore[method-assign]

    def add(self, length: int, max_tokens: int, **options: object):  # type: ignore[no-untyped-def]
        request = self.engine.add(list(range(length)), max_tokens, **options)
        self.metrics.arrive(request)
        return request

    def step(self, seconds: float = 1.0) -> None:
        self.clock.now += seconds
        self.engine.step()

    def run(self) -> dict[str, float | None]:
        while self.engine.scheduler.has_work:
            self.step()
        return self.metrics.snapshot()


def test_gauges_show_the_pool_as_it_is() -> None:
    watched = Watched(num_blocks=10, block_size=4)
    watched.add(9, 8)
    watched.step()
    watched.step()  # ten tokens have slots, in three blocks
    now = watched.metrics.snapshot()
    assert (now["num_blocks"], now["used_blocks"], now["free_blocks"], now["utilisation"]) == (10, 3, 7, 0.3)
    assert now["cached_blocks"] == 2
    assert now["wasted_slots"] == 2
    assert (now["running"], now["waiting"], now["swapped"], now["finished"]) == (1, 0, 0, 0)
    after = watched.run()
    assert (after["used_blocks"], after["wasted_slots"], after["running"], after["finished"]) == (0, 0, 0, 1)
    assert after["cached_blocks"] == 4
    assert (after["peak_used_blocks"], after["peak_running"]) == (4, 1)


def test_a_last_block_that_samples_share_is_wasted_once() -> None:
    watched = Watched(num_blocks=10, block_size=4, caching=False)
    watched.add(6, 4, n=3)
    watched.step()  # forked after this step: three tables end in one block with 2 of 4 slots filled
    assert watched.metrics.wasted_slots() == 2
    watched.step()  # each has its own now, with 3 filled
    assert watched.metrics.wasted_slots() == 3
    assert watched.run()["copied_blocks"] == 2


def test_counters_add_up() -> None:
    watched = Watched(num_blocks=16, block_size=4)
    watched.add(9, 3)
    watched.run()
    watched.add(9, 3)
    now = watched.run()
    assert now["steps"] == 6
    assert now["prompt_tokens"] == 18
    assert now["cached_tokens"] == 8
    assert now["computed_tokens"] == (9 + 2) + (1 + 2)
    assert (now["block_queries"], now["block_hits"]) == (4, 2)


@pytest.mark.parametrize("num_host_blocks", [0, 12])
def test_preemptions_and_swaps(num_host_blocks: int) -> None:
    watched = Watched(num_blocks=6, block_size=4, caching=False, num_host_blocks=num_host_blocks)
    watched.add(5, 12)
    watched.add(5, 12)
    now = watched.run()
    assert now["preemptions"] == 1
    swapped = num_host_blocks > 0
    assert now["swapped_out"] == swapped
    assert now["swapped_out_blocks"] == now["swapped_in_blocks"] == 3 * swapped


def test_time_to_first_token_counts_from_arrival_and_latency_from_token_to_token() -> None:
    watched = Watched(num_blocks=16, block_size=4)
    watched.clock.now = 100.0
    watched.add(5, 4)
    watched.step(seconds=7.0)  # first token
    for seconds in (2.0, 3.0, 4.0):
        watched.step(seconds)
    ttft, itl = watched.metrics.time_to_first_token, watched.metrics.inter_token_latency
    assert (ttft.count, ttft.total) == (1, 7.0)
    assert (itl.count, itl.total, itl.smallest, itl.largest) == (3, 9.0, 2.0, 4.0)


def test_a_preemption_shows_in_the_tail_of_the_latency_and_not_in_its_median() -> None:
    watched = Watched(num_blocks=6, block_size=4, caching=False)
    watched.add(5, 12)
    watched.add(5, 12)
    now = watched.run()
    assert now["preemptions"] == 1
    assert now["itl_p50"] == pytest.approx(1.0, rel=0.13)
    assert now["itl_p99"] is not None
    assert now["itl_p99"] > 3


def test_each_sample_of_a_request_counts_its_own_latencies() -> None:
    watched = Watched(num_blocks=16, block_size=4)
    watched.add(5, 4, n=3)
    watched.run()
    assert watched.metrics.time_to_first_token.count == 1
    assert watched.metrics.inter_token_latency.count == 3 * 3


def test_the_history_is_bounded_and_spread_over_everything() -> None:
    watched = Watched(num_blocks=16, block_size=4, caching=False)
    for _ in range(HISTORY):
        watched.add(2, 4)
        while watched.engine.scheduler.has_work:
            watched.step()
    history = watched.metrics.history
    steps = [point.step for point in history]
    assert HISTORY / 2 <= len(history) <= HISTORY + 1
    assert steps == sorted(set(steps))
    assert steps[0] == 1
    assert steps[-1] > watched.metrics.steps - 10
    gaps = [after - before for before, after in pairwise(steps)]
    assert max(gaps) <= 2 * min(gaps)
    assert all(point.used_blocks + point.free_blocks == 16 for point in history)


def test_finished_requests_are_let_go() -> None:
    watched = Watched(num_blocks=16, block_size=4, caching=False)
    for _ in range(500):
        watched.add(2, 1)
        watched.step()
    assert len(watched.metrics._times) < 100


def test_recording_a_step_costs_little() -> None:
    engine = FakeEngine(
        num_blocks=600, block_size=4, caching=False, max_num_seqs=64, max_num_batched_tokens=256
    )
    metrics = Metrics(engine.scheduler)
    for _ in range(64):
        metrics.arrive(engine.add([1, 2], 20))
    for _ in range(4):
        step = engine.step()
    started = time.process_time()
    for _ in range(100):
        metrics.observe(step)
    assert (time.process_time() - started) / 100 < 2e-3  # about 0.06 ms on a quiet machine, for 64 sequences


def test_allocations_are_timed_and_failed_ones_are_not() -> None:
    pool = TimedBlockPool(8, 16)
    pool.allocate(3)
    pool.allocate(0)
    with pytest.raises(OutOfBlocks):
        pool.allocate(6)
    assert pool.allocation_seconds.count == 1
    assert 0 < pool.allocation_seconds.total < 1


# ---- the histogram


def test_quantiles_are_within_a_bucket_of_the_exact_ones() -> None:
    rng = random.Random(5)
    values = [math.exp(rng.gauss(-4, 1.5)) for _ in range(5000)]
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    exact = statistics.quantiles(values, n=100)
    for percent in (1, 25, 50, 90, 99):
        assert histogram.quantile(percent / 100) == pytest.approx(exact[percent - 1], rel=0.13)
    assert (histogram.quantile(0), histogram.quantile(1)) == (
        pytest.approx(min(values), rel=0.13),
        max(values),
    )
    assert histogram.mean == pytest.approx(statistics.mean(values))


def test_values_outside_the_buckets_are_counted() -> None:
    histogram = Histogram()
    for value in (0.0, 1e-9, 5e3):
        histogram.observe(value, count=2)
    assert (histogram.count, histogram.smallest, histogram.largest) == (6, 0.0, 5e3)
    assert histogram.quantile(1) == 1e3  # the last bucket's bound: what lies above is only known to do so
    bounds, counts = zip(*histogram.cumulative(), strict=True)
    assert counts[0] == 4
    assert list(bounds) == sorted(bounds)


def test_an_empty_histogram_has_no_quantiles() -> None:
    assert Histogram().quantile(0.5) is None
    assert Histogram().mean is None
    with pytest.raises(ValueError, match=r"q = 1\.5"):
        Histogram().quantile(1.5)


# ---- Prometheus


def test_prometheus_text_is_well_formed_and_uses_vllms_names() -> None:
    watched = Watched(num_blocks=6, block_size=4, num_host_blocks=6)
    watched.add(5, 12)
    watched.add(5, 12)
    watched.run()
    text = watched.metrics.prometheus()
    assert text.endswith("\n")
    kinds: dict[str, str] = {}
    values: dict[str, float] = {}
    helped: set[str] = set()
    for line in text.splitlines():
        if line.startswith("# HELP "):
            helped.add(line.split(" ")[2])
        elif line.startswith("# TYPE "):
            name, kind = line.split(" ")[2:]
            assert name in helped
            assert name not in kinds
            kinds[name] = kind
        else:
            match = re.fullmatch(r"([a-z_:0-9]+)((?:\{[^}]*\})?) ([0-9.e+-]+)", line)
            assert match, line
            family = re.sub(r"_(bucket|sum|count)$", "", match[1]) if match[1] not in kinds else match[1]
            assert family in kinds
            values[match[1] + match[2]] = float(match[3])
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
        assert kinds[name] == "gauge"
    for name in ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "vllm:num_preemptions_total",
                 "vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total"):  # fmt: skip
        assert kinds[name] == "counter"
    for name in ("vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"):
        assert kinds[name] == "histogram"
        buckets = [value for key, value in values.items() if key.startswith(name + "_bucket")]
        assert buckets == sorted(buckets)
        assert buckets[-1] == values[name + "_count"] > 0
    assert values["vllm:num_preemptions_total"] == 1
    assert values['vllm:request_success_total{finished_reason="length"}'] == 2
    assert values['paged_ref:swapped_blocks_total{direction="out"}'] == 3
    assert values["vllm:prefix_cache_queries_total"] == 8, (
        "vLLM counts tokens: two look-ups of one block of 4"
    )


def test_snapshots_of_an_engine_that_has_done_nothing() -> None:
    engine = FakeEngine()
    now = Metrics(engine.scheduler).snapshot()
    assert (now["utilisation"], now["ttft_p50"], now["itl_p99"], now["steps"]) == (0, None, None, 0)
    assert isinstance(engine.pool, BlockPool)
    assert "paged_ref:allocation_seconds" not in Metrics(engine.scheduler).prometheus()


def families(text: str) -> dict[str, Any]:
    """The metrics as Prometheus' own client reads them."""
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_prometheus_client_reads_exact_numbers() -> None:
    metrics = Metrics(FakeEngine().scheduler)
    metrics.computed_tokens = 123_456_789_012
    metrics.copied_blocks = 1_234_567
    for value in (0.1, 0.2, 999.9999999):
        metrics.time_to_first_token.observe(value)
    snapshot = {
        **metrics.snapshot(),
        "free_blocks": 1_234_567,
        "wasted_slots": 16_777_217,
        "utilisation": 1 / 3,
    }
    metrics.snapshot = lambda: snapshot  # type: ignore[method-assign]
    read = families(metrics.prometheus())
    values = {name: family.samples[0].value for name, family in read.items() if len(family.samples) == 1}
    assert values["paged_ref:free_blocks"] == 1_234_567
    assert values["paged_ref:wasted_slots"] == 16_777_217
    assert values["vllm:kv_cache_usage_perc"] == 1 / 3
    assert values["paged_ref:computed_tokens"] == 123_456_789_012
    samples = {sample.name: sample.value for sample in read["vllm:time_to_first_token_seconds"].samples}
    assert samples["vllm:time_to_first_token_seconds_sum"] == 1000.2999999, "to the nanosecond"


def test_what_lies_above_the_top_bucket_is_in_the_infinite_one_only() -> None:
    metrics = Metrics(FakeEngine().scheduler)
    for value in (1.0, 1e3, 1000.1, 5e3, math.inf):
        metrics.inter_token_latency.observe(value)
    family = families(metrics.prometheus())["vllm:inter_token_latency_seconds"]
    buckets = {s.labels["le"]: s.value for s in family.samples if s.name.endswith("_bucket")}
    *_, top, infinite = buckets.items()
    assert (float(top[0]), top[1]) == (1e3, 2)
    assert infinite == ("+Inf", 5)


def test_each_sample_waits_for_its_own_next_token_after_a_preemption() -> None:
    """Recomputed in chunks, one sample gets its token steps before the other: each gap is the sample's own."""
    watched = Watched(num_blocks=24, block_size=4, caching=False, max_num_batched_tokens=4)
    request = watched.add(9, 30, n=2)
    last: dict[int, float] = {}
    gaps: list[float] = []
    while watched.engine.scheduler.has_work:
        if watched.clock.now == 8:
            watched.engine.scheduler.recompute_all()
        sequences = [*request.sequences]
        before = {sequence: len(sequence.token_ids) for sequence in sequences}
        watched.step()
        for sequence in {*sequences, *request.sequences}:
            if len(sequence.token_ids) > before.get(sequence, 9):
                if sequence.index in last:
                    gaps.append(watched.clock.now - last[sequence.index])
                last[sequence.index] = watched.clock.now
    itl = watched.metrics.inter_token_latency
    assert (itl.count, itl.total) == (len(gaps), sum(gaps))
    assert itl.largest == max(gaps)
    assert len({gap for gap in gaps if gap > 1}) == 2, "the two samples waited differently"
