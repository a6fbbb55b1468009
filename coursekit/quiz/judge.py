"""One question as asked, and the verdict on an answer (chapter 10).

`ask` makes an `Item` from a question and a seed: options shuffled, numbers drawn. `judge` takes the typed or clicked
answer and returns a score and *what went wrong*. It never guesses: input that it cannot read raises `Unclear`, and
where only the learner can decide (open questions, a short answer in other words) it returns points to tick.

Invariants: the same question and seed give the same item; no typed input raises anything but `Unclear`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from coursekit.quiz.bank import Choice, Code, Number, Open, Question, Short
from coursekit.quiz.code_check import run_check
from coursekit.quiz.dice import Dice
from coursekit.quiz.template import Instance, close, fill_in

LETTERS = "abcde"
_BYTES = {"b": 1, "byte": 1, "bytes": 1} | {
    f"{prefix}{i}b": base**power
    for power, prefix in enumerate("kmgt", 1)
    for i, base in (("", 1000), ("i", 1024))
}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}
_CONVERTED = 0.005  # an answer in another unit is usually rounded


class Unclear(ValueError):
    """The answer cannot be read. The message says what is accepted; ask again, nothing is counted."""


@dataclass(frozen=True)
class Item:
    """A question with its options in order, or with its drawn numbers.

    Attributes:
        stem: the text to show.
        options: of a choice, each (text, why it is wrong, or "" for the right one).
        numbers: of a number question.
    """

    question: Question
    seed: int
    stem: str
    options: tuple[tuple[str, str], ...] = ()
    numbers: Instance | None = None

    @property
    def guess(self) -> float:
        """The probability of being right by blind guessing."""
        return 1 / len(self.options) if self.options else 0.0

    @property
    def answer(self) -> str:
        """The right answer, as text."""
        if self.options:
            right = next(i for i, (_, why) in enumerate(self.options) if not why)
            return f"{LETTERS[right]}) {self.options[right][0]}"
        if self.numbers and isinstance(self.question, Number):
            return told(self.numbers.answer, self.question.unit)
        return self.question.answer

    @property
    def explanation(self) -> str:
        """Why."""
        return self.numbers.explanation if self.numbers else self.question.explanation


@dataclass(frozen=True)
class Verdict:
    """The verdict on an answer. `score` is None if the learner must tick which of the `points` it has."""

    score: float | None
    reply: str
    points: tuple[str, ...] = ()

    def scored(self, ticked: int) -> Verdict:
        """Return the verdict once this many points are ticked.

        Raises:
            Unclear: the number is larger than the number of points.
        """
        if not 0 <= ticked <= len(self.points):
            raise Unclear(f"There are {len(self.points)} points: give a number from 0 to {len(self.points)}.")
        return Verdict(ticked / len(self.points), f"{ticked} of {len(self.points)} points.", self.points)


def ask(question: Question, seed: int) -> Item:
    """Return the question, shuffled and filled in according to the seed."""
    if isinstance(question, Choice):
        options = [(question.answer, "")] + [(wrong.text, wrong.why) for wrong in question.wrong]
        shuffled = Dice(f"{question.id} {seed}").shuffled(options)
        return Item(question, seed, question.stem, options=tuple(shuffled))
    if isinstance(question, Number):
        numbers = fill_in(question, seed)
        return Item(question, seed, numbers.stem, numbers=numbers)
    return Item(question, seed, question.stem)


def judge(item: Item, typed: str) -> Verdict:
    """Return the verdict on this answer. For a code question the answer is the whole source.

    Raises:
        Unclear: the answer cannot be read.
    """
    if len(typed) > 20_000:
        raise Unclear("That is too long for an answer.")
    match item.question:
        case Choice():
            return _choice(item, typed)
        case Number() as question:
            return _number(item, question, typed)
        case Short() as question:
            return _short(question, typed)
        case Code() as question:
            return _code(question, typed)
        case Open() as question:
            return Verdict(None, "", question.rubric)
    raise TypeError(f"no such kind: {item.question.kind}")


def _choice(item: Item, typed: str) -> Verdict:
    letters = LETTERS[: len(item.options)]
    word = typed.strip().lower().rstrip(").")
    place = letters.find(word) if len(word) == 1 else -1
    if word.isdecimal() and word.isascii() and len(word) == 1:
        place = int(word) - 1
    if not 0 <= place < len(letters):
        raise Unclear(f"Please give a letter from {letters[0]} to {letters[-1]}.")
    why = item.options[place][1]
    return Verdict(0.0, why) if why else Verdict(1.0, "")


def _number(item: Item, question: Number, typed: str) -> Verdict:
    assert item.numbers is not None
    value, converted = read_number(typed, question.unit)
    right = item.numbers.answer
    tolerance = max(question.tolerance, _CONVERTED if converted else 0.0)
    readings = [value]
    if question.unit == "%" and "%" not in typed and abs(value) <= 1:
        readings.append(100 * value)  # a share
    if any(close(one, right, tolerance) for one in readings):
        return Verdict(1.0, "")
    whys = dict.fromkeys(why for wrong, why in item.numbers.wrong if close(value, wrong, tolerance))
    return Verdict(0.0, " Or: ".join(whys) or _factor(value, right))


def _factor(value: float, right: float) -> str:
    """Describe the ratio of the two values if it is a whole number."""
    if value and right:
        for ratio, words in ((value / right, "too large"), (right / value, "too small")):
            whole = round(ratio)
            if 2 <= whole <= 1024 and abs(ratio - whole) < 1e-6 * whole:
                return f"Your answer is {whole} times {words}."
    return ""


def read_number(typed: str, unit: str) -> tuple[float, bool]:
    """Return the number in the question's unit, and whether it was converted from another unit.

    Raises:
        Unclear: there is no number, or a unit that does not fit the question.
    """
    text = (
        typed.strip()
        .lstrip("$€≈~= ")
        .replace("\N{NO-BREAK SPACE}", " ")
        .replace("\N{NARROW NO-BREAK SPACE}", " ")
        .replace("\N{MINUS SIGN}", "-")
    )
    found = re.fullmatch(r"([-+]?[\d][\d.,_' ]*(?:[eE][-+]?\d{1,3})?|[-+]?\.\d+)\s*([^\d]*)", text, re.ASCII)
    if not found:
        raise Unclear(f"Please give a number{_in(unit)}.")
    digits, word = found[1].strip().rstrip(".,"), found[2].strip()
    digits = re.sub(r"[_' ]", "", digits)
    if re.fullmatch(r"[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?([eE].*)?", digits):
        digits = digits.replace(",", "")
    elif digits.count(",") == 1 and "." not in digits:
        digits = digits.replace(",", ".")  # a decimal comma
    try:
        value = float(digits)
    except ValueError:
        raise Unclear(f"{found[1].strip()!r} is not a single number{_in(unit)}.") from None
    if not math.isfinite(value):
        raise Unclear("That number is too large.")
    mine, theirs = unit.lower(), word.lower()
    for family in (_BYTES, _SECONDS):
        if theirs in family and mine in family and family[theirs] != family[mine]:
            return value * family[theirs] / family[mine], True
        if theirs in family and mine in family:
            return value, False
    if theirs and theirs.rstrip("s") != mine.rstrip("s"):
        raise Unclear(
            f"Please answer in {unit}, not in {word}."
            if unit
            else f"Please give a plain number, without {word!r}."
        )
    return value, False


def _in(unit: str) -> str:
    return f", in {unit}" if unit else ""


def told(value: int | float, unit: str) -> str:
    """Format a number for reading: 1,536 blocks; 0.2831 GB."""
    if isinstance(value, int):
        text = f"{value:,}"
    elif abs(value) >= 1000:
        text = f"{value:,.1f}"
    else:
        text = f"{value:.4g}"
    return f"{text} {unit}".strip()


def words_of(text: str) -> list[str]:
    """Split a short answer into words for comparison."""
    words = re.findall(r"[a-z0-9]+", re.sub(r"[-_/]", " ", text.lower()))
    return [word for word in words if word not in ("a", "an", "the", "its", "it", "is")]


def _short(question: Short, typed: str) -> Verdict:
    given = words_of(typed)
    if not given:
        raise Unclear("Please give a word or a few.")
    for wrong in question.wrong:
        if given == words_of(wrong.text):
            return Verdict(0.0, wrong.why)
    if any(_says(given, words_of(text)) for text in (question.answer, *question.accept)):
        return Verdict(1.0, "")
    return Verdict(None, f"The answer is: {question.answer}.", ("I meant the same",))


def _says(given: list[str], wanted: list[str]) -> bool:
    """Return True if the wanted words occur consecutively in the answer, among at most three other words."""
    if len(given) > len(wanted) + 3 or set(given) & {"not", "no", "never", "or", "than"} - set(wanted):
        return False
    size = len(wanted)
    return any(given[i : i + size] == wanted for i in range(len(given) - size + 1))


def _code(question: Code, source: str) -> Verdict:
    if source.strip() == question.code.strip():
        raise Unclear("Nothing has been changed yet.")
    passed, message = run_check(question, source)
    return Verdict(1.0, "The check passes.") if passed else Verdict(0.0, message)
