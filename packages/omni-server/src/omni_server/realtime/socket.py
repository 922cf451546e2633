"""WS /v1/realtime: who may open a session, what is read and sent, and how it ends.

Close codes: 1001 the server ends, 1008 the client reads too slowly, 1011 a bug; what is refused
before a session opens is an HTTP response with OpenAI's error object. Knows sockets. What events
mean is `session`'s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from fastapi import APIRouter
from starlette.websockets import WebSocket, WebSocketDisconnect

from omni_core.errors import OmniError, OverloadedError, RequestError
from omni_server.callers import caller
from omni_server.context import ServerContext
from omni_server.errors import deny
from omni_server.keys import ForbiddenError
from omni_server.openai.call import check_model
from omni_server.openai.envelope import require_serving
from omni_server.rate import limited_client
from omni_server.realtime import events
from omni_server.realtime.abilities import Abilities
from omni_server.realtime.conversation import Conversation
from omni_server.realtime.dialect import Beta, Dialect, Today
from omni_server.realtime.folding import Folding
from omni_server.realtime.items import new_id
from omni_server.realtime.outbox import Outbox
from omni_server.realtime.session import Session
from omni_server.realtime.settings import SessionType
from omni_server.realtime.shared import Limited, Shared
from omni_server.record import current

PATH: Final = "/v1/realtime"
SUBPROTOCOL: Final = "realtime"
GOING_AWAY: Final = 1001
POLICY_VIOLATION: Final = 1008
INTERNAL_ERROR: Final = 1011
_BETA: Final = "realtime=v1"
_BETA_SUBPROTOCOL: Final = "openai-beta.realtime-v1"
_LAST_WORDS_S: Final = 2.0
"""For a client to take the close, or the error before it."""
log = logging.getLogger("omni.server")


@dataclass(frozen=True, slots=True)
class Closing:
    """How a session ends from this side."""

    code: int
    reason: str


def router(context: ServerContext) -> APIRouter:
    """The realtime route of one server."""
    routes = APIRouter()
    sessions = Sessions(context)

    @routes.websocket(PATH)
    async def realtime(websocket: WebSocket) -> None:
        """Hold one session."""
        try:
            kind = sessions.admit(websocket)
        except OmniError as error:
            context.metrics.refused(error.code or "")
            await deny(error, websocket.scope, websocket.receive, websocket.send)
            return
        with sessions.one():
            await sessions.hold(websocket, kind)

    return routes


class Sessions:
    """The sessions of one server."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._open = 0

    def admit(self, websocket: WebSocket) -> SessionType:
        """The kind of session that is asked for; an error says why there is none."""
        settings = self._context.settings
        _check_origin(websocket, settings.cors_origins)
        check_model(websocket.query_params.get("model"), settings.served_model_name)
        require_serving(self._context.pipeline)
        if self._open >= settings.max_realtime_sessions:
            raise OverloadedError(
                f"All {settings.max_realtime_sessions} realtime sessions are taken; retry "
                "later, or have its operator raise --max-realtime-sessions."
            )
        match websocket.query_params.get("intent", "conversation"):
            case "conversation":
                return "realtime"
            case "transcription":
                return "transcription"
            case other:
                raise RequestError(
                    f"'intent': {other[:32]!r} is not transcription; leave it out to converse.",
                    param="intent",
                )

    @contextmanager
    def one(self) -> Iterator[None]:
        """Around a session."""
        self._open += 1
        self._context.metrics.realtime_sessions.inc()
        try:
            yield
        finally:
            self._open -= 1
            self._context.metrics.realtime_sessions.dec()

    async def hold(self, websocket: WebSocket, kind: SessionType) -> None:
        """From the first event to the last."""
        offered = websocket.scope.get("subprotocols", [])
        await websocket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
        dialect = _dialect(websocket)
        outbox = Outbox(dialect.events)
        session = await self._session(websocket, outbox, dialect, kind)
        session.greet()
        try:
            closing = await _until_over(websocket, session, outbox, self._context)
        finally:
            await session.close()
        if closing is not None:
            with suppress(WebSocketDisconnect, RuntimeError, TimeoutError):
                async with asyncio.timeout(_LAST_WORDS_S):
                    await websocket.close(closing.code, closing.reason)

    async def _session(
        self, websocket: WebSocket, outbox: Outbox, dialect: Dialect, kind: SessionType
    ) -> Session:
        context = self._context
        record = current.get()
        current.set(None)  # which each response would overwrite with its own end
        limited: Limited | None = None
        if context.limiter is not None:
            client = limited_client(websocket, bool(context.settings.api_keys))
            limited = Limited(limiter=context.limiter, client=client)
        shared = Shared(
            server=context,
            put=outbox.put,
            client=caller(websocket),
            limited=limited,
            session_id=new_id("sess"),
            conversation_id=new_id("conv"),
            conversation=Conversation(),
            folding=Folding(context.pipeline.info.context_length),
            record=record,
        )
        abilities = Abilities(
            pipeline=context.pipeline,
            voices=context.voices,
            served_model_name=context.settings.served_model_name,
            no_vad=context.speech.why_not,
        )
        model = await context.speech.model() if abilities.hears else None
        return Session(shared, abilities, dialect, kind, model, context.speech.threads)


