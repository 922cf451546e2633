"""Video frames: how many, how large, when, and their patches, by the rules of the authors' code.

Knows frame times, arrays and Pillow. Knows nothing of codecs.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt
from PIL import Image

from omni_core.encoder.patches import patchify, pixel_values, resize, smart_resize
from omni_core.encoder.settings import PatchSettings
from omni_core.errors import RequestError
from omni_core.media import Timeline
from omni_core.types import FloatArray, MediaOptions
from omni_ming.preprocess.settings import VIDEO_MIN_FRAMES

MIN_PIXELS = 128 * 1024
"""Of one frame."""
TOTAL_PIXELS = 96 * 128 * 1024
"""Of all temporal patches; a request's own total counts each frame."""
SLACK = 1.05
"""However many frames there are, each may have so much of `MIN_PIXELS`."""


def choose_frames(timeline: Timeline, fps: float, max_frames: int) -> list[int]:
    """Times of frames from the first to the last, as many as `fps` makes of the duration, rounded
    down, but at least `VIDEO_MIN_FRAMES`; never more than there are, nor than an even number that
    `max_frames` allows. Steps are even in the frames' numbers, whatever their times."""
    most = max(1, min(max_frames, len(timeline.times)) // 2 * 2)
    count = min(max(int(timeline.duration * Fraction(fps)), VIDEO_MIN_FRAMES), most)
    numbers = np.linspace(0, len(timeline.times) - 1, count, dtype=int)
    return [timeline.times[number] for number in numbers]


def pixel_range(frames: int, settings: PatchSettings, options: MediaOptions) -> tuple[int, int]:
    """(min, max) area of each of so many frames; RequestError for bounds no frame can meet."""
    smallest = settings.factor**2
    low = MIN_PIXELS if options.min_pixels is None else options.min_pixels
    if options.total_pixels is None:
        share = TOTAL_PIXELS * settings.temporal_patch_size // frames
        high = max(share, int(SLACK * low))
    elif (high := options.total_pixels // frames) < smallest:
        raise RequestError(
            f"total_pixels {options.total_pixels} leaves {high} pixels for each of {frames} "
            f"frames; allow {smallest * frames} or more, or sample fewer frames with "
            "video_max_frames",
            param="total_pixels",
        )
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
