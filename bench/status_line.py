"""A status line on stderr for long benchmarks."""

from __future__ import annotations

import sys
from types import TracebackType


class StatusLine:
    """Shows the current activity on stderr: one overwritten line on a terminal, separate lines elsewhere."""

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if sys.stderr.isatty():
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)

    def say(self, what: str) -> None:
        """Show `what` until the next call."""
        start, end = ("\r\x1b[2K", "") if sys.stderr.isatty() else ("", "\n")
        print(f"{start}{what}", end=end, file=sys.stderr, flush=True)
