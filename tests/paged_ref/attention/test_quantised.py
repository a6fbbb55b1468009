"""Every backend on quantised caches: against float64 on what the caches hold, and against float64 on what they held.

A test is worth what it catches, so faults of the scales are planted in every backend, and each must be found.
"""

from __future__ import annotations

import importlib.util
import sys
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
import numpy as np
import pytest
import torch

from paged_ref import attention
from paged_ref.attention import (
    Batch,
    numba_paged,
    numpy_gather,
    paged_attention,
    require_kv_dtype,
    torch_paged,
)
from paged_ref.attention.quantised import check_support
from paged_ref.kv_dtype import QUANTISED
from paged_ref.verify.grid import AXES, Case, covering_array, error, make_inputs
from paged_ref.verify.quantised import QuantisedInputs, error_bound, quantise_inputs
from tests.helpers.needs import needs_triton

# Long contexts are on the plain grid; the bound takes as long as the oracle.
SHORT = tuple(context for context in AXES["context"] if context not in ("523", "2011"))
ROWS = covering_array({**AXES, "context": SHORT, "kv_dtype": tuple(QUANTISED)}, lambda **row: True)
READERS = ("numpy", "torch", "numba")
CASES = [(Case(*row[:-1]), row[-1]) for row in ROWS]


@lru_cache(maxsize=4)
def prepared(case: Case, kv_dtype: str) -> tuple[QuantisedInputs, np.ndarray, np.ndarray, np.ndarray]:
    """The quantised inputs, the oracle's results after and before quantisation, and the bound of their distance."""
    inputs = make_inputs(case)
    quantised = quantise_inputs(inputs, kv_dtype)
    return quantised, quantised.expected(), inputs.expected(), error_bound(inputs, kv_dtype)


@pytest.mark.parametrize(("of_grid", "kv_dtype"), CASES, ids=str)
@pytest.mark.parametrize("backend", READERS)
def test_backend_meets_the_oracle_on_quantised_caches(backend: str, of_grid: Case, kv_dtype: str) -> None:
    case = of_grid
    inputs, expected, exact, bound = prepared(case, kv_dtype)
    got = paged_attention(*inputs.arguments(), **inputs.options, backend=backend)
    assert got.dtype == inputs.plain.query.dtype
    assert error(got, expected) <= case.tolerance
    distance = np.abs(got.double().numpy() - exact)
    assert (distance <= bound + case.tolerance * (1 + np.abs(exact))).all()


def test_the_bound_is_tight() -> None:
    """The oracle on the dequantised caches keeps within the bound, and nearly reaches it somewhere."""
    for kv_dtype in QUANTISED:
        used = []
        for case in (
            Case(64, 16, (9, 3), "ragged", queries, "none", "float32") for queries in ("decode", "mixed")
        ):
            _, expected, exact, bound = prepared(case, kv_dtype)
            used.append(np.abs(expected - exact) / bound)
        assert 0.5 < max(share.max() for share in used) <= 1


@pytest.mark.parametrize("backend", READERS)
def test_numpy_arrays_in_numpy_arrays_out(backend: str) -> None:
    inputs, expected, *_ = prepared(Case(40, 5, (9, 3), "ragged", "mixed", "none", "float32"), "int8")
    arrays = [None if x is None else x.numpy() for x in inputs.arguments()]
    scales = {name: inputs.options[name].numpy() for name in ("key_scale", "value_scale")}
    got = paged_attention(*arrays, **scales, backend=backend)
    assert isinstance(got, np.ndarray)
    assert error(got, expected) <= 1e-5


# ---- faults that must be found

