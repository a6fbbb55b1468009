"""Three ways to serve the same requests with the same weights (chapter 7).

    ours               a flat batch, block tables, requests join and leave between any two steps
    generate           transformers' padded batch: the prompts are padded to the longest, and all rows run until the
                       last one has ended. If the requests exceed one batch, batches run one after the other
    generate_batch     transformers' own continuous batching over a paged cache

Each returns its tokens, the time of each token, and the bytes of its KV cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from transformers import (
    ContinuousBatchingConfig,
    GenerationConfig,
    StoppingCriteria,
    StoppingCriteriaList,
)

from paged_ref.generation.llm import LLM
from paged_ref.model.hf_model import PagedModel
from paged_ref.sampling.params import SamplingParams

from .workloads import Workload


@dataclass(frozen=True)
class Run:
    """One workload on one server.

    Attributes:
        seconds: from the arrival of all requests to the last token.
        tokens, times: for each sequence, in the order of (request, sample): the new token ids, and the time of each in
            seconds after the arrival.
        cache_bytes: the most bytes that the server's KV cache held, or reserved if it reserves them at the start.
    """

    seconds: float
    tokens: list[list[int]]
    times: list[list[float]]
    cache_bytes: int

    @property
    def throughput(self) -> float:
        """Tokens per second."""
        return sum(map(len, self.tokens)) / self.seconds

    @property
    def first(self) -> list[float]:
        """Time to the first token of each sequence, in seconds."""
        return [times[0] for times in self.times]

    @property
    def gaps(self) -> list[float]:
        """Inter-token latencies of all sequences, in seconds."""
        return [b - a for times in self.times for a, b in pairwise(times)]


Server = Callable[[Workload], Run]


def serve_ours(model: PagedModel, enable_prefix_caching: bool = True) -> Server:
    """Return our engine as a server. Each run uses a new engine, so that no cached prefix is left from earlier runs."""

    def run(workload: Workload) -> Run:
        at_once = workload.seqs_at_once
        llm = LLM(
            model,
            num_blocks=workload.most_slots // 16,
            enable_prefix_caching=enable_prefix_caching,
            max_num_seqs=at_once,
        )
        sampling = [
            SamplingParams(
                max_tokens=n, ignore_eos=True, n=workload.num_samples, seed=0,
                temperature=1.0 if workload.num_samples > 1 else 0.0,
            )
            for n in workload.new_tokens
        ]  # fmt: skip
        tokens: list[list[int]] = [[] for _ in range(workload.num_samples * len(workload.prompts))]
        times: list[list[float]] = [[] for _ in tokens]
        started = time.perf_counter()
        for event in llm.stream(workload.prompts, sampling):
            row = event.prompt_index * workload.num_samples + event.index
            tokens[row].append(event.token_id)
            times[row].append(time.perf_counter() - started)
        seconds = time.perf_counter() - started
        per_block = llm.cache.num_bytes // llm.cache.num_blocks
        return Run(seconds, tokens, times, llm.metrics.peak_used_blocks * per_block)

    return run


def serve_generate(model: Any) -> Server:
    """Return transformers' `generate` on padded batches as a server."""

    def run(workload: Workload) -> Run:
        per_batch = workload.seqs_at_once // workload.num_samples
        tokens: list[list[int]] = []
        times: list[list[float]] = []
        most = 0
        started = time.perf_counter()
        for i in range(0, len(workload.prompts), per_batch):
            prompts, lengths = workload.prompts[i : i + per_batch], workload.new_tokens[i : i + per_batch]
            width = max(map(len, prompts))
            ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
            mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
            clock = _Clock(started)
            output: Any = model.generate(
                ids.to(model.device), attention_mask=mask.to(model.device),
                stopping_criteria=StoppingCriteriaList([clock]),
                generation_config=_config(workload, max(lengths)), return_dict_in_generate=True,
            )  # fmt: skip
            rows = output.sequences[:, width:].tolist()
            for row, length in zip(
                rows, [n for n in lengths for _ in range(workload.num_samples)], strict=True
            ):
                tokens.append(row[:length])
                times.append(clock.times[:length])
            cache = output.past_key_values
            most = max(
                most, sum(part.nbytes for layer in cache.layers for part in (layer.keys, layer.values))
            )
        return Run(time.perf_counter() - started, tokens, times, most)

    return run


def serve_generate_batch(model: Any) -> Server:
    """Return transformers' continuous batching as a server; its cache has room for all sequences."""

    def run(workload: Workload) -> Run:
        settings = ContinuousBatchingConfig(
            page_size=256, num_blocks=workload.most_slots // 256 + 2, max_batch_tokens=2048,
            max_requests_per_batch=workload.seqs_at_once, allow_block_sharing=True,
        )  # fmt: skip
        config = _config(workload, max(workload.new_tokens))
        names: list[str] = []
        results: dict[str, Any] = {}
        with model.continuous_batching_context_manager(
            generation_config=config, continuous_batching_config=settings, timeout=60
        ) as manager:
            started = time.perf_counter()
            for i, (prompt, length) in enumerate(zip(workload.prompts, workload.new_tokens, strict=True)):
                name = str(i)
                names += [name, *(f"{name}__child#{child}" for child in range(workload.num_samples - 1))]
                manager.add_request(
                    prompt, name, max_new_tokens=length, record_timestamps=True, eos_token_id=-1
                )
            while len(results) < len(names):
                result = manager.get_result(timeout=1)
                if result is not None and result.is_finished():
                    if result.error:
                        raise RuntimeError(f"generate_batch: {result.error}")
                    results[result.request_id] = result
                elif result is None and not manager.is_running():
                    raise RuntimeError("generate_batch stopped before all requests ended")
            seconds = time.perf_counter() - started
            cache_bytes = _paged_cache_bytes(manager)
        times = [[t - started for t in results[name].timestamps] for name in names]
        return Run(seconds, [results[name].generated_tokens for name in names], times, cache_bytes)

    return run


class _Clock(StoppingCriteria):
    """Records when each step of `generate` has chosen its tokens; never stops it."""

    def __init__(self, started: float) -> None:
        self.started = started
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> Any:
        self.times.append(time.perf_counter() - self.started)
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def _config(workload: Workload, new_tokens: int) -> GenerationConfig:
    sampled = workload.num_samples > 1
    how: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0} if sampled else {}
    return GenerationConfig(
        max_new_tokens=new_tokens, do_sample=sampled, num_return_sequences=workload.num_samples, eos_token_id=-1,
        pad_token_id=0, **how,
    )  # fmt: skip


def _paged_cache_bytes(manager: Any) -> int:
    """Return the bytes that transformers' paged cache has reserved, in one tensor."""
    nbytes: int = manager.batch_processor.cache.cache_tensor.nbytes
    return nbytes
