"""The trainer's JavaScript gives what Python gives: numbers, questions, verdicts, abilities, progress."""

from __future__ import annotations

import dataclasses
import datetime
import json
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from coursekit.quiz import progress, session
from coursekit.quiz.ability import estimate
from coursekit.quiz.bank import Choice, Number, Short, load_bank
from coursekit.quiz.dice import Dice
from coursekit.quiz.judge import LETTERS, Unclear, Verdict, ask, judge, read_number
from coursekit.quiz.progress import Progress, Record
from coursekit.site.trainer import write_trainer

NODE = shutil.which("node")
if NODE is None:
    pytest.skip("there is no node on this machine to run the trainer's JavaScript", allow_module_level=True)

BANK = load_bank()
TOPICS = list(BANK.topics)
QUESTIONS = list(BANK)
Task = tuple[str, dict[str, Any]]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engine") / "trainer"
    write_trainer(folder)
    (folder / "package.json").write_text('{"type": "module"}')
    return folder


def in_javascript(page: Path, tasks: list[Task]) -> list[Any]:
    script = Path(__file__).with_name("replay.mjs")
    done = subprocess.run(
        [str(NODE), str(script), str(page)],
        input=json.dumps(tasks), capture_output=True, encoding="utf-8", timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def test_the_dice(page: Path) -> None:
    bounds = [1, 2, 3, 5, 231, 1 << 30, (1 << 31) + 1, (1 << 32) - 1, 1 << 32] * 30
    tasks: list[Task] = [
        ("dice", {"seed": seed, "bounds": bounds}) for seed in ("", "1-x 0", "täglich ✓", "9" * 300)
    ]
    for (_, task), found in zip(tasks, in_javascript(page, tasks), strict=True):
        dice = Dice(task["seed"])
        assert found == [dice.below(n) for n in bounds]


def some_records(rng: random.Random, count: int) -> list[Record]:
    records = []
    for i in range(count):
        question = rng.choice(QUESTIONS)
        guess = 1 / (1 + len(question.wrong)) if isinstance(question, Choice) else 0.0
        score = rng.choice([0.0, 0.0, 1 / 3, 0.5, 1.0, 1.0, 1.0])
        when = f"2031-05-17T{i // 3600:02}:{i // 60 % 60:02}:{i % 60:02}+00:00"
        records.append(Record(when, question.id, question.topic, question.level, score, guess, "test"))
    return records


def test_sessions_ask_the_same_questions_and_find_the_same_abilities(page: Path, full: bool) -> None:
    rng = random.Random(5)
    tasks: list[Task] = []
    expected = []
    for seed in range(1000 if full else 150):
        memory = Progress(None, some_records(rng, rng.choice([0, 0, 3, 20, 60])))
        scores = [rng.choice([0.0, 0.25, 1.0, 1.0]) for _ in range(5)]
        records = [dataclasses.asdict(record) for record in memory.records]
        tasks.append(("session", {"records": records, "seed": seed, "scores": scores}))
        test = session.adaptive(BANK, memory, BANK, seed)
        steps = []
        for score in scores:
            item = test.next()
            assert item is not None
            test.keep(item, "", Verdict(score, ""))
            general, topics = estimate(memory.answers, TOPICS)
            steps.append((item, general, topics))
        expected.append(steps)
    for found, steps in zip(in_javascript(page, tasks), expected, strict=True):
        for (id, seed, ability, error, by_topic), (item, general, topics) in zip(found, steps, strict=True):
            assert (id, seed) == (item.question.id, item.seed)
            assert ability == pytest.approx(general.ability, abs=1e-9)
            assert error == pytest.approx(general.error, abs=1e-9)
            assert by_topic == pytest.approx({key: one.ability for key, one in topics.items()}, abs=1e-9)


def test_daily_challenges_and_exams(page: Path) -> None:
    days = [datetime.date(2031, 5, 17) + datetime.timedelta(days=11 * n) for n in range(60)]
    exams = [(length, seed) for length in (1, 10, 40, len(BANK)) for seed in range(5)]
    tasks: list[Task] = [("daily", {"day": day.isoformat()}) for day in days]
    tasks += [("exam", {"length": length, "seed": seed}) for length, seed in exams]
    plans = [session.daily(BANK, Progress(), day).plan for day in days]
    plans += [session.exam(BANK, Progress(), BANK, length, seed).plan for length, seed in exams]
    assert in_javascript(page, tasks) == [[[item.question.id, item.seed] for item in plan] for plan in plans]


def test_every_question_reads_the_same_with_the_same_seed(page: Path) -> None:
    asked = [
        (question, seed)
        for question in QUESTIONS
        for seed in range(40 if isinstance(question, Number) else 4)
    ]
    tasks: list[Task] = [("item", {"id": question.id, "seed": seed}) for question, seed in asked]
    assert sum(isinstance(question, Number) for question, _ in asked) > 2000
    for (question, seed), found in zip(asked, in_javascript(page, tasks), strict=True):
        item = ask(question, seed)
        assert found["stem"] == item.stem and found["explanation"] == item.explanation
        assert found["options"] == [list(option) for option in item.options] and found["guess"] == item.guess
        if item.numbers:
            assert found["answer"] == item.numbers.answer
            assert found["wrong"] == [list(wrong) for wrong in item.numbers.wrong]


TYPED = ["", "many", "1,536", "1536 requests", "1 536", "0,5", "89,6", "89.6 %", "320 KiB", "0.4349 TB", "2.5e3", "-3",
         ".5", "\N{MINUS SIGN}3", "1e3", "42 %", "5 MiB", "1,234,567.5", "$6.67", "≈ 54", "12 ms", "1.2.3", "5 parsecs",
         "1,2,3", "--5", "1e", "٣", "nan", "inf", "1 2 x 3", "9e999", "1\N{NARROW NO-BREAK SPACE}000 B", "7.", "1e3 B",
         "constructor", "5 constructor", "1.", "5 s"]  # fmt: skip


@pytest.mark.parametrize("unit", ["", "B", "GB", "%", "blocks", "s", "ms", "$"])
def test_numbers_are_read_alike(unit: str, page: Path) -> None:
    found = in_javascript(page, [("number", {"typed": typed, "unit": unit}) for typed in TYPED])
    for typed, one in zip(TYPED, found, strict=True):
        try:
            value, converted = read_number(typed, unit)
        except Unclear:
            assert one == "unclear", typed
        else:
            assert one == [pytest.approx(value, rel=1e-12), converted], typed


def test_answers_are_judged_alike(page: Path) -> None:
    tasks: list[Task] = []
    verdicts = []
    for question in QUESTIONS:
        item = ask(question, 7)
        typed = ["", "?"]
        if isinstance(question, Choice):
            typed += LETTERS
        elif isinstance(question, Number) and item.numbers:
            values = [item.numbers.answer, *(value for value, _ in item.numbers.wrong)]
            typed += [repr(value) for value in values] + [
                repr(7 * item.numbers.answer),
                repr(item.numbers.answer + 0.1),
            ]
        elif isinstance(question, Short):
            words = [question.answer, *question.accept, *(wrong.text for wrong in question.wrong)]
            typed += [
                *words,
                *(f"It is the {word.upper()}." for word in words),
                f"not {question.answer}",
                "something else",
            ]
        else:
            continue
        for one in typed:
            tasks.append(("judge", {"id": question.id, "seed": 7, "typed": one}))
            try:
                verdict = judge(item, one)
                verdicts.append(
                    {"score": verdict.score, "reply": verdict.reply, "points": list(verdict.points)}
                )
            except Unclear:
                verdicts.append("unclear")
    assert len(tasks) > 800
    for (_, task), found, expected in zip(tasks, in_javascript(page, tasks), verdicts, strict=True):
        assert found == expected, task


def test_a_code_question_asks_for_the_line(page: Path) -> None:
    for question in (one for one in QUESTIONS if one.kind == "code"):
        old, new = question.code.split("\n"), question.answer.split("\n")  # type: ignore[attr-defined]
        tasks: list[Task] = [
            ("judge", {"id": question.id, "seed": 0, "typed": str(line)}) for line in range(len(old) + 2)
        ]
        found = in_javascript(page, tasks)
        assert found[0] == found[-1] == "unclear"
        scores = [one["score"] for one in found[1:-1]]
        assert scores == [0 if a == b else None for a, b in zip(old, new, strict=True)] and None in scores


def test_progress_files_are_parsed_and_merged_alike(page: Path, tmp_path: Path) -> None:
    rng = random.Random(2)
    records = some_records(rng, 50)
    a, b = rng.sample(records, 30), rng.sample(records, 30) + records[:1] * 3
    as_data = [[dataclasses.asdict(record) for record in part] for part in (a, b)]
    merged = in_javascript(page, [("merge", {"a": as_data[0], "b": as_data[1]})])[0]
    assert [Record(**one) for one in merged] == progress.merged(a, b)
    good = json.dumps({"version": 1, "answers": as_data[0]})
    texts = [good, "", "{", "[]", "null", '{"version": 9, "answers": []}', '{"version": 1, "answers": [null]}',
             good.replace('"level": 2', '"level": 7'), good.replace('"level": 2', '"level": 2.5'),
             good.replace('"test": "test"', '"test": 1'), good.replace('"guess": 0.0', '"guess": 1')]  # fmt: skip
    for text, found in zip(
        texts, in_javascript(page, [("parse", {"text": text}) for text in texts]), strict=True
    ):
        path = tmp_path / "p.json"
        path.write_text(text)
        try:
            assert found == len(progress.read_export(path))
        except ValueError:
            assert found == "refused", text
