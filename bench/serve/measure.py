"""Run the servers in turns on the same requests, and compare their tokens and times (chapter 7).

A fair comparison means: one process, the same weights and prompts, a warm-up for every server, a different order in
each round, medians. A server whose tokens differ is disqualified: in float32, greedy tokens must be equal, and where
two differ, the model must find both about equally likely.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from .servers import Run, Server
from .workloads import Workload

CLOSE = 1e-3  # rounding may swap the order of logits that differ by less


@dataclass(frozen=True)
class Figures:
    """One server on one workload: medians over the rounds, latencies over all sequences of all rounds.

    Attributes:
        throughput: tokens per second; `spread`: those of the slowest and the fastest round.
        ttft_p50, ttft_max: seconds from the arrival of all requests to a sequence's first token.
        itl_p50, itl_p99: seconds between a sequence's tokens.
        cache_mib: the most MiB of keys and values held or reserved.
    """

    workload: str
    dtype: str
    server: str
    tokens: int
    throughput: float
    spread: tuple[float, float]
    ttft_p50: float
    ttft_max: float
    itl_p50: float
    itl_p99: float
    cache_mib: float


class Disagreement(RuntimeError):
    """Two servers returned different tokens where the model's choice is clear."""


def compare_servers(
    servers: Mapping[str, Server],
    workload: Workload,
    dtype: str,
    rounds: int,
    dense: Any,
    say: Callable[[str], None] = lambda what: None,
) -> list[Figures]:
    """Return the figures of each server, in the order of `servers`.

    Args:
        dense: the reference model (plain transformers), used where tokens differ.
        say: called with the current activity, for a status line.

    Raises:
        Disagreement: lengths are wrong or, in float32 with one sample per prompt, tokens differ.
    """
    small = replace(workload, prompts=workload.prompts[:2], new_tokens=[4] * len(workload.prompts[:2]))
    for name, server in servers.items():
        say(f"{dtype}, {workload.name}: warming up {name}")
        server(small)
    names = list(servers)
    runs: dict[str, list[Run]] = {name: [] for name in names}
    for i in range(rounds):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            say(f"{dtype}, {workload.name}: round {i + 1} of {rounds}, {name}")
            runs[name].append(servers[name](workload))
    for name in names:
        check_lengths(runs[name][0], workload, name)
        if dtype == "float32" and workload.num_samples == 1 and name != names[0]:
            check_equal(runs[names[0]][0], runs[name][0], workload, dense, (names[0], name))
    return [_figures(workload, dtype, name, runs[name]) for name in names]


def check_lengths(run: Run, workload: Workload, name: str) -> None:
    """Check that every sequence has as many tokens as requested, each with its time.

    Raises:
        Disagreement: a sequence does not.
    """
    wanted = [n for n in workload.new_tokens for _ in range(workload.num_samples)]
    for kind, rows in (("tokens", run.tokens), ("times", run.times)):
        if [len(row) for row in rows] != wanted:
            raise Disagreement(f"{name} returned {[len(row) for row in rows]} {kind}, not {wanted}")


def check_equal(first: Run, second: Run, workload: Workload, dense: Any, names: tuple[str, str]) -> int:
    """Compare greedy tokens; return how many sequences diverge at a close decision.

    Raises:
        Disagreement: a sequence diverges where the dense model finds one of the two tokens clearly likelier.
    """
    close = 0
    for i, (a, b) in enumerate(zip(first.tokens, second.tokens, strict=True)):
        at = next((k for k, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), None)
        if at is None:
            continue
        with torch.inference_mode():
            ids = torch.tensor([workload.prompts[i] + a[:at]], device=dense.device)
            logits = dense(ids, use_cache=False, logits_to_keep=1).logits[0, -1].float()
        gap = abs(float(logits[a[at]] - logits[b[at]]))
        if gap > CLOSE:
            raise Disagreement(
                f"request {i}, new token {at}: {names[0]} chose {a[at]}, {names[1]} {b[at]}, whose logits "
                f"differ by {gap:.4f}"
            )
        close += 1
    return close


def _figures(workload: Workload, dtype: str, name: str, runs: list[Run]) -> Figures:
    speeds = [run.throughput for run in runs]
    first = [seconds for run in runs for seconds in run.first]
    gaps = [gap for run in runs for gap in run.gaps]
    return Figures(
        workload=workload.name,
        dtype=dtype,
        server=name,
        tokens=workload.total_new_tokens,
        throughput=statistics.median(speeds),
        spread=(min(speeds), max(speeds)),
        ttft_p50=statistics.median(first),
        ttft_max=max(first),
        itl_p50=float(np.percentile(gaps, 50)),
        itl_p99=float(np.percentile(gaps, 99)),
        cache_mib=max(run.cache_bytes for run in runs) / 2**20,
    )
