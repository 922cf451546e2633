"""Responses that are made while they are sent, and noticing that the client has left.

Knows HTTP and asyncio. Knows nothing of what is sent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from omni_core.errors import OmniError
from omni_server.errors import error_object, error_response, internal_error

T = TypeVar("T")

CLIENT_CLOSED_REQUEST = 499
"""Never sent: what the metrics call a request whose client left."""
INTERNAL_SERVER_ERROR = 500
DONE = b"data: [DONE]\n\n"
log = logging.getLogger(__name__)


class ClientGoneError(Exception):
    """The client closed the connection before it had its answer."""

    def __init__(self) -> None:
        super().__init__()
        self.noticed_s = time.perf_counter()


def sse(event: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(event) + b"\n\n"


async def while_connected(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """The result of `work`; cancels it and raises ClientGoneError when the client leaves first.

    The request body must have been read: what `receive` brings next is then the disconnect.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGoneError
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class StreamedResponse(Response):
    """A response of unknown length whose status waits for the first of its bytes.

    An error before them is an ordinary error response; after them the connection breaks, so that no
    client takes what it has for all. Each of `frames` is sent the moment it exists. `frames` is
    closed when the response ends, however it ends. `on_end` is told the HTTP status, 499 when the
    client left, or the status of the error that cut the stream; and when it was noticed that the
    client left (`time.perf_counter`), if it did.
    """

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        headers: dict[str, str],
        on_end: Callable[[int, float | None], None],
        media_type: str,
    ) -> None:
        super().__init__(status_code=200, headers=headers, media_type=media_type)
        self._frames = frames
        self._more_headers = headers
        self._on_end = on_end
        self._content_type = media_type
        self._end = b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        status, gone_s = INTERNAL_SERVER_ERROR, None
        try:
            async with aclosing(self._frames):
                status = await while_connected(self._respond(scope, receive, send), receive)
        except ClientGoneError as gone:
            status, gone_s = CLIENT_CLOSED_REQUEST, gone.noticed_s
        finally:
            self._on_end(status, gone_s)

    def last_words(self, error: OmniError) -> bytes:
        """What a client is told of an error in the middle, before the connection breaks."""
        return b""

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> int:
        try:
            first = await anext(self._frames, b"")
        except OmniError as error:
            response = error_response(error)
            response.headers.update(self._more_headers)
            await response(scope, receive, send)
            return error.status
        await send(_start({"content-type": self._content_type, **self._more_headers}))
        try:
            await _write(send, first)
            async for frame in self._frames:
                await _write(send, frame)
        except ClientGoneError:
            raise
        except OmniError as error:
            return await self._cut(error, send)
        except Exception as error:  # the request edge: too late for another status
            log.exception("a stream failed")
            return await self._cut(internal_error(error), send)
        await _write(send, self._end, more=False)
        return 200

    async def _cut(self, error: OmniError, send: Send) -> int:
        """Tell the error and leave the response open: the server ends the connection then."""
        if words := self.last_words(error):
            await _write(send, words)
        return error.status


class EventStream(StreamedResponse):
    """The same of server-sent events, one or several in a frame; an error in the middle is an
    `error` event."""

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        headers: dict[str, str],
        on_end: Callable[[int, float | None], None],
    ) -> None:
        super().__init__(frames, headers, on_end, "text/event-stream; charset=utf-8")
        self._end = DONE

    def last_words(self, error: OmniError) -> bytes:
        """See `StreamedResponse.last_words`."""
        return sse(error_object(error))


def _start(headers: dict[str, str]) -> dict[str, Any]:
    fields = {
        "cache-control": "no-cache",
        "x-accel-buffering": "no",
        **headers,
    }
    encoded = [(name.lower().encode(), value.encode()) for name, value in fields.items()]
    return {"type": "http.response.start", "status": 200, "headers": encoded}


async def _write(send: Send, data: bytes, more: bool = True) -> None:
    try:
        await send({"type": "http.response.body", "body": data, "more_body": more})
    except OSError as exc:  # what ASGI servers raise for a connection that is gone
        raise ClientGoneError from exc
