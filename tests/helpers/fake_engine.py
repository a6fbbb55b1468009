"""An engine without a model: each slot remembers the tokens up to its own, so that any wrong read is seen.

The scheduler, pools and tables are the real ones. The "key and value" of token i is a number that stands for tokens
0 .. i of its sequence, so what a table's slots hold must equal the sequence's own prefixes. Blocks that are free and
not cached are overwritten in every step.
"""

from __future__ import annotations

from collections import abc

from paged_ref.blocks.block_pool import BlockPool
from paged_ref.blocks.block_table import BlockTable
from paged_ref.sampling.params import SamplingParams
from paged_ref.scheduling.request import Request, Sequence, Status
from paged_ref.scheduling.scheduler import Scheduler
from paged_ref.scheduling.step import Step

GARBAGE = -1
VOCABULARY = 50


class Storage:
    """One number per slot."""

    def __init__(self, pool: BlockPool) -> None:
        self.size = pool.block_size
        self.rows = [[GARBAGE] * pool.block_size for _ in range(pool.num_blocks)]

    def __getitem__(self, slot: int) -> int:
        return self.rows[slot // self.size][slot % self.size]

    def __setitem__(self, slot: int, value: int) -> None:
        self.rows[slot // self.size][slot % self.size] = value

    def load(self, other: Storage, pairs: abc.Sequence[tuple[int, int]]) -> None:
        moved = [list(other.rows[source]) for source, _ in pairs]
        for (_, destination), row in zip(pairs, moved, strict=True):
            self.rows[destination] = row

    def overwrite_unused(self, pool: BlockPool) -> None:
        for block in pool.free_blocks():
            if pool.prefix_cache is None or block not in pool.prefix_cache:
                self.rows[block] = [GARBAGE] * self.size


def prefixes(token_ids: abc.Sequence[int]) -> list[int]:
    """A number for each prefix of the tokens."""
    values, value = [], 7
    for token in token_ids:
        value = hash((value, token))
        values.append(value)
    return values


def next_token(prefix: int, index: int) -> int:
    """What the "model" says after a prefix, for the sample with this index."""
    return hash((prefix, index)) % VOCABULARY


class FakeEngine:
    """Drives a scheduler and checks contents, limits and invariants in every step."""

    def __init__(
        self,
        num_blocks: int = 8,
        block_size: int = 4,
        caching: bool = True,
        num_host_blocks: int = 0,
        max_num_seqs: int = 4,
        max_num_batched_tokens: int = 16,
        watermark: float = 0.0,
    ) -> None:
        self.pool = BlockPool(num_blocks, block_size, caching)
        host = BlockPool(num_host_blocks, block_size) if num_host_blocks else None
        self.scheduler = Scheduler(self.pool, max_num_seqs, max_num_batched_tokens, watermark, host)
        self.storage = Storage(self.pool)
        self.host_storage = Storage(host) if host else None
        self.num_requests = 0
        self.ended: list[Request] = []

    def request(
        self,
        prompt: abc.Sequence[int],
        max_tokens: int = 4,
        n: int = 1,
        beams: bool = False,
        priority: int = 0,
        salt: str | None = None,
    ) -> Request:
        """A request that is not added yet."""
        self.num_requests += 1
        width = {"beam_width": n} if beams and n > 1 else {"n": n}
        sampling = SamplingParams(max_tokens=max_tokens, cache_salt=salt, **width)
        first = Sequence(list(prompt), len(prompt), BlockTable(self.pool))
        return Request(self.num_requests, list(prompt), sampling, max_tokens, [first], priority=priority)

    def add(self, prompt: abc.Sequence[int], max_tokens: int = 4, **options: object) -> Request:
        request = self.request(prompt, max_tokens, **options)  # type: ignore[arg-type]
        self.scheduler.add(request)
        return request

    def run(self, limit: int = 10_000) -> list[Step]:
        """Step until nothing is left to do; afterwards no block is held."""
        steps: list[Step] = []
        while self.scheduler.has_work:
            steps.append(self.step())
            assert len(steps) < limit, "it does not end"
        assert self.pool.num_used == 0
        return steps

    def step(self, fails: bool = False) -> Step:
        """One step; if it is to fail, no block is moved, half of the writes are done, and the step recovered from."""
        had_work = self.scheduler.has_work
        step = self.scheduler.schedule()
        assert step.num_tokens <= self.scheduler.max_num_batched_tokens
        assert len(step.chunks) <= self.scheduler.max_num_seqs
        assert not (step.preempted and step.admitted), (
            "whoever made room for others does not come back at once"
        )
        assert bool(step.chunks) == had_work, "a step computes something whenever there is anything to do"
        if not fails:
            self.move_blocks(step)
        for chunk in step.chunks[: len(step.chunks) // 2] if fails else step.chunks:
            values = prefixes(chunk.sequence.token_ids)
            for i in range(chunk.start, chunk.stop):
                block = chunk.sequence.table.blocks[i // self.pool.block_size]
                assert self.may_write(chunk.request, chunk.sequence, block), "a shared block is written"
                assert self.pool.prefix_cache is None or block not in self.pool.prefix_cache, (
                    "a cached one is"
                )
                self.storage[chunk.sequence.table.slot(i)] = values[i]
        if fails:
            self.scheduler.recover(step)
        else:
            for chunk in step.chunks:
                self.check_contents(chunk.sequence, chunk.stop)
            sampling = [chunk for chunk in step.chunks if chunk.samples]
            self.scheduler.complete(step)
            for request in dict.fromkeys(chunk.request for chunk in sampling):
                self._sample(request, [chunk.sequence for chunk in sampling if chunk.request is request])
        self.check()
        self.overwrite_unused()
        return step

    def overwrite_unused(self) -> None:
        self.storage.overwrite_unused(self.pool)
        if self.host_storage and self.scheduler.manager.host_pool:
            self.host_storage.overwrite_unused(self.scheduler.manager.host_pool)

    def move_blocks(self, step: Step) -> None:
        if self.host_storage:
            self.host_storage.load(self.storage, step.swaps_out)
            self.storage.overwrite_unused(self.pool)
            self.storage.load(self.host_storage, step.swaps_in)
        self.storage.load(self.storage, step.copies)

    def abort(self, request: Request) -> None:
        self.scheduler.abort(request)
        self.check()
        self.overwrite_unused()

    def check(self) -> None:
        self.scheduler.check()
        for request in [*self.scheduler.running, *self.scheduler.waiting]:
            for sequence in request.sequences:
                # A sequence that was placed on blocks which the request's first one still computes waits for it.
                self.check_contents(
                    sequence, min(sequence.num_computed_tokens, self.computed_for(request, sequence))
                )

    @staticmethod
    def computed_for(request: Request, sequence: Sequence) -> int:
        shared = (
            len(request.prompt_token_ids) // sequence.table.pool.block_size * sequence.table.pool.block_size
        )
        leader = request.sequences[0]
        return (
            leader.num_computed_tokens if sequence.num_computed_tokens <= shared else len(sequence.token_ids)
        )

    def may_write(self, request: Request, sequence: Sequence, block: int) -> bool:
        """Nobody else holds the block, or only sequences of the same request that wait for this one to write it."""
        others = [s for s in request.sequences if s is not sequence and block in s.table.blocks]
        waits = all(s.num_computed_tokens > sequence.num_computed_tokens for s in others)
        return self.pool.ref_count(block) == 1 + len(others) and (not others or waits)

    def check_contents(self, sequence: Sequence, num_tokens: int) -> None:
        """The first `num_tokens` tokens of the sequence are where its table says."""
        on_host = self.host_storage is not None and sequence.table.pool is self.scheduler.manager.host_pool
        storage = self.host_storage if on_host else self.storage
        assert storage is not None
        found = [storage[slot] for slot in sequence.table.slots(0, num_tokens)]
        assert found == prefixes(sequence.token_ids[:num_tokens])

    def _sample(self, request: Request, sequences: list[Sequence]) -> None:
        beams = request.sampling.beam_width is not None
        if len(request.sequences) == 1 and not request.finished:
            for index in range(1, request.width):
                sequences.append(self.scheduler.fork(request, request.sequences[0], index))
        elif beams and len(sequences) == len(request.sequences):
            # Keep the last beam twice and let the first one go, as a beam search does.
            fork = self.scheduler.fork(request, sequences[-1], sequences[0].index)
            self.scheduler.replace(request, [*sequences[1:], fork])
            sequences = list(request.sequences)
        for sequence in sequences:
            sequence.token_ids.append(next_token(prefixes(sequence.token_ids)[-1], sequence.index))
            if sequence.num_new_tokens >= request.max_new_tokens:
                self.scheduler.finish(request, sequence, "length")
        if request.status is Status.FINISHED:
            self.ended.append(request)
            if not beams:
                for sequence in request.finished:
                    assert sequence.token_ids == alone(request, sequence.index)


def alone(request: Request, index: int) -> list[int]:
    """The tokens of a sample if nothing else ran."""
    tokens = list(request.prompt_token_ids)
    for _ in range(request.max_new_tokens):
        tokens.append(next_token(prefixes(tokens)[-1], index))
    return tokens
