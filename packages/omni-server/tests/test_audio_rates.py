"""Whatever rate a model speaks at, every format and every door says that rate and no other.

A header with another rate is heard as slow or fast speech, and its file lasts too long or short.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import av
import numpy as np
import pytest

from omni_core.types import AudioDelta, Finished, FloatArray, TextDelta, Usage
from omni_server.realtime.formats import AudioFormat, PcmDecoder, encoder, to_float

SECONDS = 0.6
RATES = (16_000, 22_050, 44_100)
PRIMING_SAMPLES = {"mp3": 3_456, "aac": 3 * 1_024}
FRAME_S = 0.08


def chirp(rate: int) -> FloatArray:
    """Rises from 200 Hz, so that speech at another rate is not like it."""
    t = np.arange(round(SECONDS * rate)) / rate
    return (0.5 * np.sin(2 * np.pi * (200 + 400 * t) * t)).astype("f4")


@pytest.fixture(params=RATES)
def rate(request: pytest.FixtureRequest, pipeline: Any) -> int:
    """The rate at which the pipeline says `chirp`, in pieces of unequal length."""
    hz: int = request.param
    pieces = np.split(chirp(hz), [480, 511, 7_000])
    end = Finished(finish_reason="stop", usage=Usage())

    def script(asked: Any) -> Iterator[Any]:
        yield TextDelta(text="said")
        yield from (AudioDelta(samples=piece, sample_rate=hz) for piece in pieces)
        yield end

    pipeline.script = script
    return hz


def heard_in(data: bytes) -> tuple[FloatArray, int]:
    """The samples of a file and the rate in its header, by FFmpeg."""
    with av.open(BytesIO(data)) as file:
        resampler = av.AudioResampler(format="flt", layout="mono")
        frames = [f for frame in file.decode(audio=0) for f in resampler.resample(frame)]
        header_rate = file.streams.audio[0].rate
    return np.concatenate([frame.to_ndarray().reshape(-1) for frame in frames]), header_rate


def check(samples: FloatArray, header_rate: int, fmt: str) -> None:
    """They are `chirp` at the header's rate, after no more silence than the codec needs."""
    said = chirp(header_rate)
    late = len(samples) - len(said)
    assert -1 <= late <= FRAME_S * header_rate + PRIMING_SAMPLES.get(fmt, 0)
    size = len(samples) + len(said)
    products = np.fft.rfft(samples, size) * np.conj(np.fft.rfft(said, size))
    start = int(np.fft.irfft(products, size)[: max(late, 0) + 1].argmax())
    part = samples[start : start + len(said)]
    assert np.corrcoef(part, said[: len(part)])[0, 1] > 0.99


def decoded_pcm(data: bytes) -> FloatArray:
    assert len(data) % 2 == 0
    return np.frombuffer(data, "<i2").astype("f4") / 32_768


@pytest.mark.parametrize("fmt", ["wav", "mp3", "flac", "opus", "aac"])
async def test_files_of_a_chat(local: Any, rate: int, fmt: str) -> None:
    reply = (await local.chat(modalities=["audio"], audio={"format": fmt})).json()
    audio = reply["choices"][0]["message"]["audio"]
    assert audio["sample_rate"] == rate
    samples, header_rate = heard_in(base64.b64decode(audio["data"]))
    assert header_rate == (48_000 if fmt == "opus" else rate)
    check(samples, header_rate, fmt)


async def test_samples_of_a_chat_whole_and_streamed(local: Any, rate: int) -> None:
    asked = {"modalities": ["text", "audio"], "audio": {"format": "pcm16"}}
    audio = (await local.chat(**asked)).json()["choices"][0]["message"]["audio"]
    assert audio["sample_rate"] == rate
    check(decoded_pcm(base64.b64decode(audio["data"])), rate, "pcm16")
    frames = (await local.chat(stream=True, **asked)).text.split("\n\n")[:-2]
    deltas = [json.loads(f.removeprefix("data: "))["choices"][0]["delta"] for f in frames]
    spoken = [delta["audio"] for delta in deltas if "data" in delta.get("audio", {})]
    assert {piece["sample_rate"] for piece in spoken if "sample_rate" in piece} == {rate}
    joined = b"".join(base64.b64decode(piece["data"]) for piece in spoken)
    assert joined == base64.b64decode(audio["data"])


@pytest.mark.parametrize("fmt", ["wav", "mp3", "flac", "opus", "aac", "pcm"])
async def test_speech(local: Any, rate: int, fmt: str) -> None:
    body = {"input": "Hi", "response_format": fmt}
    data = (await local.http.post("/v1/audio/speech", json=body)).content
    if fmt == "pcm":
        return check(decoded_pcm(data), 24_000, fmt)
    samples, header_rate = heard_in(data)
    assert header_rate == (48_000 if fmt == "opus" else rate)
    return check(samples, header_rate, fmt)


@pytest.mark.parametrize("model_rate", RATES)
@pytest.mark.parametrize(
    "sent",
    [
        AudioFormat("audio/pcm", 24_000),
        AudioFormat("audio/pcm", 16_000),
        AudioFormat("audio/pcmu", 8_000),
    ],
    ids=["24k", "16k", "8k"],
)
def test_sound_of_a_conversation(model_rate: int, sent: AudioFormat) -> None:
    """At the rate that the session asks for, whatever the model's is."""
    sending = encoder(sent, model_rate, 1.0)
    pieces = np.split(chirp(model_rate), [480, 511, 7_000])
    data = b"".join([*map(sending.push, pieces), sending.flush()])
    check(to_float(PcmDecoder(sent).push(data)), sent.rate, sent.name)
