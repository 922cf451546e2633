"""Bytes of media that several requests have in common, fetched once for all of them.

Knows who shares what and for how long bytes wait for the others. How they are fetched is `fetch`'s.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeAlias

from omni_core.errors import RequestError
from omni_core.media.fetch import media_bytes
from omni_core.media.limits import MediaLimits
from omni_core.types import MediaPart

HELD_BYTES = 256 * 1024 * 1024
"""Waiting for requests that have not come yet, and may never."""
HELD_ITEMS = 64
Fetch: TypeAlias = Callable[[MediaPart, MediaLimits], bytes]


@dataclass(slots=True)
class _Fetched:
    """What one request fetches, or has fetched, for those that have not come yet."""

    to_come: int
    future: Future[bytes] = field(default_factory=Future)
    size: int = 0
    """In bytes, once they are there."""


class SharedFetches:
    """The bytes of parts; those whose `shared` and URL are equal are fetched once.

    Others wait while the first fetches, and get what it gets: the bytes or the error. Bytes are let
    go of when all have come, or for newer ones beyond `held_bytes`; who comes later fetches again.
    Safe to share by threads.
    """

    def __init__(self, *, held_bytes: int = HELD_BYTES, fetch: Fetch = media_bytes) -> None:
        self._held_bytes = held_bytes
        self._fetch = fetch
        self._lock = threading.Lock()
        self._found: OrderedDict[tuple[str, str], _Fetched] = OrderedDict()

    def bytes_of(self, part: MediaPart, limits: MediaLimits) -> bytes:
        """As `media_bytes`, which it asks unless another has."""
        if part.shared is None or part.url is None:
            return self._fetch(part, limits)
        key = (part.shared.by, part.url)
        with self._lock:
            is_first = key not in self._found
            found = self._found.setdefault(key, _Fetched(part.shared.requests))
            found.to_come -= 1
            if not found.to_come:
                del self._found[key]
            self._trim()
        if is_first:
            self._fetch_for_all(part, limits, found)
        return found.future.result()

    def _fetch_for_all(self, part: MediaPart, limits: MediaLimits, found: _Fetched) -> None:
        try:
            data = self._fetch(part, limits)
        except RequestError as error:
            found.future.set_exception(error)
        else:
            found.future.set_result(data)
            self._hold(found, len(data))
        finally:
            found.future.cancel()  # only a defect leaves it pending; those who wait end with it

    def _hold(self, found: _Fetched, size: int) -> None:
        with self._lock:
            found.size = size
            self._trim()

    def _trim(self) -> None:
        while len(self._found) > HELD_ITEMS or self._bytes() > self._held_bytes:
            self._found.popitem(last=False)

    def _bytes(self) -> int:
        return sum(found.size for found in self._found.values())
