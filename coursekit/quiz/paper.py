"""Terminal input and output of the trainer: wrapped, possibly coloured lines out, and lines in (chapter 10).

Invariants: whatever happens to the terminal, the pipe or the keyboard, the session ends with `Stopped`, never with a
traceback; typed text can always be written to a file.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import textwrap
from typing import NoReturn


class Stopped(Exception):
    """The session ends: Ctrl-C (code 130), or the input has ended or the output is closed (code 1)."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Paper:
    """Printed output, wrapped to the terminal's width, with colours if enabled."""

    def __init__(self) -> None:
        self.colours = (
            sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        )
        if self.colours and sys.stdin.isatty():
            with contextlib.suppress(ImportError):
                import readline  # arrow keys move within the typed line

                readline.parse_and_bind("tab: self-insert")  # otherwise Tab completes file names
        self.width = max(30, min(100, shutil.get_terminal_size((100, 24)).columns - 1))
        with contextlib.suppress(AttributeError, OSError, ValueError):
            sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a console that lacks "·" or "✓"

    def say(self, text: str = "", indent: str = "", style: str = "") -> None:
        """Print a text, line by line; style is the number of an ANSI style."""
        for line in text.split("\n") or [""]:
            deeper = indent + " " * (len(line) - len(line.lstrip()))
            for piece in textwrap.wrap(line.strip(), self.width, initial_indent=deeper, subsequent_indent=deeper,
                                       break_on_hyphens=False) or [""]:  # fmt: skip
                self.raw(piece, style)

    def raw(self, line: str, style: str = "") -> None:
        """Print a line unchanged.

        Raises:
            Stopped: the output is closed, as after `| head`, or the disk is full.
        """
        try:
            print(f"\x1b[{style}m{line}\x1b[0m" if self.colours and style else line, flush=True)
        except OSError:
            self._unread()

    def _unread(self) -> NoReturn:
        """Discard further output, so that it does not raise again on exit."""
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise Stopped(1) from None

    def read(self, prompt: str) -> str:
        """Read a line from the learner.

        Raises:
            Stopped: Ctrl-C, or there is no more input.
        """
        try:
            typed = input(prompt)
            if not sys.stdin.isatty():
                self.raw(typed)  # echo the input, which a pipe does not show
            # Bytes that are not valid text could not be written to a file.
            return typed.encode("utf-8", "backslashreplace").decode("utf-8")
        except EOFError:
            self.raw("")
            raise Stopped(1) from None
        except KeyboardInterrupt:
            self.raw("")
            raise Stopped(130) from None
        except OSError:
            self._unread()
        except UnicodeDecodeError:
            pass
        return ""
