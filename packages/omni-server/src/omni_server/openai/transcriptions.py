"""POST /v1/audio/transcriptions and /v1/audio/translations: speech to text.

Knows how a recording's events become an answer. What a call may say is `transcriptions_call`'s, how
a recording goes through the pipeline `transcriptions_run`'s, what an answer looks like
`transcriptions_reply`'s.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from omni_core.types import Event, TextDelta, TokenLogprob
from omni_server.callers import client_key
from omni_server.context import ServerContext
from omni_server.form import read_form
from omni_server.metrics import RequestTimer
from omni_server.openai.envelope import REQUEST_ID, Headers, answered, require_serving
from omni_server.openai.transcriptions_call import FILE, TranscriptionCall, parse_transcription
from omni_server.openai.transcriptions_reply import delta_object, done_object, response
from omni_server.openai.transcriptions_run import decode_upload, hear
from omni_server.openai.transcriptions_text import Transcript
from omni_server.stream import EventStream, sse, while_connected


def router(context: ServerContext) -> APIRouter:
    """The speech-to-text routes of one server."""
    routes = APIRouter()

    @routes.post("/v1/audio/transcriptions")
    async def transcriptions(request: Request) -> Response:
        """Write down speech as it is spoken."""
        return await _answer(request, context, translate=False)

    @routes.post("/v1/audio/translations")
    async def translations(request: Request) -> Response:
        """Write down speech in English."""
        return await _answer(request, context, translate=True)

    return routes


async def _answer(request: Request, context: ServerContext, *, translate: bool) -> Response:
    async def serve(timer: RequestTimer, headers: Headers) -> Response:
        call = await _read_call(request, context, headers[REQUEST_ID], translate)
        require_serving(context.pipeline)
        if call.stream:
            return EventStream(_frames(call, context, timer), headers, timer.end)
        work = _collect(call, context, timer, headers)
        return await while_connected(work, request.receive)

    return await answered(request, context, f"transcript-{uuid.uuid4().hex}", serve)


async def _read_call(
    request: Request, context: ServerContext, request_id: str, translate: bool
) -> TranscriptionCall:
    settings = context.settings
    form = await read_form(
        request,
        (FILE,),
        max_body_bytes=settings.max_body_bytes,
        max_file_bytes=settings.media.max_bytes,
    )
    return parse_transcription(
        form,
        translate=translate,
        pipeline=context.pipeline,
        served_model_name=settings.served_model_name,
        request_id=request_id,
        client_named=partial(client_key, request),
        longest_s=settings.request_timeout_s,
    )


async def _collect(
    call: TranscriptionCall, context: ServerContext, timer: RequestTimer, headers: dict[str, str]
) -> Response:
    """The whole answer in its format."""
    recording = await decode_upload(call, context.settings.media, context.decoders)
    transcript = Transcript(len(recording.segments))
    with timer.generating(len(recording.segments)):
        async with aclosing(hear(call, recording, context.pipeline)) as events:
            async for index, event in events:
                timer.saw(event)
                transcript.hear(index, event)
    transcript.check_complete()
    return response(call, recording, transcript, headers)


async def _frames(
    call: TranscriptionCall, context: ServerContext, timer: RequestTimer
) -> AsyncGenerator[bytes, None]:
    """The answer as server-sent events."""
    recording = await decode_upload(call, context.settings.media, context.decoders)
    transcript = Transcript(len(recording.segments))
    with timer.generating(len(recording.segments)):
        async with aclosing(hear(call, recording, context.pipeline)) as events:
            async for index, event in events:
                timer.saw(event)
                delta, tokens = transcript.hear(index, event), _tokens(call, event)
                if delta or tokens:
                    yield sse(delta_object(call, delta, tokens))
    transcript.check_complete()
    yield sse(done_object(call, transcript))


def _tokens(call: TranscriptionCall, event: Event) -> tuple[TokenLogprob, ...]:
    match event:
        case TextDelta(channel="content") if call.include_logprobs:
            return event.logprobs
    return ()
