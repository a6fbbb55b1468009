"""The arithmetic of chapter 1 against figures that others published, and shapes that make no sense."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from paged_ref import MODELS, ModelShape
from paged_ref.sizing import human_bytes


@pytest.mark.parametrize(
    ("name", "bytes_per_token"),
    [
        ("llama-3.1-70b", 327_680),  # 2 x 80 x 8 x 128 x 2
        ("llama-2-13b", 819_200),  # 800 KiB
        ("opt-13b", 819_200),  # the vLLM paper: 800 KB
        ("llama-3.1-8b", 131_072),
        ("smollm2-135m", 23_040),
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
        ((2, 9, 2, 8), "9 query heads cannot be shared out evenly over 2 KV heads"),
        ((2, 4, 4, 8, "int4"), "unknown dtype 'int4'"),
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
