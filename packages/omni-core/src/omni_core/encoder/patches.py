"""Pictures to patches of a vision transformer: the numbers of transformers' numpy processors.

Knows Pillow and arrays. Orientation and colour mode are settled before (`omni_core.media.image`).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from PIL import Image

from omni_core.encoder.settings import PatchSettings
from omni_core.errors import MediaError, RequestError
from omni_core.types import FloatArray, MediaOptions

MAX_ASPECT_RATIO = 200
"""Of the longer to the shorter side; beyond it the model's position grid is not trained."""


def smart_resize(
    height: int, width: int, *, factor: int, min_pixels: int, max_pixels: int
) -> tuple[int, int]:
    """The (height, width) nearest in shape that are multiples of `factor` with an area in range.

    MediaError for a picture longer than 200 times its width.
    """
    long, short = max(height, width), min(height, width)
    if short == 0 or long / short > MAX_ASPECT_RATIO:
        raise MediaError(
            f"a picture of {width} x {height} pixels is too narrow; the longer side may be at most "
            f"{MAX_ASPECT_RATIO} times the shorter one"
        )
    sides = (round(height / factor) * factor, round(width / factor) * factor)
    area = sides[0] * sides[1]
    if area > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        return (
            max(factor, math.floor(height / shrink / factor) * factor),
            max(factor, math.floor(width / shrink / factor) * factor),
        )
    if area < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        return (
            math.ceil(height * grow / factor) * factor,
            math.ceil(width * grow / factor) * factor,
        )
    return sides


def pixel_range(settings: PatchSettings, options: MediaOptions) -> tuple[int, int]:
    """(min, max) area in pixels: the caller's bounds over the checkpoint's, which give way to them.

    RequestError for a bound no picture can meet.
    """
    low, high = options.min_pixels, options.max_pixels
    if high is not None and high < settings.factor**2:
        raise RequestError(
            f"max_pixels is {high}; the smallest picture has {settings.factor**2} pixels",
            param="max_pixels",
        )
    if low is None:
        ceiling = settings.max_pixels if high is None else high
        return min(settings.min_pixels, ceiling), ceiling
    if high is None:
        return low, max(low, settings.max_pixels)
    if low > high:
        raise RequestError(f"min_pixels {low} is above max_pixels {high}", param="min_pixels")
    return low, high


def image_grid(image: Image.Image, settings: PatchSettings, options: MediaOptions) -> list[int]:
    """[1, height, width] in patches of the picture after resizing."""
    low, high = pixel_range(settings, options)
    height, width = smart_resize(
        image.height, image.width, factor=settings.factor, min_pixels=low, max_pixels=high
    )
    return [1, height // settings.patch_size, width // settings.patch_size]


def resize(image: Image.Image, height: int, width: int) -> npt.NDArray[np.uint8]:
    """Bicubic resize of an RGB picture to uint8 (height, width, 3)."""
    return np.asarray(image.resize((width, height), resample=Image.Resampling.BICUBIC))


def image_patches(image: Image.Image, grid: list[int], settings: PatchSettings) -> FloatArray:
    """Patches (P, 3 * temporal_patch * patch * patch) of an RGB picture resized to its `grid`."""
    pixels = resize(image, grid[1] * settings.patch_size, grid[2] * settings.patch_size)
    frames = np.broadcast_to(pixels, (settings.temporal_patch_size, *pixels.shape))
    return patchify(frames, pixel_values(settings), settings)


def pixel_values(settings: PatchSettings) -> FloatArray:
    """(3, 256): the normalised value of every byte; scaled in float64, then normalised in float32,
    as transformers' numpy processors do."""
    scaled = (np.arange(256, dtype=np.float64) * settings.rescale_factor).astype(np.float32)
    mean = np.asarray(settings.mean, dtype=np.float32)[:, None]
    std = np.asarray(settings.std, dtype=np.float32)[:, None]
    return (scaled[None] - mean) / std


def patchify(
    frames: npt.NDArray[np.uint8], values: FloatArray, settings: PatchSettings
) -> FloatArray:
    """Bytes (T, height, width, 3) -> float32 (P, 3 * temporal_patch * patch * patch).

    Patches that are merged later are neighbours in P; T must be a multiple of temporal_patch.
    `values` (3, 256) maps a byte of each channel to its normalised value.
    """
    count, height, width, channels = frames.shape
    time, patch, merge = settings.temporal_patch_size, settings.patch_size, settings.merge_size
    blocks = frames.reshape(
        count // time,
        time,
        height // settings.factor,
        merge,
        patch,
        width // settings.factor,
        merge,
        patch,
        channels,
    )
    # -> (grid_t, blocks_h, blocks_w, merge_h, merge_w, channel, time, patch_h, patch_w)
    ordered = blocks.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)
    flat = ordered.reshape(-1, channels, time * patch * patch)
    patches = np.empty(flat.shape, dtype=np.float32)
    for channel in range(channels):
        patches[:, channel] = values[channel][flat[:, channel]]
    return patches.reshape(len(flat), -1)
