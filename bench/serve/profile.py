"""Profile a decode step: `python3 course.py bench serve --profile` (chapter 7).

Each part is measured by a timer around the real calls, in real steps of the engine:

    matmuls        the calls of the model's linear layers
    attention      writing this step's keys and values, and attending through the block table; in fused layers also the
                   rotary embedding, which shares a loop with the writing
    bookkeeping    scheduler, batch of integers, sampling, text: everything outside the forward pass
    the rest       norms, rotary embedding, activations, residuals, and Python between them

The limit is the time of the same matmuls alone, one after the other. No step can be faster with this model, precision
and machine.
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

from paged_ref.generation.llm import LLM
from paged_ref.model.cpu.fused_layers import FusedLayer, unfuse
from paged_ref.model.cpu.packed_weights import PackedProduct, pack, packed_part, unpack
from paged_ref.model.hf_model import NAME, PagedModel, paged_attention_forward
from paged_ref.sampling.params import SamplingParams

from .workloads import Workload

PARTS = ("matmuls", "attention", "bookkeeping", "the rest")


@dataclass(frozen=True)
class Profile:
    """Milliseconds of a decode step, by part (medians), and of its matmuls alone (the fastest round).

    how: "plain weights", "packed weights" or "fused layers", which are packed too.
    """

    dtype: str
    how: str
    num_seqs: int
    parts: dict[str, float]
    limit: float

    @property
    def step(self) -> float:
        """The sum of the parts."""
        return sum(self.parts.values())

    @property
    def ours(self) -> float:
        """The fraction of the step spent in this project's code: attention and bookkeeping."""
        return (self.parts["attention"] + self.parts["bookkeeping"]) / self.step


def profile_stages(model: PagedModel, workload: Workload, dtype: str, steps: int = 48) -> list[Profile]:
    """Profile a model as it is, then with its layers unfused, then with its weights unpacked; return slowest first.

    The model is left unfused and unpacked.
    """
    found = [profile(model, workload, dtype, steps)]
    if found[-1].how == "fused layers":
        unfuse(model.model)
        pack(model.model)
        found.append(profile(model, workload, dtype, steps))
    if found[-1].how == "packed weights":
        unpack(model.model)
        found.append(profile(model, workload, dtype, steps))
    return found[::-1]


def profile(model: PagedModel, workload: Workload, dtype: str, steps: int = 48) -> Profile:
    """Run the workload's first sequences together and time the parts of their decode steps."""
    prompts = workload.prompts[: workload.seqs_at_once]
    llm = LLM(model, num_blocks=workload.most_slots // 16, max_num_seqs=len(prompts))
    seconds: defaultdict[str, float] = defaultdict(float)
    found: list[dict[str, float]] = []
    for prompt in prompts:
        llm.add_request(prompt, SamplingParams(max_tokens=steps + 4, ignore_eos=True))
    with ExitStack() as clocks:
        for owner, name in (
            (PackedProduct, "__call__"),
            *((one, "forward") for one in _plain_linears(model)),
        ):
            clocks.enter_context(_timed(owner, name, "matmuls", seconds))
        clocks.enter_context(_timed(FusedLayer, "attend", "attention", seconds))
        clocks.enter_context(_timed_attention(seconds))
        clocks.enter_context(_timed(model, "forward", "forward", seconds))
        while llm.scheduler.has_work:
            seconds.clear()
            started = time.perf_counter()
            step = llm.step()
            whole = time.perf_counter() - started
            if len(step.chunks) == len(prompts) == step.num_tokens:  # all decode
                rest = seconds["forward"] - seconds["matmuls"] - seconds["attention"]
                found.append(
                    {
                        "matmuls": seconds["matmuls"],
                        "attention": seconds["attention"],
                        "bookkeeping": whole - seconds["forward"],
                        "the rest": rest,
                    }
                )
    parts = {part: 1e3 * statistics.median(one[part] for one in found) for part in PARTS}
    return Profile(dtype, tuning(model), len(prompts), parts, 1e3 * _matmuls_alone(model, len(prompts)))


def tuning(model: PagedModel) -> str:
    """Return how a model is optimised for a CPU; see `Profile.how`."""
    if any(isinstance(vars(module).get("forward"), FusedLayer) for module in model.model.modules()):
        return "fused layers"
    return "packed weights" if _packed_matmuls(model) else "plain weights"


def _packed_matmuls(model: PagedModel) -> list[PackedProduct]:
    """Return each packed matmul once; several linear layers may share it."""
    parts = map(packed_part, model.model.modules())
    return list({id(part.product): part.product for part in parts if part is not None}.values())


def _plain_linears(model: PagedModel) -> list[nn.Linear]:
    return [m for m in model.model.modules() if isinstance(m, nn.Linear) and packed_part(m) is None]


def _timed(owner: Any, name: str, part: str, seconds: defaultdict[str, float]) -> Any:
    """Wrap a method of an object or a class in a timer until the context ends."""
    call: Callable[..., Any] = getattr(owner, name)

    def timed(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        result = call(*args, **kwargs)
        seconds[part] += time.perf_counter() - started
        return result

    return mock.patch.object(owner, name, timed)


@contextmanager
def _timed_attention(seconds: defaultdict[str, float]) -> Iterator[None]:
    """Wrap the attention function that is registered with transformers in a timer, under the same name."""

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
def _matmuls_alone(model: PagedModel, rows: int, repeats: int = 24) -> float:
    """Return the seconds of all matmuls with `rows` rows, each once; as a limit, the fastest of several rounds."""
    matmuls: list[tuple[Callable[..., Any], int]] = [
        (one, one.weight.shape[1]) for one in _packed_matmuls(model)
    ]
    matmuls += [(one, one.in_features) for one in _plain_linears(model)]
    inputs = {
        size: torch.randn(rows, size, dtype=model.dtype, device=model.device)
        for size in {s for _, s in matmuls}
    }
    found = []
    for _ in range(repeats):
        started = time.perf_counter()
        for matmul, size in matmuls:
            matmul(inputs[size])
        found.append(time.perf_counter() - started)
    return min(found)
