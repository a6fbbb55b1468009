"""Every claim of the source articles leads to a cell that was run, is compared by nbval, and says what it should."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from nbformat import NotebookNode

from coursekit import ROOT
from coursekit.build.percent import is_ignored, read_notebook

IDS = [
    f"{letter}{i}"
    for letter, n in (("A", 14), ("B", 14), ("C", 10), ("D", 4), ("E", 3))
    for i in range(1, n + 1)
]
CHAPTERS = {
    "00_start_here", "01_fragmentation", "02_block_table", "03_numpy_gather", "04_sharing", "05_triton_kernel",
    "06_scheduling", "07_batched_decode", "10_interview",
}  # fmt: skip
CLAIMS = tomllib.loads((ROOT / "curriculum/claims.toml").read_text(encoding="utf-8"))


def faults(name: str, entry: dict[str, Any], folder: Path) -> list[str]:
    """What is wrong with one entry, given the folder with the notebooks."""
    path = folder / f"{entry.get('lesson')}.ipynb"
    if entry.get("lesson") not in CHAPTERS or not str(entry.get("claim", "")).strip():
        return [f"{name}: it needs a claim, and a lesson out of {', '.join(sorted(CHAPTERS))}"]
    if "cell" not in entry:
        if path.exists():
            return [f"{name}: {path.name} is written, so say in which cell it deals with this claim"]
        left = sorted(set(entry) - {"claim", "lesson", "verdict"}) + (
            ["verdict"] if entry.get("verdict") else []
        )
        return [f"{name}: without a cell there is no {left[0]}"] if left else []
    if not entry.get("verdict") or not entry.get("output") or not all(entry["output"]):
        return [f"{name}: a cell needs a verdict, and what its output must say"]
    notebook = read_notebook(path)
    if notebook is None:
        return [f"{name}: there is no notebook {path.name}"]
    return cell_faults(name, entry, notebook)


def cell_faults(name: str, entry: dict[str, Any], notebook: NotebookNode) -> list[str]:
    """What is wrong with the cell that an entry names."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code" and entry["cell"] in cell.source]
    if len(cells) != 1:
        return [f"{name}: {len(cells)} code cells contain {entry['cell']!r}, wanted is one"]
    [cell] = cells
    if cell.execution_count is None or not cell.outputs:
        return [f"{name}: its cell was never run, or shows nothing"]
    if is_ignored(cell):
        return [f"{name}: its cell's output is not compared (tags {cell.metadata.tags})"]
    said = "".join(
        output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in cell.outputs
    )
    return [f"{name}: the output lacks {text!r}" for text in entry["output"] if text not in said]


def test_no_claim_is_lost() -> None:
    assert list(CLAIMS) == IDS


@pytest.mark.parametrize("name", IDS)
def test_a_claim_is_found_where_the_table_says(name: str) -> None:
    assert faults(name, CLAIMS[name], ROOT / "notebooks") == []


def test_written_chapters_are_not_empty_of_claims() -> None:
    covered = {entry["lesson"] for entry in CLAIMS.values() if "cell" in entry}
    assert covered >= {"00_start_here", "01_fragmentation", "02_block_table", "07_batched_decode"}
    assert sum("cell" in entry for entry in CLAIMS.values()) >= 28


GOOD = CLAIMS["A1"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cell": "no such text"}, "0 code cells contain 'no such text'"),
        ({"cell": "print("}, "code cells contain 'print(', wanted is one"),
        ({"output": ["327,681 bytes"]}, "the output lacks '327,681 bytes'"),
        ({"output": []}, "needs a verdict, and what its output must say"),
        ({"output": [""]}, "needs a verdict, and what its output must say"),
        ({"verdict": ""}, "needs a verdict"),
        ({"lesson": "09_more"}, "a lesson out of"),
        ({"lesson": "10_interview"}, "there is no notebook 10_interview.ipynb"),
        ({"claim": " "}, "it needs a claim"),
    ],
)
def test_a_wrong_entry_is_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    for name in ("01_fragmentation", "00_start_here"):
        (tmp_path / f"{name}.ipynb").symlink_to(ROOT / f"notebooks/{name}.ipynb")
    [fault] = faults("A1", GOOD | change, tmp_path)
    assert message in fault


def test_a_cell_that_was_not_run_or_is_not_compared_is_named() -> None:
    for spoil, message in (
        (lambda cell: cell.update(execution_count=None), "never run"),
        (lambda cell: cell.update(outputs=[]), "shows nothing"),
        (lambda cell: cell.metadata.update(tags=["nbval-ignore-output"]), "not compared"),
    ):
        notebook = read_notebook(ROOT / "notebooks/01_fragmentation.ipynb")
        assert notebook is not None and cell_faults("A1", GOOD, notebook) == []
        [cell] = [c for c in notebook.cells if c.cell_type == "code" and GOOD["cell"] in c.source]
        spoil(cell)
        [fault] = cell_faults("A1", GOOD, notebook)
        assert message in fault


def test_a_claim_of_a_chapter_that_was_written_since_needs_its_cell(tmp_path: Path) -> None:
    planned = {"claim": "c", "verdict": "", "lesson": "04_sharing"}
    assert faults("B8", planned, tmp_path) == []
    (tmp_path / "04_sharing.ipynb").write_text("{}")
    assert "say in which cell" in faults("B8", planned, tmp_path)[0]
    assert "there is no output" in faults("B8", planned | {"output": ["x"]}, ROOT / "none")[0]
