"""Waiting for encoders, and joining their rows with the prompt."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from omni_core.errors import StageError
from omni_core.types import RequestParams
from omni_qwen3.aggregate import merge, wait_for_fn
from omni_qwen3.edges import (
    audio_encoder_input,
    image_encoder_input,
    route_prompt,
    route_reply,
    without_media_arrays,
)

HIDDEN, LEVELS = 4, 3


def rows(*places: int) -> Any:
    return np.array(places, dtype=np.int64)


def prompt(**media: Any) -> dict[str, Any]:
    length = 12
    return {
        "input_ids": np.arange(length),
        "positions": np.zeros((3, length), dtype=np.float32),
        "rope_delta": -2.0,
        "routed": [],
        **media,
    }


def visual(*places: int) -> dict[str, Any]:
    return {
        "pixel_values": [np.ones((4 * len(places), 6), dtype=np.float32)],
        "encoded": [None],
        "grid_thw": np.array([[1, 2, 2 * len(places)]]),
        "rows": rows(*places),
        "row_keys": -rows(*places),
    }


def sound(*places: int) -> dict[str, Any]:
    return {
        "input_features": [np.zeros((128, 16), np.float32)],
        "encoded": [None],
        "lengths": rows(16),
        "rows": rows(*places),
        "row_keys": -rows(*places),
    }


def features(*places: int) -> dict[str, Any]:
    """Rows that say which place of the prompt they are for."""
    embeds = torch.tensor(places, dtype=torch.float32)[:, None].expand(-1, HIDDEN)
    return {"embeds": embeds, "deepstack": torch.stack([embeds + 100 * i for i in range(LEVELS)])}


def test_waits_for_the_prompt_and_then_for_what_it_was_routed_to() -> None:
    assert wait_for_fn({}) is None
    assert wait_for_fn({"image_encoder": {}}) is None
    assert wait_for_fn({"preprocessing": prompt()}) == {"preprocessing"}
    both = {**prompt(), "routed": ["audio_encoder", "image_encoder"]}
    assert wait_for_fn({"preprocessing": both}) == {
        "preprocessing",
        "audio_encoder",
        "image_encoder",
    }


def test_text_alone_has_no_media_keys() -> None:
    merged = merge({"preprocessing": prompt()})
    assert set(merged) == {"input_ids", "positions", "rope_delta"}


def test_every_row_gets_its_own_features_in_ascending_order() -> None:
    audio_rows = torch.tensor([2.0, 7.0])[:, None].expand(-1, HIDDEN)
    source = prompt(
        image=visual(4, 5),
        video={**visual(1, 9), "second_per_grid": [1.0]},
        audio=sound(2, 7),
    )
    merged = merge(
        {
            "preprocessing": without_media_arrays(source),
            "image_encoder": {"image": features(4, 5), "video": features(1, 9)},
            "audio_encoder": {"audio": audio_rows},
        }
    )
    assert merged["media_index"].tolist() == [1, 2, 4, 5, 7, 9]
    assert merged["media_embeds"][:, 0].tolist() == [1, 2, 4, 5, 7, 9]
    assert merged["media_row_keys"].tolist() == [-1, -2, -4, -5, -7, -9]
    assert merged["visual_index"].tolist() == [1, 4, 5, 9]
    for level in range(LEVELS):
        expected = [place + 100 * level for place in (1, 4, 5, 9)]
        assert merged["deepstack"][level, :, 0].tolist() == expected
    assert merged["image_grid_thw"] is source["image"]["grid_thw"]
    assert merged["video_grid_thw"] is source["video"]["grid_thw"]
    assert merged["second_per_grid"] == [1.0]
    assert merged["audio_lengths"].tolist() == [16]


@pytest.mark.parametrize("name", ["embeds", "deepstack"])
def test_features_of_another_length_are_never_joined(name: str) -> None:
    """As a cache that took one item for another would give them."""
    arrived = {**features(4, 5), name: features(4, 5, 6)[name]}
    with pytest.raises(StageError, match="3 rows for media with 2 places"):
        merge(
            {
                "preprocessing": without_media_arrays(prompt(image=visual(4, 5))),
                "image_encoder": {"image": arrived},
            }
        )


def test_sound_alone_has_no_visual_keys() -> None:
    merged = merge(
        {
            "preprocessing": prompt(audio=sound(3, 4)),
            "audio_encoder": {"audio": torch.zeros(2, HIDDEN)},
        }
    )
    assert merged["media_index"].tolist() == [3, 4]
    assert not {"visual_index", "deepstack", "image_grid_thw", "video_grid_thw"} & set(merged)


def test_each_target_sees_only_what_it_needs() -> None:
    source = prompt(image=visual(4), audio=sound(2))
    assert set(image_encoder_input(source)) == {"image"}
    assert set(audio_encoder_input(source)) == {"audio"}
    small = without_media_arrays(source)
    assert set(small) == set(source)
    assert set(small["image"]) == {"grid_thw", "rows", "row_keys"}
    assert set(small["audio"]) == {"lengths", "rows", "row_keys"}
    assert "pixel_values" in source["image"]


def test_requests_visit_only_what_they_need() -> None:
    text, speech = RequestParams(), RequestParams(modalities=("text", "audio"))
    assert route_prompt(text, prompt()) == ("mm_aggregate",)
    routed = {**prompt(), "routed": ["image_encoder"]}
    assert set(route_prompt(text, routed)) == {"image_encoder", "mm_aggregate"}
    assert route_reply(text, {}) == ("decode",)
    assert set(route_reply(speech, {})) == {"decode", "talker_ar"}
