"""`python3 course.py build`: turn the sources in `curriculum/` into executed notebooks.

`percent.py` parses a source into a notebook, `dependencies.py` finds the files it depends on, `execute.py` runs it, and
`faults.py` checks the result. This file puts them together. Invariants: a build without changes modifies no file and
executes nothing; a notebook is replaced completely or not at all; a failing notebook does not stop the others.
"""

from __future__ import annotations

import argparse
import sys
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
from coursekit.files import replace_bytes


def build(
    root: Path,
    names: list[str] | None = None,
    *,
    refresh: bool = False,
    force: bool = False,
    timeout: float = 300,
) -> list[str]:
    """Build every notebook that needs it, and return one message for each notebook that failed.

    Outputs that nbval does not compare are kept as long as their cell is unchanged; `refresh` renews them.
    `force` executes every notebook, changed or not.
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
        replace_bytes(path, data, 0o644)
    return failures


def build_one(target: Target, *, refresh: bool, force: bool, timeout: float) -> None:
    """Execute the notebook if any of its inputs changed, and write it if any byte differs."""
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
    """Write a notebook that is distributed without outputs."""
    target.path.parent.mkdir(parents=True, exist_ok=True)
    changed = replace_file(target.path, text)
    print(f"{target.title}: {'written, nothing to execute' if changed else 'unchanged'}", flush=True)


def replace_file(path: Path, text: str) -> bool:
    """Replace the file's text atomically; return True if it changed."""
    return replace_bytes(path, text.encode(), 0o644)


def explain(target: Target, failure: CellError) -> str:
    """Describe a failure: the cell, its line in the source, the error and its traceback."""
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
    kept = "the old notebook is unchanged" if target.path.is_file() else "no notebook was written"
    return "\n".join([*lines, f"    ({kept})"])


class Progress:
    """Progress display: one updating line on a terminal, two plain lines elsewhere."""

    def __init__(self, title: str, cells: int) -> None:
        self.title, self.cells, self.started = title, cells, time.monotonic()
        self.live = sys.stdout.isatty()
        if not self.live:
            print(f"{title} ({cells} cells) …", flush=True)

    def show(self, cell: int) -> None:
        """Show which code cell is running."""
        if self.live:
            print(f"\r\x1b[K{self.title}: cell {cell} of {self.cells}", end="", flush=True)

    def end(self) -> None:
        """Print the elapsed time."""
        start = "\r\x1b[K" if self.live else ""
        print(f"{start}{self.title}: {self.cells} cells, {time.monotonic() - self.started:.1f} s", flush=True)


def main(argv: list[str]) -> int:
    """Build, then check; exit code 0 if everything is fine, 1 for a fault, 2 for an unknown notebook name."""
    parser = argparse.ArgumentParser(
        prog="course.py build", description="Build the notebooks from curriculum/."
    )
    parser.add_argument(
        "names", nargs="*", help="notebooks to build, such as 07 or 07_batched_decode (default: all)"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="execute nothing; list every fault and exit with 1 if there is any",
    )
    parser.add_argument(
        "--refresh",
        action="store_true",
        help="execute again and renew the outputs that nbval does not compare",
    )
    parser.add_argument("--force", action="store_true", help="execute every notebook, changed or not")
    parser.add_argument(
        "--timeout",
        type=float,
        default=300,
        metavar="S",
        help="time limit per cell in seconds (default: 300)",
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
                print(f"Failed: {len(failed)} of {count}; the others were built.")
                return 1
        faults = check(root, options.names)
    except BuildError as error:
        print(f"build: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nInterrupted; the notebook that was running is unchanged.", file=sys.stderr)
        return 130
    for fault in faults:
        print(fault)
    print(f"Notebooks checked: {count}. Faults: {len(faults)}.")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
