"""The way into a process: one socket that all others send to.

Knows encodings and sockets. Knows nothing of what the messages say.

The socket is read when its descriptor says so and then until it is empty: waiting for each message
by itself costs several times what the message does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import zmq

from omni_core.addresses import address
from omni_core.codec import Codec

_BURST_BATCHES: Final = 16
"""Read in one go, so that a flood of messages does not hold up everything else."""


class Ingress:
    """Reads what has arrived; for one thread."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        run_dir: Path,
        process: str,
        codec: Codec,
        kind: Any,
    ) -> None:
        """`kind` is the union of the messages that are taken."""
        self._codec = codec
        self._kind = kind
        self._inbound = context.socket(zmq.PULL)
        self._inbound.bind(address(run_dir, process))
        descriptor = self._inbound.getsockopt(zmq.FD)
        assert isinstance(descriptor, int)
        self.descriptor = descriptor
        """Becomes readable when something arrives at an empty socket. It tells of changes only:
        wait for it after `read` has returned nothing."""

    def read(self) -> list[Any]:
        """What has arrived, in order, each a message or `Refused`; empty if nothing has."""
        messages: list[Any] = []
        for _ in range(_BURST_BATCHES):
            try:
                frames = self._inbound.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            messages += self._codec.decode_batch([frame.buffer for frame in frames], self._kind)
        return messages
