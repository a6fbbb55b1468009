"""Attacks from `tests/helpers/submissions/attacks.py`: none earns a point, harms others or outlives its run."""

from __future__ import annotations

import platform
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from nbformat import NotebookNode

from coursekit import ROOT
from coursekit.build.exercises import sources
from coursekit.checks.framework import MAX_MESSAGE, exercise
from coursekit.grade.judge import ExerciseResult, Judge
from coursekit.grade.submission import Submission, load_book
from tests.helpers.grading import RIGHT, WEAK, cells_in
from tests.helpers.needs import needs_sandbox

pytestmark = needs_sandbox

CELLS = cells_in("attacks.py")
(TOOLS,) = (cell.source for cell in CELLS if "tool" in cell.metadata)
ATTACKS = [cell for cell in CELLS if "attack" in cell.metadata]
EVERYWHERE = [cell for cell in CELLS if "everywhere" in cell.metadata]
CHAPTERS = {str(int(chapter)): load_book(ROOT, chapter) for chapter in sources(ROOT)}
IDS = [id for book in CHAPTERS.values() for id in book.ids]
LINUX = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")
BY_KERNEL = ("system call", "outlives the run", "other submissions", "ctypes")


class Judges(dict[str, Judge]):
    """A judge for each chapter, made when first asked for."""

    def __missing__(self, chapter: str) -> Judge:
        self[chapter] = Judge(CHAPTERS[chapter], 5, seconds=6, weak=WEAK)
        return self[chapter]


@pytest.fixture(scope="module")
def judges() -> Iterator[Judges]:
    made = Judges()
    yield made
    for judge in made.values():
        judge.close()


def attack(judges: Judges, id: str, source: str, seconds: float = 6) -> ExerciseResult:
    judge = judges[id.split(".")[0]]
    judge.seconds = seconds
    return judge.grade_exercise(Submission("x", "x.ipynb", answers={id: source}), exercise(id), set())


def armed(source: str, path: Path, *, stub: bool = True) -> str:
    """The attack with its tools; `won()` defines the right answer, and otherwise `slot` returns 0."""
    wins = f"def won():\n    exec({RIGHT['2.1']!r}, globals())\n"
    zero = "def slot(*a):\n    return 0\n" if stub and "def slot" not in source else ""
    return f"{TOOLS}\nPATH = {str(path)!r}\n{wins}{zero}{source}"


@pytest.mark.parametrize("cell", ATTACKS, ids=lambda cell: cell.metadata["attack"])
def test_an_attack_earns_nothing(cell: NotebookNode, judges: Judges, tmp_path: Path) -> None:
    started = time.monotonic()
    kind, id = cell.metadata["kind"], cell.metadata.get("exercise", "2.1")
    if kind in BY_KERNEL and WEAK:
        pytest.skip("only Landlock and seccomp stop this attack, and this system lacks one of them")
    other = tmp_path / "other.ipynb"
    other.write_text("another student's", encoding="utf-8")
    before = other.stat()
    source = cell.source if id != "2.1" or not LINUX else armed(cell.source, other)
    result = attack(judges, id, source, 1.5 if cell.metadata.get("never_ends") else 6)
    assert result.verdict.earned == 0
    for part in result.verdict.parts:
        part.message.encode("utf-8")
        assert len(part.message) <= MAX_MESSAGE
        assert all(c.isprintable() or c in "\n\t" for c in part.message)
    assert other.read_text(encoding="utf-8") == "another student's"
    assert (other.stat().st_mode, other.stat().st_mtime) == (before.st_mode, before.st_mtime)
    assert not Path("/tmp/left-by-an-answer").exists()
    assert time.monotonic() - started < 30, "the judge itself was kept busy"


@pytest.mark.parametrize("id", IDS)
@pytest.mark.parametrize("cell", EVERYWHERE, ids=lambda cell: cell.metadata["everywhere"])
def test_no_exercise_gives_points_for_nothing(cell: NotebookNode, id: str, judges: Judges) -> None:
    task = exercise(id)
    names = [name for name in task.answers if name not in task.helpers]
    result = attack(judges, id, f"NAMES = {names}\n{cell.source}")
    assert result.verdict.earned == 0, result.verdict


@pytest.mark.skipif(not LINUX, reason="the attacks' tools make Linux system calls by number")
def test_the_attacks_tools_work(judges: Judges, tmp_path: Path) -> None:
    """So an attack's zero above comes from the sandbox, not from a broken tool."""
    for allowed in (
        'call("getpid")',
        'call("openat", HERE, b"/usr", 0)',
        'call("openat", HERE, b"/dev/null", 0)',
    ):
        assert attack(judges, "2.1", armed(f"won_if({allowed})", tmp_path)).verdict.earned == 4


def test_a_cell_larger_than_a_message_gets_a_verdict(judges: Judges) -> None:
    result = attack(judges, "2.1", RIGHT["2.1"] + "#" * 17_000_000)
    assert (result.verdict.earned, result.status) == (0, "died")


def test_after_all_attacks_an_honest_answer_gets_its_points_and_nothing_is_left_running(
    judges: Judges,
) -> None:
    assert attack(judges, "2.1", RIGHT["2.1"]).verdict.earned == 4
    pid = judges["2"].zygote.pid
    assert pid
    children = Path(f"/proc/{pid}/task/{pid}/children")
    assert not children.exists() or children.read_text().split() == []


def test_there_are_attacks_of_every_kind() -> None:
    kinds = Counter(cell.metadata["kind"] for cell in ATTACKS + EVERYWHERE)
    assert len(ATTACKS) >= 60 and {cell.metadata["kind"] for cell in EVERYWHERE} == {"arguments", "constants"}
    assert set(kinds) >= {*BY_KERNEL, "hostile text", "flood", "exit", "reference", "harness", "arguments"}
