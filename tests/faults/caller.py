"""A client that notes everything: one chat completion over HTTP/1.1, read as far as it is meant to.

It can leave in the middle, or stop reading and stay. Knows the wire: content length and chunked
transfer coding (RFC 9112), server-sent events, OpenAI's chat objects.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

LINE_LIMIT_BYTES: Final = 2**22
_DEAF_BUFFER_BYTES: Final = 4096
"""Receive buffer of a client that never reads: what a server writes stays the server's."""
_DONE: Final = "[DONE]"


@dataclass(slots=True, kw_only=True)
class Heard:
    """What one request brought. Times are CLOCK_MONOTONIC seconds."""

    sent_s: float = 0.0
    ended_s: float = 0.0
    status: int = 0
    """0: there was no answer."""
    headers: dict[str, str] = field(default_factory=dict)
    text: str = ""
    sound: bytes = b""
    finish_reason: str | None = None
    error: dict[str, Any] | None = None
    whole: bool = False
    """The transfer ended as HTTP says one must."""
    done: bool = False
    """A stream said so itself, or a body was there to its end."""
    broken: str = ""
    """What the connection died of, if it did."""
    events: int = 0
    left: bool = False
    """The client went away before the end, as it was meant to."""
    hung: bool = False
    """The client, though patient, has given up."""

    @property
    def seconds(self) -> float:
        """From the first byte out to the end."""
        return self.ended_s - self.sent_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Manners:
    """How a client behaves. The default reads all there is."""

    leave_after_events: int | None = None
    leave_after_s: float | None = None
    leave_when: Callable[[Heard], bool] = lambda heard: False
    """Asked after each event."""
    leave_when_sent: bool = False
    """Leaves before it can hear anything."""
    deaf: bool = False
    """Reads nothing; leaves after `leave_after_s`."""
    patience_s: float = 120.0
    """Longer than any request may take, whatever happens to the server."""


PATIENT: Final = Manners()


async def call(
    url: str,
    body: dict[str, Any],
    manners: Manners = PATIENT,
    *,
    request_id: str = "",
    heard: Heard | None = None,
) -> Heard:
    """POST `body` to the chat route at `url`. Never raises for what the server does.

    `heard` is filled as the reply comes, for who looks before its end.
    """
    heard = heard or Heard()
    heard.sent_s = time.monotonic()
    try:
        async with asyncio.timeout(manners.leave_after_s or manners.patience_s):
            await _exchange(url, body, manners, request_id, heard)
    except TimeoutError:
        heard.left = manners.leave_after_s is not None
        heard.hung = not heard.left
    except (OSError, EOFError, asyncio.LimitOverrunError) as exc:
        heard.broken = f"{type(exc).__name__}: {exc}"
    heard.ended_s = time.monotonic()
    return heard


async def cancel(url: str, request_id: str) -> None:
    """Ask for the end of a request of this client; whether it was still there is not told."""
    where = urlsplit(url)
    with suppress(OSError, EOFError):
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        try:
            path = f"/v1/requests/{request_id}/cancel"
            writer.write(_head("POST", path, {"Host": where.netloc, "Content-Length": "0"}))
            await reader.read()
        finally:
            writer.close()


async def _exchange(
    url: str, body: dict[str, Any], manners: Manners, request_id: str, heard: Heard
) -> None:
    where = urlsplit(url)
    line = socket.socket()
    line.setblocking(False)
    if manners.deaf:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _DEAF_BUFFER_BYTES)
    try:
        await asyncio.get_running_loop().sock_connect(line, (where.hostname, where.port))
        await asyncio.get_running_loop().sock_sendall(line, _post(where.netloc, body, request_id))
        if manners.leave_when_sent:
            heard.left = True
            line.close()
            return
        if manners.deaf:
            await asyncio.Event().wait()
        reader, writer = await asyncio.open_connection(sock=line, limit=LINE_LIMIT_BYTES)
    except BaseException:
        line.close()
        raise
    try:
        await _read(reader, manners, heard)
    finally:
        writer.close()


def _post(host: str, body: dict[str, Any], request_id: str) -> bytes:
    content = json.dumps(body).encode()
    fields = {"Host": host, "Content-Length": str(len(content))}
    fields["Content-Type"] = "application/json"
    if request_id:
        fields["X-Request-Id"] = request_id
    return _head("POST", "/v1/chat/completions", fields) + content


def _head(method: str, path: str, fields: dict[str, str]) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    return "\r\n".join([*lines, "", ""]).encode()


async def _read(reader: asyncio.StreamReader, manners: Manners, heard: Heard) -> None:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    heard.status = int(first.split()[1])
    for name, _, value in (line.partition(":") for line in lines if line):
        heard.headers[name.lower()] = value.strip()
    if heard.headers.get("content-type", "").startswith("text/event-stream"):
        await _read_events(reader, manners, heard)
    else:
        body = b"".join([piece async for piece in _pieces(reader, heard)])
        heard.done = heard.whole
        _hear_reply(json.loads(body), heard)


async def _read_events(reader: asyncio.StreamReader, manners: Manners, heard: Heard) -> None:
    rest = b""
    async for piece in _pieces(reader, heard):
        *events, rest = (rest + piece).split(b"\n\n")
        for event in events:
            _hear_event(event.decode().removeprefix("data: "), heard)
            if heard.events == manners.leave_after_events or manners.leave_when(heard):
                heard.left = True
                return


async def _pieces(reader: asyncio.StreamReader, heard: Heard) -> AsyncIterator[bytes]:
    """The body, as it comes; `heard.whole` once its end has been seen."""
    if heard.headers.get("transfer-encoding") == "chunked":
        while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
            yield (await reader.readexactly(size + 2))[:-2]
    else:
        yield await reader.readexactly(int(heard.headers["content-length"]))
    heard.whole = True


def _hear_event(data: str, heard: Heard) -> None:
    heard.events += 1
    if data == _DONE:
        heard.done = True
        return
    event = json.loads(data)
    heard.error = event.get("error", heard.error)
    for choice in event.get("choices", ()):
        delta, audio = choice["delta"], choice["delta"].get("audio") or {}
        heard.text += (delta.get("content") or "") + (audio.get("transcript") or "")
        heard.sound += base64.b64decode(audio.get("data") or "")
        heard.finish_reason = choice["finish_reason"] or heard.finish_reason


def _hear_reply(body: dict[str, Any], heard: Heard) -> None:
    heard.error = body.get("error")
    for choice in body.get("choices", ()):
        message, audio = choice["message"], choice["message"].get("audio") or {}
        heard.text = message.get("content") or audio.get("transcript") or ""
        heard.sound = base64.b64decode(audio.get("data") or "")
        heard.finish_reason = choice["finish_reason"]
