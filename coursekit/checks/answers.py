"""Proxies through which a check calls an answer without ever holding the answer's objects.

A check calls answers through a `Proxy`, backed by a host: `LocalHost` in a learner's notebook, where the answer is in
the same process, or the grader's host, where it lives in a sandbox at the other end of a socket. Both send the same
messages, so both behave the same way:

- An answer gets copies of the arguments, so it cannot change the data that it is judged by. Only an argument that the
  check wraps in `output(…)` receives the answer's changes.
- Plain data is passed by value, and any other object of the answer becomes a proxy.
- A `Served` object stays with the check: the answer gets a stand-in, and each call of its methods runs in the check.
- Every exception becomes `AnswerRaised`.
"""

from __future__ import annotations

import builtins
import itertools
import reprlib
import types
from collections.abc import Callable, Iterator
from typing import Any

from coursekit.checks.codec import BadMessage, decode, encode
from coursekit.checks.source import CELL, line_of

__all__ = ["CELL"]

MAX_ITEMS = 100_000
MAX_TEXT = 500  # characters of an exception's message
Message = dict[str, Any]
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


class Output:
    """An argument that the answer is meant to change. Made by `output`."""

    def __init__(self, value: Any) -> None:
        self.value = value


def output(value: Any) -> Any:
    """Mark a list of plain data or an array, passed to an answer, that is to receive the answer's changes."""
    return Output(value)


