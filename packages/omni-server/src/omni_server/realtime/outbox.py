"""Events on their way to the client: in order, never waited for, and never too many.

Knows JSON and bytes. Knows no socket: whoever sends takes them out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final

import msgspec

from omni_server.realtime.items import Json, new_id

MOST_WAITING_BYTES: Final = 32 * 1024 * 1024
"""Eight minutes of sound that nobody reads."""
Translate = Callable[[Json], Iterable[Json]]
"""An event to those that this client's dialect has for it."""


class Outbox:
    """A bounded queue of encoded events; one reader."""

    def __init__(self, translate: Translate, most_waiting_bytes: int = MOST_WAITING_BYTES) -> None:
        self.overflowed = asyncio.Event()
        """More waited than may; whatever came since is lost."""
        self._translate = translate
        self._most_waiting_bytes = most_waiting_bytes
        self._waiting: deque[str] = deque()
        self._waiting_bytes = 0
        self._has_some = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def put(self, event: Json) -> None:
        """Send an event after all before it; it gets its `event_id` here."""
        for said in self._translate({"event_id": new_id("event"), **event}):
            self._put(msgspec.json.encode(said).decode())

    def _put(self, text: str) -> None:
        if self._waiting_bytes + len(text) > self._most_waiting_bytes:
            self.overflowed.set()
        if self.overflowed.is_set():
            return
        self._waiting.append(text)
        self._waiting_bytes += len(text)
        self._has_some.set()
        self._is_idle.clear()

    async def idle(self) -> None:
        """Wait until all has been taken and sent."""
        await self._is_idle.wait()

    async def texts(self) -> AsyncIterator[str]:
        """Each event when it is due; the next one is asked for once this one is sent."""
        while True:
            await self._has_some.wait()
            text = self._waiting.popleft()
            yield text
            self._waiting_bytes -= len(text)
            if not self._waiting:
                self._has_some.clear()
                self._is_idle.set()
