"""Answers that a learner could paste from the lesson: what it defines or prints before it sends them to the exercise.

A lesson names an exercise's place (`# %% [markdown] exercise="2.2"`). The functions and classes that its code cells
define above that place, and those that they print with `show_source`, are tried as the answer. A lesson without the
place is taken whole. Invariant: an answer that passes here passes in the learner's notebook, too.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from coursekit.build.percent import is_code
from coursekit.build.targets import targets
from coursekit.checks.bank import cells_until, judge
from coursekit.checks.framework import exercise
from coursekit.views.source_code import source_of

SEEDS = (100, 101)
_MOST = 300  # combinations of definitions that are tried for an exercise with several names


def pasteable(root: Path, id: str) -> str | None:
    """Return the names in the lesson that pass the exercise when pasted, or None if none does."""
    statements = list(usable(code_above(root, id)))
    shown = "\n\n".join(ast.unparse(node) for node in statements)
    defined = [node for node in statements if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    given = {name for cell in cells_until(root, id) for name in _names(ast.parse(cell.solved))}
    wanted = [name for name in exercise(id).answers if name not in given]
    kinds = _kinds(root, id)
    choices = [[n.name for n in defined if kinds.get(name) in (None, type(n))] for name in wanted]
    for names in itertools.islice(itertools.product(*choices), _MOST if all(choices) else 0):
        renamed = "".join(f"\n{new} = {old}" for new, old in zip(wanted, names, strict=True) if new != old)
        if all(
            _passes(root, id, f"from __future__ import annotations\n{shown}\n{renamed}", seed)
            for seed in SEEDS
        ):
            return ", ".join(names)
    return None


def code_above(root: Path, id: str) -> list[str]:
    """The code cells of the lesson above the exercise's place."""
    chapter = f"{int(id.partition('.')[0]):02}"
    [target] = [t for t in targets(root, [chapter]) if t.kind == "lesson"]
    cells = target.notebook().cells
    places = [at for at, cell in enumerate(cells) if cell.metadata.get("exercise") == id]
    return [cell.source for cell in cells[: places[0] if places else len(cells)] if is_code(cell)]


def usable(code: Iterable[str]) -> Iterator[ast.stmt]:
    """Yield the imports that are used, the constants, and the definitions (printed ones, too) that run as they are."""
    nodes = [node for cell in code for node in ast.parse(re.sub(r"^\s*[%!].*$", "", cell, flags=re.M)).body]
    plain = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef) or _is_constant(node)]
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    words = {word for node in plain for word in re.findall(r"\w+", ast.unparse(node))}
    shows = [call for node in nodes for call in ast.walk(node) if _is_show_source(call)]
    words |= {word for call in shows for word in re.findall(r"\w+", ast.unparse(call))}
    namespace: dict[str, Any] = {"__name__": "__main__"}
    used = [
        node for node in imports if {alias.asname or alias.name.split(".")[0] for alias in node.names} & words
    ]
    yield from (node for node in used if _runs(node, namespace))
    yield from (node for node in plain if _runs(node, namespace))
    for call in shows:
        for argument in getattr(call, "args", ()):
            for node in _printed(argument, namespace):
                if _runs(node, namespace):
                    yield node


def _printed(argument: ast.expr, namespace: dict[str, Any]) -> list[ast.stmt]:
    try:
        thing = eval(compile(ast.Expression(argument), "<lesson>", "eval"), namespace)
        return ast.parse(source_of(thing)[0]).body
    except Exception:  # noqa: BLE001  it needs a value that only a run of the lesson makes
        return []


def _runs(node: ast.stmt, namespace: dict[str, Any]) -> bool:
    future = "from __future__ import annotations\n"
    try:
        exec(compile(future + ast.unparse(node), "<lesson>", "exec"), namespace)
    except Exception:  # noqa: BLE001  such a line fails in the learner's notebook, too
        return False
    return True


def _passes(root: Path, id: str, code: str, seed: int) -> bool:
    try:
        return judge(root, id, code, seed).passed
    except Exception:  # noqa: BLE001  what is pasted may do anything
        return False


def _kinds(root: Path, id: str) -> dict[str, type[ast.stmt]]:
    """Name → function or class, as the exercise's own solution defines it."""
    from coursekit.build.exercises import cells_of, sources

    cells, _ = cells_of(sources(root)[f"{int(id.partition('.')[0]):02}"].read_text(encoding="utf-8"))
    solved = next(cell.solved for cell in cells if cell.kind == "answer" and cell.exercise == id)
    return {n.name: type(n) for n in ast.parse(solved).body if isinstance(n, ast.FunctionDef | ast.ClassDef)}


def _names(tree: ast.Module) -> set[str]:
    found = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
    return found


def _is_constant(node: ast.stmt) -> bool:
    if not isinstance(node, ast.Assign):
        return False
    try:
        ast.literal_eval(node.value)
    except ValueError:
        return False
    return True


def _is_show_source(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "show_source"
