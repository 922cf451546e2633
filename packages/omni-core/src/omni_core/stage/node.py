"""One stage in its process: gathers payloads, feeds the inbox, runs the scheduler's thread.

Knows the life of a request inside one stage. Knows nothing of sockets or models.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from omni_core.errors import ErrorInfo, StageError, as_omni_error
from omni_core.messages import DataReady, StageDoc, StreamChunk, StreamDone
from omni_core.scheduler.base import Abort, Chunk, ChunksDone, Close, Inbox, Scheduler, Work
from omni_core.specs import Ref
from omni_core.stage.outbox import Links, StageOutbox
from omni_core.stage.tombstones import Tombstones
from omni_core.types import Payload

_ABORTED: Final = 100_000
"""Ids of requests that were aborted; a lifetime of 160 aborts a second, and 20 to 30 MB."""
_ENTERED: Final = 10_000
"""Ids of those that were not: what comes after these is a plugin's mistake, and comes soon."""


@dataclass(slots=True)
class _Gathering:
    """A request that is not complete yet."""

    payloads: dict[str, Payload] = field(default_factory=dict)
    early: list[Chunk | ChunksDone] = field(default_factory=list)
    """Streamed by one source before another's payload came."""


class StageNode:
    """Owns the inbox, outbox and thread of one stage."""

    def __init__(
        self,
        doc: StageDoc,
        scheduler: Scheduler,
        links: Links,
        on_crash: Callable[[str, ErrorInfo], None],
    ) -> None:
        self.name = doc.name
        self._doc = doc
        self._scheduler = scheduler
        self._on_crash = on_crash
        self._inbox = Inbox(before_look=links.flush)
        self._links = links
        self._outbox = StageOutbox(doc, links)
        self._wait_for_fn: Callable[[dict[str, Payload]], Collection[str] | None] | None = (
            Ref(doc.wait_for_fn).resolve() if doc.wait_for_fn else None
        )
        self._merge: Callable[[dict[str, Payload]], Payload] | None = (
            Ref(doc.merge_fn).resolve() if doc.merge_fn else None
        )
        self._takes_the_first = not doc.wait_for and self._merge is None
        self._lock = threading.Lock()
        self._gathering: dict[str, _Gathering] = {}
        self._aborted = Tombstones(most=_ABORTED)
        self._entered = Tombstones(most=_ENTERED)
        self._late = 0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=f"stage-{doc.name}", daemon=True)

    def start(self) -> None:
        """Start the scheduler's loop."""
        self._thread.start()

    def close(self) -> None:
        """Ask the loop to leave."""
        self._closing = True
        self._inbox.put(Close())

    def join(self, timeout_s: float) -> None:
        """Wait until the loop has left, if it ever started."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def receive(self, message: DataReady | StreamChunk | StreamDone) -> None:
        """Take a message for this stage; called from the process loop and from sibling stages."""
        with self._lock:
            match message:
                case DataReady():
                    self._enter(message)
                case StreamChunk():
                    self._forward(Chunk(message.request_id, message.source, message.data))
                case StreamDone():
                    self._forward(ChunksDone(message.request_id, message.source))

    def abort(self, request_id: str) -> None:
        """Drop the request, whether it is here or still on its way.

        The loop is told even if the books hold nothing: the outbox may have failed the request in
        the middle of the loop's work on it.
        """
        with self._lock:
            self._gathering.pop(request_id, None)
            self._aborted.set(request_id)
            self._outbox.discard(request_id)
            self._inbox.put(Abort(request_id))

    def stats(self) -> dict[str, float]:
        """The scheduler's numbers, and the node's: requests the stage owes an end ("held"), those
        of them that wait for another payload ("gathering"), items the loop has not taken yet
        ("inbox"), what came for requests that had ended ("late"), and ids kept against that."""
        with self._lock:
            self._aborted.sweep()
            self._entered.sweep()
            mine = {
                "held": self._outbox.held(),
                "gathering": len(self._gathering),
                "inbox": self._inbox.depth(),
                "late": self._late,
                "tombstones": len(self._aborted) + len(self._entered),
            }
        return {**self._scheduler.stats(), **mine}

    def _enter(self, message: DataReady) -> None:
        request_id = message.request_id
        if request_id in self._entered or request_id in self._aborted:
            self._enter_again(message)
            return
        self._outbox.begin(message)
        if self._takes_the_first and isinstance(message.payload, dict):
            self._entered.set(request_id)
            self._inbox.put(Work(request_id, message.params, message.payload))
            return
        gathering = self._gathering.setdefault(request_id, _Gathering())
        gathering.payloads[message.source] = message.payload
        try:
            if not self._is_complete(gathering.payloads):
                return
            payload = message.payload
            if self._merge is not None:
                payload = self._merge(gathering.payloads)
            if not isinstance(payload, dict):
                raise StageError(f"stage {self.name!r} got {type(payload).__name__}, not a dict")
        except Exception as exc:  # noqa: BLE001 - request edge: a plugin's merge may raise anything
            self._settle(request_id)
            self._outbox.fail(request_id, as_omni_error(exc))
            return
        self._settle(request_id)
        self._inbox.put(Work(request_id, message.params, payload))
        for item in gathering.early:
            self._inbox.put(item)

    def _enter_again(self, message: DataReady) -> None:
        request_id = message.request_id
        if not self._outbox.holds(request_id):
            self._late += 1
            if request_id in self._aborted or not message.ended:
                return
            self._outbox.begin(message)  # the ends that came with it would be told to nobody
        error = StageError(
            f"stage {self.name!r} got a second payload, from {message.source!r}; name its "
            "sources in wait_for, or route to it once"
        )
        self._outbox.fail(request_id, error)

    def _is_complete(self, arrived: dict[str, Payload]) -> bool:
        awaited: Collection[str] | None = self._doc.wait_for
        if awaited and self._wait_for_fn is not None:
            awaited = self._wait_for_fn(arrived)
        return awaited is not None and set(awaited) <= set(arrived)

    def _forward(self, item: Chunk | ChunksDone) -> None:
        if gathering := self._gathering.get(item.request_id):
            gathering.early.append(item)
        elif self._outbox.holds(item.request_id):
            self._inbox.put(item)
        else:
            self._late += 1

    def _settle(self, request_id: str) -> None:
        """No more payloads of this request are taken."""
        self._gathering.pop(request_id, None)
        self._entered.set(request_id)

    def _run(self) -> None:
        try:
            self._scheduler.run(self._inbox, self._outbox)
            if not self._closing:
                raise StageError("the loop ended without being asked to")
        except Exception as exc:
            self._on_crash(self.name, as_omni_error(exc).info(self.name))
            raise
        finally:
            self._links.flush()