class Served:
    """An object of the check that an answer may use. Data attributes are copied; methods run in the check.

    What the check counts or keeps in such an object is out of the answer's reach.
    """

    def __init__(self, methods: dict[str, Callable[..., Any]], **attributes: Any) -> None:
        self.methods, self.attributes = methods, attributes


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
        outputs = {k: v.value for k, v in [*enumerate(args), *kwargs.items()] if isinstance(v, Output)}
        args = tuple(_plain(arg) for arg in args)
        kwargs = {name: _plain(value) for name, value in kwargs.items()}
        words = [show(arg) for arg in args] + [f"{name}={show(value)}" for name, value in kwargs.items()]
        call = f"{self._label}({', '.join(words)})"
        return self._host.request(self._number, "call", (args, kwargs), call, outputs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._ask("get", (name,), f"{self._label}.{name}")

    def __len__(self) -> int:
        size = self._ask("len", (), f"len({self._label})")
        return size if isinstance(size, int) and size >= 0 else 0

    def __getitem__(self, key: Any) -> Any:
        return self._ask("item", (key,), f"{self._label}[{show(key)}]")

    def __iter__(self) -> Iterator[Any]:
        items = self._ask("list", (), f"list({self._label})")
        return iter(items if isinstance(items, list) else [])

    def __array__(self, *args: Any, **named: Any) -> Any:
        raise TypeError(
            "an object of the answer is not an array"
        )  # or NumPy would ask for its items, for ever

    def __repr__(self) -> str:
        return str(self._label)


def _plain(argument: Any) -> Any:
    return argument.value if isinstance(argument, Output) else argument


class Host:
    """The check's side. A subclass delivers the messages to the answer's side, an `Answers`."""

    def __init__(self) -> None:
        self.served: list[Served] = []

    def exchange(self, order: Message, call: str) -> Message:
        """Send an order and return the reply to it, serving the answer's calls meanwhile."""
        raise NotImplementedError

    def broken(self, error: Exception) -> Exception:
        """Return the exception for a reply that is not part of the protocol."""
        return error

    def request(
        self,
        number: int,
        operation: str,
        arguments: tuple[Any, ...],
        call: str,
        outputs: dict[int | str, Any] | None = None,
    ) -> Any:
        """Perform an operation on object `number`; return its value or raise AnswerRaised.

        `outputs` are the arguments, by position or name, that get the answer's changes, even if it raised.
        """
        outputs, self.served = outputs or {}, []
        data = encode(arguments, self._number_of)
        stubs = [[list(one.methods), encode(one.attributes, self._number_of)] for one in self.served]
        order = {"do": "call", "number": number, "operation": operation, "arguments": data}
        reply = self.exchange(order | {"served": stubs, "outputs": list(outputs)}, call)
        try:
            changed = decode(reply.get("changed", ["list"]), lambda n, kind: None)
        except (BadMessage, RecursionError) as error:
            raise self.broken(error) from None
        for old, new in zip(outputs.values(), changed if isinstance(changed, list) else [], strict=False):
            _write_back(old, new)
        if "raised" in reply:
            raise self.raised(reply["raised"], call)
        return self.value(reply.get("value"), None if operation == "call" else call)

    def value(self, data: Any, label: str | None) -> Any:
        """Decode a value from the answer's side, with proxies for its objects."""
        try:
            return decode(data, lambda number, kind: Proxy(self, number, label or kind))
        except (BadMessage, RecursionError) as error:
            raise self.broken(error) from None

    def raised(self, data: Any, call: str) -> Exception:
        """Return the exception that a reply describes."""
        match data:
            case [str(name), [*bases], str(message), str(where)] if all(isinstance(b, str) for b in bases):
                return AnswerRaised(
                    clean(name, 80), tuple(bases[:20]), clean(message, MAX_TEXT), call, clean(where, 200)
                )
        return self.broken(BadMessage("an exception was expected"))

    def serve(self, asked: Any) -> Message:
        """Run a method of a served object for the answer."""
        try:
            index, name, data = asked
            args, kwargs = decode(data, lambda n, kind: None)
            return {"value": encode(self.served[index].methods[name](*args, **kwargs), self._number_of)}
        except Exception as error:  # noqa: BLE001  the answer's arguments may be anything
            return {"raised": [type(error).__name__, str(error)[:MAX_TEXT]]}

    def _number_of(self, thing: Any) -> int:
        if isinstance(thing, Proxy):
            return int(thing._number)
        if isinstance(thing, Served):
            self.served.append(thing)
            return -len(self.served)
        raise TypeError(f"a check cannot pass a {type(thing).__name__} to an answer")


def _write_back(old: Any, new: Any) -> None:
    """Give an output argument the answer's changes: all items of a list, or the elements of an array of its shape."""
    if isinstance(old, list) and isinstance(new, list):
        old[:] = new
    elif getattr(old, "dtype", None) == getattr(new, "dtype", 0) and old.shape == new.shape:
        old[...] = new


class LocalHost(Host):
    """A host in this process: the learner's own notebook."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = Answers(self.serve)

    def proxy(self, thing: Any, label: str) -> Any:
        """Return the object in the form a check sees: plain data unchanged, anything else as a proxy."""
        return decode(encode(thing, self.answers.keep), lambda number, kind: Proxy(self, number, label))

    def exchange(self, order: Message, call: str) -> Message:
        """Perform the operation in this process."""
        return self.answers.perform(order)

    def broken(self, error: Exception) -> Exception:
        """Return an exception that the check reports."""
        return AnswerRaised("TypeError", ("TypeError", "Exception"), str(error), "the call")


class Answers:
    """The answer's side: its objects by number, and the check's operations on them.

    Args:
        ask: sends (index of a served object, method, encoded arguments) to the check and returns its reply.
    """

    def __init__(self, ask: Callable[[list[Any]], Message]) -> None:
        self.objects: list[Any] = []
        self.ask = ask

    def keep(self, thing: Any) -> int:
        """Store an object and return its number."""
        self.objects.append(thing)
        return len(self.objects) - 1

    def perform(self, order: Message) -> Message:
        """Perform an operation on copies of the arguments; return its value or exception, and the outputs."""
        stubs = [self._stub(index, *served) for index, served in enumerate(order["served"])]
        arguments = decode(order["arguments"], lambda n, kind: self.objects[n] if n >= 0 else stubs[-1 - n])
        given = [*arguments] if order["operation"] != "call" else [*arguments[0]]
        named = arguments[1] if order["operation"] == "call" else {}
        targets = [given[key] if isinstance(key, int) else named[key] for key in order["outputs"]]
        reply: Message = {}
        try:
            value = perform(self.objects[order["number"]], order["operation"], arguments)
            reply["value"] = encode(value, self.keep)
        except Exception as error:  # noqa: BLE001  the check decides what an exception means
            reply["raised"] = list(describe(error))
        if targets:
            reply["changed"] = encode(targets, lambda thing: 0)
        return reply

    def _stub(self, index: int, methods: list[str], attributes: Any) -> Any:
        """Return the stand-in for an object that the check serves."""

        def method(name: str) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                reply = self.ask([index, name, encode((args, kwargs), self.keep)])
                if "raised" in reply:
                    name_of, message = reply["raised"]
                    kind: Any = getattr(builtins, name_of, None)
                    known = isinstance(kind, type) and issubclass(kind, Exception)
                    raise (kind if known else RuntimeError)(message)
                return decode(reply["value"], lambda n, kind: None)

            return call

        named = decode(attributes, lambda n, kind: self.objects[n])
        return types.SimpleNamespace(**named, **{name: method(name) for name in methods})


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


def describe(error: BaseException) -> tuple[str, list[str], str, str]:
    """Return an exception as (name, names of all its classes, message, line of the answer)."""
    if isinstance(error, BadMessage):
        return "TypeError", ["TypeError", "Exception"], str(error), ""
    bases = [str(kind.__name__) for kind in type(error).__mro__[:-1]]
    where = ""
    try:
        where = line_of(error)
        message = str(error.msg if isinstance(error, SyntaxError) else error)
    except Exception:  # noqa: BLE001  the answer's own __str__ may do anything
        message = ""
    return str(type(error).__name__), bases, clean(message, MAX_TEXT), clean(where, 200)


def clean(text: str, limit: int) -> str:
    """Shorten a text and replace what could confuse a terminal or a file: control characters, lone surrogates."""
    short = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in short)


def show(value: Any) -> str:
    """Format a value for a message, shortened."""
    numpy_like = type(value).__name__ in ("ndarray", "Tensor")
    if numpy_like:
        return f"array{tuple(value.shape)}"
    return _short.repr(value)
