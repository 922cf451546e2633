"""What spoken replies said, by audio id, so that a later turn can name one instead of quoting it.

Knows ids, text and time. The audio itself is not kept.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable


class TranscriptStore:
    """A bounded map from audio id to transcript; entries expire."""

    def __init__(
        self, max_entries: int, ttl_s: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._entries: OrderedDict[str, tuple[float, str]] = OrderedDict()
        self._max_entries = max_entries
        self._ttl_s = ttl_s
        self._clock = clock

    def add(self, audio_id: str, transcript: str) -> int:
        """Remember a reply; returns the Unix time in seconds at which it is forgotten."""
        expires_at = self._clock() + self._ttl_s
        self._entries[audio_id] = (expires_at, transcript)
        while len(self._entries) > self._max_entries:
            self._entries.popitem(last=False)
        return int(expires_at)

    def get(self, audio_id: str) -> str | None:
        """The transcript, or None when the id is unknown or has expired."""
        expires_at, transcript = self._entries.get(audio_id, (0.0, ""))
        return transcript if expires_at > self._clock() else None
