"""The ways out of a process: one socket for each process it sends to.

Knows encodings and sockets. Knows nothing of stages.

Messages are sent by the thread that has them, under a lock: handing them to another thread costs a
stage's loop two changes of the interpreter's owner for each. What one turn of a loop has for the
same process leaves as one ZMQ message, which costs both sides little more than one of them would.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import zmq

from omni_core.addresses import AddressBook
from omni_core.codec import Codec, Frame, batch, request_of
from omni_core.curve import MAX_FRAME_BYTES
from omni_core.errors import PayloadTooLargeError
from omni_core.messages import DataReady, Done, ToCoordinator, ToStage
from omni_core.stage.line import LineWatch

_BATCH_WEIGHT: Final = 64
_BATCH_BYTES: Final = 128 * 1024
"""A batch that is as large as this does not wait for the end of a turn."""
_WEIGHTS: Final[Mapping[type, int]] = {DataReady: 4, Done: 4}
"""Of messages that give somebody else work to begin with; others weigh 1."""
_MAX_FAR_BYTES: Final = MAX_FRAME_BYTES - (1 << 20)
"""The rest of the batch and the encryption need room in the same frame."""


class Egress:
    """Sends from any thread; messages of one thread to one peer keep their order. It waits for room
    in a relay, and for nothing else.

    A thread that has once called `flush` works in turns: what it posts from then on leaves with its
    next `flush`, all together, and not with that of another thread. What any other thread posts
    leaves at once.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        book: AddressBook,
        codec: Codec,
        on_refused: Callable[[str, list[str]], None],
    ) -> None:
        """`codec` encodes for the processes of this host; others see none of our memory.
        `on_refused` is told a peer, and the requests of messages that what answers at its address
        does not take; what was on its way when that answered is not told."""
        self._context = context
        self._book = book
        self._codec = codec
        self._far_codec = Codec()
        self._on_refused = on_refused
        self._lock = threading.Lock()
        self._lines: dict[str, _Line] = {}
        self._loaded: dict[int, dict[_Line, None]] = {}
        """By thread that works in turns: lines that may hold messages of it back, in the order in
        which these were posted."""
        self._gone: set[str] = set()
        self._closed = False

    def post(self, peer: str, message: ToCoordinator | ToStage) -> None:
        """Encode and send; TypeError or OverflowError for what cannot be encoded, and what
        `Relay.place` raises, and PayloadTooLargeError for what another host would not take. Does
        nothing once closed, or for a peer that is gone: a thread that outlives them has nobody to
        talk to."""
        if peer in self._gone:
            return
        frames = self._encode(peer, message)
        with self._lock:
            if peer in self._gone:  # since a moment ago
                self._codec.forget(peer)
                return
            if self._closed:
                return
            line = self._lines.get(peer) or self._connect(peer)
            full = line.load(frames, _WEIGHTS.get(type(message), 1))
            loaded = self._loaded.get(threading.get_ident())
            if loaded is not None and not full:
                loaded[line] = None
                return
            refused = self._send(line)
        if refused:
            self._on_refused(peer, _requests_of(refused))

    def meet(self, peer: str) -> None:
        """The book has the address of this peer now: send what has waited for that."""
        with self._lock:
            if (line := self._lines.get(peer)) and not self._closed:
                line.connect(self._book, peer)

    def watch(self, peer: str) -> LineWatch:
        """Follow the line to a peer, which is connected now; the caller closes what it gets."""
        with self._lock:
            return (self._lines.get(peer) or self._open(peer)).watch(self._book, peer)

    def stats(self) -> dict[str, float]:
        """Bytes of tensors that went to other hosts."""
        return {"bytes_tcp": self._far_codec.bytes_inline}

    def flush(self) -> None:
        """Send what this thread holds back; from now on, it works in turns."""
        lines = self._loaded.get(threading.get_ident())
        if lines is None:
            with self._lock:
                self._loaded[threading.get_ident()] = {}
        elif lines:
            with self._lock:
                refused = self._send_loaded(lines)
            self._tell(refused)
            if refused:  # what is said of it would wait for the next turn
                self.flush()

    def send_held_back(self) -> None:
        """Send what any thread holds back."""
        with self._lock:
            refused = self._send_all()
        self._tell(refused)

    def forget(self, peer: str) -> None:
        """A peer is gone: drop what it has not taken, and take back what it was lent. Whoever comes
        in its place has another name."""
        with self._lock:
            self._gone.add(peer)
            if line := self._lines.pop(peer, None):
                line.close(linger_ms=0)
        self._codec.forget(peer)
        self._book.forget(peer)

    def close(self) -> None:
        """Send nothing more; what was posted leaves within the context's linger."""
        with self._lock:
            self._send_all()
            self._closed = True
            for line in self._lines.values():
                line.close()

    def _send_all(self) -> dict[str, list[Frame]]:
        """As `_send_loaded`, for every thread."""
        refused: dict[str, list[Frame]] = {}
        for lines in self._loaded.values():
            refused |= self._send_loaded(lines)
        return refused

    def _send_loaded(self, lines: dict[_Line, None]) -> dict[str, list[Frame]]:
        """Send what a thread holds back; {peer: messages that were refused}."""
        refused = {line.peer: messages for line in lines if (messages := self._send(line))}
        lines.clear()
        return refused

    def _tell(self, refused: dict[str, list[Frame]]) -> None:
        for peer, messages in refused.items():
            self._on_refused(peer, _requests_of(messages))

    def _send(self, line: _Line) -> list[Frame]:
        """What was refused. A line that did so is replaced by one that takes nothing until the peer
        has let it in, unless somebody watches it, who will see."""
        refused = line.send()
        if refused and line.eager and not line.watched:
            line.close(linger_ms=0)
            self._open(line.peer, eager=False).connect(self._book, line.peer)
        return refused

    def _encode(self, peer: str, message: ToCoordinator | ToStage) -> list[Frame]:
        if self._book.is_near(peer):
            return self._codec.encode(message, peer)
        frames = self._far_codec.encode(message, peer)
        _check_sizes(frames)
        return frames

    def _connect(self, peer: str) -> _Line:
        line = self._open(peer)
        line.connect(self._book, peer)
        return line

    def _open(self, peer: str, *, eager: bool = True) -> _Line:
        """An eager line takes messages before the peer is there."""
        outbound = self._context.socket(zmq.PUSH)
        outbound.setsockopt(zmq.SNDHWM, 0)
        outbound.setsockopt(zmq.IMMEDIATE, not eager)
        line = self._lines[peer] = _Line(peer, outbound, eager)
        return line


