"""What all tests so far say about the learner, as plain text for the terminal and the notebook (chapter 10)."""

from __future__ import annotations

from dataclasses import dataclass

from coursekit.quiz import ability
from coursekit.quiz.bank import Bank
from coursekit.quiz.progress import Progress

ENOUGH = 2  # answers, before a topic is called weak
WEAK_BELOW = 3.0  # the level of a topic: less than every second question of level 3


@dataclass(frozen=True)
class Topic:
    """One topic's standing."""

    key: str
    title: str
    estimate: ability.Estimate

    @property
    def weak(self) -> bool:
        """Known well enough to say so, and below level 3."""
        return self.estimate.answers >= ENOUGH and self.estimate.level < WEAK_BELOW

    @property
    def line(self) -> str:
        """In words."""
        answers = f"{self.estimate.answers} answer{'s' if self.estimate.answers > 1 else ''}"
        level = f"level {self.estimate.level:.1f} ± {self.estimate.error:.1f}"
        return f"{self.title}: {level}, from {answers}" + (" (weak)" if self.weak else "")


def standing(bank: Bank, progress: Progress) -> list[Topic]:
    """Every topic, the weakest first, those not asked yet last."""
    _, known = ability.estimate(
        [answer for answer in progress.answers if answer.topic in bank.topics], bank.topics
    )
    topics = [Topic(key, title, known[key]) for key, title in bank.topics.items()]
    return sorted(topics, key=lambda one: (not one.estimate.answers, one.estimate.ability))


def weak_topics(bank: Bank, progress: Progress) -> list[Topic]:
    """What to look at next."""
    return [topic for topic in standing(bank, progress) if topic.weak]


def lines(bank: Bank, progress: Progress) -> list[str]:
    """The standing in lines, with what to do."""
    topics = standing(bank, progress)
    if not progress.records:
        return ["Nothing has been answered yet."]
    told = ["Where you stand (the level at which you solve every second question):"]
    told += [f"  {topic.line}" for topic in topics if topic.estimate.answers]
    if unasked := [topic.title for topic in topics if not topic.estimate.answers]:
        told.append(f"Not asked yet: {'; '.join(unasked)}.")
    weak = [topic for topic in topics if topic.weak]
    if weak:
        told.append(f"Weakest: {weak[0].title}. Practise it with --topic {weak[0].key}.")
    return told
