"""The trainer's icons, drawn by code: a block pool with some blocks in use.

`maskable` icons leave a margin of one fifth, because Android cuts them to a circle or another shape.
"""

from __future__ import annotations

import io

from PIL import Image, ImageDraw

PAPER, FREE = "#0F1A24", "#2B3C4B"
USED = {
    (0, 0): "#56B4E9",
    (0, 1): "#56B4E9",
    (1, 2): "#56B4E9",
    (0, 3): "#E69F00",
    (2, 1): "#E69F00",
    (3, 2): "#009E73",
}
SMOOTH = 4  # drawn this many times larger, then scaled down

ICONS = {
    "icon-192.png": (192, False),
    "icon-512.png": (512, False),
    "icon-maskable-512.png": (512, True),
    "apple-touch-icon.png": (180, False),
}


def icon(size: int, maskable: bool = False) -> bytes:
    """Return a square PNG; `size` is in pixels."""
    full = size * SMOOTH
    image = Image.new("RGB", (full, full), PAPER)
    draw = ImageDraw.Draw(image)
    margin = full * (0.26 if maskable else 0.17)
    step = (full - 2 * margin) / 4
    gap = step * 0.11
    for row in range(4):
        for column in range(4):
            left, top = margin + column * step + gap, margin + row * step + gap
            box = (left, top, left + step - 2 * gap, top + step - 2 * gap)
            draw.rounded_rectangle(box, radius=step * 0.16, fill=USED.get((row, column), FREE))
    buffer = io.BytesIO()
    image.resize((size, size), Image.Resampling.LANCZOS).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
