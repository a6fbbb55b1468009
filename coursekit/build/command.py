"""`python3 course.py build`: from the sources in `curriculum/` to the executed notebooks.

`source.py` makes a notebook of a text, `depends.py` tells what it depends on, `execute.py` runs it,
`faults.py` names what is wrong with it. This file puts them together. What must hold: a build without
changes changes no byte and executes nothing; a notebook is replaced whole or not at all; one that fails
does not stop the others.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from coursekit import ROOT
from coursekit.build.execute import CellError, execute
from coursekit.build.faults import check
from coursekit.build.freshness import (
    depends_on,
    finish,
    finish_stubs,
    keep_ignored,
    reason_to_execute,
    with_outputs_of,
)
from coursekit.build.percent import BuildError, is_code, read_notebook, to_text
from coursekit.build.pictures import pictures_to_write
from coursekit.build.targets import Target, targets


def build(
    root: Path,
    names: list[str] | None = None,
    *,
    refresh: bool = False,
    force: bool = False,
    timeout: float = 300,
) -> list[str]:
    """Builds what needs it, and returns one message for each notebook that failed.

    Outputs that nbval does not compare are kept while their cell stays as it is; `refresh` renews them.
    `force` executes even what no change reaches.
    """
    failures = []
    for target in targets(root, names):
        try:
            build_one(target, refresh=refresh, force=force, timeout=timeout)
        except CellError as error:
            failures.append(explain(target, error))
        except BuildError as error:
            failures.append(f"{target.relative(target.source)}: {error}")
        except (SyntaxError, ValueError) as error:
            failures.append(f"{target.relative(target.source)}: the source cannot be read: {error}")
        else:
            continue
        print(f"FAILED {failures[-1]}", flush=True)
    for path, data in pictures_to_write(root).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_bytes(path, data)
    return failures


def build_one(target: Target, *, refresh: bool, force: bool, timeout: float) -> None:
    """Executes the notebook if something reaches it, and writes it if a byte differs."""
    fresh = target.notebook()
    if target.kind == "stubs":
        write_unexecuted(target, to_text(finish_stubs(target, fresh)))
        return
    stored = read_notebook(target.path)
    reason = reason_to_execute(target, stored, fresh)
    if refresh or force:
        reason = "asked for"
    if reason is None and stored is not None:
        changed = replace_file(target.path, to_text(finish(target, with_outputs_of(stored, fresh))))
        print(
            f"{target.title}: {'prose updated, nothing to execute' if changed else 'unchanged'}", flush=True
        )
        return
    before = depends_on(target, fresh)
    target.path.parent.mkdir(parents=True, exist_ok=True)
    progress = Progress(f"{target.title}: {reason}", sum(map(is_code, fresh.cells)))
    codes = [sum(map(is_code, fresh.cells[: i + 1])) for i in range(len(fresh.cells))]
    try:
        execute(fresh, target.root, target.path.parent, timeout, lambda index: progress.show(codes[index]))
    finally:
        progress.end()
    if stored is not None and not refresh:
        keep_ignored(stored, fresh)
    if depends_on(target, fresh) != before:
        raise BuildError("a file it depends on changed while it was executed; run the build again")
    replace_file(target.path, to_text(finish(target, fresh)))


def write_unexecuted(target: Target, text: str) -> None:
    """Writes a notebook that is handed out without outputs."""
    target.path.parent.mkdir(parents=True, exist_ok=True)
    changed = replace_file(target.path, text)
    print(f"{target.title}: {'written, nothing to execute' if changed else 'unchanged'}", flush=True)


def replace_file(path: Path, text: str) -> bool:
    """Writes all of `text` or nothing; says whether anything changed."""
    return replace_bytes(path, text.encode())


def replace_bytes(path: Path, data: bytes) -> bool:
    """The same for a file that is not text."""
    if path.is_file() and path.read_bytes() == data:
        return False
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return True


def explain(target: Target, failure: CellError) -> str:
    """The failed cell, its line in the source, the error and its traceback."""
    notebook, lines_of = target.notebook_and_lines()
    cell, marker = notebook.cells[failure.cell], lines_of[failure.cell]
    where = target.relative(target.source)
    if marker is not None:
        where += f":{marker + (failure.line or 0)}"
    lines = [f"{where}: cell {failure.cell + 1}: {failure.error}"]
    code = cell.source.splitlines()
    if failure.line and failure.line <= len(code):
        lines.append(f"    {code[failure.line - 1].strip()}")
    if failure.trace:
        lines += ["", *("    " + line for line in failure.trace.rstrip().splitlines()[-40:])]
    kept = "the notebook stays as it was" if target.path.is_file() else "no notebook was written"
    return "\n".join([*lines, f"    ({kept})"])


class Progress:
    """One line that counts the cells on a terminal; two plain lines elsewhere."""

    def __init__(self, title: str, cells: int) -> None:
        self.title, self.cells, self.started = title, cells, time.monotonic()
        self.live = sys.stdout.isatty()
        if not self.live:
            print(f"{title} ({cells} cells) …", flush=True)

    def show(self, cell: int) -> None:
        """Says which code cell runs now."""
        if self.live:
            print(f"\r\x1b[K{self.title}: cell {cell} of {self.cells}", end="", flush=True)

    def end(self) -> None:
        """Says how long it took."""
        start = "\r\x1b[K" if self.live else ""
        print(f"{start}{self.title}: {self.cells} cells, {time.monotonic() - self.started:.1f} s", flush=True)


def main(argv: list[str]) -> int:
    """Builds, then checks; exit code 0 if all is in order, 1 at a fault, 2 at a wrong name."""
    parser = argparse.ArgumentParser(
        prog="course.py build", description="Build the notebooks from curriculum/."
    )
    parser.add_argument(
        "names", nargs="*", help="notebooks to build, as 07 or 07_batched_decode; default: all"
    )
    parser.add_argument(
        "--check", action="store_true", help="execute nothing; name every fault, exit 1 if there is one"
    )
    parser.add_argument(
        "--refresh", action="store_true", help="execute again and renew outputs nbval does not compare"
    )
    parser.add_argument("--force", action="store_true", help="execute again even what no change reaches")
    parser.add_argument(
        "--timeout", type=float, default=300, metavar="S", help="seconds a cell may take (300)"
    )
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    root = options.root.resolve()
    try:
        count = len(targets(root, options.names))
        if not options.check:
            failed = build(
                root, options.names, refresh=options.refresh, force=options.force, timeout=options.timeout
            )
            if failed:
                print(f"Failed: {len(failed)} of {count}; the others are built.")
                return 1
        faults = check(root, options.names)
    except BuildError as error:
        print(f"build: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nInterrupted; the notebook being executed stays as it was.", file=sys.stderr)
        return 130
    for fault in faults:
        print(fault)
    print(f"Notebooks checked: {count}. Faults: {len(faults)}.")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
