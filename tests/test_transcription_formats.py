"""Each upload format reaches the audio encoder as an independent decode of the same file gives it.

A server without a model records what it would ask of one; the checkpoint's own preprocessing makes
mel frames of that. The other side is PyAV with FFmpeg's resampler, in ten lines. Real speech takes
the place of the synthetic one in `nox -s spoken`, which names it in OMNI_SPEECH_WAV.
"""

from __future__ import annotations

import io
import os
from collections.abc import AsyncGenerator
from dataclasses import replace

import av
import httpx
import numpy as np
import pytest
import soundfile

from omni_core.coordinator.aborts import Silent
from omni_core.media import MediaLimits
from omni_core.pipeline import Health, Pipeline, StageHealth
from omni_core.types import (
    Event,
    Finished,
    FloatArray,
    MediaOptions,
    Request,
    TextDelta,
    Usage,
)
from omni_qwen3.defaults import describe
from omni_qwen3.preprocess.audio import AudioFeatures
from omni_qwen3.preprocess.media import MediaLoader
from omni_qwen3.preprocess.settings import load_settings
from omni_server.app import create_app
from omni_server.settings import Settings

RATE = 16_000
FORMATS = {
    "wav": ("wav", "pcm_s16le", "s16"),
    "flac": ("flac", "flac", "s16"),
    "mp3": ("mp3", "libmp3lame", "fltp"),
    "mpga": ("mp3", "libmp3lame", "fltp"),
    "mpeg": ("mpeg", "mp2", "s16"),
    "m4a": ("ipod", "aac", "fltp"),
    "mp4": ("mp4", "aac", "fltp"),
    "ogg": ("ogg", "libopus", "flt"),
    "webm": ("webm", "libopus", "flt"),
}
"""Every upload format that OpenAI's API reference names: container, codec, sample format."""
WITH_PICTURES = ("mp4", "webm")


class Recorder(Pipeline):
    """Answers every request with one word and keeps it."""

    def __init__(self, checkpoint: str) -> None:
        self.info = replace(describe(checkpoint))
        self.name, self.variant = "recorder", "text"
        self.modalities, self.stages, self.edges = ("text",), ("decode",), ()
        self.observer = Silent()
        self.requests: list[Request] = []

    async def batches(self, request: Request) -> AsyncGenerator[list[Event], None]:
        self.requests.append(request)
        yield [TextDelta(text="word"), Finished(finish_reason="stop", usage=Usage())]

    def health(self) -> Health:
        return Health(status="ready", stages={"decode": StageHealth(pid=1, state="ready")})


@pytest.fixture(scope="module")
def speech() -> FloatArray:
    """Speech at 48 kHz: a real voice's if there is one, else vowels, hisses and pauses."""
    named = os.environ.get("OMNI_SPEECH_WAV")
    if named:
        samples, rate = soundfile.read(named, dtype="float32", always_2d=True)
        return at_rate(samples.mean(axis=1), rate, 48_000)
    random = np.random.default_rng(0)
    t = np.arange(round(2.4 * 48_000)) / 48_000
    pitch = np.cumsum(120 + 30 * np.sin(4 * t)) / 48_000
    vowel = sum(np.sin(2 * np.pi * k * pitch) / k for k in range(1, 20))
    loud = np.clip(np.sin(2 * np.pi * 1.7 * t), 0, 1)
    hiss = random.standard_normal(len(t)) * np.clip(-np.sin(2 * np.pi * 1.7 * t), 0, 1) ** 4
    return (0.2 * vowel * loud + 0.03 * hiss).astype("f4")


def at_rate(samples: FloatArray, rate: int, wanted: int) -> FloatArray:
    resampler = av.AudioResampler(format="flt", layout="mono", rate=wanted)
    frame = av.AudioFrame.from_ndarray(samples[None], format="flt", layout="mono")
    frame.sample_rate = rate
    frames = [*resampler.resample(frame), *resampler.resample(None)]
    return np.concatenate([f.to_ndarray()[0] for f in frames])


def upload(samples: FloatArray, kind: str) -> bytes:
    """The file; videos have pictures beside the sound."""
    container, codec, sample_format = FORMATS[kind]
    file = io.BytesIO()
    with av.open(file, "w", format=container) as out:
        sound = out.add_stream(codec, rate=48_000, layout="mono", format=sample_format)
        if kind in WITH_PICTURES:
            pictures = out.add_stream("mpeg4" if kind == "mp4" else "libvpx", rate=2)
            pictures.width = pictures.height = 64
            for number in range(4):
                pixels = np.full((64, 64, 3), 60 * number, np.uint8)
                out.mux(pictures.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
            out.mux(pictures.encode(None))
        to_codec = av.AudioResampler(sample_format, "mono", 48_000, frame_size=sound.frame_size)
        frame = av.AudioFrame.from_ndarray(samples[None], format="flt", layout="mono")
        frame.sample_rate = 48_000
        for piece in [*to_codec.resample(frame), *to_codec.resample(None)]:
            out.mux(sound.encode(piece))
        out.mux(sound.encode(None))
    return file.getvalue()


def independent(data: bytes) -> FloatArray:
    """FFmpeg's decode at 16 kHz, mono."""
    resampler = av.AudioResampler(format="flt", layout="mono", rate=RATE)
    with av.open(io.BytesIO(data)) as container:
        frames = [f for frame in container.decode(audio=0) for f in resampler.resample(frame)]
    frames += resampler.resample(None)
    return np.concatenate([frame.to_ndarray()[0] for frame in frames])


def correlation(one: FloatArray, other: FloatArray) -> float:
    """Of what both have, along the last axis."""
    common = min(one.shape[-1], other.shape[-1])
    return float(np.corrcoef(one[..., :common].ravel(), other[..., :common].ravel())[0, 1])


@pytest.mark.parametrize("kind", FORMATS)
async def test_the_encoder_hears_what_was_uploaded(
    tiny_checkpoint: str, speech: FloatArray, kind: str
) -> None:
    pipeline, data = Recorder(tiny_checkpoint), upload(speech, kind)
    app = create_app(pipeline, Settings(served_model_name="recorder"))
    async with httpx.AsyncClient(
        base_url="http://omni", transport=httpx.ASGITransport(app), timeout=30
    ) as http:
        fields = {"language": "en", "response_format": "verbose_json"}
        files = {"file": (f"speech.{kind}", data)}
        reply = await http.post("/v1/audio/transcriptions", data=fields, files=files)
    assert reply.status_code == 200, reply.text
    assert reply.json()["text"].startswith("word")
    assert reply.json()["duration"] == pytest.approx(len(speech) / 48_000, abs=0.08)

    settings = load_settings(tiny_checkpoint)
    features = AudioFeatures(settings.audio)
    loader = MediaLoader(settings, features, MediaLimits(), remembered=0)
    options = MediaOptions()
    heard = []
    for request in pipeline.requests:
        items = loader.fetch(request.messages, options)
        heard += [item.sound for item in loader.decode(items, loader.recall(items), options)]
    sound, expected = np.concatenate(heard), independent(data)
    assert correlation(sound, expected) > 0.999
    [mel] = features([sound], len(sound))
    [expected_mel] = features([expected], len(expected))
    assert correlation(mel, expected_mel) > 0.999
    prompt = pipeline.requests[0].messages[0].content[-1]
    assert prompt.text == "Transcribe the English audio into text."
