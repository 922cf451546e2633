"""Reading a multipart/form-data body part by part, under limits.

Knows HTTP and RFC 7578. Knows nothing of what the fields mean, and believes no filename or media
type.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from omni_core.errors import PayloadTooLargeError, RequestError
from omni_server.body import body_chunks

MAX_PARTS = 64
MAX_FIELD_BYTES = 64 * 1024
MAX_HEADER_BYTES = 8 * 1024
"""Of all headers of one part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What a form says."""

    fields: list[tuple[str, str]]
    """(name, value) in the order they came."""
    files: dict[str, bytearray]
    """Content of the parts that were to be files, by name."""


async def read_form(
    request: Request, file_names: Collection[str], *, max_body_bytes: int, max_file_bytes: int
) -> Form:
    """The whole form; parts called one of `file_names` are files, all others text in UTF-8.

    Raises RequestError for a body that is no such form and PayloadTooLargeError for one over a
    limit, each as soon as it is known; and ClientGoneError when the client leaves before it has
    sent all.
    """
    kind, options = parse_options_header(request.headers.get("content-type"))
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise RequestError(
            "Send this request as multipart/form-data, with the boundary in its Content-Type.",
            code="invalid_content_type",
        )
    reader = _FormReader(file_names, max_file_bytes)
    try:
        parser = MultipartParser(
            boundary,
            {
                "on_part_begin": reader.on_part_begin,
                "on_header_field": reader.on_header_field,
                "on_header_value": reader.on_header_value,
                "on_header_end": reader.on_header_end,
                "on_headers_finished": reader.on_headers_finished,
                "on_part_data": reader.on_part_data,
                "on_part_end": reader.on_part_end,
                "on_end": reader.on_end,
            },
        )
        async for chunk in body_chunks(request, max_body_bytes):
            parser.write(chunk)
    except FormParserError as exc:
        raise _malformed(str(exc)) from exc
    if not reader.ended:
        raise _malformed("it ends before its last boundary")
    return Form(fields=reader.fields, files=reader.files)


@dataclass
class _Part:
    header: tuple[bytearray, bytearray] = field(default_factory=lambda: (bytearray(), bytearray()))
    header_bytes: int = 0
    name: str = ""
    data: bytearray = field(default_factory=bytearray)


class _FormReader:
    """Collects what the parser calls out."""

    def __init__(self, file_names: Collection[str], max_file_bytes: int) -> None:
        self.fields: list[tuple[str, str]] = []
        self.files: dict[str, bytearray] = {}
        self.ended = False
        self._file_names = file_names
        self._max_file_bytes = max_file_bytes
        self._parts = 0
        self._part = _Part()

    def on_part_begin(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise RequestError(f"The form has more than {MAX_PARTS} parts; send fewer.")
        self._part = _Part()

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._count_header(end - start)
        self._part.header[0].extend(data[start:end])

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._count_header(end - start)
        self._part.header[1].extend(data[start:end])

    def _count_header(self, n_bytes: int) -> None:
        self._part.header_bytes += n_bytes
        if self._part.header_bytes > MAX_HEADER_BYTES:
            raise RequestError(f"A part of the form has over {MAX_HEADER_BYTES} bytes of headers.")

    def on_header_end(self) -> None:
        name, value = self._part.header
        if name.lower() == b"content-disposition":
            _, options = parse_options_header(value.decode("latin-1"))
            self._part.name = _text(options.get(b"name", b""), None)
        self._part.header = (bytearray(), bytearray())

    def on_headers_finished(self) -> None:
        name = self._part.name
        if not name:
            raise _malformed("a part of it has no name")
        if name in self._file_names and name in self.files:
            raise RequestError(f"'{name}' is there twice; send one file.", param=name)

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        part = self._part
        limit = self._max_file_bytes if part.name in self._file_names else MAX_FIELD_BYTES
        if len(part.data) + end - start > limit:
            raise PayloadTooLargeError(
                f"'{part.name}' is larger than the limit of {limit} bytes; send less.",
                param=part.name,
            )
        part.data += data[start:end]

    def on_part_end(self) -> None:
        part = self._part
        if part.name in self._file_names:
            self.files[part.name] = part.data
        else:
            self.fields.append((part.name, _text(part.data, part.name)))

    def on_end(self) -> None:
        self.ended = True


def _text(data: bytes | bytearray, name: str | None) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        what = "A part's name" if name is None else f"'{name}'"
        raise RequestError(f"{what} is not valid UTF-8.", param=name) from exc


def _malformed(why: str) -> RequestError:
    return RequestError(
        f"The request body is not valid multipart/form-data: {why}.", code="invalid_form"
    )
