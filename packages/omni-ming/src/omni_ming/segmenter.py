"""The segmenter stage: a reply's text as it is written in, utterances for the Talker out.

Runs no model, and begins to hand on long before the reply has ended.
"""

from __future__ import annotations

from typing import assert_never

from omni_core.scheduler.base import (
    Abort,
    Chunk,
    ChunksDone,
    Close,
    Inbox,
    InboxItem,
    Outbox,
    Scheduler,
    Work,
)
from omni_core.specs import StageContext
from omni_ming.payloads import Utterance
from omni_ming.speech_text.front_end import FrontEnd


def build(ctx: StageContext) -> Scheduler:
    """The stage's scheduler."""
    return Segmenter()


class Segmenter:
    """A front end for each reply."""

    def __init__(self) -> None:
        self._replies: dict[str, FrontEnd] = {}
        self._requests = self._characters = self._utterances = 0

    def run(self, inbox: Inbox, outbox: Outbox) -> None:
        """Until `Close`."""
        while all(self._receive(item, outbox) for item in inbox.drain(block=True)):
            pass
        self._replies.clear()

    def stats(self) -> dict[str, float]:
        """Replies entered and held now, characters taken, utterances made."""
        return {
            "requests": self._requests,
            "characters": self._characters,
            "utterances": self._utterances,
            "waiting": 0,
            "running": len(self._replies),
        }

    def _receive(self, item: InboxItem, outbox: Outbox) -> bool:
        """False when the stage is to close. Items of requests that are not here (aborted, or over)
        are late and mean nothing."""
        match item:
            case Work():
                self._requests += 1
                self._replies[item.request_id] = FrontEnd()
                outbox.send(item.request_id, item.payload)
            case Chunk():
                if (front_end := self._replies.get(item.request_id)) is not None:
                    self._characters += len(item.data["text"])
                    self._hand_on(item.request_id, front_end.push(item.data["text"]), outbox)
            case ChunksDone():
                if (front_end := self._replies.pop(item.request_id, None)) is not None:
                    self._hand_on(item.request_id, front_end.flush(), outbox)
                    outbox.stream_done(item.request_id)
                    outbox.done(item.request_id)
            case Abort():
                self._replies.pop(item.request_id, None)
                outbox.released(item.request_id)
            case Close():
                return False
            case _:
                assert_never(item)
        return True

    def _hand_on(self, request_id: str, utterances: list[Utterance], outbox: Outbox) -> None:
        self._utterances += len(utterances)
        for utterance in utterances:
            outbox.stream(request_id, utterance)
