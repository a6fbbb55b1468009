"""The command line: `python -m paged_ref COMMAND`. Each command is a module with `add_arguments` and `run`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from importlib import import_module

COMMANDS = {
    "generate": ("commands.generate", "continue prompts on a real model through a paged cache"),
    "plan": ("commands.plan", "how many requests fit on a machine, and what one costs"),
    "simulate": (
        "commands.simulate",
        "run a workload on the real scheduler, with a cost model for the model",
    ),
    "bench": ("", "measure: attention, pool, serve or simulate"),
}
BENCHMARKS = {
    "attention": (
        "attention.bench",
        "correctness, then time and share of the memory bandwidth, of each backend",
    ),
    "pool": ("commands.bench_pool", "operations per second of the block pool, against its size"),
    "serve": ("commands.bench_serve", "our engine against transformers' generate and generate_batch"),
    "simulate": ("commands.bench_simulate", "requests per second of the simulator"),
}


def main(argv: list[str] | None = None) -> int:
    """Parse a command and run it; returns the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(
        prog="python -m paged_ref", description="PagedAttention, written to be read."
    )
    words = iter([word for word in argv if not word.startswith("-")])
    word = next(words, "")
    if word != "bench":  # threads that spin while they wait slow down a machine that others use, too
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    _add_commands(parser, COMMANDS, word, next(words, ""))
    args = parser.parse_args(argv)
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    for noisy in ("transformers", "httpx", "huggingface_hub"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    from .weights import ModelUnavailable

    try:
        return int(args.run(args))
    except (ValueError, MemoryError, ModelUnavailable) as error:
        print(f"paged_ref: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\npaged_ref: interrupted", file=sys.stderr)
        return 130


def _add_commands(
    parser: argparse.ArgumentParser, commands: dict[str, tuple[str, str]], chosen: str, next_word: str
) -> None:
    """A subparser for each command. Only the chosen one's module is imported, so that help comes at once."""
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (module_name, purpose) in commands.items():
        command = subparsers.add_parser(name, help=purpose, description=purpose)
        if name != chosen:
            continue
        if name == "bench":
            _add_commands(command, BENCHMARKS, next_word, "")
        else:
            module = import_module(f".{module_name}", __package__)
            module.add_arguments(command)
            command.set_defaults(run=module.run)


if __name__ == "__main__":
    sys.exit(main())
