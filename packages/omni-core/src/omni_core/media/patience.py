"""How long decoding one item may take: lengths and sizes alone do not bound it.

Knows a clock. Asked between frames and blocks, so it ends what comes in many pieces.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from omni_core.errors import MediaError


@dataclass(slots=True)
class Patience:
    """Ends `seconds` after it was made."""

    seconds: float
    kind: str
    """What is decoded, for the error."""
    _end_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._end_s = time.monotonic() + self.seconds

    def __call__(self) -> bool:
        """False, which says that work may go on; MediaError once it is at its end."""
        if time.monotonic() >= self._end_s:
            raise MediaError(
                f"Decoding the {self.kind} took longer than the {self.seconds:.3g} s "
                "it could have; send a shorter or smaller one."
            )
        return False
