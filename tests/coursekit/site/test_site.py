"""The export of the bank, the icons, the folder, and the command."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from pathlib import Path

import pytest
from PIL import Image

from coursekit.quiz.bank import BankError, Number, load_bank
from coursekit.site import command, icons, questions, trainer

NUMBER = next(question for question in load_bank() if isinstance(question, Number))


def test_the_bank_is_whole_and_no_code_of_it_is_exported() -> None:
    data = questions.bank_as_data(load_bank())
    assert [one["id"] for one in data["questions"]] == list(load_bank().questions)
    for one in data["questions"]:
        assert not {"given", "imports", "check", "where", "draw"} & set(one)


def test_a_template_that_does_not_fit_is_named() -> None:
    many = dataclasses.replace(NUMBER, draw={"a": tuple(range(100)), "b": tuple(range(100))})
    with pytest.raises(BankError, match=f"{NUMBER.id}.*10000 combinations"):
        questions.question_as_data(many)
    large = dataclasses.replace(NUMBER, answer="2**60 + 1")
    with pytest.raises(BankError, match="not exact"):
        questions.question_as_data(large)


@pytest.mark.parametrize("name", icons.ICONS)
def test_icons_have_their_size(name: str) -> None:
    size, maskable = icons.ICONS[name]
    assert Image.open(io.BytesIO(icons.icon(size, maskable))).size == (size, size)


def test_the_worker_stores_every_file_and_its_version_follows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    files = trainer.trainer_files()
    worker = files["worker.js"].decode()
    assert set(json.loads(re.search(r"FILES = (\[.*\])", worker)[1])) == set(files) - {"worker.js"}  # type: ignore[index]
    assert trainer.trainer_files() == files
    monkeypatch.setitem(trainer.DATA, "questions.json", lambda: {"topics": {}, "questions": []})
    assert trainer.trainer_files()["worker.js"] != files["worker.js"]


def test_a_page_names_no_other_host_and_every_file_exists() -> None:
    files = trainer.trainer_files()
    for name in files:
        if name.endswith((".html", ".css", ".js", ".webmanifest")):
            text = files[name].decode()
            assert not re.search(r"https?://|//[a-z]+\.", text), name
            assert not re.search(r"innerHTML|\beval\(|document\.write", text), name
    named = re.findall(r'(?:href|src)="([\w.-]+)"', files["index.html"].decode())
    named += re.findall(
        r'from "\./([\w.]+)"', "".join(files[one].decode() for one in files if one.endswith(".js"))
    )
    assert len(named) > 10 and set(named) <= set(files)


def test_the_command_replaces_a_trainer_but_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    for _ in range(2):
        assert command.main(["--out", str(out)]) == 0
    assert "kB compressed" in capsys.readouterr().out
    assert [path.name for path in out.iterdir()] == ["trainer"]
    (out / "trainer" / "worker.js").unlink()
    assert command.main(["--out", str(out)]) == 2
    assert "something else than a trainer" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command.main(["--serve", "99999"])
