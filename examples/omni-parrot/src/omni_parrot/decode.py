"""The decode stage: what is said again, as text for the client."""

from __future__ import annotations

from omni_core.errors import StageError
from omni_core.scheduler.base import Outbox, Scheduler, Work
from omni_core.scheduler.per_request import PerRequestScheduler
from omni_core.specs import StageContext
from omni_core.types import FinishReason, TextDelta
from omni_parrot.payloads import Said


def build(ctx: StageContext) -> Scheduler:
    """Factory of the stage."""
    return Decode()


class Decode(PerRequestScheduler[list[FinishReason]]):
    """Keeps how a reply has ended, once it has."""

    def open(self, work: Work, outbox: Outbox) -> list[FinishReason]:
        """See `PerRequestScheduler`."""
        return []

    def push(self, request_id: str, kept: list[FinishReason], data: Said, outbox: Outbox) -> None:
        """See `PerRequestScheduler`."""
        if data["text"]:
            outbox.emit(request_id, TextDelta(text=data["text"]))
        if data["finish"] is not None:
            kept.append(data["finish"])

    def end(self, request_id: str, kept: list[FinishReason], outbox: Outbox) -> None:
        """See `PerRequestScheduler`."""
        if not kept:
            raise StageError("a reply ended without saying why")
        self.let_go(request_id)
        outbox.complete(request_id, finish_reason=kept[0])
