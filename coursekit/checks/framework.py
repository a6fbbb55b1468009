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

import copy
import importlib
import importlib.util
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from coursekit.checks.answers import AnswerRaised, Proxy, clean, output, show
from coursekit.checks.kernel_source import kernels_refused, not_a_kernel
from coursekit.checks.source import import_refused, imported, in_own_cell

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
    student's cells can replace them. `needs` names earlier exercises whose answers this one uses; `without` names
    packages that an answer must not use: `paged_ref` contains the solution, and the arrays of `torch` are not those of
    the exercise. With `kernels`, the answers are kernels (`kernel_source.py`). `slowness` multiplies the grader's time
    limit and `memory_mb` raises its memory limit, for an exercise that needs more than the others.
    """

    id: str
    answers: tuple[str, ...]
    misconceptions: dict[str, str]
    needs: tuple[str, ...] = ()
    helpers: tuple[str, ...] = ()
    without: tuple[str, ...] = ("paged_ref", "torch")
    kernels: bool = False
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

    def refused(self, answers: Iterable[Any]) -> str:
        """Return a message if answers of this process use what the sandbox would refuse, else ""."""
        answers = list(answers)
        found = sorted(imported(answers) & set(self.without))
        if found:
            return import_refused(found[0])
        reason = kernels_refused(answers) if self.kernels else ""
        return reason and not_a_kernel(reason)

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
            where = f" ({in_own_cell(raised.where, self.id)})" if raised.where else ""
            return ended(CRASHED, None, f"{raised}{where}.")
        except HostLost:
            raise
        except NoCase as error:
            return ended(
                CRASHED, None, f"The check itself failed, and not your answer: {error}. Run it again."
            )
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
    return f"{call}: expected {show(expected)}, got {show_got(got)}."


def show_got(got: Any) -> str:
    """Format a returned value; None and a coroutine get advice: `return` is missing, or `async` is too much."""
    if isinstance(got, Proxy) and repr(got) == "coroutine":
        return "a coroutine (define the function with `def`, not with `async def`)"
    nothing = got is None or (isinstance(got, list | tuple) and len(got) == 1 and got[0] is None)
    return "None (it returned nothing: use `return`)" if nothing else show(got)


class NoCase(RuntimeError):
    """A check drew no suitable inputs within its bound. This is a fault of the check, not of the answer."""


def drawn(draw: Callable[[], Any | None], tries: int = 1000) -> Any:
    """Return the first result that is not None; raises NoCase after so many tries."""
    for _ in range(tries):
        if (found := draw()) is not None:
            return found
    raise NoCase(f"no suitable inputs in {tries} tries")


SHARED = {
    "shared-state": "Two objects share their state: what is done with one changes the other. Each object needs its "
    "own, made in `__init__` (`self.name = …`), not in the class body or in a global variable."
}


def keep_apart(alone: Callable[[], None], together: Callable[[], None]) -> None:
    """Check one object, then two that are in use at once; a fault of the second kind alone is shared state."""
    alone()
    try:
        together()
    except Wrong as wrong:
        raise Wrong("shared-state", f"Two objects in turn, the second: {wrong.detail}") from None
    except AnswerRaised as raised:
        if "NotImplementedError" in raised.bases:
            raise
        raise Wrong("shared-state", f"Two objects in turn: {raised}.") from None


CHANGES = {
    "changes-arguments": "The answer changed an argument, but the caller still uses it. Build new lists and arrays "
    "instead."
}


class Arguments:
    """Named lists and arrays for one call, and a comparison with their contents before it.

    An answer gets copies; `passed` marks these as outputs, so that its changes come back and can be seen.
    """

    def __init__(self, **named: Any) -> None:
        self.named, self._before = named, copy.deepcopy(named)

    def passed(self, *names: str) -> list[Any]:
        """Return the arguments of these names, or all of them in order, to pass to the answer."""
        return [output(self.named[name]) for name in names or self.named]

    def check_unchanged(self, call: str) -> None:
        """Raise Wrong("changes-arguments") if the answer changed one of them."""
        for name, value in self.named.items():
            if not same(value, self._before[name]):
                raise Wrong(
                    "changes-arguments",
                    f"{call}: `{name}` was {show(self._before[name])} before the call, and is {_now(value)} after it.",
                )


def same(one: Any, other: Any) -> bool:
    """True if two values, or nested lists and arrays, have equal types and contents; NaN equals NaN."""
    if hasattr(one, "dtype") and hasattr(other, "dtype"):
        return bool(
            one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
        )
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def _now(value: Any) -> str:
    return "an array with other values" if hasattr(value, "dtype") else show(value)


MAX_LIST = 10_000  # of an answer: no exercise returns as many items


def as_list(value: Any) -> list[Any]:
    """Convert a list, tuple, range, array or other iterable to a list; wrap any other value as [value]."""
    if isinstance(value, Proxy):
        value = list(value)
    elif hasattr(value, "tolist"):
        value = value.tolist() if value.size <= MAX_LIST else range(value.size)
    if isinstance(value, str | bytes | dict) or not hasattr(value, "__iter__"):
        return [value]
    if len(value) > MAX_LIST:
        raise ValueError(f"{len(value):,} items are too many")
    return list(value)


def as_number(value: Any) -> Any:
    """Convert a Fraction, a Decimal or another exact number of the answer to a float; return other values unchanged."""
    if isinstance(value, Proxy):
        try:
            ratio = value.as_integer_ratio()
        except AnswerRaised:
            return value
        match ratio:
            case (int(above), int(below)) if below:
                return above / below
    return value


def is_whole(value: Any) -> bool:
    """Return True for a whole number: an int, or a float without a fraction, but not True or False."""
    return not isinstance(value, bool) and (
        isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    )
