"""The bank of interview questions: the format of `curriculum/questions/NN_*.toml`, and its reader (chapter 10).

Five kinds, one class each. A question has its text, the right answer, *why each wrong answer is wrong*, the code cell
of the lesson that shows it, and its source. "How to write a question" in `curriculum/README.md` explains the format to
authors.

Invariants: every question that is read is complete, with every key known, present and of its type; every error
names the file, the question, the problem and the fix. The tests check that a question is *true*: they follow the
links, compute the numbers and run the code.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from coursekit import ROOT

FOLDER = ROOT / "curriculum" / "questions"
LEVELS = (1, 2, 3, 4, 5)
_ID = re.compile(r"\d+(-[a-z0-9]+)+")
_HEAD = {"lesson": str, "imports": str, "topics": dict, "question": list}


class BankError(ValueError):
    """A file of questions is invalid. The message names the place, the problem and the expected form."""


@dataclass(frozen=True)
class Wrong:
    """A wrong answer, and why it is wrong. In a number question the text is an expression."""

    text: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Question:
    """The fields that all kinds have.

    Attributes:
        id: the chapter's number, then a short name: "1-bytes-gqa".
        topic: a key of the file's `[topics]`.
        level: 1 (basic vocabulary) to 5 (asked of a specialist).
        stem: the question.
        answer: the right answer, see each kind.
        explanation: why it is right, in at most four sentences.
        lesson, cell: a text that occurs in exactly one code cell of that notebook; the cell shows the fact.
        source: the source of the fact.
    """

    id: str
    chapter: int
    topic: str
    level: int
    stem: str
    answer: str
    explanation: str
    lesson: str
    cell: str
    source: str

    @property
    def kind(self) -> str:
        """The kind's name in the file."""
        return type(self).__name__.lower()


@dataclass(frozen=True, kw_only=True)
class Choice(Question):
    """A choice between three to five options. `answer` is the right one; they are shuffled when asked."""

    wrong: tuple[Wrong, ...]


@dataclass(frozen=True, kw_only=True)
class Number(Question):
    """A template with fresh parameters. `answer` and the texts in `wrong` are Python expressions.

    Attributes:
        draw: for each parameter, the values it is drawn from.
        where: an expression that a draw must satisfy, or "".
        given: Python lines that run before the expressions, with the parameters defined.
        imports: the file's imports, which run before `given`.
        unit: the unit ("GB", "%", "blocks"), or "" for a plain number; other byte units are converted.
        tolerance: relative; 0: exact.
    """

    draw: Mapping[str, tuple[Any, ...]]
    wrong: tuple[Wrong, ...]
    unit: str = ""
    where: str = ""
    given: str = ""
    imports: str = ""
    tolerance: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Short(Question):
    """An answer of one to four words. `accept` lists alternative right answers; `wrong` are expected wrong answers."""

    accept: tuple[str, ...] = ()
    wrong: tuple[Wrong, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Code(Question):
    """A bug in one of about ten lines. `code` has the bug, `answer` is the same code with that line fixed.

    Attributes:
        exercise: the exercise whose check judges the answer, "2.2"; or
        check: Python lines that define `check(...)`, which gets the objects in `names` and asserts with a message.
        names: the names that are passed to the check. For an exercise: its own names.
        given: Python lines that run before the code, in both cases.
        finds: what the check reports for `code`: the exercise's misconception, or for `check` a part of its message.
    """

    code: str
    finds: str
    exercise: str = ""
    check: str = ""
    names: tuple[str, ...] = ()
    given: str = ""


@dataclass(frozen=True, kw_only=True)
class Open(Question):
    """Answered aloud and self-scored. `answer` is a strong answer, `rubric` the points it must contain."""

    rubric: tuple[str, ...]


KINDS: dict[str, type[Question]] = {
    kind.__name__.lower(): kind for kind in (Choice, Number, Short, Code, Open)
}


@dataclass(frozen=True)
class Bank:
    """All questions by id, in the order of their files, and each topic's title."""

    questions: Mapping[str, Question]
    topics: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, id: str) -> Question:
        return self.questions[id]

    def __iter__(self) -> Any:
        return iter(self.questions.values())

    def __len__(self) -> int:
        return len(self.questions)

    def chapters(self) -> list[int]:
        """The chapters that have questions."""
        return sorted({question.chapter for question in self})


@cache
def load_bank(folder: Path = FOLDER) -> Bank:
    """Read every file of the folder.

    Raises:
        BankError: a file cannot be read, or a question is incomplete.
    """
    questions: dict[str, Question] = {}
    topics: dict[str, str] = {}
    for path in sorted(folder.glob("*.toml")):
        head, found = read_file(path)
        for key, title in head.items():
            if topics.setdefault(key, title) != title:
                raise BankError(f"{path.name}: topic {key!r} has another title in an earlier file")
        for question in found:
            if question.id in questions:
                raise BankError(
                    f"{path.name}: the id {question.id!r} is already used; every question needs its own id"
                )
            questions[question.id] = question
    if not questions:
        raise BankError(f"{folder}: there are no questions (NN_name.toml)")
    return Bank(questions, topics)


