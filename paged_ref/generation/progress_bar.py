"""A progress line for long runs, on a terminal only."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from ..scheduling.request import Request

SECONDS_OF_SILENCE = 2.0


class ProgressBar:
    """Shows how many requests have ended, if a run takes longer than two seconds and stderr is a terminal."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = requests
        self._show_at = time.perf_counter() + SECONDS_OF_SILENCE if sys.stderr.isatty() else float("inf")
        self._bar: Any = None

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, num_tokens: int) -> None:
        """Update the line; call this after each step with the number of tokens generated so far."""
        if time.perf_counter() < self._show_at:
            return
        if self._bar is None:
            self._start(num_tokens)
        ended = sum(not request.sequences for request in self._requests)
        self._bar.update(self._task, completed=ended, rate=self._rate(num_tokens))

    def _start(self, num_tokens: int) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeElapsedColumn,
        )
        from rich.progress import (
            Progress as RichProgress,
        )

        self._first = (time.perf_counter(), num_tokens)
        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("requests {task.fields[rate]}"),
            TimeElapsedColumn(),
        )
        self._bar = RichProgress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task("", total=len(self._requests), rate="")
        self._bar.start()

    def _rate(self, num_tokens: int) -> str:
        since, tokens = self._first
        seconds = time.perf_counter() - since
        return f"{(num_tokens - tokens) / seconds:.0f} tokens/s" if seconds > 1 else ""
