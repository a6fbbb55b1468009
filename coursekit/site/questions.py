"""The bank of questions as JSON, for the trainer's page.

Choice, short, code and open questions keep their fields. A number question cannot run Python on a phone, so its results
are computed here, by `paged_ref`, for every combination of its parameters: a table with one row per combination, in the
order of `itertools.product`. The page draws the parameters with the same generator (`coursekit/quiz/dice.py`), which
selects a row. A row holds

    [answer, its text, [wrong results], [their texts], [texts of the placeholders]]        or null: draw again

and the question's texts are lists of literal pieces and of indices into a row's placeholders:
["A prompt of ", 0, " tokens"]. So each number is computed and formatted by Python only.

Invariant: no code is exported, and every exported number is exact in JavaScript.
"""

from __future__ import annotations

import itertools
import math
import string
from typing import Any

from coursekit.quiz.bank import Bank, BankError, Choice, Code, Number, Open, Question, Short
from coursekit.quiz.export import where
from coursekit.quiz.judge import told
from coursekit.quiz.template import Solved, solve

MOST_ROWS = 5000  # of one template; a page with more would load slowly
_LARGEST = 2**53  # whole numbers up to here are exact in JavaScript


def bank_as_data(bank: Bank) -> dict[str, Any]:
    """Return the bank as data for JSON.

    Raises:
        BankError: a number question has too many combinations, or results that JavaScript cannot represent.
    """
    return {"topics": dict(bank.topics), "questions": [question_as_data(question) for question in bank]}


def question_as_data(question: Question) -> dict[str, Any]:
    """Return one question as data for JSON."""
    data: dict[str, Any] = {
        "id": question.id,
        "kind": question.kind,
        "chapter": question.chapter,
        "topic": question.topic,
        "level": question.level,
        "stem": question.stem,
        "explanation": question.explanation,
        "shown": where(question),
        "source": question.source,
    }
    match question:
        case Choice():
            data |= {"answer": question.answer, "wrong": _pairs(question.wrong)}
        case Short():
            wrong = _pairs(question.wrong)
            data |= {"answer": question.answer, "accept": list(question.accept), "wrong": wrong}
        case Code():
            data |= {"code": question.code, "answer": question.answer}
        case Open():
            data |= {"answer": question.answer, "rubric": list(question.rubric)}
        case Number():
            data |= _template(question)
    return data


def _pairs(wrong: tuple[Any, ...]) -> list[list[str]]:
    return [[one.text, one.why] for one in wrong]


def _template(question: Number) -> dict[str, Any]:
    """Return the fields of a number question: texts in pieces, and the table of results."""
    count = math.prod(len(choices) for choices in question.draw.values())
    if count > MOST_ROWS:
        raise BankError(
            f"question {question.id!r}: its parameters have {count} combinations; the trainer's page takes at most "
            f"{MOST_ROWS}: list fewer values in draw"
        )
    placeholders: dict[str, int] = {}
    texts = {
        "stem": _pieces(question.stem, placeholders),
        "explanation": _pieces(question.explanation, placeholders),
        "whys": [_pieces(one.why, placeholders) for one in question.wrong],
    }
    rows = []
    for values in itertools.product(*question.draw.values()):
        solved = solve(question, dict(zip(question.draw, values, strict=True)))
        rows.append(_row(question, solved, placeholders) if solved else None)
    if not any(rows):
        raise BankError(f"question {question.id!r}: no combination of its parameters is valid")
    sizes = [len(choices) for choices in question.draw.values()]
    return texts | {"unit": question.unit, "tolerance": question.tolerance, "sizes": sizes, "rows": rows}


def _pieces(text: str, placeholders: dict[str, int]) -> list[str | int]:
    """Split a text into literals and indices of placeholders; new placeholders are added."""
    pieces: list[str | int] = []
    for literal, name, spec, conversion in string.Formatter().parse(text):
        if literal:
            pieces.append(literal)
        if name is not None:
            whole = "{" + name + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "") + "}"
            pieces.append(placeholders.setdefault(whole, len(placeholders)))
    return pieces


def _row(question: Number, solved: Solved, placeholders: dict[str, int]) -> list[Any]:
    for value in (solved.answer, *solved.wrong):
        if not math.isfinite(value) or abs(value) > _LARGEST:
            raise BankError(f"question {question.id!r}: {value!r} is not exact in JavaScript")
    names = {**solved.names, "answer": solved.answer}
    return [
        solved.answer,
        told(solved.answer, question.unit),
        list(solved.wrong),
        [told(value, question.unit) for value in solved.wrong],
        [placeholder.format_map(names) for placeholder in placeholders],
    ]
