"""The quantised storage: the scales go wherever their elements go, through forks, copies, swaps and prefix hits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from paged_ref.blocks import quantised_cache
from paged_ref.blocks.block_pool import BlockPool, OutOfBlocks
from paged_ref.blocks.block_table import BlockTable, move_tables
from paged_ref.blocks.kv_cache import KVCache, write_kv
from paged_ref.blocks.quantise import dequantise, quantise
from paged_ref.blocks.quantised_cache import QuantisedKVCache, make_cache
from paged_ref.kv_dtype import QUANTISED, with_kv_dtype
from paged_ref.sizing import ModelShape

PLAIN = ModelShape("small", num_layers=2, num_heads=4, num_kv_heads=2, head_dim=5, dtype="float32")
DTYPES = {kv_dtype: getattr(torch, name) for kv_dtype, (name, _) in QUANTISED.items()}


def cache_of(num_blocks: int, kv_dtype: str, block_size: int = 4) -> QuantisedKVCache:
    """A cache of garbage: elements of 77 with a scale of NaN."""
    cache = make_cache(with_kv_dtype(PLAIN, kv_dtype), num_blocks, block_size)
    assert isinstance(cache, QuantisedKVCache)
    overwrite(cache, list(range(num_blocks)))
    return cache


def overwrite(cache: QuantisedKVCache, blocks: list[int]) -> None:
    for tensor in cache.tensors:
        tensor[:, blocks] = torch.nan if tensor.is_floating_point() else 77


def rows_of(prefix: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A token's keys and values [num_layers, 1, num_kv_heads, head_dim], of a size that is the token's own."""
    generator = torch.Generator().manual_seed(prefix & 0x7FFFFFFF)
    size = 10 ** (6 * torch.rand((), generator=generator) - 3)
    key, value = size * torch.randn(2, PLAIN.num_layers, 1, 2, 5, generator=generator)
    return key, value


def write(cache: KVCache, slots: list[int], prefixes: list[int]) -> None:
    rows = [rows_of(prefix) for prefix in prefixes]
    for layer in range(PLAIN.num_layers):
        key, value = (torch.cat([row[i][layer] for row in rows]) for i in range(2))
        cache.write(layer, key, value, torch.tensor(slots))


def holds(cache: QuantisedKVCache, slots: list[int], prefixes: list[int]) -> bool:
    """Whether the slots dequantise to exactly what was written, in every layer."""
    for slot, prefix in zip(slots, prefixes, strict=True):
        block, offset = divmod(slot, cache.block_size)
        for rows, elements, scales in zip(
            rows_of(prefix), (cache.keys, cache.values), (cache.key_scale, cache.value_scale), strict=True
        ):
            wanted = dequantise(*quantise(rows[:, 0], cache.keys.dtype))
            if not torch.equal(dequantise(elements[:, block, offset], scales[:, block, offset]), wanted):
                return False
    return True


@pytest.mark.parametrize("kv_dtype", QUANTISED)
def test_a_token_is_written_to_its_slot_and_nowhere_else(kv_dtype: str) -> None:
    cache = cache_of(5, kv_dtype)
    slots = [13, 2, 19, 3]
    write(cache, slots, [1, 2, 3, 4])
    assert holds(cache, slots, [1, 2, 3, 4])
    untouched = [slot for slot in range(20) if slot not in slots]
    assert cache.key_scale.flatten(1, 2)[:, untouched].isnan().all()
    assert (cache.keys.flatten(1, 2)[:, untouched].view(torch.int8) == 77).all()


@pytest.mark.parametrize("kv_dtype", QUANTISED)
def test_writing_the_rest_of_a_block_changes_no_byte_of_its_beginning(kv_dtype: str) -> None:
    """With one scale per block, a larger token would requantise what a shared block holds already."""
    cache = cache_of(1, kv_dtype)
    write(cache, [0, 1], [1, 2])
    before = [tensor[:, :, :2].clone() for tensor in cache.tensors]
    cache.write(0, torch.full((2, 2, 5), 1e6), torch.full((2, 2, 5), 1e6), torch.tensor([2, 3]))
    assert all(torch.equal(a, b[:, :, :2]) for a, b in zip(before, cache.tensors, strict=True))


