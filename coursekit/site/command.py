"""`python3 course.py site`: build the course's web pages into a folder, and serve them on this machine if asked."""

from __future__ import annotations

import argparse
import functools
import gzip
import http.server
import sys
from pathlib import Path

from coursekit import ROOT
from coursekit.quiz.bank import BankError
from coursekit.site.trainer import write_trainer

DEFAULT = ROOT / "build" / "site"
TRAINER = "trainer"


def main(arguments: list[str]) -> int:
    """Build the pages. 0: built; 2: the command or a source is invalid."""
    options = _parser().parse_args(arguments)
    try:
        files = write_trainer(options.out / TRAINER)
    except (BankError, OSError) as error:
        print(f"site: {error}", file=sys.stderr)
        return 2
    kilobytes = sum(len(gzip.compress(contents)) for contents in files.values()) / 1000
    print(
        f"{options.out / TRAINER}: the interview trainer, {len(files)} files, {kilobytes:.0f} kB compressed"
    )
    return _serve(options.out, options.serve) if options.serve is not None else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="course.py site",
        description="Build the interview trainer as a web page that works offline on a phone. Put the folder on any "
        "web server with HTTPS, open the page once, and add it to the home screen.",
    )
    parser.add_argument("--out", type=Path, default=DEFAULT, metavar="FOLDER", help="default: build/site")
    parser.add_argument(
        "--serve", type=_port, metavar="PORT", help="then serve the folder to this machine only"
    )
    return parser


def _port(text: str) -> int:
    if text.isdecimal() and int(text) < 65536:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a port: 0 to 65535 (0: any free one)")


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Files of the folder, without a log. Browsers insist on JavaScript's type, which some systems do not know."""

    extensions_map = {  # noqa: RUF012 - as in the base class
        **http.server.SimpleHTTPRequestHandler.extensions_map,
        ".js": "text/javascript",
        ".json": "application/json",
        ".webmanifest": "application/manifest+json",
    }

    def end_headers(self) -> None:
        """Let browsers ask for a newer version each time."""
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


def server(folder: Path, port: int) -> http.server.ThreadingHTTPServer:
    """Return a web server for this machine only; the port is `server.server_address[1]`.

    Raises:
        OSError: the port is in use.
    """
    return http.server.ThreadingHTTPServer(
        ("127.0.0.1", port), functools.partial(_Handler, directory=str(folder))
    )


def _serve(folder: Path, port: int) -> int:
    try:
        with server(folder, port) as web:
            print(f"http://127.0.0.1:{web.server_address[1]}/{TRAINER}/      (Ctrl-C stops)", flush=True)
            web.serve_forever()
    except OSError as error:
        print(f"site: port {port}: {error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nStopped.")
    return 0
