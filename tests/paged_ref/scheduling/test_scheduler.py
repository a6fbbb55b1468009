"""The scheduler on a fake model whose contents show any wrong read. Many tests are named after others' faults."""

from collections.abc import Callable

import pytest

from paged_ref.blocks.block_pool import BlockPool, OutOfBlocks
from paged_ref.scheduling.request import Status
from paged_ref.scheduling.scheduler import Admission, NeverFits, Scheduler
from paged_ref.scheduling.step import Step
from tests.helpers.fake_engine import FakeEngine, alone


def tokens(length: int, first: int = 0) -> list[int]:
    return list(range(first, first + length))


# ---- faults of public engines


def test_a_whole_prompt_in_the_cache_still_computes_its_last_token() -> None:
    """Zero queries were left elsewhere, and it crashed. A prompt of exactly two blocks, twice in a row, and again."""
    engine = FakeEngine(block_size=4)
    computed = []
    for _ in range(3):
        request = engine.add(tokens(8), max_tokens=3)
        computed.append(engine.run()[0].num_tokens)
        assert request.finished[0].token_ids == alone(request, 0)
    assert computed == [8, 4, 4], "only one of its two blocks may be a hit"


@pytest.mark.parametrize("prompt_length", [3, 4, 5, 8])
@pytest.mark.parametrize("max_tokens", [1, 4, 5])
def test_no_block_is_lost_when_a_length_is_a_multiple_of_the_block_size(
    prompt_length: int, max_tokens: int
) -> None:
    engine = FakeEngine(num_blocks=4, block_size=4, caching=False)
    for _ in range(5):
        engine.add(tokens(prompt_length), max_tokens)
        engine.run()  # ends with an empty pool, and check() after every step


def test_two_equal_prompts_in_one_batch_do_not_read_what_is_not_computed_yet() -> None:
    engine = FakeEngine(num_blocks=12, block_size=4)
    first, second = engine.add(tokens(8)), engine.add(tokens(8))
    step = engine.step()
    assert step.admitted == [first, second]
    assert step.cached_tokens == 0, "nothing is published before it is written"
    engine.run()
    assert first.finished[0].token_ids == second.finished[0].token_ids == alone(first, 0)


@pytest.mark.parametrize(
    ("common", "own", "caching", "salts", "admitted"),
    [
        (64, 8, True, (None, None), 1),
        (64, 65, True, (None, None), 3),  # most of it would be computed anyway
        (60, 8, True, (None, None), 3),  # too little to wait for
        (64, 8, False, (None, None), 3),
        (
            64,
            8,
            True,
            ("a", "b"),
            2,
        ),  # the second cannot find the first one's blocks; the third waits for the second
    ],
)
def test_a_request_waits_for_a_prefix_that_another_is_computing(
    common: int, own: int, caching: bool, salts: tuple[str | None, str | None], admitted: int
) -> None:
    engine = FakeEngine(num_blocks=200, block_size=4, caching=caching, max_num_batched_tokens=512)
    prompts = [tokens(common) + tokens(own, first=i) for i in (20, 40, 60)]
    requests = [engine.add(prompts[0], salt=salts[0]), *(engine.add(p, salt=salts[1]) for p in prompts[1:])]
    assert engine.step().admitted == requests[:admitted]
    if admitted < 3:
        step = engine.step()
        assert step.admitted == requests[admitted:]
        assert step.cached_tokens == (3 - admitted) * common
    engine.run()
    for request in requests:
        assert request.finished[0].token_ids == alone(request, 0)


def test_duplicate_blocks_of_a_running_request_stay_its_own() -> None:
    """Elsewhere they were freed while the request's table still named them."""
    engine = FakeEngine(num_blocks=12, block_size=4)
    first, second = engine.add(tokens(8), max_tokens=1), engine.add(tokens(8), max_tokens=9)
    engine.step()
    blocks = second.sequences[0].table.blocks
    assert first.status is Status.FINISHED
    assert all(engine.pool.ref_count(block) == 1 for block in blocks)
    for _ in range(3):  # other requests take every block that is really free
        engine.add(tokens(20, first=20), max_tokens=1)
        engine.step()
    engine.run()


