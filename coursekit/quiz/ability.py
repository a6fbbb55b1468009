"""Estimate of a learner's ability in each topic from the answers so far (chapter 10).

The model is Rasch's, with two additions. The probability of a right answer is

    P = g + (1 - g) / (1 + exp(-(ability - difficulty)))            difficulty = level - 3

where g is the success rate of blind guessing (one in four with four options, zero with a typed number). Ability and
difficulty are on one scale, so an ability can be reported as the level at which you solve half of the questions.
The difficulties are known from the start, because authors set the levels; so a single learner can be estimated offline.
Elo would also work without other learners, but its step size is arbitrary and it has no uncertainty. Here the estimate
is the Bayesian posterior mean on a grid (EAP), which works for one answer and for a hundred, and comes with a standard
error.

The second addition: abilities in different topics are related. A topic's ability is a general one plus a deviation,

    general ~ N(0, 1.2²)        ability in a topic ~ N(general, 0.8²)

so three answers about tables say something about pools, but less than about tables. Given the general ability the
topics are independent, so the exact posterior takes a few lines. (Rasch 1960; Bock and Mislevy 1982 for EAP.)

Invariants: without answers, the estimate is the prior; the order of answers does not matter; a right answer
never lowers an estimate.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

GENERAL_SPREAD, TOPIC_SPREAD = 1.2, 0.8
GRID = np.linspace(-5, 5, 101)
_PRIOR = np.exp(-0.5 * (GRID / GENERAL_SPREAD) ** 2)
# _NEAR[i, j]: probability of ability GRID[j] in a topic if the general one is GRID[i].
_NEAR = np.exp(-0.5 * ((GRID[:, None] - GRID[None, :]) / TOPIC_SPREAD) ** 2)
_NEAR /= _NEAR.sum(axis=1, keepdims=True)


@dataclass(frozen=True)
class Answer:
    """One answer as input to the model.

    Attributes:
        score: 0 to 1; values in between come from open questions, scored by a rubric.
        guess: the probability of being right by guessing.
    """

    topic: str
    level: int
    score: float
    guess: float = 0.0


@dataclass(frozen=True)
class Estimate:
    """An ability (0: solves half of the level-3 questions), its standard error, and the number of answers behind it."""

    ability: float
    error: float
    answers: int

    @property
    def level(self) -> float:
        """The level at which half of the questions are solved."""
        return self.ability + 3


def chance(ability: float | np.ndarray, level: int, guess: float = 0.0) -> np.ndarray:
    """Return the probability of a right answer."""
    return guess + (1 - guess) / (1 + np.exp(-(np.asarray(ability, dtype=float) - (level - 3))))


def information(ability: float, level: int, guess: float = 0.0) -> float:
    """Return how much an answer would tell about an ability near this one (Fisher information)."""
    p = float(chance(ability, level, guess))
    slope = (p - guess) * (1 - p) / (1 - guess)
    return slope**2 / (p * (1 - p))


def estimate(answers: Iterable[Answer], topics: Iterable[str] = ()) -> tuple[Estimate, dict[str, Estimate]]:
    """Estimate the general ability, and the ability in each topic of the answers and of `topics`."""
    likelihood: dict[str, np.ndarray] = {topic: np.ones_like(GRID) for topic in topics}
    count = dict.fromkeys(likelihood, 0)
    for answer in answers:
        p = chance(GRID, answer.level, answer.guess)
        seen = (
            likelihood.get(answer.topic, np.ones_like(GRID)) * p**answer.score * (1 - p) ** (1 - answer.score)
        )
        likelihood[answer.topic] = (
            seen / seen.max()
        )  # a product of hundreds of factors below 1 would underflow to 0
        count[answer.topic] = count.get(answer.topic, 0) + 1
    # The evidence of each topic about the general ability: its own ability is summed out.
    message = {topic: _NEAR @ seen for topic, seen in likelihood.items()}
    total = np.log(_PRIOR) + sum((np.log(one) for one in message.values()), np.zeros_like(GRID))
    by_topic = {}
    for topic, seen in likelihood.items():
        others = total - np.log(message[topic])
        by_topic[topic] = _mean(seen * (np.exp(others - others.max()) @ _NEAR), count[topic])
    return _mean(np.exp(total - total.max()), sum(count.values())), by_topic


def _mean(weights: np.ndarray, answers: int) -> Estimate:
    weights = weights / weights.sum()
    mean = float(weights @ GRID)
    return Estimate(mean, float(np.sqrt(weights @ (GRID - mean) ** 2)), answers)
