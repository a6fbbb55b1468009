"""The serving benchmark's figures as text tables (chapter 7)."""

from __future__ import annotations

from collections.abc import Sequence

from .measure import Figures
from .profile import PARTS, Profile


def table(figures: Sequence[Figures]) -> str:
    """Return one line per server, with its throughput as a bar and the speedup of the first server over it."""
    fastest = max(f.throughput for f in figures)
    lines = [
        f"{'':34}{'tokens/s':>9}{'ours is':>10}{'TTFT p50':>10}{'max':>8}{'ITL p50':>9}{'p99':>9}{'cache':>10}"
    ]
    first: Figures | None = None
    for f in figures:
        if first is None or (f.workload, f.dtype) != (first.workload, first.dtype):
            first = f
            lines.append(f"{f.workload}, {f.dtype}, {f.tokens:,} tokens")
        bar = "█" * max(1, round(14 * f.throughput / fastest))
        times = "" if f is first else f"{first.throughput / f.throughput:.2f} x"
        lines.append(
            f"  {f.server:16}{bar:<16}{f.throughput:>9.1f}{times:>10}{f.ttft_p50:>8.2f} s{f.ttft_max:>6.2f} s"
            f"{1e3 * f.itl_p50:>6.0f} ms{1e3 * f.itl_p99:>6.0f} ms{f.cache_mib:>6.0f} MiB"
        )
    return "\n".join(lines)


def profile_table(profiles: Sequence[Profile]) -> str:
    """Return the parts of a decode step in milliseconds, each with a bar, and the limit."""
    lines = []
    for p in profiles:
        lines.append(f"a decode step of {p.num_seqs} sequences, {p.dtype}, {p.how}: {p.step:.1f} ms")
        for part in PARTS:
            share = p.parts[part] / p.step
            lines.append(f"  {part:16}{p.parts[part]:>7.1f} ms {share:>5.0%}  {'█' * round(40 * share)}")
        lines.append(f"  {'matmuls alone':16}{p.limit:>7.1f} ms        {'░' * round(40 * p.limit / p.step)}")
    return "\n".join(lines)
