"""The API as real clients use it: the `openai` package, curl, and raw sockets."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed (the extra `serve`)")
pytest.importorskip("uvicorn", reason="uvicorn is not installed (the extra `serve`)")
openai = pytest.importorskip("openai", reason="the openai client is not installed (the extra `test`)")
httpx = pytest.importorskip("httpx", reason="httpx is not installed")

from paged_ref import SamplingParams  # noqa: E402
from tests.helpers.serving import Running, running, wait_until  # noqa: E402

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


@pytest.fixture
def server(tiny_llm: Callable[..., Any]) -> Iterator[Running]:
    with running(tiny_llm()) as one:
        yield one


def client(server: Running, **options: Any) -> Any:
    return openai.OpenAI(base_url=f"{server.address}/v1", **{"api_key": "none", "max_retries": 0} | options)


def post(server: Running, body: Any, path: str = "/v1/completions", **headers: str) -> Any:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.post(
        server.address + path, content=content, headers={"content-type": "application/json"} | headers
    )


def alone(tiny_llm: Callable[..., Any], prompt: str, **sampling: Any) -> Any:
    return tiny_llm().generate([prompt], SamplingParams(**sampling))[0]


def test_a_completion_is_what_generate_returns(server: Running, tiny_llm: Callable[..., Any]) -> None:
    got = client(server).completions.create(model="tiny", prompt="Hello", max_tokens=12, temperature=0)
    expected = alone(tiny_llm, "Hello", max_tokens=12)
    assert (got.object, got.model, got.choices[0].text) == (
        "text_completion",
        "tiny",
        expected.outputs[0].text,
    )
    assert got.choices[0].finish_reason == "length"
    assert (got.usage.prompt_tokens, got.usage.completion_tokens, got.usage.total_tokens) == (5, 12, 17)


def test_samples_prompts_stop_and_seed_are_the_engines(server: Running, tiny_llm: Callable[..., Any]) -> None:
    got = client(server).completions.create(
        model="tiny", prompt=["Hello", "World"], n=3, seed=5, temperature=1, max_tokens=9
    )
    expected = [
        o.text
        for p in ("Hello", "World")
        for o in alone(tiny_llm, p, n=3, seed=5, temperature=1, max_tokens=9).outputs
    ]
    assert [c.index for c in got.choices] == list(range(6))
    assert [c.text for c in got.choices] == expected
    assert (got.usage.prompt_tokens, got.usage.completion_tokens) == (10, 54)
    whole = alone(tiny_llm, "Hello", max_tokens=40).outputs[0].text
    stop = whole[10:12]
    cut = client(server).completions.create(
        model="tiny", prompt="Hello", max_tokens=40, temperature=0, stop=[stop]
    )
    assert (cut.choices[0].text, cut.choices[0].finish_reason) == (whole[: whole.index(stop)], "stop")


def test_a_stream_has_the_same_text_and_ends_with_usage(
    server: Running, tiny_llm: Callable[..., Any]
) -> None:
    chunks = list(
        client(server).completions.create(
            model="tiny", prompt="Hello", n=2, seed=3, temperature=1, max_tokens=30, stream=True,
            stream_options={"include_usage": True},
        )
    )  # fmt: skip
    texts, reasons = ["", ""], [None, None]
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason
    expected = alone(tiny_llm, "Hello", n=2, seed=3, temperature=1, max_tokens=30)
    assert texts == [output.text for output in expected.outputs]
    assert reasons == ["length", "length"]
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 60
    assert len(chunks) > 20, "tokens arrive as they are generated"


def test_chat_renders_the_template(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = server.llm.model.tokenizer
    monkeypatch.setattr(type(tokenizer), "chat_template", TEMPLATE)
    monkeypatch.setattr(
        type(tokenizer), "apply_chat_template", raising=False,
        value=lambda self, messages, **_: {"input_ids": list("".join(m["content"] for m in messages).encode())},
    )  # fmt: skip
    ask: dict[str, Any] = {"model": "tiny", "max_completion_tokens": 6, "temperature": 0}
    messages = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    whole = client(server).chat.completions.create(messages=messages, **ask)
    assert whole.usage.prompt_tokens == 2 and whole.choices[0].message.role == "assistant"
    parts = list(client(server).chat.completions.create(messages=messages, stream=True, **ask))
    assert parts[0].choices[0].delta.role == "assistant"
    assert "".join(p.choices[0].delta.content or "" for p in parts) == whole.choices[0].message.content


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{", 400, "not valid JSON"),
        (b"[" * 100_000, 400, "not valid JSON"),
        (b"[]", 400, "must be a JSON object"),
        (b"\xff\xfe", 400, "not valid JSON"),
        (b'{"prompt": "a", "temperature": NaN}', 400, "NaN is not a JSON number"),
        ({}, 400, "prompt must be"),
        ({"prompt": ""}, 400, "prompt must be"),
        ({"prompt": [[]]}, 400, "prompt 0"),
        ({"prompt": ["a", 1]}, 400, "prompt 1"),
        ({"prompt": [True]}, 400, "prompt"),
        ({"prompt": [9999]}, 400, "9999, but|9999: the vocabulary"),
        ({"prompt": "\ud800"}, 400, "cannot be encoded|not text"),
        ({"prompt": "a", "model": "gpt"}, 404, "gpt"),
        ({"prompt": "a", "echo": True}, 400, "echo is not supported"),
        ({"prompt": "a", "logprobs": 0}, 400, "logprobs is not supported"),
        ({"prompt": "a", "max_tokens": 0}, 400, "max_tokens = 0"),
        ({"prompt": "a", "max_tokens": "7"}, 400, "max_tokens"),
        ({"prompt": "a", "n": True}, 400, "n = True"),
        ({"prompt": "a", "n": 1000}, 400, "max_num_seqs"),
        ({"prompt": "a", "seed": -1}, 400, "seed = -1"),
        ({"prompt": "a", "top_p": 0}, 400, "top_p = 0"),
        ({"prompt": "a", "stop": [""]}, 400, "stop"),
        ({"prompt": "a", "stop": list("abcde")}, 400, "up to 4"),
        ({"prompt": "a", "stream": 1}, 400, "stream"),
        ({"prompt": "a", "stream_options": {}}, 400, "stream_options"),
        ({"prompt": "a" * 3000}, 400, "positions"),
        ({"prompt": "a" * 1500, "max_tokens": 900, "stream": True, "n": 3}, 400, "blocks"),
        ({"prompt": "a" * (1 << 21)}, 413, "more than"),
    ],
)  # fmt: skip
def test_a_wrong_request_gets_an_error_object(server: Running, body: Any, status: int, words: str) -> None:
    got = post(server, body)
    assert got.status_code == status, got.text
    error = got.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"
    assert any(part in error["message"] for part in words.split("|")), error["message"]
    assert server.service.engine.reserved == 0
    assert client(server).completions.create(model="tiny", prompt="a", max_tokens=1).choices


def test_the_openai_client_raises_its_own_errors(server: Running) -> None:
    with pytest.raises(openai.NotFoundError, match="not served"):
        client(server).completions.create(model="other", prompt="a")
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client(server).completions.create(model="tiny", prompt="a", temperature=-1)
    assert [model.id for model in client(server).models.list()] == ["tiny"]
    assert post(server, {"prompt": "a"}, **{"content-type": "text/plain"}).status_code == 415
    assert httpx.get(f"{server.address}/nowhere").json()["error"]["message"] == "Not Found"


def test_the_api_asks_for_its_key(tiny_llm: Callable[..., Any]) -> None:
    with running(tiny_llm(), api_key="right") as server:
        with pytest.raises(openai.AuthenticationError):
            client(server, api_key="wrong").completions.create(model="tiny", prompt="a")
        with pytest.raises(openai.AuthenticationError):
            client(server, api_key="rightx").models.list()
        assert (
            client(server, api_key="right").completions.create(model="tiny", prompt="a", max_tokens=1).choices
        )
        assert httpx.get(f"{server.address}/health").status_code == 200


def test_a_full_queue_answers_429_and_recovers(tiny_llm: Callable[..., Any]) -> None:
    with running(tiny_llm(max_num_seqs=1), max_queue=1) as server:
        server.service.engine.control(paused=True, delay=0)
        first = [stream_of(server, f"GET me {i}", 4) for i in range(2)]
        wait_until(lambda: server.service.engine.reserved == 2, "two requests are accepted")
        got = post(server, {"prompt": "a"})
        assert got.status_code == 429 and 1 <= int(got.headers["retry-after"]) <= 60
        assert got.json()["error"]["type"] == "rate_limit_error"
        assert post(server, {"prompt": ["a"] * 3}).status_code == 429
        server.service.engine.control(paused=False, delay=0)
        for one in first:
            assert b"[DONE]" in read_all(one)
        wait_until(lambda: server.service.engine.reserved == 0, "all room is given back")
        assert post(server, {"prompt": "a"}).status_code == 200
        assert post(server, {"prompt": ["a"] * 3}).status_code == 400


def stream_of(server: Running, prompt: str, max_tokens: int, stream: bool = True) -> socket.socket:
    """Send a request through a socket of our own, and read nothing."""
    body = json.dumps({"prompt": prompt, "max_tokens": max_tokens, "stream": stream}).encode()
    one = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
    )
    one.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return one


def read_all(one: socket.socket) -> bytes:
    parts = []
    while part := one.recv(65536):
        parts.append(part)
    one.close()
    return b"".join(parts)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_blocks_at_once(tiny_llm: Callable[..., Any], stream: bool) -> None:
    with running(tiny_llm(enable_prefix_caching=False)) as server:
        server.service.engine.control(paused=False, delay=0.02)
        one = stream_of(server, "Hello", 1500, stream)
        wait_until(lambda: server.llm.pool.num_used > 0, "the request runs")
        one.close()
        wait_until(lambda: server.llm.pool.num_used == 0, "its blocks are free", 3)
        assert server.llm.metrics.generated_tokens < 1000
        assert server.llm.scheduler.finished["abort"] == 1
        wait_until(lambda: server.service.engine.reserved == 0, "its room is given back", 3)


def test_a_slow_reader_is_dropped_and_others_are_served(
    tiny_llm: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paged_ref.server.engine_thread.MOST_UNREAD", 20)
    monkeypatch.setattr("paged_ref.server.transport.SEND_SECONDS", 1)
    with running(tiny_llm(num_blocks=2100)) as server:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        slow.connect(("127.0.0.1", server.port))
        body = json.dumps(
            {"prompt": "a", "max_tokens": 2000, "n": 8, "temperature": 1, "stream": True}
        ).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        slow.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert post(server, {"prompt": "b", "max_tokens": 5}).status_code == 200
        wait_until(lambda: server.llm.scheduler.finished["abort"] == 8, "the slow reader is dropped")
        assert server.llm.pool.num_used == 0
        slow.close()
        wait_until(lambda: server.service.engine.reserved == 0, "its room is given back", 5)


def test_health_and_metrics(server: Running) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    post(server, {"prompt": "a", "max_tokens": 3})
    families = {
        f.name: f for f in text_string_to_metric_families(httpx.get(f"{server.address}/metrics").text)
    }
    assert families["vllm:generation_tokens"].samples[0].value == 3
    server.service.engine.failed = "a reason"
    assert httpx.get(f"{server.address}/health").status_code == 503
    assert post(server, {"prompt": "a"}).status_code == 503


def test_a_failed_engine_ends_every_request(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(server.llm, "step", fail)
    got = post(server, {"prompt": "a"})
    assert got.status_code == 503
    assert "shutting down" in got.json()["error"]["message"] or "device" in got.json()["error"]["message"]
    wait_until(lambda: httpx.get(f"{server.address}/health").status_code == 503, "health says so")


def test_a_request_that_arrives_as_the_engine_fails_gets_an_answer(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine ends while a prompt is tokenized, after the request was accepted and before it is submitted."""
    engine, submit = server.service.engine, server.service.engine.submit

    def late(*arguments: Any) -> Any:
        engine.stop()
        return submit(*arguments)

    monkeypatch.setattr(engine, "submit", late)
    got = httpx.post(f"{server.address}/v1/completions", json={"prompt": "a"}, timeout=5)
    assert got.status_code == 503
    assert engine.reserved == 0 and not engine.live


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl(server: Running) -> None:
    body = '{"model": "tiny", "prompt": "Hello", "max_tokens": 4, "stream": true}'
    command = ["curl", "-sN", "--json", body, f"{server.address}/v1/completions"]
    out = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    lines = [line for line in out.splitlines() if line]
    assert lines[-1] == "data: [DONE]"
    assert json.loads(lines[0].removeprefix("data: "))["object"] == "text_completion"
