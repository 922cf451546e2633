"""The towers beside the authors': patches, frames and rows of the Thinker."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from golden_files import GOLDEN, arrays, assert_close
from PIL import Image

from omni_core.encoder.patches import image_grid, image_patches, smart_resize
from omni_core.specs import StageConfig, StageContext
from omni_core.types import MediaOptions
from omni_ming import encoders
from omni_ming.activation import audio_bytes, vision_patch_bytes
from omni_ming.preprocess.audio import AudioFeatures
from omni_ming.preprocess.settings import Settings, load_settings
from omni_ming.preprocess.video import video_patches
from omni_ming.towers.audio import AudioTower
from omni_ming.towers.config import AudioConfig, VisionConfig
from omni_ming.towers.sizes import audio_tokens
from omni_ming.towers.vision import VisionTower

TABLES: dict[str, Any] = json.loads((GOLDEN / "text.json").read_text(encoding="utf-8"))


def context(model_path: str) -> StageContext:
    return StageContext(
        stage=StageConfig(name="encoder", factory=encoders.build_image),
        model_path=model_path,
        device="cpu",
        dtype="float32",
        ar_engine="torch",
        report=lambda message: None,
    )


@pytest.fixture(scope="module")
def settings(tiny_checkpoint: str) -> Settings:
    return load_settings(tiny_checkpoint)


@pytest.fixture(scope="module")
def vision(tiny_checkpoint: str) -> VisionTower:
    tower = encoders.load_image(context(tiny_checkpoint)).encoder._tower  # type: ignore[attr-defined]
    assert isinstance(tower, VisionTower)
    return tower


@pytest.fixture(scope="module")
def audio(tiny_checkpoint: str) -> AudioTower:
    return encoders.load_audio(context(tiny_checkpoint)).encoder._tower  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("row", TABLES["smart_resize"])
def test_sizes_of_pictures(row: list[int], settings: Settings) -> None:
    height, width, *expected = row
    low, high = settings.pictures.min_pixels, settings.pictures.max_pixels
    made = smart_resize(height, width, factor=32, min_pixels=low, max_pixels=high)
    assert list(made) == expected


@pytest.mark.parametrize(("frames", "tokens"), TABLES["audio_tokens"])
def test_rows_of_clips(frames: int, tokens: int) -> None:
    assert audio_tokens(frames) == tokens


def test_patches_of_a_picture(settings: Settings) -> None:
    picture = Image.fromarray(arrays("towers")["image_u8"])
    grid = image_grid(picture, settings.pictures, MediaOptions())
    assert grid == arrays("towers")["image_grid_thw"][0].tolist()
    made = image_patches(picture, grid, settings.pictures)
    assert_close(made, arrays("towers")["image_pixel_values"])


def test_patches_of_a_video(settings: Settings) -> None:
    grid = arrays("towers")["video_grid_thw"][0].tolist()
    made = video_patches(arrays("towers")["video_u8"], grid, settings.pictures)
    assert_close(made, arrays("towers")["video_pixel_values"])


@torch.inference_mode()
def test_rows_of_a_picture(vision: VisionTower) -> None:
    golden = arrays("towers")
    patches = torch.from_numpy(golden["image_pixel_values"])
    grids = golden["image_grid_thw"].tolist()
    places, sizes = vision.vision._places(grids)
    assert_close(vision.vision.pos_embed(places, sizes), golden["vision_pos_embed"])
    assert_close(vision.merged(patches, grids), golden["vision_out"])
    assert_close(vision(patches, grids)["embeds"], golden["image_embeds"])


@torch.inference_mode()
@pytest.mark.parametrize("grids", ["video_grid_thw", "video_grid_thw_interleaved"])
def test_rows_of_a_video(grids: str, vision: VisionTower) -> None:
    golden = arrays("towers")
    patches = torch.from_numpy(golden["video_pixel_values"])
    assert_close(vision(patches, golden[grids].tolist())["embeds"], golden["video_embeds"])


def test_frames_of_sound(settings: Settings) -> None:
    """As good as float32 spectra are in quiet bands: the golden is off by 3.7e-5 from the same
    in float64, ours by 2.8e-5."""
    golden, features = arrays("towers"), AudioFeatures(settings.audio)
    clips = [features(golden[f"audio_wav{n}"]) for n in range(2)]
    assert [features.frames(len(golden[f"audio_wav{n}"])) for n in range(2)] == [150, 77]
    assert_close(np.concatenate(clips, axis=1).T, golden["audio_feats"][0], 5e-5)


@torch.inference_mode()
def test_rows_of_sound(audio: AudioTower) -> None:
    golden = arrays("towers")
    lengths = golden["audio_feats_lengths"][0].tolist()
    clips = torch.from_numpy(golden["audio_feats"][0]).T.split(lengths, dim=1)
    together = audio(clips)
    for n, clip in enumerate(clips):
        expected = golden[f"audio_embeds_single{n}"][0]
        assert_close(audio([clip])[0], expected)
        assert_close(together[n], expected)


def peak_bytes(call: Callable[[], Any]) -> int:
    """The most memory torch's CPU allocator held at once beyond what it held before."""
    with (
        torch.inference_mode(),
        torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        ) as profile,
    ):
        call()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = np.cumsum([e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())])
    return int(held.max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_vision_memory_is_estimated(dtype: torch.dtype) -> None:
    config = VisionConfig(
        depth=3, hidden_size=288, intermediate_size=1076, num_heads=4, in_channels=3,
        patch_size=16, temporal_patch_size=2, spatial_merge_size=2, num_position_embeddings=2304,
        rope_theta=1e4, out_hidden_size=1024, thinker_hidden_size=1024,
    )  # fmt: skip
    tower = VisionTower(config).eval().to(dtype)
    patches = torch.randn(2 * 20 * 24, 3 * 2 * 16 * 16).to(dtype)
    peak = peak_bytes(lambda: tower(patches.clone(), [[2, 20, 24]]))
    estimate = vision_patch_bytes(config, dtype.itemsize) * len(patches)
    assert peak <= estimate <= 1.8 * peak, estimate / peak


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lengths", [[200], [3000], [100] * 30], ids=["short", "long", "many"])
def test_audio_memory_is_estimated(dtype: torch.dtype, lengths: list[int]) -> None:
    config = AudioConfig(
        n_mels=128, n_ctx=1500, n_state=320, n_head=4, n_layer=2,
        thinker_hidden_size=1024,
    )  # fmt: skip
    tower = AudioTower(config).eval().to(dtype)
    clips = [torch.randn(128, frames).to(dtype) for frames in lengths]
    peak = peak_bytes(lambda: tower([clip.clone() for clip in clips]))
    frames = sum(lengths)
    estimate = audio_bytes(config, dtype.itemsize).of(frames)
    assert peak <= estimate, estimate / peak
    assert frames < 3000 or estimate <= 1.8 * peak, estimate / peak
