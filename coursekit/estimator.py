"""The estimator of chapter 1: choose a model, GPUs and lengths; see bytes, waste, concurrency and money.

`estimate` answers one question as a picture and as words, `estimator` is the same with controls. All figures are
`paged_ref.plan`'s. What must hold: every choice the controls allow has an answer; "it does not fit" is one.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

import ipywidgets as widgets
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coursekit.show import BLUE, FAINT, INK, ORANGE, figure, to_png
from paged_ref.plan import DEVICES, Load, Plan, plan
from paged_ref.plan_command import PLANNABLE, money
from paged_ref.sizing import MODELS, human_bytes

WAYS = ("reserved for the longest", "blocks on demand")


@dataclass(frozen=True)
class Question:
    """What the controls hold. The beginning is the example that chapter 1 works through.

    Attributes:
        price: of one GPU for an hour, in any currency.
    """

    model: str = "llama-3.1-70b"
    gpu: str = "h100-80gb"
    num_gpus: int = 8
    prompt_tokens: int = 600
    output_tokens: int = 250
    max_tokens: int = 8192
    block_size: int = 16
    price: float = 2.5

    def plan(self) -> Plan:
        """The answer, or ValueError or MemoryError with the reason why there is none."""
        load = Load(self.prompt_tokens, self.output_tokens, self.max_tokens)
        return plan(MODELS[self.model], DEVICES[self.gpu], load, self.num_gpus, self.block_size)


def estimate(question: Question) -> tuple[Figure, list[str]]:
    """The answer as a picture and as lines of text."""
    try:
        answer = question.plan()
    except (ValueError, MemoryError) as error:
        fig, ax = figure(width=8, height=2.6)
        ax.set_axis_off()
        ax.text(0.5, 0.5, "no answer: see the text", ha="center", va="center", transform=ax.transAxes)
        return fig, [f"{question.model} on {question.num_gpus} x {DEVICES[question.gpu].name}: {error}."]
    return _draw(answer), _words(answer, question)


def _words(answer: Plan, question: Question) -> list[str]:
    cost, both = answer.cost_model, (answer.contiguous, answer.paged)
    total = question.price * question.num_gpus
    lines = [
        f"{cost.shape.name} on {cost.num_devices} x {cost.device.name}: {human_bytes(cost.weight_bytes)} of weights, "
        f"{human_bytes(answer.budget)} left for keys and values, {cost.shape.kv_bytes_per_token:,} bytes per token"
    ]
    for way, serving in zip(WAYS, both, strict=True):
        wasted = 1 - serving.usage.shares()["used"]
        lines.append(
            f"{way}: {human_bytes(serving.bytes_per_request)} per request, {wasted:.1%} of it wasted; "
            f"{serving.concurrency} requests at once, {serving.requests_per_second:.2f} a second, "
            f"a thousand cost {money(serving, total):.3g}"
        )
    more = answer.paged.concurrency / answer.contiguous.concurrency
    faster = answer.paged.requests_per_second / answer.contiguous.requests_per_second
    lines.append(f"{more:.1f} times the requests at once, {faster:.1f} times the throughput")
    return lines


def _draw(answer: Plan) -> Figure:
    """Left: the bytes that one request holds, and how many of them hold a token. Right: requests at once."""
    both = (answer.contiguous, answer.paged)
    fig, (held, count) = figure(1, 2, width=8, height=2.6, sharey=True)
    per_token = answer.cost_model.shape.kv_bytes_per_token
    unit, name = (1e9, "GB") if both[0].bytes_per_request >= 1e9 else (1e6, "MB")
    for row, serving in enumerate(both):
        whole = serving.bytes_per_request / unit
        used = min(whole, serving.usage.used * per_token / unit)
        held.barh(row, used, color=BLUE, height=0.55)
        held.barh(row, whole - used, left=used, color=FAINT, edgecolor=INK, hatch="///", height=0.55)
        count.barh(row, serving.concurrency, color=ORANGE, height=0.55)
        _beyond(held, row, whole, f"{whole:.3g} {name}")
        _beyond(count, row, serving.concurrency, f"{serving.concurrency:,}")
    held.set_yticks((0, 1), WAYS)
    held.invert_yaxis()
    held.set_title("Held per request")
    held.set_xlabel(f"{name}; hatched: wasted at its end")
    count.set_title("Requests at once")
    for ax in (held, count):
        ax.set_xlim(0, max(s.get_x() + s.get_width() for s in ax.patches) * 1.28)
        ax.locator_params(axis="x", nbins=5)
    return fig


def _beyond(ax: Axes, row: int, x: float, text: str) -> None:
    ax.annotate(text, (x, row), (5, 0), textcoords="offset points", va="center")


def estimator(start: Question | None = None) -> widgets.VBox:
    """Controls, and below them the picture and the words of what they ask."""
    start = start or Question()
    wide: dict[str, Any] = {"layout": widgets.Layout(width="370px"), "style": {"description_width": "110px"}}

    def slider(value: int, low: int, high: int, step: int, name: str) -> widgets.IntSlider:
        return widgets.IntSlider(value, low, high, step, description=name, continuous_update=False, **wide)

    controls = {
        "model": widgets.Dropdown(options=PLANNABLE, value=start.model, description="model", **wide),
        "gpu": widgets.Dropdown(
            options=[(device.name, key) for key, device in DEVICES.items()],
            value=start.gpu,
            description="GPU",
            **wide,
        ),
        "num_gpus": slider(start.num_gpus, 1, 16, 1, "how many"),
        "prompt_tokens": slider(start.prompt_tokens, 50, 8000, 50, "prompt tokens"),
        "output_tokens": slider(start.output_tokens, 50, 4000, 50, "output tokens"),
        "max_tokens": widgets.Dropdown(
            options=[2048, 4096, 8192, 32768, 131072],
            value=start.max_tokens,
            description="longest allowed",
            **wide,
        ),
        "block_size": widgets.Dropdown(
            options=[1, 8, 16, 32, 64, 128], value=start.block_size, description="block size", **wide
        ),
        "price": widgets.BoundedFloatText(
            start.price, min=0.01, max=1000, step=0.1, description="price / GPU hour", **wide
        ),
    }
    picture = widgets.Image(format="png", layout=widgets.Layout(max_width="100%"))
    words = widgets.HTML()

    def show(_: Any = None) -> None:
        fig, lines = estimate(Question(**{name: control.value for name, control in controls.items()}))
        picture.value, picture.layout.width = to_png(fig), f"{round(fig.get_size_inches()[0] * 96)}px"
        picture.alt = "; ".join(lines)
        words.value = "".join(f"<div>{html.escape(line)}</div>" for line in lines)

    for control in controls.values():
        control.observe(show, names="value")
    show()
    left, right = list(controls.values())[:4], list(controls.values())[4:]
    return widgets.VBox([widgets.HBox([widgets.VBox(left), widgets.VBox(right)]), picture, words])
