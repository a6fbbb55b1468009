"""The wording rule finds avoided words where people read them, and the covered files are free of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from coursekit import ROOT
from coursekit.build.faults import check
from coursekit.build.wording import COVERED, REPLACEMENTS, hits


def plant(root: Path, file: str, text: str) -> list[tuple[str, int, str]]:
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return [(hit.file, hit.line, hit.word) for hit in hits(root)]


def test_a_word_in_any_covered_place_is_found(tmp_path: Path) -> None:
    places = ["README.md", "docs/deep/grading.md", "curriculum/README.md", "course.py"]
    places += ["curriculum/lessons/01_one.py"]  # a chapter in the new form
    places += [f"{package}/part/file.py" for package in ("paged_ref", "coursekit", "bench")]
    for file in places:
        found = plant(tmp_path, file, '"""A line,\nand whoever reads it."""\n')
        assert (file, 2, "whoever") in found
    assert len(found) == len(places)
    plant(tmp_path, "curriculum/lessons/02_one.py", '"""Whoever reads it."""\n')
    assert len(list(hits(tmp_path))) == len(places)


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("x = 'We mended it.'\n", 1, "mended"),
        ('x = f"{1} tokens a second"\n', 1, "tokens a second"),
        ("x = 1\n# 3 GB a second\n", 2, "GB a second"),
        ("# Some bytes\n# a token.\n", 1, "bytes a token"),
        ('x = ("The latest gives "\n     "way.")\n', 1, "gives way"),
        ('def f():\n    """First.\n\n    It is in vain."""\n', 4, "in vain"),
    ],
)
def test_strings_and_comments_are_read_across_lines(tmp_path: Path, text: str, line: int, word: str) -> None:
    assert plant(tmp_path, "bench/one.py", text) == [("bench/one.py", line, word)]


@pytest.mark.parametrize(
    "text",
    [
        "whoever = 1\n",
        "# We recommend it; it takes a second, and the tokens a second time.\n",
        "# The word `mend` is named here.\n",
        "# in printed form, a token of bytes\n",
    ],
)
def test_code_and_longer_words_are_left_alone(tmp_path: Path, text: str) -> None:
    assert plant(tmp_path, "bench/one.py", text) == []


def test_the_check_names_file_line_word_and_replacement(tmp_path: Path) -> None:
    plant(tmp_path, "README.md", "# Title\n\nTokens a\nsecond.\n")
    assert [str(fault) for fault in check(tmp_path)] == [
        "README.md:3: avoid 'Tokens a second'. Use: per second."
    ]


def test_the_covered_files_use_none_of_the_words() -> None:
    found = [f"{hit.file}:{hit.line}: {hit.word!r} → {hit.replacement!r}" for hit in hits(ROOT)]
    assert not found, "\n".join(found)


def test_every_pattern_covers_a_file_and_every_word_has_a_replacement() -> None:
    assert all(any(ROOT.glob(pattern)) for pattern in COVERED)
    assert all(REPLACEMENTS.values())
