"""What turns `curriculum/` into notebooks, looks after the machine, and runs the tests: the course's tools.

Uses `paged_ref`, never the reverse. Importing this package imports nothing heavy.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The course's folder: the one that holds `course.py`, `curriculum/` and `notebooks/`."""
