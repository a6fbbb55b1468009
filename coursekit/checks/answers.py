"""Proxies through which a check calls an answer without ever holding the answer's objects.

A check calls answers through a `Proxy`, backed by a host: `LocalHost` in a learner's notebook, where the answer is in
the same process, or the grader's host, where it lives in a sandbox at the other end of a socket. Both behave the same
way: plain data is passed by value, other objects become proxies, lists and arrays passed as arguments are updated if
the answer changed them, and every exception becomes `AnswerRaised`.
"""

from __future__ import annotations

import itertools
import linecache
import reprlib
from collections.abc import Iterator
from typing import Any, Protocol

from coursekit.checks.codec import BadMessage, decode, encode
from coursekit.checks.source import CELL, line_of

__all__ = ["CELL"]

MAX_ITEMS = 100_000
_short = reprlib.Repr()
_short.maxlist = _short.maxtuple = _short.maxset = 12
_short.maxdict, _short.maxstring, _short.maxother = 8, 80, 80


class AnswerRaised(Exception):
    """The answer raised an exception.

    Attributes:
        name: the exception's class, `OutOfBlocks`.
        bases: the names of all its classes, `("OutOfBlocks", "RuntimeError", "Exception", …)`.
        message: the exception's text.
        call: the call that the check made.
        where: the line in the answer, or "".
    """

    def __init__(self, name: str, bases: tuple[str, ...], message: str, call: str, where: str = "") -> None:
        super().__init__(f"{call} raised {name}: {message}" if message else f"{call} raised {name}")
        self.name, self.bases, self.message, self.call, self.where = name, bases, message, call, where


class Host(Protocol):
    """The side that owns the answer's objects."""

    def request(self, number: int, operation: str, arguments: tuple[Any, ...], call: str) -> Any:
        """Perform an operation on object `number`; return its value or raise AnswerRaised."""


class Proxy:
    """A stand-in for one of the answer's functions, classes or objects. Attributes are fetched on access."""

    def __init__(self, host: Host, number: int, label: str) -> None:
        self.__dict__.update(_host=host, _number=number, _label=label)

    def _ask(self, operation: str, arguments: tuple[Any, ...], call: str) -> Any:
        value = self._host.request(self._number, operation, arguments, call)
        if isinstance(value, Proxy) and operation == "get":
            value.__dict__["_label"] = call
        return value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the answer's function or class, with proxies and plain data as arguments."""
        words = [show(arg) for arg in args] + [f"{name}={show(value)}" for name, value in kwargs.items()]
        return self._ask("call", (args, kwargs), f"{self._label}({', '.join(words)})")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._ask("get", (name,), f"{self._label}.{name}")

    def __len__(self) -> int:
        size = self._ask("len", (), f"len({self._label})")
        return size if isinstance(size, int) else 0

    def __getitem__(self, key: Any) -> Any:
        return self._ask("item", (key,), f"{self._label}[{show(key)}]")

    def __iter__(self) -> Iterator[Any]:
        items = self._ask("list", (), f"list({self._label})")
        return iter(items if isinstance(items, list) else [])

    def __repr__(self) -> str:
        return str(self._label)


class LocalHost:
    """A host in this process: the learner's own notebook."""

    def __init__(self) -> None:
        self.objects: list[Any] = []

    def keep(self, thing: Any) -> int:
        """Store an object and return its number."""
        self.objects.append(thing)
        return len(self.objects) - 1

    def proxy(self, thing: Any, label: str) -> Any:
        """Return the object in the form a check sees: plain data unchanged, anything else as a proxy."""
        return decode(encode(thing, self.keep), lambda number, kind: Proxy(self, number, label))

    def request(self, number: int, operation: str, arguments: tuple[Any, ...], call: str) -> Any:
        """Perform the operation in this process."""
        try:
            value = perform(self.objects[number], operation, self._own(arguments))
            return decode(encode(value, self.keep), lambda n, kind: Proxy(self, n, kind))
        except BadMessage as error:
            raise AnswerRaised("TypeError", ("TypeError",), str(error), call) from None
        except Exception as error:  # noqa: BLE001  the check decides what an exception means
            name, bases, message, where = describe(error)
            raise AnswerRaised(name, bases, message, call, where) from None

    def _own(self, value: Any) -> Any:
        """Replace proxies in the arguments by their objects; lists and arrays stay the same objects."""
        if isinstance(value, Proxy):
            return self.objects[value._number]
        if isinstance(value, list) and not any(isinstance(item, Proxy) for item in value):
            return value
        if type(value) in (list, tuple):
            return type(value)(self._own(item) for item in value)
        if type(value) is dict:
            return {key: self._own(item) for key, item in value.items()}
        return value


def perform(thing: Any, operation: str, arguments: Any) -> Any:
    """Perform one of the four operations, on either side."""
    match operation:
        case "call":
            args, kwargs = arguments
            return thing(*args, **kwargs)
        case "get":
            return getattr(thing, arguments[0])
        case "item":
            return thing[arguments[0]]
        case "len":
            return len(thing)
        case "list":
            return list(itertools.islice(thing, MAX_ITEMS))
    raise BadMessage(f"unknown operation {operation!r}")


def define(source: str, name: str, namespace: dict[str, Any]) -> None:
    """Run an answer's cell and keep its source lines, so that an error can show the line that raised it."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), namespace)


def describe(error: BaseException) -> tuple[str, tuple[str, ...], str, str]:
    """Return an exception as (name, names of all its classes, message, line of the answer)."""
    bases = tuple(kind.__name__ for kind in type(error).__mro__[:-1])
    where = line_of(error)
    try:
        message = str(error.msg if isinstance(error, SyntaxError) else error)
    except Exception:  # noqa: BLE001  the answer's own __str__ may do anything
        message = ""
    return type(error).__name__, bases, message[:500], where[:200]


def show(value: Any) -> str:
    """Format a value for a message, shortened."""
    numpy_like = type(value).__name__ in ("ndarray", "Tensor")
    if numpy_like:
        return f"array{tuple(value.shape)}"
    return _short.repr(value)
