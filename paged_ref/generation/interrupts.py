"""Delay Ctrl-C while block bookkeeping is under way.

An interrupt can reach Python code between any two instructions, for example after the pool has handed out a block and
before the table records it. The block would then be lost. The engine therefore delays interrupts while it moves blocks
between pool and tables, which takes microseconds, and lets them through in the model, which takes most of the time.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay an interrupt (SIGINT) to the end of the `with` block. Only the main thread receives interrupts at all."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.getsignal(signal.SIGINT)
    if not callable(previous):  # ignored, or handled by the operating system: Python sees no interrupt
        yield
        return
    received: list[tuple[Any, ...]] = []
    signal.signal(signal.SIGINT, lambda *args: received.append(args))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
        if received:
            previous(*received[-1])
