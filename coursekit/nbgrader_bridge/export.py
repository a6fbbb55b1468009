"""A course folder as nbgrader wants it: `source/ASSIGNMENT/NOTEBOOK`, `release/ASSIGNMENT/NOTEBOOK` and its config.

Each chapter with exercises is an assignment. The assignment and its notebook have the chapter's name, such as
`02_block_table`.
"""

from __future__ import annotations

from pathlib import Path

import nbformat

from coursekit.build.exercises import expand, sources

COURSE_ID = "paged-attention"
CONFIG = f'''"""Configuration of nbgrader for the exercises of this course."""

c = get_config()  # noqa: F821  nbgrader defines it

c.CourseDirectory.course_id = "{COURSE_ID}"
c.ClearSolutions.code_stub = {{"python": "# YOUR CODE HERE\\nraise NotImplementedError()"}}
c.ExecutePreprocessor.timeout = 120  # seconds for a cell; chapter 7 loads a model
'''


class CannotExport(Exception):
    """The folder cannot be used. The message is one sentence."""


def export(root: Path, folder: Path) -> list[str]:
    """Write the course folder and return the names of its assignments.

    `root` is the course's folder. A file that exists with other contents is not replaced: raises CannotExport, which
    names the file, before anything is written.
    """
    files = {folder / "nbgrader_config.py": CONFIG}
    names = []
    for path in sources(root).values():
        names.append(path.stem)
        text = path.read_text(encoding="utf-8")
        for version, solved in (("source", True), ("release", False)):
            notebook = nbformat.writes(expand(text, solved=solved)[0]) + "\n"
            files[folder / version / path.stem / f"{path.stem}.ipynb"] = notebook
    try:
        for path, text in files.items():
            if path.exists() and path.read_text(encoding="utf-8", errors="replace") != text:
                raise CannotExport(
                    f"{path} exists and differs; move it away, or export to an empty folder. Nothing was written."
                )
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CannotExport(f"cannot write to {folder}: {error.strerror or error}.") from None
    return names
