"""Every lesson in a real browser: JupyterLab is started, all cells are run, a slider is moved.

The lessons are opened in a copy of the repository, with their outputs taken out, so that what is seen comes from
this run and the working tree stays as it is. nbval compares outputs; this looks at what only a page can get wrong.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import nbformat
import pytest

from coursekit import ROOT
from coursekit.build.lessons import expand_lesson

pytestmark = pytest.mark.slow

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
LESSONS = [path.name for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]
# A minute each on a real model, and no kind of view that the others have not: only with --full.
LONG = ("04_sharing.ipynb", "07_batched_decode.ipynb")
HAS_SLIDER = re.compile(r"step_slider\(|\.explore\(|=range\(")  # a view with one, as lessons write it
RUN_SECONDS = 900  # a lesson takes a minute; a loaded machine is given time
NOT_COPIED = (".git", ".venv", "work", ".*_cache", ".hypothesis", "__pycache__", ".ipynb_checkpoints")
# Without a sandbox only where Chromium refuses to start with one: as root, in a container.
ARGUMENTS = ["--disable-gpu", "--disable-background-networking", "--disable-sync", "--no-first-run"]
ARGUMENTS += ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
THEME = os.environ.get("COURSE_THEME", "JupyterLab Dark")
SETTINGS = {
    # All cells are in the page, not only those in view; and nothing is asked or fetched.
    "@jupyterlab/notebook-extension/tracker.jupyterlab-settings": '{"windowingMode": "none"}',
    "@jupyterlab/apputils-extension/themes.jupyterlab-settings": f'{{"theme": "{THEME}"}}',
}

GUESS = """# %% [markdown]
# # A guess

# %% [raw] predict="99-product"
# question: How much is six times seven?
# number: 42

# %% answers="99-product"
print("six times seven is", 6 * 7)
"""

if CHROMIUM is None:
    pytest.skip("there is no Chromium on this machine: install Debian's chromium", allow_module_level=True)
sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")


def wait_until(condition: Any, seconds: float, what: str) -> None:
    """Look twice a second until the condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.5)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository with the outputs of its notebooks taken out."""
    folder = tmp_path_factory.mktemp("browser") / "course"
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*NOT_COPIED))
    for path in (folder / "notebooks").glob("*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
        nbformat.write(notebook, path)
    (folder / "curriculum/lessons/99_guess.py").write_text(GUESS, encoding="utf-8")
    nbformat.write(folded_notebook(), folder / "notebooks/99_guess.ipynb")
    return folder


def folded_notebook() -> Any:
    """The built form of GUESS, with the answer's output stored and folded."""
    notebook = expand_lesson(GUESS)[0]
    answer = notebook.cells[-1]
    answer.outputs = [nbformat.v4.new_output("stream", name="stdout", text="six times seven is 42\n")]
    answer.execution_count = 1
    return notebook


