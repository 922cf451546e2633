"""What one request comes to, told by whoever knows a part of it.

The application opens the record; the proxy fills it in. Knows no HTTP.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Record:
    """One request, from its head being read to its last byte."""

    method: str
    path: str
    request_id: str
    client: str
    """A digest of its key, or its address."""
    status: int | None = None
    """What was sent, or what became of it: 499 if the client left, 502 if the worker broke off in
    the middle; None while that is open."""
    code: str | None = None
    """Of the router's own error."""
    worker: str | None = None
    """The one that was asked last."""
    tries: int = 0
    queue_s: float = 0.0
    """Wait for a place at a worker."""
    asked_s: float | None = None
    """CLOCK_MONOTONIC, as all that follow: when the worker was asked, the last time."""
    head_s: float | None = None
    """When it began to answer."""
    start_s: float = field(default_factory=time.monotonic)
    end_s: float | None = None
