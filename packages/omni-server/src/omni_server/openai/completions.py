"""POST /v1/completions: raw prompts completed, as JSON or server-sent events.

Knows how events of the pipeline become an answer. What a request may say is `completions_call`'s,
what an answer looks like is `completions_reply`'s.
"""

from __future__ import annotations

import operator
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial, reduce
from typing import Final

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from omni_core.errors import OmniError
from omni_core.pipeline import Pipeline
from omni_core.types import Event, Finished, Usage
from omni_server.body import read_body
from omni_server.callers import client_key
from omni_server.context import ServerContext
from omni_server.errors import JsonResponse
from omni_server.metrics import RequestTimer
from omni_server.offload import LONG_BODY_BYTES, QUICK_TOKENS, off_loop
from omni_server.openai.completions_call import CompletionsCall, parse_call
from omni_server.openai.completions_reply import CompletionWriter, completion_object
from omni_server.openai.envelope import REQUEST_ID, Headers, answered, require_serving
from omni_server.openai.interleave import interleaved
from omni_server.openai.reply import ReplyIds, usage_object, with_choice
from omni_server.settings import MIB
from omni_server.stream import EventStream, sse, while_connected

MAX_BODY_BYTES: Final = 4 * MIB
"""Text alone: what is larger costs time to parse, and no context would hold it."""


def router(context: ServerContext) -> APIRouter:
    """The completion route of one server."""
    routes = APIRouter()

    @routes.post("/v1/completions")
    async def completions(request: Request) -> Response:
        """Complete raw prompts."""
        return await _answer(request, context)

    return routes


async def _answer(request: Request, context: ServerContext) -> Response:
    ids = ReplyIds(
        model=context.settings.served_model_name,
        fingerprint=context.fingerprint,
        completion_id=f"cmpl-{uuid.uuid4().hex}",
    )

    async def serve(timer: RequestTimer, headers: Headers) -> Response:
        call = await _read_call(request, context, headers[REQUEST_ID])
        require_serving(context.pipeline)
        if call.stream:
            return EventStream(_frames(call, ids, context, timer), headers, timer.end)
        answer = _collect(call, ids, context, timer, headers)
        return await while_connected(answer, request.receive)

    return await answered(request, context, ids.completion_id, serve)


async def _read_call(request: Request, context: ServerContext, request_id: str) -> CompletionsCall:
    settings = context.settings
    body = await read_body(
        request,
        min(settings.max_body_bytes, MAX_BODY_BYTES),
        instead="send shorter prompts, or fewer of them in one request",
    )
    parse = partial(
        parse_call,
        body,
        pipeline=context.pipeline,
        served_model_name=settings.served_model_name,
        request_id=request_id,
        client_named=partial(client_key, request),
        longest_s=settings.request_timeout_s,
    )
    return await off_loop(parse, if_=len(body) > LONG_BODY_BYTES)


async def _collect(
    call: CompletionsCall,
    ids: ReplyIds,
    context: ServerContext,
    timer: RequestTimer,
    headers: Headers,
) -> Response:
    """All completions as one object."""
    writers = _writers(call)
    async with aclosing(_heard(call, context.pipeline, timer)) as heard:
        async for index, events in heard:
            for event in events:
                writers[index].hear(event)
    return await off_loop(
        partial(_reply, writers, ids, headers),
        if_=sum(writer.n_logprobs for writer in writers) > QUICK_TOKENS,
    )


def _reply(writers: list[CompletionWriter], ids: ReplyIds, headers: Headers) -> Response:
    usage = usage_object(_usage(writers))
    choices = [writer.part() or {} for writer in writers]
    return JsonResponse({**completion_object(ids, choices), "usage": usage}, headers=headers)


async def _frames(
    call: CompletionsCall, ids: ReplyIds, context: ServerContext, timer: RequestTimer
) -> AsyncGenerator[bytes, None]:
    """The completions as server-sent events; what the pipeline gives together is one."""
    writers = _writers(call)
    unsaid = {"usage": None} if call.include_usage else {}
    async with aclosing(_heard(call, context.pipeline, timer)) as heard:
        async for index, events in heard:
            for event in events:
                writers[index].hear(event)
            if part := writers[index].part():
                yield sse({**completion_object(ids, [part]), **unsaid})
    usage = _usage(writers)
    if call.include_usage:
        yield sse({**completion_object(ids, []), "usage": usage_object(usage)})


def _writers(call: CompletionsCall) -> list[CompletionWriter]:
    return [
        CompletionWriter(index, call.echoed(index), call.wants_logprobs)
        for index in range(len(call.requests))
    ]


async def _heard(
    call: CompletionsCall, pipeline: Pipeline, timer: RequestTimer
) -> AsyncGenerator[tuple[int, list[Event]], None]:
    """(choice, events) of all choices, as they come."""
    sources = [
        _of_choice(pipeline.batches(request), call.param(index), counts=index % call.n == 0)
        for index, request in enumerate(call.requests)
    ]
    with timer.generating(len(sources)):
        async with aclosing(interleaved(sources)) as batches:
            async for index, events in batches:
                for event in events:
                    timer.saw(event)
                yield index, events


async def _of_choice(
    batches: AsyncGenerator[list[Event], None], param: str, *, counts: bool
) -> AsyncGenerator[list[Event], None]:
    """The events of one choice. Errors name its prompt, which `counts` once for all its choices."""
    try:
        async with aclosing(batches):
            async for events in batches:
                yield events if counts else list(map(_without_prompt, events))
    except OmniError as error:
        error.param = param if error.param == "prompt" else error.param
        raise


def _without_prompt(event: Event) -> Event:
    if not isinstance(event, Finished):
        return event
    return msgspec.structs.replace(event, usage=with_choice(Usage(), event.usage))


def _usage(writers: list[CompletionWriter]) -> Usage:
    return reduce(operator.add, (writer.finished.usage for writer in writers))
