"""Encoder stages: what they compute, and that company changes nothing."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from transformers import Qwen3OmniMoeForConditionalGeneration

from omni_core.errors import ConfigError, OmniError
from omni_core.media.keys import media_key
from omni_core.scheduler.base import Work
from omni_core.specs import StageConfig, StageContext
from omni_core.types import RequestParams
from omni_qwen3 import encoders
from omni_qwen3.preprocess.audio import audio_tokens

Encoder: TypeAlias = encoders.CachedEncoder[Any, Any]

PATCH = 3 * 2 * 16 * 16
CLIPS = ([150, 60], [40], [99], [100], [40, 12], [320])
GRIDS: list[dict[str, list[list[int]]]] = [
    {"image": [[1, 6, 10]]},
    {"video": [[4, 4, 6]]},
    {"image": [[1, 4, 4], [1, 2, 8]], "video": [[2, 4, 4]]},
]


def context(model_path: str, dtype: str = "float32") -> StageContext:
    return StageContext(
        stage=StageConfig(name="encoder", factory=encoders.build_image, max_batch=8),
        model_path=model_path,
        device="cpu",
        dtype=dtype,
        ar_engine="torch",
        report=lambda message: None,
    )


def audio_work(index: int, lengths: list[int], request_id: str | None = None) -> Work:
    """A request with clips of its own: those of one `index` and length are equal."""
    rng = np.random.default_rng(index)
    clips = [rng.standard_normal((128, frames)).astype(np.float32) for frames in lengths]
    audio = {
        "input_features": clips,
        "encoded": [None] * len(clips),
        "padded_samples": 0,
        "lengths": np.array(lengths),
        "params": [f"clips[{item}]" for item in range(len(clips))],
        "keys": [media_key(clip.tobytes(), max(lengths)) for clip in clips],
    }
    return Work(request_id or f"r{index}", RequestParams(), {"audio": audio})


def visual_work(
    index: int, grids: dict[str, list[list[int]]], request_id: str | None = None
) -> Work:
    """A request with pictures of its own: those of one `index` and grid are equal."""
    payload: dict[str, Any] = {}
    for kind, items in grids.items():
        patches = [
            np.random.default_rng([index, *grid])
            .standard_normal((math.prod(grid), PATCH))
            .astype(np.float32)
            for grid in items
        ]
        payload[kind] = {
            "pixel_values": patches,
            "encoded": [None] * len(items),
            "grid_thw": np.array(items),
            "params": [f"{kind}s[{item}]" for item in range(len(items))],
            "keys": [media_key(item.tobytes(), kind) for item in patches],
        }
    return Work(request_id or f"r{index}", RequestParams(), payload)


@pytest.fixture(scope="module")
def audio_encoder(tiny_checkpoint: str) -> Encoder:
    return encoders.load_audio(context(tiny_checkpoint))


@pytest.fixture(scope="module")
def image_encoder(tiny_checkpoint: str) -> Encoder:
    return encoders.load_image(context(tiny_checkpoint))


@pytest.fixture(scope="module")
def model(tiny_checkpoint: str) -> Any:
    return Qwen3OmniMoeForConditionalGeneration.from_pretrained(
        tiny_checkpoint, dtype=torch.float32
    ).thinker.eval()


@torch.inference_mode()
def test_audio_equals_transformers_alone_and_in_a_batch(audio_encoder: Encoder, model: Any) -> None:
    works = [audio_work(index, lengths) for index, lengths in enumerate(CLIPS)]
    for work, features in zip(works, audio_encoder(works), strict=True):
        assert isinstance(features, dict)
        audio = work.payload["audio"]
        expected = model.audio_tower(
            torch.from_numpy(np.concatenate(audio["input_features"], axis=1)),
            feature_lens=torch.from_numpy(audio["lengths"]),
        ).last_hidden_state
        assert len(expected) == sum(audio_tokens(int(n)) for n in audio["lengths"])
        torch.testing.assert_close(features["audio"], expected, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_visuals_equal_transformers_alone_and_in_a_batch(
    image_encoder: Encoder, model: Any
) -> None:
    works = [visual_work(index, grids) for index, grids in enumerate(GRIDS)]
    for work, features in zip(works, image_encoder(works), strict=True):
        assert isinstance(features, dict)
        assert set(features) == set(work.payload)
        for kind, visual in work.payload.items():
            expected = model.visual(
                torch.from_numpy(np.concatenate(visual["pixel_values"])),
                grid_thw=torch.from_numpy(visual["grid_thw"]),
            )
            got = features[kind]
            torch.testing.assert_close(got["embeds"], expected.pooler_output, atol=1e-5, rtol=1e-5)
            deepstack = torch.stack(list(expected.deepstack_features))
            torch.testing.assert_close(got["deepstack"], deepstack, atol=1e-5, rtol=1e-5)


def test_a_bad_clip_fails_alone(audio_encoder: Encoder) -> None:
    works = [audio_work(index, [40]) for index in (10, 11, 12)]
    works[1].payload["audio"]["lengths"] = np.array([39])
    first, second, third = audio_encoder(works)
    assert isinstance(first, dict)
    assert isinstance(second, OmniError)
    assert isinstance(third, dict)


def test_a_bad_picture_fails_alone(image_encoder: Encoder) -> None:
    works = [visual_work(10, GRIDS[0]), visual_work(11, GRIDS[0])]
    works[0].payload["image"]["grid_thw"] = np.array([[1, 6, 8]])
    first, second = image_encoder(works)
    assert isinstance(first, OmniError)
    assert "60 patches do not fill the grid's 48" in first.message
    assert isinstance(second, dict)


@torch.inference_mode()
def test_bfloat16_equals_transformers(tiny_checkpoint: str) -> None:
    """Angles and positions stay float32 there; rounded, they would be off by a thousandth."""
    model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(
        tiny_checkpoint, dtype=torch.bfloat16
    ).thinker.eval()
    visual, audio = visual_work(0, GRIDS[0]), audio_work(0, CLIPS[0])
    (seen,) = encoders.load_image(context(tiny_checkpoint, "bfloat16"))([visual])
    (heard,) = encoders.load_audio(context(tiny_checkpoint, "bfloat16"))([audio])
    assert isinstance(seen, dict)
    assert isinstance(heard, dict)
    image, clip = visual.payload["image"], audio.payload["audio"]
    expected = model.visual(
        torch.from_numpy(image["pixel_values"][0]), grid_thw=torch.from_numpy(image["grid_thw"])
    ).pooler_output
    torch.testing.assert_close(seen["image"]["embeds"], expected, atol=1e-3, rtol=1.6e-2)
    expected = model.audio_tower(
        torch.from_numpy(np.concatenate(clip["input_features"], axis=1)),
        feature_lens=torch.from_numpy(clip["lengths"]),
    ).last_hidden_state
    torch.testing.assert_close(heard["audio"], expected, atol=1e-3, rtol=1.6e-2)


@pytest.mark.parametrize(
    ("section", "key", "value", "problem"),
    [
        ("vision_config", "depth", None, r"lacks thinker_config\.vision_config\.depth"),
        ("audio_config", "activation_function", "relu", "only 'gelu' is supported"),
    ],
)
def test_a_config_the_towers_cannot_follow_is_refused(
    tiny_checkpoint: str, tmp_path: Path, section: str, key: str, value: str | None, problem: str
) -> None:
    data = json.loads((Path(tiny_checkpoint) / "config.json").read_text())
    del data["thinker_config"][section][key]
    if value is not None:
        data["thinker_config"][section][key] = value
    (tmp_path / "config.json").write_text(json.dumps(data))
    load = {"vision_config": encoders.load_image, "audio_config": encoders.load_audio}[section]
    with pytest.raises(ConfigError, match=problem):
        load(context(str(tmp_path)))
