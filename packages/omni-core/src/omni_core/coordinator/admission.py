"""Which requests run and which wait: bounded numbers of both, and turns between clients.

Knows ids of requests and of clients, and time. Knows nothing of stages or sockets.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Final

from omni_core.errors import OverloadedError, RateLimitError

_LONGEST_RETRY_S: Final = 60
_SMOOTHING: Final = 0.1
"""Weight of the newest request in the mean time that requests run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """How much of a pipeline's work may be there at once."""

    max_in_flight: int = 128
    """Requests in the stages."""
    max_queue: int = 1024
    """Requests that wait for one of these places; more are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """How much of a pipeline's work there is now, in requests."""

    in_flight: int = 0
    """In the stages."""
    queued: int = 0
    """Waiting for a place there."""
    aborting: int = 0
    """Ended for the client, and still held by some stage."""


class Admission:
    """The queue before the stages.

    Clients take turns, one request each, in the order in which they came. When the queue is full, a
    client that has its share of it waiting is refused; a client that has less gets a place, and
    who has the most waiting loses its newest. So no client can keep another one out.
    """

    def __init__(
        self, limits: AdmissionLimits, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._waiting: OrderedDict[str, OrderedDict[str, None]] = OrderedDict()
        """{client: its requests}, both in order; the first client has the next turn."""
        self._queued: dict[str, str] = {}
        """{waiting request: client}."""
        self._running: dict[str, float] = {}
        """{request: when it began}."""
        self._mean_run_s = 0.0
        self.held = False
        """Nobody gets a place until it is False again."""

    @property
    def running(self) -> int:
        """Requests in the stages."""
        return len(self._running)

    @property
    def queued(self) -> int:
        """Requests that wait for a place in the stages."""
        return len(self._queued)

    def join(self, request_id: str, client: str) -> str | None:
        """Put a request at the end of its client's line; call `take` next.

        Returns the request that loses its place to it, if any, which is to fail with `share_taken`.
        RateLimitError if the queue is full and the client has its share of it; OverloadedError if
        it is full of others that have no more than theirs.
        """
        loser = self._make_room(client) if self._is_full() else None
        self._waiting.setdefault(client, OrderedDict())[request_id] = None
        self._queued[request_id] = client
        return loser

    def take(self) -> str | None:
        """The request whose turn it is, if there is a place for it; it runs until it leaves."""
        if self.held or not self._queued or len(self._running) >= self._limits.max_in_flight:
            return None
        client, line = self._waiting.popitem(last=False)
        request_id, _ = line.popitem(last=False)
        if line:
            self._waiting[client] = line
        del self._queued[request_id]
        self._running[request_id] = self._clock()
        return request_id

    def leave(self, request_id: str) -> None:
        """The request has ended, wherever it was; nothing for one that is not here."""
        began_s = self._running.pop(request_id, None)
        if began_s is not None:
            run_s = self._clock() - began_s
            mean_s = self._mean_run_s or run_s
            self._mean_run_s = mean_s + _SMOOTHING * (run_s - mean_s)
        elif (client := self._queued.pop(request_id, None)) is not None:
            line = self._waiting[client]
            del line[request_id]
            if not line:
                del self._waiting[client]

    def share_taken(self) -> RateLimitError:
        """What a request fails with whose client has its share of a full queue."""
        return RateLimitError(
            "the queue is full, and this client has its share of it; send less at once, or retry "
            "after a while",
            retry_after_s=self._retry_after_s(),
        )

    def _is_full(self) -> bool:
        unused = max(0, self._limits.max_in_flight - len(self._running))
        return len(self._queued) >= self._limits.max_queue + unused

    def _make_room(self, client: str) -> str:
        mine = len(self._waiting.get(client, ()))
        longest = max(self._waiting.values(), key=len, default=OrderedDict[str, None]())
        if len(longest) > mine + 1:
            newest = next(reversed(longest))
            self.leave(newest)
            return newest
        if mine:
            raise self.share_taken()
        raise OverloadedError(
            f"{len(self._running)} requests run and {len(self._queued)} wait, and no more may; "
            "retry after a while",
            retry_after_s=self._retry_after_s(),
        )

    def _retry_after_s(self) -> int:
        """When those that wait now will have run, going by how long requests take."""
        rounds = (len(self._queued) + 1) / self._limits.max_in_flight
        return min(_LONGEST_RETRY_S, max(1, ceil(rounds * self._mean_run_s)))
