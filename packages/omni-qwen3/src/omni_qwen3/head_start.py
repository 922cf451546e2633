"""How the Thinker leaves the cores to speech that is about to begin.

Knows when the first tokens of spoken replies left. Knows nothing of engines or of other stages.

On a CPU all stages share the cores, and the Thinker is several times as fast as the Talker. What it
writes ahead makes the first audio late and no audio early. So once a reply has the tokens of its
first frames, the Thinker rests for about as long as these take.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

LEAD_TOKENS: Final = 3
"""With which the Talker makes as many frames without another."""
REST_PER_TOKEN: Final = 4.0
"""Length of a rest, in the time that a token of the lead took."""
LONGEST_REST_S: Final = 0.03
"""Frames that are slower still leave the lead unused: no need to wait for them."""


@dataclass(slots=True)
class HeadStart:
    """The rests of one Thinker."""

    clock: Callable[[], float] = time.monotonic
    _first_s: dict[str, float] = field(default_factory=dict)
    """When the first token left, of replies with fewer than the lead."""
    _until_s: float = 0.0

    def left(self, request_id: str, index: int) -> None:
        """Token `index` of a spoken reply has left."""
        if index >= LEAD_TOKENS:
            return
        now_s = self.clock()
        first_s = self._first_s.setdefault(request_id, now_s)
        if index == LEAD_TOKENS - 1:
            del self._first_s[request_id]
            rest_s = min(REST_PER_TOKEN * (now_s - first_s), LONGEST_REST_S)
            self._until_s = max(self._until_s, now_s + rest_s)

    def forget(self, request_id: str) -> None:
        """The reply is over."""
        self._first_s.pop(request_id, None)

    def rest_s(self) -> float:
        """How much longer to rest; 0 for not at all."""
        return max(0.0, self._until_s - self.clock())
