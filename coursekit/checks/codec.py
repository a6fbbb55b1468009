"""Encoding of values that pass between a check and an answer: plain data by value, other objects by number.

A check never holds an object of the answer. It holds copies of plain data (numbers, text, lists, arrays) and, for
everything else, a *handle*: a number that only the answer's side can turn into the object. So nothing that an answer
returns can bring its own code into the check: no `__eq__` that always returns True, no number type with false
arithmetic, no pickle that runs code.

Invariants: `decode(encode(x)) == x` for plain data, with exactly the built-in types; a malformed message raises
`BadMessage` and has no other effect.
"""

from __future__ import annotations

import base64
import binascii
import json
import sys
from collections.abc import Callable
from typing import Any

MAX_BYTES = 16_000_000
MAX_DEPTH = 40
MAX_KEYS = 5_000  # set members and dictionary keys of a message: more, with equal hashes, would take hours to compare
_SCALARS = (bool, int, float, str)


class BadMessage(Exception):
    """The data from the answer's side is not a message of this protocol."""


def encode(value: Any, keep: Callable[[Any], int], depth: int = 0) -> Any:
    """Encode `value` as JSON data. `keep` stores an object that is not plain data and returns its number."""
    if value is None or type(value) in _SCALARS:
        return value
    for base in _SCALARS:  # a subclass (such as an IntEnum) is encoded as its base type
        if isinstance(value, base):
            return base.__new__(base, base.__str__(value)) if base is str else _plain_number(base, value)
    if depth < MAX_DEPTH:
        if isinstance(value, range):
            return ["list", *value]
        for name, kind in (("list", list), ("tuple", tuple), ("set", set), ("set", frozenset)):
            if isinstance(value, kind):
                return [name, *(encode(item, keep, depth + 1) for item in value)]
        if isinstance(value, dict):
            items = dict.items(value)
            return ["dict", *([encode(k, keep, depth + 1), encode(v, keep, depth + 1)] for k, v in items)]
        if isinstance(value, bytes):
            return ["bytes", base64.b64encode(value).decode()]
        array = _as_array(value)
        if array is not None:
            if array.ndim == 0 and type(value).__name__ != "ndarray":
                return array.item()
            data = base64.b64encode(array.tobytes()).decode()
            return ["array", array.dtype.str, list(array.shape), data]
    return ["handle", keep(value), type(value).__name__]


def decode(data: Any, proxy: Callable[[int, str], Any]) -> Any:
    """Decode a value from `encode`; `proxy(number, type name)` returns the stand-in for an object."""
    return _Decoder(proxy).value(data)


class _Decoder:
    """Decodes one message, and counts what has to be hashed."""

    def __init__(self, proxy: Callable[[int, str], Any]) -> None:
        self.proxy, self.keys = proxy, 0

    def value(self, data: Any) -> Any:
        if data is None or type(data) in _SCALARS:
            return data
        match data:
            case ["list", *items]:
                return [self.value(item) for item in items]
            case ["tuple", *items]:
                return tuple(self.value(item) for item in items)
            case ["set", *items]:
                return {self._key(item) for item in items}
            case ["dict", *pairs] if all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
                return {self._key(key): self.value(value) for key, value in pairs}
            case ["bytes", str(text)]:
                return _bytes(text)
            case ["array", str(dtype), [*shape], str(text)]:
                return _array(dtype, shape, _bytes(text))
            case ["handle", int(number), str(kind)]:
                return self.proxy(number, kind[:60])
        raise BadMessage(f"not a value: {str(data)[:80]}")

    def _key(self, data: Any) -> Any:
        self.keys += 1
        if self.keys > MAX_KEYS:
            raise BadMessage(f"more than {MAX_KEYS:,} set members and dictionary keys")
        value = self.value(data)
        try:
            hash(value)
        except TypeError:
            raise BadMessage(f"a {type(value).__name__} cannot be in a set or a dictionary key") from None
        return value


def to_bytes(message: Any) -> bytes:
    """Serialize a message to bytes."""
    return json.dumps(message, separators=(",", ":")).encode()


def from_bytes(data: bytes) -> Any:
    """Parse a message; raises BadMessage if it is malformed."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"not a message: {error}") from None


def _plain_number(base: type, value: Any) -> Any:
    return int.__int__(value) if base is int else float.__float__(value)


def _as_array(value: Any) -> Any:
    """Return the NumPy array of an array, a NumPy number or a tensor on any device; None for other types."""
    torch: Any = sys.modules.get("torch")
    numpy: Any = sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        tensor: Any = value.detach().cpu()
        value = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
        array = numpy.asarray(value)
        if array.dtype.kind in "biufc":
            return array
    return None


def _array(dtype: str, shape: list[Any], data: bytes) -> Any:
    import numpy as np

    try:
        kind = np.dtype(dtype)
        if kind.kind not in "biufc" or not all(type(size) is int and size >= 0 for size in shape):
            raise BadMessage(f"not an array: dtype {dtype[:20]}, shape {shape[:8]}")
        return np.frombuffer(data, dtype=kind).reshape(shape).copy()
    except (TypeError, ValueError, OverflowError) as error:
        raise BadMessage(f"not an array: {error}") from None


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadMessage(f"not bytes: {error}") from None
