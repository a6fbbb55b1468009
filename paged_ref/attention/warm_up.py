"""Compile the CPU loops before anybody waits for them: `python -m paged_ref.attention.warm_up`.

numba compiles at the first call and keeps the result on disk, beside the package or in the user's cache. The set-up
calls this once; without it the first prompt would wait instead.
"""

from __future__ import annotations

import importlib.util
import time


def main() -> int:
    """Run every loop once; about twenty seconds the first time, one afterwards."""
    if importlib.util.find_spec("numba") is None:
        return 0  # "auto" takes torch then
    print("Compiling the attention loops for this CPU, once (about twenty seconds) ...", flush=True)
    started = time.monotonic()
    from .. import row_loops
    from . import numba_paged

    numba_paged.warm_up()
    row_loops.warm_up()
    print(f"Ready in {time.monotonic() - started:.0f} s.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
