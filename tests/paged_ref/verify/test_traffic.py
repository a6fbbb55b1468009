"""Bytes that the interpreted kernels read from the caches, against the fewest possible."""

from __future__ import annotations

import pytest
import torch

from paged_ref.attention import Batch
from paged_ref.verify.grid import Case, Inputs, make_inputs
from paged_ref.verify.traffic import access_pattern, bytes_read, fewest_bytes
from tests.helpers.needs import NO_TRITON

triton_kernels = pytest.importorskip("paged_ref.attention.triton_kernels", reason=NO_TRITON)
triton_paged = pytest.importorskip("paged_ref.attention.triton_paged", reason=NO_TRITON)
pytestmark = pytest.mark.skipif(
    not triton_kernels.INTERPRETED, reason="loads are seen in Triton's interpreter only"
)


def ratio(inputs: Inputs, run: object) -> float:
    batch = Batch.of(inputs.block_tables, inputs.seq_lens, inputs.query_start_loc)
    least = fewest_bytes(batch, inputs.key_cache, inputs.options.get("sliding_window"))
    return bytes_read(run, inputs.key_cache, inputs.value_cache) / least  # type: ignore[arg-type]


def runner(inputs: Inputs, num_splits: int | None = None) -> object:
    batch = Batch.of(inputs.block_tables, inputs.seq_lens, inputs.query_start_loc)
    plan = triton_paged.plan(batch, inputs.key_cache.shape[1])
    plan = plan.with_splits(num_splits) if num_splits else plan
    caches = inputs.key_cache, inputs.value_cache
    window = inputs.options.get("sliding_window")
    return lambda: plan.run(inputs.query, *caches, 0.1, sliding_window=window)


@pytest.mark.parametrize("num_splits", [1, 2, 8])
@pytest.mark.parametrize(
    ("block_size", "extra"), [(16, "none"), (5, "none"), (1, "none"), (16, "window short")]
)
def test_decode_reads_each_byte_once(num_splits: int, block_size: int, extra: str) -> None:
    inputs = make_inputs(Case(40, block_size, (9, 3), "523", "decode", extra, "float16"))
    assert 1.0 <= ratio(inputs, runner(inputs, num_splits)) <= 1.05


def test_plain_decode_reads_once_for_each_query_head() -> None:
    inputs = make_inputs(Case(64, 16, (9, 3), "37", "decode", "none", "float32"))
    arguments = inputs.arguments()[:5]
    assert ratio(inputs, lambda: triton_paged.decode_plain(*arguments, scale=0.1)) == 3.0


def test_a_chunk_of_one_tile_reads_each_byte_once() -> None:
    inputs = make_inputs(Case(64, 16, (8, 2), "37", "chunk", "none", "float16"))
    assert 1.0 <= ratio(inputs, runner(inputs)) <= 1.05


def test_access_pattern_follows_the_table() -> None:
    inputs = make_inputs(Case(64, 16, (4, 4), "2B", "decode", "none", "float32"))
    found = access_pattern(runner(inputs), inputs.key_cache, inputs.value_cache)  # type: ignore[arg-type]
    of_first = {a.block for a in found if a.program[0] == 0}
    assert of_first == set(inputs.block_tables[0, :2].tolist())
    assert {a.cache for a in found} == {"key", "value"}
    one_block = [a for a in found if a.program == (0, 1, 0) and a.cache == "key"]
    assert sum(a.num_bytes for a in one_block) == 32 * 64 * 4


def test_watching_ends_with_the_call() -> None:
    from triton.runtime.interpreter import InterpreterBuilder

    before = InterpreterBuilder.create_masked_load
    cache = torch.zeros(1, 1, 1, 16)

    def broken() -> None:
        raise KeyError("broken")

    with pytest.raises(KeyError):
        access_pattern(broken, cache, cache)
    assert InterpreterBuilder.create_masked_load is before
