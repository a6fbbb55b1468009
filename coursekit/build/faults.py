"""Checks on the built notebooks: each fault names the file, the cell, the problem and the fix.

Nothing is executed: every rule looks at the notebook, its source, and the hashes of its dependencies. nbval, which
runs each cell and compares its output, finds other faults: an output that no longer matches the code passes here and
fails in nbval, while a local path or a picture without alt text fails here and passes in nbval. `form.py` adds the
parts that every lesson has, and `wording.py` the words to avoid.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote

from nbformat import NotebookNode

from coursekit import course_command
from coursekit.build.execute import WIDGET
from coursekit.build.form import form_faults, unshown_answers
from coursekit.build.freshness import (
    changes,
    finish,
    finish_stubs,
    reason_to_execute,
    same_code,
    with_outputs_of,
)
from coursekit.build.percent import BuildError, is_code, is_ignored, read_notebook, tags, to_text
from coursekit.build.pictures import pictures_to_write
from coursekit.build.targets import Target, extra_notebooks, targets
from coursekit.build.wording import hits

MAX_BYTES = 700_000
MAX_IGNORED = 1 / 3
NBVAL_TAGS = {"nbval-ignore-output", "nbval-check-output", "nbval-raises-exception", "nbval-skip"}
WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
REBUILD = f"run `{course_command()} build`"

_ROOTS = "home|Users|tmp|private|mnt|opt|srv|data|work|workspaces?|content|var/folders"
_HOMES = rf"(?<![\w.:/+=<-])(?:/(?:{_ROOTS})/[\w.-]+|/root\b|(?:/[\w.-]+)+/\.?venv\b)|[A-Za-z]:\\+Users\\"
_INSTALLED = r"[/\\](?:site|dist)-packages[/\\]"
_ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]{6,}")
_PROGRESS = re.compile(r"\d+%\|.*\||\r(?!\n)")
_WIDGET_TEXT = re.compile(r"^[A-Z]\w+\((?:children|value|description|options|layout)=")
_DATA_URI = re.compile(r"data:[\w/+.-]+;base64,[A-Za-z0-9+/=\s]+")


@dataclass(frozen=True)
class Fault:
    """One fault: the notebook, the cell (counted from 1), the problem, and the fix."""

    file: str
    what: str
    remedy: str
    cell: int | None = None
    source: str = ""

    def __str__(self) -> str:
        where = f", cell {self.cell}" if self.cell else ""
        source = f" ({self.source})" if self.source else ""
        return f"{self.file}{where}{source}: {self.what}. {self.remedy[:1].upper()}{self.remedy[1:]}."


def check(root: Path, names: list[str] | None = None) -> list[Fault]:
    """Return the faults of the named notebooks. Without names: of all notebooks, and of the wording (`wording.py`)."""
    faults = [fault for target in targets(root, names) for fault in check_target(target)]
    faults += [Fault(file, what, remedy) for file, what, remedy in form_faults(root, names)]
    if not names:
        for path in extra_notebooks(root):
            remedy = "write its source under curriculum/, or delete it"
            faults.append(Fault(path.relative_to(root).as_posix(), "this notebook has no source", remedy))
        for hit in hits(root):
            faults.append(Fault(f"{hit.file}:{hit.line}", f"avoid {hit.word!r}", f"use: {hit.replacement}"))
    for path in pictures_to_write(root):
        faults.append(
            Fault(path.relative_to(root).as_posix(), "differs from the picture in its notebook", REBUILD)
        )
    return faults


def check_target(target: Target) -> list[Fault]:
    """Return all faults of one notebook."""
    file = target.relative(target.path)
    if not target.path.is_file():
        return [Fault(file, f"the notebook of {target.relative(target.source)} is missing", REBUILD)]
    stored = read_notebook(target.path)
    if stored is None:
        return [Fault(file, "this is not a valid notebook", REBUILD)]
    try:
        fresh, lines = target.notebook_and_lines()
        if target.kind == "stubs":
            return list(_stubs(target, fresh))
        faults = list(_against_source(target, stored, fresh))
    except (SyntaxError, ValueError, BuildError) as error:
        return [Fault(target.relative(target.source), f"the source cannot be read: {error}", "fix it")]
    for number, cell in enumerate(stored.cells, 1):
        line = lines[number - 1] if number <= len(lines) else None
        source = f"{target.relative(target.source)}:{line}" if line else ""
        faults += [replace(fault, file=file, cell=number, source=source) for fault in _in_cell(cell, target)]
    faults += [replace(fault, file=file) for fault in _in_whole(stored, target)]
    if target.kind == "lesson" and same_code(stored, fresh):
        remedy = "fix the answer in the Predict box, or the cell that shows it"
        faults += [
            Fault(file, what, remedy, cell=at + 1) for at, what in unshown_answers(target.text(), stored)
        ]
    return faults


def _stubs(target: Target, fresh: NotebookNode) -> Iterator[Fault]:
    """Stubs are never executed; faults in their prose show up in the solutions notebook."""
    if to_text(finish_stubs(target, fresh)) != target.path.read_text(encoding="utf-8"):
        file = target.relative(target.path)
        remedy = f"if you only ran or edited the notebook, `git restore {file}`; otherwise {REBUILD}"
        yield Fault(file, f"it differs from {target.relative(target.source)}", remedy)


def _against_source(target: Target, stored: NotebookNode, fresh: NotebookNode) -> Iterator[Fault]:
    file = target.relative(target.path)
    ours = f"if you only ran or edited the notebook, `git restore {file}`; if the source changed, {REBUILD}"
    cells = [[(c.cell_type, c.source, tags(c)) for c in nb.cells] for nb in (stored, fresh)]
    if cells[0] != cells[1]:
        differing = (i for i, (a, b) in enumerate(zip(*cells, strict=False)) if a != b)
        at = next(differing, min(len(cells[0]), len(cells[1])))
        what = f"it differs from {target.relative(target.source)}, first in cell {at + 1}"
        yield Fault(file, f"{what} (it has {len(cells[0])} cells, the source {len(cells[1])})", ours)
    if same_code(stored, fresh) and (changed := changes(target, stored, fresh)):
        yield Fault(file, f"its outputs are older than what it depends on: {', '.join(changed)}", REBUILD)
    if cells[0] != cells[1] or reason_to_execute(target, stored, fresh):
        return
    if to_text(finish(target, with_outputs_of(stored, fresh))) != target.path.read_text(encoding="utf-8"):
        yield Fault(file, "its metadata, cell ids or layout differ from the build's", ours)


def _in_whole(notebook: NotebookNode, target: Target) -> Iterator[Fault]:
    size = target.path.stat().st_size
    if size > MAX_BYTES:
        what = f"it is {size / 1000:.0f} KB, over the limit of {MAX_BYTES // 1000} KB"
        yield Fault("", what, "draw fewer or smaller pictures, or print less")
    headings = [
        i for i, cell in enumerate(notebook.cells) if cell.cell_type == "markdown" for _ in _h1(cell.source)
    ]
    if not notebook.cells or notebook.cells[0].cell_type != "markdown" or headings[:1] != [0]:
        yield Fault("", "the first cell has no title", "start it with one `# Title` line")
    elif len(headings) > 1:
        yield Fault(
            "", f"there is a second title, in cell {headings[1] + 1}", "use `##` below the first cell"
        )
    code = [cell for cell in notebook.cells if is_code(cell)]
    ignored = [cell for cell in code if is_ignored(cell)]
    if len(ignored) > MAX_IGNORED * len(code):
        what = (
            f"{len(ignored)} of {len(code)} code cells are not compared by nbval, which is more than a third"
        )
        yield Fault("", what, "move comparable results (`paged == dense: True`) into cells without the tag")
    widgets = notebook.metadata.get("widgets")
    if widgets is not None and "state" not in dict(widgets).get(WIDGET_STATE, {}):
        yield Fault("", f"its widget state lacks the key {WIDGET_STATE} with `state`", REBUILD)
    yield from _machine("its metadata", str(dict(notebook.metadata)), target.root)


def _in_cell(cell: NotebookNode, target: Target) -> Iterator[Fault]:
    if cell.cell_type == "markdown":
        prose = _without_code(cell.source)
        yield from _pictures_in_text(prose)
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose):
            if not re.match(r"\w+:", link) and not (target.path.parent / unquote(link)).exists():
                yield Fault(
                    "", f"a link is broken ({link!r})", "fix it; links are relative to the notebook's folder"
                )
    yield from _machine("its source", cell.source, target.root, homes=False)
    if not is_code(cell):
        return
    if odd := [tag for tag in tags(cell) if "nbval" in tag.lower() and tag not in NBVAL_TAGS]:
        yield Fault(
            "", f"nbval does not know the tag {odd[0]!r}", f"use one of {', '.join(sorted(NBVAL_TAGS))}"
        )
    if re.search(r"^\s*#\s*(?:NBVAL_|PYTEST_VALIDATE_)", cell.source, re.M):
        yield Fault("", "a comment overrides nbval's tags", "use a tag in the cell's `# %%` line")
    if cell.execution_count is None:
        yield Fault("", "this cell was never run", REBUILD)
        return
    yield from _error_or_not(cell)
    if not cell.outputs and not is_ignored(cell) and _must_print(cell.source):
        yield Fault("", "this cell prints, but no output is stored, so its run is not checked", REBUILD)
    for output in cell.outputs:
        yield from _in_output(output, target.root)


def _error_or_not(cell: NotebookNode) -> Iterator[Fault]:
    raising = bool({"raises-exception", "nbval-raises-exception"} & set(tags(cell)))
    errors = [output for output in cell.outputs if output.output_type == "error"]
    if errors and not raising:
        error = f"{errors[0].ename}: {errors[0].evalue}"
        yield Fault(
            "", f"this cell failed: {error}", "fix it, or tag it `raises-exception` if the error is intended"
        )
    if raising and not errors:
        yield Fault(
            "",
            "this cell is tagged raises-exception but raised nothing",
            "remove the tag, or make the cell raise",
        )


def _in_output(output: NotebookNode, root: Path) -> Iterator[Fault]:
    if output.output_type == "stream" and output.name == "stderr":
        remedy = "fix the cause of the warning, or print to stdout"
        yield Fault("", f"stderr output: {output.text.strip().splitlines()[0][:80]!r}", remedy)
    data = dict(output.get("data", {}))
    texts = [output.get("text", ""), output.get("evalue", ""), *map(str, output.get("traceback", []))]
    texts += [_DATA_URI.sub("", str(value)) for kind, value in data.items() if not _binary(kind)]
    text = "\n".join(texts)
    yield from _machine("its output", text, root)
    if match := _ADDRESS.search(text):
        remedy = "print the object's contents, or end the line with `;`"
        yield Fault(
            "", f"the output has an object's address ({match[0]!r}), which differs on every run", remedy
        )
    if re.match(r"<Figure size", data.get("text/plain", "")):
        yield Fault(
            "", "the output contains '<Figure size …>'", "show it with `coursekit.views.style.display_figure`"
        )
    if match := _PROGRESS.search(text):
        yield Fault(
            "", f"the output has a progress bar ({match[0][:40]!r})", "use plain prints, or turn the bar off"
        )
    if WIDGET in data:
        remedy = f"show it with `coursekit.views.style.display_widget` and {REBUILD}"
        yield Fault("", "a stored widget cannot be shown: its model ended with the notebook kernel", remedy)
    if _WIDGET_TEXT.match(data.get("text/plain", "")):
        remedy = "show it with `coursekit.views.style.display_widget(widget, text)` next to a static picture"
        yield Fault("", "without a notebook kernel this widget shows only its constructor call", remedy)
    for kind in data:
        described = output.metadata.get(kind, {}).get("alt") or output.metadata.get("alt")
        if kind.startswith("image/") and not str(described or "").strip():
            yield Fault(
                "",
                "a picture has no alt text",
                "show it with `coursekit.views.style.display_figure(fig, alt=…)`",
            )
    yield from _pictures_in_text(
        "\n".join(str(data.get(kind, "")) for kind in ("text/html", "text/markdown"))
    )


def _machine(place: str, text: str, root: Path, homes: bool = True) -> Iterator[Fault]:
    """Find local paths. In sources only paths of this machine count, because prose may name others."""
    own = {str(root.resolve()), sys.prefix, str(Path.home())}
    parts = [
        re.escape(path) + r"(?![\w-])" for path in sorted(own) if len(path) > 4 and path != sys.base_prefix
    ]
    parts += [_HOMES, _INSTALLED] if homes else []
    if match := re.search("|".join(parts), text) if parts else None:
        remedy = "print only the file's name, or a path relative to the repository"
        yield Fault("", f"{place} has a local path ({match[0]!r})", remedy)


def _pictures_in_text(text: str) -> Iterator[Fault]:
    bare = [
        m[0] for m in re.finditer(r"<img\b[^>]*>", text) if not re.search(r"\balt=(['\"])\s*[^'\"\s]", m[0])
    ]
    bare += re.findall(r"!\[\s*\]\([^)]*\)", text)
    if bare:
        yield Fault("", f"a picture has no alt text ({bare[0][:60]})", "describe the picture in its alt text")


def _without_code(markdown: str) -> str:
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^(```|~~~).*?^\1", "", markdown, flags=re.M | re.S))


def _h1(markdown: str) -> list[str]:
    return re.findall(r"^# .*\S", _without_code(markdown), re.M)


def _binary(kind: str) -> bool:
    return kind.startswith("image/") and kind != "image/svg+xml"


def _must_print(source: str) -> bool:
    """Return True if this code always shows something: a top-level print or display, or a value on its last line.

    A call on the last line may return None, and a print inside a loop may never run; these may have no output.
    """
    try:
        body = ast.parse(re.sub(r"^\s*[%!].*$", "", source, flags=re.M)).body
    except SyntaxError:
        return True
    calls = [n.value for n in body if isinstance(n, ast.Expr) and isinstance(n.value, ast.Call)]
    if any(ast.unparse(call.func).split(".")[-1] in PRINTING for call in calls):
        return True
    last = body[-1] if body else None
    shows = isinstance(last, ast.Expr) and not isinstance(last.value, ast.Call | ast.Constant | ast.Await)
    return shows and not source.rstrip().endswith(";")


PRINTING = {"print", "display", "show_source", "display_figure", "display_widget"}
