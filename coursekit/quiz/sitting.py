"""A test in the terminal: show each question, ask for its answer, explain it, show the result (chapter 10).

Ctrl-C or the end of the input stops at any moment. Invariants: an unreadable answer is reported and asked for again;
given answers are saved and exported, however the test ends.
"""

from __future__ import annotations

import contextlib
import datetime
from pathlib import Path

from coursekit.quiz import export, report
from coursekit.quiz.bank import Bank, Choice, Code, Number, Open
from coursekit.quiz.choosing import Refused
from coursekit.quiz.judge import LETTERS, Item, Unclear, Verdict
from coursekit.quiz.paper import Paper, Stopped
from coursekit.quiz.progress import Progress
from coursekit.quiz.session import Test


def sit(paper: Paper, bank: Bank, test: Test, target: Path | None = None) -> int:
    """Ask until the end, and export to the target. Return 0, or the reason for stopping: `Stopped.code`.

    Raises:
        Refused: the target cannot be written; raised before the first question if possible.
    """
    made = target is not None and _try_to_write(target)
    code, told_at_once = 0, test.name != "exam"
    try:
        _welcome(paper, test)
        while item := test.next():
            _heading(paper, bank, test, item)
            verdict = _ask(paper, test, item)
            if told_at_once:
                _explain(paper, item, verdict)
            tell_notice(paper, test.progress)
    except Stopped as stop:
        code = stop.code
    except KeyboardInterrupt:  # not at a prompt
        code = 130
    try:
        _finish(paper, bank, test, code, told_at_once)
    finally:
        if target and test.answered:
            write(target, export.test_as_markdown(bank, test, datetime.datetime.now(datetime.UTC).date()))
            paper.say(f"Written to {target}.")
        elif target and made:
            with contextlib.suppress(OSError):
                target.unlink()
    return code


def write(path: Path, text: str) -> None:
    """Write a file with this text.

    Raises:
        Refused: the file cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        raise Refused(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}") from None


def _try_to_write(path: Path) -> bool:
    """Return True if the file is new. An existing file keeps its text until the test is done.

    Raises:
        Refused: the file cannot be written.
    """
    try:
        new = not path.exists()
        with path.open("a"):
            return new
    except (OSError, ValueError) as error:
        raise Refused(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}") from None


def _welcome(paper: Paper, test: Test) -> None:
    what = {
        "test": "questions that follow your answers" if not test.plan else "question",
        "daily": f"questions of {datetime.datetime.now(datetime.UTC).date().isoformat()} (UTC)",
        "exam": "questions; the answers come at the end",
    }[test.name]
    paper.say(f"{test.length} {what}. Type ? if you do not know, Ctrl-C to stop.")


def _heading(paper: Paper, bank: Bank, test: Test, item: Item) -> None:
    question, number = item.question, len(test.answered) + 1
    paper.raw("")
    head = f"{number} of {test.length} · {bank.topics[question.topic]} · level {question.level}"
    paper.say(head, style="1;36")
    _show(paper, item)


def _show(paper: Paper, item: Item) -> None:
    paper.say(item.stem)
    if isinstance(item.question, Code):
        for line_number, line in enumerate(item.question.code.splitlines(), 1):
            paper.raw(f"  {line_number:2}  {line}")
    for i, (text, _) in enumerate(item.options):
        paper.say(f"{LETTERS[i]}) {text}", indent="  ")


def _ask(paper: Paper, test: Test, item: Item) -> Verdict:
    """Ask for one answer until it can be read."""
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
        ticked = 0
        for point in verdict.points:
            paper.say(f"· {point}", indent="  ")
            ticked += _yes(paper, "  y or n> ")
        scored = verdict.scored(ticked)
    test.keep(item, typed, scored)
    return scored


def _yes(paper: Paper, prompt: str) -> bool:
    while True:
        word = paper.read(prompt).strip().lower()
        if word in ("y", "yes", "n", "no"):
            return word.startswith("y")
        paper.say("Please type y for yes or n for no.")


def _ask_code(paper: Paper, test: Test, item: Item, question: Code) -> Verdict:
    """Ask for the number of the wrong line, then for the correct line."""
    code = question.code.splitlines()
    while True:
        typed = paper.read(f"which line is wrong? 1 to {len(code)}> ").strip()
        if typed == "?":
            return test.give_up(item)
        if typed not in map(str, range(1, len(code) + 1)):
            paper.say(f"Please give a line number from 1 to {len(code)}.")
            continue
        old = code[int(typed) - 1]
        new = paper.read(f"line {typed}, corrected> ")
        if new.strip() == "?":
            return test.give_up(item)
        if not new.strip():
            paper.say("Nothing was typed; choose a line again, or type ? if you do not know.")
            continue
        if new == new.lstrip():  # typed without its indentation
            new = old[: len(old) - len(old.lstrip())] + new
        paper.say("Running the course's check …")
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
        kept = "; your answers are saved" if test.answered and test.progress.path else ""
        paper.say(
            f"Stopped after {len(test.answered)} of {test.length} question{'s'[: test.length > 1]}{kept}."
        )
    if not test.answered:
        return
    if not told_at_once:
        for number, one in enumerate(test.answered, 1):
            paper.raw("")
            paper.say(f"Question {number}", style="1;36")
            _show(paper, one.item)
            if one.typed and not isinstance(one.item.question, Code):
                paper.say(f"Your answer: {one.typed.strip()}")
            _explain(paper, one.item, one.verdict)
        paper.raw("")
    score = sum(one.score for one in test.answered)
    paper.say(f"{score:g} of {len(test.answered)} points.", style="1")
    for line in report.lines(bank, test.progress):
        paper.say(line)
    if test.name == "daily":
        paper.say("There are new questions tomorrow.")


def tell_notice(paper: Paper, progress: Progress) -> None:
    """Report a problem with the progress file, once."""
    if progress.notice:
        paper.say(progress.notice, style="33")
        progress.notice = ""
