"""`python3 course.py serve`: the reference implementation's server (`python -m paged_ref serve`)."""

from __future__ import annotations

from paged_ref.__main__ import main as paged_ref


def main(arguments: list[str]) -> int:
    """Run the server; return the exit status."""
    return paged_ref(["serve", *arguments])
