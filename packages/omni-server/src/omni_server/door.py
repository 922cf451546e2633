"""The door before the pipeline: open, paused or draining, and how many requests are inside.

Only requests that make work pass it: probes, lists and cancels are always answered. Knows HTTP
methods and paths. Knows no pipeline.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from omni_core.errors import NotReadyError
from omni_server.errors import deny
from omni_server.metrics import Metrics

_API: Final = "/v1/"
_ABOUT_REQUESTS: Final = "/v1/requests/"
_PAUSED_RETRY_S: Final = 5


class DoorState(StrEnum):
    """What becomes of a request that comes now."""

    OPEN = "open"
    PAUSED = "paused"
    """Refused, until it is opened again."""
    DRAINING = "draining"
    """Refused for good: the server ends once all are out."""


class Door:
    """Lets requests in and knows when the last one is out. Used on the event loop alone."""

    def __init__(self) -> None:
        self.state = DoorState.OPEN
        self.inside = 0
        """Requests that are being answered."""
        self.draining = asyncio.Event()
        """For those who stay: the server is about to end."""
        self._empty = asyncio.Event()
        self._empty.set()

    def pause(self) -> None:
        """Refuse new requests; NotReadyError if the server is about to end."""
        self._move(DoorState.PAUSED)

    def open(self) -> None:
        """Take requests again; NotReadyError if the server is about to end."""
        self._move(DoorState.OPEN)

    def drain(self) -> None:
        """Refuse new requests for good."""
        self.state = DoorState.DRAINING
        self.draining.set()

    def check(self) -> None:
        """NotReadyError if new requests are refused."""
        if self.state is DoorState.PAUSED:
            raise NotReadyError(
                "The server is paused by its operator; retry in a while.",
                code="paused",
                retry_after_s=_PAUSED_RETRY_S,
            )
        self._require_staying()

    async def empty(self) -> None:
        """Wait until nobody is inside."""
        await self._empty.wait()

    def enter(self) -> None:
        """One request more; NotReadyError if it is refused."""
        self.check()
        self.inside += 1
        self._empty.clear()

    def leave(self) -> None:
        """One request less."""
        self.inside -= 1
        if not self.inside:
            self._empty.set()

    def _move(self, state: DoorState) -> None:
        self._require_staying()
        self.state = state

    def _require_staying(self) -> None:
        if self.state is DoorState.DRAINING:
            raise NotReadyError("The server is shutting down; retry elsewhere.", code="draining")


class Doorkeeper:
    """ASGI middleware: requests that make work pass the door, or are refused with 503."""

    def __init__(self, app: ASGIApp, door: Door, metrics: Metrics) -> None:
        self._app = app
        self._door = door
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. Who opens a session is not inside before it has something answered."""
        if not is_work(scope):
            await self._app(scope, receive, send)
            return
        is_session = scope["type"] == "websocket"
        try:
            self._door.check() if is_session else self._door.enter()
        except NotReadyError as error:
            self._metrics.refused(error.code or "")
            await deny(error, scope, receive, send)
            return
        if is_session:
            await self._app(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            self._door.leave()


def is_work(scope: Scope) -> bool:
    """Whether a request asks the pipeline for something, or opens a session that may."""
    if scope["type"] not in ("http", "websocket"):
        return False
    path: str = scope["path"]
    if scope["type"] == "http" and scope["method"] != "POST":
        return False
    return path.startswith(_API) and not path.startswith(_ABOUT_REQUESTS)
