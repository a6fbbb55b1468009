"""The dashboard and its neighbours: the words are the metrics' own figures, and the curves those of the data."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coursekit.views.dashboard import break_even, dashboard, latency_plot
from coursekit.views.style import to_png
from paged_ref.simulation.cost_model import SETUPS
from paged_ref.simulation.simulator import SimulationResult, simulate
from paged_ref.workload import TRACES, make_workload
from tests.helpers.timelines import tight

OPT = SETUPS["opt-13b-a100"]


@pytest.fixture(scope="module")
def overloaded() -> SimulationResult:
    return simulate(make_workload(TRACES["sharegpt"], 80, 4.0, seed=1), OPT, num_blocks=400)


def test_the_dashboard_says_what_the_metrics_say(overloaded: SimulationResult) -> None:
    metrics = overloaded.metrics
    picture = dashboard(metrics, "4 requests per second")
    now = metrics.snapshot()
    assert metrics.preemptions > 0 and now["itl_p99"] is not None
    for words in (picture.alt, picture.summary):
        assert f"at most {metrics.peak_used_blocks} of 400" in words.lower()
        assert f"{metrics.preemptions} preemptions" in words
        assert f"p99 {1e3 * now['itl_p99']:,.0f} ms" in words
    pool, queue, preempted, latency = picture.fig.axes
    assert max(pool.lines[0].get_ydata()) == 100 * metrics.peak_used_blocks / 400
    assert [len(line.get_xdata()) for line in queue.lines] == [len(metrics.history)] * 2
    assert preempted.lines[0].get_ydata()[-1] == metrics.preemptions
    assert [round(bar.get_width()) for bar in latency.patches] == [
        round(1e3 * (now[name] or 0)) for name in ("ttft_p50", "ttft_p99", "itl_p50", "itl_p99")
    ]


def test_a_server_without_preemptions_has_a_dashboard_too() -> None:
    result = simulate(make_workload(TRACES["alpaca"], 20, 1.0, seed=1), OPT)
    picture = dashboard(result.metrics, "calm")
    assert "0 preemptions" in picture.summary and "0 waited" in picture.summary


def test_the_latency_plot_has_a_point_for_each_gap() -> None:
    timeline = tight()
    picture = latency_plot({"recompute": timeline, "swap": tight(9)}, [0, 2], "Gaps")
    first, second = picture.fig.axes
    assert (
        [len(line.get_xdata()) for line in first.lines]
        == [13, 11]
        == [len(line.get_xdata()) for line in second.lines]
    )
    assert max(first.lines[1].get_ydata()) == 2500
    assert "recompute, A: median 500 ms, longest 500 ms" in picture.summary
    assert "swap, C: median 500 ms, longest 2500 ms" in picture.alt


def test_break_even_lies_where_the_costs_are_equal() -> None:
    lengths = range(16, 4097, 16)
    fast = break_even("opt", OPT, 25e9, lengths)
    assert fast.summary.endswith("is swap; it is the same at every length.")
    slow = break_even("opt", OPT, 8e9, lengths)
    swap, again = (line.get_ydata() for line in slow.fig.axes[0].lines)
    at = next(n for n, a, b in zip(lengths, swap, again, strict=True) if a > b)
    assert f"is recompute; it changes at about {at} tokens" in slow.summary
    # The same seconds as the cost model's own, which has the link in its device.
    device = replace(OPT, device=replace(OPT.device, pcie=8e9))
    assert swap[-1] == pytest.approx(1e3 * device.swap_seconds(2 * 4096 // 16, 16))
    assert again[-1] == pytest.approx(1e3 * OPT.recompute_seconds(4096))


def test_pictures_are_the_same_bytes_every_time(overloaded: SimulationResult) -> None:
    first = to_png(dashboard(overloaded.metrics, "t").fig)
    assert first == to_png(dashboard(overloaded.metrics, "t").fig) and len(first) < 60_000
