"""The segmenter stage: text as it is heard in, pieces to speak out before the text has ended."""

from __future__ import annotations

from omni_core.scheduler.base import Outbox, Scheduler, Work
from omni_core.scheduler.per_request import PerRequestScheduler
from omni_core.specs import StageContext
from omni_parrot.payloads import Said
from omni_parrot.sentences import Sentences


def build(ctx: StageContext) -> Scheduler:
    """Factory of the stage."""
    return Segmenter()


class Segmenter(PerRequestScheduler[Sentences]):
    """Keeps the sentence that each reply is in."""

    def open(self, work: Work, outbox: Outbox) -> Sentences:
        """See `PerRequestScheduler`."""
        outbox.send(work.request_id, {})
        return Sentences()

    def push(self, request_id: str, kept: Sentences, data: Said, outbox: Outbox) -> None:
        """See `PerRequestScheduler`."""
        for piece in kept.push(data["text"]):
            outbox.stream(request_id, piece)

    def end(self, request_id: str, kept: Sentences, outbox: Outbox) -> None:
        """See `PerRequestScheduler`."""
        for piece in kept.flush():
            outbox.stream(request_id, piece)
        self.let_go(request_id)
        outbox.stream_done(request_id)
        outbox.done(request_id)
