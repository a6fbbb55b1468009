"""`python -m paged_ref warm-up`: compile the CPU loops before the first prompt has to wait for them.

numba compiles at the first call and keeps the result on disk, beside the package or in the user's cache. The set-up
runs this once.
"""

from __future__ import annotations

import argparse
import importlib.util
import time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Nothing can be varied."""


def run(args: argparse.Namespace) -> int:
    """Run every loop once: about twenty seconds the first time, one afterwards. Returns the exit status."""
    if importlib.util.find_spec("numba") is None:
        return 0  # "auto" chooses torch then
    print("Compiling the attention loops for this CPU, once (about twenty seconds) ...", flush=True)
    started = time.monotonic()
    from ..model.compile_loops import warm_up

    warm_up()
    print(f"Ready in {time.monotonic() - started:.0f} s.")
    return 0
