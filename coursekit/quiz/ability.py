"""What a learner can do, in each topic, from the answers so far (chapter 10).

The model is Rasch's, with two additions. An answer is right with the chance

    P = g + (1 - g) / (1 + exp(-(ability - difficulty)))            difficulty = level - 3

where g is what blind guessing earns (one in four with four options, nothing with a typed number). Ability and
difficulty lie on one scale, so an ability can be told as the level at which every second question is solved.
Difficulties are known from the start, because authors set the levels; so one learner alone, offline, can be estimated.
Elo would also do without other learners, but its step is a matter of taste and it knows no uncertainty; here the
estimate is Bayes' posterior mean on a grid (EAP), which is right for one answer and for a hundred, and comes with its
error.

The second addition: abilities in topics are alike. A topic's ability is a general one plus a deviation of its own,

    general ~ N(0, 1.2²)        ability in a topic ~ N(general, 0.8²)

so three answers about tables say something about pools, but less than about tables. Given the general ability the
topics are independent, which makes the posterior exact in a few lines. (Rasch 1960; Bock and Mislevy 1982 for EAP.)

What must hold: no answers, the prior; the order of answers does not matter; a right answer never lowers an estimate.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

GENERAL_SPREAD, TOPIC_SPREAD = 1.2, 0.8
GRID = np.linspace(-5, 5, 101)
_PRIOR = np.exp(-0.5 * (GRID / GENERAL_SPREAD) ** 2)
# _NEAR[i, j]: how likely ability GRID[j] in a topic is where the general one is GRID[i].
_NEAR = np.exp(-0.5 * ((GRID[:, None] - GRID[None, :]) / TOPIC_SPREAD) ** 2)
_NEAR /= _NEAR.sum(axis=1, keepdims=True)


@dataclass(frozen=True)
class Answer:
    """One answer as the model sees it.

    Attributes:
        score: 0 to 1; between them for an open question, by its rubric.
        guess: the chance to be right without knowing anything.
    """

    topic: str
    level: int
    score: float
    guess: float = 0.0


@dataclass(frozen=True)
class Estimate:
    """An ability (0: solves every second question of level 3), its standard error, and the answers behind it."""

    ability: float
    error: float
    answers: int

    @property
    def level(self) -> float:
        """The level at which every second question is solved."""
        return self.ability + 3


def chance(ability: float | np.ndarray, level: int, guess: float = 0.0) -> np.ndarray:
    """The chance of a right answer."""
    return guess + (1 - guess) / (1 + np.exp(-(np.asarray(ability, dtype=float) - (level - 3))))


def information(ability: float, level: int, guess: float = 0.0) -> float:
    """How much an answer would tell about an ability near this one (Fisher's information)."""
    p = float(chance(ability, level, guess))
    slope = (p - guess) * (1 - p) / (1 - guess)
    return slope**2 / (p * (1 - p))


def estimate(answers: Iterable[Answer], topics: Iterable[str] = ()) -> tuple[Estimate, dict[str, Estimate]]:
    """The general ability, and that in each topic of the answers and of `topics`."""
    likelihood: dict[str, np.ndarray] = {topic: np.ones_like(GRID) for topic in topics}
    count = dict.fromkeys(likelihood, 0)
    for answer in answers:
        p = chance(GRID, answer.level, answer.guess)
        seen = (
            likelihood.get(answer.topic, np.ones_like(GRID)) * p**answer.score * (1 - p) ** (1 - answer.score)
        )
        likelihood[answer.topic] = seen / seen.max()  # hundreds of factors below 1 would end at 0
        count[answer.topic] = count.get(answer.topic, 0) + 1
    # What each topic says of the general ability: its own ability summed out.
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
