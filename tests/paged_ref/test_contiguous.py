"""What paging replaced: two arenas that never overlap or leak, and the vLLM paper's bars."""

import math
from dataclasses import astuple
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paged_ref.contiguous import (
    POLICIES,
    BuddyArena,
    DoesNotFit,
    FirstFitArena,
    Shares,
    next_power_of_two,
    simulate_contiguous,
)
from paged_ref.cost_model import SETUPS
from paged_ref.simulator import simulate
from paged_ref.workload import TRACES, Job, make_workload


def test_enough_is_free_but_it_does_not_fit() -> None:
    arena = FirstFitArena(12)
    starts = [arena.allocate(3) for _ in range(4)]
    arena.free(starts[0])
    arena.free(starts[2])
    assert (arena.num_free, arena.largest_hole) == (6, 3)
    with pytest.raises(DoesNotFit, match="4 slots wanted: 6 are free, at most 3 of them in one hole"):
        arena.allocate(4)
    arena.free(starts[1])  # the holes on both sides and this one become one
    assert arena.holes == [(0, 9)]
    assert arena.allocate(9) == 0
    assert arena.holes == []


def test_a_buddy_piece_is_a_power_of_two_and_halves_become_whole_again() -> None:
    arena = BuddyArena(16, largest=16)
    small = arena.allocate(3)
    assert arena.num_free == 12
    assert arena.allocate(8) == 8
    with pytest.raises(DoesNotFit, match="8 slots wanted: 4 are free"):
        arena.allocate(5)
    arena.free(8)
    arena.free(small)
    assert arena.allocate(16) == 0


def test_what_is_left_of_a_buddy_arena_is_used_in_smaller_pieces() -> None:
    arena = BuddyArena(20, largest=8)
    assert [arena.allocate(8), arena.allocate(8), arena.allocate(4)] == [0, 8, 16]
    with pytest.raises(DoesNotFit):
        arena.allocate(1)


@pytest.mark.parametrize("make", [FirstFitArena, BuddyArena])
@given(data=st.data())
def test_stretches_never_overlap_and_nothing_is_lost(make: type, data: st.DataObject) -> None:
    arena = make(data.draw(st.integers(1, 70)), *([16] if make is BuddyArena else []))
    held: dict[int, int] = {}
    for _ in range(data.draw(st.integers(0, 30))):
        if held and data.draw(st.booleans()):
            start = data.draw(st.sampled_from(sorted(held)))
            arena.free(start)
            del held[start]
        else:
            length = data.draw(st.integers(1, 16))
            before = arena.num_free
            try:
                held[arena.allocate(length)] = length
            except DoesNotFit:
                assert arena.num_free == before
        taken = sorted((start, start + length) for start, length in held.items())
        assert all(end <= start for (_, end), (start, _) in pairwise(taken))
        assert not taken or taken[-1][1] <= arena.num_slots
        given_slots = sum(next_power_of_two(n) if make is BuddyArena else n for n in held.values())
        assert arena.num_free == arena.num_slots - given_slots
    fresh = make(arena.num_slots, *([16] if make is BuddyArena else []))
    for start in held:
        arena.free(start)
    assert vars(arena) == vars(fresh)


@pytest.mark.parametrize("make", [FirstFitArena, BuddyArena])
def test_misuse_of_an_arena(make: type) -> None:
    arena = make(64)
    with pytest.raises(ValueError, match="begins at slot 3"):
        arena.free(3)
    with pytest.raises(ValueError, match="0 slots wanted"):
        arena.allocate(0)
    with pytest.raises(DoesNotFit):
        arena.allocate(65)
    start = arena.allocate(5)
    arena.free(start)
    with pytest.raises(ValueError, match="begins at slot"):
        arena.free(start)


def test_the_shares_of_one_request_by_hand() -> None:
    """A prompt of 2, an output of 3, room for 10, in 20 slots; admitting the last job ends the measurement."""
    shares = simulate_contiguous(
        [Job(0, 2, 3), Job(0, 2, 3), Job(0, 2, 3)], POLICIES["max"], FirstFitArena(20), 10
    )
    # Two run at once. After steps 1, 2, 3 each has 3, 4, 5 tokens, and 2, 1, 0 yet to come.
    assert shares == Shares(*(pytest.approx(x) for x in (2 * 4 / 20, 2 * 1 / 20, 2 * 5 / 20, 0)))


PAPER = {"max": (20.4, 13.3, 57.3, 8.9), "pow2": (26.8, 17.9, 13.6, 41.6), "oracle": (38.2, 25.2, 0.0, 36.6)}


@pytest.mark.parametrize("policy", PAPER)
def test_the_papers_bars(policy: str) -> None:
    """Figure 2 of the paper, per cent: token states, reserved, internal, external and others."""
    jobs = make_workload(TRACES["sharegpt"], 3000, rate=math.inf)
    shares = [
        100 * share for share in astuple(simulate_contiguous(jobs, POLICIES[policy], BuddyArena(15_700)))
    ]
    assert shares == [pytest.approx(bar, abs=5.5) for bar in PAPER[policy]]
    assert shares[0] == pytest.approx(PAPER[policy][0], abs=3)
    assert sum(shares) == pytest.approx(100)


def test_the_papers_bar_for_paging() -> None:
    jobs = make_workload(TRACES["sharegpt"], 400, rate=math.inf)
    result = simulate(jobs, SETUPS["opt-13b-a100"], num_blocks=15_700 // 16)
    assert 100 * result.token_states == pytest.approx(96.3, abs=2)


def test_a_job_larger_than_the_arena() -> None:
    with pytest.raises(DoesNotFit):
        simulate_contiguous([Job(0, 30, 3)], POLICIES["oracle"], FirstFitArena(20))
    assert simulate_contiguous([], POLICIES["oracle"], FirstFitArena(20)) == Shares(0, 0, 0, 0)
