"""The trainer in a terminal: `python3 course.py quiz` (chapter 8).

It reads lines and prints lines, so it works in any terminal, over a pipe, and with a screen reader; colours are an
extra where there is a terminal and NO_COLOR is not set, and never carry meaning alone. Ctrl-C or the end of the input
stops at any moment: what has been answered is kept.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import difflib
import os
import random
import shutil
import sys
import textwrap
from pathlib import Path

from coursekit.quiz import export, report
from coursekit.quiz.bank import LEVELS, Bank, BankError, Choice, Code, Number, Open, Question, load_bank
from coursekit.quiz.judge import LETTERS, Item, Unclear, Verdict, ask
from coursekit.quiz.progress import Progress, default_path, forget, load
from coursekit.quiz.session import Test, adaptive, daily, exam

EXAMPLES = """examples:
  quiz                     five questions that adapt to your answers
  quiz --topic 2           about chapter 2 only; --topic weak: your weakest topic
  quiz --level 3-5         of these levels only
  quiz --daily             today's five questions, the same for everyone
  quiz --exam 20           twenty questions; what was right is told at the end
  quiz --export test.md    write the test to a file when it is finished
  quiz --cards cards.txt   write all questions as flash cards for Anki (File, Import)

While you are asked: ? if you do not know, Ctrl-C to stop. Your answers stay on this machine."""


class Stopped(Exception):
    """The learner does not go on: Ctrl-C (code 130), or the input has ended (1)."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Refused(Exception):
    """A command that cannot be followed; the message says why and what to do."""


def main(arguments: list[str]) -> int:
    """Runs a test. 0: finished; 1: the input ended; 2: a wrong command; 130: stopped with Ctrl-C."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except (Refused, BankError) as error:
        print(f"quiz: {error}", file=sys.stderr)
        return 2
    except Stopped as stop:  # before the first question
        return stop.code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="course.py quiz",
        description="Interview questions on PagedAttention, with the reason for every answer.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--topic", metavar="T", help="a topic, a chapter's number, or weak (see --progress)")
    parser.add_argument("--level", metavar="L", help="1 to 5, or a range such as 2-4")
    parser.add_argument("--seed", metavar="N", help="a whole number: the same seed gives the same questions")
    parser.add_argument("--export", metavar="FILE.md", type=Path, help="write the finished test as Markdown")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--daily", action="store_true", help="today's challenge (the date is UTC's)")
    what.add_argument("--exam", metavar="N", help="N questions, without answers until the end")
    what.add_argument("--ask", metavar="ID", help="one question, by its id")
    what.add_argument("--cards", metavar="FILE", type=Path, help="write the bank as flash cards for Anki")
    what.add_argument("--progress", action="store_true", help="show where you stand, topic by topic")
    what.add_argument("--forget", action="store_true", help="delete what is remembered of you")
    return parser


def _run(options: argparse.Namespace) -> int:
    if options.forget:
        return _forget()
    bank = load_bank()
    if options.cards:
        _write(options.cards, export.cards(bank))
        print(f"{len(bank)} cards: {options.cards}")
        return 0
    progress = load()
    paper = Paper()
    _tell_notice(paper, progress)
    if options.progress:
        for line in report.lines(bank, progress):
            paper.say(line)
        paper.say(f"Kept in {default_path()}; --forget deletes it.")
        return 0
    test = _make(options, bank, progress)
    if options.export:
        _write(options.export, "")  # a wrong path is told now, not after the last answer
    return _sit(paper, bank, test, options.export, told_at_once=test.name != "exam")


def _forget() -> int:
    try:
        print("Deleted." if forget() else "There was nothing to forget.")
    except OSError as error:
        raise Refused(f"{default_path()} cannot be deleted: {error}") from None
    return 0


def _make(options: argparse.Namespace, bank: Bank, progress: Progress) -> Test:
    """The test that was asked for."""
    if (options.daily or options.ask) and (options.topic or options.level or options.seed is not None):
        word = "--daily" if options.daily else "--ask"
        raise Refused(f"{word} chooses the questions itself: leave out --topic, --level and --seed")
    if options.daily:
        return daily(bank, progress, datetime.datetime.now(datetime.UTC).date())
    if options.ask:
        return _only(bank, progress, options.ask)
    seed = None if options.seed is None else _whole("--seed", options.seed)
    choices = choose(bank, progress, options.topic, options.level)
    if options.exam is not None:
        length = _whole("--exam", options.exam)
        try:
            return exam(bank, progress, choices, length, seed)
        except ValueError as error:
            raise Refused(str(error)) from None
    return adaptive(bank, progress, choices, seed)


def _only(bank: Bank, progress: Progress, id: str) -> Test:
    if id not in bank.questions:
        raise Refused(f"there is no question {id!r}{_near(id, list(bank.questions))}")
    rng = random.Random()
    return Test("test", 1, progress, rng, list(bank.topics), plan=[ask(bank[id], rng.randrange(1 << 30))])


def choose(bank: Bank, progress: Progress, topic: str | None, level: str | int | None) -> list[Question]:
    """The questions of a topic and of some levels.

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
        raise Refused(f"no question of level {level} is about {topic}: try another level")
    return chosen