def test_duplicates_take_the_place_of_an_evicted_original() -> None:
    """The blocks of the second request become findable when those of the first are recycled."""
    engine = FakeEngine(num_blocks=8, block_size=4, max_num_batched_tokens=64)
    engine.add(tokens(8), max_tokens=1)
    engine.add(tokens(8), max_tokens=9)
    engine.step()
    engine.add(tokens(15, first=20), max_tokens=2)  # evicts the first request's two blocks
    for _ in range(4):
        engine.step()
    engine.run()
    engine.add(tokens(9), max_tokens=1)
    assert engine.step().cached_tokens == 8


def test_hits_are_looked_up_again_on_every_attempt() -> None:
    """Elsewhere the count of hits was kept while the request waited, and the cache changed meanwhile."""
    engine = FakeEngine(num_blocks=5, block_size=4)
    engine.add(tokens(8), max_tokens=1)
    engine.run()
    running = engine.add(tokens(8, first=20), max_tokens=9)
    engine.step()
    waiting = engine.add(tokens(12), max_tokens=5)
    engine.step()
    assert waiting.status is Status.WAITING
    assert len(engine.scheduler.manager.find_prefix(waiting)) == 2
    while running.status is Status.RUNNING:
        engine.step()  # it grows into the second of the two blocks
    cached = [step.cached_tokens for step in engine.run()]
    assert cached[0] == 4
    assert waiting.finished[0].token_ids == alone(waiting, 0)


def test_colliding_keys_do_not_change_what_is_generated() -> None:
    engine = FakeEngine(num_blocks=12, block_size=2)
    assert engine.pool.prefix_cache is not None
    engine.pool.prefix_cache._hash = lambda parent, tokens, extras: b"always the same"
    for first in (0, 0, 5, 0, 5):
        engine.add(tokens(7, first))
    steps = engine.run()
    assert sum(step.cached_tokens for step in steps) > 0


def test_two_requests_that_do_not_fit_together_do_not_preempt_each_other_for_ever() -> None:
    """Partial admission did that elsewhere: 100 tokens/s became 1.5."""
    for num_host_blocks in (0, 20):
        engine = FakeEngine(num_blocks=6, block_size=4, caching=False, num_host_blocks=num_host_blocks)
        engine.add(tokens(5), max_tokens=12)
        engine.add(tokens(5), max_tokens=12)
        steps = engine.run()
        assert sum(len(step.preempted) for step in steps) == 1
        assert len(steps) <= 26, "hardly more than one after the other"


def test_every_step_moves_the_oldest_request_forward() -> None:
    engine = FakeEngine(num_blocks=6, block_size=2, caching=False, max_num_seqs=6, max_num_batched_tokens=6)
    for i in range(6):
        engine.add(tokens(3 + i % 3), max_tokens=5)
    while engine.scheduler.has_work:
        step = engine.step()
        oldest = min(
            [chunk.request for chunk in step.chunks] + engine.scheduler.running,
            key=lambda request: request.seniority,
        )
        assert any(chunk.request is oldest for chunk in step.chunks)


def test_a_prompt_larger_than_the_pool_is_refused_at_once() -> None:
    """Elsewhere it died on an assert or waited for ever."""
    engine = FakeEngine(num_blocks=4, block_size=4)
    with pytest.raises(NeverFits, match="up to 5 blocks of 4 tokens, but the pool has 4"):
        engine.add(tokens(14), max_tokens=4)
    assert not engine.scheduler.has_work
    engine.add(tokens(14), max_tokens=3)  # its last token is never fed back, so 16 slots are enough
    engine.run()


def test_a_request_wider_than_the_limit_is_refused_at_once() -> None:
    with pytest.raises(NeverFits, match="the request has 5 sequences, but max_num_seqs = 4"):
        FakeEngine(num_blocks=64).add(tokens(4), n=5)


def test_swapped_blocks_come_back_after_the_device_overwrote_them() -> None:
    """Elsewhere the copy went through a temporary and did nothing. Freed blocks are overwritten in each step."""
    engine = FakeEngine(num_blocks=6, block_size=4, caching=False, num_host_blocks=6)
    engine.add(tokens(5), max_tokens=12)
    engine.add(tokens(5), max_tokens=12)
    steps = engine.run()
    assert sum(len(step.swaps_out) for step in steps) == sum(len(step.swaps_in) for step in steps) > 0
    swapped_in = next(step for step in steps if step.swaps_in)
    assert swapped_in.num_tokens == 1, "nothing is computed again"


