"""The trainer in a notebook: `trainer()` shows a test with ipywidgets, and questions to read below it (chapter 10).

It uses the same engine as the terminal. One button advances from state to state and takes the keyboard focus along:

    Answer  ->  (points to tick: Count)  ->  Next question  ->  …  ->  Another test

Tab moves between controls, Enter presses the button or submits a line. Options are clicked, or chosen by typing their
letter into a line, because JupyterLab takes arrow keys and letters typed elsewhere as its own commands. A stored
notebook has no notebook kernel: it keeps a line that describes the trainer, and the questions below, each with its
answer folded. Invariants: no input raises; the stored page does not depend on the person who views it.
"""

from __future__ import annotations

import asyncio
import html
import re
from typing import Any

import ipywidgets as widgets
from IPython.display import display

from coursekit.quiz import export, report
from coursekit.quiz.bank import LEVELS, Bank, Choice, Code, Number, Open, load_bank
from coursekit.quiz.choosing import Refused, choose
from coursekit.quiz.judge import LETTERS, Item, Unclear, Verdict
from coursekit.quiz.progress import Progress, load
from coursekit.quiz.session import Test, adaptive, exam
from coursekit.views.style import display_widget

_STYLE = """<style>
.quiz-trainer { max-width: 52em; padding: 0.8em; border: 1px solid var(--jp-border-color1, gray); border-radius: 6px; }
.quiz-trainer.quiz-trainer.quiz-trainer :focus-visible { outline: 3px solid #E69F00 !important; outline-offset: -2px; }
.quiz-trainer .quiz-option:disabled { opacity: 0.85; }
.quiz-trainer .widget-html-content { line-height: 1.5; }
.quiz-trainer textarea { font-family: var(--jp-code-font-family, monospace); line-height: 1.4; }
.quiz-trainer .quiz-option { height: auto; line-height: 1.5; white-space: normal; text-align: left; padding: 4px 10px; }
.quiz-trainer pre { line-height: 1.4; margin: 0; }
</style>"""
_ALL = "everything"
_LETTERS_ARRIVE = 0.25  # seconds


def trainer(
    topic: str | int | None = None, level: str | int | None = None, *, shown: int = 5, seed: int = 0
) -> None:
    """Show the trainer, starting with a topic (or a chapter number) and levels ("2-4"), and `shown` questions to read.

    Raises:
        Refused: there is no such topic or level.
    """
    bank = load_bank()
    view = Trainer(bank, load(), topic, level, seed=None)
    display_widget(
        view.box,
        "an interview test that adapts to your answers; the questions below are of the same kind. "
        "In a terminal: python3 course.py quiz",
    )
    choices = choose(bank, Progress(), None if topic is None else str(topic), level)
    items = exam(bank, Progress(), choices, min(shown, len(choices)), seed).plan if shown else []
    if items:
        text = f"{len(items)} questions to read, each with its answer folded"
        folded = f"**To read:** {text}.\n\n{export.folded(items)}"
        display({"text/markdown": folded, "text/plain": text}, raw=True)


