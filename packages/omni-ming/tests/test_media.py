"""Files to what the encoders get: which frames and how large, how long a clip may be, and that an
item met before makes the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from encoder_works import encoder_context
from tokenizers import Tokenizer

from media import frames, matroska, picture, png, sweep, wav
from omni_core.codec import Codec
from omni_core.errors import MediaError, RequestError
from omni_core.media import MediaLimits, Timeline
from omni_core.messages import DataReady
from omni_core.scheduler.base import Work
from omni_core.types import FloatArray, MediaKind, MediaOptions, MediaPart, Message, RequestParams
from omni_ming import encoders
from omni_ming.edges import audio_encoder_input, image_encoder_input
from omni_ming.payloads import Prompt
from omni_ming.preprocess.audio import AudioFeatures
from omni_ming.preprocess.settings import Settings, load_settings
from omni_ming.preprocess.stage import Preprocessor
from omni_ming.preprocess.video import choose_frames, pair_times, pixel_range

SMALL = MediaOptions(min_pixels=4 * 1024, max_pixels=16 * 1024)
CLIP = matroska(frames(7, 80, 48), sweep(4))
"""Seven frames, two of them a second."""
FILES: list[tuple[MediaKind, bytes]] = [
    ("image", png(picture(128, 64))),
    ("video", CLIP),
    ("audio", wav(sweep(1)[:9_999])),
    ("audio", wav(sweep(2))),
]


@pytest.fixture(scope="module")
def settings(tiny_checkpoint: str) -> Settings:
    return load_settings(tiny_checkpoint)


@pytest.fixture
def preprocessor(tiny_checkpoint: str) -> Preprocessor:
    return Preprocessor(tiny_checkpoint, MediaLimits())


def ask(
    preprocessor: Preprocessor,
    files: Sequence[tuple[MediaKind, bytes]],
    options: MediaOptions = SMALL,
) -> Prompt:
    content = tuple(MediaPart(kind=kind, data=data) for kind, data in files)
    message = Message(role="user", content=content)
    return preprocessor.prompt((message,), RequestParams(media=options))


def timeline(count: int, fps: int) -> Timeline:
    return Timeline(
        times=tuple(range(count)),
        tick_s=Fraction(1, fps),
        duration=Fraction(count, fps),
        has_times=True,
        group_of=dict.fromkeys(range(count), 0),
        group_starts=(0,),
    )


@pytest.mark.parametrize(
    ("count", "rate", "fps", "most", "expected"),
    [
        (300, 30, 2.0, 256, 20),  # ten seconds, two a second
        (315, 30, 2.0, 256, 21),  # the last one is repeated later
        (30, 30, 2.0, 256, 4),  # a second
        (3, 30, 2.0, 256, 2),  # no more than there are
        (1, 30, 2.0, 256, 1),
        (9000, 30, 2.0, 256, 256),  # five minutes
        (300, 30, 2.0, 7, 6),  # a caller's own
        (300, 30, 2.0, 1, 1),
        (300, 30, 1.0, 256, 10),
        (20, 2, 30.0, 256, 20),
    ],
)
def test_how_many_frames_of_a_video(
    count: int, rate: int, fps: float, most: int, expected: int
) -> None:
    times = choose_frames(timeline(count, rate), fps, most)
    assert len(times) == expected
    assert times == np.linspace(0, count - 1, expected).astype(int).tolist()


def test_frames_are_from_the_first_to_the_last() -> None:
    assert choose_frames(timeline(300, 30), 2.0, 4) == [0, 99, 199, 299]


def test_times_of_pairs_are_those_of_even_steps_and_a_repeated_frame_counts_twice(
    settings: Settings,
) -> None:
    assert pair_times(4, 2.0, settings.pictures) == [0.25, 1.25]
    assert pair_times(3, 2.0, settings.pictures) == [0.25, 1.0]
    assert pair_times(1, 2.0, settings.pictures) == [0.0]


@pytest.mark.parametrize(
    ("count", "options", "low", "high"),
    [
        (2, {}, 128 * 1024, 96 * 128 * 1024),
        (192, {}, 128 * 1024, int(1.05 * 128 * 1024)),
        (4, {"min_pixels": 4096}, 4096, 48 * 128 * 1024),
        (4, {"max_pixels": 8192}, 8192, 8192),
        (4, {"total_pixels": 4 * 5000}, 5000, 5000),
        (4, {"total_pixels": 4 * 5000, "max_pixels": 4096}, 4096, 4096),
    ],
)
def test_areas_of_frames(
    count: int, options: dict[str, Any], low: int, high: int, settings: Settings
) -> None:
    assert pixel_range(count, settings.pictures, MediaOptions(**options)) == (low, high)


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"total_pixels": 4 * 1023}, "total_pixels"),
        ({"max_pixels": 1023}, "max_pixels"),
        ({"min_pixels": 8192, "max_pixels": 4096}, "min_pixels"),
    ],
)
def test_areas_no_frame_can_have_are_refused(
    options: dict[str, Any], param: str, settings: Settings
) -> None:
    with pytest.raises(RequestError) as caught:
        pixel_range(4, settings.pictures, MediaOptions(**options))
    assert caught.value.param == param


def text_of(prompt: Prompt, tiny_checkpoint: str) -> str:
    tokenizer = Tokenizer.from_file(f"{tiny_checkpoint}/tokenizer.json")
    text: str = tokenizer.decode(prompt["input_ids"].tolist(), skip_special_tokens=False)
    return text


def test_a_video_file_is_sampled_timed_and_laid_out(
    preprocessor: Preprocessor, tiny_checkpoint: str
) -> None:
    """Seven frames in 3.5 s: six at most are an even number, of which pairs are told by their
    time."""
    prompt = ask(preprocessor, [("video", CLIP)])
    [grid] = prompt["video"]["grid_thw"].tolist()
    step = 3.5 / 6
    text = text_of(prompt, tiny_checkpoint)
    stamps = [f"<{(pair + 0.5) * step:.1f} seconds>" for pair in (0, 2, 4)]
    assert [text.count(stamp) for stamp in stamps] == [1, 1, 1]
    assert text.count(" seconds>") == grid[0] == 3
    assert text.count("<framePatch>") == np.prod(grid) // 4


def test_a_single_frame_is_repeated(preprocessor: Preprocessor, tiny_checkpoint: str) -> None:
    options = msgspec.structs.replace(SMALL, video_max_frames=1)
    prompt = ask(preprocessor, [("video", CLIP)], options)
    [patches] = prompt["video"]["pixel_values"]
    assert patches is not None
    first, second = np.split(patches.reshape(len(patches), 3, 2, -1), 2, axis=2)
    assert np.array_equal(first, second)
    assert "<0.0 seconds>" in text_of(prompt, tiny_checkpoint)


@pytest.mark.parametrize(
    ("change", "pairs"),
    [({"video_fps": 1.2}, 2), ({"video_max_frames": 4}, 2), ({}, 3)],
)
def test_a_caller_says_how_densely_frames_are_taken(
    preprocessor: Preprocessor, change: dict[str, Any], pairs: int
) -> None:
    prompt = ask(preprocessor, [("video", CLIP)], msgspec.structs.replace(SMALL, **change))
    assert prompt["video"]["grid_thw"][0, 0] == pairs


def test_total_pixels_bound_all_frames_together(preprocessor: Preprocessor) -> None:
    total = 6 * 32 * 64
    prompt = ask(preprocessor, [("video", CLIP)], MediaOptions(total_pixels=total))
    [[pairs, height, width]] = prompt["video"]["grid_thw"].tolist()
    assert 0 < 2 * pairs * height * width * 16**2 <= total


def received(prompt: Prompt, audio: bool) -> Work:
    """What an encoder in a process of its own gets."""
    project = audio_encoder_input if audio else image_encoder_input
    sent = DataReady(
        request_id="r", source="a", target="b", params=RequestParams(), payload=project(prompt)
    )
    codec = Codec()
    message = codec.decode(codec.encode(sent), DataReady)
    return Work("r", message.params, message.payload)


def test_files_sent_again_make_the_same_prompt_and_the_same_rows(
    tiny_checkpoint: str, preprocessor: Preprocessor
) -> None:
    first, second = (ask(preprocessor, FILES) for _ in range(2))
    assert preprocessor.stats()["cache_hits"] == len(FILES)
    for name in ("input_ids", "positions"):
        assert np.array_equal(first[name], second[name])
    for kind in ("image", "video"):
        assert second[kind]["pixel_values"] == [None]
        assert second[kind]["keys"] == first[kind]["keys"]
    assert second["audio"]["input_features"] == [None, None]
    for audio, load in ((False, encoders.load_image), (True, encoders.load_audio)):
        kept, fresh = (load(encoder_context(tiny_checkpoint)) for _ in range(2))
        [whole], [again] = kept([received(first, audio)]), fresh([received(second, audio)])
        torch.testing.assert_close(again, whole, atol=1e-6, rtol=0)
        assert fresh.stats()["read_again"] == 2
        kept([received(second, audio)])
        assert kept.stats()["read_again"] == 0


def sound(samples: int) -> FloatArray:
    draw = np.random.default_rng(samples)
    return (0.1 * draw.standard_normal(samples)).astype(np.float32)


@pytest.mark.parametrize(
    ("samples", "expected"), [(1, 1), (160, 1), (201, 1), (320, 2), (799, 4), (16_000, 100)]
)
def test_a_clip_has_a_frame_every_ten_milliseconds(
    settings: Settings, samples: int, expected: int
) -> None:
    features = AudioFeatures(settings.audio)
    assert features(sound(samples)).shape == (128, expected)
    assert features.frames(samples) == expected


def test_the_longest_clip_is_the_encoders_and_the_refusal_says_so_in_seconds(
    settings: Settings, preprocessor: Preprocessor
) -> None:
    """The tiny checkpoint has 1500 places, each of 20 ms."""
    features = AudioFeatures(settings.audio)
    features.check(np.zeros(30 * 16_000, np.float32))
    with pytest.raises(MediaError, match=r"lasts 31\.0 s; .* at most 30 s") as caught:
        ask(preprocessor, [("audio", wav(np.tile(sweep(1), 31)))])
    assert (caught.value.status, caught.value.param) == (400, "messages[0].content[0]")
    with pytest.raises(MediaError, match="no samples"):
        features.check(np.zeros(0, np.float32))


def test_the_sound_of_a_video_cannot_be_asked_for(preprocessor: Preprocessor) -> None:
    options = msgspec.structs.replace(SMALL, use_audio_in_video=True)
    with pytest.raises(RequestError, match="sound track") as caught:
        ask(preprocessor, [("video", CLIP)], options)
    assert caught.value.param == "use_audio_in_video"
