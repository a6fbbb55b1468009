"""Attention over a paged cache: one function, several backends (chapters 3 and 5).

Each query token attends to the keys of its own sequence, up to and including itself. The block table says where
those keys are. Sequences of different lengths share one flat batch, whether they decode one token or prefill
many:

    query            [ s0 | s1 s1 s1 s1 | s2 ]           query_start_loc = [0, 1, 5, 6]
    seq_lens         [ 9,   4,            33 ]           s1 prefills from scratch, the others decode
    block_tables     [ 7 1 4 · · ]                       row of s0, block_size 4: three blocks used

The work has two parts. `plan` processes the integers, which are the same for all layers of a model, once per
step; `run` does the arithmetic, once per layer. `paged_attention` checks every argument, then does both. (The
split into plan and run is FlashInfer's.)
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Protocol

from ..kv_dtype import NAMES, dtype_name
from .quantised import check_support
from .validate import Batch, check_arguments, check_batch, is_torch

BACKENDS = {"numpy": "numpy_gather", "torch": "torch_paged", "numba": "numba_paged", "triton": "triton_paged"}


class AttentionPlan(Protocol):
    """The interface of the object that a backend's `plan(batch, block_size, device)` returns."""

    def run(
        self,
        query: Any,
        key_cache: Any,
        value_cache: Any,
        scale: float,
        sliding_window: int | None,
        softcap: float | None,
        key_scale: Any = None,
        value_scale: Any = None,
    ) -> Any:
        """Return the attention of all query tokens of the batch, as the array type and dtype of `query`."""


def paged_attention(
    query: Any,
    key_cache: Any,
    value_cache: Any,
    block_tables: Any,
    seq_lens: Any,
    query_start_loc: Any = None,
    *,
    scale: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    key_scale: Any = None,
    value_scale: Any = None,
    backend: str = "auto",
    validate: bool = True,
) -> Any:
    """Compute causal attention of a flat batch of query tokens over keys and values in scattered blocks.

    Args:
        query: [num_tokens, num_heads, head_dim], float32, float16 or bfloat16.
        key_cache: [num_blocks, block_size, num_kv_heads, head_dim], the dtype of `query`, or quantised: int8 or (torch
            only) float8_e4m3fn. num_heads must be a multiple of num_kv_heads; query head h reads KV head
            h // (num_heads // num_kv_heads).
        value_cache: as key_cache.
        block_tables: [num_seqs, max_blocks_per_seq] integers: physical block ids. Entries past a sequence's last used
            block are never read.
        seq_lens: [num_seqs] integers: tokens in the cache for each sequence, including those of this call.
        query_start_loc: [num_seqs + 1] integers: sequence i has the query tokens from [i] to [i + 1] - 1; they are its
            last tokens. None: one query token for each sequence.
        scale: factor for the scores; None: head_dim ** -0.5.
        sliding_window: a query sees only the last `sliding_window` tokens, including itself. None: all tokens.
        softcap: scores become softcap * tanh(score / softcap), after scaling. None: no cap.
        key_scale, value_scale: [num_blocks, block_size, num_kv_heads] float32, for quantised caches only: a key is
            key_cache[block, offset, head] * key_scale[block, offset, head]. `write_kv` fills both.
        backend: "auto", "numpy", "torch", "numba" (CPU) or "triton" (GPU; on a CPU its interpreter, for study).
        validate: check the contents of the integer arrays. Turn this off only if they were checked before: a wrong id
            reads out-of-bounds memory. On a GPU, an unchecked call does not wait for the device.

    Returns:
        [num_tokens, num_heads, head_dim], a NumPy array or torch tensor like `query`, with its dtype and device.

    Raises:
        ValueError: an invalid argument, with its name and the index: `block_tables[2, 5] = 4711, but …`.
    """
    check_arguments(
        query, key_cache, value_cache, block_tables, seq_lens, query_start_loc, sliding_window, softcap, scale,
        key_scale, value_scale,
    )  # fmt: skip
    block_size = key_cache.shape[1]
    factor = query.shape[-1] ** -0.5 if scale is None else float(scale)
    backend = choose_backend(query) if backend == "auto" else backend
    if key_scale is not None:
        require_kv_dtype(NAMES[dtype_name(key_cache)], backend, getattr(query, "device", "cpu"))
    if (
        backend == "triton"
        and not validate
        and is_torch(query)
        and is_torch(block_tables)
        and is_torch(seq_lens)
    ):
        from .triton_paged import plan_on_device  # the integers stay on the device

        unchecked = plan_on_device(block_tables, seq_lens, query_start_loc, block_size)
        return unchecked.run(
            query, key_cache, value_cache, factor, sliding_window, softcap, key_scale, value_scale
        )
    batch = Batch.of(block_tables, seq_lens, query_start_loc)
    if validate:
        check_batch(batch, num_tokens=query.shape[0], num_blocks=key_cache.shape[0], block_size=block_size)
    arrays, device = [query, key_cache, value_cache, key_scale, value_scale], getattr(query, "device", None)
    as_tensors = not is_torch(query) and backend != "numpy"
    if as_tensors:
        import torch

        device = torch.device("cpu")
        arrays = [None if array is None else torch.from_numpy(array) for array in arrays]  # views, not copies
    q, keys, values, *scales = arrays
    attended = plan(batch, block_size, backend, device).run(
        q, keys, values, factor, sliding_window, softcap, *scales
    )
    return attended.numpy() if as_tensors else attended


def choose_backend(query: Any) -> str:
    """Return the backend that "auto" stands for.

    On a GPU: Triton if it is installed, else torch. On a CPU: numba if it is installed, else torch or NumPy.
    """
    if is_torch(query) and query.is_cuda:
        return "triton" if find_spec("triton") is not None else "torch"
    if find_spec("numba") is not None and find_spec("torch") is not None:
        return "numba"
    return "torch" if is_torch(query) else "numpy"


def require_kv_dtype(kv_dtype: str, backend: str, device: Any) -> None:
    """Check that a backend reads caches of this data type on a device; "auto" is always accepted.

    Raises:
        ValueError: it does not, or the backend is unknown.
    """
    if kv_dtype != "auto":
        check_support(kv_dtype, backend, getattr(load(backend), "KV_DTYPES", ()), str(device))


def plan(batch: Batch, block_size: int, backend: str, device: Any = None) -> AttentionPlan:
    """Prepare a batch for one backend; the plan may be run for many layers.

    Raises:
        ValueError: an unknown backend.
    """
    made: AttentionPlan = load(backend).plan(batch, block_size, device)
    return made


def load(backend: str) -> ModuleType:
    """Import a backend's module, which for numba and Triton takes a second.

    An engine does this before its first step: an import interrupted by Ctrl-C cannot be repeated in the same process.

    Raises:
        ValueError: an unknown backend.
    """
    if not isinstance(backend, str) or backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend!r}: one of auto, {', '.join(BACKENDS)}")
    return import_module(f".{BACKENDS[backend]}", __name__)


__all__ = [
    "BACKENDS",
    "AttentionPlan",
    "Batch",
    "check_batch",
    "choose_backend",
    "load",
    "paged_attention",
    "plan",
    "require_kv_dtype",
]
