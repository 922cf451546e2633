"""A timer that fires once nobody has said anything for a while.

Knows the event loop's clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class IdleTimer:
    """Calls `on_time` after so many seconds, unless it is stopped or started again."""

    def __init__(self, on_time: Callable[[], None]) -> None:
        self._on_time = on_time
        self._handle: asyncio.TimerHandle | None = None

    def start(self, seconds: float) -> None:
        """From now on."""
        self.stop()
        self._handle = asyncio.get_running_loop().call_later(seconds, self._on_time)

    def stop(self) -> None:
        """Forget it."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
