"""The simulator's and the pool benchmark's commands: what they print, and what they refuse."""

import argparse
from types import ModuleType

import pytest

from bench import pool as bench_pool
from paged_ref.cli import simulate


def run(module: ModuleType, *arguments: str) -> int:
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    return int(module.run(parser.parse_args(arguments)))


def test_simulate_prints_what_became_of_the_requests(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(simulate, "--requests", "50", "--trace", "alpaca", "--rate", "5") == 0
    printed = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert printed["requests"].startswith("50 in ")
    assert printed["pool"].startswith("915 blocks")
    assert printed["preemptions"] == "0, 0 of them by swap"


def test_simulate_takes_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    options = (
        "--requests 60 --rate inf --num-blocks 160 --preemption swap --prefix-caching --shared-tokens 64"
    )
    options += " --urgent 0.2 --watermark 0 --prometheus"
    assert run(simulate, *options.split()) == 0
    printed = capsys.readouterr().out
    values = dict(line.rsplit(" ", 1) for line in printed.splitlines() if line and line[0] != "#")
    assert int(values['paged_ref:swapped_blocks_total{direction="out"}']) > 0
    assert int(values["vllm:prefix_cache_hits_total"]) > 0


def test_simulate_of_no_requests(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(simulate, "--requests", "0") == 0
    assert "time to first token  none" in capsys.readouterr().out


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
