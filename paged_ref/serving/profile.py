"""Where the time of a decode step goes: `python -m paged_ref bench serve --profile` (chapter 7).

Each part is timed by a clock around the real call, in real steps of the engine:

    products       the model's linear layers, each one's call
    attention      writing this step's keys and values, and attending through the table
    bookkeeping    scheduler, batch of integers, sampling, text: everything outside the forward pass
    the rest       norms, rotary embedding, activations, residuals, and Python between them: transformers' code

Beside it stands the limit: the same products alone, one after the other. No step can be shorter without another model,
another precision or another machine.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import nn
from transformers import AttentionInterface

from ..engine import LLM
from ..hf_model import NAME, PagedModel, paged_attention_forward
from ..sampling import SamplingParams
from .workloads import Workload

PARTS = ("products", "attention", "bookkeeping", "the rest")


@dataclass(frozen=True)
class Profile:
    """Milliseconds of a decode step, by part (medians), and of its matrix products alone."""

    dtype: str
    num_seqs: int
    parts: dict[str, float]
    limit: float

    @property
    def step(self) -> float:
        """The parts together."""
        return sum(self.parts.values())

    @property
    def ours(self) -> float:
        """The share of attention, gather and bookkeeping: what this project's code takes."""
        return (self.parts["attention"] + self.parts["bookkeeping"]) / self.step


def profile(model: PagedModel, workload: Workload, dtype: str, steps: int = 48) -> Profile:
    """Run the workload's first sequences together, and time the parts of their decode steps."""
    prompts = workload.prompts[: workload.seqs_at_once]
    llm = LLM(model, num_blocks=workload.most_slots // 16, max_num_seqs=len(prompts))
    seconds: defaultdict[str, float] = defaultdict(float)
    found: list[dict[str, float]] = []
    for prompt in prompts:
        llm.add_request(prompt, SamplingParams(max_tokens=steps + 4, ignore_eos=True))
    with ExitStack() as clocks:
        for linear in _linears(model):
            clocks.enter_context(_timed(linear, "forward", "products", seconds))
        clocks.enter_context(_timed_attention(seconds))
        clocks.enter_context(_timed(model, "forward", "forward", seconds))
        while llm.scheduler.has_work:
            seconds.clear()
            started = time.perf_counter()
            step = llm.step()
            whole = time.perf_counter() - started
            if len(step.chunks) == len(prompts) == step.num_tokens:  # all decode
                rest = seconds["forward"] - seconds["products"] - seconds["attention"]
                found.append(
                    {
                        "products": seconds["products"],
                        "attention": seconds["attention"],
                        "bookkeeping": whole - seconds["forward"],
                        "the rest": rest,
                    }
                )
    parts = {part: 1e3 * statistics.median(one[part] for one in found) for part in PARTS}
    return Profile(dtype, len(prompts), parts, 1e3 * _products_alone(model, len(prompts)))


def _linears(model: PagedModel) -> Iterator[nn.Linear]:
    return (module for module in model.model.modules() if isinstance(module, nn.Linear))


def _timed(owner: Any, name: str, part: str, seconds: defaultdict[str, float]) -> Any:
    """Replace a method of an object by itself with a clock around it, until the context ends."""
    call: Callable[..., Any] = getattr(owner, name)

    def timed(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        result = call(*args, **kwargs)
        seconds[part] += time.perf_counter() - started
        return result

    return mock.patch.object(owner, name, timed)


@contextmanager
def _timed_attention(seconds: defaultdict[str, float]) -> Iterator[None]:
    """The function that is registered with transformers, under its own name, with a clock around it."""

    def timed(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        result = paged_attention_forward(*args, **kwargs)
        seconds["attention"] += time.perf_counter() - started
        return result

    AttentionInterface.register(NAME, timed)
    try:
        yield
    finally:
        AttentionInterface.register(NAME, paged_attention_forward)


@torch.inference_mode()
def _products_alone(model: PagedModel, rows: int, repeats: int = 12) -> float:
    """Seconds of all linear layers on `rows` rows, each once: the median of several rounds after one to warm up."""
    linears = list(_linears(model))
    inputs = {
        size: torch.randn(rows, size, dtype=model.dtype, device=model.device)
        for size in {linear.in_features for linear in linears}
    }
    found = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        for linear in linears:
            linear(inputs[linear.in_features])
        found.append(time.perf_counter() - started)
    return statistics.median(found[1:])
