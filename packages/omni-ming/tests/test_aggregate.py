"""Waiting for encoders, joining their rows with the prompt, and who gets to see what."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from omni_core.errors import StageError
from omni_core.types import RequestParams
from omni_ming.aggregate import merge, wait_for_fn
from omni_ming.edges import (
    audio_encoder_input,
    image_encoder_input,
    route_prompt,
    route_spoken_streaming,
    route_spoken_whole,
    without_media_arrays,
)


def prompt(**media: Any) -> dict[str, Any]:
    return {
        "input_ids": np.arange(12),
        "positions": np.zeros((3, 12), dtype=np.int64),
        "rope_delta": -2,
        "routed": [],
        **media,
    }


def item(*places: int) -> dict[str, Any]:
    rows = np.array(places, dtype=np.int64)
    return {"rows": rows, "row_keys": -rows, "keys": [b"k"], "params": ["p"]}


def visual(*places: int) -> dict[str, Any]:
    patches = [np.ones((4 * len(places), 6), dtype=np.float32)]
    grid = np.array([[1, 2, 2 * len(places)]])
    return {**item(*places), "pixel_values": patches, "encoded": [None], "grid_thw": grid}


def sound(*places: int) -> dict[str, Any]:
    frames = [np.zeros((128, 16), np.float32)]
    return {**item(*places), "input_features": frames, "encoded": [None], "lengths": np.array([16])}


def rows(*places: int) -> torch.Tensor:
    """Rows that say which place of the prompt they are for."""
    return torch.tensor(places, dtype=torch.float32)[:, None].expand(-1, 4)


def test_waits_for_the_prompt_and_then_for_what_it_was_routed_to() -> None:
    assert wait_for_fn({}) is None
    assert wait_for_fn({"image_encoder": {}}) is None
    assert wait_for_fn({"preprocessing": prompt()}) == {"preprocessing"}
    routed = {**prompt(), "routed": ["audio_encoder", "image_encoder"]}
    expected = {"preprocessing", "audio_encoder", "image_encoder"}
    assert wait_for_fn({"preprocessing": routed}) == expected


def test_every_row_gets_its_own_features_in_ascending_order() -> None:
    source = prompt(image=visual(4, 5), video=visual(1, 9), audio=sound(2, 7))
    merged = merge(
        {
            "preprocessing": without_media_arrays(source),
            "image_encoder": {"image": {"embeds": rows(4, 5)}, "video": {"embeds": rows(1, 9)}},
            "audio_encoder": {"audio": rows(2, 7)},
        }
    )
    assert merged["media_index"].tolist() == [1, 2, 4, 5, 7, 9]
    assert merged["media_embeds"][:, 0].tolist() == [1, 2, 4, 5, 7, 9]
    assert merged["media_row_keys"].tolist() == [-1, -2, -4, -5, -7, -9]


def test_features_of_another_length_are_never_joined() -> None:
    """As a cache that took one item for another would give them."""
    arrived = {
        "preprocessing": prompt(audio=sound(4, 5)),
        "audio_encoder": {"audio": rows(4, 5, 6)},
    }
    with pytest.raises(StageError, match="3 rows for media with 2 places"):
        merge(arrived)


@pytest.mark.parametrize("more", [{}, {"spoken_text": "hi"}, {"tool_use": b"x"}, {"raw": True}])
def test_what_is_no_media_is_handed_on(more: dict[str, Any]) -> None:
    merged = merge({"preprocessing": prompt(**more)})
    assert merged.keys() == {"input_ids", "positions", "rope_delta", *more}
    assert merged["rope_delta"] == -2
    assert {name: merged[name] for name in more} == more


def test_each_target_sees_only_what_it_needs() -> None:
    source = prompt(image=visual(4), video=visual(5), audio=sound(2))
    assert set(image_encoder_input(source)) == {"image", "video"}
    assert set(audio_encoder_input(source)) == {"audio"}
    small = without_media_arrays(source)
    assert set(small) == set(source)
    assert not {"pixel_values", "encoded"} & set(small["image"])
    assert not {"input_features", "encoded"} & set(small["audio"])
    assert "pixel_values" in source["image"]


def test_requests_visit_only_what_they_need() -> None:
    text, speech = RequestParams(), RequestParams(modalities=("text", "audio"))
    assert route_prompt(text, prompt()) == ("mm_aggregate",)
    routed = {**prompt(), "routed": ["image_encoder"]}
    assert set(route_prompt(text, routed)) == {"image_encoder", "mm_aggregate"}
    for route, speaker in ((route_spoken_whole, "talker"), (route_spoken_streaming, "segmenter")):
        assert route(text, {}) == ("decode",)
        assert set(route(speech, {})) == {"decode", speaker}