def test_a_salt_keeps_tenants_apart() -> None:
    engine = FakeEngine(num_blocks=12)
    cached = []
    for salt in ("a", "b", "a", None):
        engine.add(tokens(9), salt=salt)
        cached.append(engine.run()[0].cached_tokens)
    assert cached == [0, 0, 8, 0]


# ---- admission


def test_admission_asks_for_the_prompt_and_one_block_to_grow() -> None:
    engine = FakeEngine(num_blocks=8, block_size=4, caching=False)
    scheduler, pool = engine.scheduler, engine.pool
    request = engine.request(tokens(9), max_tokens=10)  # ceil(9 / 4) + 1
    for num_free, answer in ((4, Admission.OK), (3, Admission.LATER)):
        held = pool.allocate(pool.num_free - num_free)
        assert scheduler.admission(request) is answer
        pool.free(held)
    assert scheduler.admission(engine.request(tokens(30), max_tokens=4)) is Admission.NEVER


def test_cached_blocks_that_others_hold_are_not_needed_again() -> None:
    engine = FakeEngine(num_blocks=8, block_size=4)
    engine.add(tokens(8), max_tokens=9)
    engine.step()
    # Three blocks, two of which the first request holds, and one to grow into.
    request = engine.request(tokens(11), max_tokens=6)
    for num_free, answer in ((2, Admission.OK), (1, Admission.LATER)):
        held = engine.pool.allocate(engine.pool.num_free - num_free)
        assert engine.scheduler.admission(request) is answer
        engine.pool.free(held)


def test_cached_blocks_that_nobody_holds_are_among_the_free_ones_and_needed() -> None:
    engine = FakeEngine(num_blocks=8, block_size=4)
    engine.add(tokens(8), max_tokens=1)
    engine.run()
    request = engine.request(tokens(11), max_tokens=6)
    for num_free, answer in ((4, Admission.OK), (3, Admission.LATER)):
        held = engine.pool.allocate(engine.pool.num_free - num_free)
        assert len(engine.scheduler.manager.find_prefix(request)) == 2
        assert engine.scheduler.admission(request) is answer
        engine.pool.free(held)


def test_a_request_that_cannot_grow_needs_no_block_to_grow_into() -> None:
    engine = FakeEngine(num_blocks=8, block_size=4, caching=False)
    assert engine.scheduler.manager.blocks_to_admit(engine.request(tokens(9), max_tokens=4)) == 3
    assert engine.scheduler.manager.blocks_to_admit(engine.request(tokens(9), max_tokens=5)) == 4


def test_the_watermark_holds_back_newcomers_and_not_a_lone_request() -> None:
    engine = FakeEngine(num_blocks=10, block_size=4, caching=False, watermark=0.3)
    assert engine.scheduler.watermark_blocks == 3
    alone_request = engine.add(tokens(36), max_tokens=4)  # nine blocks and one to grow into: the whole pool
    engine.step()
    assert alone_request.status is Status.RUNNING
    engine.run()
    engine.add(tokens(8), max_tokens=9)
    engine.step()
    newcomer = engine.add(tokens(12), max_tokens=9)
    engine.step()  # 7 or 8 blocks are free, it needs 4: with 3 held back they are enough
    assert newcomer.status is Status.RUNNING
    third = engine.add(tokens(4), max_tokens=9)
    engine.step()
    assert third.status is Status.WAITING


def test_nobody_overtakes_and_priority_goes_first() -> None:
    engine = FakeEngine(num_blocks=6, block_size=4, caching=False)
    engine.add(tokens(12), max_tokens=9)
    engine.step()
    large, small = engine.add(tokens(16), max_tokens=4), engine.add(tokens(2), max_tokens=1)
    engine.step()
    assert (large.status, small.status) == (Status.WAITING, Status.WAITING)
    urgent = engine.add(tokens(2), max_tokens=1, priority=-1)
    assert engine.scheduler.waiting == [urgent, large, small]
    engine.step()
    assert urgent.status is Status.FINISHED
    engine.run()


def test_a_later_urgent_request_does_not_stop_the_others_for_ever() -> None:
    engine = FakeEngine(num_blocks=5, block_size=4, caching=False)
    first = engine.add(tokens(9), max_tokens=10)
    engine.step()
    for _ in range(3):
        engine.add(tokens(6), max_tokens=6, priority=-1)
    engine.run()
    assert first.finished[0].token_ids == alone(first, 0)


