"""The import graph has no circle and matches docs/architecture.md; the top-level pages name files that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("paged_ref", "coursekit", "bench")
PAGE = "docs/architecture.md"
PAGES = (PAGE, "README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/grading.md")
FOLDERS = (*PACKAGES, "curriculum", "tests", "docs", "notebooks", "exercises", "solutions", ".ci", ".github")
LENGTH_TOLERANCE = 5  # lines: a docstring may be reworded without touching the page

Graph = Mapping[str, set[str]]  # file -> the files of this repository that it imports, as paths from the root


# ------------------------------------------------------------------------------------------ the import graph


def read_graph(root: Path) -> dict[str, set[str]]:
    """Every import statement of the three packages, wherever it stands: in a function or under TYPE_CHECKING too."""
    files = {
        module_name(path.relative_to(root)): path.relative_to(root)
        for package in PACKAGES
        for path in (root / package).rglob("*.py")
    }
    graph: dict[str, set[str]] = {}
    for path in files.values():
        tree = ast.parse((root / path).read_text(encoding="utf-8"))
        found = {nearest(name, files) for name in imported_names(tree, path)}
        graph[path.as_posix()] = {found.as_posix() for found in found if found not in (None, path)}
    return graph


def module_name(path: Path) -> str:
    """`paged_ref/blocks/__init__.py` → `paged_ref.blocks`."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def imported_names(tree: ast.Module, path: Path) -> Iterator[str]:
    """Absolute dotted names: `from ..blocks import kv_cache` in paged_ref/model/ gives `paged_ref.blocks.kv_cache`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = path.parent.parts[: len(path.parent.parts) - node.level + 1] if node.level else ()
            base = [*package, *([node.module] if node.module else [])]
            yield from (".".join([*base, alias.name]) for alias in node.names)


def nearest(name: str, files: Mapping[str, Path]) -> Path | None:
    """The file of a module, or of the module that a name is taken from; None for a library's."""
    while name and name not in files:
        name = name.rpartition(".")[0]
    return files.get(name)


GRAPH = read_graph(ROOT)


def test_imports_of_every_form_are_seen(tmp_path: Path) -> None:
    sources = {
        "paged_ref/__init__.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .a.deep import x\n",
        "paged_ref/a/__init__.py": "def f():\n    from . import deep\n",
        "paged_ref/a/deep.py": "import paged_ref.b as b\nimport os\n",
        "paged_ref/b.py": "from .a import deep\nfrom paged_ref.a import deep as again\n",
    }
    for name, source in sources.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source)
    assert read_graph(tmp_path) == {
        "paged_ref/__init__.py": {"paged_ref/a/deep.py"},
        "paged_ref/a/__init__.py": {"paged_ref/a/deep.py"},
        "paged_ref/a/deep.py": {"paged_ref/b.py"},
        "paged_ref/b.py": {"paged_ref/a/deep.py"},
    }
    assert circle(read_graph(tmp_path)) == ["paged_ref/a/deep.py", "paged_ref/b.py"]


def circle(graph: Graph) -> list[str]:
    """The modules of one import circle, sorted; empty if there is none."""
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        return sorted(set(error.args[1]))
    return []


def test_no_import_circle() -> None:
    assert len(GRAPH) > 100
    assert circle(GRAPH) == []


# ------------------------------------------------------------------------------------- the table of the page


def read_table(page: str) -> dict[str, list[str]]:
    """The rows of the tables whose last column is "may import": path → the paths that it may import, in order."""
    rows: dict[str, list[str]] = {}
    inside = False
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            inside = False
        elif cells[-1] == "may import":
            inside = True
        elif inside and not set(line) <= set("|- "):
            rows[re.findall(r"`([^`]+)`", cells[0])[0]] = re.findall(r"`([^`]+)`", cells[-1])
    return rows


def row_of(path: str, rows: Mapping[str, list[str]]) -> str | None:
    """The row of a file: its own, or that of the innermost folder listed."""
    return max(
        (row for row in rows if path == row or (row[-1] == "/" and path.startswith(row))),
        key=len,
        default=None,
    )


def undeclared(graph: Graph, rows: Mapping[str, list[str]]) -> list[str]:
    """Imports between two rows that the table does not allow. `paged_ref/` allows every row below it."""
    wrong = []
    for path, imported in sorted(graph.items()):
        here = row_of(path, rows)
        for other in sorted(imported):
            there = row_of(other, rows)
            if here is None or there is None or here == there:
                continue
            allowed = rows[here]
            if there not in allowed and not any(a not in rows and there.startswith(a) for a in allowed):
                wrong.append(f"{path} imports {other}: {here} may not import {there}")
    return wrong


