"""`python3 course.py bench NAME`. Each benchmark is a module with `add_arguments` and `run`."""

from __future__ import annotations

import argparse
import logging
import sys
from importlib import import_module

BENCHMARKS = {
    "attention": ("attention", "correctness, then time and memory bandwidth, of the fast attention backends"),
    "grade": ("grade", "time and memory of grading a class"),
    "pool": ("pool", "operations per second of the block pool, by pool size"),
    "serve": ("serve.command", "our engine against transformers' generate and generate_batch"),
    "simulate": ("simulate", "requests per second of the simulator"),
    "under-fire": ("under_fire", "the server with 200 clients that leave, send rubbish or read slowly"),
}


def main(arguments: list[str] | None = None) -> int:
    """Parse a benchmark's name and options and run it; return the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(
        prog="course.py bench", description="Measure the reference implementation."
    )
    subparsers = parser.add_subparsers(metavar="NAME", required=True)
    chosen = next((word for word in arguments if not word.startswith("-")), "")
    for name, (module_name, purpose) in BENCHMARKS.items():
        benchmark = subparsers.add_parser(name, help=purpose, description=purpose)
        if name == chosen:
            module = import_module(f"bench.{module_name}")
            module.add_arguments(benchmark)
            benchmark.set_defaults(run=module.run)
    args = parser.parse_args(arguments or ["--help"])
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    for noisy in ("transformers", "httpx", "huggingface_hub"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    from paged_ref.weights import ModelUnavailable

    try:
        return int(args.run(args))
    except (ValueError, MemoryError, ModelUnavailable) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nbench: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