@pytest.mark.parametrize("kv_dtype", QUANTISED)
def test_bytes_are_those_of_the_arithmetic(kv_dtype: str) -> None:
    shape = with_kv_dtype(PLAIN, kv_dtype)
    assert cache_of(5, kv_dtype).num_bytes == 5 * shape.kv_bytes_per_block(4) == 5 * 4 * 2 * 2 * 2 * (5 + 4)


@pytest.mark.parametrize("kv_dtype", QUANTISED)
def test_copies_read_everything_before_they_write_anything(kv_dtype: str) -> None:
    cache = cache_of(3, kv_dtype)
    write(cache, list(range(12)), list(range(12)))
    cache.copy_blocks([(0, 1), (1, 2), (2, 0)])
    assert holds(cache, [*range(4, 12), *range(4)], list(range(12)))


def swap_works(kv_dtype: str) -> bool:
    """Swap out, overwrite the freed blocks, swap in elsewhere, and look."""
    pool, host_pool = BlockPool(6, 4), BlockPool(6, 4)
    cache, host = cache_of(6, kv_dtype), cache_of(6, kv_dtype)
    table = BlockTable(pool)
    write(cache, table.append(10), list(range(10)))
    host.load_blocks(cache, move_tables([table], host_pool))
    overwrite(cache, list(range(6)))
    pool.allocate(2)
    cache.load_blocks(host, move_tables([table], pool))
    overwrite(host, list(range(6)))
    return holds(cache, table.slots(0, 10), list(range(10)))


@pytest.mark.parametrize("kv_dtype", QUANTISED)
def test_a_swap_carries_the_scales(kv_dtype: str) -> None:
    assert swap_works(kv_dtype)


