"""One response: asks the pipeline and tells the client what comes, until it ends or is cancelled.

Knows requests and events of the pipeline. What the client reads of a reply is `reply`'s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from omni_core.errors import ContextLengthError, OmniError, StageError
from omni_core.types import (
    AudioDelta,
    Event,
    Finished,
    Message,
    Request,
    RequestParams,
    SamplingParams,
    StageSpan,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from omni_server.errors import error_object, internal_error
from omni_server.openai.reply import timeline_object
from omni_server.realtime.abilities import VOICE
from omni_server.realtime.conversation import to_messages
from omni_server.realtime.folding import estimate_all
from omni_server.realtime.formats import encoder
from omni_server.realtime.items import Item, Json, new_id
from omni_server.realtime.reply import ReplyWriter
from omni_server.realtime.settings import ResponseSettings
from omni_server.realtime.shared import Shared
from omni_server.realtime.spent import response_usage
from omni_server.realtime.tools import to_tool_use

CancelReason: TypeAlias = Literal["turn_detected", "client_cancelled"]
_FOLDS = 4
"""So often a prompt that is too long is cut in half."""
log = logging.getLogger("omni.server")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What one response is to answer."""

    settings: ResponseSettings
    items: Sequence[Item]
    may_fold: bool
    """Old turns may go if there are too many."""


