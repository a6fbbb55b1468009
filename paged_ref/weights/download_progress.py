"""Show the progress of a long operation on stderr: a bar on a terminal, a plain line every five seconds elsewhere."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

Measure = Callable[[], int]  # bytes done so far


@contextlib.contextmanager
def progress(
    text: str, quiet: bool, measure: Measure | None = None, total: int = 0, after: float = 0.0
) -> Iterator[None]:
    """Show `text` and the elapsed time while the body runs; with `measure`, also how many of `total` bytes are done.

    The display runs in a thread, so the body may be one long call. It keeps using the original stderr, even if the
    body redirects stderr. A body that takes less than `after` seconds is not mentioned.
    """
    if quiet:
        yield
        return
    stream, stop, start = sys.stderr, threading.Event(), time.monotonic()

    def show() -> None:
        if not after or not stop.wait(after):
            (_bar if stream.isatty() else _lines)(text, stream, stop, measure, total)

    watcher = threading.Thread(target=show, daemon=True)
    watcher.start()
    outcome = "stopped"
    try:
        yield
        outcome = "done"
    finally:
        stop.set()
        watcher.join()
        if time.monotonic() - start >= after:
            print(f"{text}: {outcome} after {time.monotonic() - start:.1f} s", file=stream, flush=True)


def _lines(text: str, stream: TextIO, stop: threading.Event, measure: Measure | None, total: int) -> None:
    start = time.monotonic()
    print(f"{text} …", file=stream, flush=True)
    while not stop.wait(5):
        part = f", {measure() / 1e6:.0f} of {total / 1e6:.0f} MB" if measure else ""
        print(f"  {time.monotonic() - start:.0f} s{part}", file=stream, flush=True)


def _bar(text: str, stream: TextIO, stop: threading.Event, measure: Measure | None, total: int) -> None:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24)]
    size = [DownloadColumn()] if measure else []
    console = Console(file=stream)
    with Progress(*columns, *size, TimeElapsedColumn(), console=console, transient=True) as bars:
        task = bars.add_task(text, total=total or None)
        while not stop.wait(0.2):
            if measure:
                bars.update(task, completed=min(measure(), total))
