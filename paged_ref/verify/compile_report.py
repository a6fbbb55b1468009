"""A report on the compiled kernels, made without a GPU (chapter 5).

Triton compiles for any device it knows, whether or not the machine has it. Before anything runs, the result shows
whether a kernel fits: the registers per thread, the shared memory per program, and whether values were *spilled*
to memory because registers ran out, which costs extra memory traffic. It also shows whether loads are wide (16
bytes per thread at once) and whether addresses are 64-bit.

Run it as a separate program, `python -m paged_ref.verify.compile_report`: a process in which Triton's
interpreter is on cannot compile.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

TARGETS = ("sm_80", "sm_90", "gfx942")


@dataclass(frozen=True)
class Shape:
    """A model's attention dimensions, as the kernels take them."""

    name: str
    group: int
    head_dim: int
    dtype: str  # Triton's name: fp16, bf16, fp32
    block_size: int = 16


SHAPES = (
    Shape("Llama 3.1 8B", 4, 128, "fp16"),
    Shape("SmolLM2-135M", 3, 64, "bf16"),
    Shape("SmolLM2-135M", 3, 64, "fp32"),
)


@dataclass(frozen=True)
class Compiled:
    """One kernel compiled for one device.

    registers: per thread. shared_bytes: shared memory per program. spills: bytes per thread spilled to memory
    because registers ran out (on AMD, the number of spilled registers). wide_loads: load instructions that fetch
    16 bytes per thread. narrow_offsets: two-dimensional address computations in fewer than 64 bits.
    """

    kernel: str
    shape: str
    target: str
    registers: int
    shared_bytes: int
    spills: int
    wide_loads: int
    narrow_offsets: int


def compile_all(targets: tuple[str, ...] = TARGETS) -> list[Compiled]:
    """Compile every kernel as `triton_paged` launches it. This needs a process without the interpreter."""
    return [
        compile_kernel(name, shape, target)
        for target in targets
        for shape in SHAPES
        for name in launches(shape, target)
        if shape is SHAPES[0] or name in ("decode", "prefill")
    ]


