"""Pictures to patches, against transformers' Pillow image processor."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from omni_core.encoder.patches import image_grid, image_patches, pixel_range, smart_resize
from omni_core.errors import MediaError, RequestError
from omni_core.types import MediaOptions
from omni_qwen3.preprocess.settings import Settings, VisionSettings, load_settings


@pytest.fixture(scope="module")
def settings(tiny_checkpoint: str) -> Settings:
    return load_settings(tiny_checkpoint)


def picture(width: int, height: int) -> Image.Image:
    draw = np.random.default_rng(width * 1000 + height)
    return Image.fromarray(draw.integers(0, 256, (height, width, 3), dtype=np.uint8))


def reference(settings: VisionSettings, low: int, high: int) -> Qwen2VLImageProcessorPil:
    return Qwen2VLImageProcessorPil(
        size={"shortest_edge": low, "longest_edge": high},
        patch_size=settings.patch_size,
        temporal_patch_size=settings.temporal_patch_size,
        merge_size=settings.merge_size,
        image_mean=list(settings.mean),
        image_std=list(settings.std),
    )


OPTIONS = [
    MediaOptions(),
    MediaOptions(max_pixels=40 * 1024),
    MediaOptions(min_pixels=50 * 1024),
    MediaOptions(min_pixels=20 * 1024, max_pixels=24 * 1024),
]


@pytest.mark.parametrize(
    ("width", "height"), [(160, 96), (161, 97), (1, 1), (27, 27), (2000, 11), (333, 512)]
)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_patches_equal_transformers(
    settings: Settings, width: int, height: int, options: MediaOptions
) -> None:
    image = picture(width, height)
    low, high = pixel_range(settings.image, options)
    expected = reference(settings.image, low, high)(images=[image], return_tensors="np")
    grid = image_grid(image, settings.image, options)
    assert grid == expected["image_grid_thw"][0].tolist()
    patches = image_patches(image, grid, settings.image)
    assert patches.dtype == np.float32
    np.testing.assert_array_equal(patches, expected["pixel_values"])


def test_other_means_and_deviations_are_honoured(settings: Settings) -> None:
    image = picture(64, 64)
    clip = VisionSettings(
        patch_size=14,
        temporal_patch_size=2,
        merge_size=2,
        mean=(0.48145466, 0.4578275, 0.40821073),
        std=(0.26862954, 0.26130258, 0.27577711),
        rescale_factor=1 / 255,
        min_pixels=28 * 28,
        max_pixels=28 * 28 * 16,
    )
    expected = reference(clip, clip.min_pixels, clip.max_pixels)(
        images=[image], return_tensors="np"
    )
    grid = image_grid(image, clip, MediaOptions())
    np.testing.assert_array_equal(image_patches(image, grid, clip), expected["pixel_values"])


def test_a_picture_two_hundred_times_as_long_as_wide_is_the_last(settings: Settings) -> None:
    assert image_grid(picture(200, 1), settings.image, MediaOptions())[1] >= 2
    with pytest.raises(MediaError, match="201 x 1 pixels"):
        image_grid(picture(201, 1), settings.image, MediaOptions())


@pytest.mark.parametrize(
    ("options", "param"),
    [
        (MediaOptions(min_pixels=4096, max_pixels=2048), "min_pixels"),
        (MediaOptions(max_pixels=1023), "max_pixels"),
    ],
)
def test_bounds_no_picture_can_meet_are_refused(
    settings: Settings, options: MediaOptions, param: str
) -> None:
    with pytest.raises(RequestError) as caught:
        image_grid(picture(64, 64), settings.image, options)
    assert caught.value.param == param


def test_both_sides_are_multiples_within_the_area() -> None:
    for height, width in [(1, 199), (720, 1280), (4000, 21), (33, 33)]:
        sides = smart_resize(height, width, factor=32, min_pixels=4096, max_pixels=65536)
        assert all(side % 32 == 0 and side > 0 for side in sides)
        assert sides[0] * sides[1] >= 4096
