"""JSON answers that enclose files, whose base64 is made and sent piece by piece.

One call that makes the base64 of minutes of audio, copies it or looks through it for what JSON
escapes keeps the interpreter, and with it every other request, whatever its thread. Knows ASGI and
base64. Knows nothing of what the files hold.
"""

from __future__ import annotations

import asyncio
import base64
import uuid
from typing import Any, Final

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

_PIECE_BYTES: Final = 3 * 2**16
"""Whole groups of base64; 256 KiB of them, in a third of a millisecond."""


class Enclosed:
    """A file, where the answer has its base64. No dataclass: the encoder would write one out."""

    __slots__ = ("data", "mark")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.mark = uuid.uuid4().hex
        """Stands for it until it is sent; nobody can have written that elsewhere in the answer."""


class EnclosingResponse(Response):
    """A body msgspec can encode, but for `Enclosed` in it."""

    media_type = "application/json"

    def __init__(self, content: Any, headers: dict[str, str]) -> None:
        self._files: list[Enclosed] = []
        self._text = msgspec.json.encode(content, enc_hook=self._enclose)
        length = len(self._text)
        for file in self._files:
            length += base64_length(len(file.data)) - len(file.mark)
        super().__init__(headers={**headers, "content-length": str(length)})

    def _enclose(self, value: Any) -> str:
        if not isinstance(value, Enclosed):
            raise TypeError(f"{type(value).__name__} cannot be written as JSON")
        self._files.append(value)
        return value.mark

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""

        async def write(data: bytes, *, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        rest = self._text
        for file in self._files:  # in the order in which the encoder came by them
            before, _, rest = rest.partition(file.mark.encode())
            await write(before)
            data = memoryview(file.data)
            for begin in range(0, len(data), _PIECE_BYTES):
                piece = data[begin : begin + _PIECE_BYTES]
                await write(await asyncio.to_thread(base64.b64encode, piece))
        await write(rest, more=False)


def base64_length(n_bytes: int) -> int:
    """Characters of the base64 of so many bytes."""
    return (n_bytes + 2) // 3 * 4
