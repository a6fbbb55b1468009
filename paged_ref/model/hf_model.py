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
from ..blocks.kv_cache import KVCache, LayerCache
from ..blocks.quantised_cache import make_cache
from ..kv_dtype import with_kv_dtype
from ..sizing import ModelShape
from ..weights import load_arguments, resolve
from . import acceptance
from .batch import StepBatch
from .masks import UNREADABLE, trial_mask
from .onednn import multiplies_bfloat16
from .paged_step import PagedStep
from .unsupported import UnsupportedModel, reason_in_config

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
    softcap: float | None = None,
    paged_step: PagedStep | None = None,
    **ignored: Any,
) -> tuple[torch.Tensor, None]:
    """Write this step's keys and values by slot, then attend through the block table. This function is registered.

    query [1, num_heads, num_tokens, head_dim], key and value [1, num_kv_heads, num_tokens, head_dim];
    returns [1, num_tokens, num_heads, head_dim] and no weights. Writing comes first, because a token sees itself.
    """
    if paged_step is None:
        raise RuntimeError(
            "this model's attention reads a paged cache: call restore() first, and use the model then"
        )
    if attention_mask is not None:
        raise UnsupportedModel(f"{type(module).__name__} {UNREADABLE}")
    rows, new_keys, new_values = (tensor[0].transpose(0, 1) for tensor in (query, key, value))

    def write(cache: LayerCache, slots: torch.Tensor) -> torch.Tensor:
        cache.write(new_keys, new_values, slots)
        return rows

    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    attended = paged_step.write_then_attend(module.layer_idx, write, scale, softcap)
    return attended.unsqueeze(0), None


def no_mask(*args: Any, **kwargs: Any) -> None:
    """Build no mask. This is registered as transformers' mask function."""


def trial_attention_forward(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Check what a layer passes to its attention function, then attend. This is registered for the trial run."""
    acceptance.inspect_layer(module, query, key, value, attention_mask, others)
    return paged_attention_forward(module, query, key, value, None, **others)


AttentionInterface.register(NAME, paged_attention_forward)
AttentionMaskInterface.register(NAME, no_mask)
AttentionInterface.register(acceptance.TRIAL, trial_attention_forward)
AttentionMaskInterface.register(acceptance.TRIAL, trial_mask)


class PagedModel:
    """A decoder that runs on flat batches and block tables.

    Args:
        model: any transformers causal LM. Its attention is replaced in place; `restore` undoes this.
        tokenizer: its tokenizer, or None.

    The model is accepted only if its logits on block tables are its own: a short run compares them (`acceptance`).
    A refused model is left as it was, except that packed weights and fused layers are undone.

    Attributes:
        shape: layers, KV heads, head size and dtype.
        windows: the sliding window of each layer, None for a layer without one.

    Raises:
        UnsupportedModel: the engine would compute other logits than the model does; the message gives the reason.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.device, self.dtype = model.device, model.dtype
        current = model.config._attn_implementation
        own: Any = model._paged_ref_dense if current == NAME else current
        self._dense: str = own
        in_training = [module for module in model.modules() if module.training]
        self.windows: dict[int, int | None] = {}
        try:
            model.eval()
            for config in (model.config, model.config.get_text_config()):
                reason = reason_in_config(config)
                if reason is not None:
                    raise UnsupportedModel(reason)
            self._read_config()
            self.windows = acceptance.accept(self, self._dense, NAME)
        except BaseException as error:
            self.restore()
            for module in in_training:
                module.training = True
            if isinstance(error, Exception) and not isinstance(error, MemoryError):
                raise _refusal(model, error) from error
            raise
        model._paged_ref_dense = own  # so that a second PagedModel of this model can restore it too

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

    def new_cache(
        self, num_blocks: int, block_size: int, host: bool = False, kv_dtype: str = "auto"
    ) -> KVCache:
        """Return new storage for this model's keys and values, on its device or, for swaps, on the host.

        kv_dtype: "auto" (the model's dtype), "int8" or "fp8_e4m3".
        """
        shape = with_kv_dtype(self.shape, kv_dtype)
        if not host:
            return make_cache(shape, num_blocks, block_size, self.device)
        return make_cache(shape, num_blocks, block_size, "cpu", pin_memory=self.device.type == "cuda")

    @torch.inference_mode()
    def forward(self, batch: StepBatch, cache: KVCache, backend: str = "auto") -> torch.Tensor:
        """Run one step: write its keys and values and return the logits [len(sample_rows), vocab_size]."""
        return self.run_step(batch, cache, backend)[0]

    def restore(self) -> PreTrainedModel:
        """Restore the model's own attention, layers and plain weights, and return it."""
        if cpu is not None:
            cpu.restore(self.model)
        self.model.set_attn_implementation(self._dense)
        return self.model

    def run_step(self, batch: StepBatch, cache: KVCache, backend: str) -> tuple[torch.Tensor, PagedStep]:
        """Run one step as `forward` does; return the logits, and the step with its record of layers and windows."""
        if self.model.config._attn_implementation == self._dense:
            raise RuntimeError(
                "the model's own attention was restored (`restore`): make a new PagedModel of it"
            )
        if backend == "auto":
            backend = attention.choose_backend(cache.keys)
        plan = attention.plan(batch.attention, cache.block_size, backend, self.device)
        _check_slots(batch, cache)
        step = PagedStep(cache, plan, self._tensor(batch.slot_mapping), self.windows)
        sample_rows = self._tensor(batch.sample_rows)
        result = self.model(
            input_ids=self._tensor(batch.token_ids)[None],
            position_ids=self._tensor(batch.positions)[None],
            use_cache=False,
            logits_to_keep=sample_rows,
            paged_step=step,
        )
        logits = result.logits[0]
        if len(logits) != len(sample_rows):  # a model that knows no `logits_to_keep`
            logits = logits[sample_rows]
        return logits, step

    def _tensor(self, array: Any) -> torch.Tensor:
        return torch.from_numpy(array.astype("int64")).to(self.device)

    def _read_config(self) -> None:
        config = self.model.config.get_text_config()
        try:
            self.shape = ModelShape.from_config(config, dtype=str(self.dtype).removeprefix("torch."))
        except ValueError as error:
            raise UnsupportedModel(f"has no KV cache to page: {error}") from error
        self.vocab_size: int = config.vocab_size
        self.max_positions: int = getattr(config, "max_position_embeddings", 2**31 - 1)
        self.eos_token_ids = _as_set(getattr(config, "eos_token_id", None))
        if self.model.generation_config:
            self.eos_token_ids |= _as_set(self.model.generation_config.eos_token_id)


def _refusal(model: PreTrainedModel, error: Exception) -> UnsupportedModel:
    """Return the error that names the model and the reason."""
    kind = type(model).__name__
    if isinstance(error, UnsupportedModel):
        return UnsupportedModel(f"{kind} {error}")
    return UnsupportedModel(f"the attention of {kind} cannot be replaced: {error}")


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
