"""WebSockets: messages of client and worker passed on, both ways, with back pressure.

The worker is asked first: what it refuses, it refuses in its own words. Each side's close code
reaches the other; a worker that is lost is 1011.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

from aiohttp import ClientConnectionResetError, WSMsgType, web
from multidict import CIMultiDict, CIMultiDictProxy
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import (
    ConnectionClosed,
    InvalidStatus,
    WebSocketException,
)
from websockets.typing import Subprotocol

from omni_router.errors import BadRequestError
from omni_router.proxy.exchange import NotBegunError
from omni_router.proxy.headers import WORKER, passed_on
from omni_router.router import GOING_AWAY
from omni_router.worker import Worker

PING_S: Final = 20.0
_GOING_AWAY: Final = 1001
_INTERNAL_ERROR: Final = 1011
_ABNORMAL: Final = 1006
_NO_CODE: Final = (1005, _ABNORMAL, 1015)
"""Of closes without a code, or of none at all; they cannot be sent."""
_HANDSHAKE: Final = "sec-websocket-"


class Tunnel:
    """One socket of a client, and one of a worker."""

    def __init__(self, worker: Worker, *, max_message_bytes: int, open_timeout_s: float) -> None:
        self._worker = worker
        self._max_message_bytes = max_message_bytes
        self._open_timeout_s = open_timeout_s
        self._cut = ""
        """Why somebody here ends it, if they do."""
        self.lost = ""
        """Why the worker broke off, if it did."""

    async def run(
        self, request: web.BaseRequest, target: str, headers: CIMultiDict[str]
    ) -> web.StreamResponse:
        """Until either side is gone.

        NotBegunError if the worker cannot be reached; a response of its own if it refuses;
        BadRequestError for what is no handshake (RFC 6455, section 4.2.1).
        """
        if not web.WebSocketResponse().can_prepare(request):
            raise BadRequestError(
                "This asks for a WebSocket without being a handshake: it needs Connection: "
                "Upgrade, Sec-WebSocket-Version: 13 and a Sec-WebSocket-Key of 16 bytes in base64."
            )
        theirs = await self._connect(request, target, headers)
        if isinstance(theirs, web.Response):
            return theirs

        def cut(why: str) -> None:
            self._cut = why
            theirs.transport.abort()

        self._worker.cuts[self] = cut
        try:
            ours = web.WebSocketResponse(
                protocols=[theirs.subprotocol] if theirs.subprotocol else (),
                max_msg_size=self._max_message_bytes,
                heartbeat=PING_S,
                compress=False,
                autoclose=False,
            )
            ours.headers[WORKER] = self._worker.name
            await ours.prepare(request)
            await self._pass_on(ours, theirs)
            return ours
        finally:
            del self._worker.cuts[self]
            await theirs.close()

    async def _connect(
        self, request: web.BaseRequest, target: str, headers: CIMultiDict[str]
    ) -> ClientConnection | web.Response:
        offered = request.headers.get("Sec-WebSocket-Protocol", "").split(",")
        fields = [(k, v) for k, v in headers.items() if not k.lower().startswith(_HANDSHAKE)]
        try:
            return await connect(
                "ws" + self._worker.url.removeprefix("http") + target,
                additional_headers=fields,
                subprotocols=[Subprotocol(p.strip()) for p in offered if p.strip()] or None,
                compression=None,
                max_size=self._max_message_bytes,
                ping_interval=PING_S,
                ping_timeout=PING_S,
                open_timeout=self._open_timeout_s,
                user_agent_header=None,
                proxy=None,
            )
        except InvalidStatus as refused:
            answer = refused.response
            kept = passed_on(CIMultiDictProxy(CIMultiDict(answer.headers.raw_items())))
            kept.popall("Content-Length", None)
            kept[WORKER] = self._worker.name
            return web.Response(status=answer.status_code, body=answer.body, headers=kept)
        except (OSError, TimeoutError, WebSocketException) as error:
            raise NotBegunError(f"{type(error).__name__}: {error}", is_fault=True) from error

    async def _pass_on(self, ours: web.WebSocketResponse, theirs: ClientConnection) -> None:
        """Both ways, until one side closes; then close the other alike."""
        ways = [
            asyncio.ensure_future(_up(ours, theirs)),
            asyncio.ensure_future(_down(ours, theirs)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        if theirs.close_code is None:  # the client closed, or is gone
            code = ours.close_code
            await theirs.close(code if code and code not in _NO_CODE else _GOING_AWAY)
        await ours.close(**self._last_word(theirs))

    def _last_word(self, theirs: ClientConnection) -> dict[str, Any]:
        code, reason = theirs.close_code, theirs.close_reason or ""
        if self._cut == GOING_AWAY:
            return {"code": _GOING_AWAY, "message": self._cut.encode()}
        if code == _ABNORMAL:
            self.lost = self._cut or "it closed without a word"
            return {"code": _INTERNAL_ERROR, "message": b"the worker is lost; connect again"}
        if code in _NO_CODE or code is None:
            return {}
        return {"code": code, "message": reason.encode()}


async def _up(ours: web.WebSocketResponse, theirs: ClientConnection) -> None:
    """What the client says, to the worker."""
    with suppress(ConnectionClosed):
        async for message in ours:
            if message.type in (WSMsgType.TEXT, WSMsgType.BINARY):
                await theirs.send(message.data)


async def _down(ours: web.WebSocketResponse, theirs: ClientConnection) -> None:
    """What the worker says, to the client."""
    with suppress(ConnectionClosed, ClientConnectionResetError):
        while True:
            message = await theirs.recv()
            if isinstance(message, str):
                await ours.send_str(message)
            else:
                await ours.send_bytes(message)
