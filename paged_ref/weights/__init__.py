"""Resolve and cache model weights: turn a model's name into a folder that loads fast (chapter 7, and the set-up).

A model is named in one of three ways:

    "smollm2-135m"     the course's own model (smollm2.py): downloaded and converted once, then cached (cache.py)
    "path/to/folder"   a decoder on this machine: config.json and weights
    "org/name"         a hub id: its folder in the local hub cache if complete, else transformers downloads it

Invariants: an unknown name, or a folder without a model, is rejected here with a short reason, before
transformers sees it; resolving a model that is already cached imports neither torch nor transformers.

`python -m paged_ref.weights` makes sure that a model is available and prints its folder.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from pathlib import Path
from typing import Any

from .cache import CACHE_VARIABLE, ModelUnavailable, Recipe, cache_folder, is_complete, prepare, tilde
from .smollm2 import SMOLLM2

__all__ = [
    "ALIASES",
    "CACHE_VARIABLE",
    "DEFAULT_MODEL",
    "RECIPES",
    "ModelNotFound",
    "ModelUnavailable",
    "Recipe",
    "cache_folder",
    "is_complete",
    "load_arguments",
    "prepare",
    "resolve",
]

DEFAULT_MODEL = SMOLLM2.name
RECIPES = {SMOLLM2.name: SMOLLM2}
ALIASES = dict.fromkeys((SMOLLM2.name, "smollm2-135m-instruct", "smollm2", "smollm"), SMOLLM2.name)

WEIGHT_PATTERNS = ("*.safetensors", "pytorch_model*.bin", "*.gguf")


class ModelNotFound(ValueError):
    """The name is not a known model, a folder with a decoder's weights, or a hub id."""


def resolve(model: str | os.PathLike[str], *, quiet: bool = False) -> str:
    """Return the folder or hub id to pass to transformers' from_pretrained, together with its `load_arguments`.

    If the course's own model is not in the cache, it is built (about half a minute, once). A known name takes
    precedence over a folder of the same name: write ./smollm2-135m for the folder.

    Raises:
        ModelNotFound: an unknown name, or a folder that does not contain a model.
        ModelUnavailable: the model cannot be downloaded or stored.
    """
    name = os.fspath(model)
    known = ALIASES.get(name.lower())
    if known is not None:
        return str(prepare(RECIPES[known], quiet=quiet))
    folder = Path(name).expanduser()
    if name and folder.is_dir():
        _check_model_folder(folder)
        return str(folder)
    if re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name):
        return _hub_snapshot(name) or name
    near = difflib.get_close_matches(name.lower(), ALIASES, n=3)
    suggestions = dict.fromkeys(
        ALIASES[alias] for alias in near
    )  # several aliases of one model: name it once
    if suggestions:
        hint = "did you mean " + " or ".join(repr(suggestion) for suggestion in suggestions) + "?"
    elif any(mark in name for mark in "/\\~"):
        hint = "there is no such folder, and a hub id has the form 'org/name'"
    else:
        names = ", ".join(repr(name) for name in RECIPES)
        hint = f"give {names}, a local folder with config.json and weights, or a hub id 'org/name'"
    raise ModelNotFound(f"unknown model {name!r}: {hint}")


def load_arguments(resolved: str) -> dict[str, Any]:
    """Return the other arguments that from_pretrained needs: `gguf_file` if a GGUF is the folder's only weights."""
    folder = Path(resolved)
    if not folder.is_dir() or any(folder.glob("*.safetensors")) or any(folder.glob("pytorch_model*.bin")):
        return {}
    return {"gguf_file": min(path.name for path in folder.glob("*.gguf"))}


def _check_model_folder(folder: Path) -> None:
    """Raise ModelNotFound, naming what is missing, if the folder does not contain a model."""
    where = tilde(folder)
    names = sorted(path.name for path in folder.iterdir())
    holds = f"it holds: {', '.join(names[:8]) or 'nothing'}{' …' if len(names) > 8 else ''}"
    weights = [path for pattern in WEIGHT_PATTERNS for path in sorted(folder.glob(pattern))]
    if not weights:
        raise ModelNotFound(f"model folder {where} has no weights ({', '.join(WEIGHT_PATTERNS)}); {holds}")
    if "config.json" not in names and not all(path.suffix == ".gguf" for path in weights):
        raise ModelNotFound(f"model folder {where} has no config.json; {holds}")
    for index in sorted(folder.glob("*.index.json")):
        shards = _shards(index)
        if lost := sorted(shards - set(names)):
            raise ModelNotFound(f"model folder {where} lacks {', '.join(lost)}, listed in {index.name}")
    for path in weights:
        with path.open("rb") as file:
            start = file.read(24)
        if not start:
            raise ModelNotFound(f"{tilde(path)} is empty: download the model again")
        if start.startswith(b"version https://git-lfs"):
            raise ModelNotFound(f"{tilde(path)} is a Git LFS pointer, not weights: run `git lfs pull` there")


def _shards(index: Path) -> set[str]:
    """Return the names of the files listed in the index of a sharded model."""
    try:
        return set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelNotFound(
            f"{tilde(index)} is not an index of weights ({error}): download the model again"
        ) from error


def _hub_snapshot(hub_id: str) -> str | None:
    """Return the folder of a hub model that is complete in the local hub cache, without using the network."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        config = try_to_load_from_cache(hub_id, "config.json")
        if not isinstance(config, str):
            return None
        folder = Path(config).parent
        _check_model_folder(folder)
    except (
        HFValidationError,
        ModelNotFound,
    ):  # not cached, or not completely: transformers downloads it
        return None
    return str(folder) if (folder / "tokenizer_config.json").is_file() else None
