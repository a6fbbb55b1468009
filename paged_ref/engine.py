"""The engine: prompts in, tokens out, one step at a time (chapter 7).

    request -> scheduler decides who runs -> blocks -> batch of integers -> model, which writes and reads the cache
            -> the next tokens -> scheduler, until a request ends

`LLM.step` is that line once. `generate` and `stream` repeat it until their requests have ended. Requests join and
leave between any two steps: that is continuous batching.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence as ListOf
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from .attention import BACKENDS
from .batch import build_batch
from .block_pool import BlockPool
from .block_table import BlockTable
from .hf_model import PagedModel
from .memory import choose_num_blocks
from .metrics import Metrics
from .prompts import Prompt, as_prompts, to_token_ids
from .request import Request, Sequence
from .sampling import SamplingParams, greedy
from .scheduler import Chunk, Scheduler, Step
from .text import Detokenizer

log = logging.getLogger("paged_ref")


@dataclass
class CompletionOutput:
    """One continuation. `finish_reason`: "stop" (end-of-sequence token), "length", "abort"."""

    index: int
    token_ids: list[int]
    text: str
    finish_reason: str
    cumulative_logprob: float


@dataclass
class RequestOutput:
    """A finished request: the prompt as the model saw it, and its continuations."""

    request_id: int
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput] = field(default_factory=list)


@dataclass(frozen=True)
class StreamEvent:
    """One new token of one sequence: `prompt_index` says of which prompt. `text` may be empty (half a character)."""

    prompt_index: int
    index: int
    token_id: int
    text: str
    finish_reason: str | None


class LLM:
    """A decoder model that serves many requests at once from a paged KV cache.

    Args:
        model: "smollm2-135m", a hub id, a local folder, a loaded transformers causal LM, or a `PagedModel`, which
            several engines may share as long as they do not run at the same time.
        tokenizer: for a loaded model; otherwise it comes with the model.
        num_blocks: blocks in the pool; None: as many as `memory_fraction` allows (the log says how that was computed).
        block_size: tokens per block.
        memory_fraction: share of the device's memory for weights, activations and cache together.
        dtype: "auto", "float32", "float16", "bfloat16"; see `PagedModel.load`.
        device: "auto", "cpu", "cuda", …
        backend: of `paged_attention`.
        enable_prefix_caching: let requests reuse full blocks with the same beginning.
        preemption: "recompute" or "swap": what becomes of the blocks of a request that has to make room.
        num_host_blocks: size of the swap space in blocks; default: as many as the pool has.
        watermark, max_num_seqs, max_num_batched_tokens: see `Scheduler`.

    Raises:
        ValueError: an argument out of its range, an unknown model, or one whose attention cannot be swapped.
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
        if backend != "auto" and backend not in BACKENDS:
            raise ValueError(f"unknown backend {backend!r}: one of auto, {', '.join(BACKENDS)}")
        if num_blocks is not None:
            BlockPool(num_blocks, block_size)  # a wrong size is to be told before a model is loaded
        if isinstance(model, PagedModel):
            self.model = model
        elif isinstance(model, PreTrainedModel):
            self.model = PagedModel(model, tokenizer)
        else:
            self.model = PagedModel.load(model, dtype, device)
        self.backend = backend
        if num_blocks is None:
            num_blocks = choose_num_blocks(self.model, block_size, memory_fraction, max_num_seqs, max_num_batched_tokens)
        self.pool = BlockPool(num_blocks, block_size, enable_prefix_caching)
        self.cache = self.model.new_cache(num_blocks, block_size)
        host_pool = self.host_cache = None
        if preemption == "swap":
            host_pool = BlockPool(num_host_blocks or num_blocks, block_size)
            self.host_cache = self.model.new_cache(host_pool.num_blocks, block_size, host=True)
        self.scheduler = Scheduler(self.pool, max_num_seqs, max_num_batched_tokens, watermark, host_pool)
        self.metrics = Metrics()
        self._num_requests = 0
        self._detokenizers: dict[Sequence, Detokenizer] = {}

    # ---- the three ways to run requests

    def generate(
        self, prompts: Prompt | ListOf[Prompt], sampling: SamplingParams | ListOf[SamplingParams] | None = None
    ) -> list[RequestOutput]:
        """Run prompts to their end; results in the order of the prompts.

        Args:
            prompts: one prompt or a list of them. A prompt is a string, a list of token ids, or a list of chat
                messages ({"role": …, "content": …}).
            sampling: one `SamplingParams` for all, or one for each prompt.

        Raises:
            ValueError: a bad prompt, named by its place; then no prompt is run.
        """
        requests = self._add_all(prompts, sampling)
        try:
            while any(request.sequences for request in requests):
                self.step()
        finally:
            outputs = [self._output(request) for request in requests]
            self._forget(requests)
        return outputs

    def stream(
        self, prompts: Prompt | ListOf[Prompt], sampling: SamplingParams | ListOf[SamplingParams] | None = None
    ) -> Iterator[StreamEvent]:
        """Like `generate`, but yields every token as it is made. Closing the iterator aborts what still runs."""
        requests = self._add_all(prompts, sampling)
        return self._stream(requests)

    def _stream(self, requests: list[Request]) -> Iterator[StreamEvent]:
        index_of = {request: i for i, request in enumerate(requests)}
        try:
            while any(request.sequences for request in requests):
                for request, event in self._step()[1]:
                    if request in index_of:
                        yield StreamEvent(index_of[request], *event)
        finally:
            self._forget(requests)

    def add_request(self, prompt: Prompt, sampling: SamplingParams | None = None, priority: int = 0) -> Request:
        """Let one request wait; `step` will run it. Lower `priority` numbers go first.

        Raises:
            ValueError: a prompt that is empty, too long, has a token id outside the vocabulary, or never fits the pool.
        """
        request = self._new_request(prompt, sampling or SamplingParams(), priority)
        self.scheduler.add(request)
        return request

    def abort(self, request: Request) -> None:
        """End a request at once and free what it holds. Harmless if it has ended."""
        self.scheduler.abort(request)
        self._forget([request])

    def step(self) -> Step:
        """Compute one token of every running sequence, and chunks of prompts. Returns what was done.

        If the model fails or is interrupted, every running request gives its blocks back, waits, and is recomputed
        when `step` is called again.
        """
        return self._step()[0]

    def _step(self) -> tuple[Step, list[tuple[Request, tuple[int, int, str, str | None]]]]:
        step = self.scheduler.schedule()
        try:
            self._move_blocks(step)
            events = self._compute(step) if step.chunks else []
        except BaseException:
            self.scheduler.recover(step)
            raise
        return step, events

    # ---- one step

    def _move_blocks(self, step: Step) -> None:
        if self.host_cache is not None:
            self.host_cache.load_blocks(self.cache, step.swaps_out)
            self.cache.load_blocks(self.host_cache, step.swaps_in)
        self.cache.copy_blocks(step.copies)

    def _compute(self, step: Step) -> list[tuple[Request, tuple[int, int, str, str | None]]]:
        logits = self.model.forward(build_batch(step), self.cache, self.backend)
        draws = greedy(logits)
        self.scheduler.complete(step)
        self.metrics.observe(step, self.pool, len(self.scheduler.running))
        sampled = [chunk for chunk in step.chunks if chunk.samples]
        self.metrics.generated_tokens += len(sampled)
        return [
            (chunk.request, self._take(chunk, draw.token_id, draw.logprob))
            for chunk, draw in zip(sampled, draws, strict=True)
        ]

    def _take(self, chunk: Chunk, token_id: int, logprob: float) -> tuple[int, int, str, str | None]:
        """Give a sequence its next token, and end it if that was its last."""
        request, sequence = chunk.request, chunk.sequence
        sequence.token_ids.append(token_id)
        sequence.cumulative_logprob += logprob
        detokenizer = self._detokenizers.setdefault(sequence, Detokenizer(self.model.tokenizer))
        text = detokenizer.add(token_id)
        reason = None
        if token_id in self.model.eos_token_ids and not request.sampling.ignore_eos:
            reason = "stop"
        elif sequence.num_new_tokens >= request.max_new_tokens:
            reason = "length"
        if reason is not None:
            text += detokenizer.finish()
            self.scheduler.finish(request, sequence, reason)
        return sequence.index, token_id, text, reason

    # ---- requests

    def _add_all(
        self, prompts: Prompt | ListOf[Prompt], sampling: SamplingParams | ListOf[SamplingParams] | None
    ) -> list[Request]:
        prompts = as_prompts(prompts)
        each = [sampling or SamplingParams()] * len(prompts)
        if isinstance(sampling, (list, tuple)):
            if len(sampling) != len(prompts):
                raise ValueError(f"{len(sampling)} SamplingParams for {len(prompts)} prompts: give one, or one for each")
            each = list(sampling)
        requests: list[Request] = []
        try:
            for i, prompt in enumerate(prompts):
                try:
                    requests.append(self.add_request(prompt, each[i]))
                except ValueError as error:
                    raise type(error)(f"prompt {i}: {error}") from error
        except BaseException:
            self._forget(requests)
            raise
        return requests

    def _new_request(self, prompt: Prompt, sampling: SamplingParams, priority: int) -> Request:
        token_ids = to_token_ids(prompt, self.model.tokenizer, self.model.vocab_size)
        room = self.model.max_positions - len(token_ids)
        if room < 1:
            raise ValueError(
                f"{len(token_ids)} tokens, but the model has {self.model.max_positions} positions and needs one for "
                "a new token"
            )
        sequence = Sequence(list(token_ids), len(token_ids), BlockTable(self.pool))
        self._num_requests += 1
        return Request(
            self._num_requests, token_ids, sampling, min(sampling.max_tokens, room), [sequence], priority=priority
        )

    def _output(self, request: Request) -> RequestOutput:
        output = RequestOutput(request.number, request.prompt_token_ids)
        for sequence in sorted(request.finished, key=lambda s: s.index):
            text = self._detokenizers[sequence].text if sequence in self._detokenizers else ""
            reason = sequence.finish_reason or "abort"
            output.outputs.append(
                CompletionOutput(sequence.index, sequence.output_token_ids, text, reason, sequence.cumulative_logprob)
            )
        return output

    def _forget(self, requests: list[Request]) -> None:
        """Abort what still runs, and drop what was kept for its text."""
        for request in requests:
            self.scheduler.abort(request)
            for sequence in request.finished:
                with suppress(KeyError):
                    del self._detokenizers[sequence]


__all__ = ["LLM", "CompletionOutput", "RequestOutput", "StreamEvent"]
