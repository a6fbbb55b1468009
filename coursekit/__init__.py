"""Course tools: build notebooks from `curriculum/`, check the machine, run the tests.

Uses `paged_ref`, never the reverse. Importing this package imports nothing heavy.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The course's folder, which contains `course.py`, `curriculum/` and `notebooks/`."""
