"""The main test: whatever the pool, the batch and the schedule, the tokens are the dense model's.

Each configuration draws a pool (from just large enough to plenty, its blocks shuffled), a block size, a way of
preemption, limits of the batch, and requests that arrive at different steps: greedy ones, several samples, beams. The
scheduler's invariants are checked after every step. 200 configurations; `--full` runs 2,000.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from paged_ref import LLM, SamplingParams
from paged_ref.blocks.block_pool import BlockPool
from paged_ref.scheduling.request import Request

NEW_TOKENS = 24
BEAM_TOKENS = 8
PARTS = 4


@pytest.fixture(scope="module")
def greedy(tiny: Any, prompts: list[list[int]]) -> list[list[int]]:
    """The dense model's next tokens for each prompt. The first m of them are what max_tokens = m gives."""
    return [tiny.generate(prompt, NEW_TOKENS) for prompt in prompts]


@pytest.fixture(scope="module")
def beams(tiny: Any, prompts: list[list[int]]) -> list[list[list[int]]]:
    """The dense model's three beams for each prompt."""
    return [tiny.beams(prompt, BEAM_TOKENS, 3, None)[0] for prompt in prompts]


def shuffle(pool: BlockPool, rng: random.Random) -> None:
    """Bring the free queue into a random order, so that no table is in order by chance."""
    blocks = pool.allocate(pool.num_blocks)
    rng.shuffle(blocks)
    pool.free(blocks)


def make_engine(
    make: Any, rng: random.Random, requests: list[tuple[int, SamplingParams]], prompts: Any
) -> LLM:
    """An engine that admits the largest request, and for the rest is drawn at random."""
    size = rng.choice([1, 2, 3, 4, 5, 7, 8, 11, 16, 23, 32, 33])
    least = 0
    for i, sampling in requests:
        probe = Request(0, prompts[i], sampling, sampling.max_tokens, [])
        least = max(least, probe.most_blocks(BlockPool(1, size)))
    num_blocks = least + rng.choice([0, 1, least // 4, least // 2, least, 10 * least])
    max_num_seqs = rng.choice([3, 4, 8, 64])
    llm = make(
        num_blocks=num_blocks,
        block_size=size,
        preemption=rng.choice(["recompute", "swap"]),
        num_host_blocks=rng.choice([1, num_blocks, 4 * num_blocks]),
        enable_prefix_caching=rng.random() < 0.6,
        watermark=rng.choice([0.0, 0.0, 0.01, 0.2]),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + rng.choice([0, 1, 7, 30, 2000]),
    )
    shuffle(llm.pool, rng)
    return llm


def run_one(make: Any, rng: random.Random, prompts: Any, greedy: Any, beams: Any) -> Counter[str]:
    """One configuration: run it, compare every request, return what happened in it."""
    requests = []
    longest = rng.choice(
        [9, 16, 60]
    )  # where all are short, several are admitted and then outgrow a small pool
    fitting = [i for i, prompt in enumerate(prompts) if len(prompt) <= longest]
    for i in rng.choices(fitting, k=rng.randrange(3, 9)):  # the same prompt may come twice
        kind = rng.random()
        if kind < 0.1:
            requests.append((i, SamplingParams(max_tokens=BEAM_TOKENS, beam_width=3)))
        else:
            n = rng.choice([2, 3]) if kind < 0.25 else 1
            requests.append(
                (i, SamplingParams(max_tokens=rng.choice([1, 9, 16, NEW_TOKENS, NEW_TOKENS]), n=n))
            )
    llm = make_engine(make, rng, requests, prompts)
    arriving = list(requests)
    running: list[Request] = []
    seen: Counter[str] = Counter()
    while arriving or llm.scheduler.has_work:
        while arriving and (not llm.scheduler.has_work or rng.random() < 0.7):
            i, sampling = arriving[0]
            running.append(llm.add_request(prompts[i], sampling))
            del arriving[0]
        step = llm.step()
        assert step.chunks, "a step that computes nothing is no progress"
        llm.scheduler.check()
        seen["chunked prefills"] += sum(
            chunk.stop < len(chunk.sequence.token_ids) - 1 for chunk in step.chunks
        )
        seen["copies"] += len(step.copies)
    for (i, sampling), request in zip(requests, running, strict=True):
        tokens = [output.token_ids for output in llm.output(request).outputs]
        expected = beams[i] if sampling.beam_width else [greedy[i][: sampling.max_tokens]] * sampling.n
        assert tokens == expected, f"prompt {i}, {sampling}, {vars(llm.scheduler)}"
    assert llm.pool.num_used == 0
    seen["swaps"] += llm.metrics.swapped_out
    seen["recomputations"] += llm.metrics.preemptions - llm.metrics.swapped_out
    seen["cached tokens"] += llm.metrics.cached_tokens
    return seen


@pytest.mark.parametrize("part", range(PARTS))
def test_tokens_equal_the_dense_models(
    tiny_llm: Any, prompts: Any, greedy: Any, beams: Any, part: int, full: bool
) -> None:
    seen: Counter[str] = Counter()
    for number in range((2000 if full else 200) // PARTS):
        rng = random.Random(1000 * number + part)
        seen += run_one(tiny_llm, rng, prompts, greedy, beams)
    for event in ("chunked prefills", "copies", "swaps", "recomputations", "cached tokens"):
        assert seen[event] >= 10, f"the configurations are too tame: {seen}"
