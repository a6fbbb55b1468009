"""The build in small repositories: what is executed, what stays the same to the byte, each fault by name."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest

from coursekit.build import faults
from coursekit.build.command import ROOT, build, main
from coursekit.build.dependencies import dependencies
from coursekit.build.faults import check
from coursekit.build.freshness import finish
from coursekit.build.percent import is_code, notebook_from_text, to_text
from coursekit.build.targets import targets

TITLE = "# %% [markdown]\n# # A title\n"
ONE = TITLE + "\n# %%\nimport tiny.one\nprint(tiny.one.VALUE)\n\n# %%\nprint('again')\n\n# %%\nx = 1\n"
TWO = TITLE + "\n# %%\nfrom tiny import two\nprint(two.VALUE)\n\n# %%\n2 * 3\n"


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A repository with a package of two modules and no lesson yet."""
    write(tmp_path / "tiny/__init__.py", "")
    write(tmp_path / "tiny/one.py", "VALUE = 1\n")
    write(tmp_path / "tiny/two.py", "VALUE = 2\n")
    (tmp_path / "curriculum/lessons").mkdir(parents=True)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def lesson(repo: Path, text: str, name: str = "01_one") -> Path:
    """Writes a lesson's source; returns where its notebook belongs."""
    write(repo / f"curriculum/lessons/{name}.py", text)
    return repo / f"notebooks/{name}.ipynb"


def stored(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def outputs(path: Path) -> list[str]:
    """The text printed by each code cell."""
    cells = [cell for cell in stored(path)["cells"] if cell["cell_type"] == "code"]
    return ["".join(line for o in cell["outputs"] for line in o.get("text", [])) for cell in cells]


# --- building ---


def test_what_a_change_reaches_is_executed_and_nothing_else(
    repo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = lesson(repo, ONE), lesson(repo, TWO, "02_two")
    assert build(repo) == []
    assert outputs(one) == ["1\n", "again\n", ""]
    assert [cell["execution_count"] for cell in stored(one)["cells"][1:]] == [1, 2, 3]
    assert check(repo) == []
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (one, two)}
    capsys.readouterr()

    assert build(repo) == []
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (one, two)} == before
    assert capsys.readouterr().out.splitlines() == [
        "notebooks/01_one: unchanged",
        "notebooks/02_two: unchanged",
    ]

    write(repo / "tiny/two.py", "VALUE = 22\n")
    assert [str(fault) for fault in check(repo)] == [
        "notebooks/02_two.ipynb: its outputs are older than what it depends on: tiny/two.py. "
        "Run `python3 course.py build`."
    ]
    assert build(repo) == []
    assert one.read_bytes() == before[one][0]
    assert outputs(two) == ["22\n", ""]
    assert "notebooks/01_one: unchanged" in capsys.readouterr().out

    lesson(repo, ONE.replace("A title", "A better title"))
    assert build(repo, ["01"]) == []
    assert capsys.readouterr().out == "notebooks/01_one: prose updated, nothing to execute\n"
    assert "A better title" in one.read_text()
    assert check(repo) == []

    # Executed from nothing, and by force, the notebooks come out the same.
    again = one.read_bytes(), two.read_bytes()
    one.unlink()
    assert build(repo, force=True) == []
    assert (one.read_bytes(), two.read_bytes()) == again


def test_outputs_that_are_not_compared_are_kept_until_renewed(repo: Path) -> None:
    noisy = (
        TITLE
        + "\n# %%\nimport tiny.one, time\nprint(tiny.one.VALUE)\n"
        + '\n# %% tags=["nbval-ignore-output"]\nprint(time.perf_counter_ns())\n'
        + '\n# %% tags=["nbval-ignore-output"]\ntime.perf_counter_ns()\n'
        + '\n# %%\nprint("end")\n\n# %%\nprint("end")\n'
    )
    path = lesson(repo, noisy)
    assert build(repo) == []
    first = stored(path)["cells"]
    write(repo / "tiny/one.py", "VALUE = 11\n")
    lesson(repo, noisy.replace("# %% tags", "# %%\nprint('new')\n\n# %% tags", 1))
    assert build(repo) == []
    second = stored(path)["cells"]
    assert outputs(path)[:2] == ["11\n", "new\n"]
    assert [cell["outputs"] for cell in second[3:4]] == [cell["outputs"] for cell in first[2:3]]
    assert first[3]["outputs"][0]["data"] == second[4]["outputs"][0]["data"]
    assert second[4]["outputs"][0]["execution_count"] == second[4]["execution_count"] == 4
    assert check(repo) == []
    assert build(repo, refresh=True) == []
    assert [cell["outputs"] for cell in stored(path)["cells"][3:4]] != [
        cell["outputs"] for cell in first[2:3]
    ]


