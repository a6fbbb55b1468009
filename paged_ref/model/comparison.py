"""A model run by itself and on block tables, compared layer by layer (chapter 7).

Each run looks at the input of every layer. The paged run then puts the input of the own run in its place:

    own run      embed -> x0 -> layer 0 -> x1 -> layer 1 -> x2 -> … -> logits
    paged run    embed -> y0    layer 0 -> y1    layer 1 -> y2         logits
                          x0 ->            x1 ->            x2 -> …

y0 against x0 compares the embeddings, y1 against x1 layer 0 alone, and so on. Rounding does not add up over the layers,
so even in bfloat16 an error of one layer stands out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from ..attention.validate import Batch
from ..blocks.kv_cache import KVCache
from ..sizing import ModelShape
from .batch import StepBatch
from .paged_step import PagedStep

Chunks = list[tuple[int, int, int]]  # one step: (sequence, first token, end)
BLOCK_SIZE = 4
LOGITS = 2**31  # the key of the logits' errors, after those of all layers


class PagedModel(Protocol):
    """The parts of `hf_model.PagedModel` that acceptance uses."""

    model: Any
    device: torch.device
    shape: ModelShape
    windows: dict[int, int | None]
    vocab_size: int
    max_positions: int

    def new_cache(self, num_blocks: int, block_size: int) -> KVCache:
        """Return storage for keys and values."""

    def forward(self, batch: StepBatch, cache: KVCache, backend: str) -> torch.Tensor:
        """Run one step and return the logits."""

    def run_step(self, batch: StepBatch, cache: KVCache, backend: str) -> tuple[torch.Tensor, PagedStep]:
        """Run one step and return the logits and the record of the step."""


@dataclass
class OwnRun:
    """What the model computes by itself.

    Attributes:
        sequences: token ids, an array for each sequence.
        logits: [num_tokens, vocab_size] for each sequence.
        inputs: by layer, the layer's input [num_tokens, hidden_size] for each sequence.
    """

    sequences: list[np.ndarray]
    logits: list[torch.Tensor] = field(default_factory=list)
    inputs: dict[int, list[torch.Tensor]] = field(default_factory=dict)


@torch.inference_mode()
def run_alone(paged: PagedModel, sequences: list[np.ndarray], **positions: torch.Tensor) -> OwnRun:
    """Run each sequence by itself through the model as it is."""
    run = OwnRun(sequences)

    def record(layer: int, hidden: torch.Tensor) -> torch.Tensor:
        run.inputs.setdefault(layer, []).append(hidden[0])
        return hidden

    with layer_inputs(paged, record):
        for tokens in sequences:
            row = torch.from_numpy(tokens.astype(np.int64)).to(paged.device)[None]
            run.logits.append(paged.model(input_ids=row, use_cache=False, **positions).logits[0])
    return run


def run_paged(paged: PagedModel, own: OwnRun, steps: list[Chunks]) -> list[torch.Tensor]:
    """Run the same sequences on block tables, and return the errors of all rows: of each layer's input, and the logits.

    Args:
        paged: the model, with our attention.
        own: the run to compare with.
        steps: the chunks of each step.
    """
    tables = _scattered_tables([len(tokens) for tokens in own.sequences])
    cache = paged.new_cache(int(tables.max()) + 1, BLOCK_SIZE)
    errors: dict[int, list[torch.Tensor]] = {}
    for chunks in steps:

        def compare(layer: int, hidden: torch.Tensor, chunks: Chunks = chunks) -> torch.Tensor:
            if len(own.inputs.get(layer, [])) != len(own.sequences):
                return hidden  # a layer that the model passes through more than once
            expected = _rows(own.inputs[layer], chunks)
            change = expected - _rows(own.inputs[layer - 1], chunks) if layer - 1 in own.inputs else expected
            errors.setdefault(layer, []).append(relative_errors(hidden[0], expected, change))
            return expected[None]

        batch = flat_batch(own.sequences, tables, chunks)
        with layer_inputs(paged, compare):
            logits = paged.forward(batch, cache, "torch")
        expected = _rows(own.logits, chunks)[batch.sample_rows]
        spread = expected - expected.mean(-1, keepdim=True)
        errors.setdefault(LOGITS, []).append(relative_errors(logits, expected, spread))
    return [torch.cat(errors[layer]) for layer in sorted(errors)]


@contextmanager
def layer_inputs(paged: PagedModel, look: Callable[[int, torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """While this is open, look(layer, hidden_states) sees each layer's input and returns the one that it gets.

    The layers are the first list of as many modules as the config says. Without one, nothing is looked at.
    """

    def hook_of(layer: int) -> Callable[..., Any]:
        def hook(module: Any, args: tuple[Any, ...], others: dict[str, Any]) -> Any:
            hidden = args[0] if args else others.get("hidden_states")
            if not isinstance(hidden, torch.Tensor) or hidden.ndim != 3:
                return None
            hidden = look(layer, hidden)
            return ((hidden, *args[1:]), others) if args else (args, others | {"hidden_states": hidden})

        return hook

    lists = (module for module in paged.model.modules() if isinstance(module, torch.nn.ModuleList))
    layers = next((modules for modules in lists if len(modules) == paged.shape.num_layers), ())
    handles = [
        module.register_forward_pre_hook(hook_of(layer), with_kwargs=True)
        for layer, module in enumerate(layers)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def relative_errors(got: torch.Tensor, expected: torch.Tensor, change: torch.Tensor) -> torch.Tensor:
    """Return each row's error as a part of what was computed: [num_rows]. Infinite where one is NaN.

    Args:
        got, expected: [num_rows, size].
        change: [num_rows, size], what the layer added. If that is little, the rounding of the sum is left out.
    """
    if got.shape != expected.shape:
        return torch.full((1,), torch.inf)
    floor = 32 * torch.finfo(expected.dtype).eps * expected.float().norm(dim=-1)
    size = torch.maximum(change.float().norm(dim=-1), floor).clamp_min(1e-30)
    return ((got.float() - expected.float()).norm(dim=-1) / size).nan_to_num(torch.inf).cpu()


def flat_batch(sequences: list[np.ndarray], tables: np.ndarray, chunks: Chunks) -> StepBatch:
    """One step's arrays, with the logits of every token, or of every token but the first in a prefill."""
    positions = [np.arange(start, stop) for _, start, stop in chunks]
    slots = [
        tables[i][where // BLOCK_SIZE] * BLOCK_SIZE + where % BLOCK_SIZE
        for (i, _, _), where in zip(chunks, positions, strict=True)
    ]
    starts = np.cumsum([0] + [len(where) for where in positions])
    return StepBatch(
        token_ids=np.concatenate([sequences[i][start:stop] for i, start, stop in chunks]).astype(np.int32),
        positions=np.concatenate(positions).astype(np.int32),
        slot_mapping=np.concatenate(slots).astype(np.int32),
        sample_rows=np.arange(starts[-1] > len(chunks), starts[-1], dtype=np.int32),
        attention=Batch.of(
            tables[[i for i, _, _ in chunks]], np.array([stop for _, _, stop in chunks]), starts
        ),
    )


def _rows(parts: list[torch.Tensor], chunks: Chunks) -> torch.Tensor:
    """Take the rows of one step out of what was computed for whole sequences."""
    return torch.cat([parts[i][start:stop] for i, start, stop in chunks])


def _scattered_tables(lengths: list[int]) -> np.ndarray:
    """Block tables for sequences of some lengths, their blocks taken in turns and from the end."""
    width = -(-max(lengths) // BLOCK_SIZE)
    return np.arange(width * len(lengths), dtype=np.int32)[::-1].reshape(width, len(lengths)).T.copy()
