"""What becomes of one connection: whether the other side let us in, and when it broke.

Knows ZMQ's socket events. Knows nothing of who is at the other end.
"""

from __future__ import annotations

import struct
from enum import Enum, auto
from typing import Final

import zmq

_REFUSED: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_WATCHED: Final = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | _REFUSED
_EVENT: Final = struct.Struct("<HI")


class LineState(Enum):
    """What has last been seen of a line."""

    CALLING = auto()
    UP = auto()
    REFUSED = auto()
    """The other side does not know our secret, or does not speak our protocol."""
    BROKEN = auto()


class LineWatch:
    """Follows one line by its monitor socket; for one thread. To be closed before the line is."""

    def __init__(self, outbound: zmq.Socket[bytes]) -> None:
        """`outbound` is not connected yet, or some of what becomes of it is missed."""
        self._outbound = outbound
        self._events = outbound.get_monitor_socket(_WATCHED)
        self._state = LineState.CALLING
        descriptor = self._events.getsockopt(zmq.FD)
        assert isinstance(descriptor, int)
        self.descriptor = descriptor
        """Becomes readable when something has happened. It tells of changes only: call `look`
        before waiting for it."""

    def look(self) -> LineState:
        """The state now. A line that has broken stays so, though ZMQ calls again."""
        while True:
            try:
                event, *_ = self._events.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return self._state
            self._follow(_EVENT.unpack(event)[0])

    def close(self) -> None:
        """Stop watching. The events must end first: ZMQ's thread waits for ever to deliver one to a
        socket that is closed, and so does who closes the line then."""
        self._outbound.disable_monitor()
        self._events.close(0)

    def _follow(self, event: int) -> None:
        match self._state:
            case LineState.CALLING if event & _REFUSED:
                self._state = LineState.REFUSED
            case LineState.CALLING if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._state = LineState.UP
            case LineState.UP if event == zmq.EVENT_DISCONNECTED:
                self._state = LineState.BROKEN
