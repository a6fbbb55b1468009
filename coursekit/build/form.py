"""The form of a lesson: the parts that every lesson has, checked without running anything.

"A lesson" in curriculum/README.md describes them. `OLD_FORM` lists the lessons that are not converted yet. It only
shrinks: a listed lesson that has the form is a fault, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from nbformat import NotebookNode

from coursekit.build.lessons import exercise_headers
from coursekit.build.targets import Target, targets
from coursekit.learner.question import questions

OLD_FORM = {
    "02_block_table", "03_numpy_gather", "04_sharing", "05_triton_kernel", "06_scheduling", "07_batched_decode",
    "10_interview",
}  # fmt: skip
GLOSSARY = "docs/glossary.md"
STORY = "> **On call.**"
TODAY = "In vLLM and SGLang today"
DONE = "You are done when"


def form_faults(root: Path, names: list[str] | None = None) -> Iterator[tuple[str, str, str]]:
    """Yield (file, fault, remedy) for each lesson that lacks a part of the form; nothing without a glossary."""
    if not (root / GLOSSARY).is_file():
        return
    terms = set(anchors((root / GLOSSARY).read_text(encoding="utf-8")))
    for target in targets(root, names):
        if target.kind != "lesson":
            continue
        file = target.relative(target.source)
        notebook = target.notebook()
        for term in links_to_glossary(notebook):
            if term not in terms:
                yield file, f"{GLOSSARY} has no heading {term!r}", "fix the link, or add the term"
        missing = list(missing_parts(target, notebook))
        if target.name not in OLD_FORM:
            yield from ((file, what, remedy) for what, remedy in missing)
        elif not missing:
            yield file, "it has the form of a lesson", "take it off OLD_FORM in coursekit/build/form.py"


def missing_parts(target: Target, notebook: NotebookNode) -> Iterator[tuple[str, str]]:
    """Yield (fault, remedy) for each part of the form that a lesson lacks."""
    prose = [cell.source if cell.cell_type == "markdown" else "" for cell in notebook.cells]
    whole = "\n\n".join(prose)
    if not re.search(r"^\d+\. \[.*\]\(#", prose[0], re.M):
        yield "the first cell has no contents", "list the sections there: `1. [Title](#1-title)`"
    recall = prose[1] if len(prose) > 1 else ""
    if not recall.startswith("## Recall") or recall.count("<details>") != 3:
        yield (
            "the second cell does not have three recall questions",
            "start it with `## Recall` and fold each answer in `<details>`",
        )
    if whole.count(STORY) != 1:
        yield f"the running story stands in {whole.count(STORY)} places", f"give it one clue: `{STORY} …`"
    today = _section(whole, TODAY)
    if len(re.findall(r"https://\S+", today)) < 2 or not re.search(r"\bv?\d+\.\d+", today):
        yield (
            f'there is no section "{TODAY}" that names releases and links its sources',
            "say what the engines call it, file, flag and default, with links",
        )
    if len(re.findall(r"^- ", _section(whole, DONE), re.M)) < 3:
        yield (
            f'there is no section "{DONE} …" with a list of three or more',
            "write it before the interview questions",
        )
    if not any(cell.metadata.get("predict") for cell in notebook.cells):
        yield "it has no Predict box", 'ask before the cells that surprise: `# %% [raw] predict="…"`'
    by_hand = [cell for cell in notebook.cells if "**Predict.**" in cell.source and not _made(cell)]
    if by_hand:
        yield "a Predict box takes no guess", 'write it as a cell: `# %% [raw] predict="…"`'
    places = [cell.metadata.get("exercise") for cell in notebook.cells]
    for id in exercise_headers(target.exercises):
        if places.count(id) != 1:
            yield f"exercise {id} has {places.count(id)} places in the lesson", f'mark one: `exercise="{id}"`'
    if not list(links_to_glossary(notebook)):
        yield "no word is linked to the glossary", f"link first mentions: `[prefill](../{GLOSSARY}#prefill)`"


def unshown_answers(text: str, stored: NotebookNode) -> Iterator[tuple[int, str]]:
    """Yield (cell index, fault) for each Predict box whose answer its cells do not show in their stored outputs."""
    for id, question in questions(text).items():
        cells = [(at, cell) for at, cell in enumerate(stored.cells) if cell.metadata.get("answers") == id]
        printed = "\n".join(_printed(cell) for _, cell in cells)
        rest = printed
        for wanted in question.shown:
            _, found, rest = rest.partition(wanted)
            if not found:
                yield (
                    cells[0][0] if cells else 0,
                    f"the answer to {id} is not in the output: {wanted!r} is missing",
                )
                break


def anchors(markdown: str) -> list[str]:
    """The anchors of a Markdown page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", markdown, re.M)
    return [re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles]


def links_to_glossary(notebook: NotebookNode) -> Iterator[str]:
    """Yield the anchors of the glossary to which a lesson links."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            yield from re.findall(rf"\]\(\.\./{re.escape(GLOSSARY)}#([^)\s]+)\)", cell.source)


def _section(markdown: str, title: str) -> str:
    """The text of the section whose heading contains `title`, up to the next heading; "" without one."""
    found = re.search(rf"^##+ [^\n]*{re.escape(title)}[^\n]*\n(.*?)(?=^## |\Z)", markdown, re.M | re.S)
    return found[1] if found else ""


def _made(cell: NotebookNode) -> bool:
    return bool(cell.id.startswith("predict-"))


def _printed(cell: NotebookNode) -> str:
    outputs = cell.get("outputs", [])
    return "".join(str(o.get("text", "") or o.get("data", {}).get("text/plain", "")) for o in outputs)