def launches(shape: Shape, target: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return by name: the kernel function, and its compile-time constants with num_warps and num_stages."""
    from ..arguments import next_power_of_two
    from ..attention import triton_paged as launcher

    padded = max(16, next_power_of_two(shape.head_dim))
    how = (padded, 4 if shape.dtype == "fp32" else 2, not target.startswith("sm_"))
    sizes = {"GROUP": shape.group, "HEAD_DIM": shape.head_dim, "BLOCK_SIZE": shape.block_size, "D": padded}
    common = {**sizes, "HAS_SOFTCAP": False, "HAS_WINDOW": False, "UPCAST": False}
    decode = {**common, **launcher.decode_sizes(*how), "ROWS": 16, "HAS_STARTS": True}
    write = {"HEAD_DIM": shape.head_dim, "BLOCK_SIZE": shape.block_size, "D": padded, "HEADS": 8}
    return {
        "decode": ("decode_kernel", {**decode, "NUM_SPLITS": 1}),
        "decode, split": ("decode_kernel", {**decode, "NUM_SPLITS": 8}),
        "merge": (
            "merge_kernel",
            {"HEAD_DIM": shape.head_dim, "D": padded, "NUM_SPLITS": 8, "HAS_STARTS": True},
        ),
        "prefill": ("prefill_kernel", {**common, **launcher.prefill_sizes(*how)}),
        "decode_plain": ("decode_plain_kernel", {**sizes, "B": next_power_of_two(shape.block_size)}),
        "write_kv": ("write_kv_kernel", write),
        "copy_blocks": ("copy_blocks_kernel", {"TILE": 1024}),
    }


def compile_kernel(name: str, shape: Shape, target: str, module: Any = None) -> Compiled:
    """Compile one of `launches(shape, target)` for "sm_80", "sm_90" or "gfx942"."""
    from ..attention import triton_kernels

    if triton_kernels.INTERPRETED:
        raise RuntimeError(
            "Triton's interpreter is on in this process: compile in a new process with TRITON_INTERPRET=0"
        )
    function_name, constants = launches(shape, target)[name]
    options: dict[str, int] = {
        key: constants.pop(key) for key in ("num_warps", "num_stages") if key in constants
    }
    function = getattr(module or triton_kernels, function_name)
    types = {arg: _type_of(arg, shape.dtype) for arg in function.arg_names if arg not in constants}
    aligned = {arg for arg in types if _is_aligned(arg)}
    row = compile_function(function, constants, types, aligned, target, options)
    return replace(row, kernel=name, shape=f"{shape.name} {shape.dtype}")


def compile_function(
    function: Any,
    constants: dict[str, Any],
    types: dict[str, str],
    aligned: set[str],
    target: str,
    options: dict[str, int] | None = None,
) -> Compiled:
    """Compile any kernel for "sm_80", "sm_90" or "gfx942", as a launch with these arguments would.

    constants: the compile-time arguments; types: Triton's type names (`*fp16`, `i32`, `fp32`) of all other arguments;
    aligned: the arguments that are multiples of 16, like pointers and most strides. A launch detects these itself.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {arg: types.get(arg, "constexpr") for arg in function.arg_names}
    places = [i for i, arg in enumerate(function.arg_names) if arg in aligned]
    attributes = {(i,): [["tt.divisibility", 16]] for i in places}
    nvidia = target.startswith("sm_")
    device = GPUTarget("cuda", int(target[3:]), 32) if nvidia else GPUTarget("hip", target, 64)
    source = ASTSource(function, signature, constants, attributes)
    result = triton.compile(source, target=device, options=options or {})
    assembly = result.asm["ptx" if nvidia else "amdgcn"]
    registers, spills = _nvidia_resources(assembly, target) if nvidia else _amd_resources(assembly)
    wide = r"cp\.async\.\w+\.shared\.global[^\n]*0x10|ld\.global[\w.:]*\.v4\.b32|ld\.global[\w.:]*\.v2\.b64"
    wide_loads = re.findall(wide if nvidia else r"(?:global|buffer)_load_dwordx4", assembly)
    offsets = re.findall(
        r"tt\.addptr .*: tensor<\d+x\d+x!tt\.ptr<\w+>(?:, #\w+)?>, tensor<\d+x\d+xi(\d+)", result.asm["ttir"]
    )
    return Compiled(
        kernel=function.__name__,
        shape="",
        target=target,
        registers=registers,
        shared_bytes=result.metadata.shared,
        spills=spills,
        wide_loads=len(wide_loads),
        narrow_offsets=sum(bits != "64" for bits in offsets),
    )


def _type_of(arg: str, dtype: str) -> str:
    if arg in ("part_ptr", "lse_ptr"):
        return "*fp32"
    if arg in ("tables_ptr", "lens_ptr", "starts_ptr"):
        return "*i32"
    if arg in ("slots_ptr", "pairs_ptr"):
        return "*i64"
    if arg.endswith("_ptr"):
        return f"*{dtype}"
    return "fp32" if arg in ("scale", "softcap") else "i32"


def _is_aligned(arg: str) -> bool:
    return arg not in ("scale", "softcap", "window", "num_seqs", "num_kv_heads", "table_stride")


def _nvidia_resources(ptx: str, target: str) -> tuple[int, int]:
    """Return registers and spilled bytes, as NVIDIA's assembler reports them."""
    from triton import knobs

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        architecture = "sm_90a" if target == "sm_90" else target
        command = [knobs.nvidia.ptxas.path, "-v", f"--gpu-name={architecture}", str(source), "-o", os.devnull]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    registers = re.search(r"Used (\d+) registers", report)
    spilled = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", report)
    if registers is None or spilled is None:
        raise RuntimeError(f"ptxas reported no resources: {report}")
    return int(registers[1]), int(spilled[1]) + int(spilled[2])


def _amd_resources(assembly: str) -> tuple[int, int]:
    """Return vector registers and spilled registers, from the metadata at the end of the assembly."""
    found = {
        key: re.search(rf"\.{key}:\s+(\d+)", assembly)
        for key in ("vgpr_count", "vgpr_spill_count", "sgpr_spill_count")
    }
    numbers = {key: int(match[1]) for key, match in found.items() if match is not None}
    return numbers["vgpr_count"], numbers["vgpr_spill_count"] + numbers["sgpr_spill_count"]


def in_a_new_process(targets: tuple[str, ...] = TARGETS) -> list[Compiled]:
    """Run `compile_all` in a new process, because the interpreter may be on in this one."""
    command = [sys.executable, "-m", "paged_ref.verify.compile_report", "--json", *targets]
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if output.returncode:
        raise RuntimeError(f"compiling the kernels failed:\n{output.stderr}")
    return [Compiled(**row) for row in json.loads(output.stdout)]


def main(arguments: list[str]) -> int:
    """Print the report, as a table or with --json."""
    targets = tuple(a for a in arguments if not a.startswith("-")) or TARGETS
    unknown = set(targets) - set(TARGETS)
    if unknown:
        raise SystemExit(f"unknown target {min(unknown)}: one of {', '.join(TARGETS)}")
    rows = compile_all(targets)
    if "--json" in arguments:
        print(json.dumps([asdict(row) for row in rows]))
        return 0
    print(
        f"{'kernel':16}{'shape':20}{'target':8}{'registers':>10}{'shared':>9}{'spills':>8}{'wide loads':>12}"
    )
    for r in rows:
        numbers = f"{r.registers:>10}{r.shared_bytes:>9}{r.spills:>8}{r.wide_loads:>12}"
        print(f"{r.kernel:16}{r.shape:20}{r.target:8}{numbers}")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("TRITON_INTERPRET", "0")
    sys.exit(main(sys.argv[1:]))
