"""Beam search gives what transformers' beam search gives, whatever the pool does to it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from paged_ref import LLM, SamplingParams
from paged_ref.blocks.block_pool import BlockPool
from paged_ref.blocks.block_table import BlockTable
from paged_ref.sampling.beam_search import BeamSearch
from paged_ref.sampling.sampler import Draw
from paged_ref.scheduling.request import Sequence

NEW_TOKENS = 12
END_TOKENS = {"none": (), "one": (5,), "three": (0, 1, 2), "many": tuple(range(40))}


@pytest.fixture(scope="module")
def reference(
    tiny: Any, prompts: list[list[int]]
) -> Callable[[int, int, str], tuple[list[list[int]], list[float]]]:
    """transformers' sequences and scores per token for (prompt number, width, end tokens), each computed once."""
    known: dict[tuple[int, int, str], tuple[list[list[int]], list[float]]] = {}

    def look_up(i: int, width: int, ends: str) -> tuple[list[list[int]], list[float]]:
        if (i, width, ends) not in known:
            known[i, width, ends] = tiny.beams(prompts[i], NEW_TOKENS, width, list(END_TOKENS[ends]) or None)
        return known[i, width, ends]

    return look_up


def check_outputs(llm: LLM, prompts: Any, width: int, ends: str, reference: Any, which: list[int]) -> None:
    outputs = llm.generate(
        [prompts[i] for i in which], SamplingParams(max_tokens=NEW_TOKENS, beam_width=width)
    )
    for i, output in zip(which, outputs, strict=True):
        sequences, scores = reference(i, width, ends)
        assert [beam.token_ids for beam in output.outputs] == sequences, f"prompt {i}"
        found = [beam.cumulative_logprob / len(beam.token_ids) for beam in output.outputs]
        assert found == pytest.approx(scores, abs=1e-4)
        for beam in output.outputs:
            assert beam.finish_reason == ("stop" if beam.token_ids[-1] in END_TOKENS[ends] else "length")
    assert llm.pool.num_used == 0
    llm.scheduler.check()


@pytest.mark.parametrize("ends", END_TOKENS)
@pytest.mark.parametrize("width", [1, 2, 4])
def test_equals_transformers(tiny_llm: Any, prompts: Any, reference: Any, width: int, ends: str) -> None:
    llm = tiny_llm(END_TOKENS[ends], block_size=5)
    check_outputs(llm, prompts, width, ends, reference, list(range(len(prompts))))


def test_beams_end_at_different_times(reference: Any) -> None:
    """The cases above are worth something: with many end tokens the hypotheses of one search differ in length."""
    lengths = [{len(sequence) for sequence in reference(i, 4, "many")[0]} for i in range(24)]
    assert sum(len(different) > 1 for different in lengths) > 12


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_equals_transformers_under_preemption(
    tiny_llm: Any, prompts: Any, reference: Any, preemption: str
) -> None:
    """Small pools and small steps: after a recomputation the beams of a search are ready in different steps."""
    rng = random.Random(preemption)
    preemptions = 0
    for _ in range(6):
        width, ends, size = rng.choice([2, 3, 4]), rng.choice(list(END_TOKENS)), rng.choice([1, 3, 8])
        which = rng.sample(range(len(prompts)), 5)
        longest = max(len(prompts[i]) for i in which)
        needed = -(-(longest + NEW_TOKENS) // size) * 2 + width * (NEW_TOKENS // size + 2)
        llm = tiny_llm(
            END_TOKENS[ends],
            num_blocks=needed,
            block_size=size,
            preemption=preemption,
            max_num_batched_tokens=rng.choice([16, 24, 200]),
            max_num_seqs=16,
            watermark=0.0,
            enable_prefix_caching=rng.random() < 0.5,
        )
        check_outputs(llm, prompts, width, ends, reference, which)
        preemptions += llm.metrics.preemptions
    assert preemptions > 5


def test_only_diverging_blocks_are_copied(tiny_llm: Any, prompts: Any) -> None:
    """Three beams on a prompt of 53 tokens in blocks of 8: six full blocks stay shared; copies are of last blocks."""
    llm = tiny_llm(block_size=8, enable_prefix_caching=False)
    prompt = next(prompt for prompt in prompts if len(prompt) == 53)
    request = llm.add_request(prompt, SamplingParams(max_tokens=20, beam_width=3))
    copies = 0
    while request.sequences:
        step = llm.step()
        llm.scheduler.check()
        assert len(step.copies) <= 2  # of three beams on one block, the last to write needs no copy
        copies += len(step.copies)
        if len(request.sequences) == 3:
            tables = [sequence.table.blocks for sequence in request.sequences]
            assert all(table[:6] == tables[0][:6] for table in tables)
            assert llm.pool.num_used == len({block for table in tables for block in table})
    assert 2 <= copies < 40
    assert llm.pool.num_used == 0


def test_a_stream_of_beams_comes_at_the_end_best_first(tiny_llm: Any, prompts: Any, reference: Any) -> None:
    llm = tiny_llm(END_TOKENS["many"])
    events = list(llm.stream(prompts[8], SamplingParams(max_tokens=NEW_TOKENS, beam_width=4)))
    sequences, _ = reference(8, 4, "many")
    for i, tokens in enumerate(sequences):
        mine = [event for event in events if event.index == i]
        assert [event.token_id for event in mine] == tokens
        assert [event.finish_reason is not None for event in mine] == [False] * (len(tokens) - 1) + [True]
    assert [event.index for event in events] == sorted(event.index for event in events)


def test_a_width_that_the_vocabulary_cannot_feed_is_refused(tiny_llm: Any) -> None:
    llm = tiny_llm(END_TOKENS["many"])
    with pytest.raises(ValueError, match=r"prompt 0: beam_width = 7"):
        llm.generate([[1, 2]], SamplingParams(beam_width=7))
    assert not llm.scheduler.has_work


def test_the_search_waits_until_every_beam_is_known() -> None:
    pool = BlockPool(4, 4)
    beams = [
        Sequence([1, 7], 1, BlockTable(pool), cumulative_logprob=-1.0),
        Sequence([1, 8], 1, BlockTable(pool)),
    ]
    search = BeamSearch(2, max_new_tokens=9, end_token_ids=frozenset())
    search.add(beams[0], [Draw(3, -0.5), Draw(4, -1.5)])
    assert search.advance(beams) is None
    search.add(beams[1], [Draw(5, -0.25), Draw(6, -9.0)])
    extensions = search.advance(beams) or []
    assert [(e.beam, e.token_id, e.score) for e in extensions] == [(beams[1], 5, -0.25), (beams[0], 3, -1.5)]
