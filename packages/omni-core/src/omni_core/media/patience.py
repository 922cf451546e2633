"""Whether to go on decoding an item: it may take only so long, and somebody must wait for it.

Knows a clock. Asked between packets and blocks, so it ends what comes in many pieces.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from omni_core.errors import MediaError, RequestCancelledError

Stop: TypeAlias = Callable[[], bool]
"""Whether nobody waits for the result any more; asked often, from the thread that works."""


def never() -> bool:
    """Somebody waits."""
    return False


@dataclass(slots=True)
class Patience:
    """Ends `seconds` after it was made, and once `stop` says so."""

    seconds: float
    kind: str
    """What is decoded, for the errors."""
    stop: Stop = never
    _end_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._end_s = time.monotonic() + self.seconds

    def check(self) -> None:
        """MediaError once the time is over, RequestCancelledError once nobody waits."""
        if self.stop():
            raise RequestCancelledError(f"Nobody waits for this {self.kind} any more.")
        if time.monotonic() >= self._end_s:
            raise MediaError(
                f"Decoding the {self.kind} took longer than the {self.seconds:.3g} s "
                "it could have; send a shorter or smaller one."
            )
