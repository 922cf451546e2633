"""The coordinator's sockets: one inbound for all stages, one outbound for each process.

Knows frames and the event loop. Knows nothing of requests.
"""

from __future__ import annotations

from pathlib import Path

import zmq
import zmq.asyncio

from omni_core.addresses import COORDINATOR, address
from omni_core.codec import Codec
from omni_core.errors import ProtocolError
from omni_core.messages import ToCoordinator, ToStage


class BadMessageError(ProtocolError):
    """Undecodable frames; `request_id` is that of the request they were about, if they say so."""

    def __init__(self, message: str, request_id: str | None) -> None:
        super().__init__(message)
        self.request_id = request_id


class CoordinatorLinks:
    """Sends never wait; receives are awaited one message at a time, in order."""

    def __init__(self, run_dir: Path, codec: Codec) -> None:
        self._run_dir = run_dir
        self._codec = codec
        self._context = zmq.asyncio.Context()
        self._inbound = self._context.socket(zmq.PULL)
        self._inbound.bind(address(run_dir, COORDINATOR))
        self._outbound_context = zmq.Context()
        self._peers: dict[str, zmq.Socket[bytes]] = {}

    def send(self, process: str, message: ToStage) -> None:
        """Queue a message; the queue is ZMQ's and unbounded, since control messages are small."""
        self._socket(process).send_multipart(self._codec.encode(message), copy=False)

    async def receive(self) -> ToCoordinator:
        """The next message of any stage; a BadMessageError costs that message only."""
        frames = await self._inbound.recv_multipart()
        try:
            message: ToCoordinator = self._codec.decode(frames, ToCoordinator)
        except ProtocolError as exc:
            raise BadMessageError(exc.message, self._codec.request_of(frames)) from exc
        return message

    def close(self) -> None:
        """Close every socket; what is still queued has a moment to leave."""
        self._context.destroy(linger=0)
        self._outbound_context.destroy(linger=200)

    def _socket(self, process: str) -> zmq.Socket[bytes]:
        if process not in self._peers:
            outbound = self._outbound_context.socket(zmq.PUSH)
            outbound.setsockopt(zmq.SNDHWM, 0)
            outbound.connect(address(self._run_dir, process))
            self._peers[process] = outbound
        return self._peers[process]
