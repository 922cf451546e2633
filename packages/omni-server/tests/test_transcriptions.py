"""Speech to text over HTTP, with a scripted pipeline: forms, formats, segments and refusals."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import numpy as np
import pytest

from omni_core.media import MediaLimits, load_audio, wav_bytes
from omni_core.specs import Transcription, TranscriptionTask
from omni_core.types import (
    Finished,
    FloatArray,
    MediaPart,
    Message,
    Request,
    TextDelta,
    TextPart,
    TokenLogprob,
    Usage,
)

RATE = 16_000
PATH = "/v1/audio/transcriptions"
USAGE = Usage(prompt_tokens=20, prompt_audio_tokens=13, text_tokens=3)
FINISHED = Finished(finish_reason="stop", usage=USAGE)
RNG = np.random.default_rng(0)


def voiced(seconds: float) -> FloatArray:
    samples = 0.3 * np.sin(np.arange(round(seconds * RATE)) * 0.1)
    return (samples * RNG.uniform(0.5, 1, len(samples))).astype("f4")


def pause(seconds: float) -> FloatArray:
    return (1e-3 * RNG.standard_normal(round(seconds * RATE))).astype("f4")


def clip(*parts: FloatArray) -> bytes:
    return wav_bytes(np.concatenate(parts or (voiced(1.0),)), RATE)


LONG = clip(*(part for _ in range(16) for part in (voiced(2.3), pause(0.4))))
"""43.2 seconds with a pause every 2.7."""


def ask(part: MediaPart, task: TranscriptionTask) -> tuple[Message, ...]:
    words = f"{task.language} {task.prompt} {task.translate}"
    return (Message(role="user", content=(part, TextPart(text=words))),)


def say(*texts: str) -> Any:
    """A script: the same reply for every segment."""
    return lambda request: [*(TextDelta(text=text) for text in texts), FINISHED]


@pytest.fixture(autouse=True)
def can_transcribe(pipeline: Any) -> None:
    from dataclasses import replace

    pipeline.info = replace(pipeline.info, transcription=Transcription(messages=ask))


async def post(live: Any, upload: bytes | None = None, **fields: Any) -> httpx.Response:
    files = {"file": ("tëst 录音.wav", clip() if upload is None else upload, "image/png")}
    return await live.http.post(fields.pop("path", PATH), data=fields, files=files)


async def refused(live: Any, status: int = 400, **fields: Any) -> dict[str, Any]:
    response = await post(live, **fields)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return dict(error)


def heard(request: Request) -> FloatArray:
    """The samples a request carries."""
    [part] = [p for p in request.messages[0].content if isinstance(p, MediaPart)]
    assert part.data is not None
    assert part.param == "file"
    return load_audio(part.data, MediaLimits())


def words(request: Request) -> str:
    [part] = [p for p in request.messages[0].content if isinstance(p, TextPart)]
    return part.text


async def test_json(local: Any) -> None:
    response = await post(local, language="EN", prompt="Omni", seed="7", max_tokens="9")
    assert response.json() == {
        "text": "Héllo there",
        "usage": {
            "type": "tokens",
            "input_tokens": 11,
            "output_tokens": 5,
            "total_tokens": 16,
            "input_token_details": {"audio_tokens": 4, "text_tokens": 7},
        },
    }
    [request] = local.pipeline.requests
    assert words(request) == "en Omni False"
    assert request.params.modalities == ("text",)
    sampling = request.params.sampling
    assert (sampling.temperature, sampling.seed, sampling.max_tokens) == (0.0, 7, 9)
    np.testing.assert_allclose(heard(request), load_audio(clip(), MediaLimits()), atol=0.6)
