"""`python -m paged_ref warm-up`: compile the CPU loops in advance, so that the first prompt does not wait.

numba compiles at the first call and stores the result on disk, beside the package or in the user's cache. The set-up
runs this command once.
"""

from __future__ import annotations

import argparse
import importlib.util
import time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no options: the command has none."""


def run(args: argparse.Namespace) -> int:
    """Run every loop once: about twenty seconds the first time, one afterwards. Returns the exit status."""
    if importlib.util.find_spec("numba") is None:
        return 0  # without numba, "auto" selects torch
    print("Compiling the attention loops for this CPU, once (about twenty seconds) ...", flush=True)
    started = time.monotonic()
    from ..model.compile_loops import warm_up

    warm_up()
    print(f"Ready in {time.monotonic() - started:.0f} s.")
    return 0