def _topics(bank: Bank, progress: Progress, topic: str) -> set[str]:
    topic = topic.strip().lower()
    chapters = [str(chapter) for chapter in bank.chapters()]
    if topic == "weak":
        weak = report.weak_topics(bank, progress)
        if not weak:
            raise Refused("no topic is known to be weak yet: take a few tests first")
        return {weak[0].key}
    if topic.isdecimal() and topic.lstrip("0") in chapters:
        return {topic.lstrip("0")}
    if topic in bank.topics:
        return {topic}
    raise Refused(
        f"there is no topic {topic!r}{_near(topic, list(bank.topics))} "
        f"Topics: {', '.join(bank.topics)}. Chapters: {', '.join(chapters)}. Or: weak."
    )


def _levels(text: str) -> set[int]:
    low, dash, high = text.strip().partition("-")
    if low.isdecimal() and (high if dash else low).isdecimal():
        first, last = int(low), int(high if dash else low)
        if first in LEVELS and last in LEVELS and first <= last:
            return set(range(first, last + 1))
    raise Refused(f"--level {text}: a level is 1, 2, 3, 4 or 5, a range is 2-4")


def _whole(name: str, text: str) -> int:
    if text.strip().isdecimal() and len(text) < 19:
        return int(text)
    raise Refused(f"{name} {text}: it must be a whole number, 0 or more")


def _near(word: str, words: list[str]) -> str:
    near = difflib.get_close_matches(word, words, n=1)
    return f". Did you mean {near[0]}?" if near else "."


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror or error}") from None


# -------------------------------------------------------------------------------------------------- the test


class Paper:
    """What is printed: wrapped to the terminal's width, with colours where they are wanted."""

    def __init__(self) -> None:
        self.colours = (
            sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        )
        if self.colours and sys.stdin.isatty():
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401  arrows move in the line that is typed
        self.width = max(30, min(100, shutil.get_terminal_size((100, 24)).columns - 1))
        with contextlib.suppress(AttributeError, OSError, ValueError):
            sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a console that lacks "·" or "✓"

    def say(self, text: str = "", indent: str = "", style: str = "") -> None:
        """Print a text, line by line; style is the number of an ANSI rendition."""
        for line in text.split("\n") or [""]:
            deeper = indent + " " * (len(line) - len(line.lstrip()))
            for piece in textwrap.wrap(line.strip(), self.width, initial_indent=deeper, subsequent_indent=deeper,
                                       break_on_hyphens=False) or [""]:  # fmt: skip
                self.raw(piece, style)

    def raw(self, line: str, style: str = "") -> None:
        """Print a line as it stands."""
        print(f"\x1b[{style}m{line}\x1b[0m" if self.colours and style else line, flush=True)

    def read(self, prompt: str) -> str:
        """A line from the learner.

        Raises:
            Stopped: Ctrl-C, or there is no more input.
        """
        try:
            typed = input(prompt)
            if not sys.stdin.isatty():
                print(typed, flush=True)  # over a pipe nobody sees what was typed
            return typed
        except EOFError:
            print(flush=True)
            raise Stopped(1) from None
        except KeyboardInterrupt:
            print(flush=True)
            raise Stopped(130) from None
        except UnicodeDecodeError:
            return ""


def _sit(paper: Paper, bank: Bank, test: Test, target: Path | None, told_at_once: bool) -> int:
    """Asks until the end. 0, or why it stopped."""
    code = 0
    try:
        _welcome(paper, test)
        while item := test.next():
            _heading(paper, bank, test, item)
            verdict = _ask(paper, test, item)
            if told_at_once:
                _explain(paper, item, verdict)
            _tell_notice(paper, test.progress)
    except Stopped as stop:
        code = stop.code
    except KeyboardInterrupt:  # not at a prompt
        print(flush=True)
        code = 130
    _finish(paper, bank, test, code, told_at_once)
    if target and test.answered:
        _write(target, export.test_as_markdown(bank, test, datetime.datetime.now(datetime.UTC).date()))
        paper.say(f"Written to {target}.")
    elif target:
        with contextlib.suppress(OSError):
            target.unlink()
    return code


def _welcome(paper: Paper, test: Test) -> None:
    what = {
        "test": "questions that follow your answers",
        "daily": f"questions of {datetime.datetime.now(datetime.UTC).date().isoformat()} (UTC)",
        "exam": "questions; what was right is told at the end",
    }[test.name]
    paper.say(f"{test.length} {what}. Type ? if you do not know, Ctrl-C to stop.")


