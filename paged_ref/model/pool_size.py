"""The number of blocks that fit on a device (chapters 1 and 6).

    blocks = (memory_fraction * device memory - weights - activations - memory others use) / bytes per block

This is the first number to look for in an engine's log: it determines how many requests can run at once. Engines such
as vLLM measure the activations by running the largest possible step; ours computes an upper bound, which is good enough
here because the activations are small compared with the weights.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil

from ..sizing import blocks_for, human_bytes

if TYPE_CHECKING:
    from .hf_model import PagedModel

log = logging.getLogger("paged_ref")

CPU_LIMIT = 2 * 2**30


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
        parts = [f"{human_bytes(self.total)} x {self.memory_fraction:.2f}"]
        for what in ("weights", "activations", "others"):
            if getattr(self, what):
                parts.append(f"- {human_bytes(getattr(self, what))} {what}")
        if self.limit is not None and self.room == self.limit:
            parts.append(f", at most {human_bytes(self.limit)}")
        return " ".join(parts).replace(" ,", ",") + f", at {human_bytes(self.per_block)} per block"


def choose_num_blocks(
    model: PagedModel, block_size: int, memory_fraction: float, max_num_seqs: int, max_num_batched_tokens: int
) -> int:
    """Return the number of blocks that fit, and log the calculation.

    A CPU's memory is shared with other programs: the cache takes at most 2 GiB of it unless the caller sets
    `num_blocks`. On any device, the cache is never larger than `max_num_seqs` sequences of the model's full length.

    Raises:
        ValueError: a fraction outside (0, 1], or a block size below 1.
        MemoryError: fewer than two blocks fit; the message shows the calculation.
    """
    if not 0 < memory_fraction <= 1:
        raise ValueError(f"memory_fraction = {memory_fraction}: it must be above 0 and at most 1")
    if block_size < 1:
        raise ValueError(f"block_size = {block_size}: it must be a whole number, 1 or more")
    budget = memory_budget(model, block_size, memory_fraction, max_num_seqs, max_num_batched_tokens)
    if budget.num_blocks < 2:
        raise MemoryError(
            f"no room for a KV cache on {model.device}: {budget}, leaves {human_bytes(max(0, budget.room))}. Raise "
            "memory_fraction, lower max_num_batched_tokens, or free some memory"
        )
    useful = max_num_seqs * blocks_for(model.max_positions, block_size)
    num_blocks = min(budget.num_blocks, useful)
    log.info(
        "KV cache on %s: %d blocks of %d tokens, %s (%s)%s",
        model.device, num_blocks, block_size, human_bytes(num_blocks * budget.per_block), budget,
        "" if num_blocks < useful else f"; {max_num_seqs} sequences of {model.max_positions} tokens need no more",
    )  # fmt: skip
    return num_blocks


def memory_budget(
    model: PagedModel, block_size: int, memory_fraction: float, max_num_seqs: int, max_num_batched_tokens: int
) -> Budget:
    """Return the memory calculation for this model on its device."""
    per_block = model.shape.kv_bytes_per_block(block_size)
    activations = _activation_bytes(model, max_num_batched_tokens, max_num_seqs)
    if model.device.type != "cuda":
        free = psutil.virtual_memory().available
        return Budget(free, memory_fraction, 0, activations, 0, per_block, CPU_LIMIT)
    import torch

    free, total = torch.cuda.mem_get_info(model.device)
    weights = sum(p.numel() * p.element_size() for p in model.model.parameters())
    others = max(0, total - free - torch.cuda.memory_reserved(model.device))
    return Budget(total, memory_fraction, weights, activations, others, per_block)


def _activation_bytes(model: PagedModel, num_tokens: int, num_logits: int) -> int:
    """Return an upper bound on the activations of the largest step: those of the widest layer, plus the logits."""
    config: Any = model.model.config
    config = getattr(config, "text_config", config)  # of a multimodal model
    widest = 2 * getattr(config, "intermediate_size", 4 * config.hidden_size) + 4 * config.hidden_size
    size = next(model.model.parameters()).element_size()
    return num_tokens * widest * size + num_logits * model.vocab_size * (size + 4)
