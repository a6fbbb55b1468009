"""A lab for kernels: run one safely on NumPy arrays, and record its loads and stores (chapter 5).

    from coursekit.kernels.lab import launch, tl, triton

`triton` and `tl` are Triton's own modules; where Triton has no package (macOS, Windows), they are the stand-in
`coursekit.kernels.numpy_triton`. In Triton's interpreter an out-of-bounds address crashes the whole process. Here every
argument is copied to its own place in a large arena, each address is checked before it is used, and a wrong one raises
`OutOfBounds` with the argument's name. Invariant: a kernel gives the same results as with `kernel[grid](…)`.

The exercises use this module, also in the grader's sandbox, so it imports nothing of the course but the stand-in.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from coursekit.kernels.numpy_triton import OutOfBounds, Pointer, Watch, out_of_bounds, watched

try:
    import triton
    import triton.language as tl

    HAS_TRITON = True
except ImportError:
    from coursekit.kernels.numpy_triton import tl, triton

    HAS_TRITON = False

# Bytes from one argument to the next: an address that is off by less than this is still attributed.
APART = 1 << 24

__all__ = ["HAS_TRITON", "Access", "accesses", "is_interpreted", "launch", "tl", "triton"]


@dataclass(frozen=True)
class Access:
    """One load or store of one program: `offsets`, in elements, of the elements that were not masked."""

    program: tuple[int, ...]
    name: str
    offsets: np.ndarray
    kind: str


def launch(
    kernel: Any, grid: tuple[int, ...], *args: Any, before: dict[int, int] | None = None, **constants: Any
) -> None:
    """Run `kernel` for each place in the grid. Array arguments are modified as the kernel modifies them.

    Args:
        kernel: a function under `@triton.jit`.
        grid: the number of programs on up to three axes.
        args, constants: the kernel's arguments: numbers, and NumPy arrays, which are passed as pointers.
        before: index of an argument (from 0) → the number of elements of a larger array before this part of it. The
            kernel gets a pointer to the beginning of the larger array, so offsets can be tested without the memory.

    Raises:
        OutOfBounds: the kernel uses an address outside of its arguments (on a CPU; a GPU does not check).
    """
    compiled = not is_interpreted(kernel)
    if compiled and not before:
        _launch_on_gpu(kernel, grid, args, constants)
    elif compiled:
        raise ValueError("a part of a larger array works only without a GPU: set TRITON_INTERPRET=1")
    else:
        _run(kernel, grid, args, constants, None, before or {})


def is_interpreted(kernel: Any) -> bool:
    """Return True if this kernel runs on the CPU: TRITON_INTERPRET was 1 when it was defined, or Triton is missing.

    Raises:
        TypeError: it is not a kernel.
    """
    if not callable(getattr(kernel, "fn", None)) or not hasattr(kernel, "__getitem__"):
        raise TypeError("this is not a kernel: put @triton.jit above the function")
    return not HAS_TRITON or not isinstance(kernel, triton.runtime.JITFunction)


def accesses(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> list[Access]:
    """Run `kernel` as `launch` does, and return every load and store, in order. Interpreted kernels only."""
    if not is_interpreted(kernel):
        raise RuntimeError(
            "loads can be recorded only in Triton's interpreter: set TRITON_INTERPRET=1 and restart"
        )
    found: list[Access] = []
    _run(kernel, grid, args, constants, lambda *access: found.append(Access(*access)), {})
    return found


def _run(
    kernel: Any,
    grid: tuple[int, ...],
    args: tuple[Any, ...],
    constants: dict[str, Any],
    watch: Watch | None,
    before_at: dict[int, int],
) -> None:
    function = kernel.fn
    bound = inspect.signature(function).bind(*args, **constants)
    bound.apply_defaults()
    given = bound.arguments
    before = {list(given)[place]: numbers for place, numbers in before_at.items()}
    if not HAS_TRITON:
        with watched(watch):
            kernel[grid](**{name: _part(name, value, before) for name, value in given.items()})
        return
    constexprs = [name for name, kind in function.__annotations__.items() if "constexpr" in str(kind)]
    numbers = {
        name: _as_number(int(value))
        for name, value in given.items()
        if isinstance(value, int | np.integer) and name not in constexprs
    }
    arrays = {name: value for name, value in given.items() if isinstance(value, np.ndarray)}
    with _interpreted_language(), _arena(arrays, watch, before) as pointers:
        kernel[grid](**{**given, **numbers, **pointers})


def _part(name: str, value: Any, before: dict[str, int]) -> Any:
    if not isinstance(value, np.ndarray) or name not in before:
        return value
    return Pointer(name, value.reshape(-1), np.int64(-before[name]))


def _as_pointer(array: np.ndarray, before: int) -> Any:
    """The address this many elements before an array, in the form that Triton's interpreter uses.

    (It would create pointers from tensors and import torch for that, which takes longer than many a kernel.)
    """
    address = np.array([_address(array) - before * array.itemsize], np.uint64)
    return _as_tensor(address, tl.pointer_type(getattr(tl, array.dtype.name)))


def _as_number(value: int) -> Any:
    fits = -(2**31) <= value < 2**31
    return _as_tensor(np.array([value], np.int32 if fits else np.int64), tl.int32 if fits else tl.int64)


def _as_tensor(data: np.ndarray, kind: Any) -> Any:
    from triton.runtime.interpreter import TensorHandle

    return tl.tensor(TensorHandle(data, kind), kind)


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


_TYPES = ("float32", "float16", "int32", "int64")


class _Guard:
    """A wrapper around the memory of Triton's interpreter that rejects addresses outside of the arguments."""

    def __init__(self, memory: Any, start: int, arrays: dict[str, np.ndarray], watch: Watch | None) -> None:
        self.memory, self.start, self.watch = memory, start, watch
        self.names, self.arrays = list(arrays), list(arrays.values())

    def load(self, addresses: Any, mask: Any, *rest: Any) -> Any:
        self._look(addresses, mask, "load")
        return self.memory.load(addresses, mask, *rest)

    def store(self, addresses: Any, value: Any, mask: Any) -> Any:
        self._look(addresses, mask, "store")
        return self.memory.store(addresses, value, mask)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.memory, name)

    def _look(self, addresses: np.ndarray, mask: np.ndarray, kind: str) -> None:
        from triton.runtime.interpreter import interpreter_builder

        used = addresses[np.broadcast_to(mask, addresses.shape)].astype(np.int64) - self.start
        if not used.size:
            return
        program = tuple(map(int, interpreter_builder.grid_idx))
        # An argument is in the middle of its part of the arena, so addresses before it are attributed to it, too.
        which = int(used[0]) // APART
        if not 0 <= which < len(self.arrays):
            raise OutOfBounds(f"program {program} uses an address far outside of every argument")
        array = self.arrays[which]
        offsets = (used - (which * APART + APART // 2)) // array.itemsize
        if offsets.min() < 0 or offsets.max() >= array.size:
            raise out_of_bounds(program, self.names[which], offsets, array.size, kind)
        if self.watch is not None:
            self.watch(program, self.names[which], offsets, kind)


@contextmanager
def _interpreted_language() -> Iterator[None]:
    """Make Triton's own functions (tl.sum, tl.cdiv) interpreted for a while if they were compiled functions.

    They read the switch when Triton is imported, and another library may have imported it first.
    """
    from triton.runtime.interpreter import InterpretedFunction

    changed = []
    for module in (tl.standard, tl):
        for name, function in list(vars(module).items()):
            if isinstance(function, triton.runtime.JITFunction):
                changed.append((module, name, function))
                setattr(module, name, InterpretedFunction(function.fn))
    try:
        yield
    finally:
        for module, name, function in changed:
            setattr(module, name, function)


@contextmanager
def _arena(
    arrays: dict[str, np.ndarray], watch: Watch | None, before: dict[str, int]
) -> Iterator[dict[str, Any]]:
    """Copy the arrays far apart and pass them as pointers; afterwards copy their contents back."""
    from triton.runtime import interpreter

    odd = [name for name, array in arrays.items() if array.dtype.name not in _TYPES]
    if odd:
        raise ValueError(
            f"argument {odd[0]} is {arrays[odd[0]].dtype.name}: a kernel here takes {', '.join(_TYPES)}"
        )
    too_large = [name for name, array in arrays.items() if array.nbytes > APART // 2]
    if too_large:
        raise ValueError(f"argument {too_large[0]} is larger than {APART >> 21} MiB: use a smaller example")
    arena = np.empty(APART * max(len(arrays), 1), np.uint8)  # untouched pages cost nothing
    copies = {}
    for number, (name, array) in enumerate(arrays.items()):
        start = number * APART + APART // 2
        copies[name] = arena[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        copies[name][...] = array
    guard = _Guard(interpreter._interpreter, _address(arena), copies, watch)
    debugging = triton.knobs.compilation.front_end_debugging
    interpreter._interpreter = guard
    triton.knobs.compilation.front_end_debugging = True  # errors are raised unchanged, not wrapped in another
    try:
        yield {name: _as_pointer(copy, before.get(name, 0)) for name, copy in copies.items()}
    finally:
        interpreter._interpreter = guard.memory
        triton.knobs.compilation.front_end_debugging = debugging
    for name, array in arrays.items():
        if array.flags.writeable:
            array[...] = copies[name]


def _launch_on_gpu(
    kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], constants: dict[str, Any], device: str = "cuda"
) -> None:
    import torch

    def to_device(value: Any) -> Any:
        return torch.from_numpy(value).to(device) if isinstance(value, np.ndarray) else value

    on_device = [to_device(value) for value in args]
    kernel[grid](*on_device, **{name: to_device(value) for name, value in constants.items()})
    for value, tensor in zip(args, on_device, strict=True):
        if isinstance(value, np.ndarray):
            value[...] = tensor.cpu().numpy()
