"""Run a notebook in a fresh notebook kernel and make its outputs reproducible.

Invariants: the notebook kernel uses this interpreter and the notebook's own folder, as nbval and a learner's JupyterLab
do, and imports this repository's packages; a failure raises `CellError` and leaves no partial result.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import traitlets
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from coursekit import ROOT
from coursekit.build.percent import is_code

WIDGET = "application/vnd.jupyter.widget-view+json"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class CellError(Exception):
    """A cell raised an error, exceeded its time limit, or lost its notebook kernel."""

    def __init__(self, cell: int, error: str, line: int | None = None, trace: str = "") -> None:
        super().__init__(error)
        self.cell, self.error, self.line, self.trace = cell, error, line, trace


class _ThisInterpreter(AsyncKernelManager):
    """Start a notebook kernel with the running interpreter, ignoring kernels registered in the user's account."""

    @traitlets.default("kernel_spec_manager")
    def _own_specs(self) -> KernelSpecManager:
        return KernelSpecManager(kernel_dirs=[], ensure_native_kernel=True)


class _Client(NotebookClient):
    """Shut the notebook kernel down and stop on an interrupt (NotebookClient itself only stops the kernel)."""

    stopped = False

    async def async_start_new_kernel_client(self) -> Any:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def stop() -> None:
            self.stopped, self.shutdown_kernel = True, "immediate"
            if task is not None:
                task.cancel()

        with contextlib.suppress(RuntimeError):  # not available on Windows or outside the main thread
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, stop)
        return await super().async_start_new_kernel_client()


def execute(
    notebook: NotebookNode,
    root: Path,
    folder: Path,
    timeout: float,
    on_cell: Callable[[int], None] = lambda cell: None,
) -> None:
    """Run all code cells in place, in the working directory `folder`; `on_cell` is called with each cell's index."""
    current = 0

    def starting(cell: NotebookNode, cell_index: int) -> None:
        nonlocal current
        current = cell_index
        on_cell(cell_index)

    with tempfile.TemporaryDirectory() as profile:
        client = _Client(
            notebook,
            timeout=timeout,
            kernel_name="python3",
            kernel_manager_class=_ThisInterpreter,
            resources={"metadata": {"path": str(folder)}},
            record_timing=False,
            store_widget_state=False,
            coalesce_streams=True,
            iopub_timeout=60,
            raise_on_iopub_timeout=True,
            on_cell_start=starting,
        )
        paths = [str(root), str(ROOT), os.environ.get("PYTHONPATH", "")]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "IPYTHONDIR": profile}
        try:
            client.execute(env=env, stderr=subprocess.DEVNULL)
        except CellExecutionError as error:
            trace = re.sub(r"(?s)^.*\n-{20,}\n", "", _COLOUR.sub("", error.traceback)).strip()
            inside = re.findall(
                r"^(?:Cell In\[\d+\], line|File <ipython[^>]*>:) ?(\d+)|^-+> (\d+) ", trace, re.M
            )
            line = next((int(a or b) for a, b in inside), None)
            raise CellError(current, f"{error.ename}: {error.evalue}", line, trace) from None
        except CellTimeoutError:
            raise CellError(current, f"the cell ran longer than {timeout:g} s") from None
        except (asyncio.CancelledError, DeadKernelError):
            if client.stopped:
                raise KeyboardInterrupt from None
            raise CellError(
                current, "the notebook kernel died (out of memory, or a crash in compiled code)"
            ) from None
    number = 0
    for cell in filter(is_code, notebook.cells):
        if cell.execution_count is not None:
            number += 1
            _settle(cell, number)


def _settle(cell: NotebookNode, number: int) -> None:
    """Remove from a cell's outputs everything that differs between runs."""
    cell.execution_count = number
    for output in cell.outputs:
        if output.output_type == "execute_result":
            output.execution_count = number
        elif output.output_type == "error":
            # Traceback frames contain local paths. nbval compares the error's type and message only.
            output.traceback = [f"{output.ename}: {output.evalue}"]
        data = output.get("data", {})
        if WIDGET in data and "text/plain" in data:
            # A widget needs a running notebook kernel. The build stores its text; the lesson shows a picture.
            del data[WIDGET]