class _Line:
    """One socket, and the messages that leave together through it."""

    def __init__(self, peer: str, outbound: zmq.Socket[bytes], eager: bool) -> None:
        self.peer = peer
        self.eager = eager
        self.watched = False
        self._outbound = outbound
        self._messages: list[Frame] = []
        self._weight = 0
        self._bytes = 0
        self._frames: list[Frame] = []
        self._connected = False
        self._waiting: list[list[Frame]] = []
        """Sent before anybody has said where the peer is: it is about to start."""

    def connect(self, book: AddressBook, peer: str) -> None:
        """Connect, if that can be done and was not, and send what has waited."""
        if not self._connected and book.connect(self._outbound, peer):
            self._connected = True
            for frames in self._waiting:
                self._outbound.send_multipart(frames, copy=False)
            self._waiting.clear()

    def watch(self, book: AddressBook, peer: str) -> LineWatch:
        """See `Egress.watch`."""
        self.watched = True
        watch = LineWatch(self._outbound)
        self.connect(book, peer)
        return watch

    def load(self, frames: list[Frame], weight: int) -> bool:
        """Add a message and its frames; whether the batch must leave now."""
        message, *self._frames = frames
        self._messages.append(message)
        self._weight += weight
        self._bytes += len(message)
        full = self._weight >= _BATCH_WEIGHT or self._bytes >= _BATCH_BYTES
        return full or bool(self._frames)  # only the last message of a batch may have frames

    def send(self) -> list[Frame]:
        """Send what is loaded, if anything; returns the messages that were refused."""
        messages, frames = self._messages, self._frames
        if not messages:
            return []
        self._messages, self._frames, self._weight, self._bytes = [], [], 0, 0
        header = batch(messages)
        if not self._connected:
            self._waiting.append([header, *frames])
            return []
        try:
            if frames:
                self._outbound.send_multipart([header, *frames], zmq.DONTWAIT, copy=False)
            else:
                self._outbound.send(header, zmq.DONTWAIT)
        except zmq.Again:  # there is always room, but no way on once the other end has broken rules
            return messages
        return []

    def close(self, linger_ms: int | None = None) -> None:
        """Close the socket; None waits as long as its context does for what is on its way. What is
        loaded is lost."""
        self._messages = []
        self._outbound.close(linger_ms)


def _requests_of(messages: Sequence[Frame]) -> list[str]:
    """Each once, in order."""
    found = dict.fromkeys(request_of(message) for message in messages)
    return [request_id for request_id in found if request_id is not None]


def _check_sizes(frames: Sequence[Frame]) -> None:
    largest = max(memoryview(frame).nbytes for frame in frames)
    if largest > _MAX_FAR_BYTES:
        raise PayloadTooLargeError(
            f"{largest} bytes in one piece are too many for another host, which takes "
            f"{_MAX_FAR_BYTES}"
        )
