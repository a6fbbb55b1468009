"""A test: selection of the next question, and recording of the answers (chapter 10).

    adaptive   five questions; each is chosen by the answers so far
    daily      five questions, one of each level, fixed by the date: the same for everyone, everywhere
    exam       any number of questions, spread evenly over topics and levels; the answers come at the end

The adaptive test asks where an answer is most informative: it maximizes the Fisher information at the estimated ability
times the square of the estimate's error, to first order the reduction of uncertainty. So it prefers topics with few
answers and levels where success is uncertain. Three rules keep it pleasant: at most two of five questions have the same
level; a topic or kind that just came up counts less; and so does a question that was asked before, but less so with
time, and wrongly answered questions come back first.

Invariants: no question comes twice in a test; the same seed, bank and answers give the same test; a test continues as
long as there are questions.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from coursekit.quiz import ability
from coursekit.quiz.bank import LEVELS, Bank, Choice, Question
from coursekit.quiz.dice import Dice
from coursekit.quiz.judge import Item, Unclear, Verdict, ask, judge
from coursekit.quiz.progress import Progress, Record

LENGTH = 5
SAME_LEVEL = 2  # of five
SEEDS = 1 << 30  # number of seeds that a question is asked with
_AMONG = 3  # choose among the best three, so that two people do not get the same test
_WRONG_RETURNS = 4  # wrong answers come back this many times sooner than right ones


@dataclass(frozen=True)
class Answered:
    """A question that was asked, the answer, and its score."""

    item: Item
    typed: str
    verdict: Verdict

    @property
    def score(self) -> float:
        """The score, 0 to 1."""
        return self.verdict.score or 0.0


@dataclass
class Test:
    """A test in progress.

    Attributes:
        name: test, daily or exam.
        length: number of questions in the test.
        plan: the questions in order, if they are fixed; empty for an adaptive test.
        choices: the questions that an adaptive test may ask.
    """

    name: str
    length: int
    progress: Progress
    dice: Dice
    topics: Sequence[str]
    choices: Sequence[Question] = ()
    plan: Sequence[Item] = ()
    answered: list[Answered] = field(default_factory=list)
    __test__ = False  # pytest: this is not a test

    def next(self) -> Item | None:
        """Return the next question, or None at the end."""
        done = len(self.answered)
        if done >= self.length:
            return None
        if self.plan:
            return self.plan[done]
        question = self._choose()
        return ask(question, self.dice.below(SEEDS)) if question else None

    def answer(self, item: Item, typed: str) -> Verdict:
        """Return the verdict on an answer; save it at once unless its points must still be ticked (`score` is None).

        Raises:
            Unclear: the answer cannot be read; nothing is saved.
        """
        verdict = judge(item, typed)
        if verdict.score is not None:
            self.keep(item, typed, verdict)
        return verdict

    def give_up(self, item: Item) -> Verdict:
        """Record that the learner does not know the answer."""
        verdict = Verdict(0.0, "")
        self.keep(item, "", verdict)
        return verdict

    def keep(self, item: Item, typed: str, verdict: Verdict) -> None:
        """Save an answer whose score is known."""
        if verdict.score is None:
            raise Unclear("First tick the points that your answer has.")
        self.answered.append(Answered(item, typed, verdict))
        question = item.question
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self.progress.add(
            Record(now, question.id, question.topic, question.level, verdict.score, item.guess, self.name)
        )

    def _choose(self) -> Question | None:
        asked = {one.item.question.id for one in self.answered}
        left = [question for question in self.choices if question.id not in asked]
        full = self._full_levels()
        left = [question for question in left if question.level not in full] or left
        if not left:
            return None
        _, known = ability.estimate(self.progress.answers, self.topics)
        now = len(self.progress.records)
        seen = {record.question: (now - i, record.score) for i, record in enumerate(self.progress.records)}
        last = [one.item.question for one in self.answered[1 - LENGTH :]]

        def worth(question: Question) -> float:
            estimate = known[question.topic]
            guess = 1 / (1 + len(question.wrong)) if isinstance(question, Choice) else 0.0
            value = ability.information(estimate.ability, question.level, guess) * estimate.error**2
            if question.id in seen:
                ago, score = seen[question.id]
                sooner = 1 if score == 1 else _WRONG_RETURNS
                value *= min(1, ago * sooner / (_WRONG_RETURNS * len(self.choices)))
            value *= 0.6 ** sum(question.topic == one.topic for one in last[-2:])
            value *= 0.6 ** sum(question.kind == one.kind for one in last)
            return float(
                f"{value:.9g}"
            )  # equal values stay equal, whatever the rounding errors of the machine

        best = sorted(left, key=worth, reverse=True)[:_AMONG]
        return self.dice.choice(best)

    def _full_levels(self) -> set[int]:
        """Levels that may not come again in this test."""
        block = self.answered[len(self.answered) // LENGTH * LENGTH :]
        count = Counter(one.item.question.level for one in block)
        return {level for level, times in count.items() if times >= SAME_LEVEL}


def adaptive(bank: Bank, progress: Progress, choices: Iterable[Question], seed: int | None = None) -> Test:
    """Start an adaptive test of five questions out of `choices`."""
    choices = list(choices)
    return Test("test", min(LENGTH, len(choices)), progress, _dice(seed), list(bank.topics), choices=choices)


def daily(bank: Bank, progress: Progress, day: datetime.date) -> Test:
    """Return the five questions of a day. Questions of a level rotate, so none repeats before all have come."""
    dice = Dice(f"daily {day.isoformat()}")
    chosen = [_turn(questions, day) for level in LEVELS if (questions := _of_level(bank, level))]
    plan = [ask(question, dice.below(SEEDS)) for question in chosen]
    return Test("daily", len(plan), progress, dice, list(bank.topics), plan=plan)


def exam(
    bank: Bank, progress: Progress, choices: Iterable[Question], length: int, seed: int | None = None
) -> Test:
    """Return `length` questions, spread evenly over topics and levels, easy ones first.

    Raises:
        ValueError: there are fewer than `length` questions.
    """
    dice, left = _dice(seed), list(choices)
    if not 1 <= length <= len(left):
        raise ValueError(f"an exam of {length} questions: there are {len(left)} to choose from")
    left = dice.shuffled(left)
    chosen: list[Question] = []
    topics: Counter[str] = Counter()
    levels: Counter[int] = Counter()
    for _ in range(length):
        rarest = min(left, key=lambda one: (topics[one.topic] + levels[one.level], topics[one.topic]))
        left.remove(rarest)
        chosen.append(rarest)
        topics[rarest.topic] += 1
        levels[rarest.level] += 1
    chosen.sort(key=lambda one: one.level)
    plan = [ask(question, dice.below(SEEDS)) for question in chosen]
    return Test("exam", length, progress, dice, list(bank.topics), plan=plan)


def _turn(questions: list[Question], day: datetime.date) -> Question:
    """Return the question of the day, from an order that is shuffled again in each round."""
    round_, place = divmod(day.toordinal(), len(questions))
    return Dice(f"round {round_}").shuffled(questions)[place]


def _dice(seed: int | None) -> Dice:
    return Dice(None if seed is None else f"test {seed}")


def _of_level(bank: Bank, level: int) -> list[Question]:
    """Return a level's questions by chapter and id: one that is added elsewhere in a file does not move the others."""
    return sorted((one for one in bank if one.level == level), key=lambda one: (one.chapter, one.id))