def test_the_same_request_seen_from_the_pool() -> None:
    """used + free = all, from before admission to after the end."""
    engine = FakeEngine(num_blocks=8, block_size=4, caching=False)
    engine.add(tokens(6), max_tokens=4)
    used = []
    while engine.scheduler.has_work:
        engine.step()
        used.append(engine.pool.num_used)
    assert used == [2, 2, 2, 0]  # slots for tokens 0..8: the last token never gets one


@pytest.mark.parametrize("n", [1, 2])
def test_placing_a_request_fails_whole(n: int) -> None:
    engine = FakeEngine(num_blocks=6, block_size=4)
    engine.add(tokens(8), max_tokens=1)
    engine.run()
    manager, pool = engine.scheduler.manager, engine.pool
    request = engine.request(tokens(11), max_tokens=9, n=n)
    for index in range(1, n):  # as if it had been preempted after its fork
        request.sequences.append(request.sequences[0].fork(index))
    for sequence in request.sequences:
        sequence.token_ids += [20] * 3
    pool.allocate(pool.num_free - 3)
    with pytest.raises(OutOfBlocks):
        manager.place(request)
    assert pool.num_free == 3
    assert len(manager.find_prefix(request)) == 2, "what was found is still there"
    assert all(not s.table.blocks and s.num_computed_tokens == 0 for s in request.sequences)
    pool.check()


# ---- chunked prefill and the token budget


def test_a_long_prompt_is_computed_in_chunks_and_does_not_stop_decodes() -> None:
    engine = FakeEngine(num_blocks=32, block_size=4, caching=False, max_num_seqs=2, max_num_batched_tokens=8)
    short, long = engine.add(tokens(4), max_tokens=12), engine.add(tokens(30), max_tokens=3)
    lengths = []
    while long.status is not Status.FINISHED:
        step = engine.step()
        lengths.append([chunk.stop - chunk.start for chunk in step.chunks])
    assert lengths[:5] == [[4, 4], [1, 7], [1, 7], [1, 7], [1, 5]]
    assert all(len(step) == 2 for step in lengths), f"request {short.request_id} decodes in every step"
    engine.run()


def test_the_token_budget_holds_when_a_swapped_request_both_decodes_and_prefills() -> None:
    """A sample that decodes and one that was cut off in its prefill come back together."""
    engine = FakeEngine(
        num_blocks=14,
        block_size=2,
        caching=False,
        num_host_blocks=40,
        max_num_seqs=4,
        max_num_batched_tokens=4,
    )
    for priority in (0, 1, -1, 2, -2):
        engine.add(tokens(7), max_tokens=7, n=2, priority=priority)
        engine.step()
    engine.run()  # every step asserts its budget


