"""`python -m paged_ref serve`: an OpenAI-compatible server with a live page of the pool (docs/server.md)."""

from __future__ import annotations

import argparse
import os
import secrets
from importlib.util import find_spec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--model", default="smollm2-135m", help="a name, a hub id, or a local folder")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (127.0.0.1: this machine only)"
    )
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="port; 0 takes a free one (8000)")
    parser.add_argument(
        "--api-key", metavar="KEY", help="ask clients for this key (the variable PAGED_REF_API_KEY)"
    )
    parser.add_argument(
        "--show-text", action="store_true", help="show text of prompts and replies on the page"
    )
    parser.add_argument(
        "--max-queue", type=int, default=256, metavar="N", help="waiting requests; more get 429 (256)"
    )
    parser.add_argument(
        "--drain", type=int, default=30, metavar="S", help="seconds to finish requests at exit (30)"
    )
    parser.add_argument("--num-blocks", type=int, metavar="N", help="blocks in the pool (as many as fit)")
    parser.add_argument("--block-size", type=int, default=16, metavar="N", help="tokens per block (16)")
    parser.add_argument(
        "--max-num-seqs", type=int, default=64, metavar="N", help="sequences that run at once (64)"
    )
    parser.add_argument(
        "--preemption", choices=("recompute", "swap"), default="recompute", help="(recompute)"
    )
    parser.add_argument("--dtype", default="auto", help="auto, float32, float16 or bfloat16")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda")


def run(args: argparse.Namespace) -> int:
    """Serve until a signal ends it; return the exit status."""
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise ValueError('serve needs FastAPI and uvicorn: run `pip install "paged-attention-course[serve]"`')
    if args.max_queue < 0 or args.drain < 0 or not 0 <= args.port <= 65535:
        raise ValueError("--max-queue and --drain must be 0 or more, and --port 0 to 65535")
    from ..generation.llm import LLM
    from ..server.app import Settings, make_app
    from ..server.run import serve

    llm = LLM(
        args.model, num_blocks=args.num_blocks, block_size=args.block_size, max_num_seqs=args.max_num_seqs,
        preemption=args.preemption, dtype=args.dtype, device=args.device,
    )  # fmt: skip
    settings = Settings(
        model_name=args.model,
        api_key=args.api_key or os.environ.get("PAGED_REF_API_KEY") or None,
        presenter_key=secrets.token_urlsafe(12),
        max_queue=args.max_queue,
        show_text=args.show_text,
    )
    return serve(make_app(llm, settings), args.host, args.port, args.drain)
