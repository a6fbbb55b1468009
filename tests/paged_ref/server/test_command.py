"""The command: its addresses, its errors, and a drain at SIGTERM."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed (the extra `serve`)")
pytest.importorskip("uvicorn", reason="uvicorn is not installed (the extra `serve`)")

from coursekit import ROOT
from paged_ref.__main__ import main

SERVER = """
import logging
logging.basicConfig(format="%(message)s", level=logging.INFO)
from tests.helpers.tiny import make_tiny
from paged_ref import LLM
from paged_ref.server.app import Settings, make_app
from paged_ref.server.run import serve
llm = LLM(make_tiny().paged, num_blocks=256, block_size=8)
app = make_app(llm, Settings("tiny", presenter_key="key"))
app.state.service.engine.delay = 0.005
code = serve(app, "127.0.0.1", 0, 20)
llm.pool.check()
print("ended", code, llm.pool.num_used, flush=True)
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM")
def test_sigterm_finishes_the_running_request(tmp_path: Any) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stdout is not None
    lines: list[str] = []
    address = ""
    while not address:
        line = process.stdout.readline()
        assert line, lines
        lines.append(line)
        found = re.search(r"page +(http://127.0.0.1:\d+)/", line)
        address = found.group(1) if found else ""
    page = urllib.request.urlopen(f"{address}/events", timeout=20)  # an open page does not hold the server
    body = json.dumps({"prompt": "my secret", "max_tokens": 400, "temperature": 0}).encode()
    replies: list[Any] = []

    def ask() -> None:
        request = urllib.request.Request(
            f"{address}/v1/completions", body, {"content-type": "application/json"}
        )
        replies.append(json.load(urllib.request.urlopen(request, timeout=60)))

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(1)
    assert not replies
    process.send_signal(signal.SIGTERM)
    thread.join(60)
    assert replies and replies[0]["usage"]["completion_tokens"] == 400
    rest, _ = process.communicate(timeout=30)
    page.close()
    assert "ended 0 0" in rest
    assert "secret" not in rest + "".join(lines)


def test_wrong_options_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", "70000"]) == 2
    assert "--port 0 to 65535" in capsys.readouterr().err


def test_a_missing_extra_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paged_ref.cli.serve.find_spec", lambda name: None)
    assert main(["serve"]) == 2
    assert "[serve]" in capsys.readouterr().err