class Answer:
    """A response, once it is started."""

    def __init__(self, shared: Shared, asked: Asked, on_end: Callable[[Answer], None]) -> None:
        self.id = new_id("resp")
        self.settings = asked.settings
        self.usage: Usage | None = None
        self._told_tokens = 0
        """Of text, so far: all that is known of what a response has cost that does not end by
        itself."""
        self._timeline: tuple[StageSpan, ...] = ()
        self._shared, self._asked, self._on_end = shared, asked, on_end
        self._reason: CancelReason | None = None
        self._over = asyncio.Event()
        output = asked.settings.audio.output.format.format
        self.reply = ReplyWriter(
            shared.put,
            self.id,
            shared.conversation if self.is_in_conversation else None,
            speaks=asked.settings.speaks,
            bytes_per_s=output.bytes_per_s,
            clock=asyncio.get_running_loop().time,
        )
        self._encoder = encoder(
            output,
            shared.pipeline.info.sample_rate or output.rate,
            asked.settings.audio.output.speed,
        )
        self._task: asyncio.Task[Finished] | None = None

    def start(self) -> None:
        """Tell the client, and ask the pipeline."""
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._ended)  # which frees what it holds, whatever fails here
        self._shared.put({"type": "response.created", "response": self._json("in_progress")})

    @property
    def is_in_conversation(self) -> bool:
        """Whether what it says becomes a part of the conversation."""
        return not self.settings.is_apart

    async def cancel(self, reason: CancelReason | None = None) -> None:
        """End it in every stage, and wait until it has; harmless after its end."""
        if self._task is not None and not self._over.is_set():
            self._reason = reason
            self._task.cancel()
            await self._over.wait()

    async def _run(self) -> Finished:
        items = list(self._asked.items)
        for _ in range(_FOLDS):
            try:
                return await self._ask(items)
            except ContextLengthError:
                fewer = self._shared.folding.half(items)
                if not self._asked.may_fold or len(fewer) == len(items):
                    raise
                items = fewer
        return await self._ask(items)

    async def _ask(self, items: Sequence[Item]) -> Finished:
        finished: Finished | None = None
        with self._shared.asking() as timer:
            request = await self._request(to_messages(items, self.settings.instructions))
            async with aclosing(self._shared.pipeline.batches(request)) as batches:
                async for events in batches:
                    for event in events:
                        timer.saw(event)
                        finished = event if isinstance(event, Finished) else finished
                    await self._hear(events)
            if finished is None:
                raise StageError("The pipeline ended a request without finishing it.")
        self.usage, self._timeline = finished.usage, finished.timeline
        self._shared.spent(finished.usage)
        self._shared.folding.learn(
            estimate_all(items, self.settings.instructions), finished.usage.prompt_tokens
        )
        return finished

    async def _hear(self, events: list[Event]) -> None:
        """Tell what came together: text first, for sound says what text said before."""
        for event in events:
            match event:
                case TextDelta(channel=channel, text=text, token_ids=token_ids):
                    self._told_tokens += len(token_ids)
                    if channel == "content":
                        self.reply.text(text)
                case ToolCallDelta():
                    self.reply.call(event)
                case _:
                    pass
        sound = [e.samples for e in events if isinstance(e, AudioDelta) and e.samples.size]
        if sound:
            samples = np.concatenate(sound)
            self.reply.sound(await asyncio.to_thread(self._encoder.push, samples))
        if isinstance(events[-1], Finished) and self.settings.speaks:
            self.reply.sound(await asyncio.to_thread(self._encoder.flush))

    async def _request(self, messages: tuple[Message, ...]) -> Request:
        settings, server = self.settings, self._shared.server
        limit = None if settings.max_output_tokens == "inf" else settings.max_output_tokens
        sampling = SamplingParams(max_tokens=limit, temperature=settings.temperature)
        asked = Request(
            messages=messages,
            tool_use=to_tool_use(settings, server.pipeline.info, "response"),
            params=RequestParams(
                modalities=("text", "audio") if settings.speaks else ("text",),
                voice=settings.audio.output.voice_id if settings.speaks else None,
                sampling=sampling,
            ),
            request_id=self.id,
            client=self._shared.client,
            timeout_s=server.settings.request_timeout_s,
        )
        [request] = await server.voices.brought((asked,), f"response.{VOICE}")
        return request

    def _ended(self, task: asyncio.Task[Finished]) -> None:
        """Say how it ended. Whatever fails in that, it has."""
        try:
            self._tell_end(task)
        finally:
            self._over.set()
            self._on_end(self)

    def _tell_end(self, task: asyncio.Task[Finished]) -> None:
        status, details, whole = "completed", None, True
        if task.cancelled():
            status, whole = "cancelled", False
            details = {"type": "cancelled", "reason": self._reason or "client_cancelled"}
        elif (failure := task.exception()) is not None:
            status, details, whole = "failed", _failed(failure), False
        elif "length" in (task.result().finish_reason, task.result().audio_finish_reason):
            status, whole = "incomplete", task.result().audio_finish_reason != "length"
            details = {"type": "incomplete", "reason": "max_output_tokens"}
        if self.usage is None:
            self._shared.spent(Usage(text_tokens=self._told_tokens))
        try:
            self.reply.end("completed" if status == "completed" else "incomplete", is_whole=whole)
        finally:
            self._shared.put({"type": "response.done", "response": self._json(status, details)})

    def _json(self, status: str, details: Json | None = None) -> Json:
        settings, output = self.settings, self.settings.audio.output
        timed = settings.include_timeline
        return {
            "id": self.id,
            "object": "realtime.response",
            "status": status,
            "status_details": details,
            "output": [item.json() for item in self.reply.items],
            "conversation_id": self._shared.conversation_id if self.is_in_conversation else None,
            "output_modalities": list(settings.output_modalities),
            "audio": {"output": {"format": output.format.format.json, "voice": output.voice}},
            "max_output_tokens": settings.max_output_tokens,
            "metadata": settings.metadata,
            "usage": self._usage_json(),
            **({"timeline": timeline_object(self._timeline)} if timed else {}),
        }

    def _usage_json(self) -> Json | None:
        if self.usage is not None:
            return response_usage(self.usage)
        told = self._told_tokens
        return {"output_token_details": {"text_tokens": told}} if told else None


def _failed(failure: BaseException) -> Json:
    if isinstance(failure, OmniError):
        return {"type": "failed", "error": error_object(failure)["error"]}
    assert isinstance(failure, Exception)
    log.error("a response failed", exc_info=failure)
    return {"type": "failed", "error": error_object(internal_error(failure))["error"]}
