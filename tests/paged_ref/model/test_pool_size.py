"""The number of blocks from the memory: predicted by hand, then read from the log (claim C3)."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from paged_ref.model.pool_size import CPU_LIMIT, Budget, choose_num_blocks, kv_bytes_setting
from paged_ref.sizing import ModelShape

GB = 10**9


def fake_model(device: str, num_weights: int = 0) -> Any:
    """A model as far as memory is concerned: 10 layers, 4 KV heads of 64 numbers in bfloat16, 10,240 B a token."""
    weight = torch.empty(num_weights, dtype=torch.bfloat16, device="meta")
    return SimpleNamespace(
        shape=ModelShape("fake", 10, 8, 4, 64),
        device=torch.device(device),
        model=SimpleNamespace(
            parameters=lambda: iter([weight]), config=SimpleNamespace(hidden_size=512, intermediate_size=2048)
        ),
        vocab_size=1000,
        max_positions=100_000,
    )


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """80 GB, of which another program uses 3 and this one has reserved 21."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (56 * GB, 80 * GB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 21 * GB)


@pytest.mark.usefixtures("gpu")
def test_blocks_on_a_gpu_are_what_the_sum_says(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "paged_ref"):
        blocks = choose_num_blocks(fake_model("cuda", 10 * GB), 16, 0.9, 64, 2048)
    activations = 2048 * (2 * 2048 + 4 * 512) * 2 + 64 * 1000 * 6
    assert blocks == (72 * GB - 20 * GB - 3 * GB - activations) // (10 * 2 * 4 * 64 * 2 * 16)
    assert f"{blocks} blocks of 16 tokens" in caplog.text
    for part in ("80 GB x 0.90", "20 GB weights", "25.5 MB activations", "3 GB others", "164 kB per block"):
        assert part in caplog.text


@pytest.mark.usefixtures("gpu")
def test_no_more_than_the_running_sequences_can_fill(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "paged_ref"):
        assert choose_num_blocks(fake_model("cuda"), 16, 0.9, 2, 2048) == 2 * 6250
    assert "2 sequences of 100000 tokens need no more" in caplog.text


@pytest.mark.usefixtures("gpu")
def test_a_model_that_leaves_no_room() -> None:
    with pytest.raises(MemoryError, match=r"no room for a KV cache on cuda: 80 GB x 0.90 - 100 GB weights"):
        choose_num_blocks(fake_model("cuda", 50 * GB), 16, 0.9, 64, 2048)


def test_a_cpu_gives_a_share_of_what_is_free_and_not_more_than_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for free, limited in ((1 * GB, False), (100 * GB, True)):
        monkeypatch.setattr(psutil, "virtual_memory", lambda free=free: SimpleNamespace(available=free))
        blocks = choose_num_blocks(fake_model("cpu", 10 * GB), 16, 0.5, 64, 256)
        room = CPU_LIMIT if limited else free // 2 - (256 * (2 * 2048 + 4 * 512) * 2 + 64 * 1000 * 6)
        assert blocks == room // 163_840


@pytest.mark.parametrize("fraction", [0, -0.5, 1.01, float("nan")])
def test_a_fraction_out_of_range(fraction: float) -> None:
    with pytest.raises(ValueError, match="memory_fraction = "):
        choose_num_blocks(fake_model("cpu"), 16, fraction, 64, 256)


def test_a_block_size_out_of_range() -> None:
    with pytest.raises(ValueError, match="block_size = 0"):
        choose_num_blocks(fake_model("cpu"), 0, 0.9, 64, 256)


def test_a_budget_reads_as_the_sum_it_is() -> None:
    budget = Budget(80 * GB, 0.9, 16 * GB, 2 * GB, 0, 2_000_000)
    assert budget.num_blocks == 27_000
    assert str(budget) == "80 GB x 0.90 - 16 GB weights - 2 GB activations, at 2 MB per block"
    assert Budget(10, 0.5, 6, 0, 0, 1).num_blocks == 0


# ---- an absolute budget


