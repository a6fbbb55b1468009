"""The CPU loops, compiled by numba before the first step needs them."""

from __future__ import annotations

import functools
from contextlib import suppress
from importlib import import_module

from ..weights.download_progress import progress

COMPILING = "Compiling the attention loops for this CPU (once, about twenty seconds)"
SILENT_S = 15.0  # loading compiled loops takes a second or, on a busy machine, several: not worth a message


def warm_up(kv_dtype: str = "auto") -> None:
    """Compile every loop, or load it from numba's cache on disk: twenty seconds or one.

    With another `kv_dtype`, compile the variants for that kind of quantised cache instead.
    """
    import_module("..attention.numba_paged", __package__).warm_up(kv_dtype)
    with suppress(ImportError):  # the engine runs without the fast path's folder, too
        import_module(".cpu.row_loops", __package__).warm_up(kv_dtype)


@functools.cache
def compile_loops(kv_dtype: str = "auto") -> None:
    """Warm up once in a process for each `kv_dtype`, and say so on stderr if it takes long.

    course.py does it during set-up (`python -m paged_ref warm-up`). Elsewhere the first `LLM` does.
    """
    with progress(COMPILING, quiet=False, after=SILENT_S):
        warm_up(kv_dtype)
