"""The learner's level in each topic from all tests so far, as plain text for terminal and notebook (chapter 10)."""

from __future__ import annotations

from dataclasses import dataclass

from coursekit.quiz import ability
from coursekit.quiz.bank import Bank
from coursekit.quiz.progress import Progress

ENOUGH = 2  # number of answers before a topic can be called weak
WEAK_BELOW = 3.0  # topic level: fewer than half of the level-3 questions solved


@dataclass(frozen=True)
class Topic:
    """The learner's level in one topic."""

    key: str
    title: str
    estimate: ability.Estimate

    @property
    def weak(self) -> bool:
        """True if there are enough answers and the level is below 3."""
        return self.estimate.answers >= ENOUGH and self.estimate.level < WEAK_BELOW

    @property
    def line(self) -> str:
        """In words."""
        answers = f"{self.estimate.answers} answer{'s' if self.estimate.answers > 1 else ''}"
        level = f"level {self.estimate.level:.1f} ± {self.estimate.error:.1f}"
        return f"{self.title}: {level}, from {answers}" + (" (weak)" if self.weak else "")


def standing(bank: Bank, progress: Progress) -> list[Topic]:
    """Return every topic, the weakest first, unasked ones last."""
    _, known = ability.estimate(
        [answer for answer in progress.answers if answer.topic in bank.topics], bank.topics
    )
    topics = [Topic(key, title, known[key]) for key, title in bank.topics.items()]
    return sorted(topics, key=lambda one: (not one.estimate.answers, one.estimate.ability))


def weak_topics(bank: Bank, progress: Progress) -> list[Topic]:
    """Return the topics to work on next."""
    return [topic for topic in standing(bank, progress) if topic.weak]


def lines(bank: Bank, progress: Progress) -> list[str]:
    """Format the learner's level in each topic, with a recommendation."""
    topics = standing(bank, progress)
    if not progress.records:
        return ["You have not answered any questions yet."]
    told = ["Where you stand (the level at which you solve half of the questions):"]
    told += [f"  {topic.line}" for topic in topics if topic.estimate.answers]
    if unasked := [topic.title for topic in topics if not topic.estimate.answers]:
        told.append(f"Not asked yet: {'; '.join(unasked)}.")
    weak = [topic for topic in topics if topic.weak]
    if weak:
        told.append(f"Weakest: {weak[0].title}. Practice it with --topic {weak[0].key}.")
    return told
