"""Sampling: the distribution that was asked for, from one random number per token."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from paged_ref import SamplingParams
from paged_ref.sampling.sampler import BadLogits, Wish, choose


def draw_tokens(logits: torch.Tensor, count: int, **params: object) -> list[int]:
    """Draw `count` times from one row of logits, with seeds 0, 1, 2 and so on."""
    draws = choose(logits[None], [Wish(SamplingParams(**params), count)])[0]
    return [draw.token_id for draw in draws]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"max_tokens": 0}, "max_tokens = 0"),
        ({"max_tokens": -3}, "max_tokens = -3"),
        ({"max_tokens": 2.5}, "max_tokens = 2.5"),
        ({"max_tokens": True}, "max_tokens = True"),
        ({"temperature": math.nan}, "temperature = nan"),
        ({"temperature": -0.1}, "temperature = -0.1"),
        ({"temperature": math.inf}, "temperature = inf"),
        ({"temperature": 1e-9}, "temperature = 1e-09"),
        ({"temperature": "hot"}, "temperature = 'hot'"),
        ({"top_p": 0}, "top_p = 0"),
        ({"top_p": 1.01}, "top_p = 1.01"),
        ({"top_p": math.nan}, "top_p = nan"),
        ({"top_k": -1}, "top_k = -1"),
        ({"n": 0}, "n = 0"),
        ({"seed": -1}, "seed = -1"),
        ({"seed": 2**64}, f"seed = {2**64}"),
        ({"beam_width": 0}, "beam_width = 0"),
        ({"beam_width": 2, "temperature": 0.5}, "temperature = 0.5"),
        ({"beam_width": 2, "n": 2}, "n = 2"),
        ({"beam_width": 2, "top_k": 5}, "top_k = 5"),
        ({"beam_width": 2, "top_p": 0.5}, "top_p = 0.5"),
        ({"beam_width": 2, "stop": ("x",)}, "stop = "),
        ({"stop": ("a", "")}, "stop[1] = ''"),
        ({"stop": (7,)}, "stop[0] = 7"),
    ],
)
def test_a_value_out_of_range_is_named(wrong: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError) as error:
        SamplingParams(**wrong)
    assert named in str(error.value)


def test_one_stop_string_may_stand_alone() -> None:
    assert SamplingParams(stop="end").stop == ("end",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")


def test_greedy_takes_the_likeliest_and_reports_its_probability() -> None:
    logits = torch.randn(5, 300, generator=torch.Generator().manual_seed(0))
    chosen = choose(logits, [Wish(SamplingParams())] * 5)
    for row, (draw,) in zip(logits, chosen, strict=True):
        assert draw.token_id == int(row.argmax())
        assert draw.logprob == pytest.approx(float(row.log_softmax(0).max()), abs=1e-5)


def test_frequencies_follow_the_temperature() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -torch.inf])
    for temperature in (0.5, 1.0, 3.0):
        tokens = draw_tokens(logits, 20_000, temperature=temperature)
        expected = (logits / temperature).softmax(0).numpy()
        found = np.bincount(tokens, minlength=5) / len(tokens)
        assert np.abs(found - expected).max() < 0.012
        assert found[4] == 0


def test_top_k_and_top_p_cut_the_tail_and_keep_the_proportions() -> None:
    probabilities = np.array([0.1, 0.4, 0.2, 0.3])
    logits = torch.tensor(np.log(probabilities), dtype=torch.float32)
    for params, kept in (
        ({"top_k": 1}, [1]),
        ({"top_k": 2}, [1, 3]),
        ({"top_k": 99}, [0, 1, 2, 3]),
        ({"top_p": 0.3}, [1]),
        ({"top_p": 0.41}, [1, 3]),
        ({"top_p": 0.71}, [1, 2, 3]),
        ({"top_p": 0.95}, [0, 1, 2, 3]),
        ({"top_k": 3, "top_p": 0.75}, [1, 3]),  # of the three, 4/9 + 3/9 is more than 0.75 already
        ({"top_k": 2, "top_p": 1e-9}, [1]),
    ):
        tokens = draw_tokens(logits, 5_000, temperature=1.0, **params)
        found = np.bincount(tokens, minlength=4) / len(tokens)
        expected = np.where(np.isin(np.arange(4), kept), probabilities, 0)
        assert set(np.flatnonzero(found)) == set(kept), params
        assert np.abs(found - expected / expected.sum()).max() < 0.025, params


def test_top_p_agrees_with_a_full_sort_on_flat_distributions() -> None:
    """The cut lies far beyond the first tokens that are sorted."""
    generator = torch.Generator().manual_seed(3)
    for spread in (0.01, 0.3, 2.0):
        row = spread * torch.randn(5_000, generator=generator)
        for top_p in (0.2, 0.9, 0.999):
            ordered = row.double().softmax(0).sort(descending=True)
            number = int((ordered.values.cumsum(0) - ordered.values < top_p).sum())
            allowed = set(
                ordered.indices[: number + 1].tolist()
            )  # one more: rounding may decide about the last
            tokens = draw_tokens(row, 3_000, temperature=1.0, top_p=top_p)
            assert set(tokens) <= allowed
            assert len(set(tokens)) > 0.3 * min(number, 3_000)


def test_a_row_is_drawn_alike_alone_and_among_others() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(12, 400, generator=generator)
    params = [
        SamplingParams(temperature=0.5 + i / 4, top_k=7 * (i % 3), top_p=1 - i % 4 / 5) for i in range(10)
    ]
    wishes = [Wish(sampling, 1 + i % 3, seed=50 + i, position=i) for i, sampling in enumerate(params)]
    wishes += [Wish(SamplingParams()), Wish(SamplingParams(beam_width=3), 6)]
    together = choose(logits, wishes)
    assert [len(draws) for draws in together] == [wish.count for wish in wishes]
    for row, wish in enumerate(wishes):
        alone = choose(logits[row : row + 1], [wish])[0]
        assert [draw.token_id for draw in alone] == [draw.token_id for draw in together[row]]
        assert [draw.logprob for draw in alone] == pytest.approx(
            [draw.logprob for draw in together[row]], abs=1e-5
        )


def test_seed_and_position_decide_and_samples_count_the_seed_up() -> None:
    logits = torch.zeros(1, 10_000)
    hot = SamplingParams(temperature=1.0)

    def tokens(seed: int, position: int, count: int = 1) -> list[int]:
        return [draw.token_id for draw in choose(logits, [Wish(hot, count, seed, position)])[0]]

    assert tokens(5, 9) == tokens(5, 9)
    assert len({tokens(5, position)[0] for position in range(50)}) > 45
    assert tokens(5, 9, count=4) == [tokens(seed, 9)[0] for seed in (5, 6, 7, 8)]
    assert len(tokens(2**64 - 1, 9, count=2)) == 2  # the largest seed, and one past it


def test_beam_candidates_are_the_likeliest_tokens_in_order() -> None:
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(2))
    beam = SamplingParams(beam_width=2)
    short, long = choose(logits, [Wish(beam, 4), Wish(beam, 6)])
    assert [draw.token_id for draw in short] == logits[0].topk(4).indices.tolist()
    assert [draw.token_id for draw in long] == logits[1].topk(6).indices.tolist()
    assert long[0].logprob > long[5].logprob


def test_half_precision_logits_and_extreme_temperatures() -> None:
    logits = torch.tensor([[4.0, -200.0, 3.0]]).bfloat16()
    assert choose(logits, [Wish(SamplingParams(temperature=1e-6))])[0][0].token_id == 0
    tokens = draw_tokens(logits[0], 300, temperature=1e30)
    assert set(tokens) == {0, 1, 2}


def test_logits_that_are_not_numbers_are_told_by_row() -> None:
    for bad in (math.nan, math.inf):
        logits = torch.zeros(3, 10)
        logits[1, 4] = bad
        with pytest.raises(BadLogits, match=r"rows \[1\]") as error:
            choose(logits, [Wish(SamplingParams())] * 3)
        assert error.value.rows == [1]


# ---- extremes


@pytest.mark.parametrize("temperature", [1e-6, 1.0, 3.4e38, 3.5e38, 1e300])
@pytest.mark.parametrize(
    "options", [{}, {"top_k": 3}, {"top_p": 0.5}, {"top_k": 2, "top_p": 0.1}, {"top_k": 99}]
)
def test_only_finite_logits_are_drawn(temperature: float, options: dict[str, Any]) -> None:
    low = -torch.inf
    for row in (
        [low, 1.0, low, 2.0, low],
        [low] * 4 + [0.0],
        [0.0] + [low] * 4,
        [-3e38, 3e38, low, 0.0, 0.0],
    ):
        logits = torch.tensor([row] * 30)
        wishes = [Wish(SamplingParams(temperature=temperature, **options), 3, 7, i) for i in range(30)]
        drawn = {draw.token_id for draws in choose(logits, wishes) for draw in draws}
        assert drawn <= {token for token, logit in enumerate(row) if logit != low}


def test_a_temperature_above_the_largest_float32_draws_all_finite_tokens_alike() -> None:
    logits = torch.tensor([[-torch.inf, 1.0, 50.0, -torch.inf, -50.0]] * 400)
    wishes = [Wish(SamplingParams(temperature=1e39), 1, 7, i) for i in range(400)]
    drawn = [draws[0].token_id for draws in choose(logits, wishes)]
    assert set(drawn) == {1, 2, 4}
    assert min(drawn.count(token) for token in (1, 2, 4)) > 90


@pytest.mark.parametrize("row", [[-torch.inf] * 3, [torch.nan, 0.0, 0.0], [torch.inf, 0.0, 0.0]])
def test_rows_without_a_finite_maximum_are_named(row: list[float]) -> None:
    logits = torch.tensor([[0.0, 1.0, -torch.inf], row])
    for temperature in (0.0, 1.0):
        with pytest.raises(
            BadLogits, match=r"rows \[1\] of the logits hold NaN or infinity, or no finite value"
        ):
            choose(logits, [Wish(SamplingParams(temperature=temperature))] * 2)
