"""The bank of interview questions: every link leads to a cell, every number is computed, nothing gives itself away."""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from coursekit import ROOT
from coursekit.build.percent import read_notebook
from coursekit.checks.answers import LocalHost
from coursekit.checks.framework import exercise
from coursekit.quiz import session
from coursekit.quiz.bank import (
    FOLDER,
    KINDS,
    LEVELS,
    BankError,
    Choice,
    Code,
    Number,
    Open,
    Question,
    Short,
    load_bank,
    read_file,
)
from coursekit.quiz.choosing import Refused, choose
from coursekit.quiz.code_check import judge_here
from coursekit.quiz.judge import LETTERS, ask, judge, told
from coursekit.quiz.progress import Progress
from coursekit.quiz.template import fill_in

LEAST = 225  # questions in all
LEAST_OF_CHAPTER = {1: 27, 2: 36, 3: 30, 4: 32, 5: 35, 6: 38, 7: 27}
LEAST_OF_LEVEL = {1: 30, 2: 55, 3: 65, 4: 45, 5: 18}
DRAWS = 60

BANK = load_bank()
QUESTIONS = [
    pytest.param(question, id=f"{path.stem}-{question.id}")
    for path in sorted(FOLDER.glob("*.toml"))
    for question in read_file(path)[1]
]


def of_kind(kind: type[Question]) -> list[Any]:
    return [param for param in QUESTIONS if isinstance(param.values[0], kind)]


# ---- the whole bank


def test_there_are_enough_of_every_chapter_level_and_kind() -> None:
    chapters = Counter(question.chapter for question in BANK)
    assert len(BANK) >= LEAST
    assert all(chapters[chapter] >= least for chapter, least in LEAST_OF_CHAPTER.items()), chapters
    of_level = Counter(question.level for question in BANK)
    assert all(of_level[level] >= least for level, least in LEAST_OF_LEVEL.items()), of_level
    for chapter in chapters:
        mine = [question for question in BANK if question.chapter == chapter]
        levels = Counter(question.level for question in mine)
        assert min(levels[level] for level in LEVELS) >= 2, (chapter, levels)
        assert {question.kind for question in mine} == set(KINDS), chapter
    assert set(LEAST_OF_CHAPTER) == set(chapters), "say how many questions a new chapter has at least"


def test_every_topic_has_enough_questions_to_estimate_an_ability() -> None:
    topics = Counter(question.topic for question in BANK)
    assert set(topics) == set(BANK.topics) and min(topics.values()) >= 8, topics
    assert len(set(BANK.topics.values())) == len(BANK.topics)


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9_]+", text.lower())


def triples(text: str) -> set[tuple[str, ...]]:
    found = words(text)
    return {tuple(found[i : i + 3]) for i in range(len(found) - 2)} or {tuple(found)}


def test_no_two_questions_are_the_same() -> None:
    stems = Counter(" ".join(words(question.stem)) for question in BANK)
    assert stems.most_common(1)[0][1] == 1, stems.most_common(1)
    parts = {
        question.id: (triples(question.stem), triples(question.stem + " " + question.answer))
        for question in BANK
    }
    for a, b in combinations(parts, 2):
        for mine, theirs in zip(parts[a], parts[b], strict=True):
            alike = len(mine & theirs) / len(mine | theirs)
            assert alike < 0.4, f"{a} and {b} are nearly the same: {alike:.0%} of their word triples"


def test_similar_stems_are_found() -> None:
    a = "A pool has 1,000 blocks of 16 tokens. How many such requests fit at once?"
    b = "A pool has 2,000 blocks of 16 tokens. How many such requests fit at once?"
    assert len(triples(a) & triples(b)) / len(triples(a) | triples(b)) >= 0.4


def lengths(question: Choice) -> tuple[int, list[int]]:
    return len(question.answer), [len(wrong.text) for wrong in question.wrong]


def chance_and_spread(questions: list[Choice]) -> tuple[float, float]:
    """How many would be right by chance, if each question had one marked option, and the standard deviation."""
    shares = [1 / (1 + len(question.wrong)) for question in questions]
    return sum(shares), math.sqrt(sum(share * (1 - share) for share in shares))


@pytest.mark.parametrize("rule", [max, min])
def test_the_right_option_is_not_known_by_its_length(rule: Any) -> None:
    choices = [question for question in BANK if isinstance(question, Choice)]
    known = [q.id for q in choices if rule([lengths(q)[0], *lengths(q)[1]]) not in lengths(q)[1]]
    by_chance, spread = chance_and_spread(choices)
    assert len(known) <= by_chance + 2 * spread, f"{len(known)} of {len(choices)} by {rule.__name__}: {known}"


