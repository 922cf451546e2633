"""The coordinator's sockets: one inbound for all stages, one outbound for each process.

Knows frames and the event loop. Knows nothing of requests.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import zmq

from omni_core.addresses import COORDINATOR, address
from omni_core.codec import Codec
from omni_core.errors import ProtocolError
from omni_core.messages import ToCoordinator, ToStage

_BURST_MESSAGES: Final = 256
"""Taken in one turn of the event loop, so that a flood of news does not hold up everything else."""
_LINGER_MS: Final = 200


class BadMessageError(ProtocolError):
    """Undecodable frames; `request_id` is that of the request they were about, if they say so."""

    def __init__(self, message: str, request_id: str | None) -> None:
        super().__init__(message)
        self.request_id = request_id


class CoordinatorLinks:
    """Sends never wait; receives are awaited, all that has arrived at once, in order.

    The inbound socket is read when its descriptor says so and then until it is empty: a task that
    waits for each message by itself costs several times what the message does.
    """

    def __init__(self, run_dir: Path, codec: Codec) -> None:
        self._run_dir = run_dir
        self._codec = codec
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._inbound = self._context.socket(zmq.PULL)
        self._inbound.bind(address(run_dir, COORDINATOR))
        self._peers: dict[str, zmq.Socket[bytes]] = {}

    def send(self, process: str, message: ToStage) -> None:
        """Queue a message; the queue is ZMQ's and unbounded, since control messages are small."""
        self._socket(process).send_multipart(self._codec.encode(message), copy=False)

    async def receive(self) -> list[ToCoordinator | BadMessageError]:
        """What the stages have sent, at least one message; a bad one takes its own place only."""
        while not (messages := self._arrived()):
            await self._readable()
        return messages

    def _arrived(self) -> list[ToCoordinator | BadMessageError]:
        messages: list[ToCoordinator | BadMessageError] = []
        while len(messages) < _BURST_MESSAGES:
            try:
                frames = self._inbound.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            messages.append(self._read(frames))
        return messages

    def _read(self, frames: list[bytes]) -> ToCoordinator | BadMessageError:
        try:
            message: ToCoordinator = self._codec.decode(frames, ToCoordinator)
        except ProtocolError as exc:
            return BadMessageError(exc.message, self._codec.request_of(frames))
        return message

    async def _readable(self) -> None:
        """Wait for news of the socket. Its descriptor tells of changes only: it must have been
        read until it was empty."""
        loop = asyncio.get_running_loop()
        changed = loop.create_future()
        descriptor = self._inbound.getsockopt(zmq.FD)
        assert isinstance(descriptor, int)
        loop.add_reader(descriptor, _settle, changed)
        try:
            await changed
        finally:
            loop.remove_reader(descriptor)

    def close(self) -> None:
        """Close every socket; what is still queued has a moment to leave."""
        self._context.destroy(linger=_LINGER_MS)

    def _socket(self, process: str) -> zmq.Socket[bytes]:
        if process not in self._peers:
            outbound = self._context.socket(zmq.PUSH)
            outbound.setsockopt(zmq.SNDHWM, 0)
            outbound.connect(address(self._run_dir, process))
            self._peers[process] = outbound
        return self._peers[process]


def _settle(changed: asyncio.Future[None]) -> None:
    if not changed.done():
        changed.set_result(None)