@pytest.mark.parametrize("kept", [slice(0, 2), slice(2, 4), slice(0, 3), slice(1, 4)])
def test_a_swap_that_loses_a_tensor_is_found(kept: slice, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = QuantisedKVCache.tensors.fget
    assert tensors is not None
    monkeypatch.setattr(KVCache, "load_blocks", _load_only(kept, tensors))
    assert not swap_works("int8")


def _load_only(kept: slice, tensors: Callable[[Any], Any]) -> Callable[..., None]:
    def load_blocks(self: QuantisedKVCache, other: QuantisedKVCache, pairs: Any) -> None:
        for ours, theirs in list(zip(tensors(self), tensors(other), strict=True))[kept]:
            for source, destination in pairs:
                ours[:, destination] = theirs[:, source]

    return load_blocks


@pytest.mark.parametrize(
    "fault",
    [
        lambda rows, dtype: (
            quantise(rows, dtype)[0],
            quantise(rows, dtype)[1].amax(-1, keepdim=True).expand(-1, 2),
        ),
        lambda rows, dtype: (quantise(rows, dtype)[0], quantise(rows, dtype)[1].roll(1, 0)),
        lambda rows, dtype: (quantise(rows, dtype)[0], torch.ones(rows.shape[:-1])),
    ],
    ids=["one scale for all heads", "scale of another token", "no scale"],
)
def test_a_wrong_scale_is_found(fault: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantised_cache, "quantise", fault)
    cache = cache_of(2, "int8")
    write(cache, [5, 1, 2], [1, 2, 3])
    assert not holds(cache, [5, 1, 2], [1, 2, 3])


def test_caches_of_two_kinds_do_not_mix() -> None:
    plain, int8, fp8 = KVCache(PLAIN, 2, 4), cache_of(2, "int8"), cache_of(2, "fp8_e4m3")
    for ours, theirs in ((int8, fp8), (plain, int8), (fp8, plain)):
        with pytest.raises(ValueError, match="cache cannot be copied into a"):
            ours.load_blocks(theirs, [(0, 1)])


def test_more_memory_than_there_is() -> None:
    with pytest.raises(
        MemoryError, match=r"no room on cpu for a KV cache of 1000000000000 blocks of 16 tokens"
    ):
        make_cache(with_kv_dtype(PLAIN, "int8"), 10**12, 16)


# ---- random lives


done: Counter[str] = Counter()


class Tables(RuleBasedStateMachine):
    """Pool, tables and prefix cache by hand, with real quantised storage on both sides of a swap.

    Every token's numbers are its own, of a size between 0.001 and 1,000, so another token's scale shows. Free blocks
    that are not cached are overwritten after every operation.
    """

    kv_dtype = "int8"

    @initialize(num_blocks=st.integers(2, 10), size=st.integers(1, 4))
    def start(self, num_blocks: int, size: int) -> None:
        self.pool, self.host = BlockPool(num_blocks, size, True), BlockPool(6, size)
        self.caches = {
            self.pool: cache_of(num_blocks, self.kv_dtype, size),
            self.host: cache_of(6, self.kv_dtype, size),
        }
        self.tables: dict[BlockTable, list[int]] = {}

    def some(self, data: st.DataObject, pool: BlockPool | None = None) -> BlockTable | None:
        tables = [table for table in self.tables if pool in (None, table.pool)]
        return data.draw(st.sampled_from(tables)) if tables else None

    def write(self, table: BlockTable, tokens: list[int]) -> None:
        try:
            slots = table.append(len(tokens))
        except OutOfBlocks:
            return
        cache = self.caches[table.pool]
        copies = table.take_copies()
        done["copy"] += len(copies)
        cache.copy_blocks(copies)
        before = self.tables[table]
        self.tables[table] = before + tokens
        if slots:
            write(cache, slots, prefixes(self.tables[table])[len(before) :])

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9))
    def new(self, tokens: list[int]) -> None:
        table = BlockTable(self.pool)
        cache, size = self.pool.prefix_cache, self.pool.block_size
        assert cache is not None
        hits = cache.match(tokens, size)
        table.adopt([entry.block for entry in hits])
        done["hit"] += len(hits)
        self.tables[table] = tokens[: table.num_tokens]
        self.write(table, tokens[table.num_tokens :])
        entry = None
        for i in range(table.num_tokens // size):
            entry = cache.publish(entry, self.tables[table][i * size : (i + 1) * size], None, table.blocks[i])

    @rule(data=st.data(), tokens=st.lists(st.integers(0, 1), min_size=1, max_size=5))
    def append(self, data: st.DataObject, tokens: list[int]) -> None:
        table = self.some(data)
        if table is not None:
            self.write(table, tokens)

    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        table = self.some(data)
        if table is not None:
            length = data.draw(st.integers(0, table.num_tokens))
            self.tables[table.fork(length)] = self.tables[table][:length]

    @rule(data=st.data(), tokens=st.lists(st.integers(0, 1), min_size=1, max_size=3))
    def fork_and_part(self, data: st.DataObject, tokens: list[int]) -> None:
        """Both continue with tokens of their own: the first to write copies the shared last block."""
        table = self.some(data)
        if table is not None:
            fork = table.fork(table.num_tokens)
            self.tables[fork] = list(self.tables[table])
            self.write(table, tokens)
            self.write(fork, [1 - token for token in tokens])

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        table = self.some(data)
        if table is not None:
            table.release()
            del self.tables[table]

    @rule(data=st.data(), swap_out=st.booleans())
    def swap(self, data: st.DataObject, swap_out: bool) -> None:
        source, destination = (self.pool, self.host) if swap_out else (self.host, self.pool)
        table = self.some(data, source)
        if table is None:
            return
        try:
            pairs = move_tables([table], destination)
        except OutOfBlocks:
            return
        done["swap"] += len(pairs)
        self.caches[destination].load_blocks(self.caches[source], pairs)

    @invariant()
    def every_token_is_where_its_table_says(self) -> None:
        for pool, cache in getattr(self, "caches", {}).items():
            cached = pool.prefix_cache or ()
            overwrite(cache, [block for block in pool.free_blocks() if block not in cached])
        for table, tokens in getattr(self, "tables", {}).items():
            assert holds(self.caches[table.pool], table.slots(0, table.num_tokens), prefixes(tokens))


def prefixes(tokens: list[int]) -> list[int]:
    """A number for each prefix of the tokens."""
    found, number = [], 7
    for token in tokens:
        number = (number * 1_000_003 + token + 1) % (2**31 - 1)
        found.append(number)
    return found


class Fp8Tables(Tables):
    """The same in fp8_e4m3."""

    kv_dtype = "fp8_e4m3"


def live_through_everything(machine: Tables) -> None:
    """A fixed life with each kind of event at least once, whatever the random lives draw."""
    done.clear()
    machine.start(num_blocks=8, size=2)
    machine.new([0, 1, 1])
    machine.new([0, 1, 0, 0])
    table = next(iter(machine.tables))
    fork = table.fork(3)
    machine.tables[fork] = list(machine.tables[table])
    machine.write(table, [0])
    machine.write(fork, [1])
    machine.every_token_is_where_its_table_says()
    for source, destination in ((machine.pool, machine.host), (machine.host, machine.pool)):
        pairs = move_tables([fork], destination)
        machine.caches[destination].load_blocks(machine.caches[source], pairs)
        done["swap"] += len(pairs)
        machine.every_token_is_where_its_table_says()
    assert (done["hit"], done["copy"]) == (1, 1) and done["swap"] >= 2


@pytest.mark.parametrize("machine", [Tables, Fp8Tables])
def test_forks_copies_swaps_and_prefix_hits(machine: type[Tables], full: bool) -> None:
    live_through_everything(machine())
    profile = settings(
        max_examples=400 if full else 60,
        stateful_step_count=60 if full else 30,
        deadline=None,
        derandomize=not full,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=profile)


def test_the_machine_finds_copies_without_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = QuantisedKVCache.tensors.fget
    assert tensors is not None
    monkeypatch.setattr(KVCache, "load_blocks", _load_only(slice(0, 2), tensors))
    with pytest.raises(AssertionError):
        test_forks_copies_swaps_and_prefix_hits(Tables, full=False)


# ---- write_kv


def arguments(kind: str, kv_dtype: str) -> dict[str, Any]:
    torch.manual_seed(0)
    made: dict[str, Any] = {
        "key": torch.randn(3, 2, 5),
        "value": 100 * torch.randn(3, 2, 5),
        "key_cache": torch.full((4, 4, 2, 5), 77.0).to(DTYPES[kv_dtype]),
        "value_cache": torch.full((4, 4, 2, 5), 77.0).to(DTYPES[kv_dtype]),
        "slot_mapping": torch.tensor([9, -1, 2], dtype=torch.int32),
        "key_scale": torch.full((4, 4, 2), torch.nan),
        "value_scale": torch.full((4, 4, 2), torch.nan),
    }
    return {name: tensor.numpy() for name, tensor in made.items()} if kind == "numpy" else made


@pytest.mark.parametrize(("kind", "kv_dtype"), [("numpy", "int8"), ("torch", "int8"), ("torch", "fp8_e4m3")])
def test_write_kv_quantises(kind: str, kv_dtype: str) -> None:
    made = arguments(kind, kv_dtype)
    write_kv(**made)
    for name in ("key", "value"):
        scales = made[name + "_scale"].reshape(16, 2)
        back = dequantise(made[name + "_cache"].reshape(16, 2, 5)[[9, 2]], scales[[9, 2]])
        rows = torch.as_tensor(made[name][[0, 2]])
        wanted = dequantise(*quantise(rows, DTYPES[kv_dtype]))
        assert torch.equal(torch.as_tensor(back), wanted)
        assert np.isnan(np.asarray(scales)).all(axis=1).sum() == 14, "-1 is not written"


def test_caches_of_any_strides_are_written_in_place() -> None:
    made = arguments("torch", "fp8_e4m3")
    for name in ("key_cache", "value_cache", "key_scale", "value_scale"):
        made[name] = made[name].transpose(0, 1).contiguous().transpose(0, 1)
    write_kv(**made)
    assert made["key_scale"][2, 1].isfinite().all() and made["key_scale"].isnan().sum() == 28


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key_scale": None}, "key_scale is missing"),
        ({"key_scale": None, "value_scale": None}, "key_cache is int8: pass its scales"),
        ({"key_scale": lambda a: a[:2]}, r"key_scale has shape \(2, 4, 2\)"),
        ({"value_cache": lambda a: a.float()}, "value_scale was passed, but value_cache is float32"),
        ({"value": lambda a: a.int()}, r"value is torch\.int32, value_cache is torch\.int8"),
        ({"slot_mapping": lambda a: a * 0 + 16}, r"slot_mapping\[0\] = 16"),
    ],
)
def test_a_wrong_write_is_refused_whole(change: dict[str, Any], message: str) -> None:
    made = arguments("torch", "int8")
    changed = {name: how(made[name]) if callable(how) else how for name, how in change.items()}
    with pytest.raises(ValueError, match=message):
        write_kv(**{**made, **changed})
    assert made["key_scale"].isnan().all() and made["value_scale"].isnan().all()
    assert (made["key_cache"] == 77).all()
