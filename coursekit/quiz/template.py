"""Number questions: fresh parameters, and every number computed from them by the reference implementation (chapter 8).

    draw      parameters, each from its stated values; drawn again until `where` holds
    given     lines that run with them, mostly a call of `paged_ref`
    answer    an expression; `wrong`: expressions for what one gets by a named mistake
    stem, explanation   texts in which {name}, {name:,} or {name:.1f} is filled in; {answer} in the explanation

Files of questions are part of this repository, like its code: their expressions are run as they stand. What must
hold: the same seed gives the same question; a wrong result differs from the right one, whatever is drawn.
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
        BankError: a line, an expression or a place in a text does not work, or no draw fulfils `where`.
    """
    rng = random.Random(f"{question.id} {seed}")
    values = _draw(question, rng)
    names: dict[str, Any] = dict(values)
    _run(question, "imports", question.imports, names)
    names.update(values)
    _run(question, "given", question.given, names)
    answer = _number(question, "answer", question.answer, names)
    wrong = tuple((_number(question, "wrong", one.text, names), one.why) for one in question.wrong)
    texts = names | {"answer": answer}
    return Instance(
        values,
        _text(question, "stem", question.stem, names),
        answer,
        tuple((value, _text(question, "wrong", why, texts)) for value, why in wrong),
        _text(question, "explanation", question.explanation, texts),
    )


def _draw(question: Number, rng: random.Random) -> dict[str, Any]:
    for _ in range(_TRIES):
        values = {name: rng.choice(choices) for name, choices in question.draw.items()}
        if not question.where or _evaluate(question, "where", question.where, dict(values)):
            return values
    raise BankError(f"question {question.id!r}: none of {_TRIES} draws fulfils where = {question.where!r}")


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
