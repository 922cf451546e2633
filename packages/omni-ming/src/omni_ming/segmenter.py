"""The segmenter stage: a reply's text as it is written in, utterances for the Talker out.

Runs no model, and begins to hand on long before the reply has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_never

from omni_core.errors import as_omni_error
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
                self._read(item.request_id, lambda reply: self._push(reply, item.data), outbox)
            case ChunksDone():
                self._read(item.request_id, FrontEnd.flush, outbox)
                if self._replies.pop(item.request_id, None) is not None:
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

    def _push(self, reply: FrontEnd, data: Any) -> list[Utterance]:
        self._characters += len(data["text"])
        return reply.push(data["text"])

    def _read(
        self, request_id: str, read: Callable[[FrontEnd], list[Utterance]], outbox: Outbox
    ) -> None:
        """Hand on what is complete now; what the text raises fails its request alone."""
        front_end = self._replies.get(request_id)
        if front_end is None:
            return
        try:
            utterances = read(front_end)
        except Exception as exc:  # noqa: BLE001 - request edge: one bad text fails its request
            del self._replies[request_id]
            outbox.fail(request_id, as_omni_error(exc))
            return
        self._utterances += len(utterances)
        for utterance in utterances:
            outbox.stream(request_id, utterance)
