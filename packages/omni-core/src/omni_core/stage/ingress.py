"""The way into a process: one socket that all others send to.

Knows encodings and sockets. Knows nothing of what the messages say.

The socket is read when its descriptor says so and then until it is empty: waiting for each message
by itself costs several times what the message does.
"""

from __future__ import annotations

from typing import Any, Final

import zmq

from omni_core.addresses import AddressBook
from omni_core.codec import Codec, Refused

_EVENTS: Final = int(zmq.EVENTS)
_READABLE: Final = int(zmq.POLLIN)
_BURST_BATCHES: Final = 16
"""Read in one go, so that a flood of messages does not hold up everything else."""


class Ingress:
    """Reads what has arrived; for one thread."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        book: AddressBook,
        process: str,
        codec: Codec,
        kind: Any,
        *,
        tcp: str | None = None,
    ) -> None:
        """`kind` is the union of the messages that are taken; `tcp` is where other hosts reach us,
        at any port if it does not say."""
        self._codec = codec
        self._kind = kind
        self._inbound = context.socket(zmq.PULL)
        self.address = book.listen(self._inbound, process, tcp)
        """Where other hosts reach us; empty without a network."""
        self.refused = 0
        """What has arrived and was no message."""
        descriptor = self._inbound.getsockopt(zmq.FD)
        assert isinstance(descriptor, int)
        self.descriptor = descriptor
        """Becomes readable when something arrives at an empty socket. It tells of changes only:
        wait for it while there is not `more`."""
        self.more = True
        """Whether `read` is to be called before anything else arrives."""

    def read(self) -> list[Any]:
        """What has arrived, in order, each a message or `Refused`; empty if nothing has."""
        messages: list[Any] = []
        for number in range(_BURST_BATCHES):
            # Asked for after the first, since to be told by an exception costs more; before it, the
            # descriptor has told.
            self.more = not number or bool(int(self._inbound.get(_EVENTS)) & _READABLE)
            if not self.more:
                break
            try:
                frames = [self._inbound.recv(zmq.DONTWAIT, copy=False)]
            except zmq.Again:
                self.more = False
                break
            while frames[-1].more:
                frames.append(self._inbound.recv(copy=False))
            arrived = self._codec.decode_batch([frame.buffer for frame in frames], self._kind)
            self.refused += sum([isinstance(message, Refused) for message in arrived])
            messages += arrived
        return messages
