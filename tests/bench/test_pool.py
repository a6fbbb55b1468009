"""The pool benchmark: one row per size, and what it refuses."""

import pytest

from bench import pool as bench_pool
from tests.helpers.command import run


def test_the_benchmark_measures_each_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(bench_pool, "--sizes", "100", "2000", "--operations", "20") == 0
    header, small, large = capsys.readouterr().out.splitlines()
    assert header.split() == ["blocks", "built", "in", "allocate/s", "free/s", "share/s", "revive/s"]
    assert (small.split()[0], large.split()[0]) == ("100", "2,000")


def test_the_benchmark_refuses_a_pool_that_is_too_small() -> None:
    with pytest.raises(
        ValueError, match=r"--sizes \[100\]: a pool must have at least 4 x --operations blocks"
    ):
        run(bench_pool, "--sizes", "100", "1000", "--operations", "50")