ROWS = read_table((ROOT / PAGE).read_text(encoding="utf-8"))


def test_every_module_has_a_row() -> None:
    assert [path for path in GRAPH if row_of(path, ROWS) is None] == []


def test_no_import_without_an_arrow_in_the_table() -> None:
    assert undeclared(GRAPH, ROWS) == []


def test_an_arrow_that_the_table_lacks_is_named() -> None:
    found = undeclared(GRAPH, {**ROWS, "paged_ref/blocks/": ["paged_ref/sizing.py", "paged_ref/kv_dtype.py"]})
    assert found == [
        "paged_ref/blocks/block_pool.py imports paged_ref/arguments.py: "
        "paged_ref/blocks/ may not import paged_ref/arguments.py"
    ]


def test_the_table_allows_imports_of_rows_above_only() -> None:
    seen: list[str] = []
    for row, allowed in ROWS.items():
        assert set(allowed) <= {*seen, "paged_ref/"}, row
        seen.append(row)


def test_the_library_imports_none_of_its_tools() -> None:
    imports = [
        (path, other) for path, found in GRAPH.items() for other in found if path.startswith("paged_ref/")
    ]
    assert [pair for pair in imports if not pair[1].startswith("paged_ref/")] == []


def test_attention_imports_no_model_block_or_scheduler() -> None:
    barred = ("paged_ref/model/", "paged_ref/blocks/", "paged_ref/scheduling/")
    files = [path for path in GRAPH if path.startswith("paged_ref/attention/")]
    assert len(files) > 5
    assert [(path, other) for path in files for other in GRAPH[path] if other.startswith(barred)] == []
    assert not set(ROWS["paged_ref/attention/"]) & set(barred)


# ---------------------------------------------------------------------------------- the reading path, the paths


def length(path: str, name: str) -> int:
    """Lines of a function or class, decorators included; `name` may be `Class.method`."""
    body: list[ast.stmt] = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
    for part in name.split("."):
        node = next(n for n in body if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == part)
        body = node.body
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return (node.end_lineno or first) - first + 1


def test_the_reading_path_is_as_long_as_it_says() -> None:
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    total, stated = 0, re.search(r"^Read these (\d+) lines in this order", page, re.MULTILINE)
    for path, names in re.findall(r"^\| `([\w/.]+\.py)`: (.*?) \|", page, re.MULTILINE):
        for name, lines in re.findall(r"`([\w.]+)` \((\d+)\)", names):
            assert abs(length(path, name) - int(lines)) <= LENGTH_TOLERANCE, f"{path}: {name}"
            total += int(lines)
    assert stated is not None
    assert int(stated[1]) == total
    assert 300 <= total <= 500


def paths_in(text: str) -> set[str]:
    """Paths in running text, code and tables: words below a folder of the repository, and files at its top.

    Placeholders become patterns: NN is two digits, NN_name a chapter's name, EXERCISE an exercise's id.
    """
    folders = "|".join(re.escape(folder) for folder in FOLDERS)
    found = set(re.findall(rf"(?<![\w./-])((?:{folders})/[\w./*-]*)", text))
    found |= set(re.findall(r"`(\.?[\w-]+\.(?:py|md|toml|txt|ya?ml|cff))`", text))
    return {
        path.rstrip(".")
        .replace("NN_name", "[0-9][0-9]_*")
        .replace("NN", "[0-9][0-9]")
        .replace("EXERCISE", "*")
        for path in found
    }


def links_in(text: str) -> set[str]:
    """Targets of Markdown links to files, without their anchors."""
    return {
        link
        for link in re.findall(r"\]\(([^)#\s]+)", text)
        if "://" not in link and not link.startswith("mailto:")
    }


@pytest.mark.parametrize("page", PAGES)
def test_every_path_on_a_page_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert [path for path in sorted(paths_in(text)) if not any(ROOT.glob(path))] == []
    folder = (ROOT / page).parent
    assert [link for link in sorted(links_in(text)) if not (folder / link).exists()] == []


def test_paths_and_links_are_found() -> None:
    text = (
        "`paged_ref/sizing.py`, [a](../README.md#x), `course.py`, curriculum/lessons/NN_name.py; not a/docs/x"
    )
    assert paths_in(text) == {"paged_ref/sizing.py", "course.py", "curriculum/lessons/[0-9][0-9]_*.py"}
    assert links_in(text) == {"../README.md"}
    assert links_in("[web](https://example.org/a)") == set()
