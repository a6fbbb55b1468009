"""Windows are read from mask functions; masks that are anything else are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import masking_utils as hf

from paged_ref.model.masks import FAR, find_window, trial_mask, window_of
from paged_ref.model.unsupported import UnsupportedModel


@pytest.mark.parametrize("window", [1, 2, 3, 7, 512, 4096, FAR])
def test_windows(window: int) -> None:
    assert find_window(hf.sliding_window_causal_mask_function(window)) == window


def test_a_causal_mask_has_no_window() -> None:
    assert find_window(hf.causal_mask_function) is None


def every_other(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return (key <= query) & ((query - key) % 2 == 0)


def sinks_and_window(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return (key <= query) & ((key > query - 8) | (key < 2))


def prefix(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return (key <= query) | (key < 4)


OTHERS = {
    "every other": (every_other, "neither causal nor a sliding window"),
    "first tokens and a window": (sinks_and_window, "neither causal nor a sliding window"),
    "chunks": (
        hf.chunked_causal_mask_function(8, torch.zeros(1, dtype=int)),
        "neither causal nor a sliding window",
    ),
    "chunks of 100": (hf.chunked_causal_mask_function(100, torch.zeros(1, dtype=int)), "neither causal nor"),
    "a longer window": (hf.sliding_window_causal_mask_function(FAR + 5), "more than 262144 tokens"),
    "prefix": (prefix, "lets tokens see later ones"),
    "both ways": (hf.bidirectional_mask_function, "lets tokens see later ones"),
    "both ways in a window": (hf.sliding_window_bidirectional_mask_function(4), "lets tokens see later ones"),
    "a table": (
        hf.packed_sequence_mask_function(torch.zeros(1, 5, dtype=int)),
        "depends on more than positions",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_masks_are_refused_by_the_layer_that_uses_them(name: str) -> None:
    mask_function, reason = OTHERS[name]
    mask = trial_mask(q_length=5, kv_length=5, mask_function=mask_function)
    with pytest.raises(UnsupportedModel, match=reason):
        window_of(mask, "Layer")


def test_a_mask_that_a_layer_changed_is_refused() -> None:
    mask = trial_mask(q_length=5, kv_length=5, mask_function=hf.sliding_window_causal_mask_function(3))
    assert mask[0, 0].sum(-1).tolist() == [1, 2, 3, 3, 3]
    assert window_of(mask, "Layer") == 3 and window_of(None, "Layer") is None
    for changed in (mask & True, mask[..., :4], mask.float()):
        with pytest.raises(UnsupportedModel, match="Layer builds or changes its attention mask itself"):
            window_of(changed, "Layer")
