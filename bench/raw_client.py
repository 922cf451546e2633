"""`python bench/raw_client.py PORT`: requests to a server on this machine, one after the other.

A process of its own, so that it takes nothing of what it measures, and sockets that block, so that
it takes little of the machine. Each line on stdin is a `Shot` as JSON; the line in return is the
seconds that each of its requests took. Knows just enough of HTTP/1.1 to see where a reply ends.
"""

from __future__ import annotations

import base64
import json
import socket
import sys
import time
from dataclasses import asdict, dataclass
from typing import Final

_RECEIVE_BYTES: Final = 2**16
_LAST_CHUNK: Final = b"0\r\n\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """The same request so many times."""

    head: str
    """All lines before the body, each with its line end."""
    body: str
    """In base64."""
    times: int

    def line(self) -> bytes:
        """As the client reads it."""
        return json.dumps(asdict(self)).encode() + b"\n"


class Connection:
    """One connection that is kept open."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def seconds(self, request: bytes) -> float:
        """From the first byte out to the last byte in."""
        began = time.perf_counter()
        self._socket.sendall(request)
        head, _, rest = self._until_head()
        if b" 200 " not in head.partition(b"\r\n")[0]:
            raise RuntimeError(f"the server said {head.decode()}\n{rest.decode()}")
        if b"transfer-encoding: chunked" in head.lower():
            while not rest.endswith(_LAST_CHUNK):
                rest = rest[-len(_LAST_CHUNK) :] + self._receive()
        else:
            left = _length(head) - len(rest)
            while left > 0:
                left -= len(self._receive())
        return time.perf_counter() - began

    def _until_head(self) -> tuple[bytes, bytes, bytes]:
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._receive()
        return data.partition(b"\r\n\r\n")

    def _receive(self) -> bytes:
        if not (data := self._socket.recv(_RECEIVE_BYTES)):
            raise RuntimeError("the server closed the connection")
        return data


def _length(head: bytes) -> int:
    [line] = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return int(line.partition(b":")[2])


def main(port: int) -> None:
    """Until stdin ends."""
    connection = Connection(port)
    for line in sys.stdin:
        shot = Shot(**json.loads(line))
        body = base64.b64decode(shot.body)
        request = f"{shot.head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        print(json.dumps([connection.seconds(request) for _ in range(shot.times)]), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
