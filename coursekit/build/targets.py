"""The notebooks to build: each one's source in `curriculum/`, its path and its kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from coursekit.build.exercises import expand
from coursekit.build.lessons import expand_lesson
from coursekit.build.percent import BuildError

# Source folder, folder of the built notebooks, and their kind.
FOLDERS = (
    ("curriculum/lessons", "notebooks", "lesson"),
    ("curriculum/exercises", "exercises", "stubs"),
    ("curriculum/exercises", "solutions", "solutions"),
)


@dataclass(frozen=True)
class Target:
    """One notebook to build: its source and its path, both under the repository's root."""

    root: Path
    source: Path
    path: Path
    kind: str = "lesson"

    @property
    def title(self) -> str:
        """The name used in build messages, for instance `notebooks/07_batched_decode`."""
        return f"{self.path.parent.name}/{self.name}"

    @property
    def name(self) -> str:
        """The name, for instance `07_batched_decode`."""
        return self.path.stem

    def relative(self, path: Path) -> str:
        """Return a path relative to the repository's root."""
        return path.relative_to(self.root).as_posix()

    @property
    def exercises(self) -> Path | None:
        """The source of the chapter's exercises, or None if it has none."""
        source = self.root / "curriculum/exercises" / self.source.name
        return source if source.is_file() else None

    def text(self) -> str:
        """The source's text."""
        return self.source.read_text(encoding="utf-8")

    def code(self) -> str:
        """The text that determines the notebook's imports: its source, and what the cells of the build import."""
        text = self.text()
        if self.kind == "lesson":
            return text + "\nimport coursekit.learner.box\n" * ("# %% [raw] predict=" in text)
        return text + f"\nimport coursekit.checks\nimport coursekit.checks.chapter_{self.name[:2]}\n"

    def notebook(self) -> NotebookNode:
        """Return the unexecuted notebook of the source."""
        return self.notebook_and_lines()[0]

    def notebook_and_lines(self) -> tuple[NotebookNode, list[int | None]]:
        """Return the unexecuted notebook, and for each cell its line in the source (None if unknown)."""
        text = self.text()
        if self.kind == "lesson":
            return expand_lesson(text, self.exercises)
        return expand(text, solved=self.kind == "solutions")


def targets(root: Path, names: list[str] | None = None) -> list[Target]:
    """Return every notebook with a source, in order, or those named (`07`, `07_name`, `exercises/07`, a path)."""
    found = [
        Target(root, source, root / built / f"{source.stem}.ipynb", kind)
        for folder, built, kind in FOLDERS
        for source in sorted((root / folder).glob("*.py"))
    ]
    chosen: set[Target] = set()
    for name in names or []:
        stem, folder = Path(name).stem, Path(name).parent.name
        matching = [
            t
            for t in found
            if (t.name == stem or t.name.split("_")[0] == stem.zfill(2))
            and folder in ("", t.path.parent.name, t.source.parent.name)
        ]
        if not matching:
            known = ", ".join(dict.fromkeys(t.name for t in found)) or "none"
            raise BuildError(f"there is no source named {name!r}; the sources are: {known}")
        chosen.update(matching)
    return [t for t in found if t in chosen] if names else found


def extra_notebooks(root: Path) -> Iterator[Path]:
    """Yield the notebooks in the built folders that have no source."""
    made = {target.path for target in targets(root)}
    for _, built, _ in FOLDERS:
        yield from (path for path in sorted((root / built).glob("*.ipynb")) if path not in made)
