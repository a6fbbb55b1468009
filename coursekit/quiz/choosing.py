"""Selection of the questions for a test: `--topic`, `--level`, and whole numbers (chapter 10).

Invariant: invalid input raises `Refused`, whose message names the problem and the valid alternatives.
"""

from __future__ import annotations

import difflib

from coursekit.quiz import report
from coursekit.quiz.bank import LEVELS, Bank, Question
from coursekit.quiz.progress import Progress


class Refused(Exception):
    """An option that cannot be followed; the message says why and what to do."""


def choose(bank: Bank, progress: Progress, topic: str | None, level: str | int | None) -> list[Question]:
    """Return the questions of a topic and of some levels.

    Raises:
        Refused: an unknown topic or level, or no question is left.
    """
    chosen = list(bank)
    if topic is not None:
        keys = _topics(bank, progress, topic)
        chosen = [one for one in chosen if one.topic in keys or str(one.chapter) in keys]
    if level is not None:
        levels = _levels(str(level))
        chosen = [one for one in chosen if one.level in levels]
    if not chosen:
        of_level = "" if level is None else f" of level {level}"
        raise Refused(f"there is no question{of_level} about {topic or 'any topic'}: try another level")
    return chosen


def _topics(bank: Bank, progress: Progress, topic: str) -> set[str]:
    topic = topic.strip().lower()
    chapters = [str(chapter) for chapter in bank.chapters()]
    if topic == "weak":
        weak = report.weak_topics(bank, progress)
        if not weak:
            raise Refused("no topic is known to be weak yet; take a few tests first")
        return {weak[0].key}
    if topic.isdecimal() and topic.lstrip("0") in chapters:
        return {topic.lstrip("0")}
    if topic in bank.topics:
        return {topic}
    raise Refused(
        f"there is no topic {topic!r}{near(topic, list(bank.topics))} "
        f"Topics: {', '.join(bank.topics)}. Chapters: {', '.join(chapters)}. Or: weak."
    )


def _levels(text: str) -> set[int]:
    low, dash, high = text.strip().partition("-")
    high = high if dash else low
    known = [str(level) for level in LEVELS]
    if low.strip() in known and high.strip() in known and int(low) <= int(high):
        return set(range(int(low), int(high) + 1))
    raise Refused(f"--level {text[:40]}: a level is 1, 2, 3, 4 or 5, a range is 2-4")


def whole(name: str, text: str) -> int:
    """Parse an option's whole number.

    Raises:
        Refused: it is not a whole number.
    """
    if text.strip().isdecimal() and len(text) < 19:
        return int(text)
    raise Refused(f"{name} {text[:40]}: it must be a whole number, 0 or more")


def near(word: str, words: list[str]) -> str:
    """Return a full stop, or the name that was probably meant."""
    found = difflib.get_close_matches(word, words, n=1)
    return f". Did you mean {found[0]}?" if found else "."
