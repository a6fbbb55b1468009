"""The real model: SmolLM2 in float32 through block tables gives what transformers' `generate` gives."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from paged_ref import LLM, SamplingParams
from paged_ref.model.cpu.fused_layers import fuse
from paged_ref.model.cpu.packed_weights import pack
from paged_ref.model.hf_model import PagedModel

pytestmark = pytest.mark.slow

NEW_TOKENS = 16
WORDS = (
    "The capital of France is a city on the river Seine, and people who live there like to say that every street "
    "has its own story. In the morning the bakers open first, then the schools, and by noon nobody remembers the fog."
)


@pytest.fixture(scope="module")
def smollm2() -> Any:
    """The paged model, 24 ragged prompts, and what the dense model makes of them: greedy, and three beams of four."""
    paged = PagedModel.load("smollm2-135m", dtype="float32", device="cpu")
    tokenizer, dense = paged.tokenizer, paged.restore()
    words = WORDS.split()
    prompts = [tokenizer(" ".join(words[i : i + 1 + 2 * i % 17])).input_ids for i in range(21)]
    prompts += [tokenizer("".join(chr(0x4E00 + 7 * i) for i in range(n))).input_ids for n in (3, 11)] + [
        [1] * 40
    ]
    ends = sorted(paged.eos_token_ids)
    longest = max(len(prompt) for prompt in prompts)
    padded = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    common = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "pad_token_id": 0, "eos_token_id": ends}
    with torch.inference_mode():
        rows = dense.generate(padded, attention_mask=mask, **common)[:, longest:].tolist()
        beams = []
        for prompt in prompts[4:7]:
            ids = torch.tensor([prompt])
            out = dense.generate(
                ids, attention_mask=torch.ones_like(ids), num_beams=4, num_return_sequences=4, **common
            )
            beams.append([cut(row, ends) for row in out[:, len(prompt) :].tolist()])
    fuse(dense), pack(dense)  # as `load` gives it
    return PagedModel(dense, tokenizer), prompts, [cut(row, ends) for row in rows], beams


def cut(tokens: list[int], ends: list[int]) -> list[int]:
    return next((tokens[: i + 1] for i, token in enumerate(tokens) if token in ends), tokens)


@pytest.mark.parametrize("block_size", [1, 5, 16, 32])
def test_greedy_tokens_equal_transformers(smollm2: Any, block_size: int) -> None:
    model, prompts, expected, _ = smollm2
    assert len(prompts) >= 24 and len({len(prompt) for prompt in prompts}) > 8
    llm = LLM(model, num_blocks=1600 // block_size, block_size=block_size, max_num_batched_tokens=256)
    blocks = llm.pool.allocate(llm.pool.num_blocks)
    random.Random(block_size).shuffle(blocks)
    llm.pool.free(blocks)
    outputs = llm.generate(prompts, SamplingParams(max_tokens=NEW_TOKENS))
    assert [output.outputs[0].token_ids for output in outputs] == expected
    for output in outputs:
        tokens = output.outputs[0].token_ids
        assert output.outputs[0].text == model.tokenizer.decode(tokens, skip_special_tokens=True)
    llm.scheduler.check()


def test_beams_equal_transformers(smollm2: Any) -> None:
    model, prompts, _, expected = smollm2
    llm = LLM(model, num_blocks=64, block_size=4)
    outputs = llm.generate(prompts[4:7], SamplingParams(max_tokens=NEW_TOKENS, beam_width=4))
    assert [[beam.token_ids for beam in output.outputs] for output in outputs] == expected


def test_samples_and_preemption_do_not_change_a_seeded_draw(smollm2: Any) -> None:
    model, prompts, _, _ = smollm2
    hot = SamplingParams(max_tokens=8, temperature=0.8, top_k=50, top_p=0.95, n=3, seed=3)
    roomy = LLM(model, num_blocks=256, block_size=4).generate(prompts[2], hot)[0]
    small = LLM(model, num_blocks=28, block_size=4, watermark=0.0)
    crowded = small.generate([*prompts[3:7], prompts[2]], [SamplingParams(max_tokens=24)] * 4 + [hot])[-1]
    assert small.metrics.preemptions > 0
    assert [output.token_ids for output in crowded.outputs] == [output.token_ids for output in roomy.outputs]
    assert len({tuple(output.token_ids) for output in roomy.outputs}) > 1
