"""Arguments of the wrong kind: each is named, and the engine goes on as if it had not been asked."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from paged_ref import LLM, SamplingParams, paged_attention


@pytest.mark.parametrize(
    ("prompts", "sampling", "message"),
    [
        ([[1], [2]], [None, None], "prompt 0: sampling is None"),
        ([[1]], 5, "prompt 0: sampling is 5"),
        (b"abc", None, "not a bytes"),
        ([b"abc"], None, "prompt 0: a prompt is a string"),
        ([[{"role": "user", "content": None}]], None, "chat message 0: its 'content' is None"),
        ([[{"role": "user", "content": [{"type": "text"}]}]], None, "must be a string"),
    ],
)
def test_prompts_and_sampling(tiny_llm: Any, prompts: Any, sampling: Any, message: str) -> None:
    llm = tiny_llm()
    with pytest.raises(ValueError, match=message):
        llm.generate(prompts, sampling)
    assert not llm.scheduler.has_work
    assert len(llm.generate([[1]], SamplingParams(max_tokens=2))) == 1


@pytest.mark.parametrize("priority", ["x", None, float("nan")])
def test_priority(tiny_llm: Any, priority: Any) -> None:
    llm = tiny_llm()
    with pytest.raises(ValueError, match="priority"):
        llm.add_request([1], priority=priority)
    assert not llm.scheduler.has_work


@pytest.mark.parametrize(
    "arguments",
    [{"num_blocks": 10**29}, {"block_size": 2**70}, {"max_num_seqs": 2.5}, {"max_num_batched_tokens": True}],
)
def test_sizes(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(arguments))):
        LLM("smollm2-135m", **arguments)


def test_the_likeliest_token_stays_however_small_top_p_is(tiny_llm: Any) -> None:
    llm = tiny_llm()
    greedy, narrow = (
        llm.generate([[1, 2, 3]], SamplingParams(max_tokens=5, **how))[0].outputs[0].token_ids
        for how in ({}, {"temperature": 1.0, "top_p": 1e-46, "seed": 0})
    )
    assert narrow == greedy


def test_the_backend_is_imported_before_the_first_step(tiny_llm: Any) -> None:
    # An import that Ctrl-C cuts off leaves half a module, which no later import repairs.
    llm = tiny_llm(backend="numba")
    assert llm.backend == "numba"
    assert "paged_ref.attention.numba_paged" in sys.modules


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sliding_window", 1.5),
        ("sliding_window", True),
        ("softcap", "x"),
        ("scale", float("nan")),
        ("scale", "x"),
    ],
)
def test_attention_options(name: str, value: Any) -> None:
    cache = torch.zeros(1, 4, 1, 8)
    one = torch.ones(1, dtype=torch.int32)
    with pytest.raises(ValueError, match=name):
        paged_attention(torch.zeros(1, 1, 8), cache, cache, one[None] - 1, one, **{name: value})