def test_the_right_option_is_not_known_by_its_place() -> None:
    choices = [question for question in BANK if isinstance(question, Choice) and len(question.wrong) == 3]
    places = Counter(
        next(i for i, (_, why) in enumerate(ask(question, seed).options) if not why)
        for question in choices
        for seed in range(40)
    )
    expected = 40 * len(choices) / 4
    chi_squared = sum((places[place] - expected) ** 2 / expected for place in range(4))
    assert chi_squared < 16.3, places  # three degrees of freedom: one in a thousand


# ---- each question


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_cell_that_shows_it_is_there(question: Question) -> None:
    notebook = read_notebook(ROOT / f"notebooks/{question.lesson}.ipynb")
    assert notebook is not None, f"there is no notebook {question.lesson}: ask only what a built lesson shows"
    cells = [cell for cell in notebook.cells if cell.cell_type == "code" and question.cell in cell.source]
    assert len(cells) == 1, (
        f"{len(cells)} code cells of {question.lesson} contain {question.cell!r}, wanted is one"
    )
    assert cells[0].outputs, "that cell shows nothing"
    assert int(question.lesson[:2]) <= question.chapter, "a later lesson is needed"


@pytest.mark.parametrize("question", QUESTIONS)
def test_it_is_short_and_plain(question: Question) -> None:
    assert len(question.stem) <= 320 and len(re.findall(r"[.?!](?=\s|$)", question.stem)) <= 4
    assert len(question.explanation) <= 420
    assert not re.search(
        r"\bexcept\b|\bNOT\b|of the above|\bincorrect\b|which .* (is|are) (not|false)", question.stem
    )
    for text in (question.stem, question.explanation, question.answer):
        assert "  " not in text.replace("\n", "").strip() or isinstance(question, Code)
    whys = [wrong.why for wrong in getattr(question, "wrong", ())]
    assert all(len(why) >= 15 for why in whys)
    if isinstance(question, Choice):
        assert len(set(whys)) == len(whys)


FIGURE = re.compile(r"(?<![\w.])\d+\.\d+(?![\w.]*\w)")


def prose(question: Question) -> str:
    parts = [question.stem, question.answer, question.explanation, *getattr(question, "rubric", ())]
    return "\n".join(parts + [f"{wrong.text}\n{wrong.why}" for wrong in getattr(question, "wrong", ())])


@cache
def figures_of(lesson: str) -> frozenset[str]:
    """The figures with a decimal point in a lesson's cells and in what they print; not in its pictures."""
    notebook = read_notebook(ROOT / f"notebooks/{lesson}.ipynb")
    assert notebook is not None
    texts = []
    for cell in notebook.cells:
        texts.append(cell.source)
        for output in cell.get("outputs", ()):
            texts.append(output.get("text") or output.get("data", {}).get("text/plain", ""))
    return frozenset(re.findall(r"(?<![\d.])\d+\.\d+", "\n".join(texts)))


@pytest.mark.parametrize(
    "question",
    [
        p
        for p in QUESTIONS
        if isinstance(p.values[0], Choice | Short | Open) and FIGURE.search(prose(p.values[0]))
    ],
)
def test_a_figure_in_prose_stands_in_its_lesson(question: Question) -> None:
    missing = set(FIGURE.findall(prose(question))) - figures_of(question.lesson)
    assert not missing, f"lesson {question.lesson} does not say {missing}: say it in words, or compute it"


def test_a_figure_is_told_from_a_number_of_a_chapter_or_a_name() -> None:
    assert FIGURE.findall("4.3 times, 0.5 %, and 88.7.") == ["4.3", "0.5", "88.7"]
    assert not FIGURE.findall("v1.2.3, x1.5, 10, 1,000")


@pytest.mark.parametrize("question", of_kind(Choice))
def test_no_option_stands_out(question: Choice) -> None:
    texts = [question.answer, *(wrong.text for wrong in question.wrong)]
    assert len({" ".join(words(text)) for text in texts}) == len(texts)
    sizes = sorted(map(len, texts))
    assert sizes[-1] <= 1.5 * sizes[-2] + 4 and sizes[1] <= 1.5 * sizes[0] + 4, dict(
        zip(sizes, texts, strict=True)
    )
    assert not any(re.search(r"of the above|\balways\b|both a and b", text.lower()) for text in texts)
    item = ask(question, 5)
    assert item == ask(question, 5)
    for i, (text, why) in enumerate(item.options):
        verdict = judge(item, LETTERS[i])
        assert (verdict.score == 1) == (text == question.answer) and verdict.reply == why


