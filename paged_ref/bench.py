"""`course.py bench`: hands its words to `python -m paged_ref bench`."""

from __future__ import annotations

from .__main__ import main as command_line


def main(arguments: list[str]) -> int:
    """Run `bench` with these arguments; returns the exit status."""
    return command_line(["bench", *(arguments or ["--help"])])
