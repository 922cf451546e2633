"""Bodies of requests: read as far as routing needs it, and sent on byte for byte.

A JSON body is read whole, since it is parsed. A form is sent on as it comes; where a field of it
decides where it goes, it is kept until that is known, in a file once it is long.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Final, Protocol

from aiohttp import web
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from omni_router.errors import BadRequestError, TooLargeError
from omni_router.needs import Needs, of_json, spelled

LONG_BYTES: Final = 256 * 1024
"""Longer bodies are parsed in a thread, and longer forms kept in a file."""
_CHUNK_BYTES: Final = 256 * 1024
_LONGEST_NAME: Final = 1024
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Body(Protocol):
    """What a request brings."""

    needs: Needs
    """Of the whole request."""
    can_repeat: bool
    """It can be sent once more: nothing of it has been sent, or all of it is here."""

    def to_send(self) -> bytes | AsyncIterator[bytes] | None:
        """As aiohttp's client takes it."""

    def begun(self) -> None:
        """A worker has begun to answer: it is not sent again."""

    def close(self) -> None:
        """Nobody wants it any more."""


@dataclass(slots=True)
class Whole:
    """A body that is here."""

    data: bytes
    needs: Needs
    can_repeat: bool = True

    def to_send(self) -> bytes | None:
        """See `Body`."""
        return self.data or None

    def begun(self) -> None:
        """See `Body`. A stream may last, and a video is large."""
        self.data = b""

    def close(self) -> None:
        """See `Body`."""


@dataclass(slots=True)
class Flowing:
    """A body of which some is here, and the rest is to come."""

    content: AsyncIterator[bytes]
    needs: Needs
    kept: tempfile.SpooledTemporaryFile[bytes] | None = None
    can_repeat: bool = True
    error: TooLargeError | None = None
    """Why it broke off."""

    async def to_send(self) -> AsyncIterator[bytes]:
        """See `Body`."""
        self.can_repeat = False
        if self.kept is not None:
            await asyncio.to_thread(self.kept.seek, 0)
            while piece := await asyncio.to_thread(self.kept.read, _CHUNK_BYTES):
                yield piece
        try:
            async for piece in self.content:
                yield piece
        except TooLargeError as error:
            self.error = error
            raise

    def begun(self) -> None:
        """See `Body`. Some of it may still be under way."""

    def close(self) -> None:
        """See `Body`."""
        if self.kept is not None:
            self.kept.close()


async def read_body(
    request: web.BaseRequest, known: Needs, *, max_bytes: int, field: str | None
) -> Body:
    """The body of a request, with what it needs; TooLargeError over `max_bytes`.

    `field` of a form, `model` or `name`, decides where it goes; None if nothing of it does.
    """
    if not request.body_exists:
        return Whole(b"", known)
    content = _begin(request, max_bytes)
    kind, options = parse_options_header(request.headers.get("Content-Type", ""))
    if kind == b"multipart/form-data" and field is not None:
        return await _read_form(content, known, options.get(b"boundary", b""), field)
    if kind not in (b"application/json", b""):
        return Flowing(content, known)
    data = b"".join([piece async for piece in content])
    if len(data) > LONG_BYTES:
        return Whole(data, await asyncio.to_thread(of_json, known, data))
    return Whole(data, of_json(known, data))


async def read_whole(request: web.BaseRequest, max_bytes: int) -> Whole:
    """A short body that can be sent several times; TooLargeError over `max_bytes`."""
    if not request.body_exists:
        return Whole(b"", Needs())
    return Whole(b"".join([piece async for piece in _begin(request, max_bytes)]), Needs())


def _begin(request: web.BaseRequest, max_bytes: int) -> AsyncIterator[bytes]:
    """What comes; tells a client that waits for it to begin (RFC 9110, section 10.1.1)."""
    if request.content_length is not None and request.content_length > max_bytes:
        raise _too_large(max_bytes)
    if request.headers.get("Expect", "").lower() == "100-continue" and request.transport:
        request.transport.write(_CONTINUE)
    return _limited(request, max_bytes)


async def _limited(request: web.BaseRequest, max_bytes: int) -> AsyncIterator[bytes]:
    count = 0
    async for piece in request.content.iter_any():
        count += len(piece)
        if count > max_bytes:
            raise _too_large(max_bytes)
        yield piece


def _too_large(max_bytes: int) -> TooLargeError:
    return TooLargeError(
        f"The body is larger than {max_bytes} bytes, the router's limit (--max-body-mib)."
    )


async def _read_form(
    content: AsyncIterator[bytes], known: Needs, boundary: bytes, field: str
) -> Flowing:
    """Keep a form until its field is known, which may come after its file."""
    if not boundary:
        raise BadRequestError("The form has no boundary in its Content-Type.")
    finder = FieldFinder(boundary, field)
    kept: tempfile.SpooledTemporaryFile[bytes]
    kept = tempfile.SpooledTemporaryFile(max_size=LONG_BYTES)  # noqa: SIM115 - `Flowing` closes it
    try:
        async for piece in content:
            kept.write(piece)
            finder.feed(piece)
            if finder.value is not None:
                break
    except BaseException:
        kept.close()
        raise
    value = finder.value
    is_model = field == "model"
    needs = replace(known, model=value) if is_model else replace(known, voice=spelled(value))
    return Flowing(content, needs, kept)


class FieldFinder:
    """Looks for one field in a form as it comes."""

    def __init__(self, boundary: bytes, field: str) -> None:
        self._field = field.encode()
        self.value: str | None = None
        """Once it has been seen whole."""
        self._header = self._value = b""
        self._is_wanted = False
        self._found = b""
        self._parser: MultipartParser | None = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._more_header,
                "on_header_value": self._more_value,
                "on_header_end": self._end_header,
                "on_part_data": self._more_data,
                "on_part_end": self._end,
            },
        )

    def feed(self, piece: bytes) -> None:
        """More of the form. What is no form is the worker's to refuse."""
        if self._parser is None:
            return
        try:
            self._parser.write(piece)
        except FormParserError:
            self._parser = None

    def _begin(self) -> None:
        self._header = self._value = self._found = b""
        self._is_wanted = False

    def _more_header(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _more_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            _, options = parse_options_header(self._value)
            self._is_wanted = options.get(b"name") == self._field
        self._header = self._value = b""

    def _more_data(self, data: bytes, start: int, end: int) -> None:
        if self._is_wanted and len(self._found) <= _LONGEST_NAME:
            self._found += data[start:end]

    def _end(self) -> None:
        if self._is_wanted:
            self.value = self._found.decode("utf-8", "replace")
