"""The trainer in Chromium at phone size: offline, updated, damaged, private, by keyboard, and small."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coursekit.quiz import progress
from coursekit.quiz.bank import load_bank
from coursekit.quiz.progress import Record
from coursekit.site import trainer
from coursekit.site.command import server

pytestmark = pytest.mark.slow
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if CHROMIUM is None:
    pytest.skip("there is no Chromium on this machine: install Debian's chromium", allow_module_level=True)
sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
ARGUMENTS = ["--disable-gpu", "--disable-background-networking", "--disable-sync", "--no-first-run"]
ARGUMENTS += ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
KEY = "paged-attention-course.interview"
RECORD = Record("2031-05-17T10:00:00+00:00", "a-question-of-long-ago", "sizing", 2, 0.5, 0.0, "test")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    folder = tmp_path / "site"
    trainer.write_trainer(folder / "trainer")
    web = server(folder, 0)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{web.server_address[1]}/trainer/", folder / "trainer"
    web.shutdown()
    web.server_close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    yield page
    context.close()
    assert problems == []


def start(page: Any) -> None:
    page.get_by_role("button", name="Start").first.click()
    page.wait_for_selector("h1.small")


def give_up(page: Any) -> None:
    page.get_by_role("button", name="I don’t know").click()
    page.locator("button.primary").last.click()


def saved(page: Any) -> list[dict[str, Any]]:
    return list(json.loads(page.evaluate(f"localStorage.getItem('{KEY}')"))["answers"])


def wait_for_worker(page: Any) -> None:
    page.evaluate("navigator.serviceWorker.ready.then(() => true)")
    page.wait_for_function("navigator.serviceWorker.controller !== null")


def test_it_is_small_and_asks_within_a_second(page: Any, site: tuple[str, Path]) -> None:
    assert sum(len(gzip.compress(file.read_bytes())) for file in site[1].iterdir()) < 1_000_000
    page.goto("about:blank")
    begin = time.monotonic()
    page.goto(site[0])
    start(page)
    assert time.monotonic() - begin < (1 if os.environ.get("COURSE_TIMINGS") else 10)
    own = page.evaluate(
        "performance.getEntriesByType('resource').every((one) => one.name.startsWith(location.origin))"
    )
    assert own, "an external resource"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_after_one_visit_it_works_without_a_network(page: Any, site: tuple[str, Path]) -> None:
    page.goto(site[0])
    wait_for_worker(page)
    page.context.set_offline(True)
    page.reload()
    start(page)
    for _ in range(5):
        give_up(page)
    assert page.locator("h1").inner_text() == "Five questions: 0 of 5"
    page.reload()
    assert len(saved(page)) == 5


def test_a_new_bank_keeps_the_progress(
    page: Any, site: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    page.goto(site[0])
    wait_for_worker(page)
    text = json.dumps({"version": 1, "answers": [vars(RECORD)]})
    page.evaluate("([key, text]) => localStorage.setItem(key, text)", [KEY, text])
    smaller = trainer.bank_as_data(load_bank())
    smaller["questions"] = smaller["questions"][::2]
    monkeypatch.setitem(trainer.DATA, "questions.json", lambda: smaller)
    trainer.write_trainer(site[1])
    page.reload()
    page.get_by_role("button", name="Reload").click()
    page.get_by_text(f"{len(smaller['questions'])} questions.").wait_for()
    start(page)
    give_up(page)
    assert saved(page)[0]["question"] == RECORD.question and len(saved(page)) == 2
    assert page.evaluate("caches.keys().then((names) => names.length)") == 1


@pytest.mark.parametrize("text", ["{", "null", '{"version": 1, "answers": [{"when": 1}]}'])
def test_a_damaged_store_is_set_aside(text: str, page: Any, site: tuple[str, Path]) -> None:
    page.goto(site[0])
    page.evaluate("([key, text]) => localStorage.setItem(key, text)", [KEY, text])
    page.reload()
    page.get_by_text("was damaged").wait_for()
    start(page)
    give_up(page)
    assert len(saved(page)) == 1
    assert page.evaluate(f"localStorage.getItem('{KEY}.damaged-1')") == text


def test_a_newer_store_is_left_alone(page: Any, site: tuple[str, Path]) -> None:
    page.goto(site[0])
    newer = '{"version": 2, "answers": []}'
    page.evaluate("([key, text]) => localStorage.setItem(key, text)", [KEY, newer])
    page.reload()
    page.get_by_text("newer version").wait_for()
    start(page)
    give_up(page)
    assert page.evaluate(f"localStorage.getItem('{KEY}')") == newer


def test_it_works_where_storage_is_refused(page: Any, site: tuple[str, Path]) -> None:
    refuse = "get() { throw new DOMException('no', 'SecurityError'); }"
    page.add_init_script(f"Object.defineProperty(window, 'localStorage', {{ {refuse} }})")
    page.goto(site[0])
    page.get_by_text("does not let the page store").wait_for()
    start(page)
    for _ in range(5):
        give_up(page)
    assert page.locator(".levels li").count() >= 3


def test_export_import_and_delete(page: Any, site: tuple[str, Path], tmp_path: Path) -> None:
    page.goto(site[0])
    start(page)
    give_up(page)
    page.goto(site[0] + "#progress")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    file = tmp_path / "interview.json"
    download.value.save_as(file)
    records = progress.load(file).records
    assert len(records) == 1 and records[0].question in load_bank().questions
    progress.load(file).add(RECORD)
    page.set_input_files("#file", str(file))
    page.get_by_text("1 new answer.", exact=True).wait_for()
    assert len(saved(page)) == 2
    file.write_text("{")
    page.set_input_files("#file", str(file))
    page.get_by_text("Nothing was changed").wait_for()
    assert len(saved(page)) == 2
    page.get_by_role("button", name="Delete…").click()
    page.get_by_role("button", name="Delete them").click()
    page.get_by_text("Deleted.", exact=True).wait_for()
    assert page.evaluate("localStorage.length") == 0


def test_a_choice_by_keyboard_and_with_roles(page: Any, site: tuple[str, Path]) -> None:
    page.goto(site[0])
    wait_for_worker(page)
    page.get_by_role("button", name="Exam of 40 questions").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("h1.small")
    while page.get_by_role("group", name="Options").count() == 0:
        page.get_by_role("button", name="I don’t know").click()
    assert page.evaluate("document.activeElement.tagName") == "H1"
    assert page.get_by_role("radio").count() >= 3
    page.keyboard.press("b")
    assert page.get_by_role("radio").nth(1).is_checked()
    page.keyboard.press("ArrowDown")
    assert page.get_by_role("radio").nth(2).is_checked()
    page.keyboard.press("Enter")
    assert "Question" in page.get_by_role("heading", level=1).inner_text()
    assert len(saved(page)) >= 1


def test_every_wrong_option_has_its_reason_and_nothing_is_said_twice(
    page: Any, site: tuple[str, Path]
) -> None:
    page.goto(site[0])
    for _ in range(4):
        page.goto(site[0] + "#home")
        start(page)
        for _ in range(5):
            choice = page.get_by_role("group", name="Options").count() > 0
            page.get_by_role("button", name="I don’t know").click()
            assert page.evaluate("document.activeElement.closest('.verdict') !== null")
            if choice:
                reasons = page.locator(".reasons li:not(.right) p").all_inner_texts()
                assert len(reasons) == len(set(reasons)) == page.locator(".reasons li").count() - 1 and all(
                    reasons
                )
                return
            page.locator("button.primary").last.click()
    raise AssertionError("no choice among 20 questions")
