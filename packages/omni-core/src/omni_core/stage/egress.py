"""The ways out of a process: one socket for each process it sends to.

Knows encodings and sockets. Knows nothing of stages.

Messages are sent by the thread that has them, under a lock: handing them to another thread costs a
stage's loop two changes of the interpreter's owner for each. What one turn of a loop has for the
same process leaves as one ZMQ message, which costs both sides little more than one of them would.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

import zmq

from omni_core.addresses import address
from omni_core.codec import Codec, Frame, batch
from omni_core.messages import ToCoordinator, ToStage

_BATCH_MESSAGES: Final = 64
_BATCH_BYTES: Final = 128 * 1024
"""A batch that is as large as this does not wait for the end of a turn."""


class Egress:
    """Sends from any thread, never waits; messages of one thread to one peer keep their order.

    A thread that has once called `flush` works in turns: what it posts from then on leaves with its
    next `flush`. What any other thread posts leaves at once.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], run_dir: Path, codec: Codec
    ) -> None:
        self._context = context
        self._run_dir = run_dir
        self._codec = codec
        self._lock = threading.Lock()
        self._lines: dict[str, _Line] = {}
        self._loaded: dict[_Line, None] = {}
        """Those that hold messages back, in the order in which these were posted."""
        self._in_turns: set[int] = set()
        self._gone: set[str] = set()
        self._closed = False

    def post(self, peer: str, message: ToCoordinator | ToStage) -> None:
        """Encode and send; TypeError or OverflowError for what cannot be encoded, and what
        `Relay.place` raises. Does nothing once closed, or for a peer that is gone: a thread that
        outlives them has nobody to talk to."""
        if peer in self._gone:
            return
        frames = self._codec.encode(message, peer)
        with self._lock:
            if peer in self._gone:  # since a moment ago
                self._codec.forget(peer)
                return
            if self._closed:
                return
            line = self._lines.get(peer) or self._connect(peer)
            if line.load(frames) or threading.get_ident() not in self._in_turns:
                self._loaded.pop(line, None)
                line.send()
            else:
                self._loaded[line] = None

    def flush(self) -> None:
        """Send what is held back; from now on, this thread works in turns."""
        self._in_turns.add(threading.get_ident())
        self.send_held_back()

    def send_held_back(self) -> None:
        """As `flush`, for a thread that need not work in turns."""
        if self._loaded:
            with self._lock:
                self._send_all()

    def forget(self, peer: str) -> None:
        """A peer is gone: drop what it has not taken, and take back what it was lent. Whoever comes
        in its place has another name."""
        with self._lock:
            self._gone.add(peer)
            if line := self._lines.pop(peer, None):
                self._loaded.pop(line, None)
                line.close(linger_ms=0)
        self._codec.forget(peer)

    def close(self) -> None:
        """Send nothing more; what was posted leaves within the context's linger."""
        with self._lock:
            self._send_all()
            self._closed = True
            for line in self._lines.values():
                line.close()

    def _send_all(self) -> None:
        for line in self._loaded:
            line.send()
        self._loaded.clear()

    def _connect(self, peer: str) -> _Line:
        outbound = self._context.socket(zmq.PUSH)
        outbound.setsockopt(zmq.SNDHWM, 0)
        outbound.connect(address(self._run_dir, peer))
        line = self._lines[peer] = _Line(outbound)
        return line


class _Line:
    """One socket, and the messages that leave together through it."""

    def __init__(self, outbound: zmq.Socket[bytes]) -> None:
        self._outbound = outbound
        self._messages: list[Frame] = []
        self._bytes = 0
        self._frames: list[Frame] = []

    def load(self, frames: list[Frame]) -> bool:
        """Add a message and its frames; whether the batch must leave now."""
        message, *self._frames = frames
        self._messages.append(message)
        self._bytes += len(message)
        full = len(self._messages) >= _BATCH_MESSAGES or self._bytes >= _BATCH_BYTES
        return full or bool(self._frames)  # only the last message of a batch may have frames

    def send(self) -> None:
        """Send what is loaded, if anything."""
        if not self._messages:
            return
        header = batch(self._messages)
        if self._frames:
            self._outbound.send_multipart([header, *self._frames], copy=False)
        else:
            self._outbound.send(header)
        self._messages, self._frames, self._bytes = [], [], 0

    def close(self, linger_ms: int | None = None) -> None:
        """Close the socket; None waits as long as its context does for what is on its way."""
        self._outbound.close(linger_ms)
