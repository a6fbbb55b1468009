"""The trainer's command `python3 course.py quiz` and its options (chapter 10).

It reads and prints lines, so it works in any terminal, over a pipe, and with a screen reader; colours are added only in
a terminal without NO_COLOR, and never carry meaning alone. Ctrl-C or the end of the input stops at any moment; given
answers are saved. Invariant: an option that is invalid, or meaningless together with the others, is rejected with a
clear message before the first question.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from pathlib import Path

from coursekit.quiz import export, report
from coursekit.quiz.bank import Bank, BankError, load_bank
from coursekit.quiz.choosing import Refused, choose, near, whole
from coursekit.quiz.dice import Dice
from coursekit.quiz.judge import ask
from coursekit.quiz.paper import Paper, Stopped
from coursekit.quiz.progress import Progress, default_path, forget, load, read_export
from coursekit.quiz.session import SEEDS, Test, adaptive, daily, exam
from coursekit.quiz.sitting import sit, tell_notice, write

EXAMPLES = """examples:
  quiz                     five questions that adapt to your answers
  quiz --topic 2           only chapter 2; --topic weak: your weakest topic
  quiz --level 3-5         only these levels
  quiz --daily             today's five questions, the same for everyone
  quiz --exam 20           twenty questions; the answers come at the end
  quiz --export test.md    write the test to a file when it is finished
  quiz --cards cards.txt   write all questions as flash cards for Anki (File, Import)

While you are asked: ? if you do not know, Ctrl-C to stop. Your answers stay on this machine."""


def main(arguments: list[str]) -> int:
    """Run a test. 0: finished; 1: the input ended; 2: an invalid command; 130: stopped with Ctrl-C."""
    options = _parser().parse_args(arguments)
    if sys.stdin is None or sys.stdout is None:  # started with <&- or >&-
        print("quiz: standard input and standard output must be open", file=sys.stderr)
        return 2
    try:
        return _run(options)
    except (Refused, BankError) as error:
        print(f"quiz: {error}", file=sys.stderr)
        return 2
    except Stopped as stop:  # outside of a question: the output is closed
        return stop.code
    except KeyboardInterrupt:
        return 130


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
    what.add_argument("--daily", action="store_true", help="today's challenge (date in UTC)")
    what.add_argument("--exam", metavar="N", help="N questions; the answers come at the end")
    what.add_argument("--ask", metavar="ID", help="one question, by its id")
    what.add_argument("--cards", metavar="FILE", type=Path, help="write the bank as flash cards for Anki")
    what.add_argument("--progress", action="store_true", help="show where you stand, topic by topic")
    what.add_argument("--import", metavar="FILE", type=Path, dest="import_", help="add the answers that the "
                      "trainer on your phone has exported")  # fmt: skip
    what.add_argument("--forget", action="store_true", help="delete your saved progress")
    return parser


def _run(options: argparse.Namespace) -> int:
    _refuse_what_is_left_over(options)
    paper = Paper()
    if options.forget:
        return _forget(paper)
    bank = load_bank()
    if options.cards:
        write(options.cards, export.cards(bank))
        paper.say(f"{len(bank)} cards written to {options.cards}")
        return 0
    progress = load()
    tell_notice(paper, progress)
    if options.import_:
        return _import(paper, progress, options.import_)
    if options.progress:
        for line in report.lines(bank, progress):
            paper.say(line)
        paper.say(f"Saved in {default_path()}; --forget deletes it.")
        return 0
    return sit(paper, bank, _make(options, bank, progress), options.export)


def _refuse_what_is_left_over(options: argparse.Namespace) -> None:
    """Reject combinations of options in which some would have no effect."""
    chosen = (options.topic, options.level, options.seed) != (None, None, None)
    for word in ("daily", "ask"):
        if chosen and getattr(options, word) not in (None, False):
            raise Refused(f"--{word} chooses the questions itself: leave out --topic, --level and --seed")
    for word in ("cards", "progress", "import", "forget"):
        given = getattr(options, "import_" if word == "import" else word)
        if (chosen or options.export) and given not in (None, False):
            raise Refused(f"--{word} asks no questions: leave out --topic, --level, --seed and --export")


def _forget(paper: Paper) -> int:
    try:
        paper.say("Deleted." if forget() else "There was no saved progress.")
    except OSError as error:
        raise Refused(f"{default_path()} cannot be deleted: {error}") from None
    return 0


def _import(paper: Paper, progress: Progress, file: Path) -> int:
    try:
        added = progress.merge(read_export(file))
    except ValueError as error:
        raise Refused(str(error)) from None
    if progress.notice:
        raise Refused(progress.notice)
    paper.say(
        f"{added} new answer{'s'[: added != 1]} from {file}." if added else f"{file} has no new answers."
    )
    return 0


def _make(options: argparse.Namespace, bank: Bank, progress: Progress) -> Test:
    """Return the requested test."""
    if options.daily:
        return daily(bank, progress, datetime.datetime.now(datetime.UTC).date())
    if options.ask is not None:
        return _only(bank, progress, options.ask)
    seed = None if options.seed is None else whole("--seed", options.seed)
    choices = choose(bank, progress, options.topic, options.level)
    if options.exam is not None:
        length = whole("--exam", options.exam)
        try:
            return exam(bank, progress, choices, length, seed)
        except ValueError as error:
            raise Refused(str(error)) from None
    return adaptive(bank, progress, choices, seed)


def _only(bank: Bank, progress: Progress, id: str) -> Test:
    if id not in bank.questions:
        raise Refused(f"there is no question {id!r}{near(id, list(bank.questions))}")
    dice = Dice()
    return Test("test", 1, progress, dice, list(bank.topics), plan=[ask(bank[id], dice.below(SEEDS))])
