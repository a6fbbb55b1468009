"""The live page in Chromium: two visitors, desktop and phone; keys, presenter, no text unless it is turned on."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed (the extra `serve`)")
pytest.importorskip("uvicorn", reason="uvicorn is not installed (the extra `serve`)")

from paged_ref.server.observer import SHARE
from tests.helpers.serving import Running, running, wait_until

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ARGUMENTS = ["--disable-gpu", "--disable-background-networking", "--no-first-run"]
ARGUMENTS += ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []


def post(server: Running, path: str, body: Any, **headers: str) -> int:
    head = {"content-type": "application/json"} | headers
    request = urllib.request.Request(server.address + path, json.dumps(body).encode(), head)
    try:
        return int(urllib.request.urlopen(request, timeout=30).status)
    except urllib.error.HTTPError as error:
        return error.code


def sees(page: Any, selector: str, text: str) -> None:
    """Wait for a text; Playwright's own waiting would need eval, which the page's policy forbids."""
    wait_until(lambda: text in page.inner_text(selector), f"{selector} says {text!r}")


def first_frame(server: Running) -> dict[str, Any]:
    with urllib.request.urlopen(f"{server.address}/events", timeout=10) as stream:
        return dict(json.loads(stream.readline().removeprefix(b"data: ")))


def test_the_page_is_served_with_a_strict_policy(tiny_llm: Callable[..., Any]) -> None:
    with running(tiny_llm()) as server:
        for path in ("/", "/page.js", "/page.css", "/icon.svg"):
            reply = urllib.request.urlopen(server.address + path)
            assert "default-src 'none'" in reply.headers["content-security-policy"]
            text = reply.read().decode()
            assert "http://" not in text.replace("http://www.w3.org/2000/svg", "") and "https://" not in text
            assert "unsafe" not in reply.headers["content-security-policy"]


@pytest.mark.parametrize("show", [False, True])
def test_frames_hold_text_only_if_the_presenter_wants_it(tiny_llm: Callable[..., Any], show: bool) -> None:
    with running(tiny_llm(), presenter_key="key", show_text=show) as server:
        server.service.engine.control(paused=True, delay=0)
        body = {"prompt": "a secret", "max_tokens": 3}
        thread = threading.Thread(target=post, args=(server, "/v1/completions", body))
        thread.start()
        wait_until(lambda: server.llm.scheduler.has_work, "the request waits")
        frame = first_frame(server)
        assert ("secret" in json.dumps(frame)) is show
        assert frame["paused"] and frame["requests"][0]["prompt"] == 8
        assert post(server, "/control", {"paused": False}) == 401
        assert post(server, "/control", {"paused": False}, **{"x-presenter-key": "wrong"}) == 401
        assert post(server, "/control", {"delay": "x"}, **{"x-presenter-key": "key"}) == 400
        assert post(server, "/control", {"paused": True, "steps": 1}, **{"x-presenter-key": "key"}) == 200
        wait_until(lambda: server.llm.metrics.steps == 1, "one step is taken")
        time.sleep(0.1)
        assert server.llm.metrics.steps == 1
        assert post(server, "/control", {"paused": False}, **{"x-presenter-key": "key"}) == 200
        thread.join(20)
        assert server.llm.metrics.generated_tokens == 3


def test_frames_take_their_share_of_the_time_and_no_more(tiny_llm: Callable[..., Any]) -> None:
    """A pool of 100,000 blocks, most of them cached and scattered: frames get rare, not steps."""
    with running(tiny_llm(num_blocks=100_000)) as server:
        cache = server.llm.pool.prefix_cache
        observer = server.service.observer
        scattered = list(range(0, 100_000, 2))
        cache.blocks = lambda: scattered
        with urllib.request.urlopen(f"{server.address}/events", timeout=10) as stream:
            stream.readline()
            frames, seconds, started = observer.frames, observer.seconds, time.monotonic()
            assert post(server, "/v1/completions", {"prompt": "a", "max_tokens": 1000}) == 200
            lasted = time.monotonic() - started
            slowest = (observer.seconds - seconds) / max(1, observer.frames - frames)
            assert observer.seconds - seconds < 2 * SHARE * lasted + 3 * slowest
            assert observer.frames - frames < server.llm.metrics.steps / 5
        del cache.blocks


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine: install Debian's chromium")
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.mark.slow
def test_two_visitors_see_and_use_the_page(browser: Any, tiny_llm: Callable[..., Any]) -> None:
    errors: list[str] = []
    with running(tiny_llm(), presenter_key="key") as server:
        desk = browser.new_page(viewport={"width": 1440, "height": 900})
        phone = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
        for page in (desk, phone):
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
        desk.goto(f"{server.address}/#presenter=key")
        phone.goto(server.address)
        assert phone.evaluate("document.documentElement.scrollWidth") == 390
        assert phone.locator("#pause").is_hidden() and desk.locator("#pause").is_visible()
        sees(desk, "#summary", "of 256 blocks")
        desk.keyboard.press("p")
        desk.wait_for_selector("#step:not([disabled])")
        phone.fill("#prompt", "from a phone")
        phone.fill("#tokens", "20")
        phone.fill("#samples", "2")
        phone.click("#send")
        desk.wait_for_selector("#requests tr")
        assert "hidden" in desk.inner_text("#requests") and "phone" not in desk.inner_text("#requests")
        for _ in range(3):
            desk.keyboard.press("s")
        sees(desk, "#summary", "shared")
        wait_until(lambda: server.llm.metrics.steps == 3, "three steps are taken")
        sees(desk, "#reserved-text", "filled")
        desk.focus("#map")
        desk.keyboard.press("ArrowRight")
        sees(desk, "#detail", "request 1")
        assert "held" in desk.get_attribute("#map", "aria-label")
        desk.keyboard.press("Escape")
        assert desk.inner_text("#detail") == ""
        desk.keyboard.press("p")
        sees(phone, "#state", "Done.")
        assert "Sample 2" in phone.inner_text("#reply")
        wait_until(lambda: phone.locator("#requests tr").count() == 0, "the request is gone")
        phone.fill("#tokens", "99999")
        phone.click("#send")
        assert server.llm.metrics.generated_tokens == 40, "the browser refuses a wrong number"
        desk.close()
        phone.close()
    assert errors == []
