"""The number of blocks that fit on a device (chapters 1 and 6).

    blocks = (memory_fraction * device memory - weights - activations - memory others use) / bytes per block

This is the first number to look for in an engine's log: it determines how many requests can run at once. Engines such
as vLLM measure the activations by running the largest possible step; ours computes an upper bound, which is good enough
here because the activations are small compared with the weights.
"""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

from ..kv_dtype import with_kv_dtype
from ..sizing import blocks_for, human_bytes
from .memory_limits import free_memory

if TYPE_CHECKING:
    from .hf_model import PagedModel

log = logging.getLogger("paged_ref")

CPU_LIMIT = 2 * 2**30
MOST_SLOTS = 2**31 - 1  # slots are int32
KV_BYTES = "PAGED_REF_KV_BYTES"
UNITS = {"": 1, **{f"{prefix}": 10 ** (3 * i) for i, prefix in enumerate("kmgt", 1)},
         **{f"{prefix}i": 2 ** (10 * i) for i, prefix in enumerate("kmgt", 1)}}  # fmt: skip


@dataclass(frozen=True)
class Budget:
    """The memory calculation behind a number of blocks, in bytes.

    Attributes:
        total: the device's memory; on a CPU, the memory that is free now.
        weights, activations: memory that the model takes. On a CPU the weights are loaded already, so they count as 0.
        others: memory that other programs use.
        per_block: bytes of one block, over all layers.
        limit: the most that the cache may take, however much is free; None: no limit.
    """

    total: int
    memory_fraction: float
    weights: int
    activations: int
    others: int
    per_block: int
    limit: int | None = None
    limited_by: str = ""

    @property
    def room(self) -> int:
        """Bytes left for the cache; negative if weights and activations alone do not fit."""
        left = int(self.memory_fraction * self.total) - self.weights - self.activations - self.others
        return left if self.limit is None else min(left, self.limit)

    @property
    def num_blocks(self) -> int:
        """Whole blocks that fit in the room."""
        return max(0, self.room) // self.per_block

    def __str__(self) -> str:
        under = f" under {self.limited_by}" if self.limited_by else ""
        parts = [f"{human_bytes(self.total)}{under} x {self.memory_fraction:.2f}"]
        for what in ("weights", "activations", "others"):
            if getattr(self, what):
                parts.append(f"- {human_bytes(getattr(self, what))} {what}")
        if self.limit is not None and self.room == self.limit:
            parts.append(f", at most {human_bytes(self.limit)}")
        return " ".join(parts).replace(" ,", ",") + f", at {human_bytes(self.per_block)} per block"


def kv_bytes_setting(kv_bytes: int | str | None) -> int | None:
    """Return `kv_bytes` in bytes; None: what the environment variable PAGED_REF_KV_BYTES says, or None without it.

    Text is a number of bytes, or a number with a unit: kB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB (of 1024).

    Raises:
        ValueError: something else, or less than one byte; the message says which of the two was set.
    """
    if kv_bytes is None:
        text = os.environ.get(KV_BYTES, "").strip()
        return _parse_bytes(KV_BYTES, text) if text else None
    return _parse_bytes("kv_bytes", kv_bytes)


