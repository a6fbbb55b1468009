"""`python -m paged_ref.weights`: make sure that a model is available, and print its folder.

Invariant: if the model is already cached, this takes a tenth of a second.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .. import weights
from .cache import MANIFEST, MEGABYTE, folder_bytes, tilde


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Returns 0: available; 1: not available, with the reason on stderr; 130: interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m paged_ref.weights",
        description="Make sure that a model is on this machine, and print its folder.",
    )
    parser.add_argument(
        "--model", default=weights.DEFAULT_MODEL, help="known name, folder or hub id (default: %(default)s)"
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="verify the checksum of every file, and rebuild the model if one differs",
    )
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    options = parser.parse_args(arguments)
    try:
        where = Path(weights.resolve(options.model, quiet=options.quiet))
        manifest = where / MANIFEST  # only models that we built have one
        if options.verify and manifest.is_file() and not weights.is_complete(where, every_byte=True):
            manifest.unlink()
            weights.resolve(options.model, quiet=options.quiet)
    except (weights.ModelNotFound, weights.ModelUnavailable) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: no incomplete files were kept; run the command again", file=sys.stderr)
        return 130
    if options.quiet:
        return 0
    if where.is_dir():
        print(f"{options.model} is in {tilde(where)} ({folder_bytes(where) // MEGABYTE} MB)")
    else:
        print(
            f"{options.model} is not cached yet: transformers downloads it from the hub when it is first loaded"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