FILES = {
    "numpy": "quantised.py",
    "torch": "quantised.py",
    "numba": "numba_loop.py",
}
TORCH = "scale.flatten(0, 1)[slots][..., None]"
MUTANTS: dict[str, dict[str, tuple[str, str]]] = {
    "scale of the wrong block": {
        "numpy": ("self.scale[where]", "np.roll(self.scale, 1, axis=0)[where]"),
        "torch": (TORCH, TORCH.replace("scale.", "scale.roll(1, 0).")),
        "numba": (
            "(block * block_size + begin) * num_kv_heads",
            "(table[0] * block_size + begin) * num_kv_heads",
        ),
    },
    "scale of the block's first slot": {
        "numpy": ("self.scale[where][..., None]", "self.scale[where][:, :1, :, None]"),
        "torch": (TORCH, TORCH.replace("slots", "slots // cache.shape[1] * cache.shape[1]")),
        "numba": ("scales[first + i * next_scale]", "scales[first]"),
    },
    "scale of the next slot": {
        "numpy": ("self.scale[where][..., None]", "np.roll(self.scale[where], -1, axis=1)[..., None]"),
        "torch": (TORCH, TORCH.replace("slots", "(slots + 1) % (cache.shape[0] * cache.shape[1])")),
        "numba": ("scales[first + i * next_scale]", "scales[first + (i + 1) % rows * next_scale]"),
    },
    "scale of KV head 0": {
        "numpy": ("self.scale[where][..., None]", "self.scale[where][..., :1, None]"),
        "torch": (TORCH, "scale.flatten(0, 1)[slots][..., :1, None]"),
        "numba": ("num_kv_heads + kv_head\n", "num_kv_heads\n"),
    },
    "no scale": {
        "numpy": (" * self.scale[where][..., None]", ""),
        "torch": (f" * {TORCH}", ""),
        "numba": ("number[d] *= scale\n", "number[d] *= 1\n"),
    },
    "scale twice": {
        "numpy": ("self.scale[where][..., None]", "self.scale[where][..., None] ** 2"),
        "torch": (TORCH, f"{TORCH} ** 2"),
        "numba": ("number[d] *= scale\n", "number[d] *= scale * scale\n"),
    },
    "keys' scales for values": {
        "numba": ("caches.value_scale, scale_at", "caches.key_scale, scale_at"),
    },
    "elements read as unsigned": {
        "numpy": ("self.elements[where]", "self.elements[where].astype(np.uint8)"),
        "torch": ("rows.float()", "rows.short().bitwise_and(255).float()"),
        "numba": ("np.float32(row[d])", "np.float32(np.uint8(row[d]))"),
    },
}
MUTANT_CASES = [Case(24, 5, (8, 2), "ragged", "decode", "none", "float32"),
                Case(24, 8, (8, 2), "37", "chunk", "window short", "float32")]  # fmt: skip


