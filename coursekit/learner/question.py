"""A Predict box: a question that the learner answers before the cell below it runs.

In the source of a lesson it is a raw cell of YAML; its kind follows from the answer's key:

    # %% [raw] predict="1-bytes"
    # question: How many bytes does one token leave behind?
    # number: 327_680                    or `choice: the right option` with `options: [...]`,
    # unit: bytes                        or `order: [first, second, third]`, which is shown sorted
    # tolerance: 0.1                     relative; 0 if it is missing
    # replies: {2_621_440: "…"}          what a likely wrong guess is told
    # shown: "327,680"                   text in the output of the answering cell; numbers and orders have a default

Invariants: a question never shows its answer; `judge` accepts any text and never raises.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from coursekit import ROOT

KINDS = ("number", "choice", "order")
_KEYS = {"question", *KINDS, "options", "unit", "tolerance", "replies", "shown"}
_CELL = re.compile(r'^# %% \[raw\] predict="([^"\n]+)"[^\n]*\n((?:#[^\n]*\n?)*)', re.M)
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)(e[-+]?\d+)?", re.I)


class BadQuestion(ValueError):
    """A Predict box that cannot be used; the message says what is wrong with it."""


@dataclass(frozen=True)
class Reply:
    """The verdict on one guess. `right` is None if the text could not be read as a guess."""

    right: bool | None
    text: str


@dataclass(frozen=True)
class Question:
    """One Predict box. `answer` is a number, an option, or the options in their right order."""

    id: str
    kind: str
    text: str
    answer: Any
    options: tuple[str, ...] = ()
    unit: str = ""
    tolerance: float = 0.0
    replies: dict[str, str] = field(default_factory=dict)
    shown: tuple[str, ...] = ()

    @property
    def letters(self) -> dict[str, str]:
        """The options by letter: A, B, C and so on."""
        return {chr(ord("A") + number): option for number, option in enumerate(self.options)}

    @property
    def markdown(self) -> str:
        """The question as a quote block, with its options."""
        lines = f"**Predict.** {self.text.strip()}".splitlines()
        if self.options:
            lines += ["", *(f"- **{letter}** {option}" for letter, option in self.letters.items())]
        return "\n".join(f"> {line}".rstrip() for line in lines)

    @property
    def wanted(self) -> str:
        """The form of a guess, such as "a number of bytes"."""
        if self.kind == "number":
            return f"a number ({self.unit})" if self.unit else "a number"
        letters = ", ".join(self.letters)
        return f"one of {letters}" if self.kind == "choice" else f"the letters {letters} in your order"

    def judge(self, guess: str) -> Reply:
        """Judge a guess as typed, without telling the answer."""
        judge = {"number": self._number, "choice": self._choice, "order": self._order}[self.kind]
        return judge(guess.strip())

    def _number(self, guess: str) -> Reply:
        value = read_number(guess, self.unit)
        if value is None:
            return Reply(None, "Type a number, such as 12 or 3.5.")
        if _close(value, self.answer, self.tolerance):
            return Reply(True, "Right." if value == self.answer else "Close enough.")
        for wrong, reply in self.replies.items():
            if _close(value, float(wrong), self.tolerance or 0.005):
                return Reply(False, reply)
        return Reply(False, f"Not yet: {_how_far(value, self.answer)}.")

    def _choice(self, guess: str) -> Reply:
        option = self.letters.get(guess.upper().strip(" .)"), guess)
        if option not in self.options:
            return Reply(None, f"Choose {self.wanted}.")
        if option == self.answer:
            return Reply(True, "Right.")
        return Reply(False, self.replies.get(option, "Not that one."))

    def _order(self, guess: str) -> Reply:
        letters = re.findall(r"[A-Z]", guess.upper())
        if sorted(letters) != list(self.letters):
            return Reply(None, f"Type each of {', '.join(self.letters)} once, in your order.")
        order = [self.letters[letter] for letter in letters]
        if order == list(self.answer):
            return Reply(True, "Right.")
        at = next(i for i, (one, other) in enumerate(zip(order, self.answer, strict=True)) if one != other)
        told = "Not yet: the first place is wrong." if at == 0 else f"Not yet: right up to place {at}."
        return Reply(False, self.replies.get("".join(letters), told))


def parse(id: str, text: str) -> Question:
    """Return the question that a box's YAML describes; raises BadQuestion."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BadQuestion(f"the Predict box {id} is not valid YAML: {error}") from None
    kinds = [kind for kind in KINDS if isinstance(data, dict) and kind in data]
    if (
        not isinstance(data, dict)
        or set(data) - _KEYS
        or len(kinds) != 1
        or not str(data.get("question", ""))
    ):
        raise BadQuestion(
            f"the Predict box {id} needs `question` and one of {', '.join(KINDS)}; it may have "
            "options, unit, tolerance, replies and shown"
        )
    kind = kinds[0]
    listed = [*data.get("options", ()), *(data[kind] if isinstance(data[kind], list) else [data[kind]])]
    if kind != "number" and not all(isinstance(item, str) for item in listed):
        raise BadQuestion(
            f"the Predict box {id}: put quotes around options that YAML does not read as text, such as 'No'"
        )
    answer, options = data[kind], tuple(str(option) for option in data.get("options", ()))
    if kind == "number" and (isinstance(answer, bool) or not isinstance(answer, int | float)):
        raise BadQuestion(f"the Predict box {id}: number: {answer!r} is not a number")
    if kind == "choice" and (str(answer) not in options or len(set(options)) != len(options)):
        raise BadQuestion(f"the Predict box {id}: choice must be one of its options, which must differ")
    if kind == "order":
        if not isinstance(answer, list) or len({str(item) for item in answer}) < max(2, len(answer)):
            raise BadQuestion(f"the Predict box {id}: order must list two or more different things")
        answer = tuple(str(item) for item in answer)
        options = tuple(sorted(answer))
    shown = data.get("shown", f"{answer:,}" if kind == "number" else answer if kind == "order" else None)
    if shown is None:
        raise BadQuestion(
            f"the Predict box {id}: a choice needs `shown`, a text of the answering cell's output"
        )
    return Question(
        id, kind, str(data["question"]), str(answer) if kind == "choice" else answer, options,
        str(data.get("unit", "")), float(data.get("tolerance", 0)),
        {str(key): str(value) for key, value in (data.get("replies") or {}).items()},
        tuple(map(str, shown)) if isinstance(shown, list | tuple) else (str(shown),),
    )  # fmt: skip


