"""A Predict box: every guess gets a reply, the reply never tells the answer, and a bad box is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coursekit.learner.question import BadQuestion, Question, find, parse, questions, read_number

BYTES = parse(
    "1-bytes", "question: How many?\nnumber: 327_680\nunit: bytes\nreplies: {2_621_440: query heads}"
)
FITS = parse(
    "1-fits",
    "question: Does it fit?\nchoice: 'No'\noptions: ['Yes', 'No', Perhaps]\nshown: None\nreplies: {'Yes': one hole}",
)
ORDER = parse("1-order", "question: In which order?\norder: [decodes, admissions, chunks]")


@pytest.mark.parametrize(
    ("guess", "right", "text"),
    [
        ("327680", True, "Right."),
        (" 327,680 bytes ", True, "Right."),
        ("3.2768e5", True, "Right."),
        ("2621440", False, "query heads"),
        ("655360", False, "Not yet: too high, by a factor of about 2."),
        ("300000", False, "Not yet: a little too low."),
        ("0", False, "Not yet: too low."),
        ("many", None, "Type a number, such as 12 or 3.5."),
        ("nan", None, "Type a number, such as 12 or 3.5."),
        ("1e999", None, "Type a number, such as 12 or 3.5."),
    ],
)
def test_a_number_is_judged(guess: str, right: bool | None, text: str) -> None:
    assert (BYTES.judge(guess).right, BYTES.judge(guess).text) == (right, text)


def test_a_tolerance_is_relative() -> None:
    rough = parse("1-share", "question: What share?\nnumber: 10.4\nunit: '%'\ntolerance: 0.15")
    assert rough.judge("10 %").text == "Close enough." and rough.judge("12").right is False


@pytest.mark.parametrize(
    ("guess", "right", "text"),
    [
        ("No", True, "Right."),
        ("b", True, "Right."),
        ("A.", False, "one hole"),
        ("Perhaps", False, "Not that one."),
        ("D", None, "Choose one of A, B, C."),
    ],
)
def test_a_choice_is_judged(guess: str, right: bool | None, text: str) -> None:
    assert (FITS.judge(guess).right, FITS.judge(guess).text) == (right, text)


@pytest.mark.parametrize(
    ("guess", "right", "text"),
    [
        ("C A B", True, "Right."),
        ("c,a,b", True, "Right."),
        ("CBA", False, "Not yet: right up to place 1."),
        ("ABC", False, "Not yet: the first place is wrong."),
        ("AAB", None, "Type each of A, B, C once, in your order."),
    ],
)
def test_an_order_is_judged(guess: str, right: bool | None, text: str) -> None:
    assert ORDER.options == ("admissions", "chunks", "decodes")
    assert (ORDER.judge(guess).right, ORDER.judge(guess).text) == (right, text)


@given(st.text(max_size=40))
def test_any_text_gets_a_reply_that_does_not_tell_the_answer(guess: str) -> None:
    for question in (BYTES, FITS, ORDER):
        reply = question.judge(guess)
        assert reply.text
        if reply.right is not True:
            assert "327,680" not in reply.text and "decodes" not in reply.text


def test_the_question_is_a_quote_with_its_options_and_without_its_answer() -> None:
    assert BYTES.markdown == "> **Predict.** How many?" and "327" not in BYTES.wanted
    assert ORDER.markdown.splitlines()[2:] == [
        "> - **A** admissions",
        "> - **B** chunks",
        "> - **C** decodes",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("question: Q", "needs `question` and one of number, choice, order"),
        ("number: 3", "needs `question`"),
        ("question: Q\nnumber: 3\nchoice: A", "one of number, choice, order"),
        ("question: Q\nnumber: three", "'three' is not a number"),
        ("question: Q\nnumber: true", "True is not a number"),
        ("question: Q\nchoice: A\noptions: [B, C]\nshown: A", "must be one of its options"),
        ("question: Q\nchoice: A\noptions: [A, B]", "a choice needs `shown`"),
        ("question: Q\norder: [A, A]", "two or more different things"),
        ("question: Q\nchoice: No\noptions: [Yes, No]\nshown: x", "put quotes around options"),
        ("question: Q\nnumber: 3\ncolour: red", "may have options, unit"),
        ("question: [", "not valid YAML"),
    ],
)
def test_a_bad_box_is_named(text: str, message: str) -> None:
    with pytest.raises(BadQuestion, match=message) as error:
        parse("1-bad", text)
    assert "1-bad" in str(error.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1,000,000", 1e6), ("1 000", 1000), ("1_000", 1000), ("-.5", -0.5), ("2.5x", 2.5), ("9.5×", 9.5),
     ("3 times", 3), ("1,00", None), ("", None), ("inf", None), ("1/2", None)],
)  # fmt: skip
def test_numbers_as_people_type_them(text: str, value: float | None) -> None:
    assert read_number(text) == value


SOURCE = """# %% [raw] predict="3-a"
# question: One?
# number: 1

# %%
x = 1

# %% [raw] predict="3-b"
# question: |
#   Two
#
#   lines?
# number: 2
"""


def test_the_boxes_of_a_source_are_found_where_the_build_finds_them(tmp_path: Path) -> None:
    found = questions(SOURCE)
    assert list(found) == ["3-a", "3-b"] and found["3-b"].markdown == "> **Predict.** Two\n>\n> lines?"
    (tmp_path / "curriculum/lessons").mkdir(parents=True)
    (tmp_path / "curriculum/lessons/03_x.py").write_text(SOURCE, encoding="utf-8")
    assert isinstance(find("3-b", tmp_path), Question)
    for unknown in ("3-c", "4-a", "x", ""):
        with pytest.raises(KeyError, match="no lesson has"):
            find(unknown, tmp_path)
    with pytest.raises(BadQuestion, match="two Predict boxes are called 3-a"):
        questions(SOURCE.replace("3-b", "3-a"))
