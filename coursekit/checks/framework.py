"""The check of an exercise: parts with points, and the misconceptions that it can name.

    SLOT = Exercise("2.1", answers=("slot",), misconceptions={"swapped": "The quotient and the remainder …"})

    @SLOT.part("slots of a shuffled table", points=4)
    def _slots(rng, slot):
        if slot([7, 1], 5, 4) != 5:
            raise Wrong("swapped", difference("slot([7, 1], 5, 4)", 5, got))

A part gets a fresh `random.Random` and the answers, as proxies. It returns if everything is right; otherwise it raises
`Wrong` with a misconception's key and the first difference. Each part earns its points separately. Invariants: a right
answer in any style passes with any seed; a message names the call, the expected and the actual value; every
misconception is declared, and at least one answer in `curriculum/mistakes/` triggers it.
"""

from __future__ import annotations

import importlib
import importlib.util
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from coursekit.checks.answers import AnswerRaised, Proxy, clean, show

PartFunction = Callable[..., None]
REGISTRY: dict[str, Exercise] = {}

MAX_MESSAGE = 3000  # characters of a message, whatever it quotes
PASSED, WRONG, CRASHED, UNSOLVED = "passed", "wrong", "crashed", "unsolved"


class HostLost(Exception):
    """The answer's side is gone, and every further call fails. `kind` is a status: "timeout" or "died"."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind, self.reason = kind, reason


class Wrong(Exception):
    """A part's verdict: the misconception's key, and the first difference."""

    def __init__(self, misconception: str, detail: str) -> None:
        super().__init__(misconception, detail)
        self.misconception, self.detail = misconception, detail


@dataclass(frozen=True)
class Part:
    """One part of a check and its points."""

    name: str
    points: int
    function: PartFunction


@dataclass(frozen=True)
class PartResult:
    """The result of one part. `misconception` is a declared key, or None if the check recognized none."""

    name: str
    points: int
    earned: int
    status: str
    misconception: str | None = None
    message: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", clean(self.message, MAX_MESSAGE))


@dataclass(frozen=True)
class Verdict:
    """The result of an exercise: one entry for each part."""

    exercise: str
    parts: tuple[PartResult, ...]

    @property
    def passed(self) -> bool:
        """True if every part passed."""
        return all(part.status == PASSED for part in self.parts)

    @property
    def earned(self) -> int:
        """The points earned in all parts."""
        return sum(part.earned for part in self.parts)

    @property
    def points(self) -> int:
        """The maximum number of points."""
        return sum(part.points for part in self.parts)

    @property
    def first_failure(self) -> PartResult | None:
        """The first part that did not pass."""
        return next((part for part in self.parts if part.status != PASSED), None)


@dataclass
class Exercise:
    """The check of one exercise. `answers` are the names, in the notebook, that are passed to the parts.

    `helpers` are those of the names that the notebook defines, not the answer: the grader takes them before any of the
    student's cells can replace them. `needs` names earlier exercises whose answers this one uses. `slowness` multiplies
    the grader's time limit and `memory_mb` raises its memory limit, for an exercise that needs more than the others.
    """

    id: str
    answers: tuple[str, ...]
    misconceptions: dict[str, str]
    needs: tuple[str, ...] = ()
    helpers: tuple[str, ...] = ()
    slowness: float = 1
    memory_mb: int = 0
    parts: list[Part] = field(default_factory=list)

    def __post_init__(self) -> None:
        REGISTRY[self.id] = self

    @property
    def points(self) -> int:
        """The points of all parts."""
        return sum(part.points for part in self.parts)

    def part(self, name: str, points: int) -> Callable[[PartFunction], PartFunction]:
        """Add a part: a function of a random generator and the answers."""

        def add(function: PartFunction) -> PartFunction:
            self.parts.append(Part(name, points, function))
            return function

        return add

    def run(self, answers: Iterable[Any], seed: int) -> Verdict:
        """Run every part, each with its own generator derived from the seed."""
        given, results = list(answers), []
        lost: HostLost | None = None
        for number, part in enumerate(self.parts):
            try:
                if lost is None:
                    results.append(self._run(part, given, seed + number))
                    continue
            except HostLost as error:
                lost = error
            message = f"{part.name}: {lost.reason}."
            results.append(PartResult(part.name, part.points, 0, lost.kind, None, message))
        return Verdict(self.id, tuple(results))

    def fail_all(self, status: str, message: str) -> Verdict:
        """Return the verdict when no part could run."""
        return Verdict(
            self.id, tuple(PartResult(p.name, p.points, 0, status, None, message) for p in self.parts)
        )

    def _run(self, part: Part, answers: list[Any], seed: int) -> PartResult:
        def ended(status: str, key: str | None = None, message: str = "") -> PartResult:
            return PartResult(part.name, part.points, 0, status, key, message)

        try:
            part.function(random.Random(seed), *answers)
        except Wrong as wrong:
            return ended(
                WRONG, wrong.misconception, f"{self.misconceptions[wrong.misconception]} {wrong.detail}"
            )
        except AnswerRaised as raised:
            if "NotImplementedError" in raised.bases:
                return ended(UNSOLVED, None, f"{raised.call} is not written yet.")
            where = f" ({raised.where})" if raised.where else ""
            return ended(CRASHED, None, f"{raised}{where}.")
        except HostLost:
            raise
        except Exception as error:  # noqa: BLE001  an answer may return anything; the check must not crash
            reason = f"{type(error).__name__}: {error}"
            return ended(CRASHED, None, f"The check could not interpret the returned value ({reason}).")
        return PartResult(part.name, part.points, part.points, PASSED)


def exercise(id: str) -> Exercise:
    """Return the exercise with this id; its module is imported on first use."""
    chapter = id.partition(".")[0]
    if id not in REGISTRY and chapter.isdigit():
        name = f"coursekit.checks.chapter_{int(chapter):02}"
        if importlib.util.find_spec(name):
            importlib.import_module(name)
    if id not in REGISTRY:
        raise KeyError(f"there is no check for exercise {id!r}")
    return REGISTRY[id]


def difference(call: str, expected: Any, got: Any) -> str:
    """Format one difference as a sentence."""
    return f"{call}: expected {show(expected)}, got {show(got)}."


def as_list(value: Any) -> list[Any]:
    """Convert a list, tuple, range, array or other iterable to a list; wrap any other value as [value]."""
    if isinstance(value, Proxy):
        return list(value)
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, str | bytes | dict) or not hasattr(value, "__iter__"):
        return [value]
    return list(value)


def is_whole(value: Any) -> bool:
    """Return True for a whole number: an int, or a float without a fraction, but not True or False."""
    return not isinstance(value, bool) and (
        isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    )
