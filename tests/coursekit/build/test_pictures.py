"""The README's picture is the notebook's picture."""

from __future__ import annotations

import base64
from pathlib import Path

import nbformat

from coursekit.build.pictures import PICTURES, pictures_to_write

ROOT = Path(__file__).resolve().parents[3]


def notebook_with(picture: bytes) -> nbformat.NotebookNode:
    data = {"image/png": base64.b64encode(picture).decode(), "text/plain": "[Picture]"}
    output = nbformat.v4.new_output("display_data", data=data)
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("draw()", outputs=[output])])


def test_a_missing_and_an_old_picture_are_found(tmp_path: Path) -> None:
    name, (notebook, _) = next(iter(PICTURES.items()))
    (tmp_path / notebook).parent.mkdir(parents=True)
    nbformat.write(notebook_with(b"new"), tmp_path / notebook)
    assert pictures_to_write(tmp_path) == {tmp_path / name: b"new"}
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_bytes(b"old")
    assert pictures_to_write(tmp_path) == {tmp_path / name: b"new"}
    (tmp_path / name).write_bytes(b"new")
    assert pictures_to_write(tmp_path) == {}


def test_the_readme_shows_a_picture_that_is_there() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in PICTURES:
        assert f"]({name})" in readme
        assert (ROOT / name).read_bytes()[:4] == b"\x89PNG"
