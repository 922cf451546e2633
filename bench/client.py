"""One streamed chat completion over HTTP/1.1, timed as a caller hears it.

Knows the wire: chunked transfer coding (RFC 9112, 7.1), server-sent events, OpenAI's chat chunks
and how other servers spell them. Costs little, since it shares the machine with what it measures.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

BYTES_PER_SAMPLE: Final = 2
WAV_HEADER_BYTES: Final = 44
WAV_BASE64: Final = "UklGR"
"""How base64 of a RIFF header begins; some servers put one in front of every piece of audio."""
LINE_LIMIT_BYTES: Final = 2**20


class _Audio(msgspec.Struct):
    data: str | None = None
    transcript: str | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    audio: _Audio | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)


class _Usage(msgspec.Struct):
    completion_tokens: int = 0
    completion_tokens_details: dict[str, Any] | None = None

    @property
    def text_tokens(self) -> int:
        """Completion tokens that are text; servers that count no codec frames give all."""
        details = self.completion_tokens_details or {}
        return self.completion_tokens - (details.get("audio_tokens") or 0)


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


@dataclass(slots=True)
class Heard:
    """What one reply brought, in seconds since its request began."""

    first_text_s: float | None = None
    last_text_s: float | None = None
    first_audio_s: float | None = None
    last_audio_s: float | None = None
    end_s: float = 0.0
    text_tokens: int = 0
    samples: int = 0
    first_samples: int = 0
    """Samples of the first piece of audio."""
    pieces: int = field(default=0)
    """Pieces the audio came in."""


async def ask(url: str, body: dict[str, Any]) -> Heard:
    """POST `body` to the chat route of the server at `url`; RuntimeError with what it said if the
    reply is no stream or is cut by an error."""
    heard, began = Heard(), time.perf_counter()
    async for event in _events(url, msgspec.json.encode(body)):
        chunk = msgspec.json.decode(event, type=_Chunk)
        if chunk.error is not None:
            raise RuntimeError(f"{url} ended a stream with {chunk.error}")
        _hear(heard, chunk, time.perf_counter() - began)
    heard.end_s = time.perf_counter() - began
    return heard


def _hear(heard: Heard, chunk: _Chunk, now_s: float) -> None:
    if chunk.usage is not None:
        heard.text_tokens = chunk.usage.text_tokens
    for choice in chunk.choices:
        audio = choice.delta.audio or _Audio()
        if choice.delta.content or audio.transcript:
            heard.last_text_s = now_s
            if heard.first_text_s is None:
                heard.first_text_s = now_s
        if audio.data:
            samples = _samples(audio.data)
            heard.samples += samples
            heard.pieces += 1
            heard.last_audio_s = now_s
            if heard.first_audio_s is None:
                heard.first_audio_s, heard.first_samples = now_s, samples


def _samples(data: str) -> int:
    """Samples in base64 of 16-bit PCM, behind a header or not; read from its length alone."""
    size = len(data) * 3 // 4 - data.count("=", -2)
    if data.startswith(WAV_BASE64):
        size -= WAV_HEADER_BYTES
    return size // BYTES_PER_SAMPLE


async def _events(url: str, body: bytes) -> AsyncIterator[bytes]:
    """The data of each server-sent event but the closing one."""
    rest = b""
    async for piece in pieces(url, "/v1/chat/completions", body):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data: ").strip()
            if line.startswith(b"data: ") and data != b"[DONE]":
                yield data


async def pieces(url: str, path: str, body: bytes) -> AsyncIterator[bytes]:
    """The pieces of a streamed reply, as they come; RuntimeError with what the server said if it is
    no such reply."""
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(
        where.hostname, where.port or 80, limit=LINE_LIMIT_BYTES
    )
    try:
        head = (
            f"POST {where.path.rstrip('/')}{path} HTTP/1.1\r\n"
            f"Host: {where.netloc}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        status = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")[0]
        if b" 200 " not in status:
            said = await reader.read(LINE_LIMIT_BYTES)
            raise RuntimeError(f"{url} answered {status.decode()}: {said.decode()[:500]}")
        async for piece in _chunked(reader):
            yield piece
    finally:
        writer.close()


async def _chunked(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The pieces of a body in chunked transfer coding."""
    while size := int((await reader.readline()).partition(b";")[0], 16):
        yield (await reader.readexactly(size + 2))[:-2]
