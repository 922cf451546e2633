"""What the routes beside OpenAI's answer, as types for the OpenAPI document; the routes build the
same as plain JSON.

Knows shapes alone.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct


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


class Liveness(Struct, kw_only=True):
    """This process answers."""

    status: Literal["live"]


Account: TypeAlias = dict[str, Any]
"""What an operator reads, whose fields follow what is served."""
