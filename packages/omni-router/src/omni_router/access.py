"""The access log: one line of JSON for every request, with its worker and its timings.

Knows the record of a request and files. Knows no route.
"""

from __future__ import annotations

import logging
import queue
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener, WatchedFileHandler
from typing import Any, Final, TypeAlias

import msgspec

from omni_router.errors import ConfigError

STANDARD_OUTPUT: Final = "-"
_LONGEST_PATH: Final = 200


@dataclass(slots=True, kw_only=True)
class Record:
    """What one request comes to."""

    method: str
    path: str
    client: str
    """Its address."""
    request_id: str
    worker: str = ""
    """Who answered; "" for the router itself."""
    status: int = 0
    """What was sent, or what became of it: 499 if the client left, 502 if the worker broke off."""
    tries: int = 0
    waited_s: float = 0.0
    """For a place at a worker."""
    error: str = ""
    """Why it is not whole, or was refused here."""
    start_s: float = field(default_factory=time.perf_counter)

    def line(self) -> dict[str, Any]:
        """For the log."""
        line: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "id": self.request_id,
            "client": self.client,
            "method": self.method,
            "path": self.path[:_LONGEST_PATH],
            "status": self.status,
            "ms": round((time.perf_counter() - self.start_s) * 1000, 1),
        }
        if self.worker:
            line |= {"worker": self.worker, "waited_ms": round(self.waited_s * 1000, 1)}
        if self.tries > 1:
            line["tries"] = self.tries
        if self.error:
            line["error"] = self.error
        return line


OnAccess: TypeAlias = Callable[[Record], None]


@contextmanager
def access_log(target: str | None) -> Iterator[OnAccess]:
    """Appends lines to a file, or writes them to standard output for "-"; None keeps none. A thread
    writes them. ConfigError if the file cannot be opened.

    A file that is moved away is opened again under its name, as log rotation wants it.
    """
    if target is None:
        yield lambda record: None
        return
    lines: queue.SimpleQueue[Any] = queue.SimpleQueue()
    writer = QueueListener(lines, _opened(target))
    handler = QueueHandler(lines)
    handler.setFormatter(logging.Formatter("%(message)s"))
    writer.start()

    def note(record: Record) -> None:
        text = msgspec.json.encode(record.line()).decode()
        handler.handle(logging.makeLogRecord({"msg": text, "levelno": logging.INFO}))

    try:
        yield note
    finally:
        writer.stop()


class _LogFile(WatchedFileHandler):
    """A log file that may be away for a while."""

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
