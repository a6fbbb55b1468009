"""A transformers model with its attention replaced by ours (chapter 7).

The model's code and weights stay as they are. transformers asks a registry for the attention function named
in the model's config; we register one. It is called once per layer with queries, keys and values after the
rotary embedding:

    reference (dense) model                      paged model
    input_ids [batch, longest], padded           input_ids [1, num_tokens], flat, no padding
    HF cache: a tensor per layer and sequence    our KVCache: blocks, shared by all sequences
    mask [batch, 1, longest, longest]            none: lengths and tables define what is visible

The data of a step (plan, slots, storage) is passed as a keyword argument through the model's layers, not as a
global.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
)

from .. import attention
from ..blocks.kv_cache import KVCache, write_rows
from ..sizing import ModelShape
from ..weights import load_arguments, resolve
from .batch import StepBatch
from .onednn import multiplies_bfloat16
from .paged_step import PagedStep

try:
    from . import cpu
except ImportError:  # the fast path is optional: without its folder the model runs as transformers wrote it
    cpu = None  # type: ignore[assignment]

NAME = "paged_ref"


def paged_attention_forward(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    paged_step: PagedStep | None = None,
    **ignored: Any,
) -> tuple[torch.Tensor, None]:
    """Write this step's keys and values by slot, then attend through the block table. This function is registered.

    query [1, num_heads, num_tokens, head_dim], key and value [1, num_kv_heads, num_tokens, head_dim];
    returns [1, num_tokens, num_heads, head_dim] and no weights. Writing comes first, because a token sees itself.
    """
    if paged_step is None:
        raise UnsupportedModel(
            f"{type(module).__name__} does not pass keyword arguments on to its attention function"
        )
    if ignored.get("s_aux") is not None:
        raise UnsupportedModel(
            f"{type(module).__name__} uses attention sinks, which the paged backends do not compute"
        )
    if not getattr(module, "is_causal", True):
        raise UnsupportedModel(
            f"{type(module).__name__} lets tokens see later ones, which a cache cannot serve"
        )
    rows, new_keys, new_values = (tensor[0].transpose(0, 1) for tensor in (query, key, value))

    def write(key_cache: torch.Tensor, value_cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        write_rows(new_keys, key_cache, slots)
        write_rows(new_values, value_cache, slots)
        return rows

    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    window = sliding_window or getattr(module, "sliding_window", None)
    attended = paged_step.write_then_attend(module.layer_idx, write, scale, window, softcap)
    return attended.unsqueeze(0), None


def no_mask(*args: Any, **kwargs: Any) -> None:
    """Build no mask. This is registered as transformers' mask function."""


AttentionInterface.register(NAME, paged_attention_forward)
AttentionMaskInterface.register(NAME, no_mask)


class UnsupportedModel(ValueError):
    """The model's attention cannot be replaced through transformers' attention interface."""


