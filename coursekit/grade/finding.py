"""The search for submissions: the students of a class, the notebook of each, and the chapter of most of them.

    search(places)             one `Found` per place: the student's name and every notebook below it, or the problem
    commonest_chapter(found)   one vote per student: the chapter of the newest exercise notebook
    choose(found, chapter)     the notebook to grade, and for each other notebook the reason why it is not graded

Invariants: nothing that a student put into a folder raises an exception; no link leads out of a student's folder; a
lesson or a copy of the course's solutions is never chosen.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coursekit.grade.submission import MAX_FILE, NoSuchChapter, describe_notebook
from coursekit.grade.text import clean

MAX_NOTEBOOKS = 200  # below one student's folder
MAX_FOLDERS = 5000
MAX_BYTES = 200_000_000  # of the notebooks below one student's folder: all of them are read
_NOT_NAMES = ("exercises", "notebooks", "course")


@dataclass(frozen=True)
class Notebook:
    """One notebook below a student's folder. `why_not` says why it can never be graded; `chapter` may be unknown."""

    path: Path
    label: str
    changed: float
    chapter: str | None = None
    why_not: str | None = None


@dataclass
class Found:
    """One student and the notebooks found, newest first. `problem` is set if the place could not be searched."""

    student: str
    place: Path
    notebooks: list[Notebook] = field(default_factory=list)
    problem: str | None = None

    @property
    def vote(self) -> str | None:
        """The chapter of the newest exercise notebook."""
        return next((book.chapter for book in self.notebooks if book.chapter and not book.why_not), None)


@dataclass(frozen=True)
class Job:
    """One submission to grade. `others` says for each other notebook why it is not graded."""

    student: str
    path: Path
    label: str = ""
    problem: str | None = None
    others: tuple[str, ...] = ()


def search(places: Sequence[Path]) -> list[Found]:
    """Search every place: a student's folder, or one notebook."""
    absolute = [Path(os.path.normpath(Path.cwd() / place)) for place in places]
    heads, names = student_names(absolute)
    found = []
    for place, head, name in zip(absolute, heads, unique_names(names), strict=True):
        one = Found(name, place)
        try:
            _search(one, head)
        except (OSError, ValueError) as error:  # a name that the system rejects, a loop of links, a lost disk
            one.problem = f"the folder cannot be searched: {_reason(error)}"
        one.notebooks.sort(key=lambda book: (-book.changed, book.label))
        found.append(one)
    return found


def commonest_chapter(found: Sequence[Found]) -> tuple[str, str]:
    """Return the chapter of most students, one vote each (the lowest in a tie), and a sentence on the count."""
    votes = Counter(sorted(vote for one in found if (vote := one.vote)))
    if not votes:
        raise NoSuchChapter(
            "no submission contains an exercise of this course; name the chapter with --chapter, such as --chapter 2"
        )
    chapter, count = votes.most_common(1)[0]
    return (
        chapter,
        f"Chapter {int(chapter)}: the newest exercise notebook of {count} of {len(found)} students.",
    )


def choose(found: Found, chapter: str) -> Job:
    """Choose the newest exercise notebook of the chapter; failing that, a file without exercise ids that may be one."""
    usable = [book for book in found.notebooks if not book.why_not]
    unknown = [book for book in usable if book.chapter is None]
    named = [book for book in unknown if book.path.name.startswith(f"{chapter}_")]
    right = [book for book in usable if book.chapter == chapter]
    ranked = [*right, *named, *unknown]
    if found.problem or not ranked:
        return Job(
            found.student, found.place, "", found.problem or _nothing(found, chapter), _others(found, chapter)
        )
    best = ranked[0]
    return Job(found.student, best.path, best.label, None, _others(found, chapter, best))


