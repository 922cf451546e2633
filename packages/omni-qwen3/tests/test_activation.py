"""Activation budgets of the encoders: estimates against measured peaks, cuts against the whole."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from omni_core.encoder import budget as memory
from omni_core.encoder.budget import cut_clips, cut_grids
from omni_core.errors import ConfigError, RequestError
from omni_core.media.keys import media_key
from omni_core.scheduler.base import Work
from omni_core.specs import StageConfig, StageContext
from omni_core.types import RequestParams
from omni_qwen3 import encoders
from omni_qwen3.activation import audio_bytes, vision_patch_bytes
from omni_qwen3.towers.audio import AudioTower
from omni_qwen3.towers.config import AudioConfig, VisionConfig
from omni_qwen3.towers.vision import VisionTower

PATCH = 3 * 2 * 16 * 16
SAME_VISION: dict[str, Any] = {
    "in_channels": 3, "patch_size": 16, "temporal_patch_size": 2, "spatial_merge_size": 2,
    "num_position_embeddings": 2304, "rope_theta": 10000.0,
}  # fmt: skip
TINY_VISION: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "depth": 4,
    "out_hidden_size": 64, "deepstack_visual_indexes": [0, 1, 2],
}  # fmt: skip
MID_VISION: dict[str, Any] = {
    "hidden_size": 288, "intermediate_size": 1076, "num_heads": 4, "depth": 3,
    "out_hidden_size": 512, "deepstack_visual_indexes": [0, 1],
}  # fmt: skip
TINY_AUDIO: dict[str, Any] = {
    "d_model": 32, "encoder_ffn_dim": 96, "encoder_layers": 2, "encoder_attention_heads": 4,
    "downsample_hidden_size": 8, "output_dim": 64, "conv_chunksize": 8, "n_window_infer": 200,
}  # fmt: skip
MID_AUDIO: dict[str, Any] = {
    "d_model": 320, "encoder_ffn_dim": 1280, "encoder_layers": 2, "encoder_attention_heads": 4,
    "downsample_hidden_size": 60, "output_dim": 512, "conv_chunksize": 8, "n_window_infer": 800,
}  # fmt: skip


def context(model_path: str, **options: Any) -> StageContext:
    return StageContext(
        stage=StageConfig(name="encoder", factory=encoders.build_image, options=options),
        model_path=model_path,
        device="cpu",
        dtype="float32",
        ar_engine="torch",
        report=lambda message: None,
    )


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
@pytest.mark.parametrize("sizes", [TINY_VISION, MID_VISION], ids=["tiny", "mid"])
def test_vision_estimate_is_between_the_peak_and_seven_tenths_more(
    sizes: dict[str, Any], dtype: torch.dtype
) -> None:
    grid = [2, 20, 24]
    config = VisionConfig(**SAME_VISION, **sizes)
    tower = VisionTower(config).eval().to(dtype)
    patches = torch.randn(math.prod(grid), PATCH)
    peak = peak_bytes(lambda: tower(patches.to(dtype, copy=True), [grid]))
    estimate = vision_patch_bytes(config, dtype.itemsize) * len(patches)
    assert peak <= estimate <= 1.7 * peak, estimate / peak


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", [TINY_AUDIO, MID_AUDIO], ids=["tiny", "mid"])
@pytest.mark.parametrize("chunks", [4, 20])
def test_audio_estimate_is_between_the_peak_and_seven_tenths_more(
    sizes: dict[str, Any], dtype: torch.dtype, chunks: int
) -> None:
    config = AudioConfig(num_mel_bins=128, n_window=50, **sizes)
    tower = AudioTower(config).eval().to(dtype)
    mel = torch.randn(config.num_mel_bins, 100 * chunks)
    peak = peak_bytes(lambda: tower(mel.to(dtype, copy=True), [100 * chunks]))
    estimate = audio_bytes(config, dtype.itemsize).of(chunks)
    assert peak <= estimate <= 1.7 * peak, estimate / peak


def test_published_sizes_need_what_users_report() -> None:
    """A minute at 2 frames a second and the processor's largest picture, uncut, in bfloat16."""
    config = VisionConfig(
        **SAME_VISION, hidden_size=1152, intermediate_size=4304, num_heads=16, depth=27,
        out_hidden_size=2048, deepstack_visual_indexes=[8, 16, 24],
    )  # fmt: skip
    patches = 60 * 768 * 32 * 32 // 16**2
    assert 8e9 < vision_patch_bytes(config, 2) * patches < 12e9


@pytest.mark.parametrize("most", [64, 79, 80, 200, 1000])
def test_cut_grids_hold_all_frames_in_order(most: int) -> None:
    grids = [[1, 4, 4], [5, 4, 4], [1, 2, 8], [3, 8, 8]]
    calls = cut_grids(grids, most)
    frames = [grid[1:] for grid in grids for _ in range(grid[0])]
    assert [grid[1:] for call in calls for grid in call for _ in range(grid[0])] == frames
    for call in calls:
        assert 0 < sum(map(math.prod, call)) <= most


