"""What the routes beside OpenAI's answer, as types for the OpenAPI document; the routes build the
same as plain JSON.

Knows shapes alone.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from omni_core.pipeline import Traced


class Cancelled(Struct, kw_only=True):
    """How many requests of this id were ended."""

    id: str
    object: Literal["request.cancelled"]
    cancelled: int


class DoorAnswer(Struct, kw_only=True):
    """Whether requests are let in, and how many are inside."""

    state: str
    inside: int
    running: int
    queued: int


class WeightsLoaded(Struct, kw_only=True):
    """What is served now, and how long it took to load."""

    checkpoint: str
    revision: str | None
    seconds: float


class Recordings(Struct, kw_only=True):
    """What the profiler records, or has written, by process."""

    processes: dict[str, Traced]
    seconds: float | UnsetType = UNSET
    """After which it ends by itself, of one that was started."""


class Liveness(Struct, kw_only=True):
    """This process answers."""

    status: Literal["live"]


Account: TypeAlias = dict[str, Any]
"""What an operator reads, whose fields follow what is served."""
