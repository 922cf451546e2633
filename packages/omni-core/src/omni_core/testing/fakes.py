"""Stand-ins that record: an outbox, the links behind one, an engine that follows a script.

For unit tests of schedulers, stages and runners without processes, sockets or models.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from omni_core.engine.base import (
    EngineCapabilities,
    EngineRequest,
    EngineStats,
    RequestFailedError,
    StepOutput,
)
from omni_core.errors import OmniError
from omni_core.messages import DataReady, Done, Emit, Fail, Released, StreamChunk, StreamDone
from omni_core.scheduler.base import Close, Inbox, InboxItem, Scheduler
from omni_core.types import Event, FinishReason, Modality, Payload, Usage

T = TypeVar("T")
_PATIENCE_S: Final = 10.0
"""How long a test waits for something that should happen at once."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an `Outbox` method: its name, its request and its main argument."""

    method: str
    request_id: str
    value: Any = None


class RecordingOutbox:
    """An `Outbox` that keeps its calls, in order, and lets a test wait for one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.calls: list[Call] = []

    def send(self, request_id: str, payload: Payload, *, target: str | None = None) -> None:
        """See `Outbox.send`."""
        self._record(Call("send", request_id, payload))

    def pass_on(self, request_id: str, payload: Payload) -> None:
        """See `Outbox.pass_on`; kept as the two calls that it stands for."""
        self.send(request_id, payload)
        self.done(request_id)

    def stream(self, request_id: str, data: Any, *, target: str | None = None) -> None:
        """See `Outbox.stream`."""
        self._record(Call("stream", request_id, data))

    def stream_done(self, request_id: str) -> None:
        """See `Outbox.stream_done`."""
        self._record(Call("stream_done", request_id))

    def emit(self, request_id: str, event: Event) -> None:
        """See `Outbox.emit`."""
        self._record(Call("emit", request_id, event))

    def done(
        self, request_id: str, usage: Usage | None = None, *, cut: Modality | None = None
    ) -> None:
        """See `Outbox.done`; what was cut is a call of its own."""
        if cut is not None:
            self._record(Call("cut", request_id, cut))
        self._record(Call("done", request_id, usage))

    def complete(
        self, request_id: str, *, finish_reason: FinishReason = "stop", usage: Usage | None = None
    ) -> None:
        """See `Outbox.complete`."""
        self._record(Call("complete", request_id, finish_reason))

    def fail(self, request_id: str, error: OmniError) -> None:
        """See `Outbox.fail`."""
        self._record(Call("fail", request_id, error))

    def released(self, request_id: str) -> None:
        """See `Outbox.released`."""
        self._record(Call("released", request_id))

    def of(self, request_id: str) -> list[Call]:
        """The calls for one request so far."""
        with self._changed:
            return [call for call in self.calls if call.request_id == request_id]

    def wait_for(self, method: str, request_id: str, patience_s: float = _PATIENCE_S) -> Call:
        """The first such call, waiting for it; AssertionError with all calls if it never comes."""

        asked = (method, request_id)

        def found(calls: list[Call]) -> Call | None:
            return next((c for c in calls if (c.method, c.request_id) == asked), None)

        call = self.wait_until(found, patience_s)
        assert call is not None, f"no {method} of {request_id!r} in {self.calls}"
        return call

    def wait_until(self, found: Callable[[list[Call]], T], patience_s: float = _PATIENCE_S) -> T:
        """What `found` says of all calls so far, once that is true, or when nobody waits longer."""
        with self._changed:
            return self._changed.wait_for(lambda: found(self.calls), patience_s)

    def _record(self, call: Call) -> None:
        with self._changed:
            self.calls.append(call)
            self._changed.notify_all()


@contextlib.contextmanager
def running(
    scheduler: Scheduler, items: Iterable[InboxItem] = ()
) -> Iterator[tuple[Inbox, RecordingOutbox]]:
    """Run a scheduler's loop in a thread, with `items` waiting when it starts; closes it after.

    What the loop raised is raised here; so is a loop that does not leave on `Close`.
    """
    inbox, outbox, raised = Inbox(), RecordingOutbox(), []
    for item in items:
        inbox.put(item)

    def loop() -> None:
        try:
            scheduler.run(inbox, outbox)
        except Exception as exc:  # noqa: BLE001 - handed to the test's own thread below
            raised.append(exc)

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield inbox, outbox
    finally:
        inbox.put(Close())
        thread.join(_PATIENCE_S)
    assert not thread.is_alive(), "the loop did not leave on Close"
    if raised:
        raise raised[0]


@dataclass(slots=True)
class RecordingLinks:
    """`Links` that keep what a stage sent. Set `refuse` to raise it instead."""

    delivered: list[DataReady | StreamChunk | StreamDone] = field(default_factory=list)
    processes: list[str] = field(default_factory=list)
    """To which each of them went."""
    reported: list[Emit | Done | Fail | Released] = field(default_factory=list)
    refuse: Exception | None = None

    def deliver(self, message: DataReady | StreamChunk | StreamDone, process: str) -> None:
        """See `Links.deliver`."""
        if self.refuse is not None:
            raise self.refuse
        self.delivered.append(message)
        self.processes.append(process)

    def report(self, message: Emit | Done | Fail | Released) -> None:
        """See `Links.report`."""
        self.reported.append(message)

    def flush(self) -> None:
        """See `Links.flush`; nothing is held back here."""


class ScriptedEngine:
    """An `Engine` without a model: request by request, the tokens that its `inputs` list.

    Each step gives every request its next token; the last one carries "stop". A `None` in the
    script waits for a chunk from `feed`. Ids in `refused` fail on admission.
    """

    capabilities = EngineCapabilities(name="scripted", feedback=True, hidden_states=True)
    max_running = 64

    def __init__(self, refused: dict[str, OmniError] | None = None) -> None:
        self._refused = refused or {}
        self._scripts: dict[str, list[int | None]] = {}
        self._given: dict[str, int] = {}
        self._steps = 0
        self._tokens = 0
        self.fed: list[tuple[str, Any]] = []
        self.aborted: list[str] = []

    def add(self, request: EngineRequest) -> None:
        """See `Engine.add`."""
        if request.request_id in self._scripts:
            raise ValueError(f"{request.request_id!r} is in use")
        self._scripts[request.request_id] = list(request.inputs)
        self._given[request.request_id] = 0

    def feed(self, request_id: str, chunk: Any) -> None:
        """See `Engine.feed`."""
        self.fed.append((request_id, chunk))
        script = self._scripts.get(request_id)
        if script and script[0] is None:
            script.pop(0)

    def runnable(self) -> bool:
        """See `Engine.runnable`."""
        return any(script[0] is not None for script in self._scripts.values())

    def wakes_in_s(self) -> float | None:
        """See `Engine.wakes_in_s`."""
        return None

    def step(self) -> list[StepOutput]:
        """See `Engine.step`."""
        self._steps += 1
        for request_id in self._scripts:
            if error := self._refused.pop(request_id, None):
                self._forget(request_id)
                raise RequestFailedError(request_id, error)
        return [output for request_id in list(self._scripts) for output in self._next(request_id)]

    def session(self) -> contextlib.AbstractContextManager[object]:
        """See `Engine.session`."""
        return contextlib.nullcontext()

    def abort(self, request_id: str) -> None:
        """See `Engine.abort`."""
        self.aborted.append(request_id)
        self._forget(request_id)

    def forget_prefixes(self) -> None:
        """See `Engine`; there are none."""

    def stats(self) -> EngineStats:
        """See `Engine.stats`."""
        return EngineStats(
            waiting=0,
            running=len(self._scripts),
            kv_pages_used=0,
            kv_pages_total=0,
            steps=self._steps,
            tokens=self._tokens,
        )

    def _next(self, request_id: str) -> list[StepOutput]:
        script = self._scripts[request_id]
        if script[0] is None:
            return []
        token, index = script.pop(0), self._given[request_id]
        assert token is not None
        self._given[request_id] += 1
        self._tokens += 1
        reason: FinishReason | None = None if script else "stop"
        if not script:
            self._forget(request_id)
        output = StepOutput(request_id=request_id, token=token, index=index, finish_reason=reason)
        return [output]

    def _forget(self, request_id: str) -> None:
        self._scripts.pop(request_id, None)
        self._given.pop(request_id, None)
