"""Number questions: fresh parameters, and every number computed from them by the reference implementation (chapter 10).

    draw      parameters, each from its stated values
    given     lines that run with them, mostly a call of `paged_ref`
    where     what must then hold, or else all is drawn again
    answer    an expression; `wrong`: expressions for what one gets by a named mistake
    stem, explanation   texts in which {name}, {name:,} or {name:.1f} is filled in; {answer} in the explanation

Files of questions are part of this repository, like its code: their expressions are run as they stand. What must
hold: the same seed gives the same question; a wrong result is never the right one, by twice the tolerance (values that
break this are drawn again, too).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from coursekit.quiz.bank import BankError, Number

_TRIES = 1000


@dataclass(frozen=True)
class Instance:
    """A template with numbers in it. `wrong` are (value, why), in the order of the file."""

    values: dict[str, Any]
    stem: str
    answer: int | float
    wrong: tuple[tuple[int | float, str], ...]
    explanation: str


def fill_in(question: Number, seed: int) -> Instance:
    """The question with the parameters of this seed.

    Raises:
        BankError: a line, an expression or a place in a text does not work, or no draw will do.
    """
    rng = random.Random(f"{question.id} {seed}")
    for _ in range(_TRIES):
        values = {name: rng.choice(choices) for name, choices in question.draw.items()}
        instance = _with_values(question, values)
        if instance is not None:
            return instance
    raise BankError(
        f"question {question.id!r}: in {_TRIES} draws `where` never held, or a named mistake always gave the answer"
    )


def _with_values(question: Number, values: dict[str, Any]) -> Instance | None:
    """The instance, or None if these values will not do."""
    names: dict[str, Any] = {}
    _run(question, "imports", question.imports, names)
    names.update(values)
    _run(question, "given", question.given, names)
    if question.where and not _evaluate(question, "where", question.where, names):
        return None
    answer = _number(question, "answer", question.answer, names)
    wrong = [(_number(question, "wrong", one.text, names), one.why) for one in question.wrong]
    if any(close(value, answer, 2 * question.tolerance) for value, _ in wrong):
        return None
    texts = names | {"answer": answer}
    return Instance(
        values,
        _text(question, "stem", question.stem, names),
        answer,
        tuple((value, _text(question, "wrong", why, texts)) for value, why in wrong),
        _text(question, "explanation", question.explanation, texts),
    )


def close(value: float, right: float, tolerance: float) -> bool:
    """Whether a value counts as the right one."""
    return abs(value - right) <= max(tolerance, 1e-9) * abs(right)


def _run(question: Number, key: str, lines: str, names: dict[str, Any]) -> None:
    try:
        exec(lines, names)
    except Exception as error:
        raise BankError(f"question {question.id!r}: {key} raises {type(error).__name__}: {error}") from error


def _evaluate(question: Number, key: str, expression: str, names: dict[str, Any]) -> Any:
    try:
        return eval(expression, names)
    except Exception as error:
        told = f"question {question.id!r}: {key} {expression!r} raises {type(error).__name__}: {error}"
        raise BankError(told) from error


def _number(question: Number, key: str, expression: str, names: dict[str, Any]) -> int | float:
    value = _evaluate(question, key, expression, names)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BankError(f"question {question.id!r}: {key} {expression!r} gives {value!r}, which is no number")
    return int(value) if float(value).is_integer() else value


def _text(question: Number, key: str, text: str, names: dict[str, Any]) -> str:
    try:
        return text.format_map(names)
    except Exception as error:
        told = f"question {question.id!r}: {key} {text!r}: {type(error).__name__}: {error}"
        raise BankError(told) from error