def test_a_swapped_request_waits_until_all_its_decodes_fit_the_token_budget() -> None:
    engine = FakeEngine(
        num_blocks=40,
        block_size=4,
        caching=False,
        num_host_blocks=40,
        max_num_seqs=4,
        max_num_batched_tokens=4,
    )
    samples = engine.add(tokens(4), max_tokens=6, n=2)
    engine.step()
    engine.step()
    preemption = Step()
    engine.scheduler._preempt(samples, preemption)
    engine.move_blocks(preemption)
    long = engine.add(tokens(12, first=20), priority=-1)
    step = engine.step()
    assert [chunk.request for chunk in step.chunks] == [long]
    assert samples.status is Status.SWAPPED
    engine.run()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs = 0"),
        ({"max_num_seqs": 8, "max_num_batched_tokens": 7}, "max_num_batched_tokens = 7 is less"),
        ({"watermark": 1.0}, "watermark = 1.0"),
        ({"watermark": -0.1}, "watermark = -0.1"),
        ({"watermark": float("nan")}, "watermark = nan"),
        ({"host_pool": BlockPool(4, 8)}, "blocks of 8 tokens on the host and of 4 on the device"),
    ],
)
def test_limits_out_of_range(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Scheduler(BlockPool(4, 4), **arguments)  # type: ignore[arg-type]


# ---- samples and beams


@pytest.mark.parametrize("prompt_length", [7, 8, 9])
def test_samples_share_the_prompt_and_copy_only_the_block_where_they_part(prompt_length: int) -> None:
    engine = FakeEngine(num_blocks=40, block_size=4, caching=False)
    request = engine.add(tokens(prompt_length), max_tokens=3, n=4)
    engine.step()
    full, tail = divmod(prompt_length, 4)
    assert engine.pool.num_used == full + (tail > 0)
    step = engine.step()
    assert len(step.copies) == (3 if tail else 0), "the last of the four writes in place"
    assert engine.pool.num_used == full + 4
    engine.run()
    assert sorted(sequence.index for sequence in request.finished) == [0, 1, 2, 3]


@pytest.mark.parametrize("num_host_blocks", [0, 3, 40])
@pytest.mark.parametrize("beams", [False, True])
def test_preempted_samples_and_beams_come_back_whole(num_host_blocks: int, beams: bool) -> None:
    engine = FakeEngine(num_blocks=10, block_size=2, caching=False, num_host_blocks=num_host_blocks)
    for _ in range(2):
        engine.add(tokens(5), max_tokens=7, n=2, beams=beams)
        engine.step()
    steps = engine.run()
    assert any(step.preempted for step in steps)


def test_the_most_a_request_can_hold_is_enough_for_it() -> None:
    """`most_blocks` is what NEVER rests on: alone in a pool of that size, a request is never preempted."""
    for beams in (False, True):
        for n in (1, 2, 3):
            for length in range(1, 9):
                sizing = FakeEngine(num_blocks=100, block_size=3, caching=False).request(
                    tokens(length), 6, n=n
                )
                engine = FakeEngine(sizing.most_blocks(BlockPool(100, 3)), 3, caching=False)
                engine.add(tokens(length), 6, n=n, beams=beams)
                assert not any(step.preempted for step in engine.run())


# ---- abort and failure


@pytest.mark.parametrize("num_host_blocks", [0, 40])
@pytest.mark.parametrize("n", [1, 3])
def test_abort_at_every_step_of_a_life_releases_everything(n: int, num_host_blocks: int) -> None:
    def scenario() -> FakeEngine:
        engine = FakeEngine(
            num_blocks=16, block_size=2, num_host_blocks=num_host_blocks, max_num_batched_tokens=6
        )
        for _ in range(3):
            engine.add(tokens(7), max_tokens=6, n=n)
        return engine

    life = len(scenario().run())
    for moment in range(life):
        for victim in range(3):
            engine = scenario()
            requests = list(engine.scheduler.waiting)
            for _ in range(moment):
                engine.step()
            engine.abort(requests[victim])
            engine.abort(requests[victim])  # twice is harmless
            assert requests[victim].status is Status.FINISHED
            engine.run()


def test_an_abort_between_schedule_and_complete_is_harmless() -> None:
    engine = FakeEngine(num_blocks=8)
    request = engine.add(tokens(6))
    step = engine.scheduler.schedule()
    engine.abort(request)
    engine.scheduler.complete(step)
    engine.scheduler.check()
    assert engine.pool.num_used == 0


@pytest.mark.parametrize("num_host_blocks", [0, 40])
def test_a_failure_in_every_step_of_a_life_changes_no_result(num_host_blocks: int) -> None:
    def scenario() -> FakeEngine:
        engine = FakeEngine(
            num_blocks=14, block_size=2, num_host_blocks=num_host_blocks, max_num_batched_tokens=6
        )
        for _ in range(3):
            engine.add(tokens(5), max_tokens=6, n=2)
        return engine

    for moment in range(len(scenario().run())):
        engine = scenario()
        for _ in range(moment):
            engine.step()
        engine.step(fails=True)
        assert not engine.scheduler.running
        engine.run()  # compares every sample with the same one run alone
        assert len(engine.ended) == 3


def test_check_finds_a_table_that_names_a_block_it_does_not_hold() -> None:
    def unheld(engine: FakeEngine) -> None:
        engine.scheduler.running[0].sequences[0].table.blocks.append(7)
        engine.scheduler.running[0].sequences[0].table.num_tokens += 4

    def out_of_order(engine: FakeEngine) -> None:
        engine.scheduler.running.reverse()

    def leaked(engine: FakeEngine) -> None:
        engine.pool.allocate(1)

    damages: list[Callable[[FakeEngine], None]] = [unheld, out_of_order, leaked]
    for damage in damages:
        engine = FakeEngine(num_blocks=8)
        engine.add(tokens(6))
        engine.add(tokens(6))
        engine.step()
        engine.scheduler.check()
        damage(engine)
        with pytest.raises(AssertionError):
            engine.scheduler.check()
