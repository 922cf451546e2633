"""One request as the coordinator sees it, from its submission to its end.

Knows what has been heard of it. Decides nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from omni_core.coordinator.mailbox import Mailbox
from omni_core.coordinator.timers import Timer
from omni_core.coordinator.unread import Unread
from omni_core.errors import OmniError
from omni_core.types import Event, FinishReason, Request, StageSpan, Usage


@dataclass(slots=True, eq=False)
class Active:
    """One request that waits or is in the stages. It ends when every stage it visited has ended it,
    or with an error."""

    request_id: str
    request: Request
    needed: frozenset[str]
    """The stages it can visit."""
    visited: set[str]
    unread: Unread[Active]
    pins: dict[str, str] = field(default_factory=dict)
    """{stage: process} of all it can visit; empty while it waits."""
    deadline: Timer | None = None
    events: Mailbox[Event | OmniError] = field(default_factory=Mailbox)
    submitted_s: float = field(default_factory=time.monotonic)
    done: set[str] = field(default_factory=set)
    usage: Usage = field(default_factory=Usage)
    finish_reason: FinishReason = "stop"
    spans: list[StageSpan] = field(default_factory=list)
    ended: bool = False

    async def take(self) -> tuple[list[Event], OmniError | None]:
        """What there is to tell the client now: events, and the error that ends them, if any. Waits
        until there is something."""
        events: list[Event] = []
        news = await self.events.take()
        self.unread.clear(self)
        for item in news:
            if isinstance(item, OmniError):
                return events, item
            events.append(item)
        return events, None
