"""The speed of the attention backends on this machine: `python3 course.py bench attention` (chapter 5).

The grid comes first: the speed of a wrong kernel is of no interest. Then decode attention is timed, with one line for
each shape, block size and backend. Decode is bound by memory, so the result is given as a fraction of the device's read
bandwidth, measured in the same run: the bytes that must be read (every key and value once) per second, divided by that
bandwidth.

`one block` is our own kernel on a cache with one large block for each sequence: the same work without paging.
`contiguous` is torch's attention on tensors [num_seqs, num_kv_heads, context, head_dim] with the same keys in order.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from paged_ref.attention import Batch, paged_attention, plan
from paged_ref.verify.grid import TOLERANCE, cases, error, make_inputs


@dataclass(frozen=True)
class Shape:
    """A decode batch: `batch` sequences of `context` tokens each."""

    model: str
    batch: int
    context: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: str
    block_size: int = 16

    @property
    def num_bytes(self) -> int:
        """Bytes of every key and value, counted once."""
        size = torch.empty(0, dtype=getattr(torch, self.dtype)).element_size()
        return 2 * self.batch * self.context * self.kv_heads * self.head_dim * size

    def __str__(self) -> str:
        return f"{self.model} {self.batch} x {self.context} {self.dtype}"


@dataclass(frozen=True)
class BackendTiming:
    """One measurement. share: fraction of the read bandwidth; error: as in `grid.error`, against float32 SDPA."""

    shape: str
    block_size: int
    backend: str
    milliseconds: float
    gigabytes: float
    share: float
    error: float


def llama(batch: int, context: int, block_size: int = 16) -> Shape:
    """Return the shape of Llama 3.1 8B's attention in float16."""
    return Shape("Llama-8B", batch, context, 32, 8, 128, "float16", block_size)


def smollm2(context: int, dtype: str, batch: int = 16) -> Shape:
    """Return the shape of SmolLM2-135M's attention."""
    return Shape("SmolLM2", batch, context, 9, 3, 64, dtype)


GPU_SHAPES = [
    *(llama(b, n) for b, n in ((1, 16384), (1, 131072), (8, 4096), (32, 4096), (32, 8192), (128, 2048))),
    *(llama(32, 4096, block_size) for block_size in (1, 4, 8, 32)),
    *(smollm2(n, "bfloat16", 64) for n in (150, 600, 2000)),
]
CPU_SHAPES = [
    *(smollm2(n, dtype) for dtype in ("float32", "bfloat16", "float16") for n in (150, 600, 2000)),
    *(Shape("SmolLM2", 16, 600, 9, 3, 64, "float32", block_size) for block_size in (1, 4, 8, 32)),
    smollm2(8000, "float32", batch=1),
]


def check_grid(device: torch.device, backends: Sequence[str], every: int, say: Callable[[str], None]) -> int:
    """Run every `every`-th case of the grid; return how many (case, backend) pairs were correct.

    Raises:
        RuntimeError: a backend is wrong; the message names the case.
    """
    chosen = cases()[::every]
    for done, case in enumerate(chosen):
        say(f"grid {done + 1}/{len(chosen)}: {case}")
        inputs = make_inputs(case)
        expected = inputs.expected()
        for backend in backends:
            got = paged_attention(*inputs.arguments(str(device)), **inputs.options, backend=backend)
            distance = error(got, expected)
            if not distance <= case.tolerance:
                raise RuntimeError(
                    f"{backend} is wrong on {case}: error {distance:.2e} > {case.tolerance:.0e}"
                )
    return len(chosen) * len(backends)


def read_bandwidth(device: torch.device) -> float:
    """Return the bytes per second that a plain sum over a large buffer reads: the best of several runs."""
    elements = 2**30 if device.type == "cuda" else 2**26  # 4 GiB, or 256 MiB: far beyond any cache
    buffer = torch.ones(elements, dtype=torch.float32, device=device)
    seconds = min(_times(buffer.sum, device, repeats=10))
    return buffer.numel() * buffer.element_size() / seconds


def _times(call: Callable[[], Any], device: torch.device, repeats: int) -> list[float]:
    """Return the seconds of each of several calls, after two warm-ups. On a GPU, each starts with a cold L2 cache."""
    for _ in range(2):
        call()
    if device.type != "cuda":
        found = []
        for _ in range(repeats):
            begin = time.perf_counter()
            call()
            found.append(time.perf_counter() - begin)
        return found
    scratch = torch.empty(256 * 2**20, dtype=torch.int8, device=device)
    pairs = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)
    ]
    for begin_event, end_event in pairs:
        scratch.zero_()
        begin_event.record()
        call()
        end_event.record()
    torch.cuda.synchronize(device)
    return [begin_event.elapsed_time(end_event) / 1e3 for begin_event, end_event in pairs]


