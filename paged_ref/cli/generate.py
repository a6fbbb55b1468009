"""`python -m paged_ref generate "prompt" ["prompt" …]`: run prompts on a real model with a paged cache (chapter 7)."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from ..kv_dtype import KV_DTYPES
from ..sampling.params import SamplingParams


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("prompts", nargs="+", metavar="prompt")
    parser.add_argument("--model", default="smollm2-135m", help="a name, a hub id, or a local folder")
    parser.add_argument("--max-tokens", type=int, default=64, metavar="N", help="new tokens per prompt (64)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 takes the likeliest token (0)")
    parser.add_argument("--seed", type=int, help="makes a run with a temperature repeatable")
    parser.add_argument(
        "--raw", action="store_true", help="continue the text itself, without the chat template"
    )
    parser.add_argument("--num-blocks", type=int, metavar="N", help="blocks in the pool (as many as fit)")
    parser.add_argument("--block-size", type=int, default=16, metavar="N", help="tokens per block (16)")
    parser.add_argument(
        "--kv-dtype",
        default="auto",
        metavar="NAME",
        help=f"of cached keys and values: {', '.join(KV_DTYPES)} (auto)",
    )
    parser.add_argument("--dtype", default="auto", help="auto, float32, float16 or bfloat16")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda")
    parser.add_argument("--backend", default="auto", help="auto, or a backend of paged_attention")


def run(args: argparse.Namespace) -> int:
    """Run the prompts and print the text as it is generated; return the exit status."""
    sampling = SamplingParams(max_tokens=args.max_tokens, temperature=args.temperature, seed=args.seed)
    from ..generation.llm import LLM

    if not sys.stderr.isatty():
        from transformers.utils import logging

        logging.disable_progress_bar()

    llm = LLM(
        args.model,
        num_blocks=args.num_blocks,
        block_size=args.block_size,
        kv_dtype=args.kv_dtype,
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
    """Print texts as they grow. The first unfinished prompt is shown live; the others are shown after it."""
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
