"""Speech through whole pipelines: the same sound while a reply is written and when it has ended."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
from golden_files import assert_close
from recordings import hum, wav
from tokenizers import Tokenizer

import omni_ming
from omni_core.pipeline import Pipeline
from omni_core.plugins import Plugins
from omni_core.types import (
    AudioDelta,
    Event,
    Finished,
    FloatArray,
    MediaPart,
    Message,
    Request,
    RequestParams,
    SamplingParams,
    TextDelta,
    TextPart,
    VoiceSample,
)

TEXT = "你好，世界。今天天气很好，我们去公园吧！The quick brown fox speaks about images."
SAMPLING = SamplingParams(seed=3, max_tokens=24)
RECORDING = MediaPart(kind="audio", data=wav(hum(2.0, pitch=300)))
SAMPLE = VoiceSample(audio=RECORDING, text="Hello there.")


def plugins() -> Plugins:
    made = Plugins()
    made.register(omni_ming, "ming")
    return made


def requests() -> list[Request]:
    """A text to read, by two seeds and voices, and a question to answer; both in a voice that comes
    with the request as well."""
    question = Message(role="user", content=(TextPart(text="Tell me about foxes."),))
    spoken = RequestParams(modalities=("audio",), sampling=SAMPLING)
    other = RequestParams(modalities=("audio",), voice="lingguang", sampling=SamplingParams(seed=4))
    both = RequestParams(modalities=("text", "audio"), sampling=SAMPLING)
    return [
        Request(read_aloud=TEXT, params=spoken),
        Request(read_aloud=TEXT, params=other),
        Request(messages=(question,), params=both),
        Request(read_aloud=TEXT, params=spoken, voice_sample=SAMPLE),
        Request(messages=(question,), params=both, voice_sample=SAMPLE),
    ]


async def answers(model_path: str, variant: str) -> list[list[Event]]:
    """The events of all requests at once."""

    async def one(pipeline: Pipeline, request: Request) -> list[Event]:
        return [event async for event in pipeline.generate(request)]

    async with Pipeline.load(
        model_path, variant=variant, device="cpu", compile="off", plugins=plugins()
    ) as pipeline:
        return await asyncio.gather(*(one(pipeline, request) for request in requests()))


def sound(events: list[Event]) -> FloatArray:
    return np.concatenate([e.samples for e in events if isinstance(e, AudioDelta)])


def told(events: list[Event]) -> str:
    return "".join(e.text for e in events if isinstance(e, TextDelta))


async def test_both_variants_sound_the_same(tiny_checkpoint: str) -> None:
    made: dict[str, Any] = {
        variant: await answers(tiny_checkpoint, variant)
        for variant in ("speech", "streaming_speech")
    }
    for whole, streamed in zip(made["speech"], made["streaming_speech"], strict=True):
        assert told(whole) == told(streamed)
        assert_close(sound(streamed), sound(whole))
        assert len(sound(whole)) > 44_100
        finished = streamed[-1]
        assert isinstance(finished, Finished)
        assert finished.audio_finish_reason == "stop"
        assert finished.usage.audio_tokens > 3
    tokens = Tokenizer.from_file(f"{tiny_checkpoint}/tokenizer.json").encode(TEXT).ids
    for events in (*made["speech"][:2], *made["streaming_speech"][:2]):
        assert events[-1].usage.prompt_tokens == len(tokens), "of the text that is read"
    read, _, answered, read_cloned, answered_cloned = made["speech"]
    assert told(answered)
    assert told(answered_cloned) == told(answered), "the voice is no part of the prompt"
    for cloned, own in ((read_cloned, read), (answered_cloned, answered)):
        few = min(len(sound(cloned)), len(sound(own)))
        assert np.abs(sound(cloned)[:few] - sound(own)[:few]).max() > 0.01
