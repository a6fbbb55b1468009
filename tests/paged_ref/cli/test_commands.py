"""The simulator's command: what it prints."""

import pytest

from paged_ref.cli import simulate
from tests.helpers.command import run


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
