"""Arithmetic of the nouns."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from omni_core.errors import RequestError
from omni_core.types import (
    MediaPart,
    Message,
    Request,
    RequestParams,
    SamplingParams,
    TextPart,
    ToolUse,
    Usage,
    VoiceSample,
)


def test_over_takes_the_callers_values_where_they_are_set() -> None:
    mine = SamplingParams(temperature=0.0, ignore_eos=False, stop=())
    defaults = SamplingParams(temperature=0.9, top_k=50, ignore_eos=True, stop=("x",), seed=7)
    assert mine.over(defaults) == SamplingParams(
        temperature=0.0, top_k=50, ignore_eos=False, stop=(), seed=7
    )
    assert SamplingParams().over(defaults) == defaults


def test_usage_adds_field_by_field() -> None:
    left = Usage(prompt_tokens=1, prompt_audio_tokens=2, cached_tokens=3, text_tokens=4)
    right = Usage(prompt_tokens=10, prompt_image_tokens=20, text_tokens=30, audio_tokens=40)
    assert left + right == Usage(
        prompt_tokens=11,
        prompt_audio_tokens=2,
        prompt_image_tokens=20,
        cached_tokens=3,
        text_tokens=34,
        audio_tokens=40,
    )


def test_sampling_for_an_unnamed_stage_is_unset() -> None:
    params = RequestParams(stage_params={"talker": SamplingParams(seed=1)})
    assert params.sampling_for("talker").seed == 1
    assert params.sampling_for("thinker") == SamplingParams()


def test_messages_round_trip_by_tag() -> None:
    message = Message(role="user", content=(TextPart(text="hi"),))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=Message) == message


def test_a_prompt_is_a_request_by_itself_and_comes_as_text() -> None:
    assert Request(prompt="hi").content() == {"prompt": "hi"}
    ids = Request(prompt=(1, 2)).content()["prompt"]
    assert (ids.dtype, ids.tolist()) == (np.int64, [1, 2])
    hello = Message(role="user", content=(TextPart(text="hi"),))
    for more in ({"messages": (hello,)}, {"read_aloud": "hi"}, {"tool_use": ToolUse()}):
        with pytest.raises(RequestError, match="by itself"):
            Request(prompt="hi", **more)
    with pytest.raises(RequestError, match="text alone") as refused:
        Request(prompt="hi", params=RequestParams(modalities=("text", "audio")))
    assert refused.value.param == "modalities"


def test_a_request_has_messages_or_a_text_to_read_aloud_as_audio() -> None:
    hello = Message(role="user", content=(TextPart(text="hi"),))
    spoken = RequestParams(modalities=("audio",))
    assert Request(read_aloud="hi", params=spoken).content() == {"read_aloud": "hi"}
    content = Request(messages=(hello,)).content()
    assert msgspec.msgpack.decode(content["messages"], type=tuple[Message, ...]) == (hello,)
    with pytest.raises(RequestError, match="by itself"):
        Request(messages=(hello,), read_aloud="hi", params=spoken)
    with pytest.raises(RequestError, match="audio alone") as refused:
        Request(read_aloud="hi", params=RequestParams(modalities=("text", "audio")))
    assert refused.value.param == "modalities"


def test_a_recording_of_a_voice_goes_with_what_is_spoken() -> None:
    spoken = RequestParams(modalities=("audio",))
    sample = VoiceSample(audio=MediaPart(kind="audio", data=b"RIFF"), text="hi")
    content = Request(read_aloud="hi", voice_sample=sample, params=spoken).content()
    assert msgspec.msgpack.decode(content["voice_sample"], type=VoiceSample) == sample
    hello = Message(role="user", content=(TextPart(text="hi"),))
    both = RequestParams(modalities=("text", "audio"))
    assert set(Request(messages=(hello,), voice_sample=sample, params=both).content()) == {
        "messages",
        "voice_sample",
    }
    picture = VoiceSample(audio=MediaPart(kind="image", data=b"x"))
    named = RequestParams(modalities=("audio",), voice="ethan")
    for params, given, why in (
        (RequestParams(), sample, "nothing is spoken"),
        (named, sample, "two voices"),
        (spoken, picture, "not from image"),
    ):
        with pytest.raises(RequestError, match=why) as refused:
            Request(messages=(hello,), voice_sample=given, params=params)
        assert refused.value.param == "voice_sample"
