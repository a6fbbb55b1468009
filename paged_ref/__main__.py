"""The command line: `python -m paged_ref generate "prompt" ["prompt" …]`, and `plan`."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from typing import Any

from . import plan_command


def main(argv: list[str] | None = None) -> int:
    """Parse a command and run it; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m paged_ref", description="PagedAttention, written to be read."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    generate = commands.add_parser("generate", help="continue prompts on a real model through a paged cache")
    generate.add_argument("prompts", nargs="+", metavar="prompt")
    generate.add_argument("--model", default="smollm2-135m", help="a name, a hub id, or a local folder")
    generate.add_argument(
        "--max-tokens", type=int, default=64, metavar="N", help="new tokens per prompt (64)"
    )
    generate.add_argument(
        "--raw", action="store_true", help="continue the text itself, without the chat template"
    )
    generate.add_argument(
        "--num-blocks", type=int, metavar="N", help="blocks in the pool (what memory allows)"
    )
    generate.add_argument("--block-size", type=int, default=16, metavar="N", help="tokens per block (16)")
    generate.add_argument("--dtype", default="auto", help="auto, float32, float16 or bfloat16")
    generate.add_argument("--device", default="auto", help="auto, cpu, cuda")
    generate.add_argument("--backend", default="auto", help="auto, or a backend of paged_attention")
    generate.set_defaults(run=_generate)
    planning = commands.add_parser("plan", help="how many requests fit on a machine, and what one costs")
    plan_command.add_arguments(planning)
    planning.set_defaults(run=plan_command.run)
    args = parser.parse_args(argv)
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    logging.getLogger("paged_ref").setLevel(logging.INFO)
    from .weights import ModelUnavailable

    for noisy in ("transformers", "httpx", "huggingface_hub"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    try:
        return int(args.run(args))
    except (ValueError, MemoryError, ModelUnavailable) as error:
        print(f"paged_ref: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\npaged_ref: interrupted", file=sys.stderr)
        return 130


def _generate(args: argparse.Namespace) -> int:
    from .sampling import SamplingParams

    sampling = SamplingParams(max_tokens=args.max_tokens)
    from .engine import LLM

    llm = LLM(
        args.model,
        num_blocks=args.num_blocks,
        block_size=args.block_size,
        dtype=args.dtype,
        device=args.device,
        backend=args.backend,
    )
    chat = not args.raw and getattr(llm.model.tokenizer, "chat_template", None) is not None
    prompts: list[Any] = [[{"role": "user", "content": p}] if chat else p for p in args.prompts]
    started = time.perf_counter()
    events = llm.stream(prompts, sampling)
    _print_streams(args.prompts, events)
    seconds = time.perf_counter() - started
    metrics, pool = llm.metrics, llm.pool
    rate, peak = metrics.generated_tokens / seconds, metrics.peak_used_blocks
    print(
        f"\n{metrics.generated_tokens} tokens in {seconds:.1f} s: {rate:.0f} tokens/s, {metrics.steps} steps, "
        f"up to {metrics.peak_running} requests at once\n"
        f"pool: {pool.num_blocks} blocks of {pool.block_size} tokens, at most {peak} in use "
        f"({peak / pool.num_blocks:.1%}), {pool.num_used} now, {metrics.preemptions} preemptions"
    )
    return 0


def _print_streams(prompts: list[str], events: Any) -> None:
    """Print texts as they grow. The first unfinished prompt is shown live; the others wait behind it."""
    waiting: dict[int, str] = dict.fromkeys(range(len(prompts)), "")
    done: set[int] = set()
    shown = -1
    for event in events:
        waiting[event.prompt_index] += event.text
        if event.finish_reason:
            done.add(event.prompt_index)
        while shown < len(prompts) and (shown < 0 or shown in done):
            if shown >= 0:
                print(waiting.pop(shown), flush=True)
            shown += 1
            if shown < len(prompts):
                print(f"\n> {prompts[shown]}", flush=True)
        if waiting.get(shown):
            print(waiting[shown], end="", flush=True)
            waiting[shown] = ""


if __name__ == "__main__":
    sys.exit(main())
