"""`python bench/trivial_worker.py`: a worker that takes next to no time, for what is before it.

Answers what a router asks of workers, JSON requests with a small reply, and those with `"stream":
true` with `EVENTS` server-sent events, `BURST` of them in a write. Prints its port. Knows just as
much of HTTP/1.1 as its clients need: requests with a content length, one after the other.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Final

EVENTS: Final = 4000
BURST: Final = 1
MODEL: Final = "trivial"
_EVENT: Final = b'data: {"choices":[{"index":0,"delta":{"content":"word "}}]}\n\n'
_REPLY: Final = {
    "id": "1",
    "object": "chat.completion",
    "choices": [{"message": {"content": "hi"}}],
}
_MODELS: Final = {
    "object": "list",
    "data": [
        {"id": MODEL, "created": 1, "input_modalities": ["text"], "output_modalities": ["text"]}
    ],
}
_STREAM: Final = b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_OK: Final = b"HTTP/1.1 200 OK\r\n"


def _json(content: object) -> bytes:
    body = json.dumps(content).encode()
    head = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    return _OK + head + body


ANSWERS: Final = {b"/ready": _json({}), b"/v1/models": _json(_MODELS), b"/metrics": _json({})}
REPLY: Final = _json(_REPLY)


class Worker(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._received = b""
        self._streams: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = self._received[:end]
            length = head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0]
            whole = end + 4 + int(length or 0)
            if len(self._received) < whole:
                return
            body, self._received = self._received[end + 4 : whole], self._received[whole:]
            self._answer(head.split(b" ", 2)[1], body)

    def _answer(self, path: bytes, body: bytes) -> None:
        if b'"stream": true' in body:
            task = asyncio.get_running_loop().create_task(self._stream())
            self._streams.add(task)
            task.add_done_callback(self._streams.discard)
        else:
            self._transport.write(ANSWERS.get(path, REPLY))

    async def _stream(self) -> None:
        self._transport.write(_OK + _STREAM)
        chunk = b"%x\r\n%s\r\n" % (len(_EVENT), _EVENT)
        for _ in range(EVENTS // BURST):
            self._transport.write(chunk * BURST)
            await asyncio.sleep(0)
        self._transport.write(b"0\r\n\r\n")


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(Worker, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve())
