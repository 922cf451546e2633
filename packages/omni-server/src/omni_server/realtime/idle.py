"""A timer that fires once nobody has said anything for a while.

Knows the event loop's clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class IdleTimer:
    """Calls `on_time` after a silence, unless it is stopped or started again."""

    def __init__(self, on_time: Callable[[], None]) -> None:
        self._on_time = on_time
        self._handle: asyncio.TimerHandle | None = None
        self._silent_from_s = 0.0
        self._is_held = self._is_due = False

    def start(self, silent_from_s: float, idle_s: float) -> None:
        """Fire after `idle_s` seconds of a silence that begins at this time of the loop."""
        self.stop()
        self._silent_from_s = silent_from_s
        self._handle = asyncio.get_running_loop().call_at(silent_from_s + idle_s, self._fire)

    def change(self, idle_s: float | None) -> None:
        """Let the silence that lasts be so long, or any length."""
        if idle_s is None:
            self.stop()
        elif self._handle is not None:
            self.start(self._silent_from_s, idle_s)

    def stop(self) -> None:
        """Forget it."""
        self._is_due = False
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Fire afterwards at the soonest: what is looked at meanwhile may be speech."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
            if self._is_due:
                self._fire()

    def _fire(self) -> None:
        self._is_due = self._is_held
        if not self._is_held:
            self._handle = None
            self._on_time()
