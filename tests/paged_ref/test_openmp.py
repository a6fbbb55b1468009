"""The spin of OpenMP's idle threads is limited before torch or numba can create a pool."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from coursekit import ROOT
from paged_ref.openmp import SPIN_COUNT, limit_spinning


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"GOMP_SPINCOUNT": str(SPIN_COUNT)}),
        ({"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7"}),
        ({"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": "active"}),
    ],
)
def test_the_user_s_own_setting_stays(before: dict[str, str], after: dict[str, str]) -> None:
    environment = dict(before)
    limit_spinning(environment)
    assert environment == after


@pytest.mark.parametrize("start", ["import paged_ref", "from paged_ref.blocks.block_pool import BlockPool"])
def test_an_import_sets_it_before_torch(start: str) -> None:
    code = f"import os, sys\n{start}\nprint(os.environ['GOMP_SPINCOUNT'], 'torch' in sys.modules)"
    environment = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(SPIN_COUNT), "False"]
