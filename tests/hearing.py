"""Recordings, and what a server makes of them: what its audio encoder would get.

A server without a model records what it would ask of one; the checkpoint's own preprocessing makes
samples of that. The other side is PyAV with FFmpeg's resampler, in ten lines.
"""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator
from dataclasses import replace

import av
import numpy as np

from omni_core.coordinator.aborts import Silent
from omni_core.encoder.media import MediaLoader
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
from omni_qwen3.preprocess.rules import Rules
from omni_qwen3.preprocess.settings import load_settings

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


def encoder_hears(checkpoint: str, requests: list[Request]) -> FloatArray:
    """The samples at 16 kHz of all sounds in the requests, by the checkpoint's preprocessing."""
    settings = load_settings(checkpoint)
    loader = MediaLoader(
        Rules(settings, AudioFeatures(settings.audio)), MediaLimits(), remembered=0
    )
    options, heard = MediaOptions(), []
    for request in requests:
        items = loader.fetch(request.messages, options)
        heard += [item.sound for item in loader.decode(items, loader.recall(items), options)]
    return np.concatenate(heard)
