"""Record how many requests a second the simulator runs, in bench/results/simulate.json."""

import json
import platform
import sys
import time
from pathlib import Path

from paged_ref.cost_model import SETUPS
from paged_ref.simulator import simulate
from paged_ref.workload import TRACES, make_workload

RESULTS = Path(__file__).parent / "results" / "simulate.json"
CASES = [
    ("alpaca", "opt-13b-a100", 10.0),
    ("sharegpt", "opt-13b-a100", 1.5),
    ("sharegpt", "opt-13b-a100", 3.0),  # more than it can serve: a queue and preemptions
    ("sharegpt", "llama-3.1-70b-8xh100", 10.0),
]


def main(num_requests: int = 100_000) -> None:
    """Run the cases, print and record them; seconds are of the processor, so that a busy machine counts less."""
    rows = []
    for trace, setup, rate in CASES:
        jobs = make_workload(TRACES[trace], num_requests, rate)
        started = time.process_time()
        result = simulate(jobs, SETUPS[setup])
        seconds = time.process_time() - started
        rows.append({
            "trace": trace, "setup": setup, "rate": rate, "requests": num_requests, "cpu_seconds": round(seconds, 2),
            "requests_per_second": round(num_requests / seconds), "steps": result.metrics.steps,
            "scheduled_steps": result.scheduled_steps, "peak_running": result.metrics.peak_running,
            "preemptions": result.metrics.preemptions,
        })  # fmt: skip
        print(rows[-1], flush=True)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"python": platform.python_version(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
