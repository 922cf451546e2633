"""One request from its submission to its last event, and what its stages say of how it went.

Knows ends of stages. Decides nothing: the coordinator does.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

from omni_core.coordinator.mailbox import Mailbox
from omni_core.coordinator.timers import Timer
from omni_core.coordinator.unread import Unread
from omni_core.errors import OmniError
from omni_core.messages import Done
from omni_core.types import (
    AudioFinishReason,
    Event,
    Finished,
    FinishReason,
    Modality,
    Request,
    StageSpan,
    Usage,
)

_NO_USAGE: Final = Usage()


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
    text_ended: FinishReason | None = None
    cut: set[Modality] = field(default_factory=set)
    """What some stage made no more of because of its length."""
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

    def note(self, done: Done, terminal: Modality | None) -> None:
        """A stage has ended the request; `terminal` is the modality it emits, if any."""
        self.done.add(done.stage)
        self.visited.update(done.opened)
        if done.usage != _NO_USAGE:
            self.usage += done.usage
        if terminal == "text":
            self.text_ended = done.finish_reason
        cut = terminal if done.finish_reason == "length" else done.cut
        if cut is not None:
            self.cut.add(cut)
        first = done.first_output_s
        self.spans.append(
            StageSpan(
                stage=done.stage,
                start_s=done.start_s - self.submitted_s,
                first_output_s=None if first is None else first - self.submitted_s,
                end_s=done.end_s - self.submitted_s,
            )
        )

    def finished(self) -> Finished:
        """The last event, once all stages are done."""
        audio_ended: AudioFinishReason | None = None
        if "audio" in self.request.params.modalities:
            audio_ended = "length" if "audio" in self.cut else "stop"
        return Finished(
            finish_reason=self.text_ended or audio_ended or "stop",
            audio_finish_reason=audio_ended,
            usage=self.usage,
            timeline=tuple(sorted(self.spans, key=lambda span: span.start_s)),
        )
