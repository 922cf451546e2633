"""Media sent again: not decoded again, yet never lost, whatever the encoders still keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from media import frames, matroska, picture, png, sweep, wav
from omni_core.codec import Codec
from omni_core.errors import ContextLengthError
from omni_core.media import MediaLimits
from omni_core.messages import DataReady
from omni_core.scheduler.base import Work
from omni_core.specs import StageContext
from omni_core.types import MediaKind, MediaOptions, MediaPart, Message, RequestParams, TextPart
from omni_qwen3 import encoders
from omni_qwen3.edges import audio_encoder_input, image_encoder_input
from omni_qwen3.payloads import Prompt
from omni_qwen3.pipeline import IMAGE_ENCODER
from omni_qwen3.preprocess.stage import Preprocessor

SMALL = MediaOptions(min_pixels=4 * 1024, max_pixels=16 * 1024)
WITH_SOUND = msgspec.structs.replace(SMALL, use_audio_in_video=True)
PICTURE, OTHER_PICTURE = png(picture(128, 64)), png(picture(128, 64, seed=1))
LONG, SHORT = wav(sweep(2)), wav(sweep(1)[:9_999])
CLIP = matroska(frames(6, 80, 48), sweep(3))
FILES: list[tuple[MediaKind, bytes]] = [
    ("image", PICTURE),
    ("video", CLIP),
    ("audio", SHORT),
    ("audio", LONG),
]
LOADERS = ("load_image", "load_audio", "load_video")


@pytest.fixture
def preprocessor(tiny_checkpoint: str) -> Preprocessor:
    return Preprocessor(tiny_checkpoint, MediaLimits())


def ask(
    preprocessor: Preprocessor,
    files: Sequence[tuple[MediaKind, bytes]],
    options: MediaOptions = SMALL,
    text: str = "What is this?",
) -> Prompt:
    media = [MediaPart(kind=kind, data=data) for kind, data in files]
    message = Message(role="user", content=(*media, TextPart(text=text)))
    return preprocessor.prompt((message,), RequestParams(media=options))


def forbid_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LOADERS:
        monkeypatch.setattr(f"omni_core.encoder.media.{name}", None)


def contents(prompt: Prompt) -> list[Any]:
    """Arrays of all items, None where the file was sent instead."""
    visuals = [prompt[kind]["pixel_values"] for kind in ("image", "video") if kind in prompt]
    sounds = [prompt["audio"]["input_features"]] if "audio" in prompt else []
    return [content for part in [*visuals, *sounds] for content in part]


@pytest.mark.parametrize("options", [SMALL, WITH_SOUND], ids=["silent", "with sound"])
def test_what_was_met_before_makes_the_same_prompt_without_decoding(
    preprocessor: Preprocessor, options: MediaOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ask(preprocessor, FILES, options)
    forbid_decoding(monkeypatch)
    second = ask(preprocessor, FILES, options)
    assert set(second) == set(first)
    for name in ("input_ids", "positions"):
        np.testing.assert_array_equal(second[name], first[name])
    assert (second["rope_delta"], second["routed"]) == (first["rope_delta"], first["routed"])
    assert not any(content is None for content in contents(first))
    assert all(content is None for content in contents(second))
    for kind in ("image", "video", "audio"):
        assert set(second[kind]) == set(first[kind])
        assert second[kind]["keys"] == first[kind]["keys"]
        assert second[kind]["params"] == first[kind]["params"]
        np.testing.assert_array_equal(second[kind]["rows"], first[kind]["rows"])
        np.testing.assert_array_equal(second[kind]["row_keys"], first[kind]["row_keys"])
    np.testing.assert_array_equal(second["audio"]["lengths"], first["audio"]["lengths"])
    [file] = second["image"]["encoded"]
    assert file is not None
    assert file.tobytes() == PICTURE
    assert preprocessor.stats()["cache_hits"] == len(FILES)


def test_only_what_is_new_is_decoded(preprocessor: Preprocessor) -> None:
    ask(preprocessor, [("image", PICTURE), ("audio", SHORT)])
    mixed = [("image", PICTURE), ("image", OTHER_PICTURE), ("audio", LONG), ("audio", SHORT)]
    prompt = ask(preprocessor, mixed)
    assert [content is None for content in contents(prompt)] == [True, False, False, True]
    alone = ask(preprocessor, [("audio", LONG)])
    assert alone["audio"]["padded_samples"] == prompt["audio"]["padded_samples"] == 32_000


@pytest.mark.parametrize(
    "change",
    [
        {"min_pixels": 5 * 1024},
        {"max_pixels": 8 * 1024},
        {"total_pixels": 64 * 1024},
        {"video_fps": 1.0},
        {"video_max_frames": 4},
        {"use_audio_in_video": True},
    ],
    ids=lambda change: next(iter(change)),
)
def test_other_options_read_a_video_anew(
    preprocessor: Preprocessor, change: dict[str, Any]
) -> None:
    files: list[tuple[MediaKind, bytes]] = [("video", CLIP)]
    first = ask(preprocessor, files)
    other = ask(preprocessor, files, msgspec.structs.replace(SMALL, **change))
    assert not any(content is None for content in contents(other))
    assert other["video"]["keys"] != first["video"]["keys"]


def test_a_prompt_that_is_refused_leaves_nothing_to_remember(preprocessor: Preprocessor) -> None:
    with pytest.raises(ContextLengthError):
        ask(preprocessor, [("image", PICTURE)], text="a b " * 5000)
    assert not any(content is None for content in contents(ask(preprocessor, [("image", PICTURE)])))


def test_zero_switches_remembering_off(tiny_checkpoint: str) -> None:
    preprocessor = Preprocessor(tiny_checkpoint, MediaLimits(), remembered=0)
    for _ in range(2):
        prompt = ask(preprocessor, [("image", PICTURE)])
        assert not any(content is None for content in contents(prompt))


def context(model_path: str) -> StageContext:
    return StageContext(
        stage=replace(IMAGE_ENCODER, options={}),
        model_path=model_path,
        device="cpu",
        dtype="float32",
        ar_engine="torch",
        report=lambda message: None,
    )


def received(prompt: Prompt, audio: bool) -> Work:
    """What an encoder in a process of its own gets."""
    project = audio_encoder_input if audio else image_encoder_input
    sent = DataReady(
        request_id="r", source="a", target="b", params=RequestParams(), payload=project(prompt)
    )
    codec = Codec()
    message = codec.decode(codec.encode(sent), DataReady)
    return Work("r", message.params, message.payload)


@pytest.mark.parametrize("options", [SMALL, WITH_SOUND], ids=["silent", "with sound"])
def test_encoders_that_keep_nothing_make_the_same_of_files(
    tiny_checkpoint: str, preprocessor: Preprocessor, options: MediaOptions
) -> None:
    """Evicted, never computed because of an abort, or lost with the process: all look alike."""
    first, second = (ask(preprocessor, FILES, options) for _ in range(2))
    for audio, load in ((False, encoders.load_image), (True, encoders.load_audio)):
        encoder = load(context(tiny_checkpoint))
        fresh = load(context(tiny_checkpoint))
        [whole], [again] = encoder([received(first, audio)]), fresh([received(second, audio)])
        assert isinstance(whole, dict)
        torch.testing.assert_close(again, whole, atol=1e-5, rtol=1e-5)
        assert fresh.stats()["read_again"] == (len(first["audio"]["keys"]) if audio else 2)
        assert encoder([received(second, audio)])[0].keys() == whole.keys()
        assert encoder.stats()["read_again"] == 0
