"""POST /v1/chat/completions, JSON and server-sent events.

Knows how events of the pipeline become an answer. What a request may say is `call`'s, what an
answer looks like is `reply`'s and `chunks`'.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from omni_core.errors import StageError
from omni_core.pipeline import Pipeline
from omni_core.types import AudioDelta, Event, Finished
from omni_server.audio import QUICK_SAMPLES
from omni_server.body import read_body
from omni_server.callers import client_key
from omni_server.context import ServerContext
from omni_server.enclosed import EnclosingResponse
from omni_server.metrics import RequestTimer
from omni_server.offload import LONG_BODY_BYTES, off_loop
from omni_server.openai.call import VOICE, ChatCall, parse_call
from omni_server.openai.choice import Choice
from omni_server.openai.chunks import ChunkWriter
from omni_server.openai.envelope import REQUEST_ID, Headers, answered, require_serving
from omni_server.openai.interleave import interleaved
from omni_server.openai.messages import MessageRules
from omni_server.openai.reply import (
    Json,
    ReplyIds,
    completion,
    timeline_object,
    usage_of_choices,
    with_choice,
)
from omni_server.stream import EventStream, sse, while_connected


def router(context: ServerContext) -> APIRouter:
    """The chat routes of one server."""
    routes = APIRouter()

    @routes.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        """Answer one conversation."""
        return await _answer(request, context)

    return routes


async def _answer(request: Request, context: ServerContext) -> Response:
    ids = ReplyIds(model=context.settings.served_model_name, fingerprint=context.fingerprint)

    async def serve(timer: RequestTimer, headers: Headers) -> Response:
        call = await _read_call(request, context, headers[REQUEST_ID])
        require_serving(context.pipeline)
        if call.stream:
            return EventStream(_frames(call, ids, context, timer), headers, timer.end)
        reply = await while_connected(_collect(call, ids, context, timer), request.receive)
        return EnclosingResponse(reply, headers)

    return await answered(request, context, ids.completion_id, serve, with_choice)


async def _read_call(request: Request, context: ServerContext, request_id: str) -> ChatCall:
    settings = context.settings
    body = await read_body(request, settings.max_body_bytes)
    parse = partial(
        parse_call,
        body,
        pipeline=context.pipeline,
        voices=context.voices,
        served_model_name=settings.served_model_name,
        rules=MessageRules(
            transcript_of=context.transcripts.get,
            limits=settings.media,
            calls=context.pipeline.info.tools,
        ),
        request_id=request_id,
        client_named=partial(client_key, request),
        longest_s=settings.request_timeout_s,
        max_body_bytes=settings.max_body_bytes,
    )
    call = await off_loop(parse, if_=len(body) > LONG_BODY_BYTES)
    return replace(call, requests=await context.voices.brought(call.requests, VOICE))


async def _collect(
    call: ChatCall, ids: ReplyIds, context: ServerContext, timer: RequestTimer
) -> Json:
    """The whole reply as one completion object."""
    choices = [Choice(index=index) for index in range(len(call.requests))]
    with timer.generating(len(call.requests)):
        async with aclosing(_events(call, context.pipeline)) as batches:
            async for index, events in batches:
                for event in events:
                    timer.saw(event)
                    choices[index].hear(event)
    usage = usage_of_choices([choice.finished.usage for choice in choices])
    objects = [
        await choice.object(
            audio_id=ids.audio_id_of(choice.index),
            audio_format=call.audio_format,
            wants_logprobs=call.wants_logprobs,
            remember=context.transcripts.add,
        )
        for choice in choices
    ]
    reply = completion(ids, objects, usage)
    if call.include_timeline:
        reply["timeline"] = timeline_object(choices[0].finished.timeline)
    return reply


async def _frames(
    call: ChatCall, ids: ReplyIds, context: ServerContext, timer: RequestTimer
) -> AsyncGenerator[bytes, None]:
    """The reply as server-sent events; what the pipeline gives together is sent together."""
    writers = [ChunkWriter(call, ids, index) for index in range(len(call.requests))]
    data = _sent(writer.open() for writer in writers)
    ended: dict[int, Finished] = {}
    with timer.generating(len(call.requests)):
        async with aclosing(_events(call, context.pipeline)) as batches:
            async for index, events in batches:
                for event in events:
                    timer.saw(event)
                data += await _written(writers[index], events)
                if isinstance(event := events[-1], Finished):
                    ended[index] = event
                    data += _sent(writers[index].close(event, context.transcripts.add))
                if data:
                    yield data
                data = b""
    if len(ended) < len(writers):
        raise StageError("The pipeline ended a request without finishing it.")
    usages = [ended[index].usage for index in range(len(writers))]
    for chunk in writers[0].usage(usage_of_choices(usages)):
        yield sse(chunk)


async def _written(writer: ChunkWriter, events: list[Event]) -> bytes:
    """The chunks of some events; a client that read nothing for long may have minutes of audio."""
    samples = sum(event.samples.size for event in events if isinstance(event, AudioDelta))
    return await off_loop(
        lambda: _sent(chunk for event in events for chunk in writer.hear(event)),
        if_=samples > QUICK_SAMPLES,
    )


def _sent(chunks: Iterable[Json]) -> bytes:
    return b"".join(map(sse, chunks))


def _events(call: ChatCall, pipeline: Pipeline) -> AsyncGenerator[tuple[int, list[Event]], None]:
    """(choice, events) of all choices, as they come."""
    return interleaved([pipeline.batches(request) for request in call.requests])