@pytest.mark.parametrize("question", of_kind(Number))
def test_its_number_is_computed_and_mistakes_are_named(question: Number) -> None:
    names = {
        alias.asname or alias.name
        for node in ast.walk(ast.parse(question.imports))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("paged_ref")
        for alias in node.names
    }
    used = _names(f"{question.given}\n({question.answer})")
    for helper in [node for node in ast.parse(question.imports).body if isinstance(node, ast.FunctionDef)]:
        used |= _names(ast.unparse(helper)) if helper.name in used else set()
    assert used & names, "its answer is not computed by paged_ref"

    draws, named = set(), Counter[int]()
    for seed in range(DRAWS):
        instance, item = fill_in(question, seed), ask(question, seed)
        draws.add(str(instance.values))
        assert judge(item, repr(instance.answer)).score == 1
        assert judge(item, told(instance.answer, question.unit)).score == 1, (
            "as it is told, it is not accepted"
        )
        for number, (value, why) in enumerate(instance.wrong):
            verdict = judge(item, repr(value)) if value >= 0 else None
            if verdict:
                assert verdict.score == 0 and why in verdict.reply
                named[number] += 1
        assert not re.search(r"[{}]", instance.stem + instance.explanation)
    assert len(draws) >= 4, f"only {len(draws)} different questions come out of it"
    assert set(named) == set(range(len(question.wrong)))


def _names(source: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}


@pytest.mark.parametrize("question", of_kind(Short))
def test_its_answers_are_told_apart(question: Short) -> None:
    item = ask(question, 0)
    for text in (question.answer, *question.accept):
        assert judge(item, text).score == 1, text
        assert judge(item, f"The {text.upper()}.").score == 1, text
    for wrong in question.wrong:
        assert judge(item, wrong.text).score == 0, wrong.text
    assert judge(item, "something that nobody thought of before").score is None
    assert question.wrong, "name an answer to expect"


@pytest.mark.parametrize("question", of_kind(Code))
def test_the_check_finds_the_bug_and_accepts_the_answer(question: Code) -> None:
    code, answer = question.code.splitlines(), question.answer.splitlines()
    changed = [i for i, pair in enumerate(zip(code, answer, strict=True)) if pair[0] != pair[1]]
    assert len(changed) == 1, f"code and answer differ in {len(changed)} lines, wanted is one"
    assert 5 <= len(code) <= 20
    assert run(question, question.answer) == (True, "")
    passed, message = run(question, question.code)
    if question.exercise:
        expected = exercise(question.exercise).misconceptions[question.finds]
        assert not passed and message.startswith(expected)
    else:
        assert not passed and question.finds in message


def run(question: Code, source: str) -> tuple[bool, str]:
    names = question.names or exercise(question.exercise).answers
    told = {"given": question.given, "source": source, "names": names, "exercise": question.exercise}
    return judge_here(told | {"check": question.check, "seed": 7})


@pytest.mark.parametrize("question", [p for p in of_kind(Code) if p.values[0].check])
def test_its_own_check_can_fail_and_be_understood(question: Code) -> None:
    stub = "\n".join(f"def {name}(*anything):\n    return None" for name in question.names)
    for source in (stub, "", "x = 1 /"):
        passed, message = run(question, source)
        assert not passed and message


@pytest.mark.parametrize("question", of_kind(Open))
def test_its_rubric_can_be_ticked(question: Open) -> None:
    assert len(set(question.rubric)) == len(question.rubric)
    assert all(20 <= len(point) <= 110 for point in question.rubric)
    assert 250 <= len(question.answer) <= 900
    verdict = judge(ask(question, 0), "anything")
    assert verdict.score is None and verdict.points == question.rubric
    assert verdict.scored(len(question.rubric)).score == 1


