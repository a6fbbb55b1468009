"""Paged attention with the Triton kernels: kernel choice, grids and tile sizes (chapter 5).

A batch holds decodes (one query token) and other sequences. `decode_kernel` attends the decodes, split over
the context, and `prefill_kernel` the others; each returns immediately from a sequence that the other kernel
handles. So nothing has to be sorted, and the grids depend on shapes only: no launch has to wait for the device
to report a length.

Without a CUDA device, Triton's interpreter runs the same kernels on CPU tensors (see `triton_kernels`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ..arguments import next_power_of_two
from . import triton_kernels as kernels
from .validate import Batch

MIN_SPLIT_TOKENS = 256  # a split with fewer tokens costs more to merge than it saves
MAX_SPLITS = 64
# Enough programs that the last wave, which is partly empty, is a small part of the total.
PROGRAMS_PER_MULTIPROCESSOR = 4
ON_AMD = torch.version.hip is not None
INTERPRETER_MULTIPROCESSORS = 8  # assumed for a CPU, so that tests use splits as a GPU does


def plan(batch: Batch, block_size: int, device: Any = None) -> TritonPlan:
    """Upload a step's integers once; the plan is run for every layer. The copies are asynchronous."""
    device = torch.device("cpu") if device is None else torch.device(device)
    only_decodes = len(batch.seq_lens) == 0 or int(batch.query_lens.min()) == 1 == int(batch.query_lens.max())
    return TritonPlan(
        _upload(batch.block_tables, device),
        _upload(batch.seq_lens, device),
        None if only_decodes else _upload(batch.query_start_loc, device),
        int(batch.seq_lens.max(initial=0)),
        block_size,
    )


def plan_on_device(
    block_tables: torch.Tensor, seq_lens: torch.Tensor, query_start_loc: torch.Tensor | None, block_size: int
) -> TritonPlan:
    """Return a plan from tensors that are on the device already, unchecked, without waiting for them."""
    # An upper bound is enough: `longest` only determines the number of splits.
    longest = block_tables.shape[1] * block_size
    starts = None if query_start_loc is None else query_start_loc.to(torch.int32)
    return TritonPlan(block_tables.to(torch.int32), seq_lens.to(torch.int32), starts, longest, block_size)


