"""The inputs of chapter 3's checks: right without a fault, and different for every fault that a check can name."""

from __future__ import annotations

import math
from itertools import combinations
from random import Random

import numpy as np
import pytest

from coursekit.checks.chapter_03.attention import FAULTS, TOLERANCE
from coursekit.checks.chapter_03.inputs import NOT_AN_ID, as_array, close, draw, faulty


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("heads", [(4, 4), (9, 3), (5, 1)])
def test_without_a_fault_the_second_implementation_is_the_oracle(seed: int, heads: tuple[int, int]) -> None:
    for unused, padding in ((3.0, -1), (math.nan, NOT_AN_ID)):
        inputs = draw(Random(seed), [14, 3, 5, 6, 16], 4, heads, unused=unused, padding=padding)
        assert close(faulty(inputs), inputs.expected(), 1e-9).all()


@pytest.mark.parametrize("seed", range(10))
def test_every_fault_differs_from_the_right_answer_and_from_every_other(seed: int) -> None:
    inputs = draw(Random(seed), [14, 3, 5, 6], 4, (9, 3))
    results = {name: fault(inputs) for name, fault in FAULTS.items()} | {"right": inputs.expected()}
    for one, other in combinations(results, 2):
        assert not close(results[one], results[other], 2 * TOLERANCE).all(), (one, other)


def test_large_scores_are_large_on_both_sides() -> None:
    inputs = draw(Random(0), [11, 6], 4, (6, 2), score_size=500)
    block, offset = inputs.block_tables[1, np.arange(6) // 4], np.arange(6) % 4
    below = inputs.key_cache[block, offset, 0].astype(float) @ inputs.query[1, 0] / 4
    last = inputs.key_cache[inputs.block_tables[0, 2], 2, 0].astype(float) @ inputs.query[0, 0] / 4
    assert below.max() < -1000 and last > 1000


def test_an_answer_is_taken_as_numbers_of_the_right_shape_or_not_at_all() -> None:
    assert as_array([[1, 2], [3, 4]], (2, 2)) is not None
    for odd in ([[1, 2], [3]], "text", None, [1, 2], {"a": 1}):
        assert as_array(odd, (2, 2)) is None
