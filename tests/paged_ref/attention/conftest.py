"""The grid runs as a covering array; set PAGED_REF_FULL_GRID=1 for the whole product of its axes (hours)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
import pytest

from paged_ref.verify.grid import Case, Inputs, all_cases, cases, make_inputs


@lru_cache(maxsize=4)
def _inputs_and_answer(case: Case) -> tuple[Inputs, np.ndarray]:
    inputs = make_inputs(case)
    return inputs, inputs.expected()


@pytest.fixture(scope="session")
def grid_cases() -> list[Case]:
    """The covering array."""
    return cases()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `case` runs once for each case of the grid."""
    if "case" in metafunc.fixturenames:
        chosen: Iterable[Case] = all_cases() if os.environ.get("PAGED_REF_FULL_GRID") == "1" else cases()
        metafunc.parametrize("case", chosen, ids=str)
    if (
        "short_case" in metafunc.fixturenames
    ):  # for loops in Python: at most this many (query token, block) pairs
        metafunc.parametrize("short_case", [c for c in cases() if _pairs(c) <= 1000], ids=str)
    if (
        "plain_case" in metafunc.fixturenames
    ):  # what chapter 5's first kernel can do, at an interpreter's pace
        plain = [c for c in cases() if c.queries == "decode" and c.extra in ("none", "strided")]
        metafunc.parametrize("plain_case", [c for c in plain if _pairs(c) * c.heads[0] <= 250], ids=str)


def _pairs(case: Case) -> int:
    return sum(queries * -(-n // case.block_size) for queries, n in case.lengths())


@pytest.fixture
def inputs_and_answer(case: Case) -> tuple[Inputs, np.ndarray]:
    """A case's arguments and the oracle's result for them."""
    return _inputs_and_answer(case)
