"""Working copies are made once, never overwritten, updated cell by cell; a stopped update is completed by the next."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coursekit.build.command import build
from coursekit.cli import lab
from coursekit.learner.places import VARIABLE, copy_or_original
from coursekit.update import command, copies
from coursekit.update.copies import Copy, Unreadable, all_copies, make_copies, outdated, update

LINKS = "[docs](../docs/x.md), [exercise](../exercises/01_one.ipynb)"
LESSON = f"# %% [markdown]\n# # One\n#\n# {LINKS}\n\n# %%\nprint(1)\n"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(VARIABLE, raising=False)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/x.md").touch()
    write(tmp_path, "lessons", LESSON)
    write(tmp_path, "exercises", "# %% [markdown]\n# # Exercises\n\n# %%\nx = 1\n")
    return tmp_path


def write(root: Path, kind: str, text: str) -> None:
    source = root / "curriculum" / kind / "01_one.py"
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text(text, encoding="utf-8")
    assert build(root, ["notebooks/01" if kind == "lessons" else "exercises/01"]) == []


def cells(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text(encoding="utf-8"))["cells"])


def edit(path: Path, number: int, source: str) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))
    data["cells"][number]["source"] = source
    path.write_text(json.dumps(data), encoding="utf-8")


def lesson_copy(root: Path) -> Copy:
    return next(copy for copy in all_copies(root) if copy.name == "notebooks/01_one.ipynb")


def test_copies_are_made_once_with_their_links_adjusted(root: Path) -> None:
    assert copy_or_original("notebooks", "01_one.ipynb", root) == root / "notebooks/01_one.ipynb"
    assert [copy.name for copy in make_copies(root)] == ["notebooks/01_one.ipynb", "exercises/01_one.ipynb"]
    path = copy_or_original("notebooks", "01_one.ipynb", root)
    assert path == root / "work/notebooks/01_one.ipynb"
    first, second = cells(path)
    assert first["source"].endswith("[docs](../../docs/x.md), [exercise](../exercises/01_one.ipynb)")
    assert second["outputs"][0]["text"] in ("1\n", ["1\n"])
    edit(path, 1, "print('mine')")
    assert make_copies(root) == [] and cells(path)[1]["source"] == "print('mine')"
    assert outdated(root) == []


def test_an_update_brings_the_new_version_and_keeps_a_backup(root: Path) -> None:
    make_copies(root)
    copy = lesson_copy(root)
    edit(copy.path, 1, "print('mine')")
    before = copy.path.read_bytes()
    write(root, "lessons", LESSON.replace("# # One", "# # One, again") + "\n# %%\nprint(2)\n")
    assert [old.name for old in outdated(root)] == ["notebooks/01_one.ipynb"]
    done = update(copy)
    assert [cell["source"].splitlines()[0] for cell in cells(copy.path)] == [
        "# One, again",
        "print('mine')",
        "print(2)",
    ]
    assert (done.updated, done.added, done.kept) == (1, 1, 1)
    assert [path.read_bytes() for path in copy.backups.glob("*/notebooks/01_one.ipynb")] == [before]
    assert outdated(root) == [] and not update(copy).changed


def test_a_copy_that_jupyterlab_saved_is_not_written_again(root: Path) -> None:
    make_copies(root)
    copy = lesson_copy(root)
    data = json.loads(copy.path.read_text(encoding="utf-8"))
    data["metadata"]["language_info"]["version"] = "3.13.1"
    for cell in data["cells"]:
        cell["source"] = cell["source"].splitlines(keepends=True)
    copy.path.write_text(json.dumps(data, indent=1), encoding="utf-8")
    before = copy.path.read_bytes()
    assert not update(copy).changed
    assert copy.path.read_bytes() == before and not copy.backups.exists()


def test_a_notebook_of_the_course_that_was_edited_in_place_moves_into_the_copy(root: Path) -> None:
    edit(root / "exercises/01_one.ipynb", 1, "x = 'my answer'")
    make_copies(root)
    path = root / "work/exercises/01_one.ipynb"
    assert cells(path)[1]["source"] == "x = 'my answer'"
    write(root, "exercises", "# %% [markdown]\n# # Exercises\n\n# %%\nx = 1\n\n# %%\ny = 2\n")
    for copy in all_copies(root):
        update(copy)
    assert [cell["source"] for cell in cells(path)[1:]] == ["x = 'my answer'", "y = 2"]


def test_a_copy_holds_no_answer_until_its_cell_runs(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = lesson_copy(root)
    data = json.loads(copy.target.path.read_text(encoding="utf-8"))
    data["cells"][1]["metadata"] = {
        "answers": "1-x",
        "jupyter": {"outputs_hidden": True, "source_hidden": True},
    }
    copy.target.path.write_text(json.dumps(data), encoding="utf-8")
    make_copies(root)
    cell = cells(copy.path)[1]
    assert (cell["outputs"], cell["execution_count"]) == ([], None)
    assert cell["metadata"] == {"answers": "1-x", "jupyter": {"source_hidden": True}}
    mine = json.loads(copy.path.read_text(encoding="utf-8"))
    mine["cells"][1] |= {
        "outputs": [{"output_type": "stream", "name": "stdout", "text": "1\n"}],
        "execution_count": 3,
    }
    copy.path.write_text(json.dumps(mine), encoding="utf-8")
    update(copy)
    assert cells(copy.path)[1]["execution_count"] == 3, "what the learner ran stays"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"cells": 3}', b'{"cells": [3]}', b"\xff\xfe"])
def test_a_damaged_copy_is_left_alone_and_the_others_are_updated(
    root: Path, content: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_copies(root)
    copy = lesson_copy(root)
    copy.path.write_bytes(content)
    with pytest.raises(Unreadable):
        update(copy)
    monkeypatch.setattr(command, "ROOT", root)
    assert command.main([]) == 1
    said = capsys.readouterr()
    assert copy.path.read_bytes() == content
    assert "notebooks/01_one.ipynb: not updated, because it" in said.err and "Rename it" in said.err
    assert "exercises/01_one.ipynb: up to date" in said.out


def test_a_damaged_base_loses_nothing(root: Path) -> None:
    make_copies(root)
    copy = lesson_copy(root)
    edit(copy.path, 1, "print('mine')")
    copy.base.write_text("{")
    write(root, "lessons", LESSON + "\n# %%\nprint(2)\n")
    update(copy)
    assert {"print('mine')", "print(2)"} <= {cell["source"] for cell in cells(copy.path)}


@pytest.mark.parametrize("stop_at", range(3))
def test_an_update_stopped_at_any_write_is_completed_by_the_next(
    root: Path, stop_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_copies(root)
    copy = lesson_copy(root)
    edit(copy.path, 1, "print('mine')")
    write(root, "lessons", LESSON.replace("print(1)", "print(10)"))
    real, calls = Path.replace, iter(range(100))

    def replace(self: Path, target: Path) -> Path:
        if next(calls) == stop_at:
            raise OSError("stopped")
        return real(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(OSError, match="stopped"):
        update(copy)
    monkeypatch.setattr(Path, "replace", real)
    assert "print('mine')" in [cell["source"] for cell in cells(copy.path)]
    update(copy)
    sources = [cell["source"] for cell in cells(copy.path)]
    assert sources[1] == "print('mine')" and sum("print(10)" in source for source in sources) == 1
    assert not list(root.rglob("*.part"))


def test_another_folder_can_be_named(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "elsewhere"))
    make_copies(root)
    assert not (root / "work").exists()
    path = copy_or_original("notebooks", "01_one.ipynb", root)
    assert path == tmp_path / "elsewhere/notebooks/01_one.ipynb"
    assert (path.parent / "../../docs/x.md").exists() and "](../../docs/x.md)" in cells(path)[0]["source"]


def test_lab_opens_the_copy_and_says_when_there_is_a_newer_version(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lab, "ROOT", root)
    lab.prepare_copies()
    assert "Made your copies of 2 notebooks in work" in capsys.readouterr().out
    lab.prepare_copies()
    assert capsys.readouterr().out == ""
    write(root, "lessons", LESSON.replace("# # One", "# # One, again"))
    lab.prepare_copies()
    assert "1 notebooks have a newer version" in capsys.readouterr().out


def test_a_folder_that_cannot_be_written_opens_the_courses_own(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "work").write_text("a file where the folder should be")
    monkeypatch.setattr(lab, "ROOT", root)
    lab.prepare_copies()
    assert "Your copies could not be made" in capsys.readouterr().err
    assert copies.work_folder(root) == root / "work"
