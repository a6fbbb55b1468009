"""Record what an operation of the pool costs against its size, in bench/results/pool.json."""

import json
import platform
from dataclasses import asdict
from pathlib import Path

from paged_ref.commands.bench_pool import measure

RESULTS = Path(__file__).parent / "results" / "pool.json"


def main() -> None:
    """Measure pools of a thousand to a million blocks, print and record them."""
    rows = [asdict(measure(size)) for size in (10**3, 10**4, 10**5, 10**6)]
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"python": platform.python_version(), "rows": rows}, indent=1) + "\n")
    for row in rows:
        print({name: round(value, 4) for name, value in row.items()})


if __name__ == "__main__":
    main()
