"""Quantised inputs for the grid, and the bound that quantisation may not exceed (see docs/quantised-cache.md).

`quantise_inputs` turns a case of the grid into a quantised one: unused slots then hold garbage elements with a scale of
NaN, so reading one of them, or the scale of another slot, shows.

A backend is held to two numbers. Against the oracle on the dequantised caches, its error is its own, as on the plain
grid. Against the oracle on the caches before quantisation, the error stays below `error_bound`.

The bound, for one query token q and one head. Rounding changes element d of key j by at most e_jd, so score j changes
by at most eps_j = |scale| * sum_d |q_d| e_jd; a softcap does not increase that. Let eps be the largest eps_j. Each
weight then changes by a factor between exp(-2 eps) and exp(2 eps), and the factors leave the sum of the weights 1:

    |sum_j (w'_j - w_j) v_j|  =  |sum_j w_j (w'_j / w_j - 1) (v_j - o)|  <=  (exp(2 eps) - 1) sum_j w_j |v_j - o|

where o is the exact output. The values' own rounding adds at most the largest e_jd of the values in view.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..blocks.quantise import quantise
from ..kv_dtype import LARGEST, QUANTISED
from .grid import Inputs
from .oracle import oracle


@dataclass(frozen=True)
class QuantisedInputs:
    """A case's arguments with quantised caches.

    Attributes:
        plain: the inputs before quantisation.
        key_cache, value_cache: elements [num_blocks, block_size, num_kv_heads, head_dim].
        key_scale, value_scale: [num_blocks, block_size, num_kv_heads] float32.
    """

    plain: Inputs
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    key_scale: torch.Tensor
    value_scale: torch.Tensor

    def arguments(self) -> tuple[Any, ...]:
        """Return the positional arguments of `paged_attention`."""
        query, _, _, *integers = self.plain.arguments()
        return (query, self.key_cache, self.value_cache, *integers)

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments of `paged_attention`."""
        return {**self.plain.options, "key_scale": self.key_scale, "value_scale": self.value_scale}

    def expected(self) -> np.ndarray:
        """Return the oracle's result on what the caches hold, float64."""
        return oracle(*self.arguments(), **self.options)


def quantise_inputs(inputs: Inputs, kv_dtype: str) -> QuantisedInputs:
    """Quantise a case's caches, in their own memory layout."""
    dtype = getattr(torch, QUANTISED[kv_dtype][0])
    found = []
    for cache in (inputs.key_cache, inputs.value_cache):
        elements, scale = quantise(cache, dtype)
        unused = scale.isnan()
        elements = torch.where(unused[..., None], torch.full_like(elements.float(), 77.0), elements.float())
        # The strides of the plain cache: a strided case stays strided.
        found += [torch.empty_strided(cache.shape, cache.stride(), dtype=dtype).copy_(elements), scale]
    return QuantisedInputs(inputs, found[0], found[2], found[1], found[3])


def element_bound(cache: np.ndarray, kv_dtype: str) -> np.ndarray:
    """Return the largest error of each element of a cache [..., head_dim], float64.

    int8: half a step. fp8_e4m3: 1/16 of the element, or half a step of the smallest numbers. Both with some float32
    rounding of the scale and of the product.
    """
    step = np.abs(cache).max(-1, keepdims=True) / LARGEST[QUANTISED[kv_dtype][0]]
    rounding = step / 2 if kv_dtype == "int8" else np.maximum(np.abs(cache) / 16, step / 1024)
    return rounding + 2.0**-21 * np.abs(cache)


def error_bound(inputs: Inputs, kv_dtype: str) -> np.ndarray:
    """Return the largest |quantised result - exact result| that exact arithmetic allows: [num_tokens, num_heads, d]."""
    query, keys, values = (x.double().numpy() for x in inputs.arguments()[:3])
    tables, lens = inputs.block_tables.numpy(), inputs.seq_lens.tolist()
    starts = range(len(lens) + 1) if inputs.query_start_loc is None else inputs.query_start_loc.tolist()
    window, softcap = inputs.options.get("sliding_window"), inputs.options.get("softcap")
    size, group, scale = keys.shape[1], query.shape[1] // keys.shape[2], query.shape[2] ** -0.5
    bound = np.full(query.shape, np.nan)
    for i, length in enumerate(lens):
        position = np.arange(length)
        k, v = (cache[tables[i][position // size], position % size] for cache in (keys, values))
        k_error, v_error = element_bound(k, kv_dtype), element_bound(v, kv_dtype)
        for token in range(starts[i], starts[i + 1]):
            last = length - (starts[i + 1] - token) + 1
            seen = slice(max(0, last - window) if window else 0, last)
            for head in range(query.shape[1]):
                q, h = query[token, head], head // group
                score = scale * (k[seen, h] @ q)
                score = softcap * np.tanh(score / softcap) if softcap else score
                weights = np.exp(score - score.max())
                weights /= weights.sum()
                eps = scale * (k_error[seen, h] @ np.abs(q)).max()
                spread = weights @ np.abs(v[seen, h] - weights @ v[seen, h])
                bound[token, head] = np.expm1(2 * eps) * spread + v_error[seen, h].max(0)
    return bound
