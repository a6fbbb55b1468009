"""Random choices that are the same in every language: sfc32, seeded with a text (chapter 10).

The trainer also runs as a web page (`coursekit/site/trainer/`). A seed must give the same question there, and
JavaScript has neither Python's generator nor 64-bit integers. This generator needs additions, shifts and exclusive or
on 32 bits only. `coursekit/site/trainer/dice.js` is the same code in JavaScript, and the tests compare both.

Invariants: the same text gives the same numbers; `below` is uniform. (sfc32 is from PractRand by Chris Doty-Humphrey;
the hash is FNV-1a.)
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
_MASK = 0xFFFFFFFF
_WARM_UP = 20  # numbers discarded, until all bits of the state depend on all bits of the seed


class Dice:
    """A generator of random numbers. Without a seed, every instance is different."""

    def __init__(self, seed: str | None = None) -> None:
        text = secrets.token_hex(16) if seed is None else seed
        self._state = (*(_hash(f"{i} {text}") for i in range(3)), 1)
        for _ in range(_WARM_UP):
            self._next()

    def _next(self) -> int:
        """Return 32 random bits."""
        a, b, c, counter = self._state
        result = (a + b + counter) & _MASK
        rotated = (c << 21 | c >> 11) & _MASK
        self._state = (b ^ b >> 9, (c + (c << 3)) & _MASK, (rotated + result) & _MASK, (counter + 1) & _MASK)
        return result

    def below(self, n: int) -> int:
        """Return a whole number from 0 to n - 1; n is at most 2**32."""
        limit = (1 << 32) // n * n  # numbers from here on would make small results more likely
        while (number := self._next()) >= limit:
            pass
        return number % n

    def choice(self, items: Sequence[T]) -> T:
        """Return one of the items."""
        return items[self.below(len(items))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """Return the items in random order (Fisher and Yates)."""
        order = list(items)
        for i in range(len(order) - 1, 0, -1):
            j = self.below(i + 1)
            order[i], order[j] = order[j], order[i]
        return order


def _hash(text: str) -> int:
    """Return the 32-bit FNV-1a hash of a text's UTF-8 bytes."""
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 & _MASK
    return value