def test_exercises_proxies_are_those_of_the_notebook() -> None:
    """The check of a code question is the exercise's own: the reference passes it as in a notebook."""
    host = LocalHost()

    def slot(blocks: list[int], i: int, block_size: int) -> int:
        return blocks[i // block_size] * block_size + i % block_size

    assert exercise("2.1").run([host.proxy(slot, "slot")], 3).passed


# ---- files that are not as they must be

GOOD = """
lesson = "01_fragmentation"
[topics]
t = "A topic"
[[question]]
id = "1-good"
topic = "t"
level = 1
kind = "choice"
stem = "What?"
answer = "this"
wrong = [["that", "because"], ["those", "because"]]
explanation = "So it is."
cell = "x"
source = "a paper"
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'kind = "choice"',
            'kind = "chioce"',
            "kind = 'chioce', it must be one of choice, number, short, code, open",
        ),
        ('answer = "this"', "", "question '1-good': answer is missing"),
        ('answer = "this"', 'answer = " "', "answer must be a non-empty text"),
        ("level = 1", "level = 6", "level = 6, it must be 1 to 5"),
        ("level = 1", "level = true", "level must be a whole number, not True"),
        ('topic = "t"', 'topic = "u"', "topic 'u' is not in the file's [topics]: t"),
        ('id = "1-good"', 'id = "2-good"', "an id is the chapter's number and lowercase words, 1-like-this"),
        (
            'source = "a paper"',
            'source = "a paper"\nhint = "no"',
            "a question of kind choice has no key 'hint'",
        ),
        (
            'wrong = [["that", "because"], ["those", "because"]]',
            'wrong = [["that", "why"]]',
            "1 wrong options",
        ),
        ('["that", "because"]', '["that"]', "wrong must be a list of pairs"),
        ("[topics]", "[subjects]", "unknown key 'subjects'"),
        ('t = "A topic"', "", "[topics] must have at least one topic with a title"),
        ('lesson = "01_fragmentation"', "", "lesson is missing"),
        ('kind = "choice"', 'kind = "open"', "of kind open has no key 'wrong'"),
        ("[[question]]", "[[question]", "01_x.toml: "),
    ],
)
def test_a_fault_is_told_with_its_place(old: str, new: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "01_x.toml").write_text(GOOD)
    assert len(load_bank(tmp_path)) == 1
    load_bank.cache_clear()
    (tmp_path / "01_x.toml").write_text(GOOD.replace(old, new, 1))
    with pytest.raises(BankError) as caught:
        load_bank(tmp_path)
    assert message in str(caught.value) and "01_x.toml" in str(caught.value)


def test_faults_between_files(tmp_path: Path) -> None:
    with pytest.raises(BankError, match="there are no questions"):
        load_bank(tmp_path)
    (tmp_path / "01_x.toml").write_text(GOOD)
    (tmp_path / "01_y.toml").write_text(GOOD)
    with pytest.raises(BankError, match="the id '1-good' is already used"):
        load_bank(tmp_path)
    (tmp_path / "01_y.toml").write_text(GOOD.replace("1-good", "1-two").replace("A topic", "Another"))
    with pytest.raises(BankError, match="topic 't' has another title"):
        load_bank(tmp_path)


def test_chapters_of_two_digits_come_last_and_are_not_chapter_one(tmp_path: Path) -> None:
    for chapter in (1, 2, 10):
        (tmp_path / f"{chapter:02}_x.toml").write_text(GOOD.replace("1-good", f"{chapter}-good"))
    bank = load_bank(tmp_path)
    assert bank.chapters() == [1, 2, 10]
    assert [question.id for question in session._of_level(bank, 1)] == ["1-good", "2-good", "10-good"]
    for topic, id in (("1", "1-good"), ("10", "10-good"), ("010", "10-good")):
        assert [question.id for question in choose(bank, Progress(), topic, None)] == [id]
    with pytest.raises(Refused, match=r"there is no topic '3'.*Chapters: 1, 2, 10"):
        choose(bank, Progress(), "3", None)
    (tmp_path / "10_x.toml").write_text(GOOD)
    with pytest.raises(BankError, match="lowercase words, 10-like-this"):
        read_file(tmp_path / "10_x.toml")


NUMBER = """
[topics]
t = "A topic"
[[question]]
id = "1-n"
topic = "t"
level = 1
kind = "number"
lesson = "l"
cell = "x"
source = "s"
draw.a = [1, 2]
stem = "{a}?"
answer = "a"
wrong = [["2 * a", "doubled"]]
explanation = "{answer}"
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('answer = "a"', 'answer = "b"', "answer 'b' raises NameError"),
        ('answer = "a"', 'answer = "[a]"', "gives [1], which is not a number"),
        ('stem = "{a}?"', 'stem = "{b}?"', "stem '{b}?': KeyError"),
        ('stem = "{a}?"', 'stem = "{a}?"\ngiven = "1/0"', "given raises ZeroDivisionError"),
        ('stem = "{a}?"', 'stem = "{a}?"\nwhere = "a > 2"', "in 1000 draws `where` was never true"),
        ('"2 * a"', '"a"', "or a named mistake always gave the answer"),
    ],
)
def test_a_template_that_does_not_work_is_named(old: str, new: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "01_n.toml").write_text(NUMBER.replace(old, new).replace("a = [1, 2]", "a = [1, 1]"))
    [question] = read_file(tmp_path / "01_n.toml")[1]
    assert isinstance(question, Number)
    with pytest.raises(BankError) as caught:
        fill_in(question, 0)
    assert "question '1-n'" in str(caught.value) and message in str(caught.value)
