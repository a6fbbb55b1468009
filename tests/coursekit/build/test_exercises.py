"""From a chapter's text to stubs and solutions: markers, ids, metadata, and what each notebook does when it is run."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from nbformat import NotebookNode

from coursekit import ROOT
from coursekit.build.command import build
from coursekit.build.exercises import cells_of, expand, sources, stub_of
from coursekit.build.faults import check
from coursekit.build.percent import BuildError, is_code
from coursekit.build.targets import Target, targets
from coursekit.checks.framework import exercise

STUBS = [target for target in targets(ROOT) if target.kind == "stubs"]
TEXT = (ROOT / "curriculum/exercises/02_block_table.py").read_text(encoding="utf-8")


def nbgrader(notebook: NotebookNode) -> list[tuple[str, dict[str, object]]]:
    return [(cell.id, dict(cell.metadata.nbgrader)) for cell in notebook.cells if "nbgrader" in cell.metadata]


def test_stubs_and_solutions_differ_in_the_solutions_alone() -> None:
    stubs, lines = expand(TEXT, solved=False)
    solutions, _ = expand(TEXT, solved=True)
    assert [cell.id for cell in stubs.cells] == [cell.id for cell in solutions.cells]
    assert len({cell.id for cell in stubs.cells}) == len(stubs.cells) == len(lines)
    differing = [one.id for one, other in zip(stubs.cells, solutions.cells, strict=True) if one != other]
    assert differing == ["exercise-2-1", "exercise-2-2", "exercise-2-3", "exercise-2-4"]
    text = str(stubs)
    assert "SOLUTION" not in text and "HIDDEN TESTS" not in text and text.count("NotImplementedError") >= 4


def test_metadata_is_nbgrader_s() -> None:
    stubs, _ = expand(TEXT, solved=False)
    common = {"cell_type": "code", "schema_version": 3, "task": False}
    expected = []
    for id in ("2.1", "2.2", "2.3", "2.4"):
        key = f"exercise-{id.replace('.', '-')}"
        answer = {"grade": False, "grade_id": key, "locked": False, "solution": True}
        test = {"grade": True, "grade_id": f"{key}-check", "locked": True, "solution": False}
        expected += [
            (key, common | answer),
            (f"{key}-check", common | test | {"points": exercise(id).points}),
        ]
    assert nbgrader(stubs) == expected


def test_an_exercise_has_its_facts_prediction_and_three_nested_hints() -> None:
    stubs, _ = expand(TEXT, solved=False)
    cells = {cell.id: cell.source for cell in stubs.cells}
    assert cells["exercise-2-1-task"].startswith(
        "## Exercise 2.1 · The slot of a token\n\n*4 points · about 10 minutes"
    )
    assert "**Predict first.**" in cells["exercise-2-1-predict"]
    hints = cells["exercise-2-1-hints"]
    assert [hints.index(f"Hint {n} of 3") for n in (1, 2, 3)] == sorted(
        hints.index(f"Hint {n} of 3") for n in (1, 2, 3)
    )
    assert hints.count("<details>") == 3 and hints.endswith("</details>\n\n</details>\n\n</details>")
    assert cells["exercise-2-1-check"] == 'from coursekit.checks import check\n\ncheck("2.1", slot)'


def test_markers_are_taken_out_with_their_indent() -> None:
    source = "def f():\n    ### BEGIN SOLUTION\n    return 1\n    ### END SOLUTION\n"
    stub = stub_of(source, "2.1")
    assert (
        stub == 'def f():\n    # YOUR CODE HERE\n    raise NotImplementedError("exercise 2.1: write this")\n'
    )
    hidden = "x = 1\n### BEGIN HIDDEN TESTS\nassert x\n### END HIDDEN TESTS\n"
    assert stub_of(hidden, None) == "x = 1\n"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("### END SOLUTION", "### THE END", "no `### BEGIN SOLUTION`"),
        ("# title: The slot", "# heading: The slot", "has missing or unknown keys: heading, title"),
        ("# difficulty: 1", "# difficulty: 6", "difficulty and importance from 1 to 5"),
        ('exercise="2.1"', 'exercise="2.99"', "no check for exercise '2.99'"),
        ('# %% [raw] exercise="2.1"', "# %% [raw]", "must be an exercise header"),
        ('# %% exercise="2.1"', "# %%", "exercise 2.1 has no cell for its answer"),
    ],
)
def test_what_is_wrong_in_a_text_is_named(old: str, new: str, message: str) -> None:
    text = TEXT[: TEXT.index('# %% [raw] exercise="2.2"')]
    with pytest.raises(BuildError, match=message.replace("[", r"\[")):
        cells_of(text.replace(old, new))


def test_shipped_stubs_must_follow_from_their_text(tmp_path: Path) -> None:
    (tmp_path / "curriculum/exercises").mkdir(parents=True)
    (tmp_path / "curriculum/exercises/02_tiny.py").write_text(
        "# %% [markdown]\n# # Title\n", encoding="utf-8"
    )
    assert build(tmp_path) == [] and check(tmp_path) == []
    path = tmp_path / "exercises/02_tiny.ipynb"
    path.write_text(path.read_text().replace("# Title", "# Other"))
    assert [str(fault) for fault in check(tmp_path)] == [
        "exercises/02_tiny.ipynb: it differs from curriculum/exercises/02_tiny.py. If you only ran or edited the "
        "notebook, `git restore exercises/02_tiny.ipynb`; otherwise run `python3 course.py build`."
    ]


def test_a_folder_chooses_among_notebooks_of_one_name() -> None:
    def chosen(name: str) -> set[str]:
        return {target.title for target in targets(ROOT, [name])}

    both = {"exercises/02_block_table", "solutions/02_block_table"}
    assert chosen("02") == both | {"notebooks/02_block_table"}
    assert chosen("exercises/02") == chosen("curriculum/exercises/02_block_table.py") == both
    assert chosen("solutions/02_block_table.ipynb") == {"solutions/02_block_table"}


def run_nbval(notebook: Path, folder: Path) -> dict[int, bool]:
    """Number of the code cell → whether it passed, as nbval's lax mode sees it."""
    report = folder / "report.xml"
    command = [
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--nbval-lax",
        "--nbval-current-env",
        f"--junitxml={report}",
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(
        [sys.executable, "-m", *command, str(notebook)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        timeout=120,
    )
    cases = ET.parse(report).getroot().iter("testcase")
    return {int(case.attrib["name"].split()[-1]): case.find("failure") is None for case in cases}


@pytest.mark.slow
@pytest.mark.parametrize("target", STUBS, ids=lambda target: target.name)
def test_shipped_exercises_fail_at_their_checks_and_nowhere_else(target: Target, tmp_path: Path) -> None:
    passed = run_nbval(target.path, tmp_path)
    code = [cell for cell in target.notebook().cells if is_code(cell)]
    assert passed == {number: not cell.id.endswith("-check") for number, cell in enumerate(code)}


def test_every_exercise_source_is_a_chapter_with_both_notebooks() -> None:
    assert {path.stem for path in sources(ROOT).values()} == {target.name for target in STUBS}
    for target in STUBS:
        solutions = ROOT / "solutions" / target.path.name
        assert target.path.is_file() and solutions.is_file()
