"""Arguments of the wrong kind: each is named, and the engine goes on as if it had not been asked."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from paged_ref import LLM, SamplingParams, paged_attention
from paged_ref.generation.prompts import to_token_ids


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


# ---- NumPy numbers, slots, budgets, start tokens


def test_numpy_numbers_are_numbers(tiny_llm: Any) -> None:
    sampling = SamplingParams(
        max_tokens=np.int64(3), temperature=np.float32(0.5), top_k=np.uint8(5), top_p=np.float64(0.5),
        n=np.int16(2), seed=np.uint64(2**64 - 1),
    )  # fmt: skip
    assert sampling == SamplingParams(3, 0.5, 5, 0.5, 2, seed=2**64 - 1)
    plain = (
        sampling.max_tokens,
        sampling.temperature,
        sampling.top_k,
        sampling.top_p,
        sampling.n,
        sampling.seed,
    )
    assert [type(value) for value in plain] == [int, float, int, float, int, int]
    assert type(SamplingParams(beam_width=np.int32(2)).beam_width) is int
    llm = tiny_llm(num_blocks=np.int64(32), block_size=np.int32(8), max_num_seqs=np.int8(4),
                   max_num_batched_tokens=np.uint16(64), watermark=np.float32(0.01))  # fmt: skip
    request = llm.add_request(np.arange(5), SamplingParams(np.int64(3)), priority=np.int64(-1))
    while request.sequences:
        llm.step()
    assert len(llm.output(request).outputs[0].token_ids) == 3
    assert (type(llm.pool.num_blocks), llm.pool.num_blocks) == (int, 32)


@pytest.mark.parametrize("value", [np.bool_(True), np.float64(3), True, "3", 2.0, np.array([3])])
def test_what_is_no_integer_is_refused(value: Any, tiny_llm: Any) -> None:
    with pytest.raises(ValueError, match="max_tokens = "):
        SamplingParams(max_tokens=value)
    with pytest.raises(ValueError, match="block_size = "):
        tiny_llm(block_size=value)


@pytest.mark.parametrize("value", [np.bool_(True), True, "1", None, 1j, [1.0]])
def test_what_is_no_number_is_refused(value: Any) -> None:
    for name in ("temperature", "top_p"):
        with pytest.raises(ValueError, match=f"{name} = "):
            SamplingParams(**{name: value})


@pytest.mark.parametrize("salt", [[1], 5, b"a", True])
def test_a_salt_is_a_string(salt: Any) -> None:
    with pytest.raises(ValueError, match="cache_salt = "):
        SamplingParams(cache_salt=salt)


@pytest.mark.parametrize(
    ("num_blocks", "block_size"), [(2**31 - 1, 2), (2**27, 16), (2**16, 2**15), (2**26, 33)]
)
def test_slots_are_int32(num_blocks: int, block_size: int, tiny: Any) -> None:
    for options in (
        {"num_blocks": num_blocks},
        {"num_blocks": 4, "num_host_blocks": num_blocks, "preemption": "swap"},
    ):
        with pytest.raises(ValueError, match=f"{num_blocks * block_size} slots, but slots are int32"):
            LLM(tiny.paged, block_size=block_size, **options)


def test_an_engine_with_an_absolute_budget(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    per_block = tiny.paged.shape.kv_bytes_per_block(8)
    assert LLM(tiny.paged, block_size=8, kv_bytes=10 * per_block + 1).pool.num_blocks == 10
    assert LLM(tiny.paged, block_size=8, kv_bytes="64KiB").pool.num_blocks == 65536 // per_block
    monkeypatch.setenv("PAGED_REF_KV_BYTES", str(7 * per_block))
    assert LLM(tiny.paged, block_size=8).pool.num_blocks == 7
    assert LLM(tiny.paged, block_size=8, kv_bytes=9 * per_block).pool.num_blocks == 9
    assert LLM(tiny.paged, block_size=8, num_blocks=7).pool.num_blocks == 7
    with pytest.raises(ValueError, match=r"num_blocks = 8 .*PAGED_REF_KV_BYTES.* allows 7 blocks"):
        LLM(tiny.paged, block_size=8, num_blocks=8)
    monkeypatch.setenv("PAGED_REF_KV_BYTES", "plenty")
    with pytest.raises(ValueError, match="PAGED_REF_KV_BYTES = 'plenty'"):
        LLM(tiny.paged, block_size=8)


class StartTokenizer:
    """Bytes, with a start token 256 that is written <s> and put before every text, as Llama's tokenizer does."""

    bos_token, bos_token_id = "<s>", 256

    def __call__(self, text: str) -> Any:
        ids = [256]
        for part in re.split("(<s>)", text):
            ids += [256] if part == "<s>" else list(part.encode())
        return SimpleNamespace(input_ids=ids)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("ab", [256, 97, 98]), ("<s>ab", [256, 97, 98]), ("<s><s>a", [256, 256, 97]), (" <s>", [256, 32, 256]),
     ("<s>", [256])],
)  # fmt: skip
def test_a_rendered_template_gets_no_second_start_token(text: str, expected: list[int]) -> None:
    assert to_token_ids(text, StartTokenizer(), 257) == expected
