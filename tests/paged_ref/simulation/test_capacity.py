"""Plans: the article's machine, cheaper steps for more money, and wrong questions."""

from __future__ import annotations

import pytest

from paged_ref.__main__ import main
from paged_ref.cli.plan import PLANNABLE
from paged_ref.simulation.capacity import DEVICES, Load, plan_capacity, steady_step_seconds
from paged_ref.sizing import MODELS

ARTICLE = Load(600, 250, 8192)


def test_the_articles_machine() -> None:
    result = plan_capacity(MODELS["llama-3.1-70b"], DEVICES["h100-80gb"], ARTICLE, num_devices=8)
    assert (result.contiguous.concurrency, result.paged.concurrency) == (162, 1536)
    assert result.paged.bytes_per_request == 54 * 5_242_880
    assert result.paged.usage.internal == 14 and result.contiguous.usage.internal == 8192 - 850
    assert 1 < result.paged.requests_per_second / result.contiguous.requests_per_second < 2, (
        "at this size arithmetic is the limit: the throughput rises far less than the concurrency"
    )


def test_requests_a_second_are_those_of_the_steady_state() -> None:
    result = plan_capacity(MODELS["opt-13b"], DEVICES["a100-40gb"], Load(161, 338, 2048))
    step = steady_step_seconds(result.cost_model, result.load, result.paged.concurrency)
    assert result.paged.requests_per_second == pytest.approx(result.paged.concurrency / (338 * step))
    assert result.paged.cost(3.6) == pytest.approx(0.001 / result.paged.requests_per_second)


@pytest.mark.parametrize("name", PLANNABLE)
def test_every_model_that_is_offered_can_be_planned(name: str) -> None:
    result = plan_capacity(MODELS[name], DEVICES["h200"], ARTICLE, num_devices=8)
    assert result.paged.concurrency >= result.contiguous.concurrency >= 1


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--price", "2"]) == 0
    out = capsys.readouterr().out
    assert "327,680 bytes per token" in out
    rows = {line[:22].strip(): line[22:].split() for line in out.splitlines()}
    assert rows["requests at once"] == ["162", "1536"]
    assert rows["of which wasted"] == ["89.6%", "1.6%"]
    assert all(float(money) > 0 for money in rows["cost of 1,000 requests"])
    assert "9.5 times the requests at once" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "llama-3-70b"], "did you mean 'llama-3.1-70b'"),
        (["--gpu", "h100"], "did you mean 'h100-80gb'"),
        (["--gpus", "1"], "do not hold 141 GB of weights"),
        (["--gpus", "0"], "num_devices = 0"),
        (["--block-size", "0"], "block_size = 0"),
        (["--prompt", "8000", "--output", "250"], "at most 8192 in all"),
        (["--price", "-1"], "--price -1.0: it must be above 0"),
        (["--gpus", "2", "--memory-fraction", "0.89"], "no request of 8192 slots fits"),
    ],
)
def test_wrong_questions(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *arguments]) == 2
    assert message in capsys.readouterr().err
