"""`python -m paged_ref plan`: how many requests fit, how much memory is wasted, what a request costs (chapter 1)."""

from __future__ import annotations

import argparse
from difflib import get_close_matches

from ..kv_dtype import KV_DTYPES, with_kv_dtype
from ..simulation.capacity import DEVICES, Capacity, CapacityPlan, Load, plan_capacity
from ..sizing import MODELS, human_bytes

PLANNABLE = sorted(name for name, shape in MODELS.items() if shape.num_parameters)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--model", default="llama-3.1-70b", help=f"one of {', '.join(PLANNABLE)}")
    parser.add_argument("--gpu", default="h100-80gb", help=f"one of {', '.join(DEVICES)}")
    parser.add_argument("--gpus", type=int, default=8, metavar="N", help="number of GPUs (8)")
    parser.add_argument("--prompt", type=int, default=600, metavar="N", help="tokens per prompt (600)")
    parser.add_argument("--output", type=int, default=250, metavar="N", help="tokens per answer (250)")
    parser.add_argument(
        "--max-tokens", type=int, default=8192, metavar="N", help="longest request allowed, in tokens (8192)"
    )
    parser.add_argument("--block-size", type=int, default=16, metavar="N", help="tokens per block (16)")
    parser.add_argument(
        "--kv-dtype",
        default="auto",
        metavar="NAME",
        help=f"of cached keys and values: {', '.join(KV_DTYPES)} (auto)",
    )
    parser.add_argument(
        "--memory-fraction", type=float, default=0.9, help="fraction of GPU memory to use (0.9)"
    )
    parser.add_argument(
        "--price", type=float, metavar="MONEY", help="price of one GPU per hour, in any currency"
    )


def run(args: argparse.Namespace) -> int:
    """Plan and print; return the exit status.

    Raises:
        ValueError: an unknown name or a number out of its range.
        MemoryError: the model, or a single request, does not fit.
    """
    shape = with_kv_dtype(MODELS[_known("model", args.model, PLANNABLE)], args.kv_dtype)
    device = DEVICES[_known("GPU", args.gpu, list(DEVICES))]
    if args.price is not None and not args.price > 0:
        raise ValueError(f"--price {args.price}: it must be above 0")
    load = Load(args.prompt, args.output, args.max_tokens)
    result = plan_capacity(shape, device, load, args.gpus, args.block_size, args.memory_fraction)
    print(report(result, args.price), end="")
    return 0


def report(result: CapacityPlan, price: float | None = None) -> str:
    """Return the plan as a few lines of text; `price` is that of one GPU per hour."""
    cost, load = result.cost_model, result.load
    lines = [
        f"{cost.shape.name} on {cost.num_devices} x {cost.device.name}: "
        f"{human_bytes(cost.weight_bytes)} of weights, {human_bytes(result.budget)} for keys and values",
        f"{cost.shape.kv_bytes_per_token:,} bytes per token; a request of {load.prompt_tokens} + "
        f"{load.output_tokens} tokens, {load.max_tokens} allowed",
        "",
        f"{'':22}{'reserved':>12}{'paged':>12}",
    ]
    both = (result.contiguous, result.paged)
    rows = [
        ("held per request", [human_bytes(s.bytes_per_request) for s in both]),
        ("of which wasted", [f"{1 - s.usage.shares()['used']:.1%}" for s in both]),
        ("requests at once", [str(s.concurrency) for s in both]),
        ("requests per second", [f"{s.requests_per_second:.1f}" for s in both]),
    ]
    if price is not None:
        total = price * cost.num_devices
        rows.append(("cost of 1,000 requests", [f"{money(s, total):.3g}" for s in both]))
    lines += [f"{name:22}{left:>12}{right:>12}" for name, (left, right) in rows]
    more = result.paged.concurrency / result.contiguous.concurrency
    faster = result.paged.requests_per_second / result.contiguous.requests_per_second
    lines += ["", f"{more:.1f} times the requests at once, {faster:.1f} times the throughput (estimated)"]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def money(serving: Capacity, price_per_hour: float) -> float:
    """Return the cost of 1,000 requests (one costs a fraction of a cent) at this price for the whole machine."""
    return 1000 * serving.cost(price_per_hour)


def _known(what: str, name: str, known: list[str]) -> str:
    if name in known:
        return name
    wanted = name.lower()
    near = [k for k in known if k.startswith(wanted)] or get_close_matches(wanted, known, n=1, cutoff=0.3)
    meant = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(f"unknown {what} {name!r}: {meant}There are {', '.join(known)}")
