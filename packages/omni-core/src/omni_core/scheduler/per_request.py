"""The loop of stages that keep something of each request: text so far, a queue, a voice.

Knows requests, their streams and their ends. What is kept, and what is made of it, is a subclass's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar, assert_never

from omni_core.errors import StageError, as_omni_error
from omni_core.scheduler.base import (
    Abort,
    Chunk,
    ChunksDone,
    Close,
    Inbox,
    InboxItem,
    Outbox,
    Work,
)

K = TypeVar("K")


class PerRequestScheduler(ABC, Generic[K]):
    """Takes all that has come, then does one piece of work for one request, until `Close`.

    All methods are called by the stage's own thread. What one of them raises fails its request, and
    no other; only an error of `due` ends the loop. What takes long belongs into `advance`, piece by
    piece: aborts are seen between two pieces.
    """

    def __init__(self) -> None:
        self.kept: Final[dict[str, K]] = {}
        """What is kept of each request in the stage, in order of arrival."""
        self._requests = 0

    @abstractmethod
    def open(self, work: Work, outbox: Outbox) -> K:
        """A request enters; what to keep of it."""

    def push(self, request_id: str, kept: K, data: Any, outbox: Outbox) -> None:
        """More of a stream to the request."""
        raise StageError(f"{type(self).__name__} takes no streams")

    def end(self, request_id: str, kept: K, outbox: Outbox) -> None:
        """A stream to the request has ended."""

    def due(self) -> str | None:
        """The request to advance now; None if there is nothing to do until more comes."""
        return None

    def advance(self, request_id: str, kept: K, outbox: Outbox) -> None:
        """Do a piece of the work that is due."""
        raise StageError(f"{type(self).__name__} has work due and no advance")

    def close(self, kept: K) -> None:
        """Free what was kept; called once for each request, whatever its end."""

    def let_go(self, request_id: str) -> None:
        """Keep nothing of a request any more; before it is done, complete or failed. Harmless if
        nothing is kept."""
        if request_id in self.kept:
            self.close(self.kept.pop(request_id))

    def run(self, inbox: Inbox, outbox: Outbox) -> None:
        """Receive, advance, until `Close`; nothing is kept afterwards."""
        while self._receive(inbox, outbox):
            if (request_id := self.due()) is not None:
                self._for(request_id, outbox, self.advance)
        for request_id in list(self.kept):
            self.let_go(request_id)

    def stats(self) -> dict[str, float]:
        """Requests entered so far, and those kept now."""
        return {"requests": self._requests, "waiting": 0, "running": len(self.kept)}

    def _receive(self, inbox: Inbox, outbox: Outbox) -> bool:
        items = inbox.drain(block=self.due() is None)
        return all(self._take(item, outbox) for item in items)

    def _take(self, item: InboxItem, outbox: Outbox) -> bool:
        """False when the stage is to close. Items of requests that are not here (aborted, or over)
        are late and mean nothing."""
        match item:
            case Work():
                self._open(item, outbox)
            case Chunk():
                self._for(
                    item.request_id,
                    outbox,
                    lambda rid, kept, out: self.push(rid, kept, item.data, out),
                )
            case ChunksDone():
                self._for(item.request_id, outbox, self.end)
            case Abort():
                self.let_go(item.request_id)
                outbox.released(item.request_id)
            case Close():
                return False
            case _:
                assert_never(item)
        return True

    def _open(self, work: Work, outbox: Outbox) -> None:
        self._requests += 1
        try:
            self.kept[work.request_id] = self.open(work, outbox)
        except Exception as exc:  # noqa: BLE001 - request edge: one bad request fails alone
            outbox.fail(work.request_id, as_omni_error(exc))

    def _for(self, request_id: str, outbox: Outbox, do: Callable[[str, K, Outbox], None]) -> None:
        if request_id not in self.kept:
            return
        try:
            do(request_id, self.kept[request_id], outbox)
        except Exception as exc:  # noqa: BLE001 - request edge: one bad request fails alone
            self.let_go(request_id)
            outbox.fail(request_id, as_omni_error(exc))