async def _until_over(
    websocket: WebSocket, session: Session, outbox: Outbox, context: ServerContext
) -> Closing | None:
    """Read and send until one side ends; None if the client did."""
    reading = asyncio.create_task(_read(websocket, session))
    writing = asyncio.create_task(_write(websocket, outbox))
    slow = asyncio.create_task(outbox.overflowed.wait())
    leaving = asyncio.create_task(_leave(session, outbox, context))
    tasks = {reading, writing, slow, leaving}
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in (reading, writing):
        if task in done and (failure := task.exception()) is not None:
            log.error("a realtime session failed", exc_info=failure)
            return Closing(INTERNAL_ERROR, "internal error; the server's log has the details")
    if reading in done or writing in done:
        return None
    if slow in done:
        return Closing(POLICY_VIOLATION, "too many events wait to be read; read faster")
    return Closing(GOING_AWAY, "the server is shutting down; connect again elsewhere")


async def _read(websocket: WebSocket, session: Session) -> None:
    """Until the client leaves."""
    while (message := await websocket.receive())["type"] != "websocket.disconnect":
        text: str | None = message.get("text")
        if text is None:
            session.refuse(events.refuse_binary())
        else:
            await session.hear(text)


async def _write(websocket: WebSocket, outbox: Outbox) -> None:
    """Until the client has left."""
    with suppress(WebSocketDisconnect):
        async for text in outbox.texts():
            await websocket.send_text(text)


async def _leave(session: Session, outbox: Outbox, context: ServerContext) -> None:
    """Until the server ends, and what is being answered has been."""
    await context.door.draining.wait()
    await session.quiet()
    await outbox.idle()


def _dialect(websocket: WebSocket) -> Dialect:
    named = websocket.headers.get("openai-beta", "")
    offered = websocket.scope.get("subprotocols", [])
    is_beta = _BETA in [one.strip() for one in named.split(",")] or _BETA_SUBPROTOCOL in offered
    return Beta() if is_beta else Today()


def _check_origin(websocket: WebSocket, allowed: tuple[str, ...]) -> None:
    """ForbiddenError for a web page of elsewhere: browsers open sockets to anywhere, and leave it
    to the server to ask who comes."""
    origin = websocket.headers.get("origin")
    if origin is None or origin in allowed or "*" in allowed:
        return
    if not _is_same_host(origin, websocket.headers.get("host", "")):
        raise ForbiddenError(
            f"Web pages of {origin[:128]!r} may not connect; its operator can allow them with "
            "--cors-origin.",
            code="origin_not_allowed",
        )


def _is_same_host(origin: str, host: str) -> bool:
    try:
        return urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:  # "http://[" has no host
        return False
