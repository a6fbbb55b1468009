"""Random lives of pool, tables, prefix cache and scheduler; with --full 10^5 operations of each machine.

Two machines draw operations. `Tables` uses pool, tables and prefix cache as a hand-written manager would;
`Requests` uses the scheduler through a fake engine. After every operation all invariants are checked, and every
token must be found where its table says, in storage whose free blocks are overwritten (see `fake_engine`).
"""

import random
from collections import Counter

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from paged_ref.blocks.block_pool import BlockPool, OutOfBlocks
from paged_ref.blocks.block_table import BlockTable, move_tables
from paged_ref.blocks.prefix_cache import PrefixCache, chained_key
from paged_ref.scheduling.scheduler import NeverFits
from tests.helpers.fake_engine import FakeEngine, Storage, prefixes


def profile(full: bool, examples: int) -> settings:
    return settings(
        max_examples=examples if full else 100,
        stateful_step_count=100 if full else 50,
        deadline=None,
        derandomize=not full,
        suppress_health_check=list(HealthCheck),
    )


done: Counter[str] = Counter()


def beginning(length: int, more: list[int]) -> list[int]:
    return ([0, 1, 1] * 4)[:length] + more


few_tokens = st.lists(st.integers(0, 1), min_size=1, max_size=6)
prompts = st.builds(
    beginning, st.integers(1, 9), st.lists(st.integers(0, 1), max_size=2)
)  # often begin alike
salts = st.sampled_from([None, None, "a"])


