"""How long to wait before a dead process is started again, and when to give up.

Knows times of deaths. Knows nothing of processes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

DEATHS: Final = 5
"""So many within the window, or in a row before it was ever ready, are a crash loop."""
LOOP_PAUSE_S: Final = 60.0
"""Until the next try of one in a crash loop that can be done without."""
_WINDOW_S: Final = 60.0
_FIRST_S: Final = 0.1
_LONGEST_S: Final = 10.0


@dataclass(slots=True)
class Backoff:
    """The deaths of one place."""

    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=DEATHS))
    _fruitless: int = 0

    def ready(self) -> None:
        """The process serves."""
        self._fruitless = 0

    def died(self, now_s: float) -> float | None:
        """Seconds to wait until the next start; None if it keeps dying."""
        self._recent.append(now_s)
        self._fruitless += 1
        recent = sum(1 for death in self._recent if now_s - death < _WINDOW_S)
        deaths = max(recent, self._fruitless)
        if deaths >= DEATHS:
            return None
        return min(_LONGEST_S, _FIRST_S * 2.0 ** (deaths - 1))
