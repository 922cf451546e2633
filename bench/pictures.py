"""Pictures for benches."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image


def noise_png(random: np.random.Generator, pixels: int) -> bytes:
    """A square PNG of noise, so many pixels wide, which nothing has in a cache."""
    colours = random.integers(0, 256, (pixels, pixels, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(colours).save(file, "png")
    return file.getvalue()
