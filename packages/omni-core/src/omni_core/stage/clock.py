"""Times of one host in the clock of another.

CLOCK_MONOTONIC counts from a moment of each host's own. The difference is taken once, when a
process dials in, and is off by the time that one message takes.
"""

from __future__ import annotations

import time

from msgspec.structs import replace

from omni_core.messages import Done, Emit, Fail, Released


def offset_to(their_clock_s: float) -> float:
    """What to add to their times to get ours; their clock was read a moment ago."""
    return time.monotonic() - their_clock_s


def shifted(
    message: Emit | Done | Fail | Released, seconds: float
) -> Emit | Done | Fail | Released:
    """The message with its times moved."""
    if not isinstance(message, Done):
        return message
    first = message.first_output_s
    return replace(
        message,
        start_s=message.start_s + seconds,
        first_output_s=None if first is None else first + seconds,
        end_s=message.end_s + seconds,
    )