def _heading(paper: Paper, bank: Bank, test: Test, item: Item) -> None:
    question, number = item.question, len(test.answered) + 1
    paper.raw("")
    head = f"{number} of {test.length} · {bank.topics[question.topic]} · level {question.level}"
    paper.say(head, style="1;36")
    paper.say(item.stem)
    if isinstance(question, Code):
        for line_number, line in enumerate(question.code.splitlines(), 1):
            paper.raw(f"  {line_number:2}  {line}")
    for i, (text, _) in enumerate(item.options):
        paper.say(f"{LETTERS[i]}) {text}", indent="  ")


def _ask(paper: Paper, test: Test, item: Item) -> Verdict:
    """One answer, asked for until it can be read."""
    if isinstance(item.question, Code):
        return _ask_code(paper, test, item, item.question)
    while True:
        typed = paper.read(_prompt(item))
        if typed.strip() == "?":
            return test.give_up(item)
        try:
            verdict = test.answer(item, typed)
        except Unclear as error:
            paper.say(str(error))
            continue
        return verdict if verdict.score is not None else _self_score(paper, test, item, typed, verdict)


def _prompt(item: Item) -> str:
    match item.question:
        case Choice():
            return f"{LETTERS[0]} to {LETTERS[len(item.options) - 1]}> "
        case Number() as question:
            return f"in {question.unit}> " if question.unit else "a number> "
        case Open():
            return "your answer, or Enter once you have said it aloud> "
    return "a word or a few> "


def _self_score(paper: Paper, test: Test, item: Item, typed: str, verdict: Verdict) -> Verdict:
    if verdict.reply:
        paper.say(verdict.reply)
        score = float(_yes(paper, "Did you mean that? y or n> "))
        scored = Verdict(score, verdict.reply)
    else:
        paper.say("A strong answer:", style="1")
        paper.say(item.answer, indent="  ")
        paper.say("Did yours say this?", style="1")
        ticked = sum(_yes(paper, f"  {point} y or n> ") for point in verdict.points)
        scored = verdict.scored(ticked)
    test.keep(item, typed, scored)
    return scored


def _yes(paper: Paper, prompt: str) -> bool:
    while True:
        word = paper.read(prompt).strip().lower()
        if word in ("y", "yes", "n", "no"):
            return word.startswith("y")


def _ask_code(paper: Paper, test: Test, item: Item, question: Code) -> Verdict:
    """The number of the wrong line, then the line as it should be."""
    code = question.code.splitlines()
    while True:
        typed = paper.read(f"which line is wrong? 1 to {len(code)}> ").strip()
        if typed == "?":
            return test.give_up(item)
        if not (typed.isdecimal() and typed.isascii() and 1 <= int(typed) <= len(code)):
            paper.say(f"The number of a line, from 1 to {len(code)}.")
            continue
        old = code[int(typed) - 1]
        new = paper.read(f"line {typed} as it should be> ")
        if new.strip() == "?":
            return test.give_up(item)
        if new == new.lstrip():  # typed without its indentation
            new = old[: len(old) - len(old.lstrip())] + new
        paper.say("The course's check runs …")
        try:
            source = "\n".join([*code[: int(typed) - 1], new, *code[int(typed) :]])
            return test.answer(item, source)
        except Unclear as error:
            paper.say(str(error))


def _explain(paper: Paper, item: Item, verdict: Verdict) -> None:
    question, score = item.question, verdict.score or 0.0
    if isinstance(question, Open):
        paper.say(verdict.reply, style="1")
    elif score == 1:
        paper.say("✓ Right.", style="1;32")
    else:
        paper.say("✗ " + (verdict.reply or "Not right."), style="1;33")
        if isinstance(question, Code):
            old, new = question.code.splitlines(), question.answer.splitlines()
            changed = [i for i, pair in enumerate(zip(old, new, strict=True)) if pair[0] != pair[1]]
            for i in changed:
                paper.raw(f"  line {i + 1}: {new[i].strip()}")
        elif not verdict.reply.startswith("The answer is"):
            paper.say(f"The answer is {item.answer}" + ("" if item.answer.endswith(".") else "."))
    paper.say(item.explanation)
    paper.say(f"See {export.where(question)}.", style="2")


def _finish(paper: Paper, bank: Bank, test: Test, code: int, told_at_once: bool) -> None:
    paper.raw("")
    if code:
        paper.say(f"Stopped after {len(test.answered)} of {test.length} questions; the answers are kept.")
    if not test.answered:
        return
    if not told_at_once:
        for number, one in enumerate(test.answered, 1):
            paper.raw("")
            paper.say(f"{number}. {one.item.stem}")
            _explain(paper, one.item, one.verdict)
        paper.raw("")
    score = sum(one.score for one in test.answered)
    paper.say(f"{score:g} of {len(test.answered)} points.", style="1")
    for line in report.lines(bank, test.progress):
        paper.say(line)
    if test.name == "daily":
        paper.say("Tomorrow there are new ones.")


def _tell_notice(paper: Paper, progress: Progress) -> None:
    if progress.notice:
        paper.say(progress.notice, style="33")
        progress.notice = ""