def choose_num_blocks(
    model: PagedModel,
    block_size: int,
    memory_fraction: float,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    kv_bytes: int | None = None,
    num_blocks: int | None = None,
    kv_dtype: str = "auto",
) -> int:
    """Return the number of blocks of the pool, and log the calculation.

        num_blocks given                     that many; with kv_bytes too, they must fit in it
        kv_bytes given                       what fits in it; it must be free. memory_fraction plays no part
        neither                              what fits in memory_fraction of the device's memory

    A CPU's memory is shared with other programs: without `num_blocks` and `kv_bytes` the cache takes at most 2 GiB of
    it. A pool whose size is computed is never larger than `max_num_seqs` sequences of the model's full length.

    Raises:
        ValueError: a fraction outside (0, 1], a block size below 1, or more blocks than fit in `kv_bytes`.
        MemoryError: fewer than two blocks fit, or less than `kv_bytes` is free; the message shows the calculation.
    """
    if block_size < 1:
        raise ValueError(f"block_size = {block_size}: it must be a whole number, 1 or more")
    per_block = with_kv_dtype(model.shape, kv_dtype).kv_bytes_per_block(block_size)
    if num_blocks is not None:
        if kv_bytes is not None and num_blocks * per_block > kv_bytes:
            raise ValueError(
                f"num_blocks = {num_blocks} needs {human_bytes(num_blocks * per_block)}, but kv_bytes = {kv_bytes} (or "
                f"{KV_BYTES}) allows {kv_bytes // per_block} blocks: set one of the two"
            )
        return num_blocks
    if not 0 < memory_fraction <= 1:
        raise ValueError(f"memory_fraction = {memory_fraction}: it must be above 0 and at most 1")
    fraction = memory_fraction if kv_bytes is None else 1.0
    budget = memory_budget(
        model, block_size, fraction, max_num_seqs, max_num_batched_tokens, kv_bytes, kv_dtype
    )
    if kv_bytes is not None and budget.room < kv_bytes:
        raise MemoryError(
            f"kv_bytes = {kv_bytes} (or {KV_BYTES}), but on {model.device} there is room for "
            f"{human_bytes(max(0, budget.room))}: {budget}"
        )
    if budget.num_blocks < 2:
        raise MemoryError(
            f"no room for a KV cache on {model.device}: {budget}, leaves {human_bytes(max(0, budget.room))}. Raise "
            "memory_fraction, lower max_num_batched_tokens, or free some memory"
            if kv_bytes is None
            else f"kv_bytes = {kv_bytes} (or {KV_BYTES}) is less than two blocks of {human_bytes(per_block)}"
        )
    useful = max_num_seqs * blocks_for(model.max_positions, block_size)
    num_blocks = min(budget.num_blocks, useful, MOST_SLOTS // block_size)
    log.info(
        "KV cache on %s: %d blocks of %d tokens, %s (%s)%s",
        model.device, num_blocks, block_size, human_bytes(num_blocks * budget.per_block), budget,
        "" if num_blocks < useful else f"; {max_num_seqs} sequences of {model.max_positions} tokens need no more",
    )  # fmt: skip
    return num_blocks


def memory_budget(
    model: PagedModel,
    block_size: int,
    memory_fraction: float,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    kv_bytes: int | None = None,
    kv_dtype: str = "auto",
) -> Budget:
    """Return the memory calculation for this model on its device. `kv_bytes` replaces the CPU's limit."""
    per_block = with_kv_dtype(model.shape, kv_dtype).kv_bytes_per_block(block_size)
    activations = _activation_bytes(model, max_num_batched_tokens, max_num_seqs)
    if model.device.type != "cuda":
        free = free_memory()
        limit = CPU_LIMIT if kv_bytes is None else kv_bytes
        return Budget(free.num_bytes, memory_fraction, 0, activations, 0, per_block, limit, free.limited_by)
    import torch

    free_bytes, total = torch.cuda.mem_get_info(model.device)
    weights = sum(p.numel() * p.element_size() for p in model.model.parameters())
    others = max(0, total - free_bytes - torch.cuda.memory_reserved(model.device))
    return Budget(total, memory_fraction, weights, activations, others, per_block, kv_bytes)


def _parse_bytes(name: str, value: object) -> int:
    num_bytes: float = -1
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", value, re.IGNORECASE)
        if match and match[2].lower() in UNITS:
            number, unit = match[1], UNITS[match[2].lower()]
            num_bytes = float(number) * unit if "." in number else int(number) * unit
            num_bytes = int(num_bytes) if unit > 1 else num_bytes
    elif isinstance(value, Real) and not isinstance(value, bool):
        size = value if isinstance(value, int) else float(value)
        num_bytes = int(size) if size == size // 1 else -1  # NaN and infinity are not equal to that
    if num_bytes < 1 or num_bytes != int(num_bytes):
        raise ValueError(
            f"{name} = {value!r}: it must be a whole number of bytes, 1 or more, or text like '512MB' or '2GiB'"
        )
    return int(num_bytes)


def _activation_bytes(model: PagedModel, num_tokens: int, num_logits: int) -> int:
    """Return an upper bound on the activations of the largest step: those of the widest layer, plus the logits."""
    config: Any = model.model.config
    config = getattr(config, "text_config", config)  # of a multimodal model
    widest = 2 * getattr(config, "intermediate_size", 4 * config.hidden_size) + 4 * config.hidden_size
    size = next(model.model.parameters()).element_size()
    return num_tokens * widest * size + num_logits * model.vocab_size * (size + 4)
