"""The access log: one line of JSON for every request, with its worker and where its time went.

A thread writes the lines. Knows files and the record of a request.
"""

from __future__ import annotations

import logging
import queue
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener, WatchedFileHandler
from typing import Any, Final, TypeAlias

import msgspec

from omni_router.errors import ConfigError
from omni_router.record import Record

STANDARD_OUTPUT: Final = "-"
_LONGEST_PATH: Final = 200
OnAccess: TypeAlias = Callable[[Record], None]
"""Told of each request once it is over, on the event loop."""


def look_away(record: Record) -> None:
    """An `OnAccess` that keeps nothing."""


def line_of(record: Record) -> dict[str, Any]:
    """What the access log says of a request; times in milliseconds."""
    assert record.end_s is not None
    line: dict[str, Any] = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "id": record.request_id,
        "client": record.client,
        "method": record.method,
        "route": record.path[:_LONGEST_PATH],
        "status": record.status,
        "ms": _ms(record.end_s - record.start_s),
    }
    if record.code is not None:
        line["code"] = record.code
    if record.worker is not None:
        line["worker"] = record.worker
        line["tries"] = record.tries
        line["queue_ms"] = _ms(record.queue_s)
    if record.asked_s is not None:
        line["asked_ms"] = _ms(record.asked_s - record.start_s)
    if record.head_s is not None:
        line["head_ms"] = _ms(record.head_s - record.start_s)
    return line


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


@contextmanager
def access_log(target: str | None) -> Iterator[OnAccess]:
    """An `OnAccess` that appends lines of JSON to a file, or writes them to standard output for
    "-"; None keeps none. ConfigError if the file cannot be opened.

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

    def note(record: Record) -> None:
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
            f"access_log: {target} cannot be written: {exc.strerror}; name another file, or - for "
            "standard output"
        ) from exc
