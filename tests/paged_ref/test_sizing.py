"""The arithmetic of chapter 1 against figures that others published, and shapes that make no sense."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from paged_ref import MODELS, ModelShape
from paged_ref.sizing import (
    Usage,
    blocks_for,
    contiguous_capacity,
    human_bytes,
    kv_budget,
    paged_capacity,
    split_reservation,
)


@pytest.mark.parametrize(
    ("name", "bytes_per_token"),
    [
        ("llama-3.1-70b", 327_680),  # 2 x 80 x 8 x 128 x 2
        ("llama-2-13b", 819_200),  # 800 KiB
        ("opt-13b", 819_200),  # the vLLM paper: 800 KB
        ("llama-3.1-8b", 131_072),
        ("smollm2-135m", 23_040),
        ("falcon-7b", 8_192),  # MQA: 2 x 32 x 1 x 64 x 2
        ("llama-3.1-405b", 516_096),  # this and the next: the DeepSeek-V3 hardware paper's table
        ("deepseek-v3", 70_272),  # MLA: 61 x 576 x 2
    ],
)
def test_bytes_per_token(name: str, bytes_per_token: int) -> None:
    assert MODELS[name].kv_bytes_per_token == bytes_per_token


def test_query_heads_do_not_count() -> None:
    few, many = (ModelShape("m", 2, heads, 2, 8) for heads in (2, 16))
    assert few.kv_bytes_per_token == many.kv_bytes_per_token


def test_shape_from_a_config() -> None:
    config = SimpleNamespace(
        num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2, hidden_size=48, head_dim=None
    )
    shape = ModelShape.from_config(config, dtype="float32")
    assert (shape.num_layers, shape.num_heads, shape.num_kv_heads, shape.head_dim) == (3, 6, 2, 8)
    del config.num_key_value_heads, config.head_dim  # an older config: as many KV heads as query heads
    assert ModelShape.from_config(config).num_kv_heads == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 4, 4, 8), "num_layers = 0"),
        ((2, 4, 0, 8), "num_kv_heads = 0"),
        ((2, 9, 2, 8), "9 query heads cannot be divided evenly among 2 KV heads"),
        ((2, 4, 4, 8, "int4"), "unknown dtype 'int4'"),
        ((2, 4, 4, 8, "float16", 0, 64, 3), "3 of 2 layers with a window"),
        ((2, 4, 4, 8, "float16", -1), "latent_dim = -1"),
        ((2, 4, 4, 8, "float16", 0, 64, 0), "sliding_window = 64, but 0 layers have a window"),
    ],
)
def test_shapes_that_make_no_sense(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelShape("m", *arguments)


def test_sizes_for_people() -> None:
    assert [human_bytes(n) for n in (12, 983_040, 47_185_920, 2_684_354_560)] == [
        "12 B",
        "983 kB",
        "47.2 MB",
        "2.68 GB",
    ]


def test_kinds_of_attention() -> None:
    kinds = {name: shape.kind for name, shape in MODELS.items()}
    assert kinds["llama-2-7b"] == "MHA"
    assert kinds["llama-3.1-8b"] == "GQA"
    assert kinds["falcon-7b"] == "MQA"
    assert kinds["gemma-3-27b"] == "GQA + window"
    assert kinds["deepseek-v3"] == "MLA"


def test_a_window_bounds_what_is_kept() -> None:
    shape = ModelShape("m", 6, 4, 2, 8, "float32", sliding_window=100, num_window_layers=5)
    per_layer = 2 * 2 * 8 * 4
    assert shape.kv_bytes_per_token == 6 * per_layer
    assert shape.kv_bytes(100) == 100 * shape.kv_bytes_per_token
    assert shape.kv_bytes(1000) == per_layer * (1000 + 5 * 100)
    dense = ModelShape("m", 6, 4, 2, 8, "float32")
    assert dense.kv_bytes(1000) == 1000 * dense.kv_bytes_per_token


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"sliding_window": 64}, (64, 4, 0)),  # Mistral 7B v0.1: every layer
        ({"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"] * 2}, (64, 2, 0)),
        ({"sliding_window": None, "layer_types": ["full_attention"] * 4}, (0, 0, 0)),
        ({"sliding_window": 64, "layer_types": ["full_attention"] * 4}, (0, 0, 0)),
        ({"kv_lora_rank": 512, "qk_rope_head_dim": 64}, (0, 0, 576)),
    ],
)
def test_windows_and_latents_from_a_config(extra: dict, expected: tuple) -> None:
    config = SimpleNamespace(num_hidden_layers=4, num_attention_heads=4, hidden_size=32, **extra)
    shape = ModelShape.from_config(config)
    assert (shape.sliding_window, shape.num_window_layers, shape.latent_dim) == expected


def test_one_key_head_from_a_config_that_says_multi_query() -> None:
    config = SimpleNamespace(num_hidden_layers=32, num_attention_heads=71, hidden_size=4544, multi_query=True)
    assert ModelShape.from_config(config).kv_bytes_per_token == MODELS["falcon-7b"].kv_bytes_per_token


def test_a_model_without_attention_is_refused() -> None:
    with pytest.raises(ValueError, match="has no num_attention_heads"):
        ModelShape.from_config(SimpleNamespace(num_hidden_layers=4, hidden_size=32, state_size=16))


def test_the_articles_example() -> None:
    shape = MODELS["llama-3.1-70b"]
    reserved, used = shape.kv_bytes(8192), shape.kv_bytes(850)
    assert (reserved, used) == (2_684_354_560, 278_528_000)
    assert round(1 - used / reserved, 3) == 0.896
    assert blocks_for(850, 16) == 54 and shape.kv_bytes_per_block(16) == 5_242_880
    for budget in (
        kv_budget(640e9, 141e9),
        kv_budget(640e9, shape.weight_bytes),
    ):  # rounded weights, exact ones
        assert contiguous_capacity(budget, shape, 8192) == 162
        assert paged_capacity(budget, shape, 850) == 1536


@pytest.mark.parametrize(
    ("now", "final", "slots", "expected"),
    [
        (300, 850, 8192, (300, 550, 7342)),  # a reservation of the longest length
        (850, 850, 8192, (850, 0, 7342)),
        (300, 850, 304, (300, 4, 0)),  # 19 blocks of 16: the tail will be filled
        (850, 850, 864, (850, 0, 14)),  # 54 blocks: the tail will not
        (0, 0, 0, (0, 0, 0)),
    ],
)
def test_waste_of_one_request(now: int, final: int, slots: int, expected: tuple) -> None:
    usage = split_reservation(now, final, slots)
    assert (usage.used, usage.reserved, usage.internal) == expected
    assert usage.total == slots


@pytest.mark.parametrize("wrong", [(9, 8, 16), (17, 20, 16), (-1, 4, 16)])
def test_waste_that_makes_no_sense(wrong: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="a token needs a slot"):
        split_reservation(*wrong)


def test_usage_adds_up() -> None:
    both = Usage(1, 2, 3, 4) + Usage(5, 0, 1, 0) * 2
    assert both == Usage(11, 2, 5, 4) and both.total == 22
    assert both.shares() == {"used": 11 / 22, "reserved": 2 / 22, "internal": 5 / 22, "external": 4 / 22}


def test_budgets_that_make_no_sense() -> None:
    with pytest.raises(MemoryError, match="do not hold 141 GB of weights"):
        kv_budget(80e9, 141e9)
    with pytest.raises(ValueError, match="memory_fraction = 90"):
        kv_budget(80e9, 14e9, memory_fraction=90)
    with pytest.raises(ValueError, match="num_parameters is not known"):
        _ = MODELS["deepseek-v3"].weight_bytes
