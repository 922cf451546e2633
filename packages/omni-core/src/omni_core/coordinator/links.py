"""The coordinator's sockets: one inbound for all stages, one outbound for each process.

Knows frames and the event loop. Knows nothing of requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import zmq

from omni_core.addresses import COORDINATOR, AddressBook
from omni_core.codec import Codec, Refused
from omni_core.messages import ToCoordinator, ToStage
from omni_core.stage.egress import Egress
from omni_core.stage.ingress import Ingress
from omni_core.stage.line import LineState, LineWatch

_LINGER_MS: Final = 200
_CALL_S: Final = 10.0
"""Who has dialled in from another host can be reached within this, or not at all."""


@dataclass(frozen=True, slots=True)
class _Far:
    """A line to another host."""

    watch: LineWatch
    address: str
    on_broken: Callable[[str, str], None]
    timer: asyncio.TimerHandle


class CoordinatorLinks:
    """Sends never wait; receives are awaited, all that has arrived at once, in order.

    What one round of the event loop sends to the same process leaves together, at its end.
    """

    def __init__(
        self,
        book: AddressBook,
        codec: Codec,
        on_refused: Callable[[str, list[str]], None],
        tcp: str | None = None,
    ) -> None:
        """`on_refused` is that of `Egress`, called from the event loop and never out of a `send`;
        `tcp` is where other hosts reach us, if they may."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.setsockopt(zmq.LINGER, _LINGER_MS)
        self._book = book
        self._watched: dict[str, _Far] = {}
        self._ingress = Ingress(self._context, book, COORDINATOR, codec, ToCoordinator, tcp=tcp)
        self._egress = Egress(self._context, book, codec, self._hand_on)
        self._on_refused = on_refused
        self._flush_is_due = False
        self._news: asyncio.Event | None = None

    def send(self, process: str, message: ToStage) -> None:
        """Queue a message; the queue is ZMQ's and unbounded, since control messages are small."""
        self._egress.post(process, message)
        if not self._flush_is_due:
            self._flush_is_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    @property
    def refused(self) -> int:
        """What has arrived and was no message."""
        return self._ingress.refused

    def reach(
        self, process: str, address: str, on_broken: Callable[[str, str], None] | None = None
    ) -> None:
        """Connect to a process of another host; `on_broken` is called once and later, with its name
        and what happened, when that does not succeed or the connection ends."""
        self._book.learn(process, address)
        if on_broken is None:
            self._egress.meet(process)
            return
        watch = self._egress.watch(process)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(_CALL_S, self._not_reached, process)
        self._watched[process] = _Far(watch, address, on_broken, timer)
        loop.add_reader(watch.descriptor, self._look_at, process)
        loop.call_soon(self._look_at, process)

    def forget(self, process: str) -> None:
        """A process is gone: drop what it has not taken."""
        self._unwatch(process)
        self._egress.forget(process)

    async def receive(self) -> list[ToCoordinator | Refused]:
        """What the stages have sent, at least one message; a bad one takes its own place only."""
        if self._news is None:
            self._news = asyncio.Event()
            asyncio.get_running_loop().add_reader(self._ingress.descriptor, self._news.set)
        messages: list[ToCoordinator | Refused] = []
        if self._ingress.more:
            messages = self._ingress.read()
        while not messages:
            self._news.clear()
            await self._news.wait()
            messages = self._ingress.read()
        return messages

    def close(self) -> None:
        """Close every socket; what is still queued has a moment to leave."""
        if self._news is not None:
            asyncio.get_running_loop().remove_reader(self._ingress.descriptor)
        for process in list(self._watched):
            self._unwatch(process)
        self._egress.close()
        self._context.destroy(linger=_LINGER_MS)

    def _look_at(self, process: str) -> None:
        line = self._watched.get(process)
        if line is None:
            return
        match line.watch.look():
            case LineState.UP:
                line.timer.cancel()
            case LineState.BROKEN | LineState.REFUSED:
                self._unwatch(process)
                line.on_broken(process, "its connection broke")
            case LineState.CALLING:
                pass

    def _not_reached(self, process: str) -> None:
        line = self._watched[process]
        self._unwatch(process)
        line.on_broken(process, f"it cannot be reached at {line.address}")

    def _unwatch(self, process: str) -> None:
        if line := self._watched.pop(process, None):
            line.timer.cancel()
            asyncio.get_running_loop().remove_reader(line.watch.descriptor)
            line.watch.close()

    def _hand_on(self, process: str, request_ids: list[str]) -> None:
        """Whoever sends is in the middle of something, maybe of these very requests."""
        asyncio.get_running_loop().call_soon(self._on_refused, process, request_ids)

    def _flush(self) -> None:
        self._flush_is_due = False
        self._egress.flush()
