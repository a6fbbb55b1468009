"""Find the files that a notebook depends on, without running anything.

A notebook must be executed again when its code changes, or any module that it imports, directly or indirectly.
`dependencies` follows the imports through the syntax trees of this repository's packages. It returns a short hash for
each file it reaches and the pinned version from `constraints.txt` for each library. The build stores the result in the
notebook, so a fresh clone knows that nothing needs to be executed.

This repository's packages load their submodules lazily (`__getattr__` in `__init__.py`). A name imported from such
a package leads only to the submodule that provides it, which is looked up in the `TYPE_CHECKING` imports or in a
table of names. A name that is found nowhere leads to every submodule: safe, just slower.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

Import = tuple[str, str | None]  # (module, name imported from it); None: the module itself


def dependencies(root: Path, code: str, extra: list[str] | None = None) -> dict[str, str]:
    """Return file (relative to `root`) or library → hash or pinned version, for a notebook with this `code`.

    `extra` are glob patterns of files that the notebook reads, such as `bench/*.json`.
    """
    files: set[Path] = {path for pattern in extra or [] for path in root.glob(pattern) if path.is_file()}
    libraries: set[str] = set()
    done: set[Import] = set()
    waiting = list(Module(root, root / "notebook.py", "", code).imports())
    for file in sorted(files):
        if file.suffix == ".py":
            waiting += _load(root, ".".join(file.relative_to(root).with_suffix("").parts), file).imports()
    while waiting:
        step = waiting.pop()
        if step in done:
            continue
        done.add(step)
        name, taken = step
        path = locate(root, name)
        if path is None:
            libraries.add(name.split(".")[0])
            continue
        module = _load(root, name, path)
        if "." in name:
            waiting.append((name.rpartition(".")[0], None))
        if path not in files:
            files.add(path)
            waiting += module.imports()
        if taken is not None:
            waiting += module.providers(taken)
    result = {path.relative_to(root).as_posix(): digest(path) for path in files}
    result.update(_pins(root, libraries))
    return dict(sorted(result.items()))


def digest(path: Path) -> str:
    """Return a short hash of the file's content that does not depend on the checkout's line endings."""
    return hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()[:12]


def locate(root: Path, name: str) -> Path | None:
    """Return the file of module `name` if it belongs to this repository, else None."""
    base = root.joinpath(*name.split("."))
    return next((p for p in (base / "__init__.py", base.with_suffix(".py")) if name and p.is_file()), None)


def _load(root: Path, name: str, path: Path) -> Module:
    return Module(root, path, name, path.read_text(encoding="utf-8"))


def _pins(root: Path, libraries: set[str]) -> dict[str, str]:
    constraints = root / "constraints.txt"
    if not constraints.is_file():
        return {}
    pins = {}
    for line in constraints.read_text(encoding="utf-8").splitlines():
        match = re.match(r"([\w.-]+)\s*==\s*([\w.!+-]+)", line)
        if match and (name := match[1].lower().replace("-", "_")) in libraries:
            pins[name] = match[2]
    return pins


class Module:
    """The syntax tree of one file and the imports in it."""

    def __init__(self, root: Path, path: Path, name: str, code: str) -> None:
        self.root, self.name = root, name
        self.package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        self.tree = ast.parse(code, filename=str(path))

    @cached_property
    def _parts(self) -> tuple[list[ast.AST], list[ast.AST]]:
        """All nodes, with those under `if TYPE_CHECKING:` kept separate."""
        running: list[ast.AST] = []
        typing_only: list[ast.AST] = []

        def visit(node: ast.AST, into: list[ast.AST]) -> None:
            into.append(node)
            for child in ast.iter_child_nodes(node):
                guarded = (
                    isinstance(node, ast.If)
                    and "TYPE_CHECKING" in ast.unparse(node.test)
                    and child in node.body
                )
                visit(child, typing_only if guarded else into)

        visit(self.tree, running)
        return running, typing_only

    def imports(self) -> Iterator[Import]:
        """All imports that running this file may execute, including those inside functions."""
        running, _ = self._parts
        bound: dict[str, str] = {}
        for node in running:
            yield from self._import(node)
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.split(".")[0]
                    bound[alias.asname or top] = alias.name if alias.asname else top
        for node in running:  # `paged_ref.LLM` after `import paged_ref`
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                module = bound.get(node.value.id, "")
                if locate(self.root, module):
                    yield module, node.attr
        yield from self._dynamic(running)

    def providers(self, name: str) -> Iterator[Import]:
        """Return where `name` comes from when this module loads its submodules lazily."""
        if locate(self.root, f"{self.name}.{name}"):
            yield f"{self.name}.{name}", None
            return
        running, typing_only = self._parts
        if not self._late or name in self._defined:
            return
        found = [step for node in typing_only for step in self._import(node) if step[1] == name]
        for node in running:
            if isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    words = [*self._strings(key), *self._strings(value)] if key else []
                    if name in words:
                        found += [(module, name) for word in words for module in self._submodule(word)]
        if not found:  # unknown: every submodule this package names
            words = [word for node in running for word in self._strings(node)]
            found = [(module, None) for word in words for module in self._submodule(word)]
            found += [step for node in typing_only for step in self._import(node)]
        yield from found

    @property
    def _late(self) -> bool:
        return any(
            isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in self.tree.body
        )

    @cached_property
    def _defined(self) -> set[str]:
        names = {n.name for n in self.tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
        for node in self.tree.body:
            if isinstance(node, ast.ImportFrom | ast.Import):
                names |= {alias.asname or alias.name for alias in node.names}
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    names |= {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
        return names

    def _import(self, node: ast.AST) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = self._absolute("." * node.level + (node.module or ""))
            yield from ((module, alias.name) for alias in node.names)

    def _dynamic(self, nodes: list[ast.AST]) -> Iterator[Import]:
        """Resolve `import_module("a.b")`. If the name is computed: every submodule named by a string in the file."""
        late = {
            id(n)
            for f in nodes
            if isinstance(f, ast.FunctionDef) and f.name == "__getattr__"
            for n in ast.walk(f)
        }
        for node in nodes:
            if not isinstance(node, ast.Call) or not node.args or id(node) in late:
                continue
            if ast.unparse(node.func).split(".")[-1] != "import_module":
                continue
            words = list(self._strings(node.args[0]))
            if isinstance(node.args[0], ast.Constant) and words:
                yield self._absolute(words[0]), None
            else:
                words = [word for other in nodes for word in self._strings(other)]
                yield from ((module, None) for word in words for module in self._submodule(word))

    def _absolute(self, name: str) -> str:
        dots = len(name) - len(name.lstrip("."))
        if not dots:
            return name
        base = self.package.split(".")
        return ".".join([*base[: len(base) - dots + 1], *([name.lstrip(".")] if name.strip(".") else [])])

    def _submodule(self, word: str) -> Iterator[str]:
        """Modules that a string may mean: `"block_pool"`, `".block_pool"` or `"paged_ref.blocks.block_pool"`."""
        if re.fullmatch(r"\.*\w+(\.\w+)*", word):
            for name in {self._absolute(word), self._absolute("." + word.lstrip("."))}:
                if (
                    name != self.name
                    and name.startswith(self.package.split(".")[0] + ".")
                    and locate(self.root, name)
                ):
                    yield name

    @staticmethod
    def _strings(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            for element in node.elts:
                yield from Module._strings(element)
