"""Each upload format reaches the audio encoder as an independent decode of the same file gives it.

Real speech takes the place of the synthetic one in `nox -s spoken`, which names it in
OMNI_SPEECH_WAV.
"""

from __future__ import annotations

import os

import httpx
import numpy as np
import pytest
import soundfile

from hearing import (
    FORMATS,
    Recorder,
    at_rate,
    correlation,
    encoder_hears,
    independent,
    upload,
)
from omni_core.types import FloatArray
from omni_qwen3.preprocess.audio import AudioFeatures
from omni_qwen3.preprocess.settings import load_settings
from omni_server.app import create_app
from omni_server.settings import Settings


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

    sound = encoder_hears(tiny_checkpoint, pipeline.requests)
    expected = independent(data)
    assert correlation(sound, expected) > 0.999
    features = AudioFeatures(load_settings(tiny_checkpoint).audio)
    [mel] = features([sound], len(sound))
    [expected_mel] = features([expected], len(expected))
    assert correlation(mel, expected_mel) > 0.999
    prompt = pipeline.requests[0].messages[0].content[-1]
    assert prompt.text == "Transcribe the English audio into text."
