"""The one contract between a stage's loop and its process: an inbox in, an outbox out.

Knows requests and payloads. Knows nothing of sockets, processes or models.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import msgspec

from omni_core.errors import OmniError
from omni_core.types import Event, FinishReason, Modality, Payload, RequestParams, Usage


def _never() -> bool:
    return False


class Work(msgspec.Struct, frozen=True):
    """A request enters the stage; `payload` is already merged if the stage waits for several."""

    request_id: str
    params: RequestParams
    payload: Payload
    stop: Callable[[], bool] = _never
    """Whether nobody waits for the result any more: for work of seconds, to ask now and then. A
    scheduler sets it that hands work to threads."""


class Chunk(msgspec.Struct, frozen=True):
    """More of a stream for a request that entered with `Work`; chunks of one source keep order."""

    request_id: str
    source: str
    data: Any


class ChunksDone(msgspec.Struct, frozen=True):
    """`source` will send no more chunks for this request."""

    request_id: str
    source: str


class Abort(msgspec.Struct, frozen=True):
    """Forget the request and free all it holds, at the next step at the latest."""

    request_id: str


class Close(msgspec.Struct, frozen=True):
    """Leave the loop."""


InboxItem: TypeAlias = Work | Chunk | ChunksDone | Abort | Close


class Inbox:
    """Thread-safe queue of items for one stage.

    To look into it ends a turn of the stage's loop: what that turn handed to the outbox leaves.
    """

    def __init__(self, before_look: Callable[[], None] = lambda: None) -> None:
        self._before_look = before_look
        self._queue: queue.SimpleQueue[InboxItem] = queue.SimpleQueue()

    def put(self, item: InboxItem) -> None:
        """Add an item; callable from any thread."""
        self._queue.put(item)

    def get(self, timeout_s: float | None = None) -> InboxItem | None:
        """Wait for the next item; None once `timeout_s` has passed."""
        self._before_look()
        try:
            return self._queue.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def depth(self) -> int:
        """Items that nobody has taken yet."""
        return self._queue.qsize()

    def drain(self, *, block: bool, timeout_s: float | None = None) -> list[InboxItem]:
        """All that is there now; with `block`, at least one, unless `timeout_s` passes first."""
        items: list[InboxItem] = []
        if not block:
            self._before_look()
        elif (first := self.get(timeout_s)) is not None:
            items.append(first)
        while not self._queue.empty():
            items.append(self._queue.get_nowait())
        return items


class Outbox(Protocol):
    """Where a stage's results go. Every method may be called from any thread of the stage.

    A request ends in a stage with exactly one of `done`, `complete`, `pass_on` or `fail`, or by
    `Abort`. An `Abort`, of whatever request, is answered with `released`.
    """

    def send(self, request_id: str, payload: Payload, *, target: str | None = None) -> None:
        """Hand the request to `next` (narrowed by `route_fn`, seen through `project_payload`),
        or to one target of these alone, when they are due at different moments."""

    def pass_on(self, request_id: str, payload: Payload) -> None:
        """`send` and `done` in one: cheaper, if nothing comes between them."""

    def stream(self, request_id: str, data: Any, *, target: str | None = None) -> None:
        """Send a chunk to each `stream_to` target that `send` opened, or to one of them."""

    def stream_done(self, request_id: str) -> None:
        """Tell each opened `stream_to` target that no more chunks come."""

    def emit(self, request_id: str, event: Event) -> None:
        """Send an event to the client."""

    def done(
        self, request_id: str, usage: Usage | None = None, *, cut: Modality | None = None
    ) -> None:
        """The stage holds nothing of the request any more; what it sent is on its way. `cut` is
        what it made no more of because of its length."""

    def complete(
        self, request_id: str, *, finish_reason: FinishReason = "stop", usage: Usage | None = None
    ) -> None:
        """Terminal stages: as `done`, and the stage's modality is finished for the client."""

    def fail(self, request_id: str, error: OmniError) -> None:
        """The request cannot go on; the coordinator aborts it everywhere else."""

    def released(self, request_id: str) -> None:
        """The stage holds nothing of a request that was aborted; nothing computes for it."""


class Scheduler(Protocol):
    """The loop of one stage; runs in a thread of its own.

    What this thread hands to the outbox leaves together, when it next looks into the inbox: a loop
    that goes on to something long looks first (`drain(block=False)`). What other threads of the
    stage hand over leaves at once.
    """

    def run(self, inbox: Inbox, outbox: Outbox) -> None:
        """Work until `Close` arrives, then free everything and return."""

    def stats(self) -> dict[str, float]:
        """Gauges and counters by name, readable from another thread at any time.

        Every scheduler gives "requests" (entered so far), "waiting" and "running" (held now);
        "running" is 0 when nothing of any request is left in the stage.
        """
