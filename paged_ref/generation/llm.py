"""The engine: prompts in, tokens out, one step at a time (chapter 7).

    request -> scheduler chooses what runs -> blocks -> batch of integers -> model, which writes and reads the cache
            -> the next tokens -> scheduler, until the request ends

`LLM.step` runs this loop once. `generate` and `stream` repeat it until their requests have ended. Requests join and
leave between any two steps: that is continuous batching.

Several threads may use one engine. A lock lets one of them at a time take a step or change the queue; the step
computes the requests of all threads, so each thread's loop only has to wait until its own requests have ended.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import abc, deque
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ..arguments import require_int
from ..attention import choose_backend
from ..attention import load as load_backend
from ..attention import require_kv_dtype as require_backend
from ..blocks.block_pool import BlockPool
from ..blocks.block_table import BlockTable
from ..kv_dtype import require_kv_dtype
from ..model.batch import build_batch
from ..model.compile_loops import compile_loops
from ..model.hf_model import PagedModel
from ..model.pool_size import choose_num_blocks, kv_bytes_setting
from ..sampling.beam_search import BeamSearch
from ..sampling.detokenizer import Detokenizer
from ..sampling.params import SamplingParams
from ..sampling.sampler import BadLogits, choose
from ..scheduling.request import Request, Sequence
from ..scheduling.scheduler import NeverFits, Scheduler
from ..scheduling.step import Chunk, Step
from ..telemetry.metrics import Metrics, TimedBlockPool
from .apply_tokens import extend, wish_for
from .interrupts import uninterrupted
from .outputs import CompletionOutput, RequestOutput, StreamEvent
from .progress_bar import ProgressBar
from .prompts import Prompt, as_prompts, to_token_ids

log = logging.getLogger("paged_ref")
MOST = 2**31 - 1  # block ids and slots are int32


class LLM:
    """A decoder model that serves many requests at once from a paged KV cache.

    Args:
        model: "smollm2-135m", a hub id, a local folder, a loaded transformers causal LM, or a `PagedModel`, which
            several engines may share as long as they do not run at the same time.
        tokenizer: the tokenizer of an already loaded model; other models come with theirs.
        num_blocks: blocks in the pool; None: as many as `kv_bytes` or `memory_fraction` allow (the log shows the
            calculation).
        kv_bytes: memory for keys and values, in bytes or as text like "512MB" or "2GiB". It replaces `memory_fraction`
            and the CPU's limit; the memory that is free still bounds it. None: the environment variable
            PAGED_REF_KV_BYTES, if it is set. With `num_blocks` as well, the blocks must fit in it.
        kv_dtype: data type of cached keys and values: "auto" (the model's), "int8" or "fp8_e4m3" (one byte per element,
            and a scale per token and KV head; see docs/quantised-cache.md).
        block_size: tokens per block.
        memory_fraction: fraction of the device's memory for weights, activations and cache together.
        dtype: "auto", "float32", "float16", "bfloat16"; see `PagedModel.load`.
        device: "auto", "cpu", "cuda", …
        backend: "auto" or a backend of `paged_attention`.
        enable_prefix_caching: let requests reuse cached full blocks if they begin with the same tokens.
        preemption: "recompute" or "swap": free the blocks of a preempted request, or move them to the host.
        num_host_blocks: size of the swap space in blocks; None: as many as the pool has.
        watermark, max_num_seqs, max_num_batched_tokens: see `Scheduler`.

    Raises:
        ValueError: an argument out of its range, an unknown model, or a model whose attention cannot be replaced.
        MemoryError: the cache does not fit.
    """

    def __init__(
        self,
        model: str | Path | PreTrainedModel | PagedModel = "smollm2-135m",
        *,
        tokenizer: Any = None,
        num_blocks: int | None = None,
        block_size: int = 16,
        memory_fraction: float = 0.9,
        kv_bytes: int | str | None = None,
        kv_dtype: str = "auto",
        dtype: str = "auto",
        device: str = "auto",
        backend: str = "auto",
        enable_prefix_caching: bool = True,
        preemption: str = "recompute",
        num_host_blocks: int | None = None,
        watermark: float = 0.01,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 2048,
    ) -> None:
        if preemption not in ("recompute", "swap"):
            raise ValueError(f"preemption = {preemption!r}: it must be 'recompute' or 'swap'")
        require_kv_dtype(kv_dtype)
        if backend != "auto":
            load_backend(backend)
        # Before a model is loaded, which takes seconds.
        block_size = _require_size("block_size", block_size)
        max_num_seqs = _require_size("max_num_seqs", max_num_seqs)
        max_num_batched_tokens = _require_size("max_num_batched_tokens", max_num_batched_tokens)
        num_blocks = None if num_blocks is None else _require_size("num_blocks", num_blocks)
        num_host_blocks = (
            None if num_host_blocks is None else _require_size("num_host_blocks", num_host_blocks)
        )
        _require_slots("num_blocks", num_blocks, block_size)
        _require_slots("num_host_blocks", num_host_blocks, block_size)
        kv_bytes = kv_bytes_setting(kv_bytes)
        if isinstance(model, PagedModel):
            self.model = model
        elif isinstance(model, PreTrainedModel):
            self.model = PagedModel(model, tokenizer)
        else:
            self.model = PagedModel.load(model, dtype, device)
        self.backend = choose_backend(next(self.model.model.parameters())) if backend == "auto" else backend
        load_backend(self.backend)
        require_backend(kv_dtype, self.backend, self.model.device)
        if self.backend == "numba":
            for stored in dict.fromkeys(("auto", kv_dtype)):
                compile_loops(stored)
        num_blocks = choose_num_blocks(
            self.model,
            block_size,
            memory_fraction,
            max_num_seqs,
            max_num_batched_tokens,
            kv_bytes,
            num_blocks,
            kv_dtype,
        )
        # Raises MemoryError if there is no room.
        self.cache = self.model.new_cache(num_blocks, block_size, kv_dtype=kv_dtype)
        self.pool = TimedBlockPool(num_blocks, block_size, enable_prefix_caching)
        host_pool = self.host_cache = None
        if preemption == "swap":
            self.host_cache = self.model.new_cache(num_host_blocks or num_blocks, block_size, True, kv_dtype)
            host_pool = BlockPool(self.host_cache.num_blocks, block_size)
        self.scheduler = Scheduler(self.pool, max_num_seqs, max_num_batched_tokens, watermark, host_pool)
        self.metrics = Metrics(self.scheduler)
        self._num_requests = 0
        self._lock = threading.RLock()  # re-entrant: a step aborts requests

    # ---- the ways to run requests

    def generate(
        self,
        prompts: Prompt | abc.Sequence[Prompt],
        sampling: SamplingParams | abc.Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Run prompts to completion and return the results in the order of the prompts.

        Args:
            prompts: one prompt or a list of prompts. A prompt is a string, a list of token ids, or a list of chat
                messages ({"role": …, "content": …}).
            sampling: one `SamplingParams` for all prompts, or one for each.

        Raises:
            ValueError: an invalid prompt, named by its index; no prompt is run then.
            FloatingPointError: the model returned NaN; the message names the request.
        """
        requests: list[Request] = []
        try:
            self._add_all(requests, prompts, sampling)
            with ProgressBar(requests) as progress:
                while self._advance(requests):
                    progress.update(self.metrics.generated_tokens)
            return [self.output(request) for request in requests]
        finally:
            self.abort(*requests)

    def stream(
        self,
        prompts: Prompt | abc.Sequence[Prompt],
        sampling: SamplingParams | abc.Sequence[SamplingParams] | None = None,
    ) -> Iterator[StreamEvent]:
        """Run prompts like `generate`, but yield every token as it is generated.

        Closing the iterator, or dropping the last reference to it, aborts the requests that still run.
        """
        events = self._stream(prompts, sampling)
        next(events)  # run to the first, empty yield: an invalid prompt raises here, and closing now aborts
        return events

    def _stream(self, prompts: Any, sampling: Any) -> Iterator[Any]:
        requests: list[Request] = []
        try:
            self._add_all(requests, prompts, sampling, with_events=True)
            yield None
            running = True
            while running:
                running = self._advance(requests)  # False: another thread's step made the last events
                for i, request in enumerate(requests):
                    while request.events:
                        yield StreamEvent(i, *request.events.popleft())
        finally:
            self.abort(*requests)

    def add_request(
        self, prompt: Prompt, sampling: SamplingParams | None = None, priority: int = 0
    ) -> Request:
        """Queue a request; `step` will run it. Lower `priority` numbers run first.

        Raises:
            ValueError: the prompt is empty or too long, has a token id outside the vocabulary, or never fits the pool.
        """
        with self._lock:
            request = self._new_request(prompt, sampling or SamplingParams(), priority)
            with uninterrupted():
                self._add(request)
        return request

    def output(self, request: Request) -> RequestOutput:
        """Return the request's output so far."""
        with self._lock:
            return RequestOutput.of(request)

    def abort(self, *requests: Request) -> None:
        """End requests immediately and free their blocks. Harmless for requests that have ended."""
        with self._lock, uninterrupted():
            for request in requests:
                if request.sequences:
                    self.scheduler.abort(request)
                    request.finish_time = time.perf_counter()

    def reset_prefix_cache(self) -> int:
        """Forget all cached keys and values, and return the number of blocks that held some.

        Call it when the model's weights were changed in place, by training or by merging an adapter: cached keys and
        values are those of the old weights, and nothing else tells the engine. Requests that run are recomputed from
        their first token, so that every later token comes from the new weights. (Weights that are packed for the CPU
        are copies: change those of a `PagedModel` loaded with `pack_weights=False`, or make a new one.)
        """
        with self._lock, uninterrupted():
            self.scheduler.recompute_all()
            return self.pool.forget_all()

    # ---- one step

    def step(self) -> Step:
        """Compute one token of every decoding sequence, and chunks of prompts. Returns the step's work.

        If the model fails or is interrupted, every running request frees its blocks, waits, and is recomputed when
        `step` is called again.

        Raises:
            FloatingPointError: the model returned NaN for some requests; these are aborted.
            RuntimeError: requests wait, but none can be computed.
        """
        with self._lock:
            step = self._step()
            if not step.chunks and self.scheduler.has_work:
                raise RuntimeError(
                    f"the step computed nothing, but {len(self.scheduler.waiting)} requests wait and "
                    f"{len(self.scheduler.running)} run, with {self.pool.num_free} of {self.pool.num_blocks} blocks "
                    "free: the pool or the scheduler was changed from outside"
                )
            return step

    def _advance(self, requests: abc.Sequence[Request]) -> bool:
        """Take a step if one of these requests still runs; return False if all had ended.

        Another thread's step may have ended them, or aborted them with an error, which is raised here.
        """
        with self._lock:
            running = any(request.sequences for request in requests)
            if running:
                if not self.scheduler.has_work:
                    raise RuntimeError("requests still run, but the scheduler does not have them")
                try:
                    self.step()
                except FloatingPointError:
                    if not any(request.error for request in requests):
                        return True  # requests of others, who get the error from their own loop
                    raise
        for request in requests:
            if request.error is not None:
                raise request.error
        return running

    def _step(self) -> Step:
        step = Step()
        sampled: list[Chunk] = []
        try:
            with uninterrupted():
                step = self.scheduler.schedule()
            self._move_blocks(step)
            if step.chunks:
                sampled = [chunk for chunk in step.chunks if chunk.samples]
                logits = self.model.forward(build_batch(step), self.cache, self.backend)
                choices = choose(logits, [wish_for(chunk) for chunk in sampled]) if sampled else []
                with uninterrupted():
                    self.scheduler.complete(step)
                    self.metrics.observe(step)
                    self.metrics.generated_tokens += extend(self.scheduler, sampled, choices)
        except BaseException as error:
            with uninterrupted():
                rows = error.rows if isinstance(error, BadLogits) else []
                damaged = {sampled[row].request for row in rows}
                self._abort_damaged(damaged)
                self.scheduler.recover(step)
            if damaged:
                numbers = sorted(request.request_id for request in damaged)
                aborted = FloatingPointError(f"requests {numbers} were aborted: {error}")
                for request in damaged:
                    request.error = aborted
                raise aborted from error
            raise
        return step

    def _move_blocks(self, step: Step) -> None:
        if self.host_cache is not None:
            self.host_cache.load_blocks(self.cache, step.swaps_out)
            self.cache.load_blocks(self.host_cache, step.swaps_in)
        self.cache.copy_blocks(step.copies)

    def _abort_damaged(self, requests: Collection[Request]) -> None:
        """Abort requests whose keys and values may be damaged, and remove their blocks from the prefix cache."""
        for request in requests:
            for sequence in request.sequences:
                for block in sequence.table.blocks:
                    self.pool.forget(block)
        self.abort(*requests)

    # ---- requests

    def _add_all(
        self,
        requests: list[Request],
        prompts: Prompt | abc.Sequence[Prompt],
        sampling: SamplingParams | abc.Sequence[SamplingParams] | None,
        with_events: bool = False,
    ) -> None:
        """Add a request for each prompt, to the scheduler and to `requests`."""
        prompts = as_prompts(prompts)
        each = (
            list(sampling)
            if isinstance(sampling, abc.Sequence)
            else [sampling or SamplingParams()] * len(prompts)
        )
        if len(each) != len(prompts):
            raise ValueError(
                f"{len(each)} SamplingParams for {len(prompts)} prompts: pass one, or one per prompt"
            )
        for i, prompt in enumerate(prompts):
            try:
                with self._lock:
                    request = self._new_request(prompt, each[i])
                    request.events = deque() if with_events else None
                    with uninterrupted():
                        self._add(request)
                        requests.append(request)
            except ValueError as error:
                raise (NeverFits if isinstance(error, NeverFits) else ValueError)(
                    f"prompt {i}: {error}"
                ) from error

    def _add(self, request: Request) -> None:
        self.scheduler.add(request)
        self.metrics.arrive(request)

    def _new_request(self, prompt: Prompt, sampling: SamplingParams, priority: int = 0) -> Request:
        if not isinstance(sampling, SamplingParams):
            raise ValueError(f"sampling is {sampling!r:.60}: it must be a SamplingParams")
        priority = require_int("priority", priority, -MOST)
        token_ids = to_token_ids(prompt, self.model.tokenizer, self.model.vocab_size)
        room = self.model.max_positions - len(token_ids)
        if room < 1:
            raise ValueError(
                f"the prompt has {len(token_ids)} tokens, but the model has {self.model.max_positions} positions and "
                "needs one for a new token"
            )
        if sampling.stop and self.model.tokenizer is None:
            raise ValueError(
                f"stop = {sampling.stop}: the model came without a tokenizer, so there is no text to stop at"
            )
        detokenizer = Detokenizer(self.model.tokenizer, sampling.stop)
        sequence = Sequence(list(token_ids), len(token_ids), BlockTable(self.pool), detokenizer=detokenizer)
        self._num_requests += 1
        request = Request(
            self._num_requests, token_ids, sampling, min(sampling.max_tokens, room), [sequence], priority
        )
        request.seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        request.end_token_ids = frozenset(() if sampling.ignore_eos else self.model.eos_token_ids)
        if sampling.beam_width:
            search: BeamSearch[Sequence] = BeamSearch(
                sampling.beam_width, request.max_new_tokens, request.end_token_ids
            )
            if search.num_candidates > self.model.vocab_size:
                raise ValueError(
                    f"beam_width = {sampling.beam_width} is too large for a vocabulary of {self.model.vocab_size}"
                )
            request.beam_search = search
        return request


def _require_size(name: str, value: object) -> int:
    """Return a size as an int; raise ValueError unless it is a whole number from 1 to MOST."""
    size = require_int(name, value, 1)
    if size > MOST:
        raise ValueError(f"{name} = {value}: it must be at most {MOST}")
    return size


def _require_slots(name: str, num_blocks: int | None, block_size: int) -> None:
    """Raise ValueError unless every slot of so many blocks is an int32."""
    if num_blocks is not None and num_blocks * block_size > MOST:
        raise ValueError(
            f"{name} = {num_blocks} with block_size = {block_size}: that is {num_blocks * block_size} slots, but slots "
            f"are int32, so there can be at most {MOST}, here {MOST // block_size} blocks"
        )


__all__ = ["LLM", "CompletionOutput", "RequestOutput", "StreamEvent"]
