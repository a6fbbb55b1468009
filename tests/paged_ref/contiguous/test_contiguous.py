"""The arenas against a list of slots, and the paper's bars by simulation."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paged_ref.arguments import next_power_of_two
from paged_ref.contiguous.arena import BuddyArena, FirstFitArena
from paged_ref.contiguous.server import (
    ContiguousServer,
    Reserve,
    reserve_max,
    reserve_oracle,
    reserve_power_of_two,
    serve,
)
from paged_ref.simulation.cost_model import SETUPS
from paged_ref.simulation.simulator import simulate
from paged_ref.sizing import Usage
from paged_ref.workload import TRACES, Job, make_workload

ARENAS = [FirstFitArena, BuddyArena]


@pytest.mark.parametrize("kind", ARENAS)
@settings(max_examples=150, deadline=None)
@given(
    size=st.integers(1, 70),
    steps=st.lists(st.tuples(st.booleans(), st.integers(1, 30)), max_size=60),
)
def test_an_arena_is_covered_and_says_no_only_when_no_hole_is_large_enough(
    kind: type, size: int, steps: list[tuple[bool, int]]
) -> None:
    arena = kind(size)
    starts: list[int] = []
    for allocate, n in steps:
        if allocate:
            before = arena.holes()
            start = arena.allocate(n)
            rounded = next_power_of_two(n) if kind is BuddyArena else n
            assert (start is None) == (max((s for _, s in before), default=0) < rounded)
            if start is None:
                assert arena.holes() == before
            else:
                assert arena.size_of(start) == rounded
                starts.append(start)
        elif starts:
            arena.free(starts.pop(n % len(starts)))
        arena.check()
    for start in starts:
        arena.free(start)
    assert arena.holes() == kind(size).holes(), "an empty arena is as it was at the beginning"


def test_first_fit_takes_the_first_hole_and_joins_neighbours() -> None:
    arena = FirstFitArena(100)
    a, b, c, d = (arena.allocate(25) for _ in range(4))
    assert (a, b, c, d) == (0, 25, 50, 75)
    arena.free(a), arena.free(c)
    assert arena.num_free == 50 and arena.allocate(40) is None, "enough is free, but it does not fit"
    assert arena.allocate(10) == 0
    arena.free(b)
    assert arena.holes() == [(10, 65)]
    assert arena.allocate(65) == 10 and arena.num_free == 0


def test_buddies_join_with_buddies_only() -> None:
    arena = BuddyArena(16)
    starts = [arena.allocate(3) for _ in range(4)]  # each takes 4
    assert starts == [0, 4, 8, 12]
    arena.free(4), arena.free(8)
    assert arena.holes() == [(4, 4), (8, 4)], "neighbours, but not the halves of one piece"
    assert arena.allocate(8) is None
    arena.free(0)
    assert arena.holes() == [(0, 8), (8, 4)]


@pytest.mark.parametrize("kind", ARENAS)
def test_wrong_use_of_an_arena_is_named_and_changes_nothing(kind: type) -> None:
    arena = kind(32)
    arena.allocate(8)
    for wrong, message in [
        (lambda: arena.free(3), "no piece begins at slot 3"),
        (lambda: arena.allocate(0), "num_slots = 0"),
        (lambda: kind(0), "num_slots = 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            wrong()
        assert arena.num_free == 24
        arena.check()


def test_rules_of_reservation() -> None:
    job = Job(0.0, prompt_tokens=100, output_tokens=25)
    assert reserve_max(job, 2048) == 2048
    assert reserve_power_of_two(job, 2048) == 100 + 32, "25 tokens out reserve 32"
    assert reserve_power_of_two(job, 128) == 128
    assert reserve_oracle(job, 2048) == 125
    assert [next_power_of_two(n) for n in (1, 2, 3, 1024, 1025)] == [1, 2, 4, 1024, 2048]


def test_averages_are_those_of_a_server_stepped_one_by_one() -> None:
    jobs = make_workload(TRACES["alpaca"], 60, math.inf, seed=3, max_tokens=256)
    run = serve(jobs, BuddyArena(1000), reserve_power_of_two, max_tokens=256)
    server = ContiguousServer(jobs, BuddyArena(1000), reserve_power_of_two, max_tokens=256)
    total, steps, waited = Usage(0, 0, 0, 0), 0, 0
    while server.waiting or server.running:
        server.admit()
        usage = server.usage()
        assert usage.total == 1000
        if server.waiting:
            total, waited = total + usage, waited + 1
        server.advance(1)
        steps += 1
    assert steps == run.steps
    for name in ("used", "reserved", "internal", "external"):
        assert getattr(run.average, name) == pytest.approx(getattr(total, name) / waited)


def test_no_job_overtakes() -> None:
    jobs = [Job(0.0, 8, 4), Job(0.0, 60, 20), Job(0.0, 1, 1)]
    server = ContiguousServer(jobs, FirstFitArena(90), reserve_oracle)
    server.admit()
    assert [r.job for r in server.running.values()] == jobs[:1], (
        "the second does not fit, so the third waits too"
    )
    with pytest.raises(ValueError, match="5 steps, but a job ends after 4"):
        server.advance(5)
    server.advance(4)
    server.admit()
    assert [r.job for r in server.running.values()] == jobs[1:]


def test_what_could_never_run_and_what_never_waits_are_named() -> None:
    with pytest.raises(ValueError, match="needs 2048 contiguous slots, but the largest hole has 1024"):
        ContiguousServer([Job(0.0, 5, 5)], BuddyArena(2047), reserve_max)
    with pytest.raises(ValueError, match="no job waited at any time"):
        serve([Job(0.0, 5, 5)], BuddyArena(4096), reserve_max)


def test_the_shares_of_one_request_by_hand() -> None:
    """A prompt of 2, an output of 3, room for 10, in 20 slots; admitting the last job ends the measurement."""
    run = serve([Job(0.0, 2, 3)] * 3, FirstFitArena(20), reserve_max, max_tokens=10)
    # Two run at once. Before steps 1, 2, 3 each has 2, 3, 4 tokens, and 3, 2, 1 yet to come.
    assert run.average == Usage(2 * 3, 2 * 2, 2 * 5, 0) and run.mean_running == 2 and run.steps == 6


def test_what_an_arena_rounds_up_is_external() -> None:
    server = ContiguousServer([Job(0.0, 3, 2), Job(0.0, 3, 2)], BuddyArena(10), reserve_oracle)
    server.admit()
    assert server.usage() == Usage(3, 2, 0, 5), "5 of 8 are asked for, and 2 are free"


PAPER = {
    reserve_max: (20.4, 13.3, 57.3, 8.9),
    reserve_power_of_two: (26.8, 17.9, 13.6, 41.6),
    reserve_oracle: (38.2, 25.2, 0.0, 36.6),
}


@pytest.mark.parametrize("reserve", PAPER)
def test_the_papers_bars(reserve: Reserve) -> None:
    """Figure 2 of the paper, per cent: token states, reserved, internal, external and others."""
    slots = 12 * 2**30 // 819_200
    jobs = make_workload(TRACES["sharegpt"], 1000, math.inf)
    run = serve(jobs, BuddyArena(slots), reserve, warm_up=500)
    shares = [100 * share for share in run.average.shares().values()]
    assert shares == [pytest.approx(bar, abs=6) for bar in PAPER[reserve]]
    assert shares[0] == pytest.approx(PAPER[reserve][0], abs=3)
    assert run.average.total == pytest.approx(slots)


def test_the_papers_bar_for_paging() -> None:
    jobs = make_workload(TRACES["sharegpt"], 400, math.inf)
    result = simulate(jobs, SETUPS["opt-13b-a100"], num_blocks=15_728 // 16)
    assert 100 * result.token_states == pytest.approx(96.3, abs=2)
