"""The ways out of a stage process: one socket for each process it sends to.

Knows encodings and sockets. Knows nothing of stages.

Messages are sent by the thread that has them, under a lock: handing them to another thread costs a
stage's loop two changes of the interpreter's owner for each.
"""

from __future__ import annotations

import threading
from pathlib import Path

import zmq

from omni_core.addresses import address
from omni_core.codec import Codec
from omni_core.messages import ToCoordinator, ToStage


class Egress:
    """Sends from any thread, never waits; messages of one thread to one peer keep their order."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], run_dir: Path, codec: Codec
    ) -> None:
        self._context = context
        self._run_dir = run_dir
        self._codec = codec
        self._lock = threading.Lock()
        self._peers: dict[str, zmq.Socket[bytes]] = {}
        self._closed = False

    def post(self, peer: str, message: ToCoordinator | ToStage) -> None:
        """Encode and send; TypeError or OverflowError for what cannot be encoded. Does nothing once
        closed: a thread that outlives the loop has nobody to talk to."""
        frames = self._codec.encode(message)
        with self._lock:
            if not self._closed:
                self._socket(peer).send_multipart(frames, copy=False)

    def close(self) -> None:
        """Send nothing more; what was sent leaves within the context's linger."""
        with self._lock:
            self._closed = True
            for peer in self._peers.values():
                peer.close()

    def _socket(self, peer: str) -> zmq.Socket[bytes]:
        if peer not in self._peers:
            outbound = self._context.socket(zmq.PUSH)
            outbound.setsockopt(zmq.SNDHWM, 0)
            outbound.connect(address(self._run_dir, peer))
            self._peers[peer] = outbound
        return self._peers[peer]