class Trainer:
    """The widget and its state; `box` is the displayed widget."""

    def __init__(
        self,
        bank: Bank,
        progress: Progress,
        topic: str | int | None = None,
        level: str | int | None = None,
        seed: int | None = None,
    ) -> None:
        self.bank, self.progress, self.seed = bank, progress, seed
        self.test: Test | None = None
        self.item: Item | None = None
        self.waits = False  # waiting for letters that the page still sends
        self.pending: tuple[str, Verdict] | None = None  # an answer whose points are still to be ticked
        topics = [("everything", _ALL)] + [(f"chapter {one}", str(one)) for one in bank.chapters()]
        topics += [(title, key) for key, title in bank.topics.items()]
        levels = [("all levels", _ALL)] + [(f"level {one}", str(one)) for one in LEVELS]
        if level is not None and str(level) not in dict(levels).values():
            levels.append((f"levels {level}", str(level)))
        start = (_ALL if topic is None else str(topic), _ALL if level is None else str(level))
        choose(
            bank, progress, *(None if value == _ALL else value for value in start)
        )  # raises if they are invalid
        style = {"description_width": "initial"}
        self.topic = widgets.Dropdown(description="About", options=topics, value=start[0], style=style)
        self.level = widgets.Dropdown(description="of", options=levels, value=start[1], style=style)
        self.heading, self.stem, self.reply = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self.answer_area = widgets.VBox()
        self.button = widgets.Button(button_style="primary", layout=widgets.Layout(width="12em"))
        self.unknown = widgets.Button(description="I do not know", layout=widgets.Layout(width="10em"))
        self.box = widgets.VBox(
            [
                widgets.HTML(_STYLE),
                widgets.HBox([self.topic, self.level], layout=widgets.Layout(flex_flow="row wrap")),
                self.heading,
                self.stem,
                self.answer_area,
                widgets.HBox([self.button, self.unknown]),
                self.reply,
            ]
        )
        self.box.add_class("quiz-trainer")
        self.begin()
        self.button.on_click(lambda _: self.go_on_soon())
        self.unknown.on_click(lambda _: self.give_up())
        self.topic.observe(lambda _: self.begin(), names="value")
        self.level.observe(lambda _: self.begin(), names="value")

    def begin(self) -> None:
        """Start a new test of the chosen topic and levels."""
        chosen = [None if box.value == _ALL else box.value for box in (self.topic, self.level)]
        try:
            choices = choose(self.bank, self.progress, *chosen)
        except Refused as error:
            self.test = self.item = None
            self._show("", "", [], "", str(error))
            return
        self.test = adaptive(self.bank, self.progress, choices, self.seed)
        self.next_question()

    def next_question(self) -> None:
        """Show the next question, or the result."""
        assert self.test is not None
        self.item, self.pending = self.test.next(), None
        if self.item is None:
            self._result(self.test)
            return
        question, number = self.item.question, len(self.test.answered) + 1
        heading = (
            f"{number} of {self.test.length} · {self.bank.topics[question.topic]} · level {question.level}"
        )
        self.field = self._field(self.item)
        area = [self._options(self.item, self.field), self.field] if self.item.options else [self.field]
        label = "Show a strong answer" if isinstance(question, Open) else "Answer"
        self._show(heading, self.item.stem, area, label, "", can_give_up=True)

    def go_on_soon(self) -> None:
        """Continue once all typed letters are here: the page sends them one by one, and Enter overtakes them."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # not in a notebook kernel
            self.go_on()
            return
        if not self.waits:
            self.waits = True
            loop.call_later(_LETTERS_ARRIVE, self.go_on)

    def go_on(self) -> None:
        """Handle the button, or Enter in a line."""
        self.waits = False
        if self.test is None or self.item is None:
            self.begin()
            self._lead()
        elif self.pending:
            self._count(self.test, self.item, *self.pending)
        elif self.button.description.startswith("Next") or self.button.description.startswith("Result"):
            self.next_question()
            self._lead()
        else:
            self._answer(self.test, self.item)

    def give_up(self) -> None:
        """Record that the learner does not know the answer."""
        if self.test and self.item and not self.unknown.disabled:
            self.pending = None
            self._told(self.item, self.test.give_up(self.item))

    def _lead(self) -> None:
        """Move the keyboard focus to the button, and on to the field if it can take it."""
        self.button.focus()
        if self.item is not None and not self.field.disabled:
            self.field.focus()

    def _answer(self, test: Test, item: Item) -> None:
        typed = str(self.field.value)
        if isinstance(item.question, Code):
            self.reply.value = "Running the course's check …"
        try:
            verdict = test.answer(item, typed)
        except Unclear as error:
            self.reply.value = _html(str(error))
            return
        if verdict.score is not None:
            self._told(item, verdict)
            return
        self.pending = typed, verdict
        self.points = [
            widgets.Checkbox(description=point, indent=False, layout=widgets.Layout(width="100%"))
            for point in verdict.points
        ]
        said = verdict.reply or f"A strong answer:\n{item.answer}\n\nWhich of these did yours say?"
        words = widgets.HTML(_html(said))
        self.answer_area.children = (self.field, words, *self.points)
        self.button.focus()
        self.field.disabled = True
        self.button.description, self.reply.value = "Count", ""

    def _count(self, test: Test, item: Item, typed: str, verdict: Verdict) -> None:
        scored = verdict.scored(sum(box.value for box in self.points))
        test.keep(item, typed, scored)
        self.pending = None
        self._told(item, scored)

    def _told(self, item: Item, verdict: Verdict) -> None:
        """Show the verdict on an answer; the button then leads to the next question."""
        assert self.test is not None
        question, score = item.question, verdict.score or 0.0
        if score == 1:
            parts = ["<b>✓ Right.</b>"]
        else:
            parts = [f"<b>✗ {_html(verdict.reply or 'Not right.')}</b>"]
            if isinstance(question, Code):
                parts.append(f"<pre>{html.escape(question.answer)}</pre>")
            elif not verdict.points:  # with points, the answer has been shown
                parts.append(f"The answer is <b>{_html(item.answer)}</b>.")
        if isinstance(question, Open):
            parts[0] = f"<b>{verdict.reply or 'Not answered.'}</b>"
        parts += [_html(item.explanation), f"<small>See {_html(export.where(question))}.</small>"]
        if self.test.progress.notice:
            parts.append(_html(self.test.progress.notice))
            self.test.progress.notice = ""
        self.reply.value = '<div role="status">' + "<br>".join(parts) + "</div>"
        self.button.focus()  # move the focus before the field, which may have it, is disabled
        for area in (self.answer_area, *self.answer_area.children):
            for control in getattr(area, "children", ()):
                if hasattr(control, "disabled"):
                    control.disabled = True
        self.unknown.disabled = True
        last = len(self.test.answered) >= self.test.length
        self.button.description = "Result" if last else "Next question"

    def _result(self, test: Test) -> None:
        score = sum(one.score for one in test.answered)
        said = [f"<b>{score:g} of {len(test.answered)} points.</b>"]
        said += [
            html.escape(line).replace("  ", "&nbsp;&nbsp;") for line in report.lines(self.bank, self.progress)
        ]
        self._show("Result", "", [], "Another test", "")
        self.reply.value = "<br>".join(said)

    def _field(self, item: Item) -> Any:
        """Build the control that takes the answer."""
        question = item.question
        wide = widgets.Layout(width="auto")  # the full width, minus the margins
        if isinstance(question, Code):
            wide.height = f"{1.45 * (len(question.code.splitlines()) + 2):.0f}em"
            return widgets.Textarea(value=question.code, layout=wide)
        if isinstance(question, Open):
            return widgets.Textarea(placeholder="Say it aloud, or write it down", layout=wide)
        unit = question.unit if isinstance(question, Number) else ""
        hint = f"in {unit}" if unit else "a number" if isinstance(question, Number) else "a word or a few"
        if isinstance(question, Choice):
            hint = f"or type: {LETTERS[0]} to {LETTERS[len(item.options) - 1]}"
        line = widgets.Text(placeholder=hint, layout=widgets.Layout(width="20em"))
        line.on_msg(lambda _, content, __: self.go_on_soon() if content.get("event") == "submit" else None)
        return line

    def _options(self, item: Item, line: Any) -> Any:
        """Build a choice's options as buttons; a click puts the letter into the line, and Enter submits it."""
        buttons = {}
        for letter, (text, _) in zip(LETTERS, item.options, strict=False):
            button = widgets.Button(
                description=f"{letter}) {text}", tabbable=False, layout=widgets.Layout(width="100%")
            )
            button.add_class("quiz-option")
            button.on_click(lambda _, letter=letter: (line.set_trait("value", letter), line.focus()))
            buttons[letter] = button

        def mark(change: Any) -> None:
            for letter, button in buttons.items():
                chosen = letter == change["new"].strip().lower()
                button.icon, button.button_style = ("check", "info") if chosen else ("", "")

        line.observe(mark, names="value")
        # A scrollable box without focusable content would be a tab stop of its own.
        return widgets.VBox(list(buttons.values()), layout=widgets.Layout(overflow="visible"))

    def _show(
        self, heading: str, stem: str, area: list[Any], button: str, reply: str, can_give_up: bool = False
    ) -> None:
        self.heading.value = f"<b>{_html(heading)}</b>" if heading else ""
        self.stem.value = _html(stem)
        self.answer_area.children = tuple(area)
        self.button.description = button or "Start"
        self.unknown.disabled = not can_give_up
        self.reply.value = _html(reply)


def _html(text: str) -> str:
    """Convert a text to HTML: line breaks are kept, `code` is code."""
    lines = html.escape(text).replace("\n", "<br>")
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", lines)
