"""How long OpenMP's idle threads spin before they sleep: one setting, for every way to start Python.

torch and numba each bring an OpenMP pool. Between two parallel regions its threads spin, so that the next region starts
at once. When another program needs the core they spin on, that costs more than it gains: the thread that has work waits
for the one that only spins. A short spin keeps most of the speed of a quiet machine and most of it on a busy one.

The variables are read once, when a library creates its pool. So `import paged_ref` sets them, before anything here
imports torch or numba; a value that the user has set stays. In a process that has imported torch already they come too
late, and do no harm.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

# Iterations of the spin loop, GNU OpenMP's unit.
SPIN_COUNT = 5000


def limit_spinning(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set `GOMP_SPINCOUNT`, unless the user has set it or `OMP_WAIT_POLICY`. Child processes inherit it."""
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", str(SPIN_COUNT))
