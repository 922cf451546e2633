"""One stage in its process: gathers payloads, feeds the inbox, runs the scheduler's thread.

Knows the life of a request inside one stage. Knows nothing of sockets or models.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Any, Final

from omni_core.errors import ErrorInfo, OmniError, StageError
from omni_core.messages import DataReady, StageDoc, StreamChunk, StreamDone
from omni_core.scheduler.base import Abort, Chunk, ChunksDone, Close, Inbox, Scheduler, Work
from omni_core.specs import Ref
from omni_core.stage.outbox import Links, StageOutbox
from omni_core.types import Payload

_TOMBSTONES: Final = 10_000
"""Aborted ids remembered, against payloads still on their way. Ids are never used twice."""


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
        self._inbox = Inbox()
        self._outbox = StageOutbox(doc, links)
        self._wait_for_fn: Callable[[dict[str, Payload]], Collection[str] | None] | None = (
            Ref(doc.wait_for_fn).resolve() if doc.wait_for_fn else None
        )
        self._merge: Callable[[dict[str, Payload]], Payload] | None = (
            Ref(doc.merge_fn).resolve() if doc.merge_fn else None
        )
        self._lock = threading.Lock()
        self._gathered: dict[str, dict[str, Payload]] = {}
        self._aborted: OrderedDict[str, None] = OrderedDict()
        self._thread = threading.Thread(target=self._run, name=f"stage-{doc.name}", daemon=True)

    def start(self) -> None:
        """Start the scheduler's loop."""
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Ask the loop to leave and wait for it."""
        self._inbox.put(Close())
        self._thread.join(timeout_s)

    def receive(self, message: DataReady | StreamChunk | StreamDone) -> None:
        """Take a message for this stage; called from the process loop and from sibling stages."""
        match message:
            case DataReady():
                with self._lock:
                    self._enter(message)
            case StreamChunk():
                if self._outbox.holds(message.request_id):
                    self._inbox.put(Chunk(message.request_id, message.source, message.data))
            case StreamDone():
                if self._outbox.holds(message.request_id):
                    self._inbox.put(ChunksDone(message.request_id, message.source))

    def abort(self, request_id: str) -> None:
        """Drop the request, whether it is here or still on its way."""
        with self._lock:
            self._aborted[request_id] = None
            if len(self._aborted) > _TOMBSTONES:
                self._aborted.popitem(last=False)
            self._gathered.pop(request_id, None)
            held = self._outbox.holds(request_id)
            self._outbox.discard(request_id)
        if held:
            self._inbox.put(Abort(request_id))

    def stats(self) -> dict[str, float]:
        """The scheduler's numbers, and "held": requests the stage owes an end."""
        return {**self._scheduler.stats(), "held": self._outbox.held()}

    def _enter(self, message: DataReady) -> None:
        if message.request_id in self._aborted:
            return
        self._outbox.begin(message.request_id, message.params)
        payload: Payload | None = message.payload
        if self._doc.wait_for:
            payload = self._gather(message)
        if payload is not None:
            self._inbox.put(Work(message.request_id, message.params, payload))

    def _gather(self, message: DataReady) -> Payload | None:
        """The merged payload once all awaited sources have arrived."""
        arrived = self._gathered.setdefault(message.request_id, {})
        arrived[message.source] = message.payload
        try:
            awaited: Any = self._doc.wait_for
            if self._wait_for_fn is not None:
                awaited = self._wait_for_fn(arrived)
            if awaited is None or not set(awaited) <= set(arrived):
                return None
            del self._gathered[message.request_id]
            return self._merge(arrived) if self._merge is not None else message.payload
        except Exception as exc:  # noqa: BLE001 - request edge: a plugin's merge may raise anything
            self._gathered.pop(message.request_id, None)
            self._outbox.fail(message.request_id, _as_omni_error(exc))
            return None

    def _run(self) -> None:
        try:
            self._scheduler.run(self._inbox, self._outbox)
        except Exception as exc:
            self._on_crash(self.name, _as_omni_error(exc).info(self.name))
            raise


def _as_omni_error(exc: Exception) -> OmniError:
    if isinstance(exc, OmniError):
        return exc
    error = StageError(f"{type(exc).__name__}: {exc}")
    error.__cause__ = exc
    return error
