"""Every notebook of the repository is what its source makes, was run whole, and holds nothing of one machine.

Nothing is executed here. `python3 course.py test` also runs every cell and compares its output, with nbval.
"""

from __future__ import annotations

import re

import pytest

from coursekit.build.command import ROOT
from coursekit.build.faults import check_target
from coursekit.build.targets import Target, extra_notebooks, targets

TARGETS = targets(ROOT)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.title)
def test_notebook_is_in_order(target: Target) -> None:
    assert [str(fault) for fault in check_target(target)] == []


def test_every_source_makes_a_notebook_and_every_notebook_has_a_source() -> None:
    assert TARGETS, "curriculum/lessons holds no source"
    assert list(extra_notebooks(ROOT)) == []
    assert [t.relative(t.source) for t in TARGETS if not re.fullmatch(r"\d\d_[a-z0-9_]+", t.name)] == []


def test_the_readme_leads_to_every_lesson() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    lessons = [t.relative(t.path) for t in TARGETS if t.path.parent.name == "notebooks"]
    assert [path for path in lessons if path not in readme] == []