def time_backends(
    shape: Shape, backends: Sequence[str], device: torch.device, bandwidth: float, repeats: int
) -> list[BackendTiming]:
    """Time every backend on one shape, then the same work without paging."""
    dtype = getattr(torch, shape.dtype)
    torch.manual_seed(0)
    per_seq = -(-shape.context // shape.block_size)
    num_blocks = shape.batch * per_seq
    cache_shape = (num_blocks, shape.block_size, shape.kv_heads, shape.head_dim)
    keys, values = (torch.randn(cache_shape, device=device, dtype=dtype) for _ in range(2))
    query = torch.randn(shape.batch, shape.heads, shape.head_dim, device=device, dtype=dtype)
    tables = np.random.default_rng(0).permutation(num_blocks).reshape(shape.batch, per_seq)
    lens = np.full(shape.batch, shape.context)
    scale = shape.head_dim**-0.5

    # The same keys in order: [batch, context, kv_heads, head_dim]
    where = torch.from_numpy(tables).to(device)
    k, v = (cache[where].flatten(1, 2)[:, : shape.context].contiguous() for cache in (keys, values))
    k_heads, v_heads = (x.transpose(1, 2).contiguous() for x in (k, v))

    def contiguous(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        gqa = shape.heads != shape.kv_heads
        return scaled_dot_product_attention(q[:, :, None], k, v, scale=scale, enable_gqa=gqa)[:, :, 0]

    exact = contiguous(query.float(), k_heads.float(), v_heads.float()).double().cpu().numpy()
    runs: dict[str, Callable[[], torch.Tensor]] = {}
    batch = Batch.of(tables, lens)
    for backend in backends:
        paged = plan(batch, shape.block_size, backend, device)
        runs[backend] = lambda paged=paged: paged.run(query, keys, values, scale, None, None)  # type: ignore[misc]
    one_block = plan(Batch.of(np.arange(shape.batch)[:, None], lens), shape.context, backends[0], device)
    runs[f"{backends[0]}, one block"] = lambda: one_block.run(query, k, v, scale, None, None)
    runs["contiguous (SDPA)"] = lambda: contiguous(query, k_heads, v_heads)

    rows = []
    for name, run in runs.items():
        times = _times(run, device, repeats)
        # Other programs disturb measurements on a CPU: the best run is the most reliable there.
        seconds = statistics.median(times) if device.type == "cuda" else min(times)
        distance = error(run(), exact)
        if not distance <= TOLERANCE[shape.dtype]:
            raise RuntimeError(
                f"{name} is wrong on {shape}, block size {shape.block_size}: error {distance:.2e}"
            )
        gigabytes = shape.num_bytes / 1e9
        share = shape.num_bytes / seconds / bandwidth
        rows.append(
            BackendTiming(str(shape), shape.block_size, name, seconds * 1e3, gigabytes, share, distance)
        )
    return rows


def machine(device: torch.device) -> dict[str, Any]:
    """Return the machine and the library versions of the measurement."""
    about: dict[str, Any] = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("triton", "numba", "numpy"):
        module = sys.modules.get(name)
        about[name] = None if module is None else module.__version__
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        about |= {"device": properties.name, "multiprocessors": properties.multi_processor_count}
    else:
        about |= {"device": f"CPU, {platform.machine()}", "threads": torch.get_num_threads()}
    return about


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--output", type=Path, help="also write the JSON to this file")
    parser.add_argument("--quick", action="store_true", help="part of the grid, fewer repeats")
    parser.add_argument("--cpu", action="store_true", help="measure the CPU backends even if there is a GPU")


def run(options: argparse.Namespace) -> int:
    """Check, measure and print; return the exit status. See the module's docstring."""
    on_gpu = torch.cuda.is_available() and not options.cpu
    device = torch.device("cuda" if on_gpu else "cpu")
    backends = ["triton", "torch"] if on_gpu else ["numba", "torch"]  # NumPy's is for reading, not for speed

    def say(what: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[2K{what}", end="", file=sys.stderr, flush=True)

    right = check_grid(device, backends, 4 if options.quick else 1, say)
    bandwidth = read_bandwidth(device)
    rows: list[BackendTiming] = []
    repeats = (20 if on_gpu else 5) if options.quick else (100 if on_gpu else 30)
    for shape in GPU_SHAPES if on_gpu else CPU_SHAPES:
        say(f"{shape}, block size {shape.block_size}")
        rows += time_backends(shape, backends, device, bandwidth, repeats)
    say("")
    result = {
        **machine(device),
        "grid_checks_passed": right,
        "read_bandwidth_gb_per_s": round(bandwidth / 1e9, 1),
        "rows": [asdict(row) for row in rows],
    }
    if options.output:
        options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if options.json:
        print(json.dumps(result, indent=1))
        return 0
    print(f"{result['device']}: {right} grid checks passed, reads {bandwidth / 1e9:.0f} GB/s")
    print(f"{'shape':32}{'block':>6}  {'backend':20}{'ms':>9}{'GB':>8}{'share':>8}{'error':>10}")
    for r in rows:
        numbers = f"{r.milliseconds:>9.3f}{r.gigabytes:>8.3f}{r.share:>8.2f}{r.error:>10.1e}"
        print(f"{r.shape:32}{r.block_size:>6}  {r.backend:20}{numbers}")
    return 0
