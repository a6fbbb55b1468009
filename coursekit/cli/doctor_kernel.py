"""The doctor's test kernel: a Triton gather through a block table, checked against NumPy.

`python -m coursekit.cli.doctor_kernel` prints one line of JSON: the device that ran the kernel, and the largest
difference from NumPy. Token i of a sequence is in slot `table[i // B] * B + i % B`, the blocks are scattered, and every
slot outside the sequence holds NaN. Without a GPU, the doctor sets TRITON_INTERPRET=1 and the same kernel runs on the
CPU.
"""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

BLOCK_SIZE = 5
TABLE = (6, 1, 4)
TOKENS = 13  # the last block is partly filled
BLOCKS = 8
WIDTH = 16


@triton.jit
def gather_kernel(
    cache: Any, table: Any, out: Any, tokens: int, B: tl.constexpr, WIDTH: tl.constexpr
) -> None:
    """Program b copies logical block b of the sequence, row by row, from the physical block that the table names."""
    logical = tl.program_id(0)
    physical = tl.load(table + logical).to(tl.int64)
    column = tl.arange(0, WIDTH)
    for offset in range(B):
        token = logical * B + offset
        there = (column < WIDTH) & (token < tokens)
        row = tl.load(cache + (physical * B + offset) * WIDTH + column, mask=there, other=0.0)
        tl.store(out + token * WIDTH + column, row, mask=there)


def run() -> dict[str, object]:
    """Run the kernel once and compare it with NumPy."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    device = "cpu" if interpreted else "cuda"
    table = np.array(TABLE, dtype=np.int32)
    slots = np.array([table[i // BLOCK_SIZE] * BLOCK_SIZE + i % BLOCK_SIZE for i in range(TOKENS)])
    rows = np.random.default_rng(0).standard_normal((TOKENS, WIDTH)).astype(np.float32)
    cache = np.full((BLOCKS * BLOCK_SIZE, WIDTH), np.nan, dtype=np.float32)
    cache[slots] = rows
    out = torch.zeros((TOKENS, WIDTH), device=device)
    gather_kernel[(len(TABLE),)](
        torch.from_numpy(cache).to(device),
        torch.from_numpy(table).to(device),
        out,
        TOKENS,
        B=BLOCK_SIZE,
        WIDTH=WIDTH,
    )
    difference = float(np.abs(out.cpu().numpy() - cache[slots]).max())
    name = "CPU, interpreted" if interpreted else f"{torch.cuda.get_device_name()}, compiled"
    return {"where": name, "difference": difference}


if __name__ == "__main__":
    print(json.dumps(run()))
