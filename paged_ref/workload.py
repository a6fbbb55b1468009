"""Workloads for the simulator: request lengths and arrival times (chapters 1 and 6).

Lengths have the means of the vLLM paper's two traces and a log-normal distribution: most are short, some are many times
longer. Arrivals are a Poisson process: at a rate of r requests per second, the gaps between them are exponential with
mean 1 / r. The seed determines everything.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Trace:
    """Mean prompt and output lengths in tokens, and `spread`, the standard deviation of the log of the lengths."""

    name: str
    prompt_tokens: float
    output_tokens: float
    spread: float = 0.8


TRACES = {
    "sharegpt": Trace("sharegpt", 161.31, 337.99),
    "alpaca": Trace("alpaca", 19.31, 58.45),
}


@dataclass(frozen=True)
class Job:
    """One request: its arrival time in seconds, its prompt length, and how many tokens it will generate.

    Attributes:
        priority: as in `Request`: lower numbers run first.
        shared_tokens: length of the beginning that all jobs' prompts have in common (a system prompt).
    """

    seconds: float
    prompt_tokens: int
    output_tokens: int
    priority: int = 0
    shared_tokens: int = 0


def make_workload(
    trace: Trace,
    num_requests: int,
    rate: float,
    seed: int = 0,
    max_tokens: int = 2048,
    urgent: float = 0.0,
    shared_tokens: int = 0,
) -> list[Job]:
    """Return jobs in order of arrival.

    Args:
        rate: requests per second; `inf`: all at once.
        max_tokens: limit for prompt and output together; longer requests are cut.
        urgent: fraction of the requests with priority -1; the others have priority 0.
        shared_tokens: length of a system prompt in front of every prompt.

    Raises:
        ValueError: an argument out of its range.
    """
    if num_requests < 0 or not rate > 0 or not 0 <= urgent <= 1 or not 0 <= shared_tokens <= max_tokens - 2:
        raise ValueError(
            f"num_requests = {num_requests}, rate = {rate}, urgent = {urgent}, shared_tokens = {shared_tokens}: these "
            "must be 0 or more, above 0, a fraction from 0 to 1, and from 0 to max_tokens - 2"
        )
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate, num_requests))
    prompts = _lengths(rng, trace.prompt_tokens, trace.spread, num_requests)
    outputs = _lengths(rng, trace.output_tokens, trace.spread, num_requests)
    prompts = np.minimum(prompts + shared_tokens, max_tokens - 1)
    outputs = np.minimum(outputs, max_tokens - prompts)
    priorities = np.where(rng.random(num_requests) < urgent, -1, 0)
    rows = zip(arrivals.tolist(), prompts.tolist(), outputs.tolist(), priorities.tolist(), strict=True)
    return [
        Job(seconds, prompt, output, priority, shared_tokens) for seconds, prompt, output, priority in rows
    ]


def _lengths(rng: np.random.Generator, mean: float, spread: float, n: int) -> np.ndarray:
    """Return `n` integers, 1 or more, with about this mean; the log-normal's mean is exp(mu + spread ** 2 / 2)."""
    values = rng.lognormal(np.log(mean) - spread**2 / 2, spread, n)
    return np.maximum(1, np.rint(values)).astype(np.int64)
