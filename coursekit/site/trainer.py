"""Puts the trainer's page into one folder: the files of `trainer/`, the data, the icons and the service worker.

The service worker stores every file on the device and serves them from there. `VERSION` is a hash of all files, so each
change of the page or of the bank makes a new store, and the same sources make the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coursekit.quiz.bank import load_bank
from coursekit.site.icons import ICONS, icon
from coursekit.site.questions import bank_as_data

SOURCES = Path(__file__).parent / "trainer"
WORKER = "worker.js"
DATA: dict[str, Callable[[], Any]] = {"questions.json": lambda: bank_as_data(load_bank())}


def trainer_files() -> dict[str, bytes]:
    """Return every file of the trainer: name -> contents.

    Raises:
        BankError: a question cannot be exported.
    """
    files = {path.name: path.read_bytes() for path in sorted(SOURCES.iterdir()) if path.is_file()}
    files |= {name: icon(*arguments) for name, arguments in ICONS.items()}
    for name, make in DATA.items():
        files[name] = json.dumps(make(), ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    files[WORKER] = _worker(files)
    return files


def _worker(files: dict[str, bytes]) -> bytes:
    """Fill the list of files and their version into the service worker."""
    stored = sorted(name for name in files if name != WORKER)
    digest = hashlib.sha256()
    for name in [*stored, WORKER]:
        digest.update(f"{name} {len(files[name])}\n".encode() + files[name])
    source = files[WORKER].decode()
    for mark, value in (("@VERSION@", digest.hexdigest()[:16]), ("@FILES@", json.dumps(stored))):
        if source.count(mark) != 1:
            raise ValueError(f"{WORKER} must contain {mark} once")
        source = source.replace(mark, value)
    return source.encode()


def write_trainer(folder: Path) -> dict[str, bytes]:
    """Write the trainer into a folder, which is replaced as a whole, and return its files.

    Raises:
        BankError: a question cannot be exported; the folder is unchanged.
        OSError: the folder cannot be written.
        FileExistsError: the folder holds something else than a trainer; it is unchanged.
    """
    files = trainer_files()
    if folder.exists() and not (
        folder.is_dir() and (not any(folder.iterdir()) or (folder / WORKER).is_file())
    ):
        raise FileExistsError(f"{folder} holds something else than a trainer: name another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as parent:
        new = Path(parent) / "new"
        new.mkdir()
        for name, contents in files.items():
            (new / name).write_bytes(contents)
        if folder.exists():
            folder.rename(Path(parent) / "old")
        new.rename(folder)
    return files
