"""POST /v1/audio/speech: a text read aloud, as one file or as server-sent events.

Knows how events of the pipeline become bytes, codecs in threads. What a request may say is
`speech_call`'s, the encoding is `omni_core.media`'s.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import Response

from omni_core.errors import OmniError, StageError
from omni_core.media.encode_stream import PCM_RATE, StreamEncoder, StreamFormats
from omni_core.types import AudioDelta, Finished
from omni_server.audio import QUICK_SAMPLES, Base64Pieces
from omni_server.body import read_body
from omni_server.callers import client_key
from omni_server.context import ServerContext
from omni_server.metrics import RequestTimer
from omni_server.offload import LONG_BODY_BYTES, off_loop
from omni_server.openai.envelope import REQUEST_ID, Headers, answered, require_serving
from omni_server.openai.speech_call import VOICE, SpeechCall, parse_call
from omni_server.schema.speech import MAX_INPUT_CHARACTERS
from omni_server.settings import MIB
from omni_server.stream import EventStream, StreamedResponse, sse

MAX_BODY_BYTES = MIB
"""A text has no media: what is larger costs time to parse and is refused anyway."""
MAX_CLONING_BODY_BYTES = 16 * MIB
"""With half a minute of a voice in 24 bits and base64."""
_UNCODED = ("pcm", "wav")
_CLIENTS_NAMES = {
    "read_aloud": "input",
    "voice_sample": "ref_audio",
    "voice_sample.text": "ref_text",
}
"""What the API calls fields of the pipeline's request."""


def router(context: ServerContext) -> APIRouter:
    """The speech route of one server."""
    routes = APIRouter()

    @routes.post("/v1/audio/speech")
    async def speech(request: Request) -> Response:
        """Read a text aloud."""
        return await _answer(request, context)

    return routes


async def _answer(request: Request, context: ServerContext) -> Response:
    async def serve(timer: RequestTimer, headers: Headers) -> Response:
        call = await _read_call(request, context, headers[REQUEST_ID])
        require_serving(context.pipeline)
        return _stream(call, headers, context, timer)

    return await answered(request, context, f"speech-{uuid.uuid4().hex}", serve)


def _stream(
    call: SpeechCall, headers: dict[str, str], context: ServerContext, timer: RequestTimer
) -> StreamedResponse:
    if call.as_events:
        return EventStream(_frames(call, _Events(), context, timer), headers, timer.end)
    media_type = context.plugged.formats.media_types[call.audio_format]
    return StreamedResponse(_frames(call, _File(), context, timer), headers, timer.end, media_type)


async def _read_call(request: Request, context: ServerContext, request_id: str) -> SpeechCall:
    settings = context.settings
    clones = context.pipeline.info.clones_voices
    body = await read_body(
        request,
        min(settings.max_body_bytes, MAX_CLONING_BODY_BYTES if clones else MAX_BODY_BYTES),
        instead=f"'input' has at most {MAX_INPUT_CHARACTERS} characters",
    )
    parse = partial(
        parse_call,
        body,
        pipeline=context.pipeline,
        voices=context.voices,
        served_model_name=settings.served_model_name,
        request_id=request_id,
        client_named=partial(client_key, request),
        longest_s=settings.request_timeout_s,
        limits=settings.media,
        formats=context.plugged.formats,
    )
    call = await off_loop(parse, if_=len(body) > LONG_BODY_BYTES)
    [spoken] = await context.voices.brought((call.request,), VOICE)
    return replace(call, request=spoken)


class _Packing(Protocol):
    """How the bytes of a file are sent."""

    def pack(self, data: bytes) -> bytes:
        """What can be sent of the file so far; may be empty."""

    def end(self, finished: Finished) -> bytes:
        """The rest."""


class _File:
    """As they are."""

    def pack(self, data: bytes) -> bytes:
        """See `_Packing`."""
        return data

    def end(self, finished: Finished) -> bytes:
        """See `_Packing`."""
        return b""


class _Events:
    """As OpenAI's `speech.audio.delta` events, and `speech.audio.done` with the usage and, beyond
    OpenAI's, the finish reason."""

    def __init__(self) -> None:
        self._pieces = Base64Pieces()

    def pack(self, data: bytes) -> bytes:
        """See `_Packing`."""
        return self._delta(self._pieces.push(data))

    def end(self, finished: Finished) -> bytes:
        """See `_Packing`."""
        spoken, made = finished.usage.prompt_tokens, finished.usage.audio_tokens
        usage = {"input_tokens": spoken, "output_tokens": made, "total_tokens": spoken + made}
        reason = finished.audio_finish_reason
        done = {"type": "speech.audio.done", "usage": usage, "finish_reason": reason}
        return self._delta(self._pieces.flush()) + sse(done)

    def _delta(self, audio: str) -> bytes:
        return sse({"type": "speech.audio.delta", "audio": audio}) if audio else b""


@dataclass(slots=True)
class _Packed:
    """Samples to what is sent of them."""

    call: SpeechCall
    packing: _Packing
    formats: StreamFormats
    rate: int
    """In Hz, if no audio says otherwise."""
    _encoder: StreamEncoder | None = field(default=None, init=False)

    async def push(self, deltas: list[AudioDelta]) -> bytes:
        """More of the speech."""
        samples = sum(delta.samples.size for delta in deltas)
        return await off_loop(partial(self._push, deltas), if_=self._is_slow(samples))

    async def flush(self, finished: Finished) -> bytes:
        """The end of it."""
        return await off_loop(partial(self._flush, finished), if_=self._is_slow(0))

    def _is_slow(self, samples: int) -> bool:
        """Whether the event loop would be held up: by a codec, by a filter, or by much to do."""
        if samples > QUICK_SAMPLES or self.call.speed != 1.0:
            return True
        return self.call.audio_format not in _UNCODED or self.rate != PCM_RATE

    def _push(self, deltas: list[AudioDelta]) -> bytes:
        if self._encoder is None:
            self._encoder = self._open(deltas[0].sample_rate)
        samples = np.concatenate([delta.samples for delta in deltas])
        return self.packing.pack(self._encoder.push(samples))

    def _flush(self, finished: Finished) -> bytes:
        encoder = self._encoder or self._open(self.rate)
        return self.packing.pack(encoder.flush()) + self.packing.end(finished)

    def _open(self, rate: int) -> StreamEncoder:
        return self.formats.encoder(self.call.audio_format, rate, speed=self.call.speed)


async def _frames(
    call: SpeechCall, packing: _Packing, context: ServerContext, timer: RequestTimer
) -> AsyncGenerator[bytes, None]:
    """The speech as it is made; what the pipeline gives together is sent together."""
    rate = context.pipeline.info.sample_rate or PCM_RATE
    packed = _Packed(call, packing, context.plugged.formats, rate)
    finished: Finished | None = None
    try:
        with timer.generating():
            async with aclosing(context.pipeline.batches(call.request)) as batches:
                async for events in batches:
                    for event in events:
                        timer.saw(event)
                        finished = event if isinstance(event, Finished) else finished
                    sound = [e for e in events if isinstance(e, AudioDelta) and e.samples.size]
                    if sound and (data := await packed.push(sound)):
                        yield data
    except OmniError as error:
        error.param = _CLIENTS_NAMES.get(error.param or "", error.param)
        raise
    if finished is None:
        raise StageError("The pipeline ended a request without finishing it.")
    if rest := await packed.flush(finished):
        yield rest
