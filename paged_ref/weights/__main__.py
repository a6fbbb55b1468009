"""`python -m paged_ref.weights`: make sure that a model is there, and say where.

What must hold: when it is there, this takes a tenth of a second.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .. import weights
from .cache import MANIFEST, MEGABYTE, folder_bytes, tilde


def main(arguments: list[str] | None = None) -> int:
    """Run the command; 0: the model is there; 1: it cannot be, one line on stderr says why; 130: stopped."""
    parser = argparse.ArgumentParser(
        prog="python -m paged_ref.weights",
        description="Make sure that a model is on this machine, and say where.",
    )
    parser.add_argument(
        "--model", default=weights.DEFAULT_MODEL, help="known name, folder or hub id (default: %(default)s)"
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="compare the checksum of every file, and make it again if one differs",
    )
    parser.add_argument("--quiet", action="store_true", help="say nothing but errors")
    options = parser.parse_args(arguments)
    try:
        where = Path(weights.resolve(options.model, quiet=options.quiet))
        manifest = where / MANIFEST  # only models that we made have one
        if options.verify and manifest.is_file() and not weights.is_complete(where, every_byte=True):
            manifest.unlink()
            weights.resolve(options.model, quiet=options.quiet)
    except (weights.ModelNotFound, weights.ModelUnavailable) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: nothing half-made was kept; run it again", file=sys.stderr)
        return 130
    if options.quiet:
        return 0
    if where.is_dir():
        print(f"{options.model} is in {tilde(where)} ({folder_bytes(where) // MEGABYTE} MB)")
    else:
        print(
            f"{options.model} is not here yet: transformers fetches it from the hub when it is first loaded"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
