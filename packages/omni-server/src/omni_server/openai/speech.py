"""POST /v1/audio/speech: a text read aloud, as one file or as server-sent events.

Knows the body's meaning and how events of the pipeline become bytes. The encoding itself is
`omni_core.media`'s, and happens in threads.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import Response

from omni_core import types as core
from omni_core.errors import OmniError, RequestError, StageError
from omni_core.media.encode_stream import (
    PCM_RATE,
    STREAM_MEDIA_TYPES,
    StreamEncoder,
    stream_encoder,
)
from omni_core.pipeline import Pipeline
from omni_core.types import AudioDelta, Finished, RequestParams, SamplingParams
from omni_server.audio import Base64Pieces
from omni_server.body import read_body
from omni_server.callers import client_key, own_request_id
from omni_server.context import ServerContext
from omni_server.errors import error_response
from omni_server.metrics import RequestTimer
from omni_server.openai.call import check_model
from omni_server.openai.sampling import stage_sampling
from omni_server.openai.voices import voice_named
from omni_server.schema.decode import decode_body
from omni_server.schema.speech import SpeechBody
from omni_server.stream import (
    CLIENT_CLOSED_REQUEST,
    ClientGoneError,
    EventStream,
    StreamedResponse,
    sse,
)

DEFAULT_FORMAT = "mp3"
StreamFormat: TypeAlias = Literal["audio", "sse"]
_CLIENTS_NAMES = {"read_aloud": "input"}
"""What the API calls a field of the pipeline's request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechCall:
    """A checked request and the shape of its answer."""

    request: core.Request
    audio_format: str
    speed: float
    stream_format: StreamFormat


def router(context: ServerContext) -> APIRouter:
    """The speech route of one server."""
    routes = APIRouter()

    @routes.post("/v1/audio/speech")
    async def speech(request: Request) -> Response:
        """Read a text aloud."""
        return await _answer(request, context)

    return routes


async def _answer(request: Request, context: ServerContext) -> Response:
    timer = RequestTimer(context.metrics)
    headers = {"x-request-id": f"speech-{uuid.uuid4().hex}"}
    try:
        headers["x-request-id"] = own_request_id(request) or headers["x-request-id"]
        body = decode_body(await read_body(request, context.settings.max_body_bytes), SpeechBody)
        call = _parse(body, request, context, headers["x-request-id"])
    except ClientGoneError as gone:
        timer.end(CLIENT_CLOSED_REQUEST, gone.noticed_s)
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    except OmniError as error:
        timer.end(error.status)
        response = error_response(error)
        response.headers.update(headers)
        return response
    if call.stream_format == "sse":
        frames = _frames(call, _Events(), context, timer)
        return EventStream(frames, headers, timer.end)
    media_type = STREAM_MEDIA_TYPES[call.audio_format]
    return StreamedResponse(_frames(call, _File(), context, timer), headers, timer.end, media_type)


def _parse(
    body: SpeechBody, request: Request, context: ServerContext, request_id: str
) -> SpeechCall:
    pipeline, longest_s = context.pipeline, context.settings.request_timeout_s
    check_model(body.model, context.settings.served_model_name)
    _require_reader(pipeline)
    _refuse_unsupported(body)
    return SpeechCall(
        request=core.Request(
            read_aloud=_text(body.input),
            params=RequestParams(
                modalities=("audio",),
                voice=_voice(body, pipeline),
                sampling=SamplingParams(seed=body.seed),
                stage_params=stage_sampling(body, pipeline.stages),
            ),
            request_id=request_id,
            client=client_key(request, body.user),
            timeout_s=min(filter(None, (body.timeout, longest_s)), default=None),
        ),
        audio_format=_one_of(body.response_format, tuple(STREAM_MEDIA_TYPES), "response_format")
        or DEFAULT_FORMAT,
        speed=1.0 if body.speed is None else body.speed,
        stream_format="sse"
        if _one_of(body.stream_format, ("audio", "sse"), "stream_format") == "sse"
        else "audio",
    )


def _require_reader(pipeline: Pipeline) -> None:
    if "audio" not in pipeline.modalities:
        why = pipeline.info.refused_modalities.get("audio", "this pipeline emits text only")
    elif not pipeline.info.reads_aloud:
        why = "this model answers messages and cannot read a text aloud; use /v1/chat/completions"
    else:
        return
    raise RequestError(
        f"Speech is not served here: {why}.", param="model", code="unsupported_model"
    )


