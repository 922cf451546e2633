"""The outermost layer: an id on every response, and one line in the access log for every request.

Knows ASGI messages, files and the record of a request. Knows no route.
"""

from __future__ import annotations

import logging
import queue
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener, WatchedFileHandler
from typing import Any, Final, TypeAlias

import msgspec
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omni_core.errors import ConfigError
from omni_server.callers import caller, request_id_of
from omni_server.metrics import Metrics
from omni_server.record import RequestRecord, current
from omni_server.stream import CLIENT_CLOSED_REQUEST, INTERNAL_SERVER_ERROR

REQUEST_ID: Final = "x-request-id"
STANDARD_OUTPUT: Final = "-"
_LONGEST_PATH: Final = 200
_WEBSOCKET: Final = "WEBSOCKET"
_METHODS: Final = frozenset(
    {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", _WEBSOCKET}
)
_SWITCHING_PROTOCOLS: Final = 101
_ANSWERS: Final = frozenset(
    {"http.response.start", "websocket.http.response.start", "websocket.accept"}
)
_UNKNOWN: Final = "unknown"
"""In metrics, the route of what matches none and any other method: clients can make up any number
of those."""

OnAccess: TypeAlias = Callable[[RequestRecord], None]
"""Told of each request once it is over, on the event loop."""


class Access:
    """ASGI middleware: opens the record of a request, and closes it with the response."""

    def __init__(self, app: ASGIApp, metrics: Metrics, on_access: OnAccess) -> None:
        self._app = app
        self._metrics = metrics
        self._on_access = on_access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        method = scope.get("method", _WEBSOCKET)
        record = RequestRecord(method=method, client=caller(connection))
        record.request_id = request_id_of(connection.headers)

        async def sending(message: Message) -> None:
            if message["type"] in _ANSWERS:
                headers = MutableHeaders(scope=message)
                record.request_id = headers.setdefault(REQUEST_ID, record.request_id)
                record.status = record.status or message.get("status", _SWITCHING_PROTOCOLS)
            await send(message)

        token = current.set(record)
        failed = True
        try:
            await self._app(scope, receive, sending)
            failed = False
        finally:
            current.reset(token)
            self._close(record, scope, failed)

    def _close(self, record: RequestRecord, scope: Scope, failed: bool) -> None:
        if record.status is None:
            record.status = INTERNAL_SERVER_ERROR if failed else CLIENT_CLOSED_REQUEST
        route = scope.get("route")
        pattern: str | None = None if route is None else route.path
        record.route = pattern or scope["path"][:_LONGEST_PATH]
        method = record.method if record.method in _METHODS else _UNKNOWN
        self._metrics.answered(method, pattern or _UNKNOWN, record.status)
        self._on_access(record)


def look_away(record: RequestRecord) -> None:
    """An `OnAccess` that keeps nothing."""


def line_of(record: RequestRecord) -> dict[str, Any]:
    """What the access log says of a request."""
    line: dict[str, Any] = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "id": record.request_id,
        "client": record.client,
        "method": record.method,
        "route": record.route,
        "status": record.status,
        "ms": round((time.perf_counter() - record.start_s) * 1000, 1),
    }
    if record.usage is not None:
        usage = record.usage
        line["prompt_tokens"] = usage.prompt_tokens
        line["text_tokens"] = usage.text_tokens
        line["audio_tokens"] = usage.audio_tokens
        if record.is_audio_cut:
            line["audio_finish_reason"] = "length"
    return line


@contextmanager
def access_log(target: str | None) -> Iterator[OnAccess]:
    """An `OnAccess` that appends lines of JSON to a file, or writes them to standard output for
    "-"; None keeps none. A thread writes them. ConfigError if the file cannot be opened.

    A file that is moved away is opened again under its name, as log rotation wants it.
    """
    if target is None:
        yield look_away
        return
    lines: queue.SimpleQueue[Any] = queue.SimpleQueue()
    writer = QueueListener(lines, _opened(target))
    handler = QueueHandler(lines)
    handler.setFormatter(logging.Formatter("%(message)s"))
    writer.start()

    def note(record: RequestRecord) -> None:
        text = msgspec.json.encode(line_of(record)).decode()
        handler.handle(logging.makeLogRecord({"msg": text, "levelno": logging.INFO}))

    try:
        yield note
    finally:
        writer.stop()


class _LogFile(WatchedFileHandler):
    """A log file that may be away for a while: an error of its own would end the thread that writes
    and leave the lines to pile up."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line, or say on stderr that it is lost."""
        try:
            super().emit(record)
        except OSError:
            self.handleError(record)


def _opened(target: str) -> logging.Handler:
    if target == STANDARD_OUTPUT:
        return logging.StreamHandler(sys.stdout)
    try:
        return _LogFile(target, encoding="utf-8")
    except OSError as exc:
        raise ConfigError(
            f"server.access_log: {target} cannot be written: {exc.strerror}; name another file, "
            "or - for standard output"
        ) from exc
