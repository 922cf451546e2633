"""Results that several requests share: kept in an LRU, and computed once for all who ask.

Knows keys, sizes and threads. Knows nothing of what a result is.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

from omni_core.errors import OmniError

V = TypeVar("V")


class LRU(Generic[V]):
    """The most recently used values by key, within a number of entries and of bytes.

    Safe to share by threads. A value over the byte limit by itself is not kept; with no entries
    allowed, none is.
    """

    def __init__(
        self,
        *,
        max_entries: int,
        max_bytes: int | None = None,
        size_bytes: Callable[[V], int] = lambda value: 0,
    ) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._size_bytes = size_bytes
        self._lock = threading.Lock()
        self._values: OrderedDict[bytes, V] = OrderedDict()
        self._bytes = self._hits = self._misses = 0

    def get(self, key: bytes) -> V | None:
        """The value, now the most recently used one; None, and counted as a miss, without it."""
        with self._lock:
            value = self._values.get(key)
            if value is None:
                self._misses += 1
                return None
            self._hits += 1
            self._values.move_to_end(key)
            return value

    def put(self, key: bytes, value: V) -> None:
        """Keep a value, at the cost of those used longest ago."""
        size = self._size_bytes(value)
        with self._lock:
            if self._max_bytes is not None and size > self._max_bytes:
                return
            if key in self._values:
                self._bytes -= self._size_bytes(self._values.pop(key))
            self._values[key] = value
            self._bytes += size
            while len(self._values) > self._max_entries or self._is_over_bytes():
                self._bytes -= self._size_bytes(self._values.popitem(last=False)[1])

    def clear(self) -> None:
        """Forget every value."""
        with self._lock:
            self._values.clear()
            self._bytes = 0

    def stats(self) -> dict[str, float]:
        """Lookups by outcome, and what is held now."""
        return {
            "cache_hits": self._hits,
            "cache_misses": self._misses,
            "cache_entries": len(self._values),
            "cache_bytes": self._bytes,
        }

    def _is_over_bytes(self) -> bool:
        return self._max_bytes is not None and self._bytes > self._max_bytes


@dataclass(slots=True)
class _Flight(Generic[V]):
    """A result that one thread computes and others may wait for."""

    landed: threading.Event = field(default_factory=threading.Event)
    value: V | None = None
    """Once landed; None if the computation failed."""


_Waiting: TypeAlias = list[tuple[bytes, _Flight[V]]]


class SharedResults(Generic[V]):
    """Results by key: from the cache, from whoever computes them just now, or computed here.

    Nobody depends on the fate of another's request: a computation goes on when the request that
    began it is aborted, and when it fails, one of those who wait for it computes itself.
    """

    def __init__(self, cache: LRU[V]) -> None:
        self._cache = cache
        self._lock = threading.Lock()
        self._flights: dict[bytes, _Flight[V]] = {}
        self._joined = 0

    def obtain(
        self,
        keys: Sequence[bytes],
        compute: Callable[[list[int]], Sequence[V | OmniError]],
    ) -> list[V | OmniError]:
        """A result for each of `keys`, which may repeat.

        `compute` gets places in `keys`, one of each key that nobody has; its errors are not kept.
        What it raises passes through.
        """
        results: dict[bytes, V | OmniError] = {}
        places = {key: place for place, key in reversed(list(enumerate(keys)))}
        with self._lock:
            self._joined += len(keys) - len(places)
        while missing := [key for key in dict.fromkeys(keys) if key not in results]:
            mine, others = self._claim(missing, results)
            if mine:
                self._compute(mine, places, compute, results)
            # After our own, for which others may wait.
            for key, flight in others:
                flight.landed.wait()
                if flight.value is not None:
                    results[key] = flight.value
        return [results[key] for key in keys]

    def forget(self) -> None:
        """Compute everything anew from now on; nothing is being computed."""
        self._cache.clear()

    def stats(self) -> dict[str, float]:
        """The cache's, and lookups that another's computation answered."""
        return {**self._cache.stats(), "inflight_joined": self._joined}

    def _claim(
        self, missing: list[bytes], results: dict[bytes, V | OmniError]
    ) -> tuple[list[bytes], _Waiting[V]]:
        """Take what is cached; of the rest, what we compute and what we wait for."""
        mine: list[bytes] = []
        others: _Waiting[V] = []
        with self._lock:
            for key in missing:
                if flight := self._flights.get(key):
                    self._joined += 1
                    others.append((key, flight))
                elif (value := self._cache.get(key)) is not None:
                    results[key] = value
                else:
                    self._flights[key] = _Flight()
                    mine.append(key)
        return mine, others

    def _compute(
        self,
        mine: list[bytes],
        places: dict[bytes, int],
        compute: Callable[[list[int]], Sequence[V | OmniError]],
        results: dict[bytes, V | OmniError],
    ) -> None:
        made: dict[bytes, V] = {}
        try:
            computed = compute([places[key] for key in mine])
            for key, result in zip(mine, computed, strict=True):
                results[key] = result
                if not isinstance(result, OmniError):
                    made[key] = result
                    self._cache.put(key, result)
        finally:
            with self._lock:
                flights = [(key, self._flights.pop(key)) for key in mine]
            for key, flight in flights:
                flight.value = made.get(key)
                flight.landed.set()
