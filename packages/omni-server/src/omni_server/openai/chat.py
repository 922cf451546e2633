"""POST /v1/chat/completions, JSON and server-sent events.

Knows how events of the pipeline become an answer. What a request may say is `call`'s, what an
answer looks like is `reply`'s and `chunks`'.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from omni_core.errors import NotReadyError, OmniError, StageError
from omni_core.pipeline import Pipeline
from omni_core.types import AudioDelta, Channel, Finished, TextDelta, TokenLogprob
from omni_server.body import read_body
from omni_server.callers import client_key, own_request_id
from omni_server.context import ServerContext
from omni_server.errors import JsonResponse, error_response
from omni_server.metrics import RequestTimer
from omni_server.openai.call import ChatCall, parse_call
from omni_server.openai.chunks import ChunkWriter
from omni_server.openai.logprobs import logprobs_object
from omni_server.openai.messages import MessageRules
from omni_server.openai.reply import (
    Json,
    ReplyIds,
    audio_object,
    completion,
    timeline_object,
)
from omni_server.stream import (
    CLIENT_CLOSED_REQUEST,
    INTERNAL_SERVER_ERROR,
    ClientGoneError,
    EventStream,
    sse,
    while_connected,
)


def router(context: ServerContext) -> APIRouter:
    """The chat routes of one server."""
    routes = APIRouter()

    @routes.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        """Answer one conversation."""
        return await _answer(request, context)

    return routes


async def _answer(request: Request, context: ServerContext) -> Response:
    """Own the request's timer: whatever ends the request, it is counted once."""
    timer = RequestTimer(context.metrics)
    status, gone_s = INTERNAL_SERVER_ERROR, None
    streaming = False
    ids = ReplyIds(model=context.settings.served_model_name, fingerprint=context.fingerprint)
    headers = {"x-request-id": ids.completion_id}
    try:
        headers["x-request-id"] = request_id = own_request_id(request) or ids.completion_id
        call = await _read_call(request, context, request_id)
        require_serving(context.pipeline)
        if call.stream:
            streaming = True
            return EventStream(_frames(call, ids, context, timer), headers, timer.end)
        reply = await while_connected(_collect(call, ids, context, timer), request.receive)
        status = 200
        return JsonResponse(reply, headers=headers)
    except ClientGoneError as gone:
        status, gone_s = CLIENT_CLOSED_REQUEST, gone.noticed_s
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    except OmniError as error:
        status = error.status
        response = error_response(error)
        response.headers.update(headers)
        return response
    finally:
        if not streaming:
            timer.end(status, gone_s)


async def _read_call(request: Request, context: ServerContext, request_id: str) -> ChatCall:
    settings = context.settings
    return parse_call(
        await read_body(request, settings.max_body_bytes),
        pipeline=context.pipeline,
        served_model_name=settings.served_model_name,
        rules=MessageRules(transcript_of=context.transcripts.get, limits=settings.media),
        request_id=request_id,
        client_named=partial(client_key, request),
        longest_s=settings.request_timeout_s,
    )


def require_serving(pipeline: Pipeline) -> None:
    """NotReadyError before the pipeline has started and once it stops; degraded may still serve."""
    status = pipeline.health().status
    if status in ("starting", "closing"):
        raise NotReadyError(f"The server is {status}; try again shortly.")


async def _collect(
    call: ChatCall, ids: ReplyIds, context: ServerContext, timer: RequestTimer
) -> Json:
    """The whole reply as one completion object."""
    said: dict[Channel, list[str]] = {"content": [], "reasoning": []}
    tokens: list[TokenLogprob] = []
    sound: list[AudioDelta] = []
    finished: Finished | None = None
    with timer.generating():
        async with aclosing(context.pipeline.generate(call.request)) as events:
            async for event in events:
                timer.saw(event)
                match event:
                    case TextDelta():
                        said[event.channel].append(event.text)
                        tokens += event.logprobs if event.channel == "content" else ()
                    case AudioDelta() if event.samples.size:
                        sound.append(event)
                    case Finished():
                        finished = event
    if finished is None:
        raise StageError("The pipeline ended a request without finishing it.")
    transcript = "".join(said["content"])
    audio = None
    if sound:
        expires_at = context.transcripts.add(ids.audio_id, transcript)
        audio = await asyncio.to_thread(
            audio_object, sound, call.audio_format, ids.audio_id, transcript, expires_at
        )
    reply = completion(ids, transcript, "".join(said["reasoning"]), audio, finished)
    if call.wants_logprobs:
        reply["choices"][0]["logprobs"] = logprobs_object(tokens)
    if call.include_timeline:
        reply["timeline"] = timeline_object(finished.timeline)
    return reply


async def _frames(
    call: ChatCall, ids: ReplyIds, context: ServerContext, timer: RequestTimer
) -> AsyncGenerator[bytes, None]:
    """The reply as server-sent events; what the pipeline gives together is sent together."""
    writer = ChunkWriter(call, ids)
    finished: Finished | None = None
    with timer.generating():
        async with aclosing(context.pipeline.batches(call.request)) as batches:
            async for events in batches:
                for event in events:
                    timer.saw(event)
                    if isinstance(event, Finished):
                        finished = event
                chunks = [chunk for event in events for chunk in writer.hear(event)]
                if chunks:
                    yield b"".join(map(sse, chunks))
    if finished is None:
        raise StageError("The pipeline ended a request without finishing it.")
    for chunk in writer.close(finished, context.transcripts.add):
        yield sse(chunk)
