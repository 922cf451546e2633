"""The raw limit: pyzmq and msgspec between as many processes as a pipeline has, and nothing else.

`python ring.py IN OUT` is one process of the ring: it decodes each message and sends it on. `Ring`
is the first of them and measures.
"""

from __future__ import annotations

import select
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Final

import msgspec
import zmq

_PATIENCE_S: Final = 30


class Token(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """About as much as a control message says."""

    request_id: str
    source: str
    target: str


class Node:
    """One socket in and one out; the one in is read when its descriptor says so, until empty."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], inbound: str, outbound: str
    ) -> None:
        self._in = context.socket(zmq.PULL)
        self._in.bind(inbound)
        self._out = context.socket(zmq.PUSH)
        self._out.setsockopt(zmq.SNDHWM, 0)
        self._out.connect(outbound)
        self._news = select.poll()
        self._news.register(self._in.getsockopt(zmq.FD), select.POLLIN)
        self._decoder = msgspec.msgpack.Decoder(Token)
        self._encoder = msgspec.msgpack.Encoder()

    def receive(self) -> list[Token]:
        """All that has arrived, at least one."""
        tokens: list[Token] = []
        while True:
            try:
                tokens.append(self._decoder.decode(self._in.recv(zmq.NOBLOCK)))
            except zmq.Again:
                if tokens:
                    return tokens
                if not self._news.poll(_PATIENCE_S * 1000):
                    raise TimeoutError("the ring is broken") from None

    def send(self, token: Token) -> None:
        """To the next process."""
        self._out.send(self._encoder.encode(token))


class Ring:
    """The first process of a ring of four, in this process."""

    def __init__(self, directory: Path, *, processes: int = 4) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        names = [f"ipc://{directory / str(number)}" for number in range(processes)]
        self._node = Node(self._context, names[0], names[1])
        followers = zip(names[1:], [*names[2:], names[0]], strict=True)
        self._children = [subprocess.Popen([sys.executable, __file__, *ends]) for ends in followers]

    def __enter__(self) -> Ring:
        self.round_trip_s()  # all are there
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for child in self._children:
            child.kill()
            child.wait()
        self._context.destroy(linger=0)

    def round_trip_s(self) -> float:
        """One message, once round."""
        began = time.perf_counter()
        self._node.send(_TOKEN)
        self._node.receive()
        return time.perf_counter() - began

    def rounds_per_s(self, *, in_flight: int, rounds: int) -> float:
        """With so many messages under way at any time."""
        began = time.perf_counter()
        for _ in range(in_flight):
            self._node.send(_TOKEN)
        sent, arrived = in_flight, 0
        while arrived < rounds:
            for token in self._node.receive():
                arrived += 1
                if sent < rounds:
                    sent += 1
                    self._node.send(token)
        return rounds / (time.perf_counter() - began)


_TOKEN: Final = Token(request_id="0123456789abcdef#1", source="first", target="second")


def main(inbound: str, outbound: str) -> None:
    """One of the other processes, until it is killed."""
    node = Node(zmq.Context(), inbound, outbound)
    while True:
        for token in node.receive():
            node.send(token)


if __name__ == "__main__":
    main(*sys.argv[1:])
