"""Video frames to patches, sized by the rules of transformers' Qwen3-Omni processor.

Knows arrays and Pillow. Which frames were sampled, and how fast, is settled before
(omni_core.media).
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
from PIL import Image

from omni_core.encoder.patches import patchify, pixel_range, resize, smart_resize
from omni_core.errors import RequestError
from omni_core.types import FloatArray, MediaOptions
from omni_qwen3.preprocess.settings import VisionSettings


def video_grid(
    shape: tuple[int, ...], settings: VisionSettings, options: MediaOptions
) -> list[int]:
    """[time, height, width] in patches of a clip of `shape` (T, height, width, 3) once resized."""
    frames, height, width = shape[:3]
    if options.total_pixels is not None:
        options = _share(options, options.total_pixels, frames, settings)
    low, high = pixel_range(settings, options)
    size = smart_resize(height, width, factor=settings.factor, min_pixels=low, max_pixels=high)
    times = -(-frames // settings.temporal_patch_size)
    return [times, size[0] // settings.patch_size, size[1] // settings.patch_size]


def _share(
    options: MediaOptions, total_pixels: int, frames: int, settings: VisionSettings
) -> MediaOptions:
    """The options for one frame, when all frames together may have `total_pixels`."""
    share, smallest = total_pixels // frames, settings.factor**2
    if share < smallest:
        raise RequestError(
            f"total_pixels {total_pixels} leaves {share} pixels for each of {frames} frames; allow "
            f"{smallest * frames} or more, or sample fewer frames with video_max_frames",
            param="total_pixels",
        )
    high = min(share, options.max_pixels or settings.max_pixels)
    low = None if options.min_pixels is None else min(options.min_pixels, high)
    return msgspec.structs.replace(options, min_pixels=low, max_pixels=high)


def video_patches(
    frames: npt.NDArray[np.uint8], grid: list[int], settings: VisionSettings
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
    return patchify(frames, _pixel_values(settings), settings)


def _pixel_values(settings: VisionSettings) -> FloatArray:
    """(3, 256): the normalised value of every byte. transformers' video processor folds the byte
    scale into mean and deviation, which rounds otherwise than its image processor does."""
    scale = np.float32(1 / settings.rescale_factor)
    mean = np.asarray(settings.mean, dtype=np.float32)[:, None] * scale
    std = np.asarray(settings.std, dtype=np.float32)[:, None] * scale
    values: FloatArray = (np.arange(256, dtype=np.float32)[None] - mean) / std
    return values
