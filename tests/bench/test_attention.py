"""The benchmark's command, on shapes small enough for a test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bench import attention as bench
from bench.__main__ import main
from bench.attention import Shape


def test_the_command_writes_a_table_and_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shapes = [Shape("tiny", 3, 50, 4, 2, 16, dtype) for dtype in ("float32", "bfloat16")]
    monkeypatch.setattr(bench, "CPU_SHAPES", shapes)
    monkeypatch.setattr(bench, "read_bandwidth", lambda device: 1e10)
    grid = bench.cases()
    monkeypatch.setattr(bench, "cases", lambda: [c for c in grid if c.context == "37"])
    output = tmp_path / "result.json"
    assert main(["attention", "--quick", "--cpu", "--output", str(output)]) == 0
    table = capsys.readouterr().out
    assert "tiny 3 x 50 bfloat16" in table
    result = json.loads(output.read_text())
    assert result["grid_checks_passed"] > 0
    assert {row["backend"] for row in result["rows"]} == {
        "numba",
        "torch",
        "numba, one block",
        "contiguous (SDPA)",
    }
    for row in result["rows"]:
        seconds = row["milliseconds"] / 1e3
        assert row["share"] == pytest.approx(row["gigabytes"] * 1e9 / seconds / 1e10)


def test_bytes_are_every_key_and_value_once() -> None:
    assert bench.llama(32, 4096).num_bytes == 2 * 32 * 4096 * 8 * 128 * 2


def test_a_wrong_backend_stops_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "paged_attention", lambda query, *_, **__: torch.zeros_like(query))
    with pytest.raises(RuntimeError, match=r"numba is wrong on d24.*error"):
        bench.check_grid(torch.device("cpu"), ["numba"], 1, lambda _: None)
