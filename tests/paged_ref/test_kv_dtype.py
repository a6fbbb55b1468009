"""The arithmetic of a quantised cache's size."""

from __future__ import annotations

import pytest

from paged_ref.kv_dtype import KV_DTYPES, QuantisedShape, with_kv_dtype
from paged_ref.sizing import MODELS, ModelShape, paged_capacity


def test_bytes_per_token_by_hand() -> None:
    """Llama 3.1 8B: 32 layers, K and V, 8 heads of 128 bytes and a scale of 4."""
    llama = MODELS["llama-3.1-8b"]
    for kv_dtype in ("int8", "fp8_e4m3"):
        small = with_kv_dtype(llama, kv_dtype)
        assert small.kv_bytes_per_token == 32 * 2 * 8 * (128 + 4) == 67_584
        assert small.kv_bytes_per_block(16) == 16 * 67_584
        assert small.weight_bytes == llama.weight_bytes, "weights keep their own dtype"
    assert llama.kv_bytes_per_token / small.kv_bytes_per_token == pytest.approx(1.94, abs=0.01)


def test_requests_nearly_double() -> None:
    llama = MODELS["llama-3.1-8b"]
    plain = paged_capacity(60e9, llama, 1000)
    assert plain == 454 and paged_capacity(60e9, with_kv_dtype(llama, "int8"), 1000) == 880


def test_a_latent_has_one_scale() -> None:
    latent = with_kv_dtype(MODELS["deepseek-v3"], "int8")
    assert latent.kv_bytes_per_token == 61 * (576 + 4)


def test_a_window_counts_as_before() -> None:
    gemma = MODELS["gemma-3-27b"]
    ratio = gemma.kv_bytes(5000) / with_kv_dtype(gemma, "int8").kv_bytes(5000)
    assert ratio == pytest.approx(2 * 128 / 132)


def test_auto_is_the_shape_itself_and_undoes_the_others() -> None:
    shape = ModelShape("small", 2, 4, 2, 8, "float32")
    assert with_kv_dtype(shape, "auto") == shape
    small = with_kv_dtype(shape, "int8")
    assert isinstance(small, QuantisedShape) and small.kv_dtype == "int8" and small.dtype == "float32"
    assert with_kv_dtype(small, "auto") == shape
    assert with_kv_dtype(with_kv_dtype(shape, "fp8_e4m3"), "int8") == small


@pytest.mark.parametrize("kv_dtype", ["int4", "INT8", "", None, 8, "float16"])
def test_an_unknown_data_type_is_refused(kv_dtype: object) -> None:
    with pytest.raises(ValueError, match=f"kv_dtype = {kv_dtype!r}: one of {', '.join(KV_DTYPES)}"):
        with_kv_dtype(MODELS["llama-3.1-8b"], kv_dtype)  # type: ignore[arg-type]