class Tables(RuleBasedStateMachine):
    """Pool, tables and prefix cache by hand."""

    @initialize(
        num_blocks=st.integers(1, 12), size=st.integers(1, 4), caching=st.booleans(), collide=st.booleans()
    )
    def start(self, num_blocks: int, size: int, caching: bool, collide: bool) -> None:
        self.pool = BlockPool(num_blocks, size, caching)
        if caching:
            self.pool.prefix_cache = PrefixCache((lambda *parts: b"same") if collide else chained_key)
        self.host = BlockPool(6, size)
        self.storages = {self.pool: Storage(self.pool), self.host: Storage(self.host)}
        self.tables: dict[BlockTable, list[int]] = {}

    def some(self, data: st.DataObject, pool: BlockPool | None = None) -> BlockTable | None:
        tables = [table for table in self.tables if pool in (None, table.pool)]
        return data.draw(st.sampled_from(tables)) if tables else None

    def write(self, table: BlockTable, tokens: list[int]) -> None:
        before = (list(table.blocks), table.num_tokens, table.pool.free_blocks())
        try:
            slots = table.append(len(tokens))
        except OutOfBlocks:
            assert before == (table.blocks, table.num_tokens, table.pool.free_blocks())
            return
        storage = self.storages[table.pool]
        storage.load(storage, table.take_copies())
        self.tables[table] += tokens
        values = prefixes(self.tables[table])[len(self.tables[table]) - len(tokens) :]
        for slot, value in zip(slots, values, strict=True):
            assert table.pool.ref_count(slot // table.pool.block_size) == 1
            storage[slot] = value

    @rule(tokens=prompts)
    def new(self, tokens: list[int]) -> None:
        done["new"] += 1
        table = BlockTable(self.pool)
        self.tables[table] = []
        if self.pool.prefix_cache is not None:
            hits = self.pool.prefix_cache.match(tokens, self.pool.block_size)
            table.adopt([entry.block for entry in hits])
            self.tables[table] = tokens[: table.num_tokens]
            done["hit"] += len(hits)
        self.write(table, tokens[table.num_tokens :])
        self.file(table)

    @rule(data=st.data(), tokens=few_tokens)
    def append(self, data: st.DataObject, tokens: list[int]) -> None:
        done["append"] += 1
        table = self.some(data)
        if table is not None:
            self.write(table, tokens)

    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        done["fork"] += 1
        table = self.some(data)
        if table is not None:
            num_tokens = data.draw(st.integers(0, table.num_tokens))
            self.tables[table.fork(num_tokens)] = self.tables[table][:num_tokens]

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        done["release"] += 1
        table = self.some(data)
        if table is not None:
            table.release()
            del self.tables[table]

    @precondition(lambda self: self.pool.prefix_cache is not None)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        done["publish"] += 1
        table = self.some(data, self.pool)
        if table is not None:
            self.file(table)

    def file(self, table: BlockTable) -> None:
        cache, size = self.pool.prefix_cache, self.pool.block_size
        if cache is None:
            return
        entry = None
        for i in range(table.num_tokens // size):
            entry = cache.publish(entry, self.tables[table][i * size : (i + 1) * size], None, table.blocks[i])

    @rule(data=st.data(), swap_out=st.booleans())
    def swap(self, data: st.DataObject, swap_out: bool) -> None:
        done["swap"] += 1
        source, destination = (self.pool, self.host) if swap_out else (self.host, self.pool)
        candidates = [table for table in self.tables if table.pool is source]
        if not candidates:
            return
        group = data.draw(st.lists(st.sampled_from(candidates), unique=True, min_size=1))
        before = ([list(table.blocks) for table in group], source.free_blocks(), destination.free_blocks())
        try:
            copies = move_tables(group, destination)
        except OutOfBlocks:
            after = ([table.blocks for table in group], source.free_blocks(), destination.free_blocks())
            assert before == after
            return
        self.storages[destination].load(self.storages[source], copies)

    @rule(block=st.integers(-2, 13), times=st.integers(1, 3))
    def misuse(self, block: int, times: int) -> None:
        """Freeing what is not held that often fails and changes nothing; so does sharing what is worth nothing."""
        done["misuse"] += 1
        known = 0 <= block < self.pool.num_blocks
        before = self.pool.free_blocks()
        if not known or self.pool.ref_count(block) < times:
            try:
                self.pool.free([block] * times)
            except ValueError:
                assert self.pool.free_blocks() == before
            else:
                raise AssertionError("a double free went through")

    @invariant()
    def everything_agrees(self) -> None:
        for pool, storage in self.storages.items():
            pool.check()
            held = Counter(block for table in self.tables if table.pool is pool for block in table.blocks)
            assert [held[block] for block in range(pool.num_blocks)] == [
                pool.ref_count(block) for block in range(pool.num_blocks)
            ]
            storage.overwrite_unused(pool)
        for table, tokens in self.tables.items():
            table.check()
            storage = self.storages[table.pool]
            assert [storage[slot] for slot in table.slots(0, table.num_tokens)] == prefixes(tokens)

    @invariant()
    def the_cache_finds_what_it_says(self) -> None:
        cache, size = self.pool.prefix_cache, self.pool.block_size
        if cache is None:
            return
        for tokens in ([0] * 9, [1] * 9, beginning(9, [])):
            found = [entry.block for entry in cache.match(tokens, size)]
            contents = [value for block in found for value in self.storages[self.pool].rows[block]]
            assert contents == prefixes(tokens)[: len(contents)]

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            for table in self.tables:
                table.release()
            assert self.pool.num_used == self.host.num_used == 0


class Requests(RuleBasedStateMachine):
    """The scheduler, through the fake engine, which checks everything in every step."""

    @initialize(
        num_blocks=st.integers(3, 12),
        size=st.sampled_from([2, 1, 3, 4]),
        caching=st.booleans(),
        num_host_blocks=st.sampled_from([20, 3, 0]),
        max_num_seqs=st.sampled_from([6, 4, 3, 2, 1]),
        more_tokens=st.integers(0, 15),
        watermark=st.sampled_from([0.0, 0.1, 0.3]),
    )
    def start(
        self,
        num_blocks: int,
        size: int,
        caching: bool,
        num_host_blocks: int,
        max_num_seqs: int,
        more_tokens: int,
        watermark: float,
    ) -> None:
        self.engine = FakeEngine(
            num_blocks, size, caching, num_host_blocks, max_num_seqs, max_num_seqs + more_tokens, watermark
        )

    @rule(
        prompt=prompts,
        max_tokens=st.integers(1, 8),
        n=st.sampled_from([1, 1, 2, 3]),
        beams=st.booleans(),
        priority=st.sampled_from([0, 0, 1]),
        salt=salts,
    )
    def add(
        self, prompt: list[int], max_tokens: int, n: int, beams: bool, priority: int, salt: str | None
    ) -> None:
        done["add"] += 1
        try:
            self.engine.add(prompt, max_tokens, n=n, beams=beams, priority=priority, salt=salt)
        except NeverFits:
            done["never"] += 1

    @rule(seed=st.integers(0, 10**6))
    def crowd(self, seed: int) -> None:
        """Several ordinary requests at once, so that the pool becomes too small."""
        rng = random.Random(seed)
        for _ in range(4):
            prompt = beginning(rng.randint(1, 9), [rng.randint(0, 1)])
            self.add(
                prompt, rng.randint(3, 8), rng.choice([1, 1, 2]), rng.random() < 0.5, rng.choice([0, 1]), None
            )

    @rule(times=st.integers(1, 5))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.count_step(fails=False)

    @precondition(lambda self: self.engine.scheduler.has_work)
    @rule()
    def failing_step(self) -> None:
        self.count_step(fails=True)

    def count_step(self, fails: bool) -> None:
        step = self.engine.step(fails)
        done["step"] += 1
        done["preempted"] += len(step.preempted)
        done["swapped in"] += len(step.swaps_in)
        done["copied"] += len(step.copies)
        done["cached"] += step.cached_tokens

    @precondition(lambda self: len(self.engine.scheduler.running) > 2)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        done["abort"] += 1
        requests = [*self.engine.scheduler.running, *self.engine.scheduler.waiting]
        if requests:
            self.engine.abort(data.draw(st.sampled_from(requests)))

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.run()


def test_tables_pool_and_prefix_cache(full: bool) -> None:
    done.clear()
    run_state_machine_as_test(Tables, settings=profile(full, 1400))
    kinds = ("new", "append", "fork", "release", "publish", "swap", "misuse", "hit")
    assert all(done[kind] for kind in kinds), done
    if full:
        assert sum(done[kind] for kind in kinds if kind != "hit") >= 10**5


def test_requests(full: bool) -> None:
    done.clear()
    run_state_machine_as_test(Requests, settings=profile(full, 700))
    events = ("never", "preempted", "swapped in", "copied", "cached")
    assert all(done[event] for event in events), done
    if full:
        assert done["add"] + done["step"] + done["abort"] >= 10**5