def test_a_failing_cell_leaves_the_old_notebook_and_the_others_are_built(
    repo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = ONE.replace("print('again')", "y = 3\n1 / 0")
    one, two = lesson(repo, ONE), lesson(repo, TWO, "02_two")
    assert build(repo, ["01"]) == []
    before = one.read_bytes()
    lesson(repo, broken)
    assert main(["--root", str(repo)]) == 1
    said = capsys.readouterr().out
    assert "curriculum/lessons/01_one.py:10: cell 3: ZeroDivisionError: division by zero\n    1 / 0\n" in said
    assert one.read_bytes() == before
    assert outputs(two) == ["2\n", ""]
    assert sorted(path.name for path in one.parent.iterdir()) == ["01_one.ipynb", "02_two.ipynb"]


def test_a_cell_that_takes_too_long_or_kills_its_kernel_fails(repo: Path) -> None:
    slow = lesson(repo, TITLE + "\n# %%\nimport time\ntime.sleep(60)\n")
    dead = lesson(repo, TITLE + "\n# %%\nimport os\nos._exit(3)\n", "02_dead")
    failures = build(repo, timeout=1)
    assert "01_one.py:4: cell 2: the cell ran longer than 1 s" in failures[0]
    assert "02_dead.py:4: cell 2: the notebook kernel died" in failures[1]
    assert not slow.exists() and not dead.exists()


def test_interrupted_it_writes_nothing(repo: Path) -> None:
    path = lesson(
        repo, TITLE + "\n# %%\nimport pathlib, time\npathlib.Path('started').touch()\ntime.sleep(60)\n"
    )
    command = [sys.executable, "-m", "coursekit.build.command", "--root", str(repo)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while not (repo / "notebooks/started").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert (process.returncode, said) == (
        130,
        "\nInterrupted; the notebook that was running is unchanged.\n",
    )
    assert not path.exists()


def test_ids_survive_an_insertion_and_tell_equal_cells_apart() -> None:
    before = notebook_from_text(ONE + "\n# %%\nx = 1\n")
    after = notebook_from_text(
        ONE.replace("\n# %%\nprint('again')", "\n# %%\nz = 0\n\n# %%\nprint('again')") + "\n# %%\nx = 1\n"
    )
    ids = [cell.id for cell in before.cells]
    assert len(set(ids)) == len(ids)
    assert [cell.id for cell in after.cells if cell.source != "z = 0"] == ids


def test_names_select_notebooks_and_a_wrong_one_is_told(
    repo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lesson(repo, ONE), lesson(repo, TWO, "02_two")
    for name in ("2", "02", "02_two", "notebooks/02_two.ipynb", "curriculum/lessons/02_two.py"):
        assert [target.name for target in targets(repo, [name])] == ["02_two"]
    lesson(repo, TWO, "10_ten")
    assert [target.name for target in targets(repo)] == ["01_one", "02_two", "10_ten"]
    assert [[t.name for t in targets(repo, [name])] for name in ("1", "10")] == [["01_one"], ["10_ten"]]
    assert main(["--root", str(repo), "--check", "03"]) == 2
    assert "there is no source named '03'; the sources are: 01_one, 02_two, 10_ten" in capsys.readouterr().err


# --- what a notebook depends on ---


LATE = """
from importlib import import_module
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from .unused import Unused
_HOME = {"One": "one", "Far": "far.deep.module"}
def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(name)
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
"""
ONE_AND_FAR = {"tiny/one.py", "tiny/far", "tiny/far/deep"}


@pytest.fixture
def folders(repo: Path) -> Path:
    """The repository with sub-packages: `near` imports `tiny.one`, `far.deep` loads a module by a computed name."""
    write(repo / "tiny/__init__.py", LATE)
    for name in ("unused", "near", "far", "far/deep"):
        write(repo / f"tiny/{name}/__init__.py", "")
    write(repo / "tiny/near/module.py", "from ..one import VALUE\n")
    write(repo / "tiny/near/beside.py", "import tiny.unused\n")
    write(repo / "tiny/far/deep/module.py", "N = {0: 'other'}\nimport_module(f'.{N[0]}', __package__)\n")
    write(repo / "tiny/far/deep/other.py", "def f():\n    from ... import One\n")
    return repo


@pytest.mark.parametrize(
    ("code", "reached"),
    [
        ("import tiny", set()),
        ("import tiny.one", {"tiny/one.py"}),
        ("def f():\n    from tiny.two import VALUE", {"tiny/two.py"}),
        ("import tiny.near", {"tiny/near"}),
        ("from tiny.near import module", {"tiny/near", "tiny/one.py"}),
        ("from tiny import One", {"tiny/one.py"}),
        ("from tiny import Unknown", set()),
        ("from tiny import Far", ONE_AND_FAR),
        ("import tiny as t\nt.Far", ONE_AND_FAR),
        ("import tiny.two\ntiny.Far", ONE_AND_FAR | {"tiny/two.py"}),
        ("import importlib\nimportlib.import_module('tiny.two')", {"tiny/two.py"}),
    ],
)
def test_dependencies_are_the_folders_that_imports_reach(folders: Path, code: str, reached: set[str]) -> None:
    assert set(dependencies(folders, code)) - {"tiny/__init__.py"} == reached


def test_a_change_in_a_folder_changes_its_digest_alone(folders: Path) -> None:
    code = "from tiny.near import module\nimport tiny.two"
    before = dependencies(folders, code)

    def changed() -> set[str]:
        now = dependencies(folders, code)
        return {name for name in before | now if before.get(name) != now.get(name)}

    write(folders / "tiny/unused/__init__.py", "X = 1\n")
    write(folders / "tiny/near/deeper/__init__.py", "X = 1\n")
    (folders / "tiny/near/module.py").write_bytes(b"from ..one import VALUE\r\n")
    assert changed() == set()
    write(folders / "tiny/near/beside.py", "")
    assert changed() == {"tiny/near"}
    write(folders / "tiny/one.py", "VALUE = 11\n")
    assert changed() == {"tiny/near", "tiny/one.py"}
    write(folders / "tiny/near/beside.py", "import tiny.unused\n")
    (folders / "tiny/near/beside.py").rename(folders / "tiny/near/renamed.py")
    assert "tiny/near" in changed()


def test_a_change_in_a_folder_executes_what_reaches_it_and_nothing_else(folders: Path) -> None:
    lesson(folders, TITLE + "\n# %%\nfrom tiny.near.module import VALUE\nprint(VALUE)\n")
    lesson(folders, TWO, "02_two")
    assert build(folders) == []
    write(folders / "tiny/near/module.py", "VALUE = 5\n")
    assert [str(fault) for fault in check(folders)] == [
        "notebooks/01_one.ipynb: its outputs are older than what it depends on: tiny/near, tiny/one.py. "
        "Run `python3 course.py build`."
    ]
    assert build(folders) == []
    assert outputs(folders / "notebooks/01_one.ipynb") == ["5\n"]
    write(folders / "tiny/unused/__init__.py", "X = 1\n")
    assert check(folders) == []


def test_the_course_s_own_names_and_computed_imports_are_followed() -> None:
    found = set(dependencies(ROOT, "from paged_ref import paged_attention"))
    assert {"paged_ref/__init__.py", "paged_ref/attention", "numba", "torch", "triton"} <= found
    assert not {"paged_ref/generation", "paged_ref/scheduling", "transformers"} & found
    assert {"paged_ref/generation", "transformers"} <= set(
        dependencies(ROOT, "import paged_ref\npaged_ref.LLM")
    )
    for target in targets(ROOT):
        if target.kind == "solutions":
            found = set(dependencies(ROOT, target.code()))
            assert f"coursekit/checks/chapter_{target.name[:2]}" in found
            assert not {"coursekit/build", "coursekit/cli", "coursekit/grade", "coursekit/quiz"} & found


def test_dependencies_hold_pinned_libraries_and_files_that_are_read(repo: Path) -> None:
    write(repo / "constraints.txt", "numpy==2.4.0\nrich==15.0 ; sys_platform != 'x'\nother==1\n")
    write(repo / "tiny/one.py", "def f():\n    import numpy.linalg\n")
    write(repo / "bench/a.json", "{}")
    write(repo / "bench/tool.py", "import tiny.two\n")
    found = dependencies(repo, "from tiny.one import f\nimport rich, os", ["bench/*.json", "bench/t*.py"])
    assert list(found) == [
        "bench/a.json", "bench/tool.py", "numpy", "rich", "tiny/__init__.py", "tiny/one.py", "tiny/two.py",
    ]  # fmt: skip
    assert (found["numpy"], found["rich"]) == ("2.4.0", "15.0")


def test_a_file_named_in_the_header_is_depended_on(repo: Path) -> None:
    header = "# ---\n# course:\n#   depends: [data.csv]\n# ---\n\n"
    write(repo / "data.csv", "1")
    path = lesson(repo, header + TITLE + "\n# %%\nprint(open('../data.csv').read())\n")
    assert build(repo) == []
    assert [cell["cell_type"] for cell in stored(path)["cells"]] == ["markdown", "code"]
    assert "data.csv" in stored(path)["metadata"]["course"]["depends_on"]
    write(repo / "data.csv", "2")
    assert "data.csv" in str(check(repo)[0])
    lesson(repo, header.replace("depends", "dependz") + TITLE)
    assert "the header between the `# ---` lines may contain only `course:`" in str(check(repo)[0])
    lesson(repo, header.replace("[data", "[[data") + TITLE)
    (failure,) = build(repo)
    assert failure.startswith(
        "curriculum/lessons/01_one.py: the header between the `# ---` lines is not valid YAML"
    )


# --- faults ---


def stream(text: str, name: str = "stdout") -> dict[str, Any]:
    return {"output_type": "stream", "name": name, "text": text}


def shown(metadata: dict[str, Any] | None = None, **data: Any) -> dict[str, Any]:
    kinds = {"png": "image/png", "svg": "image/svg+xml", "html": "text/html", "text": "text/plain"}
    data = {kinds.get(kind, kind): value for kind, value in data.items()}
    return {"output_type": "display_data", "data": data, "metadata": metadata or {}}


def forge(
    repo: Path, *outputs: dict[str, Any], code: str = "tell()", tags: str = "", edit: Edit | None = None
) -> list[str]:
    """The faults of a notebook whose second cell has these outputs, stored as the build does, then edited."""
    path = lesson(repo, TITLE + f"\n# %% {tags}\n{code}\n\n# %%\nx = 1\n\n# %%\ny = 1\n")
    (target,) = targets(repo)
    notebook = notebook_from_text(target.text())
    for number, cell in enumerate(filter(is_code, notebook.cells), 1):
        cell.execution_count = number
    notebook.cells[1].outputs = [nbformat.from_dict(output) for output in outputs]
    notebook = finish(target, notebook)
    if edit:
        edit(notebook)
    write(path, to_text(notebook))
    return [str(fault) for fault in check(repo)]


Edit = Callable[[Any], None]
IGNORE = 'tags=["nbval-ignore-output"]'
RAISES = 'tags=["raises-exception"]'
ERROR = {"output_type": "error", "ename": "KeyError", "evalue": "'x'", "traceback": ["KeyError: 'x'"]}
VIEW = "application/vnd.jupyter.widget-view+json"
PNG = "iVBORw0KGgo="


def test_a_good_notebook_has_no_fault(repo: Path) -> None:
    good = [
        stream("12 blocks, see https://example.org/home/x and bench/results.json, at 0x10, 95% | full\n"),
        shown({"image/png": {"alt": "Two bars"}}, png=PNG, text="[Picture: Two bars]"),
        shown(html=f'<p>5 < 6</p><img alt="Two bars" src="data:image/png;base64,{PNG}">', text="bars"),
    ]
    assert forge(repo, *good) == []
    assert forge(repo, ERROR, code="raise KeyError('x')", tags=RAISES) == []
    assert forge(repo, stream("1.23 s\n"), code="print(t)", tags=IGNORE) == []


@pytest.mark.parametrize(
    ("output", "named"),
    [
        (stream("Warning: x\n", "stderr"), "stderr output: 'Warning: x'"),
        (ERROR, "this cell failed: KeyError: 'x'"),
        (stream("<tiny.Pool object at 0x7f3a2b1c9d00>\n"), "an object's address ('at 0x7f3a2b1c9d00')"),
        (
            shown({"image/png": {"alt": "a"}}, png=PNG, text="<Figure size 640x480 with 1 Axes>"),
            "<Figure size",
        ),
        (stream(" 40%|####      | 4/10\r"), "a progress bar"),
        (stream("read 1\rread 2\n"), "a progress bar"),
        (shown(png=PNG, text="picture"), "a picture has no alt text"),
        (shown(svg="<svg></svg>", text="picture"), "a picture has no alt text"),
        (shown({"image/png": {"alt": " "}}, png=PNG, text="picture"), "a picture has no alt text"),
        (shown(html=f'<img src="data:image/png;base64,{PNG}">', text="x"), "a picture has no alt text"),
        (shown(html='<img src="a.png" alt="">', text="x"), "a picture has no alt text"),
        (shown(**{VIEW: {"model_id": "ab"}}, text="[slider]"), "a stored widget cannot be shown"),
        (shown(text="IntSlider(value=3)"), "this widget shows only its constructor call"),
        (shown(text="VBox(children=(IntSlider(value=3),))"), "this widget shows only its constructor call"),
        (stream("cache in /home/ada/.cache/x\n"), "a local path ('/home/ada')"),
        (stream("'/Users/ada/x'\n"), "a local path ('/Users/ada')"),
        (stream("C:\\Users\\ada\n"), "a local path ('C:\\\\Users\\\\')"),
        (stream("at /" + "root/x\n"), "a local path ('/" + "root"),
        (stream("Python 3.11 in /ci/run/.venv\n"), "a local path ('/ci/run/.venv')"),
        (stream("(/tmp/abc)\n"), "a local path ('/tmp/abc')"),
        (stream("x/lib/python3.11/site-packages/numpy/a.py\n"), "a local path"),
        (stream(f"from {ROOT.anchor}\n" + sys.prefix + "/bin\n"), f"a local path ({sys.prefix!r}"),
        (shown(html="<p>/home/ada/x</p>", text="x"), "a local path ('/home/ada')"),
    ],
)
def test_faults_of_an_output(repo: Path, output: dict[str, Any], named: str) -> None:
    (fault,) = forge(repo, output)
    assert fault.startswith("notebooks/01_one.ipynb, cell 2 (curriculum/lessons/01_one.py:4): "), fault
    assert named in fault


def test_the_repository_s_own_path_is_found_wherever_it_is(repo: Path) -> None:
    assert "a local path" in forge(repo, stream(f"x={repo.resolve()}/notebooks\n"))[0]


def set_markdown(text: str, cell: int = 0) -> Edit:
    def edit(notebook: Any) -> None:
        notebook.cells[cell].source = text

    return edit


def in_metadata(**values: Any) -> Edit:
    return lambda notebook: notebook.metadata.update(values)


def drop_cell(notebook: Any) -> None:
    del notebook.cells[-1]


def swap_cells(notebook: Any) -> None:
    notebook.cells[2], notebook.cells[3] = notebook.cells[3], notebook.cells[2]


def retag(notebook: Any) -> None:
    notebook.cells[1].metadata["tags"] = ["nbval-ignore-output"]


def unrun(notebook: Any) -> None:
    notebook.cells[2].execution_count = None


def rename(notebook: Any) -> None:
    notebook.cells[1].id = "other"


def time_stamp(notebook: Any) -> None:
    notebook.cells[1].metadata["execution"] = {"iopub.status.busy": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (
            set_markdown("# A title, changed by hand"),
            "differs from curriculum/lessons/01_one.py, first in cell 1",
        ),
        (set_markdown("print(7)", 1), "differs from curriculum/lessons/01_one.py, first in cell 2"),
        (drop_cell, "first in cell 4 (it has 3 cells, the source 4)"),
        (swap_cells, "first in cell 3"),
        (retag, "first in cell 2"),
        (unrun, "cell 3 (curriculum/lessons/01_one.py:7): this cell was never run"),
        (rename, "its metadata, cell ids or layout differ from the build's"),
        (time_stamp, "its metadata, cell ids or layout differ from the build's"),
        (
            in_metadata(language_info={"name": "python", "version": "3.11.2"}),
            "its metadata, cell ids or layout",
        ),
        (
            in_metadata(widgets={"state": {}}),
            "its widget state lacks the key application/vnd.jupyter.widget-state+json",
        ),
        (in_metadata(author={"file": "/home/ada/x"}), "its metadata has a local path"),
    ],
)
def test_faults_of_a_notebook_edited_by_hand(repo: Path, edit: Edit, named: str) -> None:
    faults_found = forge(repo, code="tell()", edit=edit)
    assert any(named in fault for fault in faults_found), faults_found


def test_a_missing_an_extra_and_a_broken_notebook_are_named(repo: Path) -> None:
    path = lesson(repo, ONE)
    write(repo / "notebooks/09_own.ipynb", "{}")
    assert [str(fault) for fault in check(repo)] == [
        "notebooks/01_one.ipynb: the notebook of curriculum/lessons/01_one.py is missing. "
        "Run `python3 course.py build`.",
        "notebooks/09_own.ipynb: this notebook has no source. "
        "Write its source under curriculum/, or delete it.",
    ]
    for text in ("", "{}", "[]", '{"nbformat": 4, "cells": 3}', "<<<<<<< HEAD"):
        write(path, text)
        assert "this is not a valid notebook" in str(check(repo, ["01"])[0]), text


@pytest.mark.parametrize(
    ("code", "tags", "named"),
    [
        ("print(1)", "", "this cell prints, but no output is stored"),
        ("x = 2\nx", "", "this cell prints, but no output is stored"),
        ("show.display_figure(f)", "", "this cell prints, but no output is stored"),
        ("tell()", RAISES, "this cell is tagged raises-exception but raised nothing"),
        ("tell()", 'tags=["nbval_ignore_output"]', "nbval does not know the tag 'nbval_ignore_output'"),
        ("# NBVAL_IGNORE_OUTPUT\ntell()", "", "a comment overrides nbval's tags"),
        (f"open('{sys.prefix}/x')", "", "its source has a local path"),
    ],
)
def test_faults_of_a_cell(repo: Path, code: str, tags: str, named: str) -> None:
    (fault,) = forge(repo, code=code, tags=tags)
    assert "cell 2" in fault and named in fault


@pytest.mark.parametrize(
    "code", ["x;", "if rare:\n    print(1)", "f(print)", "'a note'", "def f():\n    print(1)"]
)
def test_code_that_may_stay_silent_may_have_no_output(repo: Path, code: str) -> None:
    assert forge(repo, code=code) == []


def test_faults_of_the_whole(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def faults_of(text: str) -> list[str]:
        path = lesson(repo, text)
        (target,) = targets(repo)
        notebook = notebook_from_text(text)
        for number, cell in enumerate(filter(is_code, notebook.cells), 1):
            cell.execution_count = number
        write(path, to_text(finish(target, notebook)))
        return [str(fault) for fault in check(repo)]

    assert (
        "the first cell has no title" in faults_of("# %% [markdown]\n# text\n# ## Part\n\n# %%\nx = 1\n")[0]
    )
    assert "the first cell has no title" in faults_of("# %%\nx = 1\n\n" + TITLE)[0]
    assert "there is a second title, in cell 2" in faults_of(TITLE + "\n# %% [markdown]\n# # Two\n")[0]
    assert faults_of(TITLE + "\n# %% [markdown]\n# ```python\n# # a comment\n# ```\n") == []
    assert "a picture has no alt text" in faults_of(TITLE + "\n# %% [markdown]\n# ![](../tiny/one.py)\n")[0]
    links = (
        TITLE + "\n# %% [markdown]\n# [a](../tiny/one.py) [b](https://example.org/b) [c](#part) `[d](e)`\n"
    )
    assert faults_of(links) == []
    assert (
        "cell 2 (curriculum/lessons/01_one.py:4): a link is broken ('02.ipynb')"
        in (faults_of(TITLE + "\n# %% [markdown]\n# [next](02.ipynb#part)\n")[0])
    )
    third = TITLE + f"\n# %% {IGNORE}\nx = 1\n" + "\n# %%\nx = 1\n" * 2
    assert faults_of(third) == []
    more = third + f"\n# %% {IGNORE}\nx = 1\n"
    assert "2 of 4 code cells are not compared by nbval, which is more than a third" in faults_of(more)[0]
    monkeypatch.setattr(faults, "MAX_BYTES", 1000)
    assert "it is 1 KB, over the limit of" in faults_of(third + "\n# %%\nx = 1\n" * 3)[0]


def test_the_command_says_each_fault_and_fails(repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forge(repo, stream("x", "stderr"))
    assert main(["--root", str(repo), "--check"]) == 1
    assert capsys.readouterr().out.endswith("Notebooks checked: 1. Faults: 1.\n")
    forge(repo)
    assert main(["--root", str(repo), "--check"]) == 0
    assert capsys.readouterr().out == "Notebooks checked: 1. Faults: 0.\n"
