"""Video frames to patches, against a plain loop over every patch and pixel."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from omni_core.errors import RequestError
from omni_core.types import MediaOptions
from omni_qwen3.preprocess.settings import VIDEO_MAX_PIXELS, Settings, load_settings
from omni_qwen3.preprocess.video import video_grid, video_patches

EXACT = MediaOptions(min_pixels=1024, max_pixels=1024 * 1024)
"""Bounds that leave sides alone which are multiples of 32."""


@pytest.fixture(scope="module")
def settings(tiny_checkpoint: str) -> Settings:
    return load_settings(tiny_checkpoint)


def clip(count: int, height: int, width: int) -> npt.NDArray[np.uint8]:
    draw = np.random.default_rng(count)
    return draw.integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def plain_patches(frames: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Patches of 2 frames x 16 x 16, in 2 x 2 blocks, each channel's frames in turn."""
    values = (frames.astype(np.float32) - np.float32(127.5)) / np.float32(127.5)
    rows = []
    for time in range(0, len(frames), 2):
        for block_y in range(0, frames.shape[1], 32):
            for block_x in range(0, frames.shape[2], 32):
                for y in (block_y, block_y + 16):
                    for x in (block_x, block_x + 16):
                        cube = values[time : time + 2, y : y + 16, x : x + 16]
                        rows.append(cube.transpose(3, 0, 1, 2).ravel())
    return np.stack(rows)


def test_patches_of_a_clip_that_needs_no_resize(settings: Settings) -> None:
    frames = clip(8, 64, 96)
    grid = video_grid(frames.shape, settings.video, EXACT)
    assert grid == [4, 4, 6]
    patches = video_patches(frames, grid, settings.video)
    assert patches.dtype == np.float32
    np.testing.assert_array_equal(patches, plain_patches(frames))


def test_an_odd_last_frame_is_repeated(settings: Settings) -> None:
    frames = clip(5, 32, 32)
    grid = video_grid(frames.shape, settings.video, EXACT)
    assert grid == [3, 2, 2]
    padded = np.concatenate([frames, frames[-1:]])
    np.testing.assert_array_equal(
        video_patches(frames, grid, settings.video), plain_patches(padded)
    )


def test_a_resized_clip_keeps_its_colours(settings: Settings) -> None:
    frames = np.full((2, 50, 70, 3), (255, 0, 102), dtype=np.uint8)
    grid = video_grid(frames.shape, settings.video, MediaOptions())
    patches = video_patches(frames, grid, settings.video).reshape(-1, 3, 2 * 16 * 16)
    assert len(patches) == np.prod(grid)
    for channel, value in enumerate((1.0, -1.0, -0.2)):
        np.testing.assert_allclose(patches[:, channel], value, atol=1e-6)


def test_frames_are_sized_by_the_processor_and_not_by_the_checkpoint(settings: Settings) -> None:
    """128 to 768 blocks of 32 x 32 per frame, as transformers' processor overrides it."""
    assert np.prod(video_grid((8, 64, 96, 3), settings.video, MediaOptions())[1:]) >= 128 * 4
    large = video_grid((8, 2160, 3840, 3), settings.video, MediaOptions())
    assert np.prod(large[1:]) * 256 <= VIDEO_MAX_PIXELS


def test_total_pixels_are_shared_by_the_frames(settings: Settings) -> None:
    total = 20 * 64 * 64
    options = MediaOptions(total_pixels=total)
    grid = video_grid((20, 480, 640, 3), settings.video, options)
    assert 20 * grid[1] * grid[2] * 256 <= total
    few = video_grid((2, 480, 640, 3), settings.video, options)
    assert few[1] * few[2] > grid[1] * grid[2]


def test_a_budget_below_one_block_a_frame_is_refused(settings: Settings) -> None:
    with pytest.raises(RequestError, match="video_max_frames") as caught:
        video_grid((20, 480, 640, 3), settings.video, MediaOptions(total_pixels=20 * 1023))
    assert caught.value.param == "total_pixels"
