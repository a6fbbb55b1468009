"""Sliding windows, read from the masks that a model builds (chapter 7).

A transformers model builds one mask for each kind of layer and hands it to the layer's attention. In a paged batch the
block tables and lengths take the place of the mask, so nothing of it may be lost: a window, above all. The mask is
described by a function of two positions, which can be evaluated anywhere without running the model:

    mask_function(0, 0, query_position, key_position) -> visible or not

    causal                            window of 3                       chunks of 3: refused
    query 5: keys 0 1 2 3 4 5         query 5: keys       3 4 5         query 5: keys       3 4 5
    query 6: keys 0 1 2 3 4 5 6       query 6: keys         4 5 6       query 6: keys             6

So a window of 4,096 tokens is found by a trial run of three.
"""

from __future__ import annotations

from typing import Any

import torch

from .unsupported import UnsupportedModel

FAR = 2**18  # a query at this position sees what its window shows, or everything
UNREADABLE = "builds or changes its attention mask itself, and a paged batch has no mask"


def trial_mask(
    *, q_length: int, kv_length: int, mask_function: Any, device: Any = "cpu", **ignored: Any
) -> torch.Tensor:
    """Build a mask as transformers' mask function, and write on it which window it shows.

    A model may build masks that no layer uses, so the reason to refuse one is written on it, too.

    Returns:
        [1, 1, q_length, kv_length] bool, with the attribute `window`: None, a number of tokens, or an UnsupportedModel.
    """
    try:
        rows = _evaluate(
            mask_function, torch.arange(q_length, device=device), torch.arange(kv_length, device=device)
        )
        window: int | UnsupportedModel | None = find_window(mask_function, device)
    except UnsupportedModel as error:
        window = error
    except Exception:  # noqa: BLE001  the function may be the model's own
        rows = torch.ones(q_length, kv_length, dtype=torch.bool, device=device)
        window = UnsupportedModel("has an attention mask that depends on more than positions")
    mask = rows[None, None].clone()
    mask.window = window  # type: ignore[attr-defined]
    return mask


def window_of(mask: Any, layer: str) -> int | None:
    """Return the window written on a trial mask; a layer without a mask sees everything before it.

    Raises:
        UnsupportedModel: it is neither a causal mask nor a window, or the mask is not one of `trial_mask`.
    """
    if mask is None:
        return None
    if not hasattr(mask, "window"):
        raise UnsupportedModel(f"{layer} {UNREADABLE}")
    window: int | UnsupportedModel | None = mask.window
    if isinstance(window, UnsupportedModel):
        raise window
    return window


def find_window(mask_function: Any, device: Any = "cpu") -> int | None:
    """Return the sliding window of a mask function, None if it is plainly causal.

    Raises:
        UnsupportedModel: it is something else.
    """
    keys = torch.arange(FAR + 2, device=device)
    window = int(_evaluate(mask_function, keys[FAR : FAR + 1], keys).sum())
    # The queries at which a window begins to hide keys, and at which chunks, stripes or holes would show.
    near = {0, 1, 2, window - 1, window, window + 1, 2 * window, FAR // 2, FAR - 1, FAR}
    queries = torch.tensor(sorted(row for row in near if 0 <= row <= FAR), device=device)
    seen, row = _evaluate(mask_function, queries, keys), queries[:, None]
    if bool((seen & (keys > row)).any()):
        raise UnsupportedModel("lets tokens see later ones, which a cache cannot serve")
    if not torch.equal(seen, (keys <= row) & (keys > row - window)):
        raise UnsupportedModel(
            "has an attention mask that is neither causal nor a sliding window; the paged backends compute no other"
        )
    if window <= FAR:
        return window
    if not _evaluate(mask_function, keys[:1] + 2**50, keys[:1]).all():
        raise UnsupportedModel(f"has a sliding window of more than {FAR} tokens, too long to be measured")
    return None


def _evaluate(mask_function: Any, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """The mask's rows at some positions: [len(queries), len(keys)] bool."""
    rows = torch.as_tensor(mask_function(0, 0, queries[:, None], keys[None]))
    return rows.bool().expand(len(queries), len(keys))
