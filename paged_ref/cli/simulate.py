"""`python -m paged_ref simulate`: run a workload on the real scheduler and report the metrics (chapter 6)."""

from __future__ import annotations

import argparse
from dataclasses import replace

from ..kv_dtype import KV_DTYPES, with_kv_dtype
from ..simulation.cost_model import SETUPS
from ..simulation.simulator import SimulationResult, simulate
from ..workload import TRACES, make_workload


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "--setup", choices=SETUPS, default="opt-13b-a100", help="model and GPUs (opt-13b-a100)"
    )
    parser.add_argument("--trace", choices=TRACES, default="sharegpt", help="mean lengths (sharegpt)")
    parser.add_argument("--requests", type=int, default=1000, metavar="N", help="number of requests (1000)")
    parser.add_argument("--rate", type=float, default=1.5, help="arrivals per second; inf: all at once (1.5)")
    parser.add_argument("--seed", type=int, default=0, help="seed of lengths and arrivals (0)")
    parser.add_argument(
        "--urgent", type=float, default=0.0, metavar="SHARE", help="fraction of requests with priority -1 (0)"
    )
    parser.add_argument(
        "--shared-tokens", type=int, default=0, metavar="N", help="length of a common system prompt (0)"
    )
    parser.add_argument("--block-size", type=int, default=16, metavar="N", help="tokens per block (16)")
    parser.add_argument(
        "--num-blocks", type=int, metavar="N", help="blocks in the pool (as many as fit on the GPUs)"
    )
    parser.add_argument(
        "--kv-dtype", choices=KV_DTYPES, default="auto", help="data type of cached keys and values (auto)"
    )
    parser.add_argument("--preemption", choices=("recompute", "swap"), default="recompute")
    parser.add_argument(
        "--prefix-caching", action="store_true", help="reuse cached full blocks of equal prefixes"
    )
    parser.add_argument(
        "--watermark", type=float, default=0.01, help="fraction of the pool reserved from new requests (0.01)"
    )
    parser.add_argument("--max-num-seqs", type=int, default=256, metavar="N", help="sequences at once (256)")
    parser.add_argument(
        "--max-num-batched-tokens", type=int, default=2048, metavar="N", help="tokens per step (2048)"
    )
    parser.add_argument(
        "--prometheus", action="store_true", help="print the metrics in Prometheus' format instead"
    )


def run(args: argparse.Namespace) -> int:
    """Simulate and print; return the exit status."""
    jobs = make_workload(
        TRACES[args.trace],
        args.requests,
        args.rate,
        args.seed,
        urgent=args.urgent,
        shared_tokens=args.shared_tokens,
    )
    cost = SETUPS[args.setup]
    cost = replace(cost, shape=with_kv_dtype(cost.shape, args.kv_dtype))
    result = simulate(
        jobs, cost, block_size=args.block_size, num_blocks=args.num_blocks, watermark=args.watermark,
        enable_prefix_caching=args.prefix_caching, preemption=args.preemption,
        max_num_seqs=args.max_num_seqs, max_num_batched_tokens=args.max_num_batched_tokens,
    )  # fmt: skip
    print(result.metrics.prometheus() if args.prometheus else report(result), end="")
    return 0


def report(result: SimulationResult) -> str:
    """Return the result as a few lines of text."""
    metrics, now = result.metrics, result.metrics.snapshot()
    speed = now["finished"] / result.wall_seconds if now["finished"] else 0.0
    hits = (
        f"{now['block_hits']:.0f} of {now['block_queries']:.0f} blocks"
        if now["block_queries"]
        else "off or unused"
    )
    lines = [
        ("requests", f"{now['finished']:.0f} in {result.simulated_seconds:,.0f} simulated seconds"),
        ("throughput", f"{result.tokens_per_second:,.0f} generated tokens/s"),
        ("time to first token", _latency(now["ttft_p50"], now["ttft_p99"])),
        ("inter-token latency", _latency(now["itl_p50"], now["itl_p99"])),
        ("pool", f"{now['num_blocks']:.0f} blocks, at most {metrics.peak_used_blocks} used at once"),
        ("running at once", f"at most {metrics.peak_running} requests"),
        ("preemptions", f"{metrics.preemptions}, {metrics.swapped_out} of them by swap"),
        ("prefix-cache hits", hits),
        ("simulated in", f"{result.wall_seconds:.1f} s: {speed:,.0f} requests/s, "
                         f"{metrics.steps} steps of which {result.scheduled_steps} were scheduled one by one"),
    ]  # fmt: skip
    return "".join(f"{name:<20} {text}\n" for name, text in lines)


def _latency(median: float | None, tail: float | None) -> str:
    return "none" if median is None or tail is None else f"p50 {1e3 * median:.1f} ms, p99 {1e3 * tail:.1f} ms"
