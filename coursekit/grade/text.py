"""Text from submissions, made safe to print and to write: no control characters, no half surrogate pairs, bounded."""

from __future__ import annotations

import unicodedata

LIMIT = 500
# Control characters, invisible formatting (such as a change of writing direction), surrogates, unassigned code points.
_UNSAFE = ("Cc", "Cf", "Cs", "Cn", "Co", "Zl", "Zp")


def clean(text: str, limit: int = LIMIT, *, lines: bool = False) -> str:
    """Return `text` in at most `limit` characters, with `?` for each character that is unsafe to print.

    Line breaks and tabs become spaces; with `lines`, line breaks are kept. A shortened text ends with `…`.
    """
    text = str.__str__(text)
    short = text if len(text) <= limit else f"{text[: limit - 1]}…"
    return "".join(_safe(character, lines) for character in short)


def _safe(character: str, lines: bool) -> str:
    if character in "\n\r\t":
        return "\n" if lines and character == "\n" else " "
    return "?" if unicodedata.category(character) in _UNSAFE else character