class PagedModel:
    """A decoder that runs on flat batches and block tables.

    Args:
        model: any transformers causal LM. Its attention is replaced in place; `restore` undoes this.
        tokenizer: its tokenizer, or None.

    Raises:
        UnsupportedModel: a layer bypasses our attention function, found by a trial run of three tokens.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.device, self.dtype = model.device, model.dtype
        try:
            self.shape = ModelShape.from_config(model.config, dtype=str(model.dtype).removeprefix("torch."))
        except ValueError as error:
            raise UnsupportedModel(f"{type(model).__name__} has no KV cache to page: {error}") from error
        self.vocab_size: int = model.config.vocab_size
        self.max_positions: int = getattr(model.config, "max_position_embeddings", 2**31 - 1)
        self.eos_token_ids = _as_set(
            model.generation_config.eos_token_id if model.generation_config else None
        )
        self.eos_token_ids |= _as_set(model.config.eos_token_id)
        current = model.config._attn_implementation
        self._dense = model._paged_ref_dense if current == NAME else current
        model._paged_ref_dense = self._dense  # so that a second PagedModel of this model can restore it too
        self._swap_attention()

    @classmethod
    def load(
        cls,
        model: str | Path,
        dtype: str = "auto",
        device: str = "auto",
        pack_weights: bool = True,
        fuse_layers: bool = True,
    ) -> PagedModel:
        """Load a model and its tokenizer.

        Args:
            model: "smollm2-135m", a hub id, or a local folder.
            dtype: "float32", "float16", "bfloat16", or "auto": the checkpoint's own on a GPU, and on a CPU that has
                bfloat16 instructions; float32 on other CPUs.
            device: a torch device, or "auto": the first CUDA GPU, else the CPU.
            pack_weights: store the weights in the layout of the CPU's matmuls (`packed_weights`); `restore` undoes it.
            fuse_layers: with packed weights, run Llama's layers with fewer calls (`fused_layers`), bypassing the
                modules inside them; `restore` undoes it.

        Call `restore` before you change, copy, convert or save a packed or fused model: adapters and hooks would be
        ignored, and torch cannot copy, convert or save packed weights.

        Raises:
            ValueError: an unknown model, dtype or device, or a device that this machine does not have.
        """
        device = choose_device(device)
        choose_dtype(dtype, device)  # before the weights are read
        source = resolve(str(model))
        which = load_arguments(source)
        loaded = AutoModelForCausalLM.from_pretrained(source, dtype=choose_dtype(dtype, device), **which)
        loaded.to(torch.device(device))  # type: ignore[arg-type]
        try:
            tokenizer = AutoTokenizer.from_pretrained(source, **which)
        except (OSError, ValueError):
            tokenizer = None  # a model without a tokenizer takes and returns token ids
        if pack_weights and cpu is not None:
            cpu.optimize(loaded, fuse_layers)
        return cls(loaded, tokenizer)

    def new_cache(self, num_blocks: int, block_size: int, host: bool = False) -> KVCache:
        """Return new storage for this model's keys and values, on its device or, for swaps, on the host."""
        if not host:
            return KVCache(self.shape, num_blocks, block_size, self.device)
        return KVCache(self.shape, num_blocks, block_size, "cpu", pin_memory=self.device.type == "cuda")

    @torch.inference_mode()
    def forward(self, batch: StepBatch, cache: KVCache, backend: str = "auto") -> torch.Tensor:
        """Run one step: write its keys and values and return the logits [len(sample_rows), vocab_size]."""
        return self._forward(batch, cache, backend)[0]

    def restore(self) -> PreTrainedModel:
        """Restore the model's own attention, layers and plain weights, and return it."""
        if cpu is not None:
            cpu.restore(self.model)
        self.model.set_attn_implementation(self._dense)
        return self.model

    def _forward(self, batch: StepBatch, cache: KVCache, backend: str) -> tuple[torch.Tensor, PagedStep]:
        if self.model.config._attn_implementation == self._dense:
            raise RuntimeError(
                "the model's own attention was restored (`restore`): make a new PagedModel of it"
            )
        if backend == "auto":
            backend = attention.choose_backend(cache.keys)
        plan = attention.plan(batch.attention, cache.block_size, backend, self.device)
        _check_slots(batch, cache)
        step = PagedStep(cache, plan, self._tensor(batch.slot_mapping))
        result = self.model(
            input_ids=self._tensor(batch.token_ids)[None],
            position_ids=self._tensor(batch.positions)[None],
            use_cache=False,
            logits_to_keep=self._tensor(batch.sample_rows),
            paged_step=step,
        )
        return result.logits[0], step

    def _tensor(self, array: Any) -> torch.Tensor:
        return torch.from_numpy(array.astype("int64")).to(self.device)

    def _swap_attention(self) -> None:
        kind = type(self.model).__name__
        reason = _why_not(self.model.config)
        if reason is not None:
            raise UnsupportedModel(f"{kind} {reason}")
        try:
            self.model.set_attn_implementation(NAME)
            layers = self._trial()
        except UnsupportedModel:
            self.restore()
            raise
        except Exception as error:
            self.restore()
            raise UnsupportedModel(f"the attention of {kind} cannot be replaced: {error}") from error
        if layers != list(range(self.shape.num_layers)):
            self.restore()
            raise UnsupportedModel(
                f"the attention of {kind} cannot be replaced: only {len(set(layers))} of its "
                f"{self.shape.num_layers} layers called the registered function"
            )

    @torch.inference_mode()
    def _trial(self) -> list[int]:
        """Run three tokens through a small cache and return the indices of the layers that called our attention."""
        import numpy as np

        three = np.arange(3, dtype=np.int32)
        batch = StepBatch(
            token_ids=np.zeros(3, dtype=np.int32),
            positions=three,
            slot_mapping=three,
            sample_rows=three[2:],
            attention=attention.Batch.of(np.array([[0]]), np.array([3]), np.array([0, 3])),
        )
        _, step = self._forward(batch, self.new_cache(1, 4), "torch")
        return step.layers


def _check_slots(batch: StepBatch, cache: KVCache) -> None:
    """Check that each token has a slot of the cache: a compiled loop would write to out-of-bounds memory.

    Raises:
        IndexError: a slot is missing or outside the cache. Nothing has been written then.
    """
    slots, num_slots = batch.slot_mapping, cache.num_blocks * cache.block_size
    if len(slots) != len(batch.token_ids):
        raise IndexError(f"slot_mapping has {len(slots)} entries for {len(batch.token_ids)} tokens")
    wrong = ((slots < 0) | (slots >= num_slots)).nonzero()[0]
    if wrong.size:
        raise IndexError(
            f"slot_mapping[{wrong[0]}] = {slots[wrong[0]]}, but the cache has slots 0 to {num_slots - 1}"
        )


def _why_not(config: Any) -> str | None:
    """Return the feature in a model's config that this engine would compute wrongly, as text; None if none is found."""
    if config.is_encoder_decoder:
        return "is an encoder-decoder; only decoders have the cache this engine pages"
    if getattr(config, "attention_chunk_size", None):
        return "attends within chunks, a mask that the paged backends do not compute"
    if getattr(config, "use_bidirectional_attention", False):
        return "lets tokens see later ones, which a cache cannot serve"
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = {str(part.get("rope_type")) for part in (rope, *rope.values()) if isinstance(part, dict)}
    for kind in sorted(kinds & {"dynamic", "longrope"}):
        return (
            f"rescales positions by the longest sequence of a batch ({kind!r} rotary embedding), "
            "so one request would change the results of another"
        )
    return None


def choose_device(device: str) -> str:
    """Return the device that `device` selects on this machine; see `PagedModel.load`.

    Raises:
        ValueError: this machine has no such device.
    """
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ValueError(f"device = {device!r} cannot be used here: {str(error).splitlines()[0]}") from error
    return device


def choose_dtype(dtype: str, device: str) -> Any:
    """Return the dtype that `dtype` selects on a device; see `PagedModel.load`.

    Raises:
        ValueError: an unknown dtype.
    """
    if dtype == "auto":
        if device != "cpu":
            return "auto"
        return torch.bfloat16 if multiplies_bfloat16() else torch.float32
    if dtype not in ("float32", "float16", "bfloat16"):
        raise ValueError(f"dtype = {dtype!r}: one of auto, float32, float16, bfloat16")
    return getattr(torch, dtype)


def _as_set(token_ids: int | list[int] | None) -> set[int]:
    if token_ids is None:
        return set()
    return set(token_ids) if isinstance(token_ids, list) else {token_ids}