def questions(text: str) -> dict[str, Question]:
    """Return the Predict boxes of a lesson's source, in order; raises BadQuestion."""
    found: dict[str, Question] = {}
    for id, lines in _CELL.findall(text):
        if id in found:
            raise BadQuestion(f"two Predict boxes are called {id}")
        found[id] = parse(id, re.sub(r"^# ?", "", lines, flags=re.M))
    return found


def find(id: str, root: Path = ROOT) -> Question:
    """Return a question by its id, `CHAPTER-name`; raises KeyError if no lesson has it."""
    chapter = id.partition("-")[0]
    pattern = f"{int(chapter):02}_*.py" if chapter.isdecimal() else ""
    for path in sorted((root / "curriculum/lessons").glob(pattern)) if pattern else ():
        if question := questions(path.read_text(encoding="utf-8")).get(id):
            return question
    raise KeyError(f"no lesson has a Predict box {id!r}")


def read_number(text: str, unit: str = "") -> float | None:
    """Read a number as people type it: `327,680`, `3e5`, `95 %`, `2.5x`; None if it is not one."""
    plain = text.strip().removesuffix(unit).strip() if unit else text.strip()
    plain = re.sub(r"\s*(%|[x×]|times)$", "", plain, flags=re.I)
    plain = re.sub(r"(?<=\d)[,_\s'](?=\d{3}(?!\d))", "", plain)
    value = float(plain) if _NUMBER.fullmatch(plain) else math.nan
    return value if math.isfinite(value) else None


def _close(value: float, target: float, tolerance: float) -> bool:
    return value == target or abs(value - target) <= tolerance * abs(target)


def _how_far(value: float, answer: float) -> str:
    direction = "too high" if value > answer else "too low"
    if value <= 0 or answer <= 0:
        return direction
    ratio = max(value / answer, answer / value)
    return f"{direction}, by a factor of about {ratio:,.0f}" if ratio >= 1.8 else f"a little {direction}"
