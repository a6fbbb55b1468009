"""Record a kernel's loads and the compiler's results, wherever the notebook runs (chapter 5).

Loads can be recorded only in Triton's interpreter, and registers only without it; a process chooses one of them when it
imports Triton. So a question that this process cannot answer goes to a separate process, with the kernel's source text.
Invariant: the answers are the same on machines with and without a GPU.
"""

from __future__ import annotations

import inspect
import linecache
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from coursekit import ROOT
from coursekit.kernels import lab
from coursekit.kernels.lab import Access
from paged_ref.verify.compile_report import Compiled, compile_function

NEEDS_TRITON = (
    "(This needs Triton, which has no package for this system: see the output stored in the notebook.)"
)


@dataclass(frozen=True)
class Launch:
    """A kernel with the arguments of one launch. args: torch tensors, NumPy arrays and numbers."""

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    constants: dict[str, Any]

    def run(self) -> None:
        """Launch it on the device of its tensors."""
        self.kernel[self.grid](*self.args, **self.constants)

    def on_cpu(self) -> tuple[Any, ...]:
        """Grid and arguments with NumPy arrays in place of tensors."""
        return (
            self.grid,
            tuple(a.cpu().numpy() if hasattr(a, "cpu") else a for a in self.args),
            self.constants,
        )


def accesses(launches: Sequence[Launch]) -> list[Access]:
    """Return every load and store of these launches, in order; see `lab.accesses`."""
    if not all(lab.is_interpreted(one.kernel) for one in launches):
        plain = [(*_source(one.kernel), *one.on_cpu()) for one in launches]
        return list(_elsewhere(_accesses, plain, interpret=True))
    return [a for one in launches for a in _accesses_of(one.kernel, *one.on_cpu())]


def resources(
    launches: dict[str, Launch], target: str = "sm_90", number: str = "fp16", **constants: Any
) -> list[Compiled]:
    """Return registers, shared memory and spills of each kernel when compiled for a GPU; no GPU is needed.

    Args:
        launches: name → a launch, whose constants are used, overridden by `constants`.
        target: "sm_80" (A100), "sm_90" (H100, H200) or "gfx942" (MI300).
        number: the type of every floating-point array, as Triton names it.

    Raises:
        RuntimeError: Triton is missing, or a kernel does not compile.
    """
    if not lab.HAS_TRITON:
        raise RuntimeError(NEEDS_TRITON)
    plain = []
    for name, one in launches.items():
        bound = inspect.signature(one.kernel.fn).bind(*one.args, **one.constants).arguments
        replaced = {key: value for key, value in constants.items() if key in one.constants}
        types = {arg: _type(value, number) for arg, value in bound.items() if arg not in one.constants}
        plain.append((name, *_source(one.kernel), one.constants | replaced, types, target))
    return list(_elsewhere(_resources, plain, interpret=False))


def call(function: Callable[..., Any], *args: Any, interpret: bool = True) -> Any:
    """Call a module's function in a process where Triton interprets (or compiles): this one if it does."""
    if not lab.HAS_TRITON or bool(lab.triton.knobs.runtime.interpret) == interpret:
        return function(*args)
    return _elsewhere(_call, [(function.__module__, function.__name__, args)], interpret=interpret)


def library_reads(query: Any, key_cache: Any, value_cache: Any, block_tables: Any, seq_lens: Any) -> int:
    """Bytes that the library's decode loads from the caches (NumPy arrays). Needs the interpreter: see `call`."""
    import torch

    from paged_ref.attention import paged_attention
    from paged_ref.verify.traffic import bytes_read

    tensors = [torch.from_numpy(x) for x in (query, key_cache, value_cache, block_tables, seq_lens)]
    return bytes_read(lambda: paged_attention(*tensors, backend="triton"), tensors[1], tensors[2])


def _type(value: Any, number: str) -> str:
    kind = str(getattr(value, "dtype", "")).removeprefix("torch.")
    if kind:
        return "*" + (f"i{kind.removeprefix('int')}" if kind.startswith("int") else number)
    return "i32" if isinstance(value, int) else "fp32"


def _source(kernel: Any) -> tuple[str, str]:
    return inspect.getsource(kernel.fn), kernel.fn.__name__


def _kernel(source: str, name: str) -> Any:
    """Return the kernel of a source text. Triton reads the text again, so it must be found like a file's."""
    file = f"<{name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    namespace = {"triton": lab.triton, "tl": lab.tl, "__name__": "kernel"}
    exec(compile(source, file, "exec"), namespace)
    return namespace[name]


def _accesses_of(
    kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], constants: dict[str, Any]
) -> list[Access]:
    return lab.accesses(kernel, grid, *args, **constants)


def _accesses(source: str, name: str, *launch: Any) -> list[Access]:
    return _accesses_of(_kernel(source, name), *launch)


def _resources(
    name: str, source: str, function: str, constants: dict[str, Any], types: dict[str, str], target: str
) -> list[Compiled]:
    aligned = {arg for arg, kind in types.items() if kind.startswith("*")}
    constants = dict(constants)
    options: dict[str, int] = {
        key: constants.pop(key) for key in ("num_warps", "num_stages") if key in constants
    }
    return [
        replace(
            compile_function(_kernel(source, function), constants, types, aligned, target, options),
            kernel=name,
        )
    ]


def _call(module: str, name: str, args: tuple[Any, ...]) -> Any:
    return getattr(sys.modules.get(module) or __import__(module, fromlist=[name]), name)(*args)


def _elsewhere(task: Callable[..., Any], calls: Sequence[tuple[Any, ...]], *, interpret: bool) -> Any:
    """Return the joined results of task(*call) for each call, from a new process."""
    environment = {
        **os.environ,
        "TRITON_INTERPRET": str(int(interpret)),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        # The GPU is for the notebook: a process that only interprets does not need it.
        **({"CUDA_VISIBLE_DEVICES": ""} if interpret else {}),
    }
    command = [sys.executable, "-m", "coursekit.kernels.worker"]
    done = subprocess.run(
        command,
        input=pickle.dumps((task.__name__, list(calls))),
        env=environment,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the separate process failed:\n{done.stderr.decode(errors='replace')}")
    return pickle.loads(done.stdout)


def main() -> None:
    """Answer the request on standard input."""
    from coursekit.kernels import worker  # under its own name: __main__ would have different classes

    task, calls = pickle.loads(sys.stdin.buffer.read())
    results = [getattr(worker, task)(*one) for one in calls]
    joined = results[0] if task == "_call" else [row for result in results for row in result]
    sys.stdout.buffer.write(pickle.dumps(joined))


if __name__ == "__main__":
    main()