@pytest.fixture(scope="module")
def server(copy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """JupyterLab as a learner starts it, with settings of its own: its address and its token."""
    settings = tmp_path_factory.mktemp("settings")
    for name, text in SETTINGS.items():
        (settings / name).parent.mkdir(parents=True, exist_ok=True)
        (settings / name).write_text(text, encoding="utf-8")
    port, token = free_port(), secrets.token_hex(8)
    environment = os.environ | {
        "JUPYTER_TOKEN": token,
        "JUPYTERLAB_SETTINGS_DIR": str(settings),
        "PYTHONPATH": str(copy),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PAGED_COURSE_PROGRESS": str(copy.parent / "progress.json"),
    }
    log = copy.parent / "lab.log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "coursekit", "lab", "0", "--no-browser", "--port", str(port)],
            cwd=copy,
            env=environment,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    address = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        if process.poll() is not None:
            pytest.fail(f"JupyterLab ended:\n{log.read_text()}")
        with suppress(OSError):
            return bool(urllib.request.urlopen(f"{address}/api", timeout=5).status == 200)
        return False

    try:
        wait_until(answers, 120, "JupyterLab answers")
        yield address, token
    finally:
        process.terminate()
        process.wait(timeout=30)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield chromium
        chromium.close()


def run_all(page: Any, path: Path) -> Any:
    """Run all cells and save; the notebook as it was saved."""
    page.click(".jp-Notebook .jp-Cell >> nth=0")
    page.click(".lm-MenuBar-itemLabel >> text=/^Run$/")
    page.click(".lm-Menu-itemLabel >> text=/^Run All Cells$/")

    def saved() -> Any:
        page.keyboard.press("Control+s")
        time.sleep(1)
        return nbformat.read(path, as_version=4)

    def done() -> bool:
        status = page.locator(".jp-Notebook-ExecutionIndicator").first.get_attribute("data-status")
        code = [cell for cell in saved().cells if cell.cell_type == "code"] if status == "idle" else [None]
        return all(cell is not None and cell.execution_count for cell in code)

    wait_until(done, RUN_SECONDS, f"all cells of {path.name} run")
    return saved()


def move_first_slider(page: Any) -> None:
    """Move it with the keyboard, and see the picture in its view change."""
    view = page.locator(".widget-vbox").filter(has=page.locator(".widget-slider")).first
    handle, picture = view.locator(".noUi-handle").first, view.locator("img").first
    handle.scroll_into_view_if_needed()
    before, alt = picture.get_attribute("src"), picture.get_attribute("alt")
    assert alt, "the picture under a slider has no alt text"
    handle.focus()
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    wait_until(lambda: picture.get_attribute("src") != before, 20, "the picture under the slider changes")


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_runs_in_the_browser(
    lesson: str, server: tuple[str, str], copy: Path, browser: Any, full: bool
) -> None:
    if lesson in LONG and not full:
        pytest.skip("takes a minute and shows no kind of view that others do not: run with --full")
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    try:
        open_notebook(page, server, f"notebooks/{lesson}")
        notebook = run_all(page, copy / "notebooks" / lesson)
        wrong = [
            f"{output.ename}: {output.evalue}"
            for cell in notebook.cells
            if cell.cell_type == "code" and "raises-exception" not in cell.metadata.get("tags", [])
            for output in cell.outputs
            if output.output_type == "error"
        ]
        assert wrong == []
        views = sum("[Interactive" in str(cell.get("outputs", "")) for cell in notebook.cells)
        assert page.locator(".jupyter-widgets.widget-vbox").count() >= views
        assert page.get_by_text("Error displaying widget").count() == 0
        source = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
        if HAS_SLIDER.search(source):
            move_first_slider(page)
        dialogs = page.locator(".jp-Dialog").all_inner_texts()
        assert errors == [] and dialogs == []
    finally:
        if shots := os.environ.get("COURSE_SCREENSHOTS"):
            _screenshots(page, Path(shots), lesson)
        page.close()


def open_notebook(page: Any, server: tuple[str, str], path: str) -> None:
    """Open a notebook and wait until its kernel runs: a cell that is run before only loses its output."""
    address, token = server
    page.goto(f"{address}/lab/tree/{path}?token={token}&reset")
    page.get_by_text("| Idle").wait_for(timeout=120_000)  # the status bar, once the notebook kernel runs
    page.wait_for_selector(".jp-Notebook .jp-CodeCell", timeout=60_000)


def run_cell(page: Any, number: int) -> None:
    """Run a code cell as a learner does: a click into it, then Shift + Enter."""
    page.click(f".jp-CodeCell >> nth={number} >> .jp-InputPrompt")
    page.keyboard.press("Shift+Enter")


def test_a_learners_copy_takes_a_guess_and_shows_no_answer_until_its_cell_runs(
    server: tuple[str, str], copy: Path, browser: Any
) -> None:
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    open_notebook(page, server, "work/notebooks/99_guess.ipynb")
    try:
        assert page.locator(".jp-Notebook .jp-Cell").count() == 4
        answer = page.get_by_text("six times seven is 42")
        run_cell(page, 0)
        entry = page.locator(".widget-text input")
        entry.wait_for(timeout=60_000)
        for guess, reply in (("84", "by a factor of about 2"), ("forty", "Type a number"), ("42", "Right.")):
            entry.fill(guess)
            entry.press("Enter")
            page.get_by_text(reply).wait_for(timeout=20_000)
        assert answer.count() == 0
        saved = json.loads((copy.parent / "predictions.json").read_text())["guesses"]["99-product"]
        assert (saved["first"], saved["last"], saved["right"], saved["tries"]) == ("84", "42", True, 2)
        run_cell(page, 1)
        answer.wait_for(state="visible", timeout=20_000)
    finally:
        screenshot(page, "guess")
        page.close()


def test_a_folded_answer_opens_when_its_cell_runs(server: tuple[str, str], browser: Any) -> None:
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    open_notebook(page, server, "notebooks/99_guess.ipynb")
    try:
        assert page.locator(".jp-OutputPlaceholder").count() == 1
        run_cell(page, 1)
        page.get_by_text("six times seven is 42").wait_for(state="visible", timeout=20_000)
        assert page.locator(".jp-OutputPlaceholder").count() == 0
    finally:
        screenshot(page, "folded")
        page.close()


def screenshot(page: Any, name: str) -> None:
    """Save what the page shows, if somebody wants to look at it."""
    if shots := os.environ.get("COURSE_SCREENSHOTS"):
        Path(shots).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(shots) / f"{name}.png")


def _screenshots(page: Any, folder: Path, lesson: str) -> None:
    """Pages of the lesson as pictures, for whoever wants to look at them."""
    folder.mkdir(parents=True, exist_ok=True)
    outer = page.locator(".jp-WindowedPanel-outer").first
    height = outer.evaluate("panel => panel.scrollHeight")
    for number, top in enumerate(range(0, height, 900)):
        outer.evaluate("(panel, top) => panel.scrollTo(0, top)", top)
        time.sleep(0.3)
        page.screenshot(path=folder / f"{Path(lesson).stem}_{number:02}.png")
