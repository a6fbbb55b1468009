"""The generator that the terminal and the web page share."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from coursekit.quiz.dice import Dice


def test_the_same_text_gives_the_same_numbers_another_text_others() -> None:
    def numbers(seed: str | None) -> list[int]:
        dice = Dice(seed)
        return [dice.below(1 << 30) for _ in range(5)]

    assert numbers("α 1") == numbers("α 1") != numbers("α 2")
    assert numbers(None) != numbers(None)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 100])
def test_every_number_below_n_is_equally_likely(n: int) -> None:
    dice, draws = Dice("uniform"), 200 * n
    count = Counter(dice.below(n) for _ in range(draws))
    assert set(count) == set(range(n))
    assert sum((times - 200) ** 2 / 200 for times in count.values()) < n + 4 * (2 * n) ** 0.5  # chi-square


def test_a_shuffle_keeps_the_items_and_reaches_every_order() -> None:
    dice = Dice("orders")
    orders = Counter("".join(dice.shuffled("abc")) for _ in range(600))
    assert len(orders) == 6 and min(orders.values()) > 60
    assert sum(dice.choice("ab") == "a" for _ in range(1000)) == pytest.approx(500, abs=80)


def test_neighbouring_seeds_have_unrelated_first_numbers() -> None:
    first = [Dice(f"question {i}").below(2) for i in range(2000)]
    assert sum(first) == pytest.approx(1000, abs=120)
    assert sum(a == b for a, b in itertools.pairwise(first)) == pytest.approx(1000, abs=120)