def _upload(array: np.ndarray, device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.to(device) if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


@dataclass(frozen=True)
class TritonPlan:
    """One batch; see `attention.AttentionPlan`.

    block_tables [num_seqs, max_blocks_per_seq], seq_lens [num_seqs] and query_start_loc [num_seqs + 1],
    int32, on the device. query_start_loc is None if every sequence has one query token. longest: an upper
    bound of seq_lens. num_splits: number of splits of the context in decode; None: set by `choose_splits`.
    """

    block_tables: torch.Tensor
    seq_lens: torch.Tensor
    query_start_loc: torch.Tensor | None
    longest: int
    block_size: int
    num_splits: int | None = None

    def with_splits(self, num_splits: int) -> TritonPlan:
        """Return the same plan with a fixed number of splits, a power of two."""
        if num_splits < 1 or num_splits & (num_splits - 1):
            raise ValueError(f"num_splits = {num_splits}: it must be a power of two")
        return replace(self, num_splits=num_splits)

    def run(
        self,
        query: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        scale: float,
        sliding_window: int | None = None,
        softcap: float | None = None,
        key_scale: torch.Tensor | None = None,
        value_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the attention of the whole batch, accumulated in float32.

        Raises:
            ValueError: there are scales; these kernels do not dequantise.
        """
        if key_scale is not None or value_scale is not None:
            raise ValueError("the triton backend does not read quantised caches: use torch, numba or numpy")
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        if output.numel() == 0:
            return output
        query, key_cache, value_cache = (_rows_side_by_side(x) for x in (query, key_cache, value_cache))
        common = {
            "q_ptr": query,
            "k_ptr": key_cache,
            "v_ptr": value_cache,
            "tables_ptr": self.block_tables,
            "lens_ptr": self.seq_lens,
            "scale": scale,
            "softcap": 1.0 if softcap is None else softcap,
            "window": 0 if sliding_window is None else sliding_window,
            "HAS_SOFTCAP": softcap is not None,
            "HAS_WINDOW": sliding_window is not None,
            "UPCAST": kernels.INTERPRETED and query.dtype == torch.bfloat16,
            **_sizes(query, key_cache, value_cache, self.block_tables),
        }
        self._decode(output, common)
        if self.query_start_loc is not None:
            self._prefill(output, common)
        return output

    def _decode(self, output: torch.Tensor, common: dict[str, Any]) -> None:
        num_seqs, num_heads, head_dim = len(self.seq_lens), output.shape[1], output.shape[2]
        num_kv_heads = num_heads // common["GROUP"]
        splits = self.num_splits or choose_splits(
            num_seqs * num_kv_heads, self.longest, multiprocessors(output.device)
        )
        parts = output if splits == 1 else _float32(output, num_seqs, num_heads, splits, head_dim)
        lse = output if splits == 1 else _float32(output, num_seqs, num_heads, splits)
        starts = {"starts_ptr": self.query_start_loc, "HAS_STARTS": self.query_start_loc is not None}
        kernels.decode_kernel[(num_seqs, num_kv_heads, splits)](
            out_ptr=output,
            part_ptr=parts,
            lse_ptr=lse,
            ROWS=max(16, next_power_of_two(common["GROUP"])),
            NUM_SPLITS=splits,
            **decode_sizes(common["D"], output.element_size(), ON_AMD),
            **starts,
            **common,
        )
        if splits > 1:
            kernels.merge_kernel[(num_seqs, num_heads)](
                output, parts, lse, HEAD_DIM=head_dim, D=common["D"], NUM_SPLITS=splits, num_warps=4, **starts
            )

    def _prefill(self, output: torch.Tensor, common: dict[str, Any]) -> None:
        num_tokens, num_heads, _ = output.shape
        sizes = prefill_sizes(common["D"], output.element_size(), ON_AMD)
        rows = sizes["ROWS"] = max(sizes["ROWS"], next_power_of_two(common["GROUP"]))
        num_tiles = num_tokens // (rows // common["GROUP"]) + len(self.seq_lens)
        kernels.prefill_kernel[(num_tiles, num_heads // common["GROUP"])](
            out_ptr=output,
            starts_ptr=self.query_start_loc,
            num_seqs=len(self.seq_lens),
            **sizes,
            **common,
        )


def choose_splits(programs: int, longest: int, num_multiprocessors: int) -> int:
    """Return the number of parts into which decode splits each context.

    programs is num_seqs * num_kv_heads, the number of programs without splitting. If that already gives every
    multiprocessor a few programs, splitting only adds a merge. If not, the context is split until it does, but
    into parts of at least MIN_SPLIT_TOKENS tokens. The result is a power of two, because the merge reads all
    parts as one tile.
    """
    wanted = -(-PROGRAMS_PER_MULTIPROCESSOR * num_multiprocessors // max(programs, 1))
    possible = max(1, longest // MIN_SPLIT_TOKENS)
    splits = min(wanted, possible, MAX_SPLITS)
    return 1 << (splits.bit_length() - 1)


def decode_sizes(padded_head_dim: int, element_size: int, on_amd: bool) -> dict[str, int]:
    """Return tile, warps and stages of decode_kernel.

    A program has to keep enough bytes in flight to hide the latency of memory: num_stages tiles of K and V of
    16 KB each are in flight at once, and two or more programs share a multiprocessor. float32 matmuls run on
    ordinary arithmetic units instead of tensor cores and need many registers, so their tiles are smaller. AMD's
    compiler needs the registers that a third stage would take.
    """
    return {
        "TILE": _tile_tokens(padded_head_dim, element_size),
        "num_warps": 4,
        "num_stages": 2 if on_amd else 3,
    }


def prefill_sizes(padded_head_dim: int, element_size: int, on_amd: bool) -> dict[str, int]:
    """Return rows (query tokens times query heads of a KV head), tile, warps and stages of prefill_kernel.

    Every tile of rows reads its sequence's keys again, so more rows mean fewer reads. But the running sum,
    [rows, head_dim] in float32, must stay in registers. The limits were found by compiling
    (`compile_report`).
    """
    tile = _tile_tokens(padded_head_dim, element_size)
    if element_size == 4:
        return {"ROWS": 32, "TILE": tile, "num_warps": 8, "num_stages": 2}
    rows = 128 if padded_head_dim <= 128 else 64
    return {"ROWS": rows, "TILE": min(tile, 32) if on_amd else tile, "num_warps": 8, "num_stages": 2}


def _tile_tokens(padded_head_dim: int, element_size: int) -> int:
    numbers = 8192 if element_size == 2 else 2048
    return max(16, min(64, numbers // padded_head_dim))


def multiprocessors(device: torch.device) -> int:
    """Return the number of multiprocessors: at least this many programs run in parallel."""
    if device.type != "cuda":
        return INTERPRETER_MULTIPROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


def decode_plain(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Run chapter 5's first kernel: one query token per sequence, no window, no softcap; see `paged_attention`."""
    query, key_cache, value_cache = (_rows_side_by_side(x) for x in (query, key_cache, value_cache))
    output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    kernels.decode_plain_kernel[query.shape[:2]](
        out_ptr=output,
        q_ptr=query,
        k_ptr=key_cache,
        v_ptr=value_cache,
        tables_ptr=block_tables,
        lens_ptr=seq_lens,
        scale=scale,
        B=next_power_of_two(key_cache.shape[1]),
        **_sizes(query, key_cache, value_cache, block_tables),
    )
    return output


def write_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Write keys and values like `paged_ref.write_kv`, in one kernel launch and unchecked.

    All tensors must be on one device, and slots in range or -1.
    """
    num_tokens, num_kv_heads, head_dim = key.shape
    if num_tokens == 0:
        return
    key, value = _rows_side_by_side(key), _rows_side_by_side(value)
    for name, cache in (("key_cache", key_cache), ("value_cache", value_cache)):
        if cache.stride(-1) != 1:
            raise ValueError(
                f"{name} has stride {cache.stride(-1)} along head_dim: it must be 1 to be written in place"
            )
    kernels.write_kv_kernel[(num_tokens,)](
        key,
        value,
        key_cache,
        value_cache,
        slot_mapping,
        num_kv_heads,
        *key.stride()[:2],
        *value.stride()[:2],
        *key_cache.stride()[:3],
        *value_cache.stride()[:3],
        HEAD_DIM=head_dim,
        BLOCK_SIZE=key_cache.shape[1],
        D=next_power_of_two(head_dim),
        HEADS=next_power_of_two(num_kv_heads),
    )


def copy_blocks(keys: torch.Tensor, values: torch.Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    """Copy whole blocks in every layer: [(source, destination)].

    keys and values: [num_layers, num_blocks, block_size, num_kv_heads, head_dim], changed in place.

    Raises:
        ValueError: a block is both a source and a destination (programs run in no fixed order, so it could be read
            before or after it is written), or the storage is not contiguous.
    """
    if not pairs:
        return
    both = {source for source, _ in pairs} & {destination for _, destination in pairs}
    if both:
        raise ValueError(f"block {min(both)} is both a source and a destination: copy in two calls")
    if not (keys.is_contiguous() and values.is_contiguous()):
        raise ValueError("keys and values must be contiguous: a block is copied as one run of elements")
    elements = keys[0, 0].numel()
    table = torch.tensor(pairs, dtype=torch.int64).to(keys.device, non_blocking=True)
    tile = 1024
    grid = (len(pairs), keys.shape[0], -(-elements // tile))
    kernels.copy_blocks_kernel[grid](keys, values, table, keys.stride(0), elements, TILE=tile)


def _sizes(
    query: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, tables: torch.Tensor
) -> dict[str, int]:
    """Return the strides and sizes that the attention kernels share, by parameter name."""
    strides = {"table_stride": tables.stride(0), "q_token": query.stride(0), "q_head": query.stride(1)}
    for name, cache in (("k", key_cache), ("v", value_cache)):
        for axis, dimension in enumerate(("block", "slot", "head")):
            strides[f"{name}_{dimension}"] = cache.stride(axis)
    head_dim = query.shape[-1]
    return {
        **strides,
        "GROUP": query.shape[1] // key_cache.shape[2],
        "HEAD_DIM": head_dim,
        "BLOCK_SIZE": key_cache.shape[1],
        "D": max(16, next_power_of_two(head_dim)),
    }


def _rows_side_by_side(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor with contiguous heads, as the kernels read them; copy it if its layout differs."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _float32(like: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)
