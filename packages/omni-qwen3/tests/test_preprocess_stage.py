"""The preprocessing stage on encoded media: prompts, limits, and errors that name the field."""

from __future__ import annotations

import io
import shutil
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from omni_core.errors import (
    ConfigError,
    ContextLengthError,
    MediaError,
    OmniError,
    RequestCancelledError,
    RequestError,
)
from omni_core.media import MediaLimits, wav_bytes
from omni_core.scheduler.base import Work
from omni_core.specs import StageContext
from omni_core.testing.fakes import running
from omni_core.types import (
    FloatArray,
    IntArray,
    MediaKind,
    MediaOptions,
    MediaPart,
    Message,
    Part,
    RequestParams,
    SamplingParams,
    TextPart,
)
from omni_qwen3.pipeline import PREPROCESSING
from omni_qwen3.preprocess.settings import load_settings
from omni_qwen3.preprocess.stage import Preprocessor, build, check_length

EXACT = MediaOptions(min_pixels=4 * 1024, max_pixels=16 * 1024)
FRAME_RATE = 2


@pytest.fixture(scope="module")
def preprocessor(tiny_checkpoint: str) -> Preprocessor:
    return Preprocessor(tiny_checkpoint, MediaLimits())


def noise(*shape: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def png(width: int, height: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(noise(height, width, 3)).save(buffer, "PNG")
    return buffer.getvalue()


def tone(seconds: float) -> FloatArray:
    times = np.arange(int(seconds * 16000), dtype=np.float32) / 16000
    return (0.3 * np.sin(2 * np.pi * 440 * times)).astype(np.float32)


def video(frames: npt.NDArray[np.uint8], sound: FloatArray | None = None) -> bytes:
    """A lossless clip at 2 frames a second, with or without a sound track."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="matroska") as container:
        picture = container.add_stream("ffv1", rate=FRAME_RATE)
        picture.height, picture.width = frames.shape[1:3]
        picture.pix_fmt = "bgr0"
        track = (
            container.add_stream("pcm_s16le", rate=16000, layout="mono")
            if sound is not None
            else None
        )
        for place, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = place, Fraction(1, FRAME_RATE)
            container.mux(picture.encode(frame))
        container.mux(picture.encode(None))
        if sound is not None:
            samples = (sound * 32767).astype(np.int16)[None]
            chunk = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
            chunk.sample_rate, chunk.pts = 16000, 0
            container.mux(track.encode(chunk))
            container.mux(track.encode(None))
    return buffer.getvalue()


def media(kind: MediaKind, data: bytes) -> MediaPart:
    return MediaPart(kind=kind, data=data)


def user(*parts: Part) -> tuple[Message, ...]:
    return (Message(role="user", content=(*parts, TextPart(text="What is this?"))),)


def count(preprocessor: Preprocessor, ids: Any, kind: str) -> int:
    return int((ids == getattr(preprocessor._settings.prompt, f"{kind}_token_id")).sum())


def test_text_alone(preprocessor: Preprocessor) -> None:
    prompt = preprocessor.prompt(user(), RequestParams())
    assert set(prompt) == {"input_ids", "positions", "rope_delta", "routed"}
    assert prompt["routed"] == []
    length = len(prompt["input_ids"])
    np.testing.assert_array_equal(prompt["positions"], np.tile(np.arange(length), (3, 1)))
    assert prompt["rope_delta"] == 0


def test_everything_at_once_keeps_message_order(preprocessor: Preprocessor) -> None:
    frames = noise(8, 64, 96, 3)
    prompt = preprocessor.prompt(
        user(
            media("audio", wav_bytes(tone(2.0), 16000)),
            media("image", png(128, 64)),
            media("video", video(frames)),
            media("image", png(96, 64)),
            media("audio", wav_bytes(tone(1.0), 16000)),
        ),
        RequestParams(media=EXACT),
    )
    assert prompt["audio"]["lengths"].tolist() == [200, 100]
    assert [mel.shape for mel in prompt["audio"]["input_features"]] == [(128, 200), (128, 100)]
    assert prompt["image"]["grid_thw"].tolist() == [[1, 4, 8], [1, 4, 6]]
    assert prompt["video"]["grid_thw"].tolist() == [[4, 4, 6]]
    assert prompt["video"]["second_per_grid"] == [1.0]
    assert prompt["routed"] == ["audio_encoder", "image_encoder"]
    ids = prompt["input_ids"]
    assert len(prompt["audio"]["rows"]) == 26 + 13 == count(preprocessor, ids, "audio")
    assert len(prompt["image"]["rows"]) == 8 + 6 == count(preprocessor, ids, "image")
    assert len(prompt["video"]["rows"]) == 24 == count(preprocessor, ids, "video")
    assert prompt["audio"]["rows"][0] < prompt["image"]["rows"][0] < prompt["video"]["rows"][0]
    assert prompt["video"]["rows"][-1] < prompt["image"]["rows"][-1] < prompt["audio"]["rows"][-1]
    assert prompt["positions"].shape == (3, len(ids))


def test_a_video_is_read_frame_by_frame(preprocessor: Preprocessor) -> None:
    frames = noise(4, 64, 64, 3)
    prompt = preprocessor.prompt(user(media("video", video(frames))), RequestParams(media=EXACT))
    first = prompt["video"]["pixel_values"][0][0].reshape(3, 2, 16, 16)
    expected = (frames[:2, :16, :16].astype(np.float32) - 127.5) / np.float32(127.5)
    np.testing.assert_array_equal(first, expected.transpose(3, 0, 1, 2))


def test_the_frame_rate_of_the_request_reaches_the_positions(preprocessor: Preprocessor) -> None:
    clip = media("video", video(noise(8, 64, 64, 3)))
    options = msgspec.structs.replace(EXACT, video_fps=1.0)
    prompt = preprocessor.prompt(user(clip), RequestParams(media=options))
    assert prompt["video"]["grid_thw"].tolist() == [[2, 4, 4]]
    assert prompt["video"]["second_per_grid"] == [2.0]
    few = msgspec.structs.replace(EXACT, video_max_frames=2)
    prompt = preprocessor.prompt(user(clip), RequestParams(media=few))
    assert prompt["video"]["grid_thw"].tolist() == [[1, 4, 4]]
    assert prompt["video"]["second_per_grid"] == [4.0]


def test_sound_of_a_video_is_mixed_in_only_when_asked_for(preprocessor: Preprocessor) -> None:
    clip = media("video", video(noise(8, 64, 96, 3), tone(3.0)))
    silent = preprocessor.prompt(user(clip), RequestParams(media=EXACT))
    assert "audio" not in silent
    assert silent["routed"] == ["image_encoder"]
    options = msgspec.structs.replace(EXACT, use_audio_in_video=True)
    mixed = preprocessor.prompt(user(clip), RequestParams(media=options))
    assert mixed["audio"]["lengths"].tolist() == [300]
    video_rows, audio_rows = mixed["video"]["rows"], mixed["audio"]["rows"]
    assert len(mixed["input_ids"]) == len(silent["input_ids"]) + 39 + 2
    assert video_rows[0] < audio_rows[0] < video_rows[-1]


@pytest.mark.parametrize("n", [1, 160, 200, 201])
def test_the_shortest_sound_is_a_token_or_two(preprocessor: Preprocessor, n: int) -> None:
    clip = media("audio", wav_bytes(np.full(n, 0.5, np.float32), 16000))
    track = media("video", video(noise(8, 64, 96, 3), tone(n / 16_000)))
    options = msgspec.structs.replace(EXACT, use_audio_in_video=True)
    for part in (clip, track):
        audio = preprocessor.prompt(user(part), RequestParams(media=options))["audio"]
        [frames] = audio["lengths"].tolist()
        assert frames in (1, 2)
        assert len(audio["rows"]) == 1
        assert audio["input_features"][0].shape == (128, frames)
        assert np.isfinite(audio["input_features"][0]).all()


def test_a_silent_video_cannot_give_sound(preprocessor: Preprocessor) -> None:
    options = MediaOptions(use_audio_in_video=True)
    clip = media("video", video(noise(2, 64, 64, 3)))
    with pytest.raises(RequestError, match="use_audio_in_video") as caught:
        preprocessor.prompt(user(clip), RequestParams(media=options))
    assert caught.value.param == "messages[0].content[0]"


@pytest.mark.parametrize(
    ("part", "error"),
    [
        (media("image", png(64, 64)[:60]), MediaError),
        (media("image", b"no picture"), MediaError),
        (media("audio", b"no sound"), MediaError),
        (media("video", b"no video"), MediaError),
        (media("audio", wav_bytes(np.zeros(0, np.float32), 16000)), MediaError),
        (media("image", png(300, 1)), MediaError),
        (MediaPart(kind="image", url="file:///etc/hostname"), MediaError),
        (MediaPart(kind="image", url="data:image/png;base64,@@@"), MediaError),
    ],
    ids=[
        "truncated",
        "no-png",
        "no-audio",
        "no-video",
        "empty",
        "narrow",
        "file",
        "base64",
    ],
)
def test_bad_media_fail_their_request_alone(
    preprocessor: Preprocessor, part: MediaPart, error: type[OmniError]
) -> None:
    def work(request_id: str, messages: tuple[Message, ...]) -> Work:
        payload = {"messages": msgspec.msgpack.encode(messages)}
        return Work(request_id, RequestParams(), payload)

    bad, good = preprocessor.compute([work("a", user(part)), work("b", user())])
    assert isinstance(bad, error)
    assert bad.status == 400
    assert bad.param == "messages[0].content[0]"
    assert isinstance(good, dict)


def test_bad_media_are_named_as_the_caller_names_them(preprocessor: Preprocessor) -> None:
    bad = MediaPart(kind="image", data=b"no picture", param="images[3]")
    with pytest.raises(MediaError) as caught:
        preprocessor.prompt(user(bad), RequestParams())
    assert caught.value.param == "images[3]"


def test_a_prompt_over_the_context_says_both_numbers(preprocessor: Preprocessor) -> None:
    messages = (Message(role="user", content=(TextPart(text="a b " * 5000),)),)
    with pytest.raises(ContextLengthError, match="context is 8192") as caught:
        preprocessor.prompt(messages, RequestParams())
    assert caught.value.code == "context_length_exceeded"


def test_a_video_over_the_context_is_refused_before_it_is_cut_into_patches(
    preprocessor: Preprocessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omni_qwen3.preprocess.inputs.video_patches", None)
    options = MediaOptions(min_pixels=768 * 1024)
    clip = media("video", video(noise(24, 32, 32, 3)))
    with pytest.raises(ContextLengthError):
        preprocessor.prompt(user(clip), RequestParams(media=options))


def test_a_raw_prompt_is_what_the_template_would_have_written(preprocessor: Preprocessor) -> None:
    chat = preprocessor.prompt(user(), RequestParams())
    written = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    prompt = preprocessor.raw(written.format("What is this?"), RequestParams())
    np.testing.assert_array_equal(prompt["input_ids"], chat["input_ids"])
    np.testing.assert_array_equal(prompt["positions"], chat["positions"])
    assert (prompt["rope_delta"], prompt["routed"]) == (chat["rope_delta"], [])
    again = preprocessor.raw(chat["input_ids"], RequestParams())
    np.testing.assert_array_equal(again["input_ids"], chat["input_ids"])


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ("", "empty"),
        (np.zeros(0, np.int64), "empty"),
        (np.array([5, -1]), "token ids of this model"),
        (np.array([2**31 - 1]), "token ids of this model"),
        ("a <|audio_start|><|audio_pad|><|audio_end|>", "there is none to put in"),
        ("<|image_pad|>", "there is none to put in"),
        ("a b " * 9000, "context is 8192"),
        (np.full(8192, 5), "shorten the prompt$"),
    ],
    ids=lambda v: str(v)[:20],
)
def test_a_raw_prompt_that_cannot_be_is_refused(
    preprocessor: Preprocessor, prompt: str | IntArray, says: str
) -> None:
    with pytest.raises(RequestError, match=says) as caught:
        preprocessor.raw(prompt, RequestParams())
    assert caught.value.param == "prompt"


def test_marks_of_media_alone_are_tokens_like_others(preprocessor: Preprocessor) -> None:
    prompt = preprocessor.raw("<|vision_start|> a <|audio_start|>", RequestParams())
    assert (prompt["positions"] == np.arange(len(prompt["input_ids"]))).all()


def test_the_reply_counts_towards_the_context() -> None:
    def params(tokens: int) -> RequestParams:
        return RequestParams(sampling=SamplingParams(max_tokens=tokens))

    check_length(90, params(10), 100)
    check_length(99, RequestParams(), 100)
    with pytest.raises(ContextLengthError, match="at most 10 tokens") as caught:
        check_length(90, params(11), 100)
    assert caught.value.param == "max_tokens"
    own = RequestParams(
        sampling=SamplingParams(max_tokens=11),
        stage_params={"thinker": SamplingParams(max_tokens=10)},
    )
    check_length(90, own, 100)
    with pytest.raises(ContextLengthError):
        check_length(100, RequestParams(), 100)


def test_media_where_the_template_has_no_place_for_it(tiny_checkpoint: str, tmp_path: Path) -> None:
    for file in Path(tiny_checkpoint).glob("*.json"):
        shutil.copy(file, tmp_path)
    (tmp_path / "chat_template.jinja").write_text("<|im_start|>{{ messages[0].role }}")
    preprocessor = Preprocessor(str(tmp_path), MediaLimits())
    with pytest.raises(RequestError, match="no place for image"):
        preprocessor.prompt(user(media("image", png(32, 32))), RequestParams())


def test_threads_do_not_disturb_each_other(tiny_checkpoint: str) -> None:
    preprocessor = Preprocessor(tiny_checkpoint, MediaLimits(), remembered=0)

    def prompt(place: int) -> Any:
        sound = media("audio", wav_bytes(tone(0.1 + place / 10), 16000))
        picture = media("image", png(32 * (place + 2), 64))
        words = TextPart(text=f"<|im_end|> {place} " * 20)
        return preprocessor.prompt(user(sound, picture, words), RequestParams())

    alone = [prompt(place) for place in range(8)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(prompt, range(8)))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one["input_ids"], other["input_ids"])
        np.testing.assert_array_equal(
            one["audio"]["input_features"], other["audio"]["input_features"]
        )
        np.testing.assert_array_equal(one["image"]["pixel_values"], other["image"]["pixel_values"])


@pytest.mark.parametrize(
    "part",
    [
        media("audio", wav_bytes(tone(60.0), 16000)),
        media("video", video(noise(8, 64, 64, 3))),
    ],
    ids=["audio", "video"],
)
def test_an_abort_ends_the_decoding_of_what_runs(tiny_checkpoint: str, part: Part) -> None:
    """Three times it asks before, between and after steps; the others are from within."""
    preprocessor = Preprocessor(tiny_checkpoint, MediaLimits(), remembered=0)
    payload = {"messages": msgspec.msgpack.encode(user(part))}
    asked: list[int] = []

    def result(at: int) -> Any:
        asked.clear()

        def stop() -> bool:
            asked.append(at)
            return len(asked) > at

        [made] = preprocessor.compute([Work("r", RequestParams(), payload, stop)])
        return made

    assert "input_ids" in result(1_000_000)
    times = len(asked)
    assert times > 3 + 8
    for at in range(times):
        assert isinstance(result(at), RequestCancelledError)
        assert len(asked) == at + 1


def test_hosts_that_never_answer_do_not_hold_up_other_requests(tiny_checkpoint: str) -> None:
    def work(request_id: str, *parts: Part) -> Work:
        payload = {"messages": msgspec.msgpack.encode(user(*parts))}
        return Work(request_id, RequestParams(), payload)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/image.png"
        slow = [work(f"slow {n}", MediaPart(kind="image", url=url)) for n in range(8)]
        scheduler = build(context(tiny_checkpoint, allow_private_addresses=True))
        with running(scheduler, [*slow, work("prompt")]) as (_, outbox):
            outbox.wait_for("send", "prompt")
            assert {call.request_id for call in outbox.calls} == {"prompt"}
            silent.close()  # and so are the connections it never took


def context(tiny_checkpoint: str, **options: Any) -> StageContext:
    return StageContext(
        stage=replace(PREPROCESSING, options=options),
        model_path=tiny_checkpoint,
        device="cpu",
        dtype="float32",
        ar_engine="torch",
        report=lambda text: None,
    )


def test_options_are_media_limits(tiny_checkpoint: str) -> None:
    assert build(context(tiny_checkpoint, max_pixels=100)).stats()["running"] == 0
    with pytest.raises(ConfigError, match=r"max_pixls.*max_pixels"):
        build(context(tiny_checkpoint, max_pixls=100))
    with pytest.raises(ConfigError, match=r"'preprocessing'.*max_pixels"):
        build(context(tiny_checkpoint, max_pixels="many"))
    assert build(context(tiny_checkpoint, allowed_hosts=["example.com"])).stats()["running"] == 0


def test_settings_say_the_checkpoints_numbers(tiny_checkpoint: str) -> None:
    settings = load_settings(tiny_checkpoint)
    assert settings.context_length == 8192
    assert settings.image.factor == 32
    assert settings.video_fps == 2.0
