"""How many blocks a device has room for (chapters 1 and 6).

    blocks = (memory_fraction * device memory - weights - activations) / bytes per block

An engine measures the activations with the largest step that it will ever run. That number of blocks is the first thing
to read in its log: everything about concurrency follows from it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import psutil

from .block_pool import blocks_for
from .sizing import human_bytes

if TYPE_CHECKING:
    from .hf_model import PagedModel

log = logging.getLogger("paged_ref")

CPU_LIMIT = 2 * 2**30


def choose_num_blocks(
    model: PagedModel, block_size: int, memory_fraction: float, max_num_seqs: int, max_num_batched_tokens: int
) -> int:
    """Blocks that fit, logged with the sum behind them.

    On a CPU the memory belongs to others too: the cache takes at most 2 GiB of it unless `num_blocks` says otherwise.

    Raises:
        ValueError: a fraction outside (0, 1].
        MemoryError: not even one sequence of two blocks would fit.
    """
    if not 0 < memory_fraction <= 1:
        raise ValueError(f"memory_fraction = {memory_fraction}: it must be above 0 and at most 1")
    if block_size < 1:
        raise ValueError(f"block_size = {block_size}: it must be a whole number, 1 or more")
    per_block = model.shape.kv_bytes_per_block(block_size)
    weights = sum(p.numel() * p.element_size() for p in model.model.parameters())
    if model.device.type == "cuda":
        import torch

        free, total = torch.cuda.mem_get_info(model.device)
        activations = _activation_bytes(model, max_num_batched_tokens, max_num_seqs)
        others = total - free - torch.cuda.memory_reserved(model.device)
        room = int(memory_fraction * total) - weights - activations - max(others, 0)
        where = f"{human_bytes(total)} of GPU memory"
    else:
        free = psutil.virtual_memory().available
        activations = _activation_bytes(model, max_num_batched_tokens, max_num_seqs)
        room = min(int(memory_fraction * free) - activations, CPU_LIMIT)
        where = f"{human_bytes(free)} of free memory (at most {human_bytes(CPU_LIMIT)} of it)"
    useful = max_num_seqs * blocks_for(model.max_positions, block_size)  # more could never be filled
    num_blocks = min(room // per_block, useful)
    if num_blocks < 2:
        raise MemoryError(
            f"{where} times memory_fraction {memory_fraction} leaves {human_bytes(max(room, 0))} for the KV cache after "
            f"{human_bytes(weights)} of weights; a block of {block_size} tokens takes {human_bytes(per_block)}"
        )
    log.info(
        "%d blocks of %d tokens: %s for the cache, out of %s x %.2f, weights %s, activations %s, %s a block",
        num_blocks, block_size, human_bytes(num_blocks * per_block), where, memory_fraction,
        human_bytes(weights), human_bytes(activations), human_bytes(per_block),
    )  # fmt: skip
    return int(num_blocks)


def _activation_bytes(model: PagedModel, num_tokens: int, num_logits: int) -> int:
    """Upper estimate of what the largest step holds beside weights and cache: the widest layer, and the logits."""
    config = model.model.config
    widest = 2 * getattr(config, "intermediate_size", 4 * config.hidden_size) + 4 * config.hidden_size
    size = next(model.model.parameters()).element_size()
    return num_tokens * widest * size + num_logits * model.vocab_size * (size + 4)
