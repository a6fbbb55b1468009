"""Ways to get points without an answer, and ways to harm the grader. Each is tried; none works.

Every cheat is the answer to exercise 2.1, where right answers would earn 4 points, beside a right answer to 2.4, which
must keep its 5: what a cheat does stays in its own sandbox.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from coursekit import ROOT
from coursekit.checks.answers import LocalHost
from coursekit.checks.framework import exercise
from coursekit.grade.judge import Judge, StudentResult
from coursekit.grade.submission import read_submission
from tests.helpers.grading import BOOK, RIGHT, WEAK, cells_in, notebook, write
from tests.helpers.needs import needs_sandbox

pytestmark = needs_sandbox

LOCKDOWN = None if needs_sandbox.args[0] else import_module("coursekit.grade.lockdown")
LANDLOCK = LOCKDOWN is not None and LOCKDOWN.landlock_version() > 0
# What the cheats steal, if they can: any text in which the solution stands.
STEAL = """
def learn(text):
    text = text.replace('\\\\n', '\\n')
    lines = [line.strip(' ",') for line in text.splitlines() if "blocks[i // block_size]" in line]
    exec("def slot(blocks, i, block_size):\\n    " + lines[0], globals())
"""
FILES = (
    "solutions/02_block_table.ipynb",
    "curriculum/exercises/02_block_table.py",
    "curriculum/mistakes/02/2.3.py",
)
READ = {str(cell.metadata["way"]): cell.source for cell in cells_in("readers.py")}
CHEATS = {str(cell.metadata["cheat"]): cell.source for cell in cells_in("cheats.py")}


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    made = Judge(BOOK, 5, weak=WEAK, seconds=3)
    yield made
    made.close()


def grade(judge: Judge, folder: Path, source: str) -> StudentResult:
    path = write(folder / "02_block_table.ipynb", notebook({"2.1": source, "2.4": RIGHT["2.4"]}))
    return judge.grade(read_submission(path, "x", BOOK))


def earned(result: StudentResult) -> tuple[int, int]:
    return result.exercises["2.1"].verdict.earned, result.exercises["2.4"].verdict.earned


def test_there_are_plenty_of_cheats() -> None:
    assert len(CHEATS) >= 25 and len(READ) >= 10


@pytest.mark.parametrize("source", CHEATS.values(), ids=CHEATS)
def test_a_cheat_earns_nothing_and_harms_nothing(source: str, judge: Judge, tmp_path: Path) -> None:
    stub = "" if "def slot" in source else "\n\ndef slot(blocks, i, block_size):\n    return 0\n"
    assert earned(grade(judge, tmp_path, source.replace("COURSE", str(ROOT)) + stub)) == (0, 5)
    assert not (ROOT / "left.txt").exists()


@pytest.mark.parametrize("file", FILES[:2])
@pytest.mark.parametrize("way", READ)
def test_the_solution_cannot_be_read(way: str, file: str, judge: Judge, tmp_path: Path) -> None:
    if way == "hook-blinded" and not LANDLOCK:
        pytest.skip(
            "without Landlock the audit hook is the only guard of the files, and this cheat goes around it"
        )
    source = STEAL + READ[way].replace("PATH", repr(str(ROOT / file)))
    assert earned(grade(judge, tmp_path, source)) == (0, 5)


def test_the_ways_to_read_it_would_work_where_nothing_stops_them() -> None:
    for way in ("open", "os-open", "pathlib", "loader", "numpy", "linecache", "subprocess"):
        for file in FILES[:2]:
            namespace: dict[str, object] = {}
            exec(STEAL + READ[way].replace("PATH", repr(str(ROOT / file))), namespace)
            assert exercise("2.1").run([LocalHost().proxy(namespace["slot"], "slot")], 1).passed


def test_with_the_right_answer_beside_the_mischief_the_points_stand(judge: Judge, tmp_path: Path) -> None:
    """So a cheat's zero above is not merely the price of a crash."""
    mischief = "import builtins, random\nrandom.seed(0)\nbuiltins.isinstance\nprint('Everything passed')\n"
    assert earned(grade(judge, tmp_path, mischief + RIGHT["2.1"])) == (4, 5)


def test_a_later_answer_cannot_help_an_earlier_one(judge: Judge, tmp_path: Path) -> None:
    data = notebook({"2.4": RIGHT["2.1"] + "\n" + RIGHT["2.4"] + "\nimport builtins\nbuiltins.slot = slot\n"})
    result = judge.grade(read_submission(write(tmp_path / "a.ipynb", data), "x", BOOK))
    assert earned(result) == (0, 5)


def test_nothing_is_left_running(judge: Judge, tmp_path: Path) -> None:
    source = "import threading, time\ndef spin():\n    while True:\n        time.sleep(0.01)\n" + RIGHT["2.1"]
    source += "\nfor _ in range(3):\n    threading.Thread(target=spin).start()\n"
    before = threading.active_count()
    assert earned(grade(judge, tmp_path, source)) == (4, 5)
    assert threading.active_count() == before
    assert judge.zygote.pid
    children = Path(f"/proc/{judge.zygote.pid}/task/{judge.zygote.pid}/children")
    deadline = time.monotonic() + 2
    while children.exists() and children.read_text().split() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not children.exists() or children.read_text().split() == []


@pytest.mark.skipif(not LANDLOCK, reason="this kernel has no Landlock")
def test_the_kernel_s_layers_are_in_force(judge: Judge, tmp_path: Path) -> None:
    """The tests above would pass with the audit hook alone; the course promises the kernel's layers on Linux."""
    assert grade(judge, tmp_path, RIGHT["2.1"]).layers == ["limits", "landlock", "seccomp", "audit hook"]
