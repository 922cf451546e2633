"""What the parts of one session share.

Holds no behaviour but that of its counters, and of the doors that every request passes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from omni_core.errors import NotReadyError, OmniError
from omni_core.pipeline import Pipeline
from omni_core.types import Usage
from omni_server.context import ServerContext
from omni_server.metrics import RequestTimer
from omni_server.rate import Allowance, RateLimiter, too_fast
from omni_server.realtime.conversation import Conversation
from omni_server.realtime.folding import Folding
from omni_server.realtime.items import Json
from omni_server.record import RequestRecord
from omni_server.stream import CLIENT_CLOSED_REQUEST, INTERNAL_SERVER_ERROR

Put = Callable[[Json], None]
"""Sends an event to the client, after all before it; never waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limited:
    """A client whose requests are counted."""

    limiter: RateLimiter
    client: str

    def take(self) -> Allowance:
        """Count one request."""
        return self.limiter.take(self.client)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """One session's server, client and conversation."""

    server: ServerContext
    put: Put
    client: str
    """Whose turn it is where requests wait."""
    limited: Limited | None
    session_id: str
    conversation_id: str
    conversation: Conversation
    folding: Folding
    record: RequestRecord | None = None
    """What is logged of the session."""

    def enter(self) -> None:
        """One request more inside, until `leave`; NotReadyError while the server takes none."""
        try:
            self.server.door.enter()
        except NotReadyError as error:
            self.server.metrics.refused(error.code or "")
            raise

    def leave(self) -> None:
        """One request less."""
        self.server.door.leave()

    def count(self) -> Allowance | None:
        """Count one request of the client; None if nobody counts, RateLimitError if it is one too
        many."""
        if self.limited is None:
            return None
        allowance = self.limited.take()
        if allowance.wait_s:
            self.server.metrics.refused("request_rate")
            raise too_fast(allowance)
        return allowance

    @contextmanager
    def asking(self, requests: int = 1) -> Iterator[RequestTimer]:
        """Around the `requests` that the pipeline is asked for one of the client's; it is told of
        their events."""
        timer = RequestTimer(self.server.metrics)
        status = INTERNAL_SERVER_ERROR
        try:
            with timer.generating(requests):
                yield timer
            status = 200
        except OmniError as error:
            status = error.status
            raise
        except asyncio.CancelledError:
            status = CLIENT_CLOSED_REQUEST
            raise
        finally:
            timer.end(status)

    def spent(self, usage: Usage) -> None:
        """The session has cost so much more."""
        if self.record is not None:
            before = self.record.usage
            self.record.usage = usage if before is None else before + usage

    @property
    def pipeline(self) -> Pipeline:
        """What answers."""
        return self.server.pipeline