def _refuse_unsupported(body: SpeechBody) -> None:
    """Fields that would change the speech and that nothing here honours."""
    reasons = {
        "instructions": "the model's voice has no control for it",
        "ref_audio": "the model cannot clone voices",
        "ref_text": "the model cannot clone voices",
        "speaker_embedding": "the model cannot clone voices",
    }
    for name, reason in reasons.items():
        if getattr(body, name) not in (None, ""):
            raise RequestError(
                f"'{name}' is not supported: {reason}; leave it out.",
                param=name,
                code="unsupported_parameter",
            )


def _text(given: str) -> str:
    """What is to be said: white space around it has no sound."""
    if not (text := given.strip()):
        raise RequestError("'input' is blank; send the text to read aloud.", param="input")
    return text


def _voice(body: SpeechBody, pipeline: Pipeline) -> str | None:
    match body.voice:
        case None:
            return None
        case str(name):
            return voice_named(name, pipeline.info, "voice")
        case reference:
            return voice_named(reference.id, pipeline.info, "voice")


def _one_of(asked: str | None, known: tuple[str, ...], param: str) -> str | None:
    if asked is not None and asked not in known:
        raise RequestError(f"'{param}': {asked!r} is not one of {', '.join(known)}.", param=param)
    return asked


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
    """As OpenAI's `speech.audio.delta` events, and `speech.audio.done` with the usage."""

    def __init__(self) -> None:
        self._pieces = Base64Pieces()

    def pack(self, data: bytes) -> bytes:
        """See `_Packing`."""
        return self._delta(self._pieces.push(data))

    def end(self, finished: Finished) -> bytes:
        """See `_Packing`."""
        spoken, made = finished.usage.prompt_tokens, finished.usage.audio_tokens
        usage = {"input_tokens": spoken, "output_tokens": made, "total_tokens": spoken + made}
        done = sse({"type": "speech.audio.done", "usage": usage})
        return self._delta(self._pieces.flush()) + done

    def _delta(self, audio: str) -> bytes:
        return sse({"type": "speech.audio.delta", "audio": audio}) if audio else b""


@dataclass(slots=True)
class _Packed:
    """Samples to what is sent of them. Its methods take a moment: not for the event loop."""

    call: SpeechCall
    packing: _Packing
    rate: int
    """In Hz, if no audio says otherwise."""
    _encoder: StreamEncoder | None = field(default=None, init=False)

    def push(self, deltas: list[AudioDelta]) -> bytes:
        """More of the speech."""
        if self._encoder is None:
            self._encoder = self._open(deltas[0].sample_rate)
        samples = np.concatenate([delta.samples for delta in deltas])
        return self.packing.pack(self._encoder.push(samples))

    def flush(self, finished: Finished) -> bytes:
        """The end of it."""
        encoder = self._encoder or self._open(self.rate)
        return self.packing.pack(encoder.flush()) + self.packing.end(finished)

    def _open(self, rate: int) -> StreamEncoder:
        return stream_encoder(self.call.audio_format, rate, speed=self.call.speed)


async def _frames(
    call: SpeechCall, packing: _Packing, context: ServerContext, timer: RequestTimer
) -> AsyncGenerator[bytes, None]:
    """The speech as it is made; what the pipeline gives together is sent together."""
    packed = _Packed(call, packing, context.pipeline.info.sample_rate or PCM_RATE)
    finished: Finished | None = None
    try:
        with timer.generating():
            async with aclosing(context.pipeline.batches(call.request)) as batches:
                async for events in batches:
                    for event in events:
                        timer.saw(event)
                        finished = event if isinstance(event, Finished) else finished
                    sound = [e for e in events if isinstance(e, AudioDelta) and e.samples.size]
                    if sound and (data := await asyncio.to_thread(packed.push, sound)):
                        yield data
    except OmniError as error:
        error.param = _CLIENTS_NAMES.get(error.param or "", error.param)
        raise
    if finished is None:
        raise StageError("The pipeline ended a request without finishing it.")
    if rest := await asyncio.to_thread(packed.flush, finished):
        yield rest
