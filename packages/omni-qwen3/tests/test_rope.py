"""M-RoPE positions against `get_rope_index` of transformers' Thinker and Talker."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as reference

from omni_qwen3.preprocess.audio import audio_tokens
from omni_qwen3.preprocess.rope import rope_index
from omni_qwen3.preprocess.settings import PromptConfig
from omni_qwen3.preprocess.tokens import MediaSizes, expand

IMAGE, VIDEO, AUDIO = 1, 2, 3
VISION_START, VISION_END, AUDIO_START, AUDIO_END, TEXT = 4, 5, 6, 7, 8
CONFIG = PromptConfig(
    image_token_id=IMAGE,
    video_token_id=VIDEO,
    audio_token_id=AUDIO,
    vision_start_token_id=VISION_START,
    audio_start_token_id=AUDIO_START,
    position_id_per_seconds=13.0,
    spatial_merge_size=2,
)
BLOCKS = {
    "image": [VISION_START, IMAGE, VISION_END],
    "video": [VISION_START, VIDEO, VISION_END],
    "audio": [AUDIO_START, AUDIO, AUDIO_END],
    "text": [TEXT] * 4,
}


class _Reference(reference.Qwen3OmniMoePreTrainedModelForConditionalGeneration):
    """transformers' position code without a model around it; Thinker and Talker share it."""

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)
        self.spatial_merge_size = CONFIG.spatial_merge_size
        self.__dict__["config"] = SimpleNamespace(
            **{name: getattr(CONFIG, name) for name in CONFIG.__slots__},
            audio_config=SimpleNamespace(n_window=50),
        )


def _prompt(kinds: list[str], with_sound: bool, seed: int) -> tuple[np.ndarray, MediaSizes]:
    draw = np.random.default_rng(seed)
    grids = {
        kind: [
            [int(draw.integers(1, 5)) if kind == "video" else 1, *(2 * draw.integers(1, 7, 2))]
            for _ in range(kinds.count(kind))
        ]
        for kind in ("image", "video")
    }
    sounds = kinds.count("audio") + (kinds.count("video") if with_sound else 0)
    sizes = MediaSizes(
        image_grids=grids["image"],
        video_grids=grids["video"],
        second_per_grid=[float(2 / fps) for fps in draw.choice([1.0, 1.998, 2.0, 3.0, 7.3], 9)][
            : kinds.count("video")
        ],
        audio_lengths=[int(n) for n in draw.integers(1, 420, sounds)],
        use_audio_in_video=with_sound,
    )
    compact = list(itertools.chain([TEXT] * 3, *(BLOCKS[kind] for kind in kinds), [TEXT] * 5))
    return expand(compact, sizes, audio_end_token_id=AUDIO_END, config=CONFIG), sizes


def _expected(ids: np.ndarray, sizes: MediaSizes, flag: bool) -> tuple[np.ndarray, float]:
    tensors: dict[str, Any] = {
        "image_grid_thw": torch.tensor(sizes.image_grids) if sizes.image_grids else None,
        "video_grid_thw": torch.tensor(sizes.video_grids) if sizes.video_grids else None,
        "audio_seqlens": torch.tensor(sizes.audio_lengths),
        "second_per_grids": torch.tensor(sizes.second_per_grid),
    }
    row = torch.from_numpy(ids)[None]
    positions, delta = _Reference().get_rope_index(
        row, attention_mask=torch.ones_like(row), use_audio_in_video=flag, **tensors
    )
    return positions[:, 0].numpy(), float(delta)


def _ours(ids: np.ndarray, sizes: MediaSizes, flag: bool) -> tuple[np.ndarray, float]:
    return rope_index(
        ids,
        image_grid_thw=np.array(sizes.image_grids) if sizes.image_grids else None,
        video_grid_thw=np.array(sizes.video_grids) if sizes.video_grids else None,
        second_per_grid=sizes.second_per_grid,
        audio_lengths=np.array(sizes.audio_lengths),
        use_audio_in_video=flag,
        config=CONFIG,
    )


CASES = [
    [],
    ["text"],
    ["audio"],
    ["image"],
    ["video"],
    ["audio", "image"],
    ["image", "audio", "image"],
    ["video", "text", "audio", "image"],
    ["audio", "audio", "video", "video"],
    ["image", "video", "image", "audio", "text", "video"],
]


@pytest.mark.parametrize("kinds", CASES, ids="+".join)
@pytest.mark.parametrize(
    ("with_sound", "flag"),
    [(False, False), (True, True), (True, False)],
    ids=["silent", "sound-thinker", "sound-talker"],
)
@pytest.mark.parametrize("seed", range(4))
def test_positions_equal_transformers(
    kinds: list[str], with_sound: bool, flag: bool, seed: int
) -> None:
    ids, sizes = _prompt(kinds, with_sound, seed)
    expected, expected_delta = _expected(ids, sizes, flag)
    positions, delta = _ours(ids, sizes, flag)
    assert positions.dtype == np.float32
    np.testing.assert_array_equal(positions, expected)
    assert delta == expected_delta


def test_a_fractional_frame_rate_gives_fractional_positions() -> None:
    ids = np.array([VISION_START, VIDEO, VIDEO, VISION_END, TEXT])
    positions, delta = rope_index(
        ids, video_grid_thw=np.array([[2, 2, 2]]), second_per_grid=[2 / 3], config=CONFIG
    )
    assert positions[0].tolist() == pytest.approx([0, 1, 1 + 26 / 3, 2 + 26 / 3, 3 + 26 / 3])
    assert delta == pytest.approx(4 + 26 / 3 - 5, abs=1e-5)


@pytest.mark.parametrize("frames", [1, 2, 7, 8, 9, 99, 100, 101, 250, 3000])
def test_tokens_of_mel_frames(frames: int) -> None:
    assert audio_tokens(frames) == reference._get_feat_extract_output_lengths(frames)
