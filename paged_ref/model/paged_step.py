"""One forward pass over a paged cache: write the new keys and values, then attend (chapter 7).

Whatever computes a layer, the unmodified model or the CPU fast path, does both through `PagedStep.write_then_attend`,
so the order is decided in one place: a token must find its own key and value in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from ..attention import AttentionPlan
from ..blocks.kv_cache import KVCache, LayerCache


@dataclass
class PagedStep:
    """Everything the attention of one forward pass needs. It travels through the model as a keyword argument.

    Attributes:
        cache: keys and values of all layers.
        plan: the attention backend's plan for this batch.
        slots: [num_tokens] int64, where each token's key and value are written.
        windows: the sliding window of each layer that has one, by the layer's index.
        layers: indices of the layers that have attended so far.
    """

    cache: KVCache
    plan: AttentionPlan
    slots: torch.Tensor
    windows: dict[int, int | None] = field(default_factory=dict)
    layers: list[int] = field(default_factory=list)

    def write_then_attend(
        self,
        layer: int,
        write: Callable[[LayerCache, torch.Tensor], torch.Tensor],
        scale: float,
        softcap: float | None = None,
    ) -> torch.Tensor:
        """Write one layer's new keys and values, then attend through the table.

        Args:
            layer: the layer's index.
            write: called as write(cache, slots) with the layer's caches; writes this step's rows into them and returns
                the queries [num_tokens, num_heads, head_dim].
            scale, softcap: see `paged_attention`.

        Returns:
            [num_tokens, num_heads, head_dim].
        """
        self.layers.append(layer)
        cache = self.cache.layer(layer)
        query = write(cache, self.slots)
        keys, values, *scales = cache
        attended: torch.Tensor = self.plan.run(
            query, keys, values, scale, self.windows.get(layer), softcap, *scales
        )
        return attended
