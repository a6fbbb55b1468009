"""A NumPy stand-in for Triton on systems without a Triton package (macOS, Windows) (chapter 5).

It provides the functions that chapter 5's kernels use, and runs a kernel like Triton's own interpreter: one program
after another, each variable a small array. So learners write the same kernel on every system. Invariants: a kernel that
is right here is right in Triton, because every function behaves the same in both; integers are 32 bits wide until they
are converted, and wrap around.

    triton.jit, triton.cdiv          kernel[grid](arguments, CONSTANT=…)
    tl.program_id, tl.load, …        as in Triton's documentation
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

# Called with (program, name of the argument, offsets in it, "load" or "store") for every access.
Watch = Callable[[tuple[int, ...], str, np.ndarray, str], None]


class OutOfBounds(IndexError):
    """A kernel reads or writes outside of the array it was given."""


class Tile(np.ndarray):
    """A kernel's variable: an array that can be converted like a Triton tensor."""

    def to(self, dtype: Any) -> Tile:
        """The same values in another type."""
        return _tile(self.astype(dtype))


class Pointer:
    """An address, or an array of addresses: a kernel argument and offsets into it."""

    def __init__(self, name: str, array: np.ndarray, offsets: Any = 0) -> None:
        self.name, self.array, self.offsets = name, array, offsets
        self.dtype = SimpleNamespace(element_ty=array.dtype)

    def __add__(self, more: Any) -> Pointer:
        return Pointer(self.name, self.array, self.offsets + more)

    __radd__ = __add__


class Kernel:
    """The result of `triton.jit`: `kernel[grid](…)` runs the function once for each place in the grid."""

    def __init__(self, function: Callable[..., None]) -> None:
        self.fn, self.__name__, self.__doc__ = function, function.__name__, function.__doc__

    def __call__(self, *args: Any, **constants: Any) -> Any:
        """Call the function from within another kernel."""
        return self.fn(*args, **constants)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def run(*args: Any, **constants: Any) -> None:
            bound = inspect.signature(self.fn).bind(*args, **constants)
            bound.apply_defaults()
            bound.arguments.update({name: _argument(name, value) for name, value in bound.arguments.items()})
            state = _Running.now
            state.grid = (*grid, *(1,) * (3 - len(grid)))
            for program in itertools.product(*map(range, state.grid)):
                state.program = program
                self.fn(*bound.args, **bound.kwargs)

        return run


class _Running:
    """The running program, and the callback that watches it."""

    now: _Running

    def __init__(self, watch: Watch | None = None) -> None:
        self.watch = watch
        self.grid: tuple[int, ...] = (1, 1, 1)
        self.program: tuple[int, ...] = (0, 0, 0)


_Running.now = _Running()


@contextmanager
def watched(watch: Watch | None) -> Iterator[None]:
    """Report every load and store to `watch`."""
    before, _Running.now = _Running.now, _Running(watch)
    try:
        yield
    finally:
        _Running.now = before


def out_of_bounds(
    program: tuple[int, ...], name: str, offsets: np.ndarray, size: int, kind: str
) -> OutOfBounds:
    """Build the error for offsets of which some are outside of an argument with `size` elements."""
    outside = offsets[(offsets < 0) | (offsets >= size)]
    verb = "reads" if kind == "load" else "writes"
    where = ", ".join(map(str, program))
    return OutOfBounds(
        f"program ({where}) {verb} outside of `{name}`, which has {size:,} elements: at offset {int(outside[0]):,}"
        + (f" and {len(outside) - 1:,} more" if len(outside) > 1 else "")
    )


def _argument(name: str, value: Any) -> Any:
    if hasattr(value, "data_ptr"):  # a torch tensor: use the same memory
        value = value.detach().numpy()
    if not isinstance(value, np.ndarray):
        return value
    if not value.flags.c_contiguous:
        raise ValueError(f"argument {name} is not contiguous: this stand-in for Triton takes whole arrays")
    return Pointer(name, value.reshape(-1))


def _tile(value: Any) -> Tile:
    return np.asarray(value).view(Tile)


def _access(pointer: Pointer, mask: Any, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Offsets (0 where masked) and the mask, both in the shape of the access."""
    offsets = np.asarray(pointer.offsets, np.int64)
    offsets, wanted = np.broadcast_arrays(offsets, True if mask is None else np.asarray(mask, bool))
    used, state = offsets[wanted], _Running.now
    if used.size and (used.min() < 0 or used.max() >= pointer.array.size):
        raise out_of_bounds(state.program, pointer.name, used, pointer.array.size, kind)
    if state.watch is not None:
        state.watch(state.program, pointer.name, used, kind)
    return np.where(wanted, offsets, 0), wanted


def _load(pointer: Pointer, mask: Any = None, other: Any = None) -> Tile:
    offsets, wanted = _access(pointer, mask, "load")
    filler = pointer.array.dtype.type(0 if other is None else other)
    if pointer.array.size == 0:
        return _tile(np.full(offsets.shape, filler))
    return _tile(np.where(wanted, pointer.array[offsets], filler))


def _store(pointer: Pointer, value: Any, mask: Any = None) -> None:
    offsets, wanted = _access(pointer, mask, "store")
    pointer.array[offsets[wanted]] = np.broadcast_to(value, offsets.shape)[wanted]


def _dot(a: Any, b: Any, acc: Any = None, input_precision: str = "tf32") -> Tile:
    if a.shape[1] < 16:  # the limit that Triton has for NVIDIA's matrix units
        raise ValueError(
            f"tl.dot needs an inner dimension of at least 16, but {a.shape} and {b.shape} have {a.shape[1]}"
        )
    product = np.matmul(np.asarray(a, np.float32), np.asarray(b, np.float32))
    return _tile(product if acc is None else product + acc)


def _arange(start: int, end: int) -> Tile:
    if (end - start) & (end - start - 1):
        raise ValueError(f"tl.arange({start}, {end}) has {end - start} elements: it must be a power of two")
    return _tile(np.arange(start, end, dtype=np.int32))


def _reduction(function: Any) -> Callable[..., Tile]:
    return lambda x, axis=None: _tile(function(x, axis=axis))


def _elementwise(function: Any) -> Callable[..., Tile]:
    return lambda *args: _tile(function(*args))


def _cdiv(a: Any, b: Any) -> Any:
    return (a + b - 1) // b


triton = SimpleNamespace(jit=Kernel, cdiv=_cdiv, __version__="a NumPy stand-in")
tl = SimpleNamespace(
    constexpr=int, int32=np.int32, int64=np.int64, float16=np.float16, float32=np.float32, int1=np.bool_,
    program_id=lambda axis: _tile(np.int32(_Running.now.program[axis])),
    num_programs=lambda axis: _tile(np.int32(_Running.now.grid[axis])),
    range=range, static_range=range, load=_load, store=_store, dot=_dot, arange=_arange, cdiv=_cdiv,
    zeros=lambda shape, dtype: _tile(np.zeros(shape, dtype)),
    full=lambda shape, value, dtype: _tile(np.full(shape, value, dtype)),
    trans=lambda x: _tile(np.asarray(x).T), where=_elementwise(np.where),
    sum=_reduction(np.sum), max=_reduction(np.max), min=_reduction(np.min),
    exp=_elementwise(np.exp), log=_elementwise(np.log), exp2=_elementwise(np.exp2), log2=_elementwise(np.log2),
    sqrt=_elementwise(np.sqrt), abs=_elementwise(np.abs),
    maximum=_elementwise(np.maximum), minimum=_elementwise(np.minimum),
)  # fmt: skip
