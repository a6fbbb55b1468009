"""The engine on a quantised cache: the schedule changes no token, and what cannot run is refused before it starts."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import torch

from paged_ref import SamplingParams
from paged_ref.attention import torch_paged
from paged_ref.blocks.quantised_cache import QuantisedKVCache
from paged_ref.kv_dtype import QUANTISED
from tests.helpers.needs import needs_triton

NEW_TOKENS = 16


@pytest.mark.parametrize("backend", ["numba", "torch", "numpy"])
@pytest.mark.parametrize("kv_dtype", QUANTISED)
def test_pool_preemption_and_prefix_hits_change_no_token(
    tiny_llm: Any, prompts: list[list[int]], kv_dtype: str, backend: str
) -> None:
    """A token's attention reads its whole context from the cache, so only the cache's contents matter."""
    greedy = SamplingParams(max_tokens=NEW_TOKENS)
    roomy = tiny_llm(num_blocks=400, kv_dtype=kv_dtype, backend=backend, enable_prefix_caching=False)
    wanted = [tiny.outputs[0].token_ids for tiny in roomy.generate(prompts, greedy)]
    seen: Counter[str] = Counter()
    for seed in range(4):
        rng = random.Random(seed)
        size = rng.choice([1, 3, 4, 7])
        llm = tiny_llm(
            num_blocks=2 * -(-76 // size) + 1,
            block_size=size,
            kv_dtype=kv_dtype,
            backend=backend,
            watermark=0.0,
            preemption="swap" if seed % 2 else "recompute",
            max_num_batched_tokens=rng.choice([70, 100]),
        )
        assert isinstance(llm.cache, QuantisedKVCache)
        for sampling in (greedy, SamplingParams(max_tokens=NEW_TOKENS, n=2)):
            outputs = llm.generate(prompts, sampling)
            for output, tokens in zip(outputs, wanted, strict=True):
                assert [sample.token_ids for sample in output.outputs] == [tokens] * sampling.n
        seen["swaps"] += llm.metrics.swapped_out
        seen["recomputations"] += llm.metrics.preemptions - llm.metrics.swapped_out
        seen["hits"] += llm.metrics.cached_tokens
        seen["copies"] += llm.metrics.copied_blocks
    assert all(seen[event] for event in ("swaps", "recomputations", "hits", "copies")), seen


def test_the_pool_of_the_same_bytes_has_more_blocks(tiny_llm: Any) -> None:
    plain = tiny_llm(num_blocks=None, kv_bytes="100kB")
    small = tiny_llm(num_blocks=None, kv_bytes="100kB", kv_dtype="int8")
    per_vector = plain.model.shape.head_dim
    assert small.pool.num_blocks == pytest.approx(
        plain.pool.num_blocks * 4 * per_vector / (per_vector + 4), rel=0.05
    )
    assert small.cache.num_bytes <= 100_000


def test_nan_is_still_noticed(tiny_llm: Any) -> None:
    llm = tiny_llm(kv_dtype="int8")
    request = llm.add_request([1, 2, 3], SamplingParams(max_tokens=4))
    llm.step()
    llm.cache.value_scale[:, request.sequences[0].table.blocks[0]] = torch.nan
    with pytest.raises(FloatingPointError, match="were aborted"):
        llm.step()
    assert llm.pool.num_used == 0


def test_bad_combinations_are_refused(tiny_llm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="kv_dtype = 'int4': one of auto, int8, fp8_e4m3"):
        tiny_llm(kv_dtype="int4")
    monkeypatch.delattr(torch_paged, "KV_DTYPES")
    with pytest.raises(ValueError, match="kv_dtype = 'int8': the torch backend does not read such a cache"):
        tiny_llm(kv_dtype="int8", backend="torch")


@needs_triton
def test_triton_is_refused(tiny_llm: Any) -> None:
    with pytest.raises(ValueError, match="kv_dtype = 'int8': the triton backend does not read such a cache"):
        tiny_llm(kv_dtype="int8", backend="triton")
