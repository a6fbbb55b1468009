"""The command line: `python -m paged_ref COMMAND`. Each command is a module with `add_arguments` and `run`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from importlib import import_module
from pathlib import Path

from .utf8 import use_utf8

COMMANDS = {
    "generate": ("cli.generate", "continue prompts on a real model through a paged cache"),
    "plan": ("cli.plan", "how many requests fit on a machine, and what a request costs"),
    "serve": ("cli.serve", "an OpenAI-compatible server with a live page of the pool"),
    "simulate": (
        "cli.simulate",
        "run a workload on the real scheduler, with a cost model in place of the language model",
    ),
    "warm-up": ("cli.warm_up", "compile the CPU loops now, so that the first prompt does not wait for them"),
}


def main(argv: list[str] | None = None) -> int:
    """Parse a command and run it; return the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    use_utf8()
    parser = argparse.ArgumentParser(prog=_program(), description="PagedAttention, written to be read.")
    _add_commands(parser, next((word for word in argv if not word.startswith("-")), ""))
    args = parser.parse_args(argv)
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    for noisy in ("transformers", "httpx", "huggingface_hub"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    from .weights import ModelUnavailable

    try:
        code = int(args.run(args))
        print(end="", flush=True)  # a closed pipe shows here, not after the last line
        return code
    except BrokenPipeError:  # `plan | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, MemoryError, ModelUnavailable) as error:
        print(f"paged_ref: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\npaged_ref: interrupted", file=sys.stderr)
        return 130


def _program() -> str:
    """Return the command as the user typed it: `paged-ref`, or this module's name."""
    name = Path(sys.argv[0]).stem
    return name if name == "paged-ref" else "python -m paged_ref"


def _add_commands(parser: argparse.ArgumentParser, chosen: str) -> None:
    """Add a subparser for each command. Only the chosen command's module is imported, so `--help` is fast."""
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (module_name, purpose) in COMMANDS.items():
        command = subparsers.add_parser(name, help=purpose, description=purpose)
        if name == chosen:
            module = import_module(f".{module_name}", __package__)
            module.add_arguments(command)
            command.set_defaults(run=module.run)


if __name__ == "__main__":
    sys.exit(main())
