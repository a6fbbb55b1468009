"""`python3 course.py bench simulate`: how many requests per second the simulator processes (chapter 6)."""

from __future__ import annotations

import argparse
import json
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from paged_ref.simulation.cost_model import SETUPS
from paged_ref.simulation.simulator import simulate
from paged_ref.workload import TRACES, make_workload

from .status_line import StatusLine

CASES = [
    ("alpaca", "opt-13b-a100", 10.0),
    ("sharegpt", "opt-13b-a100", 1.5),
    ("sharegpt", "opt-13b-a100", 3.0),  # overload: a queue and preemptions
    ("sharegpt", "llama-3.1-70b-8xh100", 10.0),
]


@dataclass(frozen=True)
class SimulatorTiming:
    """One case. Times are CPU seconds, so that other programs on the machine matter less."""

    trace: str
    setup: str
    rate: float
    requests: int
    cpu_seconds: float
    requests_per_second: float
    steps: int
    scheduled_steps: int
    peak_running: int
    preemptions: int


def time_simulator(trace: str, setup: str, rate: float, num_requests: int) -> SimulatorTiming:
    """Simulate one workload and time it."""
    jobs = make_workload(TRACES[trace], num_requests, rate)
    started = time.process_time()
    result = simulate(jobs, SETUPS[setup])
    seconds = time.process_time() - started
    metrics = result.metrics
    return SimulatorTiming(
        trace, setup, rate, num_requests, round(seconds, 3), round(num_requests / seconds, 1), metrics.steps,
        result.scheduled_steps, metrics.peak_running, metrics.preemptions,
    )  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument(
        "--requests", type=int, default=10_000, metavar="N", help="requests per workload (10,000)"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="also write the figures to this JSON file"
    )


def run(args: argparse.Namespace) -> int:
    """Measure and print; return the exit status."""
    if args.requests < 1:
        raise ValueError(f"--requests {args.requests}: it must be 1 or more")
    rows = []
    print(
        f"{'trace':10}{'setup':24}{'rate':>6}{'requests/s':>12}{'steps':>12}{'scheduled':>12}{'preempted':>11}"
    )
    for trace, setup, rate in CASES:
        with StatusLine() as line:
            line.say(f"{trace} at {rate:g} requests per second on {setup}")
            row = time_simulator(trace, setup, rate, args.requests)
        rows.append(asdict(row))
        print(
            f"{row.trace:10}{row.setup:24}{row.rate:>6g}{row.requests_per_second:>12,.0f}{row.steps:>12,}"
            f"{row.scheduled_steps:>12,}{row.preemptions:>11,}",
            flush=True,
        )
    if args.output is not None:
        text = json.dumps({"python": platform.python_version(), "rows": rows}, indent=1)
        args.output.write_text(text + "\n", encoding="utf-8")
    return 0
