"""What the tests of the course's machinery share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def triton_as_it_was() -> Iterator[None]:
    """Chapter 5's exercises switch Triton's interpreter on; a test that comes after may want compiled kernels."""
    before = os.environ.get("TRITON_INTERPRET")
    yield
    if before is None:
        os.environ.pop("TRITON_INTERPRET", None)
    else:
        os.environ["TRITON_INTERPRET"] = before
