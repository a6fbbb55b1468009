"""The metrics in Prometheus' text exposition format, for a monitoring system (chapter 6).

Metrics that vLLM exports have vLLM's names, so that a dashboard made for vLLM shows this engine, too;
`vllm:num_requests_swapped` is from vLLM's older engine, which swapped. vLLM counts prefix-cache queries and hits
in tokens, so our block counts are converted. Metrics that vLLM does not export are named `paged_ref:...`. A
counter's name ends in `_total`; a histogram's buckets are cumulative.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .histogram import Histogram


@dataclass(frozen=True)
class Readings:
    """The exported values: an engine's metrics at one moment.

    Attributes:
        snapshot: `Metrics.snapshot()`.
        block_size: tokens per block; vLLM counts prefix-cache hits in tokens.
        finished: number of sequences that ended, by reason.
        time_to_first_token, inter_token_latency, allocation: in seconds; allocation is None if the pool is not timed.
    """

    snapshot: Mapping[str, float | None]
    block_size: int
    finished: Mapping[str, int]
    time_to_first_token: Histogram
    inter_token_latency: Histogram
    allocation: Histogram | None


def exposition(readings: Readings) -> str:
    """Return all metrics in Prometheus' text format, each with its HELP and TYPE line."""
    now = {name: value or 0 for name, value in readings.snapshot.items()}
    size = readings.block_size
    swaps = {'direction="out"': now["swapped_out_blocks"], 'direction="in"': now["swapped_in_blocks"]}
    reasons = {f'finished_reason="{reason}"': n for reason, n in sorted(readings.finished.items())}
    lines = [
        *_gauge("vllm:num_requests_running", "Requests in the running batch", now["running"]),
        *_gauge("vllm:num_requests_waiting", "Requests waiting to be run", now["waiting"] - now["swapped"]),
        *_gauge(
            "vllm:num_requests_swapped", "Preempted requests whose blocks are on the host", now["swapped"]
        ),
        *_gauge(
            "vllm:kv_cache_usage_perc", "Used fraction of the KV-cache blocks, 0 to 1", now["utilisation"]
        ),
        *_gauge(
            "paged_ref:free_blocks", "Blocks without a holder, including cached ones", now["free_blocks"]
        ),
        *_gauge("paged_ref:cached_blocks", "Blocks that the prefix cache can find", now["cached_blocks"]),
        *_gauge(
            "paged_ref:wasted_slots", "Slots without a token at the ends of last blocks", now["wasted_slots"]
        ),
        *_counter(
            "vllm:prefix_cache_queries",
            "Tokens looked up in the prefix cache",
            now["block_queries"] * size,
        ),
        *_counter("vllm:prefix_cache_hits", "Tokens found in the prefix cache", now["block_hits"] * size),
        *_counter("vllm:num_preemptions", "Requests preempted while they ran", now["preemptions"]),
        *_counter("vllm:prompt_tokens", "Tokens of prefilled prompts", now["prompt_tokens"]),
        *_counter("vllm:generation_tokens", "Tokens generated", now["generated_tokens"]),
        *_counter("vllm:request_success", "Sequences that ended, by reason", reasons),
        *_counter("paged_ref:steps", "Forward passes", now["steps"]),
        *_counter("paged_ref:computed_tokens", "Tokens that went through the model", now["computed_tokens"]),
        *_counter("paged_ref:copied_blocks", "Blocks copied on write", now["copied_blocks"]),
        *_counter("paged_ref:swapped_blocks", "Blocks copied to or from the host", swaps),
        *_histogram(
            "vllm:time_to_first_token_seconds",
            "From arrival to the first token",
            readings.time_to_first_token,
        ),
        *_histogram(
            "vllm:inter_token_latency_seconds", "From one token to the next", readings.inter_token_latency
        ),
    ]
    if readings.allocation is not None:
        lines += _histogram(
            "paged_ref:allocation_seconds", "How long an allocation of blocks took", readings.allocation
        )
    return "\n".join(lines) + "\n"


def _gauge(name: str, text: str, value: float) -> list[str]:
    return [f"# HELP {name} {text}.", f"# TYPE {name} gauge", f"{name} {_exact(value)}"]


def _counter(name: str, text: str, value: float | Mapping[str, float]) -> list[str]:
    samples = value.items() if isinstance(value, Mapping) else [("", value)]
    return [
        f"# HELP {name}_total {text}.",
        f"# TYPE {name}_total counter",
        *(
            f"{name}_total{{{labels}}} {_exact(n)}" if labels else f"{name}_total {_exact(n)}"
            for labels, n in samples
        ),
    ]


def _histogram(name: str, text: str, histogram: Histogram) -> list[str]:
    return [
        f"# HELP {name} {text}, in seconds.",
        f"# TYPE {name} histogram",
        *(f'{name}_bucket{{le="{bound!r}"}} {count}' for bound, count in histogram.cumulative()),
        f'{name}_bucket{{le="+Inf"}} {histogram.count}',
        f"{name}_sum {_exact(histogram.total)}",
        f"{name}_count {histogram.count}",
    ]


def _exact(value: float) -> str:
    """Return a number without rounding: the shortest text that reads as the same float."""
    return str(int(value)) if value == int(value) else repr(float(value))
