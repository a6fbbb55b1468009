"""The CPU loops are compiled once in a process, and a message appears only if that takes long."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

from paged_ref.weights.download_progress import progress

loops = importlib.import_module("paged_ref.model.compile_loops")


@pytest.fixture(autouse=True)
def never_compiled() -> Iterator[None]:
    """Forget before and after each test that this process has compiled its loops."""
    loops.compile_loops.cache_clear()
    yield
    loops.compile_loops.cache_clear()


def test_loops_are_compiled_once_in_a_process(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    calls = []
    monkeypatch.setattr(loops, "warm_up", lambda kv_dtype: calls.append(1))
    loops.compile_loops()
    loops.compile_loops()
    assert calls == [1]
    assert capsys.readouterr() == ("", "")


def test_a_slow_compilation_is_announced_on_stderr(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(loops, "SILENT_S", 0.02)
    monkeypatch.setattr(loops, "warm_up", lambda kv_dtype: time.sleep(0.3))
    loops.compile_loops()
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[0] == f"{loops.COMPILING} …"
    assert err.splitlines()[-1].startswith(f"{loops.COMPILING}: done after ")


def test_a_failed_compilation_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    results: Iterator[Any] = iter([RuntimeError("no compiler"), None])

    def warm_up(kv_dtype: str) -> None:
        result = next(results)
        if result is not None:
            raise result

    monkeypatch.setattr(loops, "warm_up", warm_up)
    with pytest.raises(RuntimeError, match="no compiler"):
        loops.compile_loops()
    loops.compile_loops()
    assert next(results, "used up") == "used up"


@pytest.mark.parametrize(("backend", "calls"), [("numba", ["auto", "int8"]), ("torch", [])])
def test_an_engine_compiles_what_its_backend_needs(
    backend: str, calls: list[str], tiny_llm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    monkeypatch.setattr(loops, "warm_up", made.append)
    for kv_dtype in ("auto", "auto", "int8", "int8"):
        tiny_llm(backend=backend, kv_dtype=kv_dtype)
    assert made == calls


@pytest.mark.parametrize("after", [0.0, 0.02, 60.0])
def test_progress_mentions_only_what_takes_longer(after: float, capsys: Any) -> None:
    with progress("Working", quiet=False, after=after):
        time.sleep(0.3)
    lines = capsys.readouterr().err.splitlines()
    if after > 1:
        assert lines == []
    else:
        assert lines[0] == "Working …"
        assert lines[-1].startswith("Working: done after ")


def test_progress_that_is_delayed_does_not_delay_its_body() -> None:
    start = time.monotonic()
    with progress("Working", quiet=False, after=60.0):
        pass
    assert time.monotonic() - start < 30


def test_a_body_that_fails_late_is_said_to_have_stopped(capsys: Any) -> None:
    with pytest.raises(ValueError, match="wrong"), progress("Working", quiet=False, after=0.02):
        time.sleep(0.3)
        raise ValueError("wrong")
    assert capsys.readouterr().err.splitlines()[-1].startswith("Working: stopped after ")


def test_quiet_progress_is_silent_however_long_it_takes(capsys: Any) -> None:
    with progress("Working", quiet=True, after=0.01):
        time.sleep(0.1)
    assert capsys.readouterr() == ("", "")
