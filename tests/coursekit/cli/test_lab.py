"""`lab` opens the right notebook, and says which chapters there are when asked for another."""

import re
import sys
from pathlib import Path

import pytest

from coursekit.cli import lab


@pytest.fixture
def notebooks(tmp_path: Path) -> Path:
    folder = tmp_path / "notebooks"
    folder.mkdir()
    for name in ("00_start_here.ipynb", "07_batched_decode.ipynb", "10_interview.ipynb", "x.ipynb"):
        (folder / name).touch()
    return folder


@pytest.mark.parametrize("chapter", ["7", "07", "07_batched_decode"])
def test_a_chapter_may_be_given_in_three_ways(notebooks: Path, chapter: str) -> None:
    assert lab.find_chapter(chapter, notebooks) == notebooks / "07_batched_decode.ipynb"


@pytest.mark.parametrize("chapter", ["10", "10_interview"])
def test_a_chapter_of_two_digits_after_a_gap(notebooks: Path, chapter: str) -> None:
    assert lab.find_chapter(chapter, notebooks) == notebooks / "10_interview.ipynb"
    assert list(lab.chapters(notebooks)) == ["00", "07", "10"]


@pytest.mark.parametrize("chapter", ["1", "9", "70", "100", "x", "", "-1"])
def test_a_wrong_chapter_lists_those_there_are(notebooks: Path, chapter: str) -> None:
    listing = "  00  start here\n  07  batched decode\n  10  interview"
    sentence = f"There is no chapter {chapter!r}. The chapters are:\n{listing}"
    with pytest.raises(ValueError, match=re.escape(sentence)):
        lab.find_chapter(chapter, notebooks)


def test_command_line(notebooks: Path) -> None:
    notebook = notebooks / "00_start_here.ipynb"
    line = lab.command(notebook, root=notebooks.parent, port=9001, browser=False)
    assert line[:3] == [sys.executable, "-m", "jupyterlab"]
    assert "--LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb" in line
    assert {"--ServerApp.port=9001", "--no-browser"} <= set(line)
    usual = lab.command(notebook, root=notebooks.parent, port=None, browser=True)
    assert "--no-browser" not in usual
    assert not any("port" in part for part in usual)


@pytest.mark.parametrize("port", ["0", "70000", "abc", "-1"])
def test_a_port_that_is_none(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        lab.main(["--port", port])
    assert "port" in capsys.readouterr().err
