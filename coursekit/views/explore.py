"""Interactive views built from the functions that draw the static ones.

A lesson writes one function, from a few values to a `Picture`. `explore` shows the picture of the first values, which
the stored page keeps with its text, and below it the same function with controls that need a running notebook kernel:

    def memory_at(step): ...                        # -> Picture
    explore(memory_at, "a slider over the steps", step=range(1, 31))

Invariants: the controls start at the values of the static picture; a control never raises, because only the offered
values can be chosen; the text changes with the picture.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ipywidgets as widgets

from coursekit.views.style import Picture, display_widget, to_png

Values = Sequence[
    Any
]  # a range becomes a slider over integers, numbers become a slider over them, texts a list


def explore(
    draw: Callable[..., Picture], text: str, *, start: Mapping[str, Any] | None = None, **values: Values
) -> None:
    """Show `draw` at the start values (the first of each, unless `start` gives others), then its controls.

    `text` says what the controls do, and replaces them where no notebook kernel runs.
    """
    first = first_values(values, start or {})
    draw(**first).show()
    at = ", ".join(f"{name.replace('_', ' ')} = {value}" for name, value in first.items())
    display_widget(controls(draw, values, first), f"{text}; the picture above is its state at {at}")


def first_values(values: Mapping[str, Values], start: Mapping[str, Any]) -> dict[str, Any]:
    """Return the start value of each control.

    Raises:
        ValueError: a control has no values, or a start value is not among its values.
    """
    for name, offered in values.items():
        if not len(offered):
            raise ValueError(f"explore: {name} has no values to choose from")
        if name in start and start[name] not in offered:
            raise ValueError(f"explore: {name} = {start[name]!r} is not one of its values")
    if unknown := sorted(set(start) - set(values)):
        raise ValueError(f"explore: start names {unknown[0]}, which has no values to choose from")
    return {name: start.get(name, offered[0]) for name, offered in values.items()}


def controls(
    draw: Callable[..., Picture], values: Mapping[str, Values], start: Mapping[str, Any] | None = None
) -> widgets.VBox:
    """Build a control for each name, with the picture and text of the current values below."""
    first = first_values(values, start or {})
    chosen = {name: _control(name, values[name], first[name]) for name in values}
    frame = PictureFrame()

    def redraw(_: Any = None) -> None:
        frame.put(draw(**{name: control.value for name, control in chosen.items()}))

    for control in chosen.values():
        control.observe(redraw, names="value")
    redraw()
    return widgets.VBox([*chosen.values(), frame.image, frame.words])


class PictureFrame:
    """A widget that shows a picture with its alt text, and its summary below."""

    def __init__(self) -> None:
        self.image, self.words = widgets.HTML(), widgets.HTML()

    def put(self, picture: Picture) -> None:
        """Replace the shown picture."""
        width = round(picture.fig.get_size_inches()[0] * 96)
        data = base64.b64encode(to_png(picture.fig)).decode()
        # Not widgets.Image, which has no alt text.
        self.image.value = (
            f'<img src="data:image/png;base64,{data}" alt="{html.escape(picture.alt)}" '
            f'style="width: {width}px; max-width: 100%">'
        )
        self.words.value = html.escape(picture.summary)


def _control(name: str, values: Values, start: Any) -> Any:
    style = {"description_width": "initial"}
    common = {"description": name.replace("_", " "), "continuous_update": False, "style": style}
    layout = widgets.Layout(width="90%")
    if isinstance(values, range):
        return widgets.IntSlider(
            value=start, min=values[0], max=values[-1], step=values.step, layout=layout, **common
        )
    if all(isinstance(value, int | float) for value in values):
        return widgets.SelectionSlider(value=start, options=list(values), layout=layout, **common)
    return widgets.Dropdown(value=start, options=list(values), description=common["description"], style=style)
