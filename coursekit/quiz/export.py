"""Export of a finished test as Markdown, and of the bank as flash cards for Anki (chapter 10). Needs no package.

Anki imports a tab-separated text file; the `#` lines at its top declare the format, and that fields are HTML. The first
column identifies each card, so a later import updates cards and keeps Anki's scheduling data.
"""

from __future__ import annotations

import csv
import datetime
import html
import io
import re
from collections.abc import Iterable

from coursekit.quiz.bank import Bank, Code, Open, Question
from coursekit.quiz.judge import LETTERS, Item, ask
from coursekit.quiz.session import Answered, Test


def where(question: Question) -> str:
    """Return the place of the cell that shows the answer."""
    return f"notebooks/{question.lesson}.ipynb, the cell with {question.cell!r}"


def test_as_markdown(bank: Bank, test: Test, day: datetime.date) -> str:
    """Format each question with the learner's answer, the right answer and the reason."""
    score = sum(one.score for one in test.answered)
    head = {"test": "Interview test", "daily": "Daily challenge", "exam": "Exam"}[test.name]
    parts = [f"# {head}, {day.isoformat()}", f"{score:g} of {len(test.answered)} points."]
    for number, one in enumerate(test.answered, 1):
        question = one.item.question
        parts.append(f"## {number} · {bank.topics[question.topic]} · level {question.level}")
        parts += [question_as_markdown(one.item), *_what_was_said(one), answer_as_markdown(one.item)]
    return "\n\n".join(parts) + "\n"


test_as_markdown.__test__ = False  # type: ignore[attr-defined]  # pytest: this is not a test


def question_as_markdown(item: Item) -> str:
    """Format the question."""
    parts = [_prose(item.stem)]
    if isinstance(item.question, Code):
        parts.append(_fenced(item.question.code))
    parts += ["\n".join(f"- {LETTERS[i]}) {_prose(text)}" for i, (text, _) in enumerate(item.options))]
    return "\n\n".join(part for part in parts if part)


def answer_as_markdown(item: Item) -> str:
    """Format the right answer, the reasons, why the others are wrong, and where it is shown."""
    question = item.question
    if isinstance(question, Code):
        parts = [f"**Answer.**\n\n{_fenced(question.answer)}"]
    else:
        parts = [f"**Answer.** {_prose(item.answer)}"]
    if isinstance(question, Open):
        parts.append("\n".join(f"- [ ] {_prose(point)}" for point in question.rubric))
    parts.append(_prose(item.explanation))
    reasons = [f"- {LETTERS[i]}) {_prose(why)}" for i, (_, why) in enumerate(item.options) if why]
    parts += ["\n".join(reasons)] if reasons else []
    parts.append(f"Shown by {escaped(where(question))}. Source: {_prose(question.source).rstrip('.')}.")
    return "\n\n".join(parts)


def folded(items: Iterable[Item]) -> str:
    """Format questions with their answers folded: the view of a page without a notebook kernel."""
    parts = []
    for number, item in enumerate(items, 1):
        parts.append(f"**{number}.** {question_as_markdown(item)}")
        parts.append(f"<details><summary>Answer</summary>\n\n{answer_as_markdown(item)}\n\n</details>")
    return "\n\n".join(parts)


def _what_was_said(one: Answered) -> list[str]:
    typed = one.typed.strip()
    if isinstance(one.item.question, Code) and typed:
        said = f"**Your answer.**\n\n{_fenced(typed)}"
    else:
        quoted = "\n".join(f"> {escaped(line)}" for line in typed.splitlines()) or "> (none)"
        said = f"**Your answer.**\n\n{quoted}"
    mark = "right" if one.score == 1 else "not right" if one.score == 0 else f"{one.score:.0%}"
    return [said, f"**{mark.capitalize()}.** {_prose(one.verdict.reply)}".strip()]


def escaped(text: str) -> str:
    """Escape a text so that Markdown shows exactly these characters, line by line."""
    # An underscore inside a word is not markup, and a text full of backslashes is hard to read as plain text.
    text = re.sub(r"[\\`*\[\]<>$#|~&]|(?<!\w)_|_(?!\w)", r"\\\g<0>", text)
    return text.replace("\n", "  \n")


def _prose(text: str) -> str:
    """Format a text of the bank as Markdown: `code` stays code, everything else is shown literally."""
    pieces = re.split(r"(`[^`\n]+`)", text)
    return "".join(piece if i % 2 else escaped(piece) for i, piece in enumerate(pieces))


def _fenced(code: str) -> str:
    """Put code into a fence that is longer than any fence in it."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", code)), default=0))
    return f"{fence}python\n{code}\n{fence}"


def cards(bank: Bank) -> str:
    """Export the whole bank for Anki: File, Import."""
    head = [
        "#separator:tab",
        "#html:true",
        "#guid column:1",
        "#notetype:Basic",
        "#deck:PagedAttention interview",
        "#tags column:4",
    ]
    head.append("#columns:id\tFront\tBack\tTags")
    buffer = io.StringIO()
    writer = csv.writer(buffer, delimiter="\t", lineterminator="\n")
    for question in bank:
        item = ask(question, 0)
        tags = f"paged-attention chapter-{question.chapter} level-{question.level} {question.topic}"
        writer.writerow([f"paged-{question.id}", _front(item), _back(item), tags])
    return "\n".join(head) + "\n" + buffer.getvalue()


def _front(item: Item) -> str:
    parts = [_html(item.stem)]
    if isinstance(item.question, Code):
        parts.append(_pre(item.question.code))
    parts += [f"{LETTERS[i]}) {_html(text)}" for i, (text, _) in enumerate(item.options)]
    return "<br>".join(parts)


def _back(item: Item) -> str:
    question = item.question
    parts = [_pre(question.answer) if isinstance(question, Code) else f"<b>{_html(item.answer)}</b>"]
    if isinstance(question, Open):
        parts += [f"• {_html(point)}" for point in question.rubric]
    parts.append(_html(item.explanation))
    parts += [f"{LETTERS[i]}) {_html(why)}" for i, (_, why) in enumerate(item.options) if why]
    parts.append(f"<small>{_html(where(question))}</small>")
    return "<br>".join(parts)


def _html(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", _line(text))


def _line(text: str) -> str:
    """Format as one line of HTML without tabs; characters that Anki treats as formulas or sounds are escaped."""
    shown = html.escape(text).replace("\\", "&#92;").replace("[sound:", "&#91;sound:")
    return shown.replace("\n", "<br>").replace("\t", "    ").replace("\r", "")


def _pre(code: str) -> str:
    return f'<pre style="text-align: left">{_line(code)}</pre>'
