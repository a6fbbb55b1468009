"""Pictures outside the notebooks, extracted from notebook outputs so that both always match."""

from __future__ import annotations

import base64
from pathlib import Path

from coursekit.build.percent import read_notebook

# picture -> the notebook it comes from, and the index of the picture in that notebook
PICTURES = {
    "docs/memory.png": ("notebooks/00_start_here.ipynb", 0),
    "docs/serving.png": ("notebooks/07_batched_decode.ipynb", 3),
}


def pictures_to_write(root: Path) -> dict[Path, bytes]:
    """Return every picture file that differs from its notebook, with its correct bytes."""
    different = {}
    for name, (notebook, index) in PICTURES.items():
        shown = _pictures(root / notebook)
        path = root / name
        if index < len(shown) and not (path.is_file() and path.read_bytes() == shown[index]):
            different[path] = shown[index]
    return different


def _pictures(notebook: Path) -> list[bytes]:
    read = read_notebook(notebook)
    cells = read.cells if read else []
    return [
        base64.b64decode(output.data["image/png"])
        for cell in cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    ]
