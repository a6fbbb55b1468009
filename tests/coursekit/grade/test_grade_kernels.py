"""Chapter 5 through the real `grade` command: kernels run in the sandbox, and get the points that they are worth."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from coursekit import ROOT
from coursekit.build.exercises import expand
from coursekit.checks.bank import entries
from coursekit.grade import command
from tests.helpers.grading import WEAKLY, cell_of, code_cell, write
from tests.helpers.needs import needs_sandbox

pytestmark = needs_sandbox

TEXT = (ROOT / "curriculum/exercises/05_triton_kernel.py").read_text(encoding="utf-8")
FULL = {"5.1": 6, "5.2": 6, "5.3": 18, "5.4": 8, "5.5": 6}


def submission(answers: dict[str, str] | None = None, *, solved: bool = True) -> dict[str, Any]:
    data = json.loads(json.dumps(expand(TEXT, solved=solved)[0]))
    for id, source in (answers or {}).items():
        cell_of(data, id)["source"] = source
    return data


def wrong(id: str, key: str) -> str:
    return next(entry.code for entry in entries(ROOT) if entry.exercise == id and entry.wrong == key)


HARMFUL = """
import triton.runtime.interpreter as interpreter
interpreter._interpreter = None  # takes the interpreter away from the later cells


@triton.jit
def load_block(out_ptr, cache_ptr, table_ptr, kv_head, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
               BLOCK_SIZE: tl.constexpr):
    tl.store(out_ptr, 0.0)
"""


def test_a_class_is_graded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    extra = submission()
    extra["cells"].insert(3, code_cell("@triton.jit\ndef helper(x):\n    return x + 1\n"))
    mistaken = {
        "5.1": wrong("5.1", "wrong-stride"),
        "5.2": wrong("5.2", "nan-leaks"),
        "5.3": wrong("5.3", "32-bit-offset"),
    }
    class_of = {
        "ann": submission(),
        "bob": submission(mistaken),
        "cem": submission(solved=False),
        "dea": extra,
        "eve": submission({"5.1": HARMFUL}),
    }
    for student, data in class_of.items():
        write(tmp_path / "in" / student / "05_triton_kernel.ipynb", data)
    places = [str(tmp_path / "in" / student) for student in class_of]
    command_line = [
        *places,
        "--out",
        str(tmp_path / "report"),
        "--jobs",
        "2",
        "--seed",
        "3",
        "--seconds",
        "60",
        *WEAKLY,
    ]
    assert command.main(command_line) == 0  # cem's notebook is unchanged, which is a result
    with (tmp_path / "report/grades.csv").open(encoding="utf-8") as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}

    def points(student: str) -> dict[str, int]:
        return {id: int(rows[student][id] or 0) for id in FULL}

    assert points("ann") == points("dea") == FULL
    # A kernel with a stride of the wrong axis is right if there is only one KV head; each mistake costs its own part.
    assert points("bob") == FULL | {"5.1": 2, "5.2": 4, "5.3": 15}
    assert points("cem") == dict.fromkeys(FULL, 0)
    assert points("eve") == FULL | {"5.1": 0}
    told = (tmp_path / "report/grades.json").read_text(encoding="utf-8")
    for words in ("stride belongs to the wrong axis", "0 times NaN is NaN", "wrapped around"):
        assert words in told
