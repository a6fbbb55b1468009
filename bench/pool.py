"""`python3 course.py bench pool`: the cost of the pool's operations as a function of its size (chapter 2)."""

from __future__ import annotations

import argparse
import json
import platform
import random
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from paged_ref.blocks.block_pool import BlockPool
from paged_ref.blocks.prefix_cache import PrefixCache


@dataclass(frozen=True)
class PoolTiming:
    """One pool size: seconds to build it, and operations (of one block) per second, the best of several rounds."""

    num_blocks: int
    build_seconds: float
    allocate: float
    free: float
    share: float
    revive: float


def time_pool(num_blocks: int, operations: int = 200, rounds: int = 200) -> PoolTiming:
    """Measure a pool that is half used, whose free blocks are scattered in memory and partly cached.

    `allocate` and `free` are calls for one block; `share` adds a holder; `revive` takes a cached block out of
    the middle of the free queue.
    """
    started = time.process_time()
    pool = BlockPool(num_blocks, 16)
    build_seconds = time.process_time() - started
    cache = pool.prefix_cache = PrefixCache()
    rng = random.Random(0)
    blocks = pool.allocate(num_blocks)
    rng.shuffle(blocks)
    cached = blocks[:operations]
    for i, block in enumerate(cached):
        cache.publish(None, (i,), None, block)
    pool.free(blocks[: num_blocks // 2])
    best = {"allocate": 0.0, "free": 0.0, "share": 0.0, "revive": 0.0}

    def timed(name: str, seconds: float) -> None:
        best[name] = max(best[name], operations / seconds)

    few = min(operations, num_blocks // 2 - operations)
    for _ in range(rounds):
        started = time.process_time()
        taken = [pool.allocate(1)[0] for _ in range(few)]
        timed("allocate", (time.process_time() - started) * operations / few)
        started = time.process_time()
        for block in taken:
            pool.share((block,))
        timed("share", (time.process_time() - started) * operations / few)
        pool.free(taken)
        started = time.process_time()
        for block in taken:
            pool.free((block,))
        timed("free", (time.process_time() - started) * operations / few)
        rng.shuffle(cached)
        started = time.process_time()
        for block in cached:
            pool.share((block,))
        timed("revive", time.process_time() - started)
        pool.free(cached)
    return PoolTiming(num_blocks, build_seconds, **best)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument(
        "--sizes",
        type=int,
        nargs="+",
        default=[10**3, 10**4, 10**5, 10**6],
        metavar="N",
        help="numbers of blocks",
    )
    parser.add_argument("--operations", type=int, default=200, metavar="N", help="operations per round (200)")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="also write the figures to this JSON file"
    )


def run(args: argparse.Namespace) -> int:
    """Measure and print; return the exit status."""
    small = [size for size in args.sizes if size < 4 * args.operations]
    if small or args.operations < 1:
        raise ValueError(
            f"--sizes {small}: a pool must have at least 4 x --operations blocks, and operations at least 1"
        )
    print(
        f"{'blocks':>9} {'built in':>10} {'allocate/s':>12} {'free/s':>12} {'share/s':>12} {'revive/s':>12}"
    )
    rows = []
    for size in args.sizes:
        row = time_pool(size, args.operations)
        rows.append(asdict(row))
        print(
            f"{row.num_blocks:>9,} {1e3 * row.build_seconds:>7.1f} ms {row.allocate:>12,.0f} {row.free:>12,.0f} "
            f"{row.share:>12,.0f} {row.revive:>12,.0f}"
        )
    if args.output is not None:
        text = json.dumps({"python": platform.python_version(), "rows": rows}, indent=1)
        args.output.write_text(text + "\n", encoding="utf-8")
    return 0