def read_file(path: Path) -> tuple[dict[str, str], list[Question]]:
    """Return the topics and the questions of one file.

    Raises:
        BankError: the file is invalid; the message says why.
    """
    number = path.name.partition("_")[0]
    if not number.isdigit():
        raise BankError(f"{path.name}: the file name must begin with the chapter, as in 01_name.toml")
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BankError(f"{path.name}: {error}") from None
    for key, value in data.items():
        if key not in _HEAD:
            raise BankError(f"{path.name}: unknown key {key!r}; the known keys are {', '.join(_HEAD)}")
        if not isinstance(value, _HEAD[key]):
            raise BankError(f"{path.name}: {key} must be a {_HEAD[key].__name__}")
    topics = data.get("topics", {})
    if not topics or not all(isinstance(title, str) and title.strip() for title in topics.values()):
        raise BankError(f"{path.name}: [topics] must have at least one topic with a title")
    common: dict[str, str] = {name: data[name] for name in ("lesson", "imports") if name in data}
    entries = data.get("question", [])
    return topics, [_question(path.name, int(number), topics, common, entry) for entry in entries]


def _question(
    file: str, chapter: int, topics: dict[str, str], common: dict[str, str], entry: Any
) -> Question:
    """Parse one entry into a question of its kind."""
    name = entry.get("id", "without an id") if isinstance(entry, dict) else entry
    where = f"{file}, question {name!r}"
    if not isinstance(entry, dict):
        raise BankError(f"{where}: a question must be a table, [[question]]")
    kind = KINDS.get(entry.get("kind", ""))
    if kind is None:
        raise BankError(f"{where}: kind = {entry.get('kind')!r}, it must be one of {', '.join(KINDS)}")
    fields = {one.name: one for one in dataclasses.fields(kind)}
    if unknown := sorted(set(entry) - set(fields) - {"kind"} | set(entry) & {"chapter"}):
        raise BankError(f"{where}: a question of kind {kind.__name__.lower()} has no key {unknown[0]!r}")
    given = {key: value for key, value in common.items() if key in fields} | {"chapter": chapter} | entry
    del given["kind"]
    values = {}
    for key, one in fields.items():
        if key in given:
            values[key] = _value(where, key, str(one.type), given[key])
        elif one.default is dataclasses.MISSING:
            raise BankError(f"{where}: {key} is missing")
    question = kind(**values)
    _look_at(where, question, topics)
    return question


def _value(where: str, key: str, kind: str, value: Any) -> Any:
    """Check that a value has the type of the field's annotation."""

    def must_be(right: bool, wanted: str) -> None:
        if not right:
            raise BankError(f"{where}: {key} must be {wanted}, not {value!r}")

    def text(one: Any) -> bool:
        return isinstance(one, str) and bool(one.strip())

    if kind == "str":
        must_be(text(value), "a non-empty text")
        return value.strip("\n")
    if kind == "int":
        must_be(isinstance(value, int) and not isinstance(value, bool), "a whole number")
        return value
    if kind == "float":
        must_be(isinstance(value, int | float) and not isinstance(value, bool), "a number")
        return float(value)
    if kind.startswith("tuple[str"):
        must_be(isinstance(value, list) and bool(value) and all(map(text, value)), "a list of texts")
        return tuple(value)
    if kind.startswith("tuple[Wrong"):
        pairs = isinstance(value, list) and all(
            isinstance(pair, list) and len(pair) == 2 and all(map(text, pair)) for pair in value
        )
        must_be(pairs, 'a list of pairs, [["wrong answer", "why it is wrong"]]')
        return tuple(Wrong(*pair) for pair in value)
    lists = isinstance(value, dict) and bool(value) and all(isinstance(v, list) and v for v in value.values())
    must_be(lists, "a table of lists: draw.layers = [32, 40, 80]")
    return {parameter: tuple(values) for parameter, values in value.items()}


def _look_at(where: str, question: Question, topics: dict[str, str]) -> None:
    """Check the rules that the types do not express."""
    if not _ID.fullmatch(question.id) or not question.id.startswith(f"{question.chapter}-"):
        raise BankError(
            f"{where}: an id is the chapter's number and lowercase words, {question.chapter}-like-this"
        )
    if question.level not in LEVELS:
        raise BankError(f"{where}: level = {question.level}, it must be 1 to 5")
    if question.topic not in topics:
        raise BankError(
            f"{where}: topic {question.topic!r} is not in the file's [topics]: {', '.join(topics)}"
        )
    if isinstance(question, Choice) and not 2 <= len(question.wrong) <= 4:
        raise BankError(f"{where}: {len(question.wrong)} wrong options; a choice has 2 to 4")
    if isinstance(question, Number):
        if not question.wrong:
            raise BankError(f"{where}: give at least one wrong result and its cause")
        if not 0 <= question.tolerance <= 0.1:
            raise BankError(f"{where}: tolerance = {question.tolerance}, it must be from 0 to 0.1 (relative)")
    if isinstance(question, Code) and bool(question.exercise) == bool(question.check):
        raise BankError(f"{where}: give either an exercise whose check judges it or its own check, not both")
    if isinstance(question, Code) and question.check and not question.names:
        raise BankError(f"{where}: names must list the names that are passed to the check")
    if isinstance(question, Open) and not 3 <= len(question.rubric) <= 6:
        raise BankError(f"{where}: a rubric has 3 to 6 points, this one {len(question.rubric)}")