@pytest.mark.parametrize("most", [200, 300, 400, 5000])
def test_cut_clips_hold_all_frames_in_order(most: int) -> None:
    lengths = [40, 700, 100, 1, 199, 200, 801]
    calls = cut_clips(lengths, chunk=100, window=200, max_frames=most)
    pieces = iter([piece for call in calls for piece in call])
    for frames in lengths:
        start = 0
        while start < frames:
            assert start % 200 == 0
            start += next(pieces)
        assert start == frames
    assert next(pieces, None) is None
    for call in calls:
        assert call
        assert sum(-(-piece // 100) * 100 for piece in call) <= most


def visual(grids: list[list[int]]) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    patches = [rng.standard_normal((math.prod(grid), PATCH)).astype(np.float32) for grid in grids]
    return {
        "pixel_values": patches,
        "encoded": [None] * len(grids),
        "grid_thw": np.array(grids),
        "params": [f"messages[0].content[{item}]" for item in range(len(grids))],
        "keys": [media_key(item.tobytes()) for item in patches],
    }


def counted(cached: Any) -> list[int]:
    """Calls of an encoder's tower from now on, by the size of their first input."""
    calls: list[int] = []
    cached.encoder._tower.register_forward_pre_hook(
        lambda module, args: calls.append(
            args[0].shape[-1] if len(args[0]) == 128 else len(args[0])
        )
    )
    return calls


def test_cut_pictures_and_videos_equal_the_whole(tiny_checkpoint: str) -> None:
    payload = {
        "image": visual([[1, 4, 6], [1, 8, 8]]),
        "video": visual([[7, 4, 4], [1, 6, 6], [3, 4, 6]]),
    }
    work = Work("r", RequestParams(), payload)
    whole_encoder = encoders.load_image(context(tiny_checkpoint))
    patch = vision_patch_bytes(whole_encoder.encoder._tower.config, 4)
    cut_encoder = encoders.load_image(context(tiny_checkpoint, activation_budget_bytes=70 * patch))
    whole_calls, cut_calls = counted(whole_encoder), counted(cut_encoder)
    (whole,), (cut,) = whole_encoder([work]), cut_encoder([work])
    assert len(whole_calls) == 1
    assert len(cut_calls) > 4
    assert max(cut_calls) <= 70
    torch.testing.assert_close(cut, whole, atol=1e-5, rtol=1e-5)


def test_a_picture_over_the_budget_is_refused_by_name(tiny_checkpoint: str) -> None:
    encoder = encoders.load_image(context(tiny_checkpoint))
    patch = vision_patch_bytes(encoder.encoder._tower.config, 4)
    small = encoders.load_image(context(tiny_checkpoint, activation_budget_bytes=63 * patch))
    fits, large = visual([[4, 4, 4]]), visual([[1, 4, 4], [1, 8, 8]])
    works = [
        Work("a", RequestParams(), {"video": fits}),
        Work("b", RequestParams(), {"image": large}),
    ]
    served, refusal = small(works)
    assert isinstance(served, dict)
    assert isinstance(refusal, RequestError)
    assert refusal.param == "messages[0].content[1]"
    assert "lower max_pixels" in refusal.message


@pytest.mark.parametrize(
    "lengths", [[1540], [640, 40, 1000], [30, 401], [99, 5, 640]], ids=lambda v: str(v)
)
def test_cut_sound_equals_the_whole(tiny_checkpoint: str, lengths: list[int]) -> None:
    rng = np.random.default_rng(1)
    clips = [rng.standard_normal((128, frames)).astype(np.float32) for frames in lengths]
    audio = {
        "input_features": clips,
        "encoded": [None] * len(clips),
        "padded_samples": 0,
        "lengths": np.array(lengths),
        "params": ["messages[0].content[0]"] * len(clips),
        "keys": [media_key(clip.tobytes()) for clip in clips],
    }
    work = Work("r", RequestParams(), {"audio": audio})
    whole_encoder = encoders.load_audio(context(tiny_checkpoint))
    budget = audio_bytes(whole_encoder.encoder._tower.config, 4).of(3)
    cut_encoder = encoders.load_audio(context(tiny_checkpoint, activation_budget_bytes=budget))
    calls = counted(cut_encoder)
    (whole,), (cut,) = whole_encoder([work]), cut_encoder([work])
    assert len(calls) > sum(lengths) // 300
    assert max(calls) <= 300
    torch.testing.assert_close(cut, whole, atol=1e-5, rtol=1e-5)


def test_budgets_that_cannot_work_end_the_start(tiny_checkpoint: str) -> None:
    with pytest.raises(ConfigError, match="one window of sound takes"):
        encoders.load_audio(context(tiny_checkpoint, activation_budget_bytes=1000))
    for wrong in (0, "much", 1.5, True):
        with pytest.raises(ConfigError, match="must be a whole number"):
            encoders.load_image(context(tiny_checkpoint, activation_budget_bytes=wrong))


def test_chunks_within_is_the_inverse_of_the_estimate() -> None:
    sizes = audio_bytes(AudioConfig(num_mel_bins=128, n_window=50, **MID_AUDIO), 4)
    for chunks in (1, 7, 8, 9, 100):
        assert sizes.chunks_within(sizes.of(chunks)) == chunks
        assert sizes.chunks_within(sizes.of(chunks) - 1) == chunks - 1


def test_the_default_on_a_cpu(tiny_checkpoint: str) -> None:
    budget = memory.activation_budget(context(tiny_checkpoint), torch.device("cpu"))
    assert budget == memory.CPU_BUDGET_BYTES
