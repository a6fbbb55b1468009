"""The server under fire: a few seconds by default, a minute with 200 clients with --full."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed (the extra `serve`)")
pytest.importorskip("uvicorn", reason="uvicorn is not installed (the extra `serve`)")
pytest.importorskip("resource", reason="the module resource is missing on this system")

from bench.under_fire import attack


def test_no_block_is_lost_and_those_who_stay_get_the_right_text(
    tiny_llm: Callable[..., Any], full: bool
) -> None:
    clients, seconds = (200, 60) if full else (40, 3)
    report = asyncio.run(attack(tiny_llm(num_blocks=120, max_num_seqs=16), clients, seconds))
    print(report)
    assert report["wrong"] == []
    assert (report["blocks_held"], report["requests_left"], report["reserved"]) == (0, 0, 0)
    outcomes = report["outcomes"]
    assert outcomes["stay: 200"] > 0 and outcomes["stay: 429"] > 0 and report["good_tokens_per_second"] > 0
    assert outcomes["rubbish: 400"] > 0
    assert not {key for key in outcomes if key.endswith("500")}
    assert report["memory_growth_in_second_half_mib"] < 64
