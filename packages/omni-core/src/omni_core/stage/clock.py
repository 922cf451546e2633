"""Times of one host in the clock of another.

CLOCK_MONOTONIC counts from a moment of each host's own. The difference is taken once, when a
process dials in, and is off by the time that one message takes.
"""

from __future__ import annotations

import time

from msgspec.structs import replace

from omni_core.messages import Done


def offset_to(their_clock_s: float) -> float:
    """What to add to their times to get ours; their clock was read a moment ago."""
    return time.monotonic() - their_clock_s


def shifted(done: Done, seconds: float) -> Done:
    """The message with its own times moved."""
    first = done.first_output_s
    return replace(
        done,
        start_s=done.start_s + seconds,
        first_output_s=None if first is None else first + seconds,
        end_s=done.end_s + seconds,
    )
