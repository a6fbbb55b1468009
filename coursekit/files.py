"""Atomic files: a crash at any moment leaves either the old file or the new one, never half of one."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


def replace_bytes(path: Path, data: bytes, mode: int | None = None) -> bool:
    """Write a temporary file, flush it to disk, rename it; return True if the bytes differ from the old file's.

    `mode` are the file's permissions; without it only the user may read the file. Raises OSError.
    """
    if path.is_file() and path.read_bytes() == data:
        return False
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            temporary.chmod(mode)
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return True


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Allow one writer at a time where the system can lock folders: not on Windows, where the race is short."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl

        handle = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        yield
        return
    try:
        with contextlib.suppress(OSError):  # a network drive may not support locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
