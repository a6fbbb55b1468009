"""`python -m coursekit WORD ...`: one table from words to modules.

A word is known when its module is there; each module has `main(arguments) -> exit code`. Uses the standard
library only, because course.py asks `check_word` before anything is installed.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import sys

from coursekit import ROOT, course_command
from paged_ref.utf8 import use_utf8

WORDS = {
    "lab": ("coursekit.cli.lab", "open JupyterLab on the first notebook, or on a chapter's"),
    "test": ("coursekit.cli.test", "run every test and validate every notebook"),
    "doctor": ("coursekit.cli.doctor", "tell whether this machine is ready, by running a kernel on it"),
    "check": ("coursekit.cli.check", "check your own answers to a chapter's exercises"),
    "quiz": ("coursekit.quiz", "interview questions in the terminal"),
    "grade": ("coursekit.grade.command", "grade submitted notebooks"),
    "build": ("coursekit.build.command", "make the notebooks from curriculum/ (for authors)"),
    "bench": ("bench.__main__", "measure the reference implementation"),
}
# The others work on the course's own files, which an installed library does not bring.
WITHOUT_THE_COURSE = ("doctor", "bench")


def known_words() -> dict[str, tuple[str, str]]:
    """The part of the table whose modules exist."""
    known = {}
    for word, (module, purpose) in WORDS.items():
        package = module.partition(".")[0]
        if importlib.util.find_spec(package) and importlib.util.find_spec(module):
            known[word] = (module, purpose)
    return known


def check_word(word: str) -> str | None:
    """What is wrong with this word, in one sentence, or None."""
    words = ["help", *known_words()]
    if word in words:
        return None
    near = difflib.get_close_matches(word, words, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return f"there is no word {word!r}.{hint} The words are: {', '.join(words)}."


def main(arguments: list[str]) -> int:
    """Hand the arguments to the first word's module."""
    word = arguments[0] if arguments else "help"
    use_utf8()
    os.environ.setdefault("COURSE_COMMAND", "python -m coursekit")  # course.py has set it already
    # Threads that wait for each other sleep instead of spinning. On a machine that others use too, spinning made a
    # decode step thirty times as slow. Notebook kernels and tests inherit this. A benchmark has the machine to itself.
    if word != "bench":
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if word in ("help", "-h", "--help"):
        print(f"usage: {course_command()} WORD [ARGUMENTS]      (WORD --help explains one)\n")
        for name, (_, purpose) in known_words().items():
            print(f"  {name:<8} {purpose}")
        return 0
    problem = check_word(word)
    if problem:
        print(problem, file=sys.stderr)
        return 2
    if word not in WITHOUT_THE_COURSE and not (ROOT / "curriculum").is_dir():
        print(
            f"{word} needs the course's files (notebooks, exercises, questions), which the installed library does "
            "not bring: get the course's repository and run `python3 course.py` there.",
            file=sys.stderr,
        )
        return 2
    module = importlib.import_module(known_words()[word][0])
    return int(module.main(arguments[1:]) or 0)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        sys.exit(130)
