"""No exercise can be passed with code that its lesson shows before it; the exceptions only become fewer."""

from __future__ import annotations

from pathlib import Path

import pytest

from coursekit import ROOT
from coursekit.build.exercises import cells_of, sources
from coursekit.checks import paste
from coursekit.checks.paste import pasteable

IDS = [
    cell.exercise
    for path in sources(ROOT).values()
    for cell in cells_of(path.read_text(encoding="utf-8"))[0]
    if cell.kind == "answer" and cell.exercise
]
# Exercise → the lesson's definition that passes it. Chapters that are not converted to the new form yet.
PASTEABLE = {"2.3": "SmallTable", "3.2": "gather", "3.3": "paged_decode"}


@pytest.mark.parametrize("id", IDS)
def test_no_code_of_the_lesson_passes_the_exercise(id: str) -> None:
    assert pasteable(ROOT, id) == PASTEABLE.get(id)


def test_the_list_names_exercises_that_exist() -> None:
    assert set(PASTEABLE) <= set(IDS)


CODE = {
    "defined": "def cut(blocks, i, size):\n    return blocks[i // size] * size + i % size",
    "with a constant and an import": "import math\n\nSIZE = 1\n\n\ndef cut(blocks, i, size):\n"
    "    return blocks[math.floor(i / size)] * size * SIZE + i % size",
    "printed": "from coursekit.views.source_code import show_source\nfrom tests.helpers.pasted import a_slot\n\n"
    "show_source(a_slot)",
}


@pytest.mark.parametrize("kind", CODE)
def test_what_a_lesson_shows_is_found(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paste, "code_above", lambda root, id: ["print(pool)", CODE[kind], "x = unknown(3)"])
    assert pasteable(ROOT, "2.1") == ("a_slot" if kind == "printed" else "cut")


def test_a_wrong_or_an_unfinished_definition_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = "def cut(blocks, i, size):\n    return blocks[i % size]"
    monkeypatch.setattr(paste, "code_above", lambda root, id: [wrong, "class Pool(Missing):\n    pass"])
    assert pasteable(ROOT, "2.1") is None


def test_code_below_the_place_does_not_count(tmp_path: Path) -> None:
    for kind, text in (
        (
            "lessons",
            '# %% [markdown]\n# # T\n\n# %%\na = 1\n\n# %% [markdown] exercise="2.1"\n# Go.\n\n# %%\nb = 2\n',
        ),
        ("exercises", '# %% [raw] exercise="2.1"\n# title: T\n# minutes: 1\n'),
    ):
        folder = tmp_path / "curriculum" / kind
        folder.mkdir(parents=True)
        (folder / "02_x.py").write_text(text, encoding="utf-8")
    assert paste.code_above(tmp_path, "2.1") == ["a = 1"]
