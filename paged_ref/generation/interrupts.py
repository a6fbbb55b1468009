"""Ctrl-C between two steps of bookkeeping, never within one.

An interrupt may reach Python code between any two instructions: also between "the pool gave the block" and "the table
names it", and then the block would be lost. The engine therefore holds interrupts back while it moves blocks between
pool and tables, which takes microseconds, and lets them through in the model, where the time goes.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let an interrupt (SIGINT) that comes inside take effect at the end. Other threads receive none anyway."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.getsignal(signal.SIGINT)
    if not callable(previous):  # ignored, or left to the operating system: Python sees no interrupt
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
