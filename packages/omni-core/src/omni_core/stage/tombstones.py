"""Ids of requests that take no more payloads, against those still on their way.

Knows ids and time. Ids are never used twice, so one that is forgotten too early costs a stage the
room of one request, and one that is kept too long costs its own few bytes. Time is the bound that
counts; that of number is there for floods.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

LIFETIME_S: Final = 600.0
"""Longer than a process that stands still is waited for, and so than any message is on its way."""


class Tombstones:
    """A set of ids, bounded in number and in time."""

    def __init__(
        self,
        *,
        most: int,
        lifetime_s: float = LIFETIME_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._lifetime_s = lifetime_s
        self._clock = clock
        self._set_s: OrderedDict[str, float] = OrderedDict()
        """When each was set; the oldest first."""

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._set_s

    def __len__(self) -> int:
        return len(self._set_s)

    def set(self, request_id: str) -> None:
        """Remember an id, and forget what is too old or too many."""
        now_s = self._clock()
        self._set_s[request_id] = now_s
        self._set_s.move_to_end(request_id)
        self._sweep(now_s)

    def sweep(self) -> None:
        """Forget what is too old or too many."""
        self._sweep(self._clock())

    def _sweep(self, now_s: float) -> None:
        oldest_s = now_s - self._lifetime_s
        while self._set_s:
            request_id, set_s = next(iter(self._set_s.items()))
            if set_s >= oldest_s and len(self._set_s) <= self._most:
                return
            del self._set_s[request_id]
