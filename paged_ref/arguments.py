"""Argument checks and integer arithmetic that several modules share."""

from __future__ import annotations


def require_int(name: str, value: object, minimum: int) -> None:
    """Raise ValueError, naming the argument, unless `value` is an int of at least `minimum`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ValueError(f"{name} = {value!r}: it must be a whole number, {minimum} or more")


def next_power_of_two(n: int) -> int:
    """Return the smallest power of two that is at least `n` (n >= 1)."""
    return 1 << (n - 1).bit_length()
