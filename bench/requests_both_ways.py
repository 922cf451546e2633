"""Requests of each kind that HTTP is measured with: as a body, and through the Python API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

import numpy as np

from omni_core.media.audio import load_audio
from omni_core.media.clip import float_wav
from omni_core.media.encode import wav_bytes
from omni_core.media.encode_stream import StreamEncoder, StreamFormats
from omni_core.media.limits import MediaLimits
from omni_core.media.segments import split_at_pauses
from omni_core.pipeline import Pipeline
from omni_core.specs import Ref, Transcription, TranscriptionTask
from omni_core.types import (
    AudioDelta,
    MediaPart,
    Message,
    Request,
    RequestParams,
    SamplingParams,
    TextDelta,
    TextPart,
)
from scripted import SPEAKER

MODEL: Final = "measured"
QUESTION: Final = "What did the fox say?"
BOUNDARY: Final = "between-the-parts"
CLIP_S: Final = 2.0
CLIP_RATE: Final = 16_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of request, for either side."""

    name: str
    path: str
    content_type: str = "application/json"
    chunks: bool = True
    """The reply is streamed."""
    body: Callable[[int], bytes]
    """Of a request for a reply of so many deltas of each modality."""
    ask: Callable[[Pipeline, int], Awaitable[int]]
    """The same through the Python API; how many deltas came."""


def _sampling(deltas: int) -> dict[str, Any]:
    return {"temperature": 0, "max_tokens": deltas}


def _speaking(deltas: int) -> dict[str, Any]:
    """One token more: the one that ends speech is none of its frames."""
    return {SPEAKER: _sampling(deltas + 1)}


def _params(
    deltas: int, *modalities: Literal["text", "audio"], talks: bool = False
) -> RequestParams:
    sampling = SamplingParams(temperature=0.0, max_tokens=deltas)
    return RequestParams(
        modalities=modalities,
        sampling=sampling if "text" in modalities else SamplingParams(),
        stage_params={SPEAKER: SamplingParams(temperature=0.0, max_tokens=deltas + 1)}
        if talks
        else {},
    )


def _chat_body(deltas: int, *, stream: bool, talks: bool) -> bytes:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": QUESTION}],
        "stream": stream,
        **_sampling(deltas),
    }
    if talks:
        body |= {"modalities": ["text", "audio"], "stage_params": _speaking(deltas)}
    return json.dumps(body).encode()


def _speech_body(deltas: int, audio_format: str) -> bytes:
    return json.dumps(
        {
            "model": MODEL,
            "input": QUESTION,
            "response_format": audio_format,
            "stage_params": _speaking(deltas),
        }
    ).encode()


def _form(deltas: int) -> bytes:
    fields = {"model": MODEL, "max_tokens": str(deltas)}
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    ]
    head = (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="clip.wav"\r\n'
        "Content-Type: audio/wav\r\n\r\n"
    )
    return b"".join(parts) + head.encode() + CLIP + f"\r\n--{BOUNDARY}--\r\n".encode()


def _clip() -> bytes:
    noise = np.random.default_rng(0).standard_normal(round(CLIP_S * CLIP_RATE)) * 0.1
    return wav_bytes(noise.astype(np.float32), CLIP_RATE)


CLIP: Final = _clip()


async def _chat(pipeline: Pipeline, deltas: int, *, talks: bool) -> int:
    message = Message(role="user", content=(TextPart(text=QUESTION),))
    params = _params(deltas, *(("text", "audio") if talks else ("text",)), talks=talks)
    return await _deltas(pipeline, Request(messages=(message,), params=params))


async def _speech(pipeline: Pipeline, deltas: int, audio_format: str) -> int:
    request = Request(read_aloud=QUESTION, params=_params(deltas, "audio", talks=True))
    file = _File(audio_format)
    async with aclosing(pipeline.batches(request)) as batches:
        async for events in batches:
            for event in events:
                if isinstance(event, AudioDelta):
                    await file.do(partial(file.push, event))
    await file.do(file.flush)
    return file.deltas


@dataclass(slots=True)
class _File:
    """What a caller of the Python API makes of speech."""

    audio_format: str
    deltas: int = 0
    encoder: StreamEncoder | None = None

    async def do(self, step: Callable[[], object]) -> None:
        """Where the server does it: samples here, codecs in a thread."""
        await asyncio.to_thread(step) if self.audio_format != "pcm" else step()

    def push(self, delta: AudioDelta) -> bytes:
        """More of it."""
        self.deltas += 1
        if self.encoder is None:
            self.encoder = StreamFormats().encoder(self.audio_format, delta.sample_rate)
        return self.encoder.push(delta.samples)

    def flush(self) -> bytes:
        """The end."""
        assert self.encoder is not None
        return self.encoder.flush()


async def _transcription(pipeline: Pipeline, deltas: int) -> int:
    model = pipeline.info.transcription
    assert model is not None
    clip = await asyncio.to_thread(_heard, model)
    task = TranscriptionTask(language=None, prompt="", translate=False)
    named = model.messages
    messages_of = named.resolve() if isinstance(named, Ref) else named
    messages = messages_of(MediaPart(kind="audio", data=clip), task)
    return await _deltas(pipeline, Request(messages=messages, params=_params(deltas, "text")))


def _heard(model: Transcription) -> bytes:
    """The recording as the model gets it."""
    samples = load_audio(CLIP, MediaLimits(), sample_rate=model.sample_rate)
    low_s, high_s = model.min_segment_s, model.max_segment_s
    [segment] = split_at_pauses(samples, model.sample_rate, min_s=low_s, max_s=high_s)
    heard = samples[segment.start : segment.stop]
    return float_wav(heard, model.sample_rate)


async def _deltas(pipeline: Pipeline, request: Request) -> int:
    count = 0
    async with aclosing(pipeline.batches(request)) as batches:
        async for events in batches:
            count += sum(isinstance(event, TextDelta | AudioDelta) for event in events)
    return count


KINDS: Final = (
    Kind(
        name="chat, whole",
        path="/v1/chat/completions",
        chunks=False,
        body=lambda deltas: _chat_body(deltas, stream=False, talks=False),
        ask=lambda pipeline, deltas: _chat(pipeline, deltas, talks=False),
    ),
    Kind(
        name="chat, streamed",
        path="/v1/chat/completions",
        body=lambda deltas: _chat_body(deltas, stream=True, talks=False),
        ask=lambda pipeline, deltas: _chat(pipeline, deltas, talks=False),
    ),
    Kind(
        name="chat with audio, streamed",
        path="/v1/chat/completions",
        body=lambda deltas: _chat_body(deltas, stream=True, talks=True),
        ask=lambda pipeline, deltas: _chat(pipeline, deltas, talks=True),
    ),
    *(
        Kind(
            name=f"speech, {audio_format}",
            path="/v1/audio/speech",
            body=lambda deltas, name=audio_format: _speech_body(deltas, name),
            ask=lambda pipeline, deltas, name=audio_format: _speech(pipeline, deltas, name),
        )
        for audio_format in ("pcm", "mp3")
    ),
    Kind(
        name="transcription",
        path="/v1/audio/transcriptions",
        content_type=f"multipart/form-data; boundary={BOUNDARY}",
        chunks=False,
        body=_form,
        ask=_transcription,
    ),
)
