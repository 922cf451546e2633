"""Video frames: how many, how large, when, and their patches, by the rules of the authors' code.

Knows arrays and Pillow. Which frames were sampled is settled before (`omni_core.media`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image

from omni_core.encoder.patches import patchify, pixel_values, resize, smart_resize
from omni_core.encoder.settings import PatchSettings
from omni_core.errors import RequestError
from omni_core.types import FloatArray, MediaOptions

MIN_PIXELS = 128 * 1024
"""Of one frame."""
TOTAL_PIXELS = 96 * 128 * 1024
"""Of all frames, which share it in pairs."""
SLACK = 1.05
"""However many frames there are, each may have so much of `MIN_PIXELS`."""


def pixel_range(frames: int, settings: PatchSettings, options: MediaOptions) -> tuple[int, int]:
    """(min, max) area of each of so many frames; RequestError for bounds no frame can meet."""
    total = TOTAL_PIXELS if options.total_pixels is None else options.total_pixels
    share = total * settings.temporal_patch_size // frames
    smallest = settings.factor**2
    if options.total_pixels is not None and share < smallest:
        raise RequestError(
            f"total_pixels {total} leaves {share} pixels for each of {frames} frames; allow "
            f"{smallest * frames // settings.temporal_patch_size} or more, or sample fewer frames "
            "with video_max_frames",
            param="total_pixels",
        )
    low = MIN_PIXELS if options.min_pixels is None else options.min_pixels
    high = share if options.total_pixels is not None else max(share, int(SLACK * low))
    if options.max_pixels is not None:
        high = min(high, options.max_pixels)
    if high < smallest:
        raise RequestError(
            f"max_pixels is {high}; the smallest frame has {smallest} pixels", param="max_pixels"
        )
    if options.min_pixels is not None and low > high:
        raise RequestError(f"min_pixels {low} is above max_pixels {high}", param="min_pixels")
    return min(low, high), high


def video_grid(shape: tuple[int, ...], settings: PatchSettings, options: MediaOptions) -> list[int]:
    """[time, height, width] in patches of a clip of `shape` (T, height, width, 3) once resized."""
    frames, height, width = shape[:3]
    low, high = pixel_range(frames, settings, options)
    size = smart_resize(height, width, factor=settings.factor, min_pixels=low, max_pixels=high)
    times = -(-frames // settings.temporal_patch_size)
    return [times, size[0] // settings.patch_size, size[1] // settings.patch_size]


def video_patches(
    frames: npt.NDArray[np.uint8], grid: list[int], settings: PatchSettings
) -> FloatArray:
    """Frames (T, H, W, 3) -> float32 (P, 3 * temporal_patch * patch * patch), resized to `grid`.

    The last frame is repeated where T is not a multiple of the temporal patch.
    """
    height, width = grid[1] * settings.patch_size, grid[2] * settings.patch_size
    if frames.shape[1:3] != (height, width):
        frames = np.stack([resize(Image.fromarray(frame), height, width) for frame in frames])
    missing = -len(frames) % settings.temporal_patch_size
    if missing:
        frames = np.concatenate([frames, np.repeat(frames[-1:], missing, axis=0)])
    return patchify(frames, pixel_values(settings), settings)


def pair_times(count: int, fps: float, settings: PatchSettings) -> list[float]:
    """Seconds that each temporal patch stands for: the mean of its frames' times, of `count` frames
    sampled at `fps`; a last frame that is repeated counts twice."""
    step = settings.temporal_patch_size
    times = [min(frame, count - 1) / fps for frame in range(-(-count // step) * step)]
    return [sum(times[start : start + step]) / step for start in range(0, len(times), step)]
