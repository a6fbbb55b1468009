"""`python3 course.py bench serve`: our engine and transformers' servers on the same requests (chapter 7)."""

from __future__ import annotations

import argparse
import json
import logging
import platform
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

from paged_ref.model.hf_model import PagedModel, choose_dtype
from paged_ref.weights import load_arguments, resolve

from ..status_line import StatusLine
from .measure import Figures, compare_servers
from .profile import Profile, profile_stages, tuning
from .report import profile_table, table
from .servers import serve_generate, serve_generate_batch, serve_ours
from .workloads import make_workloads

WORKLOADS = ("uniform", "skewed", "shared prefix", "samples")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument("--model", default="smollm2-135m", help="a name, a hub id or a folder (smollm2-135m)")
    parser.add_argument(
        "--dtype",
        nargs="+",
        default=["float32", "bfloat16"],
        metavar="DTYPE",
        help="one or more (float32 bfloat16)",
    )
    parser.add_argument("--workload", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), metavar="NAME",
                        help=f"one or more of {', '.join(map(repr, WORKLOADS))} (all)")  # fmt: skip
    parser.add_argument(
        "--rounds", type=int, default=3, metavar="N", help="runs of each server, in turns (3)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a quarter of the requests and tokens, one round"
    )
    parser.add_argument(
        "--profile", action="store_true", help="also measure where the time of a decode step goes"
    )
    parser.add_argument("--plain-weights", action="store_true",
                        help="run our engine with transformers' own layers and plain weights")  # fmt: skip
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="also write the figures to this JSON file"
    )


def run(args: argparse.Namespace) -> int:
    """Measure and print; return the exit status."""
    if args.rounds < 1:
        raise ValueError(f"--rounds {args.rounds}: it must be 1 or more")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for dtype in args.dtype:
        if dtype == "auto":
            raise ValueError("--dtype auto: name a dtype, so that all servers use the same one")
        choose_dtype(dtype, device)
    if args.output is not None and not args.output.absolute().parent.is_dir():
        raise ValueError(f"--output {args.output}: there is no folder {args.output.absolute().parent}")
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)
    figures: list[Figures] = []
    profiles: list[Profile] = []
    started = time.perf_counter()
    for dtype in args.dtype:
        with StatusLine() as line:
            line.say(f"loading {args.model} in {dtype}, once for each side")
            paged = PagedModel.load(args.model, dtype, device, pack_weights=not args.plain_weights)
            dense = _load_dense(args.model, dtype, device)
            if paged.tokenizer is None:
                raise ValueError(f"--model {args.model}: it has no tokenizer, which the prompts need")
            how = tuning(paged)
            workloads = make_workloads(paged.tokenizer, args.quick)
            servers = {
                "ours": serve_ours(paged),
                "generate": serve_generate(dense),
                "generate_batch": serve_generate_batch(dense),
            }
            new: list[Figures] = []
            for name in args.workload:
                new += compare_servers(
                    servers, workloads[name], dtype, 1 if args.quick else args.rounds, dense, line.say
                )
            if args.profile:
                line.say(f"{dtype}: profiling decode steps")
                profiles += profile_stages(paged, workloads["uniform"], dtype, 8 if args.quick else 48)
        figures += new
        print(table(new), flush=True)
    if profiles:
        print(profile_table(profiles))
    if args.output is not None:
        result = {
            **machine(device, args.model),
            "ours": how,
            "rounds": 1 if args.quick else args.rounds,
            "quick": args.quick,
            "minutes": round((time.perf_counter() - started) / 60, 1),
            "workloads": {name: workloads[name].title for name in args.workload},
            "rows": [_rounded(asdict(f)) for f in figures],
            "profiles": [_rounded(asdict(p)) for p in profiles],
        }
        args.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


def machine(device: str, model: str) -> dict[str, Any]:
    """Return the model, the machine and the library versions of the measurement."""
    about: dict[str, Any] = {
        "model": model,
        "device": torch.cuda.get_device_name() if device == "cuda" else f"CPU, {platform.machine()}",
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    return about


def _load_dense(model: str, dtype: str, device: str) -> Any:
    """Load the same weights as a plain transformers model."""
    source = resolve(model)
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        source, dtype=choose_dtype(dtype, device), **load_arguments(source)
    )
    loaded.to(device)
    loaded.generation_config.eos_token_id = None  # the workload fixes the lengths
    return loaded.eval()


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, (list, tuple)) else value
