"""Acceptance: before a model is served, its logits on block tables are compared with its own (chapter 7).

An engine that replaces a part of a model can compute wrong logits without any error: it may lose a window that only a
mask holds, a position that is not passed on, or a state beside keys and values. So the model runs twice, on the same
weights:

    by itself    each sequence in one forward pass, with the attention it was loaded with
    paged        both sequences in one flat batch, in scattered blocks: two chunks of prefill, then two decodes

    step 0    A A | B            the chunks have different lengths, so that a token's position is not its row;
    step 1    B B | A A A        the sequences are longer than a small window
    step 2    A | B
    step 3    B | A

Every layer gets the input that it had in the model's own run, so rounding does not add up, and one wrong layer shows in
bfloat16 as well. Before that, a trial run of three tokens checks what each layer passes to its attention function, and
reads the windows from the masks (see `masks`).
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch

from .comparison import BLOCK_SIZE, Chunks, OwnRun, PagedModel, flat_batch, run_alone, run_paged
from .masks import window_of
from .unsupported import UnsupportedModel

TRIAL = "paged_ref_trial"  # the attention implementation of the trial run, registered in `hf_model`
# The tensors and numbers that an attention function may be passed; dropout is 0 in evaluation mode.
UNDERSTOOD = ("scaling", "softcap", "dropout", "position_ids", "logits_to_keep")
LENGTHS = (7, 5)  # of the sequences A and B
LONGEST = 64  # a window longer than this is not filled: its length was read from the mask

# The relative errors that rounding explains: three quarters of the rows are below the first number, and the logits of
# every row below the second. (In half precision rounding sends a token to another expert now and then.)
TOLERANCE = {"float32": (1e-3, 1e-3), "float16": (0.01, 0.5), "bfloat16": (0.05, 0.5)}


def accept(paged: PagedModel, own: str, ours: str) -> dict[int, int | None]:
    """Run the model on block tables and by itself; returns the sliding window of each layer.

    Afterwards the model's attention implementation is `ours`; nothing else of it has changed.

    Args:
        paged: the model, which has no windows yet.
        own: the attention implementation that the model was loaded with.
        ours: the one that attends through block tables.

    Raises:
        UnsupportedModel: its logits on block tables would not be its own. The message continues the model's name.
    """
    paged.model.set_attn_implementation(TRIAL)
    if paged.model.config._attn_implementation != TRIAL:
        raise UnsupportedModel(
            "computes attention in its own code, not through transformers' attention interface"
        )
    paged.windows = try_layers(paged)
    sequences = choose_sequences(paged)
    paged.model.set_attn_implementation(own)
    wanted = run_alone(paged, sequences)
    if not all(torch.isfinite(logits).all() for logits in wanted.logits):
        raise UnsupportedModel(
            "has logits that are not finite even by itself, so there is nothing to compare with"
        )
    paged.model.set_attn_implementation(ours)
    errors = run_paged(paged, wanted, ragged_steps(*map(len, sequences)))
    if too_large(errors, paged):
        largest = max(float(rows.max()) for rows in errors)
        reason = find_reason(paged, own, ours, wanted)
        raise UnsupportedModel(
            f"computes other logits on block tables than by itself (relative error {largest:.2g}): {reason}"
        )
    return paged.windows


@torch.inference_mode()
def try_layers(paged: PagedModel) -> dict[int, int | None]:
    """Run three tokens, with `inspect_layer` at every layer; returns the layers' windows.

    Raises:
        UnsupportedModel: a layer is not what the engine computes, or does not call its attention function once.
    """
    batch = flat_batch([np.zeros(3, np.int32)], np.array([[0]]), [(0, 0, 3)])
    _, step = paged.run_step(batch, paged.new_cache(1, BLOCK_SIZE), "torch")
    check_layers(step.layers, paged.shape.num_layers)
    return step.windows


def inspect_layer(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Any,
    others: dict[str, Any],
) -> None:
    """Look at what a layer passes to its attention function in the trial run, and note its window.

    Raises:
        UnsupportedModel: something in it would be lost.
    """
    layer = type(module).__name__
    step = others.get("paged_step")
    if step is None:
        raise UnsupportedModel(f"{layer} does not pass keyword arguments on to its attention function")
    if others.get("s_aux") is not None:
        raise UnsupportedModel(f"{layer} uses attention sinks, which the paged backends do not compute")
    if mask is None and not getattr(module, "is_causal", True):
        raise UnsupportedModel(f"{layer} lets tokens see later ones, which a cache cannot serve")
    for name, what in others.items():
        if isinstance(what, torch.Tensor | float) and name not in UNDERSTOOD:
            raise UnsupportedModel(
                f"{layer} passes {name} to its attention function, and the paged backends do not use it"
            )
    expected = tuple(step.cache.keys.shape[3:])
    for name, rows in (("keys", key), ("values", value)):
        heads = (rows.shape[1], rows.shape[3])
        if heads != expected:
            raise UnsupportedModel(
                f"{layer} has {name} of {heads[0]} heads of {heads[1]}, but the cache has {expected[0]} heads of "
                f"{expected[1]} for keys and values of every layer"
            )
    step.windows[module.layer_idx] = window_of(mask, layer)


def check_layers(seen: list[int], num_layers: int) -> None:
    """Check that every layer attended once.

    Raises:
        UnsupportedModel: a layer did not, or more than once.
    """
    if sorted(seen) == list(range(num_layers)):
        return
    if not seen:
        raise UnsupportedModel(f"calls transformers' attention function in none of its {num_layers} layers")
    if len(seen) > len(set(seen)):
        raise UnsupportedModel(
            f"attends {len(seen)} times per token in {len(set(seen))} layers, "
            "but the cache holds one key and value per layer"
        )
    raise UnsupportedModel(
        f"calls transformers' attention function in {len(seen)} of its {num_layers} layers only: "
        "the others keep another state (convolution, linear attention, state space) or attend to another input"
    )


def choose_sequences(paged: PagedModel) -> list[np.ndarray]:
    """Two sequences of random tokens, none of them special, longer than the shortest window if that is cheap."""
    shortest = min((window for window in paged.windows.values() if window), default=0)
    more = max(0, shortest + 3 - min(LENGTHS)) if shortest <= LONGEST else 0
    special = {
        getattr(paged.model.config, f"{kind}_token_id", None) for kind in ("pad", "bos", "eos", "sep", "cls")
    }
    ordinary = [token for token in range(min(paged.vocab_size, 50_000)) if token not in special]
    random = np.random.default_rng(0)
    return [random.choice(ordinary, min(length + more, paged.max_positions - 1)) for length in LENGTHS]


def ragged_steps(length_a: int, length_b: int) -> list[Chunks]:
    """Prefill of two sequences in two chunks each, then two decodes, in changing order."""
    first_a, first_b = length_a // 2 - 1, length_b // 3
    return [
        [(0, 0, first_a), (1, 0, first_b)],
        [(1, first_b, length_b - 2), (0, first_a, length_a - 2)],
        [(0, length_a - 2, length_a - 1), (1, length_b - 2, length_b - 1)],
        [(1, length_b - 1, length_b), (0, length_a - 1, length_a)],
    ]


def too_large(errors: list[torch.Tensor], paged: PagedModel) -> bool:
    """Return True if rounding does not explain the errors, of which the last are the logits'."""
    typical, worst = TOLERANCE[paged.shape.dtype]
    return any(float(rows.quantile(0.75)) > typical for rows in errors) or float(errors[-1].max()) > worst


def find_reason(paged: PagedModel, own: str, ours: str, wanted: OwnRun) -> str:
    """Return why a model's logits differ, in words, by experiments with the first sequence."""
    tokens = wanted.sequences[0]
    if too_large(run_paged(paged, wanted, [[(0, 0, len(tokens))]]), paged):
        paged.model.set_attn_implementation(own)
        counted = torch.arange(len(tokens), device=paged.device)[None]
        logits = run_alone(paged, [tokens], position_ids=counted).logits[0]
        paged.model.set_attn_implementation(ours)
        if not torch.allclose(logits, wanted.logits[0]):
            return "it does not number positions from 0"
        return "its layers compute something that does not reach the attention function"
    if "position_ids" not in inspect.signature(paged.model.forward).parameters:
        return "it takes no position_ids: it counts positions along the row, which holds many sequences"
    return "it keeps something from token to token beside keys and values, which block tables do not hold"
