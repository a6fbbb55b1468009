"""Lessons: Predict boxes become a question and an input, marked cells are folded, exercises are linked."""

from __future__ import annotations

from pathlib import Path

import pytest

from coursekit import ROOT
from coursekit.build.command import build
from coursekit.build.faults import check
from coursekit.build.form import GLOSSARY, OLD_FORM, form_faults
from coursekit.build.lessons import expand_lesson
from coursekit.build.percent import BuildError
from coursekit.build.targets import targets

TITLE = "# %% [markdown]\n# # A lesson\n\n"
BOX = '# %% [raw] predict="1-sum"\n# question: How much is two and two?\n# number: 4\n\n'
ANSWER = '# %% answers="1-sum" hide="code"\nprint(2 + 2)\n\n'
EXERCISE = '# %% [raw] exercise="1.1"\n# title: A sum\n# minutes: 10\n\n# %% exercise="1.1"\nx = 1\n'


def test_a_predict_box_becomes_a_question_and_an_input_with_stable_ids() -> None:
    notebook, lines = expand_lesson(TITLE + BOX + ANSWER)
    assert [cell.id for cell in notebook.cells[1:3]] == ["predict-1-sum", "predict-1-sum-guess"]
    assert notebook.cells[1].source == "> **Predict.** How much is two and two?"
    assert notebook.cells[2].source == 'from coursekit.learner import predict\n\npredict("1-sum")'
    assert notebook.cells[3].metadata.jupyter == {"outputs_hidden": True, "source_hidden": True}
    assert lines == [1, 4, 4, 8]


def test_a_reference_is_folded_below_its_exercise(tmp_path: Path) -> None:
    source = tmp_path / "01_x.py"
    source.write_text(EXERCISE, encoding="utf-8")
    place = '# %% [markdown] exercise="1.1"\n# Now write it.\n\n'
    notebook, _ = expand_lesson(TITLE + place + '# %% reference="1.1"\nprint(1)\n', source)
    assert notebook.cells[1].source == (
        "Now write it.\n\n**→ [Exercise 1.1 · A sum](../exercises/01_x.ipynb#Exercise-1.1-·-A-sum)** · about 10 "
        "minutes. Come back when its check passes, or when you want to see one way to do it."
    )
    assert notebook.cells[2].metadata.jupyter == {"outputs_hidden": True}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOX, "no cell answers the Predict box 1-sum"),
        (ANSWER + BOX, "no Predict box above this cell is called '1-sum'"),
        (BOX + BOX + ANSWER, "two Predict boxes are called '1-sum'"),
        (BOX.replace("1-sum", "sum"), "named by its chapter and words"),
        (BOX.replace("number: 4", "number: four") + ANSWER, "'four' is not a number"),
        ('# %% reference="1.1"\nprint(1)\n', "the reference of exercise 1.1 comes before the exercise"),
        ('# %% [markdown] exercise="1.7"\n# Write it.\n', "there is no exercise 1.7 to link to"),
        ('# %% hide="code"\nprint(1)\n', "a folded cell has `answers` or `reference`"),
        ('# %% folded="yes"\nprint(1)\n', "a code cell cannot have 'folded'"),
    ],
)
def test_what_is_wrong_in_a_lesson_is_named(text: str, message: str) -> None:
    with pytest.raises(BuildError, match=message):
        expand_lesson(TITLE + text)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    (tmp_path / "curriculum/lessons").mkdir(parents=True)
    return tmp_path


def write(repo: Path, text: str, name: str = "01_x") -> None:
    (repo / f"curriculum/lessons/{name}.py").write_text(text, encoding="utf-8")


def test_folding_executes_nothing_and_the_answer_must_be_in_the_output(
    repo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The input's cell needs this repository's lessons; here only the answer is looked at.
    text = TITLE + BOX + ANSWER
    write(repo, text)
    target = targets(repo)[0]
    notebook = target.notebook()
    assert notebook.cells[-1].metadata.answers == "1-sum"
    write(repo, TITLE + "# %%\nprint(2 + 2)\n")
    assert build(repo) == [] and check(repo) == []
    capsys.readouterr()


def test_an_answer_that_the_cell_does_not_print_is_a_fault() -> None:
    from coursekit.build.form import unshown_answers

    notebook, _ = expand_lesson(TITLE + BOX + ANSWER)
    notebook.cells[-1].outputs = [{"output_type": "stream", "name": "stdout", "text": "4\n"}]
    assert list(unshown_answers(TITLE + BOX + ANSWER, notebook)) == []
    notebook.cells[-1].outputs[0]["text"] = "5\n"
    [(at, what)] = unshown_answers(TITLE + BOX + ANSWER, notebook)
    assert at == 3 and what == "the answer to 1-sum is not in the output: '4' is missing"


FORM = """# %% [markdown]
# # A lesson
#
# 1. [One](#1-one)

# %% [markdown]
# ## Recall
#
# 1. A? <details><summary>Answer</summary>a</details>
# 2. B? <details><summary>Answer</summary>b</details>
# 3. C? <details><summary>Answer</summary>c</details>

# %% [markdown]
# > **On call.** A clue about the [pool](../docs/glossary.md#block-pool).

# %% [raw] predict="1-sum"
# question: How much is two and two?
# number: 4

# %% answers="1-sum"
print(2 + 2)

# %% [markdown]
# ## 2 In vLLM and SGLang today
#
# As of vLLM 0.11: https://github.com/a and https://github.com/b.

# %% [markdown]
# ## You are done when
#
# - one
# - two
# - three
"""


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("1. [One](#1-one)", "", "the first cell has no contents"),
        (
            "# 3. C? <details><summary>Answer</summary>c</details>\n",
            "",
            "does not have three recall questions",
        ),
        ("> **On call.**", "> Once.", "the running story stands in 0 places"),
        ("vLLM 0.11", "vLLM", 'no section "In vLLM and SGLang today"'),
        ("# - three\n", "", 'no section "You are done when …"'),
        ("# - one", "# > **Predict.** By hand.\n# - one", "a Predict box takes no guess"),
        ("#block-pool", "#block-poll", "docs/glossary.md has no heading 'block-poll'"),
        ("[pool](../docs/glossary.md#block-pool)", "pool", "no word is linked to the glossary"),
    ],
)
def test_each_part_of_the_form_is_asked_for(repo: Path, old: str, new: str, fault: str) -> None:
    (repo / "docs").mkdir()
    (repo / "docs/glossary.md").write_text("# Glossary\n\n### Block pool\n\nBlocks.\n")
    write(repo, FORM)
    assert list(form_faults(repo)) == []
    assert old in FORM
    write(repo, FORM.replace(old, new))
    [(file, _, remedy)] = [found for found in form_faults(repo) if fault in found[1]]
    assert file == "curriculum/lessons/01_x.py" and remedy


def test_the_list_of_lessons_without_the_form_only_shrinks(repo: Path) -> None:
    (repo / "docs").mkdir()
    (repo / "docs/glossary.md").write_text("### Block pool\n")
    write(repo, FORM, min(OLD_FORM))
    [(_, what, remedy)] = form_faults(repo)
    assert what == "it has the form of a lesson" and "OLD_FORM" in remedy
    assert {target.name for target in targets(ROOT)} >= OLD_FORM


def test_every_lesson_has_the_form_or_is_on_the_list() -> None:
    assert (ROOT / GLOSSARY).is_file(), "without it nothing is checked"
    assert list(form_faults(ROOT)) == []
