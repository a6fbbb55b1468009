"""The dependencies of a notebook, folder by folder, found without running anything.

A notebook is executed again when one of its dependencies changed:

- each sub-package that it imports a module from, such as `paged_ref/blocks`: one digest for all its modules;
- each module that it imports from the top of a package, such as `paged_ref/sizing.py`;
- each library that it imports: its pin in `constraints.txt`;
- the same for the imports of each of these modules, inside functions too, but not under `if TYPE_CHECKING:`;
- each file that its header names, such as `bench/results/serve.json`.

For `from paged_ref import BlockPool`, the table `_HOME` in `paged_ref/__init__.py` gives the module. A computed name,
`import_module(f".{BACKENDS[name]}", __name__)`, may be any module of the package that a string of that file names.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path


def dependencies(root: Path, code: str, extra: list[str] | None = None) -> dict[str, str]:
    """Folder, file or library → digest or pinned version, for a notebook with this `code`.

    `extra` are patterns of files that the notebook reads; of those that are modules, the imports count as well.
    """
    read = [path for pattern in extra or [] for path in root.glob(pattern) if path.is_file()]
    found = {path.relative_to(root).as_posix(): _digest([path]) for path in read}
    waiting = list(_imports(code, package=""))
    waiting += [name for path in read if path.suffix == ".py" for name in _imports_of(root, path)]
    done: set[Path] = set()
    libraries: set[str] = set()
    while waiting:
        name = waiting.pop()
        modules = _modules(root, name)
        if not modules:
            libraries.add(name.partition(".")[0])
        for module in set(modules) - done:
            done.add(module)
            place = module.relative_to(root)
            part = place if len(place.parts) < 3 else place.parent
            found[part.as_posix()] = _digest(sorted((root / part).glob("*.py")) or [module])
            waiting += _imports_of(root, module)
    return dict(sorted((found | _pins(root, libraries)).items()))


def _digest(files: list[Path]) -> str:
    """A short hash of the files' names and contents, the same whatever the line ends of the checkout."""
    contents = [(file.name, file.read_bytes().replace(b"\r\n", b"\n")) for file in files]
    return hashlib.sha256(repr(contents).encode()).hexdigest()[:12]


def _modules(root: Path, name: str) -> list[Path]:
    """This repository's files that importing `name` runs, packages first; none for a library."""
    files: list[Path] = []
    words = name.split(".")
    for i, word in enumerate(words):
        base = root.joinpath(*words[:i], word)
        file = next((f for f in (base / "__init__.py", base.with_suffix(".py")) if f.is_file()), None)
        if file is None:  # a name inside the last module, or one that its table finds elsewhere
            home = _table(files[-1]).get(word) if files else None
            return files + (_modules(root, ".".join([*words[:i], home])) if home else [])
        files.append(file)
    return files


def _table(file: Path) -> dict[str, str]:
    """Name → module, from `_HOME = {...}` in a package's `__init__.py`; empty if there is none."""
    match = re.search(r"^_HOME = (\{.*?\})$", file.read_text(encoding="utf-8"), re.M | re.S)
    return dict(ast.literal_eval(match[1])) if match else {}


def _imports_of(root: Path, file: Path) -> list[str]:
    return list(_imports(file.read_text(encoding="utf-8"), ".".join(file.parent.relative_to(root).parts)))


def _imports(code: str, package: str) -> Iterator[str]:
    """The dotted names that code in `package` may import: modules, and names taken from modules."""
    nodes = list(_running(ast.parse(code)))
    bound: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
                top = alias.name.partition(".")[0]
                bound |= {alias.asname: alias.name} if alias.asname else {alias.name: alias.name, top: top}
        elif isinstance(node, ast.ImportFrom):
            words = package.split(".")
            start = words[: len(words) + 1 - node.level] if node.level else []
            yield from (".".join(filter(None, [*start, node.module, alias.name])) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            if isinstance(node.args[0], ast.Constant):
                yield str(node.args[0].value)
            elif "_HOME" not in ast.unparse(node):  # a computed name: any that the file has as a string
                texts = (str(other.value) for other in nodes if isinstance(other, ast.Constant))
                yield from (f"{package}.{text}" for text in texts if re.fullmatch(r"\w+(\.\w+)*", text))
    for node in nodes:  # `paged_ref.LLM` after `import paged_ref`
        if isinstance(node, ast.Attribute) and (module := bound.get(ast.unparse(node.value))):
            yield f"{module}.{node.attr}"


def _running(node: ast.AST) -> Iterator[ast.AST]:
    """The node and all below it, but nothing under `if TYPE_CHECKING:`."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
            yield from _running(child)


def _pins(root: Path, libraries: set[str]) -> dict[str, str]:
    """Library → version, for those of `libraries` that `constraints.txt` pins."""
    file = root / "constraints.txt"
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    lines = re.findall(r"^([\w.-]+)\s*==\s*([\w.!+-]+)", text, re.M)
    return {key: pin for name, pin in lines if (key := name.lower().replace("-", "_")) in libraries}
