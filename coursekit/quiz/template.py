"""Number questions: fresh parameters, and every number computed from them by the reference implementation (chapter 10).

    draw      parameters, each from its listed values
    given     lines that run with them, usually a call of `paged_ref`
    where     a condition on the result; if it is false, all parameters are drawn again
    answer    an expression; `wrong`: expressions for the results of named mistakes
    stem, explanation   texts with placeholders {name}, {name:,} or {name:.1f}; {answer} in the explanation

Question files are part of this repository, like its code, so their expressions are run unchecked. Invariants: the same
seed gives the same question; a wrong result always differs from the right one by at least twice the tolerance (draws
that break this are repeated, too).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coursekit.quiz.bank import BankError, Number
from coursekit.quiz.dice import Dice

_TRIES = 1000


@dataclass(frozen=True)
class Instance:
    """A template with its numbers filled in. `wrong` are (value, why), in the order of the file."""

    values: dict[str, Any]
    stem: str
    answer: int | float
    wrong: tuple[tuple[int | float, str], ...]
    explanation: str


def fill_in(question: Number, seed: int) -> Instance:
    """Return the question with the parameters of this seed.

    Raises:
        BankError: a line, an expression or a placeholder does not work, or no draw is valid.
    """
    dice = Dice(f"{question.id} {seed}")
    for _ in range(_TRIES):
        values = {name: dice.choice(choices) for name, choices in question.draw.items()}
        solved = solve(question, values)
        if solved is not None:
            return _instance(question, values, solved)
    raise BankError(
        f"question {question.id!r}: in {_TRIES} draws `where` was never true, or a named mistake always gave the answer"
    )


@dataclass(frozen=True)
class Solved:
    """The results for one draw: the names that texts may show, the answer, and the results of the named mistakes."""

    names: Mapping[str, Any]
    answer: int | float
    wrong: tuple[int | float, ...]


def solve(question: Number, values: Mapping[str, Any]) -> Solved | None:
    """Compute the results for these parameters, or return None if the draw is not valid.

    Raises:
        BankError: a line or an expression does not work.
    """
    names: dict[str, Any] = {}
    _run(question, "imports", question.imports, names)
    names.update(values)
    _run(question, "given", question.given, names)
    if question.where and not _evaluate(question, "where", question.where, names):
        return None
    answer = _number(question, "answer", question.answer, names)
    wrong = tuple(_number(question, "wrong", one.text, names) for one in question.wrong)
    if any(close(value, answer, 2 * question.tolerance) for value in wrong):
        return None
    return Solved(names, answer, wrong)


def _instance(question: Number, values: dict[str, Any], solved: Solved) -> Instance:
    """Fill in the texts."""
    texts = {**solved.names, "answer": solved.answer}
    whys = [_text(question, "wrong", one.why, texts) for one in question.wrong]
    return Instance(
        values,
        _text(question, "stem", question.stem, solved.names),
        solved.answer,
        tuple(zip(solved.wrong, whys, strict=True)),
        _text(question, "explanation", question.explanation, texts),
    )


def close(value: float, right: float, tolerance: float) -> bool:
    """Return True if a value counts as the right one."""
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
        raise BankError(
            f"question {question.id!r}: {key} {expression!r} gives {value!r}, which is not a number"
        )
    return int(value) if float(value).is_integer() else value


def _text(question: Number, key: str, text: str, names: Mapping[str, Any]) -> str:
    try:
        return text.format_map(names)
    except Exception as error:
        told = f"question {question.id!r}: {key} {text!r}: {type(error).__name__}: {error}"
        raise BankError(told) from error