def student_names(places: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Return for each place the student's own folder and the student's name.

    The name is the part of the path in which the places differ: the folders before and after it, which all places
    share, are left out. `home/ann/course/exercises` and `home/bob/course/exercises` are the students ann and bob.
    """
    paths = [_naming_path(place) for place in places]
    if len(paths) > 1 and len(set(paths)) == 1:
        paths = [place.with_suffix("") for place in places]  # several notebooks in one folder
    parts = [path.parts for path in paths]
    if len(set(parts)) < 2:
        return [_head(place, path) for place, path in zip(places, paths, strict=True)], [
            _own_name(path) for path in paths
        ]
    start = _shared(parts, max(0, min(map(len, parts)) - 1))
    rests = [part[start:] for part in parts]
    end = _shared([rest[::-1] for rest in rests], min(map(len, rests)) - 1)
    names = ["/".join(rest[: len(rest) - end]) for rest in rests]
    heads = [_head(place, Path(*part[: start + 1])) for place, part in zip(places, parts, strict=True)]
    return heads, names


def unique_names(names: Sequence[str]) -> list[str]:
    """Return printable names that differ even without regard to case: `ann`, `ann (2)`."""
    cleaned = [clean(name, 100).strip() or "?" for name in names]
    taken = {name.casefold() for name in cleaned}
    used: set[str] = set()
    numbers: Counter[str] = Counter()
    unique = []
    for name in cleaned:
        chosen = name
        while chosen.casefold() in used or (chosen != name and chosen.casefold() in taken):
            numbers[name] += 1
            chosen = f"{name} ({numbers[name] + 1})"
        used.add(chosen.casefold())
        unique.append(chosen)
    return unique


def leaves(path: Path, folder: Path) -> bool:
    """Return True if `path`, with all links followed, lies outside `folder`, which is not followed itself."""
    real = os.path.realpath(path)
    inside = str(Path(os.path.realpath(folder.parent)) / folder.name)
    return real != inside and not real.startswith(inside.rstrip(os.sep) + os.sep)


def _search(one: Found, head: Path) -> None:
    place = one.place
    if leaves(place, head):
        one.problem = (
            f"{clean(str(place))} is a link that leads out of the student's folder, so it was not followed"
        )
    elif not os.path.lexists(place):
        one.problem = _absent(place)
    elif _is_folder(place):
        _walk(one, head)
    else:
        one.notebooks.append(_notebook(place, place.name, head))


def _walk(one: Found, head: Path) -> None:
    """Collect the notebooks below a folder. Links to folders are not entered, hidden folders are skipped."""
    problems: list[str] = []
    folders = total = 0

    def note(error: OSError) -> None:
        problems.append(
            f"{clean(os.path.relpath(error.filename, one.place))} cannot be read: {_reason(error)}"
        )

    for folder, below, files in os.walk(one.place, onerror=note):
        folders += 1
        below[:] = sorted(name for name in below if not name.startswith("."))
        for name in sorted([*files, *(name for name in below if Path(folder, name).is_symlink())]):
            if not name.endswith(".ipynb") or name.startswith("."):
                continue
            path = Path(folder, name)
            total += min(path.lstat().st_size, MAX_FILE)
            if total > MAX_BYTES:
                break
            one.notebooks.append(_notebook(path, path.relative_to(one.place).as_posix(), head))
        if len(one.notebooks) > MAX_NOTEBOOKS or folders > MAX_FOLDERS or total > MAX_BYTES:
            limit = (
                f"more than {MAX_NOTEBOOKS} notebooks, {MAX_FOLDERS} folders or {MAX_BYTES // 1_000_000} MB"
            )
            one.problem = f"{limit}: name the notebook instead of the folder"
            return
    if problems and not one.notebooks:
        one.problem = "; ".join(problems[:3])


def _notebook(path: Path, label: str, head: Path) -> Notebook:
    label = clean(label, 200)
    real = Path(os.path.realpath(path))
    if leaves(path, head):
        return Notebook(path, label, 0, None, "a link that leads out of the student's folder")
    try:
        changed = path.stat().st_mtime
    except OSError as error:
        kind = "a link" if path.is_symlink() else "a file"
        return Notebook(path, label, 0, None, f"{kind} that cannot be opened ({_reason(error)})")
    if _is_folder(path):
        return Notebook(path, label, 0, None, "a folder")
    kind, chapter = describe_notebook(real)
    if kind == "solutions" or "solutions" in Path(label).parts[:-1]:
        return Notebook(real, label, changed, chapter, "a copy of the course's solutions")
    return Notebook(real, label, changed, chapter, "a lesson" if kind == "lesson" else None)


def _nothing(found: Found, chapter: str) -> str:
    """The problem of a student none of whose notebooks can be graded."""
    near = next((book for book in found.notebooks if _is_near(book, chapter)), None)
    others = sorted({book.chapter for book in found.notebooks if book.chapter and not book.why_not})
    if near:
        return f"no exercise notebook of chapter {chapter} was found: {near.label} is {near.why_not}"
    if others:
        return f"wrong chapter: exercises of chapter {', '.join(others)} were found, and none of chapter {chapter}"
    if found.notebooks:
        first = found.notebooks[0]
        return f"no exercise notebook of chapter {chapter} was found: {first.label} is {first.why_not}"
    return f"no notebook of chapter {chapter} was found in this folder"


def _others(found: Found, chapter: str, chosen: Notebook | None = None) -> tuple[str, ...]:
    """For each notebook that is not graded and could be taken for the right one, its name and the reason."""
    told = [
        f"{book.label}: {book.why_not or ('older' if book.chapter else 'no exercise ids')}"
        for book in found.notebooks
        if book is not chosen and _is_near(book, chapter)
    ]
    return tuple([*told[:10], f"and {len(told) - 10} more"] if len(told) > 11 else told)


def _is_near(book: Notebook, chapter: str) -> bool:
    """Return True for a notebook that belongs to the chapter, by exercises or name, or to no known chapter."""
    named = book.path.name.startswith(f"{chapter}_")
    unknown = book.chapter is None and not re.match(r"\d\d_", book.path.name)
    return book.chapter == chapter or (named and book.chapter is None) or unknown


def _absent(place: Path) -> str:
    try:
        next(place.parent.iterdir(), None)
    except PermissionError as error:
        return f"{clean(str(place.parent))} cannot be read: {_reason(error)}"
    except OSError:
        pass
    return "there is no such file or folder"


def _reason(error: OSError | ValueError) -> str:
    return clean((isinstance(error, OSError) and error.strerror) or type(error).__name__)


def _naming_path(place: Path) -> Path:
    """The path that names the student: a folder; the folder of `02_name.ipynb`; `ann` for `ann.ipynb`."""
    if place.suffix != ".ipynb" or _is_folder(place):
        return place
    return place.parent if place.stem[:2].isdigit() and place.stem[2:3] == "_" else place.with_suffix("")


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def _own_name(path: Path) -> str:
    names = [name for name in path.parts if name not in _NOT_NAMES]
    return names[-1].strip("/") if names else path.name


def _head(place: Path, path: Path) -> Path:
    """The student's own folder; the notebook itself if it was named without a folder of its own."""
    return path if place.is_relative_to(path) else place


def _shared(parts: Sequence[Sequence[str]], most: int) -> int:
    """The number of leading parts, at most `most`, that are equal in all sequences."""
    count = 0
    while count < most and len({part[count] for part in parts}) == 1:
        count += 1
    return count