@pytest.mark.parametrize(
    ("given", "expected"),
    [(4096, 4096), ("4096", 4096), ("4096 B", 4096), ("512MB", 512 * 10**6), ("2GiB", 2**31), ("2 gib", 2**31),
     ("1.5GB", 15 * 10**8), ("64KiB", 65536), ("3k", 3000), ("1Ti", 2**40), (np.int64(7), 7), (2e9, 2 * GB)],
)  # fmt: skip
def test_sizes_in_bytes_and_with_units(given: Any, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kv_bytes_setting(given) == expected
    monkeypatch.setenv("PAGED_REF_KV_BYTES", str(given) if isinstance(given, (int, str)) else f"{expected}")
    assert kv_bytes_setting(None) == expected
    assert kv_bytes_setting(12345) == 12345, "the argument goes before the variable"


@pytest.mark.parametrize(
    "given", ["", "many", "-1", "0", "0MB", "1.5", "12 parsecs", "1e9", "MB", "2iB", 0, -5, 1.5, float("nan"),
              float("inf"), True, [1]],
)  # fmt: skip
def test_sizes_that_are_refused(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ValueError, match=r"^kv_bytes = .*whole number of bytes, 1 or more, or text like '512MB'"
    ):
        kv_bytes_setting(given)
    if isinstance(given, str) and given:
        monkeypatch.setenv("PAGED_REF_KV_BYTES", given)
        with pytest.raises(ValueError, match=r"^PAGED_REF_KV_BYTES = "):
            kv_bytes_setting(None)


def test_no_setting_is_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", "  "):
        monkeypatch.setenv("PAGED_REF_KV_BYTES", value)
        assert kv_bytes_setting(None) is None
    monkeypatch.delenv("PAGED_REF_KV_BYTES")
    assert kv_bytes_setting(None) is None


@pytest.mark.usefixtures("gpu")
def test_each_of_many_users_of_a_gpu_gets_the_budget_asked_for() -> None:
    """Others hold nearly everything: a fraction of the whole device leaves nothing, an absolute budget does."""
    model = fake_model("cuda")
    with pytest.raises(MemoryError):
        choose_num_blocks(model, 16, 0.03, 64, 2048)
    assert choose_num_blocks(model, 16, 0.03, 64, 2048, kv_bytes=GB) == GB // 163_840
    with pytest.raises(MemoryError, match=r"kv_bytes = 90000000000 .*room for .* GB: 80 GB x 1.00"):
        choose_num_blocks(model, 16, 0.9, 64, 2048, kv_bytes=90 * GB)


def test_a_budget_and_a_number_of_blocks_must_agree() -> None:
    model = fake_model("cpu")
    assert choose_num_blocks(model, 16, 0.9, 64, 256, kv_bytes=10 * 163_840, num_blocks=10) == 10
    assert choose_num_blocks(model, 16, 0.9, 64, 256, num_blocks=10**9) == 10**9
    with pytest.raises(
        ValueError, match=r"num_blocks = 11 needs 1.8 MB, but kv_bytes = 1638400 .* allows 10 blocks"
    ):
        choose_num_blocks(model, 16, 0.9, 64, 256, kv_bytes=10 * 163_840, num_blocks=11)
    with pytest.raises(MemoryError, match=r"kv_bytes = 200000 .* is less than two blocks of 164 kB"):
        choose_num_blocks(model, 16, 0.9, 64, 256, kv_bytes=200_000)


def test_a_budget_replaces_the_limit_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=100 * GB))
    assert choose_num_blocks(fake_model("cpu"), 16, 0.1, 64, 256, kv_bytes=5 * GB) == 5 * GB // 163_840


def test_a_computed_pool_has_int32_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10**15))
    monkeypatch.setattr("paged_ref.model.memory_limits.CGROUPS", Path("/none"))
    model = fake_model("cpu")
    model.max_positions = 2**31 - 1
    assert choose_num_blocks(model, 16, 0.9, 64, 256, kv_bytes=5 * 10**14) == (2**31 - 1) // 16
