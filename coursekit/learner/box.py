"""The input below a Predict box: type a guess, get a reply, then run the next cell.

The guess is optional. It is judged at once, kindly and without telling the answer, and remembered in `guesses.py`. A
page without a running notebook kernel shows one fixed line instead, and nbval compares only that line.
"""

from __future__ import annotations

import html
from typing import Any

import ipywidgets as widgets

from coursekit.learner import guesses
from coursekit.learner.question import Question, Reply, find
from coursekit.views.style import display_widget

_WIDTH = "min(28rem, 95%)"


def show_box(id: str) -> None:
    """Show the input for one question; raises KeyError if no lesson has it."""
    question = find(id)
    display_widget(make_box(question), f"run this cell to type your guess, {question.wanted}")


def make_box(question: Question) -> widgets.VBox:
    """Build the input, a button and the reply; an earlier guess is filled in."""
    entry, reply = _entry(question), widgets.HTML()
    button = widgets.Button(
        description="Check my guess", icon="check", tooltip="Judge the guess and remember it"
    )
    unit = [widgets.Label(question.unit)] if question.unit else []

    def answer(_: Any = None) -> None:
        guess = str(entry.value or "")
        if not guess.strip():
            reply.value = "Type a guess first, or run the next cell without one."
            return
        told = question.judge(guess)
        trouble = guesses.save(question.id, guess.strip(), told.right) if told.right is not None else ""
        reply.value = _shown(told, trouble)

    button.on_click(answer)
    if earlier := guesses.load().get(question.id):
        if question.kind != "choice" or earlier.last in question.options:
            entry.value = earlier.last
        reply.value = f"Your last guess: <b>{html.escape(earlier.last)}</b>. You can change it."
    entry.observe(answer, names="value")
    return widgets.VBox([widgets.HBox([entry, *unit, button]), reply])


def _entry(question: Question) -> Any:
    if question.kind == "choice":
        return widgets.RadioButtons(
            options=list(question.options), value=None, layout=widgets.Layout(width=_WIDTH)
        )
    return widgets.Text(
        placeholder=question.wanted, continuous_update=False, layout=widgets.Layout(width="16rem")
    )


def _shown(reply: Reply, trouble: str) -> str:
    text = html.escape(reply.text)
    if reply.right is None:
        return text
    then = "Run the next cell to see it." if reply.right else "Guess again, or run the next cell to see."
    note = f" <i>({html.escape(trouble)})</i>" if trouble else ""
    return f"<b>{text}</b> {then}{note}" if reply.right else f"{text} {then}{note}"
