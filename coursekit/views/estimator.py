"""The estimator of chapter 1: choose a model, GPUs and lengths; see bytes, waste, concurrency and cost.

`estimate` is a view for `explore`, `CHOICES` are the values of its controls, and `START` is chapter 1's worked
example. All figures come from `paged_ref.simulation.capacity`. Invariant: every choice that the controls allow has
an answer, even if it is "it does not fit".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from coursekit.views.style import BLUE, FAINT, INK, ORANGE, Picture, figure
from paged_ref.cli.plan import PLANNABLE, money
from paged_ref.simulation.capacity import DEVICES, CapacityPlan, Load, plan_capacity
from paged_ref.sizing import MODELS, human_bytes

WAYS = ("reserved for the longest", "blocks on demand")
CHOICES: dict[str, Sequence[Any]] = {
    "model": PLANNABLE,
    "gpu": list(DEVICES),
    "num_gpus": range(1, 17),
    "prompt_tokens": range(50, 8001, 50),
    "output_tokens": range(50, 4001, 50),
    "max_tokens": [2048, 4096, 8192, 32768, 131072],
    "block_size": [1, 8, 16, 32, 64, 128],
    "price_per_gpu_hour": [0.25 * i for i in range(1, 49)],
}
START: dict[str, Any] = {
    "model": "llama-3.1-70b",
    "gpu": "h100-80gb",
    "num_gpus": 8,
    "prompt_tokens": 600,
    "output_tokens": 250,
    "max_tokens": 8192,
    "block_size": 16,
    "price_per_gpu_hour": 2.5,
}


def estimate(
    model: str,
    gpu: str,
    num_gpus: int,
    prompt_tokens: int,
    output_tokens: int,
    max_tokens: int,
    block_size: int,
    price_per_gpu_hour: float,
) -> Picture:
    """Compare reservations with blocks for one choice. The price can be in any currency."""
    try:
        load = Load(prompt_tokens, output_tokens, max_tokens)
        answer = plan_capacity(MODELS[model], DEVICES[gpu], load, num_gpus, block_size)
    except (ValueError, MemoryError) as error:
        fig, axes = figure(width=8, height=2.6)
        axes.set_axis_off()
        axes.text(0.5, 0.5, "no answer: see the text", ha="center", va="center", transform=axes.transAxes)
        said = f"{model} on {num_gpus} x {DEVICES[gpu].name}: {error}."
        return Picture(fig, alt=said, summary=said)
    return _picture(answer, price_per_gpu_hour * num_gpus)


def _picture(answer: CapacityPlan, price_per_hour: float) -> Picture:
    """Left: bytes held per request, and how many of them hold a token. Right: concurrent requests."""
    cost, both = answer.cost_model, (answer.contiguous, answer.paged)
    fig, (held, count) = figure(1, 2, width=8, height=2.6, sharey=True)
    unit, name = (1e9, "GB") if both[0].bytes_per_request >= 1e9 else (1e6, "MB")
    said = [
        f"{cost.shape.name} on {cost.num_devices} x {cost.device.name}: {human_bytes(cost.weight_bytes)} of weights, "
        f"{human_bytes(answer.budget)} for keys and values, {cost.shape.kv_bytes_per_token:,} bytes per token"
    ]
    for row, (way, serving) in enumerate(zip(WAYS, both, strict=True)):
        share = serving.usage.shares()["used"]
        whole = serving.bytes_per_request / unit
        held.barh(row, whole * share, color=BLUE, height=0.55)
        held.barh(
            row,
            whole * (1 - share),
            left=whole * share,
            color=FAINT,
            edgecolor=INK,
            hatch="///",
            height=0.55,
        )
        count.barh(row, serving.concurrency, color=ORANGE, height=0.55)
        _beyond(held, row, whole, f"{whole:.3g} {name}")
        _beyond(count, row, serving.concurrency, f"{serving.concurrency:,}")
        said.append(
            f"{way}: {human_bytes(serving.bytes_per_request)} per request, {1 - share:.1%} of it wasted when it ends, "
            f"{serving.concurrency:,} requests at once, {serving.requests_per_second:.2f} requests per second, "
            "a thousand requests cost "
            f"{money(serving, price_per_hour):.3g}"
        )
    held.set_yticks((0, 1), WAYS)
    held.invert_yaxis()
    held.set_title("Held per request")
    held.set_xlabel(f"{name}; hatched: wasted when it ends")
    count.set_title("Requests at once")
    for axes in (held, count):
        axes.set_xlim(0, max(bar.get_x() + bar.get_width() for bar in axes.patches) * 1.28)
        axes.locator_params(axis="x", nbins=5)
    few, many = both
    summary = (
        f"{few.concurrency:,} requests at once with reservations, {many.concurrency:,} with blocks "
        f"({many.concurrency / few.concurrency:.1f} times); throughput "
        f"{many.requests_per_second / few.requests_per_second:.1f} times; a thousand requests cost "
        f"{money(few, price_per_hour):.3g} or {money(many, price_per_hour):.3g}."
    )
    if cost.shape.num_window_layers:
        summary += (
            " The two differ in scope: the reservation leaves out tokens that have left a layer's window, while "
            "blocks keep them (our pool frees no block before the request ends)."
        )
    return Picture(fig, alt=f"Two bar charts. {'. '.join(said)}.", summary=summary)


def _beyond(axes: Axes, row: int, x: float, text: str) -> None:
    axes.annotate(text, (x, row), (5, 0), textcoords="offset points", va="center")
