"""What importing costs, and the command line as a person uses it."""

from __future__ import annotations

import re
import subprocess
import sys

import paged_ref

HEAVY = ("torch", "triton", "transformers", "numba", "matplotlib", "rich", "IPython")


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=300, check=False
    )


def test_import_loads_nothing_heavy() -> None:
    code = f"import paged_ref, sys; print([m for m in {HEAVY} if m in sys.modules])"
    assert python("-c", code).stdout.strip() == "[]"


def test_planning_needs_no_torch() -> None:
    code = "import paged_ref, sys; p = paged_ref.BlockPool(4, 2); paged_ref.BlockTable(p).append(3)"
    code += "; paged_ref.MODELS['llama-3.1-70b'].kv_bytes_per_token; print('torch' in sys.modules)"
    assert python("-c", code).stdout.strip() == "False"


def test_every_public_name_is_there_and_an_unknown_one_is_told() -> None:
    for name in paged_ref.__all__:
        assert getattr(paged_ref, name).__doc__ or name == "MODELS"
    try:
        paged_ref.BlockTabel  # noqa: B018
    except AttributeError as error:
        assert "BlockTable" in str(error)
    else:
        raise AssertionError("an unknown name must raise")


def test_generate_streams_both_answers_and_tells_the_pool() -> None:
    done = python(
        "-m",
        "paged_ref",
        "generate",
        "Name a fruit.",
        "Say hello.",
        "--max-tokens",
        "4",
        "--num-blocks",
        "32",
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.index("> Name a fruit."), done.stdout.index("> Say hello.")
    assert done.stdout[first:second].splitlines()[1].strip(), "no text below the first prompt"
    tokens = re.search(
        r"(\d+) tokens in [\d.]+ s: \d+ tokens/s, \d+ steps, up to 2 requests at once", done.stdout
    )
    assert tokens and 2 <= int(tokens[1]) <= 8
    assert re.search(r"pool: 32 blocks of 16 tokens, at most [1-9]\d* in use \([\d.]+%\), 0 now", done.stdout)


def refused(*arguments: str) -> str:
    done = python("-m", "paged_ref", "generate", *arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    return done.stderr


def test_bad_input_is_one_sentence() -> None:
    assert "did you mean" in refused("hi", "--model", "smolm2-135m").lower()
    assert "max_tokens = 0" in refused("hi", "--max-tokens", "0")
    assert "num_blocks = 0" in refused("hi", "--num-blocks", "0")
    assert "backend" in refused("hi", "--backend", "cuda")
    assert "needs up to" in refused("hi", "--num-blocks", "1")
    assert "empty" in refused("", "--raw")
