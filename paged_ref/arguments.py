"""Argument checks and integer arithmetic that several modules share."""

from __future__ import annotations

from numbers import Integral, Real


def require_int(name: str, value: object, minimum: int) -> int:
    """Return `value`, a Python or NumPy integer, as an int.

    Raises:
        ValueError: it is not an integer, or below `minimum`; the message has the argument's name.
    """
    if not isinstance(value, Integral) or isinstance(value, bool) or value < minimum:
        raise ValueError(f"{name} = {value!r}: it must be a whole number, {minimum} or more")
    return int(value)


def require_number(name: str, value: object) -> float:
    """Return `value`, a Python or NumPy number, as a float (NaN and infinity included).

    Raises:
        ValueError: it is not a number; the message has the argument's name.
    """
    if not isinstance(value, Real) or isinstance(value, bool):
        raise ValueError(f"{name} = {value!r}: it must be a number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} = {value!r:.40}: it is too large") from None


def next_power_of_two(n: int) -> int:
    """Return the smallest power of two that is at least `n` (n >= 1)."""
    return 1 << (n - 1).bit_length()
