"""UTF-8 for standard output and errors."""

from __future__ import annotations

import io
import sys


def use_utf8() -> None:
    """Write UTF-8 from here on. Windows gives files and pipes a code page that lacks characters such as "→"."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")
