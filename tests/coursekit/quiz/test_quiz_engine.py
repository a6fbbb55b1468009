"""The trainer's engine: what answers say, which question comes next, what is remembered, what is exported."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from coursekit import ROOT
from coursekit.quiz import ability, export, progress, report, session
from coursekit.quiz.ability import Answer, estimate
from coursekit.quiz.bank import LEVELS, Bank, Choice, Code, Number, Open, load_bank
from coursekit.quiz.code_check import run_check
from coursekit.quiz.dice import Dice
from coursekit.quiz.judge import Item, Unclear, Verdict, ask, judge, read_number
from coursekit.quiz.progress import Progress, Record
from coursekit.quiz.session import Test

BANK = load_bank()
DAY = datetime.date(2031, 5, 17)


# ---- the ability's model


def test_without_answers_there_is_the_prior() -> None:
    general, topics = estimate([], ["a"])
    assert general.ability == pytest.approx(0, abs=1e-9) and topics["a"].ability == pytest.approx(0, abs=1e-9)
    assert general.error == pytest.approx(ability.GENERAL_SPREAD, rel=0.01)
    both = (ability.GENERAL_SPREAD**2 + ability.TOPIC_SPREAD**2) ** 0.5
    assert topics["a"].error == pytest.approx(both, rel=0.01) and topics["a"].level == pytest.approx(3)


def test_a_right_answer_raises_and_a_wrong_one_lowers_here_most_elsewhere_less() -> None:
    for score, sign in ((1.0, 1), (0.0, -1)):
        _, topics = estimate([Answer("a", 3, score)], ["a", "b"])
        assert sign * topics["a"].ability > sign * topics["b"].ability > 0


def test_a_hard_question_solved_says_more_than_an_easy_one_and_a_guess_less() -> None:
    def after(level: int, guess: float = 0.0) -> float:
        return estimate([Answer("a", level, 1.0, guess)])[0].ability

    assert after(5) > after(3) > after(1) > 0
    assert after(3) > after(3, guess=0.25) > after(3, guess=0.5)


def test_order_does_not_matter_and_many_answers_do_no_harm() -> None:
    rng = random.Random(0)
    answers = [
        Answer(rng.choice("ab"), rng.randint(1, 5), rng.choice([0, 0.5, 1]), rng.choice([0, 0.25]))
        for _ in range(3000)
    ]
    forward, backward = estimate(answers), estimate(answers[::-1])
    for topic in "ab":
        assert forward[1][topic].ability == pytest.approx(backward[1][topic].ability)
        assert 0 < forward[1][topic].error < 0.1
    assert sum(one.answers for one in forward[1].values()) == 3000


@pytest.mark.parametrize("true", [-1.5, 0.0, 1.5])
def test_the_estimate_finds_the_ability_that_made_the_answers(true: float) -> None:
    rng = random.Random(3)
    answers = []
    for _ in range(200):
        level = rng.randint(1, 5)
        answers.append(
            Answer("a", level, float(rng.random() < float(ability.chance(true, level, 0.25))), 0.25)
        )
    found = estimate(answers)[1]["a"]
    assert abs(found.ability - true) < 3 * found.error and found.error < 0.35


def test_information_is_largest_where_success_is_open() -> None:
    at = [ability.information(0.0, level) for level in range(1, 6)]
    assert max(at) == at[2] == pytest.approx(0.25)
    assert ability.information(0.0, 3, guess=0.25) < at[2]


# ---- which question comes next


def sit(test: Test, theta: float, rng: random.Random, sure: float | None = None) -> int:
    """Answer as someone of this ability would, to the end or until it is sure on which side of level 3 they are."""
    while item := test.next():
        p = float(ability.chance(theta, item.question.level, item.guess))
        test.keep(item, "", Verdict(float(rng.random() < p), ""))
        general, _ = estimate(test.progress.answers, test.topics)
        if sure is not None and abs(general.ability) > sure * general.error:
            break
    return len(test.answered)


def test_five_questions_of_several_levels_none_twice_the_same_seed_the_same_test() -> None:
    seen = []
    for seed in (1, 1, 2):
        test = session.adaptive(BANK, Progress(), BANK, seed)
        assert sit(test, 0.5, random.Random(9)) == 5 and test.next() is None
        questions = [one.item.question for one in test.answered]
        assert len({question.id for question in questions}) == 5
        assert max(Counter(question.level for question in questions).values()) <= session.SAME_LEVEL
        assert len({question.topic for question in questions}) >= 3
        seen.append([(one.item.question.id, one.item.seed) for one in test.answered])
    assert seen[0] == seen[1] != seen[2]


def test_it_adapts() -> None:
    """After right answers the questions are harder than after wrong ones."""
    mean = {}
    for score in (0.0, 1.0):
        levels = []
        for seed in range(6):
            test = session.adaptive(BANK, Progress(), BANK, seed)
            while item := test.next():
                test.keep(item, "", Verdict(score, ""))
            levels += [one.item.question.level for one in test.answered[2:]]
        mean[score] = sum(levels) / len(levels)
    assert mean[1.0] - mean[0.0] > 1.5


def test_the_adaptive_test_tells_strong_from_weak_with_fewer_questions_than_a_fixed_one() -> None:
    """How many answers until it is 95 % sure on which side of level 3 somebody is; and it is nearly always right."""
    most, people, counts, right = 40, 60, {}, {}
    for name in ("adaptive", "fixed"):
        counts[name], right[name] = 0, 0
        fixed = list(session.exam(BANK, Progress(), BANK, most, seed=0).plan)
        random.Random(1).shuffle(fixed)
        for person in range(people):
            theta = 1.5 if person % 2 else -1.5
            test = session.adaptive(BANK, Progress(), BANK, seed=person)
            test.length = most
            test.plan = fixed if name == "fixed" else []
            counts[name] += sit(test, theta, random.Random(person), sure=1.645)
            right[name] += (estimate(test.progress.answers)[0].ability > 0) == (theta > 0)
    assert counts["adaptive"] < 0.85 * counts["fixed"], counts
    assert min(right.values()) >= 0.9 * people, right


def test_what_was_asked_lately_comes_later_and_what_was_wrong_sooner() -> None:
    some = [question for question in BANK if question.level == 3 and isinstance(question, Choice)][:8]
    memory = Progress()
    for question in some[:4]:
        memory.add(Record("", question.id, question.topic, 3, 1.0, 0.25, "test"))
    asked: Counter[str] = Counter()
    for seed in range(20):
        item = session.adaptive(BANK, Progress(None, list(memory.records)), some, seed).next()
        assert item is not None
        asked[item.question.id] += 1
    assert sum(asked[question.id] for question in some[:4]) <= 4


def test_evening_after_evening_it_asks_what_was_not_asked_yet_of_all_kinds() -> None:
    memory, rng = Progress(), random.Random(1)
    kinds: Counter[str] = Counter()
    for evening in range(12):
        test = session.adaptive(BANK, memory, BANK, evening)
        sit(test, 0.3, rng)
        kinds.update(one.item.question.kind for one in test.answered)
    asked = [record.question for record in memory.records]
    assert len(set(asked)) == len(asked) == 60
    assert min(kinds[kind] for kind in ("choice", "number", "short", "code", "open")) >= 4, kinds


def test_what_was_wrong_comes_back_before_what_was_right() -> None:
    some = [question for question in BANK if question.level == 3 and isinstance(question, Choice)][:6]
    memory = Progress()
    for i, question in enumerate(some):
        memory.add(Record("", question.id, "a topic of its own", 3, float(i >= 3), 0.25, "test"))
    first = session.adaptive(BANK, memory, some, 0).next()
    assert first is not None and first.question in some[:3]


def test_few_questions_make_a_short_test() -> None:
    test = session.adaptive(BANK, Progress(), list(BANK)[:2], 0)
    assert sit(test, 0, random.Random(0)) == 2


def test_the_daily_challenge_is_fixed_by_the_date() -> None:
    def of(day: datetime.date, memory: Progress) -> list[tuple[str, int]]:
        return [(item.question.id, item.seed) for item in session.daily(BANK, memory, day).plan]

    practised = Progress(None, [Record("", "1-budget", "sizing", 2, 1.0, 0.0, "test")] * 30)
    assert of(DAY, Progress()) == of(DAY, practised)
    assert [BANK[id].level for id, _ in of(DAY, Progress())] == [1, 2, 3, 4, 5]
    days = [of(DAY + datetime.timedelta(days=n), Progress()) for n in range(30)]
    assert len({str(day) for day in days}) == 30
    assert of(datetime.date(2031, 5, 17), Progress()) == days[0]
    for level in LEVELS:
        size = sum(question.level == level for question in BANK)
        begin = -(-DAY.toordinal() // size) * size
        a_round = [session.daily(BANK, Progress(), datetime.date.fromordinal(begin + n)) for n in range(size)]
        assert len({test.plan[level - 1].question.id for test in a_round}) == size, "each has its turn"


def test_an_exam_spreads_over_topics_and_levels() -> None:
    test = session.exam(BANK, Progress(), BANK, 20, seed=4)
    questions = [item.question for item in test.plan]
    assert len({question.id for question in questions}) == 20
    levels, topics = Counter(q.level for q in questions), Counter(q.topic for q in questions)
    assert set(levels) == {1, 2, 3, 4, 5} and max(levels.values()) <= 5
    assert set(topics) == set(BANK.topics) and max(topics.values()) - min(topics.values()) <= 2
    assert [q.level for q in questions] == sorted(q.level for q in questions)
    for length in (0, len(BANK) + 1):
        with pytest.raises(ValueError, match=f"there are {len(BANK)} to choose from"):
            session.exam(BANK, Progress(), BANK, length)


def test_an_answer_that_cannot_be_read_is_not_counted() -> None:
    test = session.exam(BANK, Progress(), [q for q in BANK if isinstance(q, Choice)], 1, 0)
    item = test.next()
    assert item is not None
    for typed in ("", "z", "9", "0", "ab", "²", "a" * 30_000):
        with pytest.raises(Unclear):
            test.answer(item, typed)
    assert not test.answered and not test.progress.records
    test.answer(item, "B")
    assert len(test.progress.records) == 1 and test.next() is None


# ---- reading a number


@pytest.mark.parametrize(
    ("typed", "unit", "value"),
    [
        ("1,536", "requests", 1536), ("1536 requests", "requests", 1536), ("1 request", "requests", 1),
        ("1 536", "blocks", 1536), ("1_536", "", 1536), ("0,5", "GB", 0.5), ("89,6", "%", 89.6),
        ("89.6 %", "%", 89.6),
        ("320 KiB", "B", 327_680), ("0.4349 TB", "GB", 434.9), ("2.5e3", "B", 2500), ("-3", "slots", -3),
        (".5", "", 0.5),
        ("\N{MINUS SIGN}3", "", -3), ("1e3", "tokens", 1000), ("42 %", "%", 42), ("5 MiB", "MB", 5.24288),
        ("1,234,567.5", "B", 1234567.5), ("$6.67", "$", 6.67), ("≈ 54", "blocks", 54), ("5 MB", "mb", 5),
        ("12 ms", "s", 0.012), ("1\N{NARROW NO-BREAK SPACE}000 B", "B", 1000),
    ],
)  # fmt: skip
def test_numbers_are_read_as_people_write_them(typed: str, unit: str, value: float) -> None:
    assert read_number(typed, unit)[0] == pytest.approx(value)


@pytest.mark.parametrize(
    "typed", ["", "many", "1.2.3", "5 parsecs", "1,2,3", "--5", "1e", "٣", "nan", "inf", "1 2 x 3", "9e999"]
)
def test_what_is_no_number_is_refused(typed: str) -> None:
    with pytest.raises(Unclear):
        read_number(typed, "GB")


def test_a_wrong_number_is_told_what_went_wrong() -> None:
    question = BANK["1-bytes-per-token"]
    item = ask(question, 3)
    assert isinstance(question, Number) and item.numbers is not None
    right = item.numbers.answer
    assert judge(item, f"{right / 1024} KiB").score == 1
    assert "Query heads were counted" in judge(item, str(right * item.numbers.values["group"])).reply
    assert judge(item, str(right * 6)).reply == "Your answer is 6 times too large."
    assert judge(item, str(right + 1)) == Verdict(0.0, "")
    share = ask(BANK["1-share-wasted"], 1)
    assert share.numbers is not None
    assert judge(share, str(share.numbers.answer / 100)).score == 1, "a share without % is understood"


def test_a_code_answer_runs_in_a_process_of_its_own() -> None:
    question = BANK["2-code-admit"]
    assert isinstance(question, Code)
    assert run_check(question, question.answer) == (True, "")
    passed, message = run_check(question, question.code)
    assert not passed and message.startswith("The prompt's blocks were rounded down")
    for source, said in (
        ("import os; os._exit(0)", "ended its process"),
        ("while True: pass", "did not finish within 3 s"),
        ("x = 1", "must still define admit"),
        ("def admit(", "SyntaxError"),
        ("print('{\"passed\": true}')\nraise SystemExit", "ended its process"),
    ):
        passed, message = run_check(question, source, seconds=3)
        assert not passed and said in message, message
    with pytest.raises(Unclear):
        judge(ask(question, 0), question.code)


# ---- what is remembered

RECORD = Record("2031-05-17T10:00:00+00:00", "1-budget", "sizing", 2, 0.5, 0.0, "test")


def test_answers_are_kept_and_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "folder" / "p.json"
    memory = progress.load(path)
    assert memory.records == [] and not memory.notice and not path.exists()
    memory.add(RECORD)
    memory.add(RECORD)
    assert progress.load(path).records == [RECORD] * 2
    assert [file.name for file in path.parent.iterdir()] == ["p.json"]
    assert progress.forget(path) and not progress.forget(path) and progress.load(path).records == []


def test_the_environment_names_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(progress.VARIABLE, str(tmp_path / "x.json"))
    assert progress.default_path() == tmp_path / "x.json"
    monkeypatch.delenv(progress.VARIABLE)
    assert "paged-attention-course" in str(progress.default_path())


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "\x00\xff", '{"version": 0, "answers": []}', '{"version": 1, "answers": [1]}',
     "[" * 100_000,
     '{"version": 1, "answers": [{"when": "x"}]}'],
)  # fmt: skip
def test_a_damaged_file_is_set_aside_and_said(text: str, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    for time in (1, 2):
        path.write_bytes(text.encode("latin-1"))
        memory = progress.load(path)
        assert memory.records == [] and "damaged" in memory.notice and not path.exists()
        kept = [file for file in tmp_path.iterdir() if "damaged" in file.name]
        assert len(kept) == time and all(file.read_bytes() == text.encode("latin-1") for file in kept)
        memory.add(RECORD)
        assert progress.load(path).records == [RECORD]


@pytest.mark.parametrize(
    "change",
    [{"level": 9}, {"level": True}, {"score": 2}, {"score": "1"}, {"guess": 1}, {"score": float("nan")}, {"when": 3},
     {"x": 1}],
)  # fmt: skip
def test_an_impossible_answer_is_damage(change: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    Progress(path).add(RECORD)
    data = json.loads(path.read_text())
    data["answers"][0].update(change)
    path.write_text(json.dumps(data))
    assert "damaged" in progress.load(path).notice


def test_a_file_of_a_newer_course_is_left_alone_and_said(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    text = '{"version": 2, "what": "only a later version knows"}'
    path.write_text(text)
    memory = progress.load(path)
    assert "newer version" in memory.notice and "damaged" not in memory.notice
    memory.add(RECORD)
    assert path.read_text() == text and [file.name for file in tmp_path.iterdir()] == ["p.json"]


def test_a_terminal_and_a_notebook_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    first, second = progress.load(path), progress.load(path)
    for memory in (first, second, first, second):
        memory.add(RECORD)
    assert len(progress.load(path).records) == len(second.records) == 4
    progress.forget(path)
    first.add(RECORD)
    assert progress.load(path).records == first.records == [RECORD], "what was forgotten does not come back"
    path.write_text("{")
    first.add(RECORD)
    assert progress.load(path).records == [RECORD] * 2 and "damaged" in first.notice


def test_many_writers_at_once(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    code = (
        "import sys; from pathlib import Path; from coursekit.quiz.progress import Record, load\n"
        f"memory = load(Path({str(path)!r}))\n"
        f"for _ in range(20): memory.add({RECORD!r})"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) for _ in range(3)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    kept = len(progress.load(path).records)
    assert kept == 60 if os.name == "posix" else kept >= 20


def test_a_notice_that_was_not_told_yet_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text("{")
    memory = progress.load(path)
    memory.add(RECORD)
    assert "damaged" in memory.notice


def test_forgetting_also_deletes_what_was_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text("{")
    progress.load(path).add(RECORD)
    (tmp_path / "other.json").write_text("not ours")
    assert progress.forget(path) and [file.name for file in tmp_path.iterdir()] == ["other.json"]


def test_a_crash_while_writing_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.json"
    memory = progress.load(path)
    memory.add(RECORD)
    for step in ("fsync", "replace"):

        def crash(*anything: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(*((os, "fsync", crash) if step == "fsync" else (Path, "replace", crash)))
            with pytest.raises(KeyboardInterrupt):
                memory.add(RECORD)
        assert progress.load(path).records == [RECORD]
        assert [file.name for file in tmp_path.iterdir()] == ["p.json"]


def test_a_path_that_is_a_folder_is_said(tmp_path: Path) -> None:
    assert "cannot be read" in progress.load(tmp_path).notice
    memory = Progress(tmp_path / "file" / "p.json")
    (tmp_path / "file").write_text("")
    memory.add(RECORD)
    assert "cannot be saved" in memory.notice


# ---- where one stands, and exports


def test_weak_topics_come_first_and_are_named() -> None:
    memory = Progress()
    assert report.lines(BANK, memory) == ["You have not answered any questions yet."]
    for topic, score in (("pool", 0.0), ("sizing", 1.0)):
        for _ in range(4):
            memory.add(Record("", "x", topic, 3, score, 0.0, "test"))
    memory.add(Record("", "x", "a topic that is gone", 3, 1.0, 0.0, "test"))
    weak = report.weak_topics(BANK, memory)
    assert weak[0].key == "pool" and "sizing" not in {topic.key for topic in weak}
    told = "\n".join(report.lines(BANK, memory))
    assert "Block pool and admission: level" in told and "(weak)" in told and "--topic pool" in told
    assert told.count("Not asked yet: ") == 1 and "; Prefix caching; " in told, "one line for all of them"


def finished() -> tuple[Test, list[Item]]:
    """A test with one question of each kind, not all right."""
    chosen = {question.kind: question for question in BANK}
    items = [ask(question, 1) for question in chosen.values()]
    test = Test("test", 5, Progress(), Dice("0"), list(BANK.topics), plan=items)
    for item in items:
        test.keep(item, "my *answer* | `x`", Verdict(0.5, "Not <all> of it."))
    return test, items


def test_a_finished_test_as_markdown() -> None:
    test, items = finished()
    text = export.test_as_markdown(BANK, test, DAY)
    assert text.startswith("# Interview test, 2031-05-17\n\n2.5 of 5 points.")
    assert text.count("## ") == 5 and text.count("**Your answer.**") == 5
    assert r"my \*answer\* \| \`x\`" in text and r"Not \<all\> of it." in text
    for item in items:
        for said in (item.stem, item.explanation, item.question.source.rstrip(".")):
            assert said.replace("\n", " ") in plain(text), "read as Markdown, it says what the bank says"
    assert text.count("```python") == 3 and text.count("```") == 6, (
        "code, the answer given, and the right one"
    )


def plain(text: str) -> str:
    """Markdown with its escapes and line breaks undone."""
    return re.sub(r"\\([^\w\s])", r"\1", text.replace("  \n", " ").replace("\n", " "))


def test_markdown_keeps_code_as_code_and_names_readable() -> None:
    question = dataclasses.replace(
        next(question for question in BANK if isinstance(question, Open)),
        stem="What does `a*b[0]` do with block_size, *really*, & <b>why</b>?",
    )
    text = export.question_as_markdown(ask(question, 0))
    assert text == r"What does `a*b[0]` do with block_size, \*really\*, \& \<b\>why\</b\>?"
    code = next(question for question in BANK if isinstance(question, Code))
    test = Test("test", 1, Progress(), Dice("0"), list(BANK.topics), plan=[ask(code, 0)])
    test.keep(test.plan[0], "x = 1\n```\n# out of the fence?", Verdict(0.0, "No."))
    assert "````python\nx = 1\n```\n# out of the fence?\n````" in export.test_as_markdown(BANK, test, DAY)


def test_cards_hold_nothing_that_anki_takes_for_its_own() -> None:
    question = dataclasses.replace(
        next(question for question in BANK if isinstance(question, Open)),
        stem="`a < b` and \\(x\\), [sound:x.mp3],\ta tab\r\nand a line",
    )
    [line] = export.cards(Bank({question.id: question}, BANK.topics)).splitlines()[7:]
    [(_, front, _, _)] = csv.reader([line], delimiter="\t")
    assert front.startswith("<code>a &lt; b</code> and &#92;(x&#92;), &#91;sound:x.mp3],    a tab<br>and")


def test_the_folded_text_shows_questions_and_hides_answers() -> None:
    _, items = finished()
    text = export.folded(items)
    assert text.count("<details><summary>Answer</summary>") == text.count("</details>") == 5
    for part in text.split("<details>")[1:]:
        assert part.startswith("<summary>Answer</summary>\n\n**Answer.**")


def test_cards_are_lines_that_anki_reads(tmp_path: Path) -> None:
    path = tmp_path / "cards.txt"
    path.write_text(export.cards(BANK), encoding="utf-8")
    lines = path.read_text(encoding="utf-8").splitlines()
    head = [line for line in lines if line.startswith("#")]
    assert {"#notetype:Basic", "#separator:tab", "#html:true", "#guid column:1", "#tags column:4"} <= set(
        head
    )
    assert lines[: len(head)] == head, "the header comes first"
    rows = list(csv.reader(lines[len(head) :], delimiter="\t"))
    assert len(rows) == len(BANK) == len({row[0] for row in rows})
    for row, question in zip(rows, BANK, strict=True):
        guid, front, back, tags = row
        assert guid == f"paged-{question.id}" and f"level-{question.level}" in tags.split()
        assert front.strip() and back.strip() and "\n" not in front + back
        assert question.lesson in back
        assert isinstance(question, Code) or not re.search(r"{\w+}", front), "a number was not filled in"