def load(name: str, source: str, folder: Path) -> ModuleType:
    path = folder / f"mutant_quantised_{name}"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(f"paged_ref.attention.{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    return module


def attend(backend: str, module: ModuleType, inputs: QuantisedInputs, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The backend's result, with a module in place of the one in FILES."""
    if backend == "numpy":
        monkeypatch.setattr(numpy_gather, "readable", module.readable)
    if backend == "torch":
        monkeypatch.setattr(torch_paged, "gather_rows", module.gather_rows)
    if backend == "numba":
        monkeypatch.setattr(numba_paged, "loop", module)
        monkeypatch.setattr(numba_paged, "num_cores", lambda: 3)
        monkeypatch.setattr(numba_paged, "MAX_QUERY_TOKENS", 100)  # else torch attends the chunks
    query, keys, values, *integers = inputs.arguments()
    plan = attention.plan(Batch.of(*integers), keys.shape[1], backend, torch.device("cpu"))
    window = inputs.options.get("sliding_window")
    scales = inputs.options["key_scale"], inputs.options["value_scale"]
    return plan.run(query, keys, values, query.shape[-1] ** -0.5, window, None, *scales)


def caught(backend: str, change: tuple[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a changed backend gets a case wrong."""
    monkeypatch.setattr(numba.config, "DISABLE_JIT", True)  # as Python: there is nothing to compile
    line, replacement = change
    source = (Path(attention.__file__).parent / FILES[backend]).read_text(encoding="utf-8")
    assert line in source, f"{line!r} is not in {FILES[backend]} any more: bring the table up to date"
    module = load(FILES[backend], source.replace(line, replacement), folder)
    for case in MUTANT_CASES:
        inputs, expected, *_ = prepared(case, "int8")
        if not error(attend(backend, module, inputs, monkeypatch), expected) <= case.tolerance:
            return True
    return False


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("mutant", "backend"),
    [(mutant, name) for mutant, of in MUTANTS.items() for name in of],
)
def test_a_fault_of_the_scales_is_found(
    mutant: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert caught(backend, MUTANTS[mutant][backend], tmp_path, monkeypatch)


@pytest.mark.parametrize("backend", FILES)
def test_without_a_fault_the_cases_pass(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not caught(backend, ("import", "import"), tmp_path, monkeypatch)


def test_every_fp8_number_is_dequantised_exactly() -> None:
    """All 256 of them: subnormals, both zeros and both NaN too."""
    from paged_ref.attention import numba_loop

    source = np.arange(256, dtype=np.uint8)
    row = np.empty(256, np.float32)
    scales = np.array([1, 2.0**100, 2.0**-100, 2.0**-120], np.float32)
    numba_loop._dequantise(source, 0, 64, 4, 64, row, row.view(np.uint32), scales, 0, 1)
    expected = torch.from_numpy(source).view(torch.float8_e4m3fn).float().numpy() * scales.repeat(64)
    np.testing.assert_array_equal(row, expected)
    assert (np.signbit(row) == np.signbit(expected))[~np.isnan(expected)].all()


def test_an_overflow_in_the_middle_changes_nothing() -> None:
    from paged_ref.attention import numba_loop

    row, scales = np.empty(8, np.float32), np.array([2.0**60], np.float32)
    source = torch.tensor([448.0] * 8).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    numba_loop._dequantise(source, 0, 8, 1, 8, row, row.view(np.uint32), scales, 0, 1)
    assert (row == np.float32(448 * 2.0**60)).all()


# ---- arguments


def good() -> dict[str, Any]:
    """One sequence of 9 tokens in a pool of 6 quantised blocks of 4."""
    return {
        "query": torch.randn(1, 8, 16),
        "key_cache": torch.zeros(6, 4, 2, 16, dtype=torch.int8),
        "value_cache": torch.zeros(6, 4, 2, 16, dtype=torch.int8),
        "block_tables": torch.tensor([[5, 0, 3]]),
        "seq_lens": torch.tensor([9]),
        "key_scale": torch.ones(6, 4, 2),
        "value_scale": torch.ones(6, 4, 2),
    }


BAD: list[tuple[dict[str, Any], str]] = [
    ({"key_scale": None}, "key_scale is missing: pass key_scale and value_scale, or none of them"),
    ({"value_scale": None}, "value_scale is missing"),
    (
        {"key_scale": None, "value_scale": None},
        "key_cache is int8: pass its scales, key_scale and value_scale",
    ),
    ({"key_cache": torch.zeros(6, 4, 2, 16)}, "key_scale was passed, but key_cache is float32"),
    ({"value_cache": torch.zeros(6, 4, 2, 16)}, "value_scale was passed, but value_cache is float32"),
    (
        {"value_cache": torch.zeros(6, 4, 2, 16).to(torch.float8_e4m3fn)},
        "value_cache is float8_e4m3fn, but key_cache is int8",
    ),
    (
        {"key_scale": torch.ones(6, 4)},
        r"key_scale has shape \(6, 4\): .* must be \(6, 4, 2\), one scale for each",
    ),
    ({"value_scale": torch.ones(6, 4, 2, 1)}, r"value_scale has shape \(6, 4, 2, 1\)"),
    ({"key_scale": torch.ones(6, 4, 2).half()}, "key_scale is float16: it must be float32"),
    (
        {"key_scale": np.ones((6, 4, 2), np.float32)},
        "key_scale is a ndarray, key_cache a Tensor: use one kind",
    ),
    (
        {"value_scale": torch.ones(6, 4, 2, device="meta")},
        "value_scale is on meta, but value_cache is on cpu",
    ),
    ({"key_cache": torch.zeros(6, 4, 2, 16, dtype=torch.uint8)}, "key_cache is torch.uint8, but query is"),
    (
        {"query": torch.zeros(1, 8, 16, dtype=torch.int8)},
        "query is torch.int8: it must be a floating-point type",
    ),
]


@pytest.mark.parametrize("backend", ["auto", *READERS])
def test_the_good_call_is_good(backend: str) -> None:
    assert paged_attention(**good(), backend=backend).shape == (1, 8, 16)


@pytest.mark.parametrize(("change", "message"), BAD)
def test_a_wrong_argument_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        paged_attention(**{**good(), **change})


def test_a_backend_that_does_not_say_so_is_not_given_a_quantised_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(torch_paged, "KV_DTYPES")
    with pytest.raises(ValueError, match="kv_dtype = 'int8': the torch backend does not read such a cache"):
        paged_attention(**good(), backend="torch")
    require_kv_dtype("auto", "torch", "cpu")


@needs_triton
def test_triton_refuses_a_quantised_cache() -> None:
    with pytest.raises(ValueError, match="kv_dtype = 'int8': the triton backend does not read such a cache"):
        paged_attention(**good(), backend="triton")


def test_what_the_device_does_not_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="kv_dtype = 'fp8_e4m3': torch has no such dtype on nonsense"):
        check_support("fp8_e4m3", "torch", ("int8", "fp8_e4m3"), "nonsense")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A100")
    with pytest.raises(ValueError, match=r"compute capability 8\.9 or more, and cuda:0 is A100; use 'int8'"):
        check_support("fp8_e4m3", "triton", ("int8", "fp8_e4m3"), "cuda:0")
