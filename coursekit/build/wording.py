"""Wording rule: words that the course avoids, and their replacements (see "Style" in curriculum/README.md).

The rule reads Markdown as a whole, and in Python files the strings, docstrings and comments. Text in `backticks` is
exempt, so that a word can be named. Only the files in `COVERED` are read; this file holds the words and is left out.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# The files that must be free of these words, as glob patterns from the repository's root.
COVERED = (
    "*.md",
    "docs/**/*.md",
    "curriculum/README.md",
    "curriculum/*/0[01]_*.py",
    "course.py",
    "paged_ref/**/*.py",
    "coursekit/**/*.py",
    "bench/**/*.py",
)

_AMOUNTS = r"(?:tokens|bytes|bits|requests|steps|operations|blocks|flops|[KMGT]i?B)"

# Pattern (a space matches any white space, line breaks and comment signs included) → the replacement.
REPLACEMENTS = {
    r"mend(?:s|ed|ing)?": "fix",
    r"whoever": "the noun (the request, the reader)",
    r"in vain": "wasted",
    r"foreign memory": "out-of-bounds memory",
    rf"{_AMOUNTS} a second(?! time)": "per second",
    r"bytes a token": "bytes per token",
    r"(?:gives?|gave|given|giving) way": "is preempted",
    r"an engine once": "the source: project, release and PR number",
    r"in print": "the source: paper and section",
    r"matrix products?": "matmul, or matrix multiplication at first mention",
    r"newcomers?": "new request",
    r"can make nothing of": "could not interpret",
    r"what must hold": "invariants",
}
_PATTERNS = [
    (re.compile(r"\b(?:" + words.replace(" ", r"\s+") + r")\b", re.IGNORECASE), replacement)
    for words, replacement in REPLACEMENTS.items()
]
_TEXT = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


class Hit(NamedTuple):
    """One avoided word: its file (relative to the root), its line, the word as written, and the replacement."""

    file: str
    line: int
    word: str
    replacement: str


def hits(root: Path) -> Iterator[Hit]:
    """Yield every avoided word in the covered files, file by file."""
    for path in sorted({path for pattern in COVERED for path in root.glob(pattern)}):
        if path.name == Path(__file__).name and path.parent.name == "build":
            continue
        text = path.read_text(encoding="utf-8")
        prose = _without_code_spans(text_of_python(text) if path.suffix == ".py" else text)
        for pattern, replacement in _PATTERNS:
            for match in pattern.finditer(prose):
                line = prose.count("\n", 0, match.start()) + 1
                word = " ".join(match[0].split())
                yield Hit(path.relative_to(root).as_posix(), line, word, replacement)


def text_of_python(source: str) -> str:
    """Return the source with everything but strings and comments blanked; every line keeps its number."""
    lines = source.splitlines()
    text = [[" "] * len(line) for line in lines]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _TEXT:
            continue
        (first, start), (last, end) = token.start, token.end
        for row in range(first, min(last, len(lines)) + 1):
            begin, stop = (start if row == first else 0), (end if row == last else len(lines[row - 1]))
            text[row - 1][begin:stop] = re.sub(r"[\"#]", " ", lines[row - 1][begin:stop])
    return "\n".join("".join(line) for line in text)


def _without_code_spans(text: str) -> str:
    """Blank the code spans in backticks."""
    return re.sub(r"`[^`\n]*`", lambda match: " " * len(match[0]), text)
