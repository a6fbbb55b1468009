"""The storage: writes by slot, copies of blocks, swaps that survive the overwriting of what was freed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from paged_ref.blocks.block_pool import BlockPool
from paged_ref.blocks.block_table import BlockTable, move_tables
from paged_ref.blocks.kv_cache import KVCache, write_kv
from paged_ref.sizing import ModelShape

SHAPE = ModelShape("small", num_layers=3, num_heads=4, num_kv_heads=2, head_dim=5, dtype="float32")
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def cache_of(num_blocks: int, device: str = "cpu", block_size: int = 4) -> KVCache:
    cache = KVCache(SHAPE, num_blocks, block_size, device)
    cache.keys.fill_(torch.nan)
    cache.values.fill_(torch.nan)
    return cache


def fill(cache: KVCache, slots: list[int], seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Write random rows into all layers; returns them."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for layer in range(SHAPE.num_layers):
        key, value = (torch.randn(len(slots), 2, 5, generator=generator) for _ in range(2))
        cache.write(
            layer,
            key.to(cache.keys.device),
            value.to(cache.keys.device),
            torch.tensor(slots, device=cache.keys.device),
        )
        rows.append((key, value))
    return rows


def read(cache: KVCache, slots: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [
        (keys.flatten(0, 1)[slots].cpu(), values.flatten(0, 1)[slots].cpu())
        for keys, values in zip(cache.keys, cache.values, strict=True)
    ]


def equal(a: list[tuple[torch.Tensor, torch.Tensor]], b: list[tuple[torch.Tensor, torch.Tensor]]) -> bool:
    return all(
        torch.equal(x, y) for row, other in zip(a, b, strict=True) for x, y in zip(row, other, strict=True)
    )


@pytest.mark.parametrize("device", DEVICES)
def test_a_token_is_written_to_its_slot_and_nowhere_else(device: str) -> None:
    cache = cache_of(5, device)
    slots = [13, 2, 19, 3]
    rows = fill(cache, slots)
    assert equal(read(cache, slots), rows)
    untouched = [slot for slot in range(20) if slot not in slots]
    assert all(torch.isnan(x).all() for row in read(cache, untouched) for x in row)


def test_bytes_are_those_of_the_arithmetic() -> None:
    cache = cache_of(5)
    assert cache.num_bytes == 5 * SHAPE.kv_bytes_per_block(4) == 5 * 4 * 2 * 3 * 2 * 5 * 4


@pytest.mark.parametrize("device", DEVICES)
def test_a_copied_block_is_whole_in_every_layer(device: str) -> None:
    cache = cache_of(6, device)
    rows = fill(cache, list(range(4, 12)))  # blocks 1 and 2
    cache.copy_blocks([(1, 5), (2, 0)])
    assert equal(read(cache, [*range(20, 24), *range(4)]), rows)
    assert equal(read(cache, list(range(4, 12))), rows), "the sources stay"


def test_copies_read_everything_before_they_write_anything() -> None:
    cache = cache_of(3)
    rows = fill(cache, list(range(12)))
    cache.copy_blocks([(0, 1), (1, 2), (2, 0)])
    assert equal(read(cache, [*range(4, 12), *range(4)]), rows)
    cache.copy_blocks([])


@pytest.mark.parametrize("device", DEVICES)
def test_a_swap_survives_the_overwriting_of_the_freed_blocks(device: str) -> None:
    """Elsewhere the copy went through an indexing temporary: nothing was copied, and nobody noticed without this."""
    pool, host_pool = BlockPool(6, 4), BlockPool(6, 4)
    cache, host = cache_of(6, device), cache_of(6)
    pool.allocate(1)
    table = BlockTable(pool)
    rows = fill(cache, table.append(10))
    host.load_blocks(cache, move_tables([table], host_pool))
    cache.keys.fill_(torch.nan)
    cache.values.fill_(torch.nan)
    assert equal(read(host, table.slots(0, 10)), rows)
    pool.allocate(2)  # so that it comes back elsewhere
    cache.load_blocks(host, move_tables([table], pool))
    host.keys.fill_(torch.nan)
    assert equal(read(cache, table.slots(0, 10)), rows)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="only a GPU has pinned host memory to copy from")
def test_the_host_side_of_a_swap_is_pinned() -> None:
    assert KVCache(SHAPE, 2, 4, "cpu", pin_memory=True).keys.is_pinned()


def test_more_memory_than_there_is() -> None:
    with pytest.raises(
        MemoryError, match=r"no room on cpu for a KV cache of 1000000000000 blocks of 16 tokens \(.*GB\)"
    ):
        KVCache(SHAPE, 10**12, 16)


# ---- write_kv


def numpy_write() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    key, value = rng.standard_normal((2, 3, 2, 5)).astype(np.float32)
    caches = np.full((2, 4, 4, 2, 5), np.nan, dtype=np.float32)
    return {
        "key": key,
        "value": value,
        "key_cache": caches[0],
        "value_cache": caches[1],
        "slot_mapping": np.array([9, -1, 2], dtype=np.int32),
    }


def torch_write() -> dict[str, Any]:
    return {name: torch.from_numpy(array.copy()) for name, array in numpy_write().items()}


@pytest.mark.parametrize("make", [numpy_write, torch_write])
def test_minus_one_is_not_written(make: Callable[[], dict[str, Any]]) -> None:
    """Elsewhere -1 meant the last slot, as it does to an index."""
    arguments = make()
    write_kv(**arguments)
    for name in ("key", "value"):
        flat = arguments[name + "_cache"].reshape(16, 2, 5)
        assert (flat[9] == arguments[name][0]).all()
        assert (flat[2] == arguments[name][2]).all()
        assert np.isnan(np.asarray(flat)).all(axis=(1, 2)).sum() == 14


def test_a_cache_that_is_not_contiguous_is_written_in_place() -> None:
    arguments = torch_write()
    for name in ("key_cache", "value_cache"):
        arguments[name] = arguments[name].transpose(0, 1).contiguous().transpose(0, 1)
        assert not arguments[name].is_contiguous()
    write_kv(**arguments)
    assert torch.equal(arguments["key_cache"][2, 1], arguments["key"][0])


@pytest.mark.parametrize("make", [numpy_write, torch_write])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slot_mapping": lambda a: a * 0 + 16}, r"slot_mapping\[0\] = 16, but the cache has slots 0 to 15"),
        ({"slot_mapping": lambda a: a * 0 - 2}, r"slot_mapping\[0\] = -2"),
        ({"slot_mapping": lambda a: a * 0 + 7}, "slot 7 is given for two tokens"),
        ({"slot_mapping": lambda a: a[:2]}, r"key has shape \(3, 2, 5\): .* must be \(2, 2, 5\)"),
        ({"slot_mapping": lambda a: a * 1.0}, "must be .num_tokens. integers"),
        ({"key": lambda a: a[:, :1]}, "key has shape"),
        ({"value": lambda a: a[..., :4]}, "value has shape"),
        ({"value_cache": lambda a: a[:2]}, "key_cache has 4 blocks of 4 tokens, value_cache 2 of 4"),
        ({"key_cache": lambda a: a[0]}, "must have 4 dimensions"),
    ],
)
def test_a_wrong_write_is_refused_whole(
    make: Callable[[], dict[str, Any]], change: dict[str, Callable[[Any], Any]], message: str
) -> None:
    arguments = make()
    arguments.update({name: function(arguments[name]) for name, function in change.items()})
    with pytest.raises(ValueError, match=message):
        write_kv(**arguments)
    assert np.isnan(np.asarray(arguments["key_cache"])).all()
    assert np.isnan(np.asarray(arguments["value_cache"])).all()


def test_kinds_and_dtypes_are_not_mixed() -> None:
    arguments = torch_write()
    with pytest.raises(ValueError, match="key is a ndarray, key_cache a Tensor"):
        write_kv(**{**arguments, "key": arguments["key"].numpy()})
    with pytest.raises(ValueError, match=r"value is torch.float64, value_cache is torch.float32"):
        write_kv(**{**arguments, "value": arguments["value"].double()})
    with pytest.raises(ValueError, match="key is on meta, key_cache on cpu"):
        write_kv(**{**arguments, "key": arguments["key"].to("meta")})
