"""The hint that answers a named mistake: `hints.toml` has one for each misconception that says what is wrong."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path

_FILE = Path(__file__).with_name("hints.toml")
COMMON = "common"


def hint_for(id: str, misconception: str | None) -> str:
    """Return the hint for a misconception of an exercise, or "" if none answers it in particular."""
    if misconception is None:
        return ""
    table = hints()
    return table.get(id, {}).get(misconception) or table[COMMON].get(misconception, "")


@functools.cache
def hints() -> dict[str, dict[str, str]]:
    """Exercise id, or `common` → misconception → hint."""
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))
