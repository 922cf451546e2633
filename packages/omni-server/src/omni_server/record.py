"""What one request comes to, told by whoever knows a part of it.

The outermost layer of the application opens the record, routes fill it in. Knows no HTTP server.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import dataclass, field

from omni_core.types import Usage


@dataclass(slots=True)
class RequestRecord:
    """One request, from its head being read to its last byte."""

    method: str
    client: str
    """A digest of its key, or its address."""
    request_id: str = ""
    route: str = ""
    """The pattern of the URL, so that there are few of them; the URL's path if it matches none."""
    status: int | None = None
    """What was sent, or what became of it: 499 if the client left, the status of the error that
    broke a stream; None while that is open."""
    usage: Usage | None = None
    """Of requests that the pipeline has finished."""
    is_audio_cut: bool = False
    """Some audio of it is not whole, because of its length."""
    start_s: float = field(default_factory=time.perf_counter)


current: ContextVar[RequestRecord | None] = ContextVar("omni_request_record", default=None)
"""The record of the request that is being answered."""
