"""The life of requests over all stages.

Knows topology: which stages a request can visit and which still owe it an end. Which process each
of them runs in is the fleet's to say. Knows nothing of models, sockets or the operating system;
runs on the event loop of its owner and holds no lock.
"""

from __future__ import annotations

import itertools
import logging
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TypeAlias, assert_never

from omni_core import graph
from omni_core.coordinator.aborts import Aborts, Observer, Silent
from omni_core.coordinator.active import Active
from omni_core.coordinator.admission import Admission, AdmissionLimits, Occupancy
from omni_core.coordinator.fleet import Fleet, Replica
from omni_core.coordinator.timers import CallLater, on_loop
from omni_core.coordinator.unread import Unread
from omni_core.errors import (
    DeadlineError,
    NotReadyError,
    OmniError,
    OverloadedError,
    ProtocolError,
    RateLimitError,
    RequestCancelledError,
    RequestError,
    SlowClientError,
    StageDiedError,
    as_omni_error,
    from_info,
)
from omni_core.messages import (
    AbortRequest,
    DataReady,
    Done,
    Emit,
    Fail,
    Released,
    ToStage,
)
from omni_core.specs import StageConfig
from omni_core.types import Event, Modality, Request

Send: TypeAlias = Callable[[str, ToStage], None]
"""(process, message): queue a message for a stage process."""

CLIENT = "client"
"""The source of a request's first payload."""

log = logging.getLogger("omni.coordinator")


class Coordinator:
    """Routes requests into the graph and their events back out.

    Whatever ends a request early (its client, its deadline, `cancel`, a failure) takes one way: it
    leaves the queue or is aborted in every stage, and its events end with the error.
    """

    def __init__(
        self,
        stages: Sequence[StageConfig],
        entry: str,
        fleet: Fleet,
        send: Send,
        *,
        limits: AdmissionLimits | None = None,
        unread: Unread[Active] | None = None,
        observer: Observer | None = None,
        call_later: CallLater = on_loop,
    ) -> None:
        self._stages = {stage.name: stage for stage in stages}
        self._fleet = fleet
        self._entry = entry
        self._send = send
        self._active: dict[str, Active] = {}
        self._paths: dict[frozenset[Modality], frozenset[str]] = {}
        self._run = uuid.uuid4().hex
        self._numbers = itertools.count()
        self._closed: OmniError | None = None
        self._admission = Admission(limits or AdmissionLimits())
        self._aborts = Aborts()
        self._unread = unread or Unread()
        self._observer = observer or Silent()
        self._call_later = call_later

    def submit(self, request: Request, *, warm_up: bool = False) -> Active:
        """Queue a request; its events appear on `Active.events`. One for `warm_up` waits for no
        turn and passes processes that serve nobody yet."""
        if self._closed is not None:
            raise self._closed
        needed = self._path(frozenset(request.params.modalities))
        request_id = f"{request.request_id or self._run}#{next(self._numbers)}"
        active = Active(request_id, request, needed, {self._entry}, self._unread)
        if warm_up:
            if self._admission.held:
                raise NotReadyError("new weights are being loaded; retry in a moment")
            self._active[request_id] = active
            self._start(active, warm_up=True)
        else:
            self._queue(active)
        return active

    def cancel(self, request_id: str, client: str) -> int:
        """End every request with this `Request.request_id` and `Request.client`; how many."""
        asked = (request_id, client)
        found = [
            active
            for active in self._active.values()
            if (active.request.request_id, active.request.client) == asked
        ]
        for active in sorted(found, key=lambda active: bool(active.pins)):  # waiting ones first
            self._fail(active, RequestCancelledError("the request was cancelled by its client"))
        return len(found)

    def warm_up_modalities(self) -> tuple[Modality, ...]:
        """What a warm-up request can ask for now; nothing if it would pass no fresh process."""
        stages = list(self._stages.values())
        emitted = dict.fromkeys(stage.terminal for stage in stages if stage.terminal is not None)
        able = tuple(
            modality
            for modality in emitted
            if not self._fleet.down(graph.needed(stages, (modality,)), warm_up=True)
        )
        return able if self._fleet.any_built(graph.needed(stages, able)) else ()

    def release(self, active: Active) -> None:
        """The client is done with the request; if it has not ended, abort it everywhere."""
        if not active.ended:
            self._abort(active, "disconnect")
            self._end(active)
        self._unread.clear(active)

    def released(self, message: Released) -> None:
        """A stage has let go of an aborted request."""
        after_s = self._aborts.released(message.request_id, message.stage)
        if after_s is not None:
            self._observer.released(message.stage, after_s)

    def handle(self, message: Emit | Done | Fail) -> None:
        """Apply a message from a stage; requests that have ended are ignored."""
        active = self._active.get(message.request_id)
        if active is None:
            return
        match message:
            case Emit():
                self._tell(active, message.event)
            case Done():
                self._stages_done(active, (*message.before, message))
            case Fail():
                self._fail(active, from_info(message.error))
            case _:
                assert_never(message)

    def process_serves(self, replica: Replica) -> None:
        """Requests may go to this process from now on."""
        self._observer.ready(replica.process, _names(replica))

    def process_died(self, process: str, detail: str) -> None:
        """Fail every request that could visit a stage in this process; the fleet knows that it is
        dead."""
        if replica := self._fleet.find(process):
            self._observer.lost(process, _names(replica), replica.last_death or "exit")
        self._aborts.lost(process)
        error = f"stage process {process!r} ended while it served this request: {detail}"
        for active in list(self._active.values()):
            if process in active.pins.values():
                self._fail(active, StageDiedError(error))

    def fail_request(self, request_id: str, error: OmniError) -> None:
        """End one request with an error; ignored if it has ended."""
        if active := self._active.get(request_id):
            self._fail(active, error)

    def hold(self) -> None:
        """Start no request until `go_on`; new ones wait in the queue."""
        self._admission.held = True

    def go_on(self) -> None:
        """Start those whose turn it is again."""
        self._admission.held = False
        self._fill()

    def end_running(self, error: OmniError) -> None:
        """End what is in the stages with an error; those that wait go on waiting."""
        for active in [active for active in self._active.values() if active.pins]:
            self._fail(active, error)

    def close(self, error: OmniError) -> None:
        """End every request with an error and refuse new ones with it."""
        self._closed = error
        for active in list(self._active.values()):
            self._fail(active, error)

    @property
    def stages(self) -> tuple[str, ...]:
        """The names of the stages."""
        return tuple(self._stages)

    @property
    def in_flight(self) -> int:
        """Requests that have not ended."""
        return len(self._active)

    def occupancy(self) -> Occupancy:
        """How much there is to do now."""
        return Occupancy(
            in_flight=self._admission.running,
            queued=self._admission.queued,
            aborting=len(self._aborts),
        )

    def _queue(self, active: Active) -> None:
        """Give the request its place in the line, or refuse it."""
        request = active.request
        try:
            self._fleet.require(active.needed)
            loser = self._admission.join(active.request_id, request.client)
        except (NotReadyError, OverloadedError, RateLimitError) as refusal:
            self._observer.refused(refusal.code or "")
            raise
        self._active[active.request_id] = active
        if loser is not None:
            self._put_out(self._active[loser])
        if request.timeout_s is not None:
            late = DeadlineError(f"the request has not ended within {request.timeout_s:g} s")
            active.deadline = self._call_later(request.timeout_s, partial(self._fail, active, late))
        self._fill()

    def _put_out(self, active: Active) -> None:
        """Another client has taken the place of this one in the queue."""
        refusal = self._admission.share_taken()
        self._observer.refused(refusal.code or "")
        self._forget(active)
        active.events.put(refusal)

    def _fill(self) -> None:
        """Start those whose turn it is, as long as there is a place in the stages."""
        while self._closed is None and (request_id := self._admission.take()) is not None:
            self._start(self._active[request_id])

    def _start(self, active: Active, *, warm_up: bool = False) -> None:
        """Send the request to its entry. What prevents that ends this request alone: what it needs
        may have died while it waited, or it cannot be encoded."""
        try:
            active.pins = self._fleet.pin(active.needed, warm_up=warm_up)
            self._enter(active, active.pins)
        except Exception as exc:  # noqa: BLE001 - request edge: one bad request fails alone
            self._forget(active)
            refusal = _refusal(exc)
            active.events.put(refusal)
            if not warm_up:
                self._observer.refused(refusal.code or "")
            return
        if not warm_up:
            waited_s = time.monotonic() - active.submitted_s
            self._observer.admitted(active.request.params.modalities, waited_s)

    def _enter(self, active: Active, pins: dict[str, str]) -> None:
        self._send(
            pins[self._entry],
            DataReady(
                request_id=active.request_id,
                source=CLIENT,
                target=self._entry,
                params=active.request.params,
                payload=active.request.content(),
                pins=pins,
            ),
        )

    def _tell(self, active: Active, event: Event) -> None:
        """Keep an event for the client, within what may be kept of this reply and of all."""
        active.events.put(event)
        slowest = self._unread.add(active, event)
        if slowest is not None:
            slowest.events.collect()
            self._unread.clear(slowest)
            error = SlowClientError(
                "too much of the reply is unread (half an hour of audio, 32 MiB of anything else, "
                "or less when many clients do not read); read it while it is made"
            )
            if slowest.ended:
                slowest.events.put(error)
            self._fail(slowest, error)

    def _path(self, wanted: frozenset[Modality]) -> frozenset[str]:
        """The stages that a request for these can visit."""
        path = self._paths.get(wanted)
        if path is None:
            self._check_modalities(wanted)
            path = frozenset(graph.needed(list(self._stages.values()), wanted))
            self._paths[wanted] = path
        return path

    def _check_modalities(self, wanted: Collection[Modality]) -> None:
        emitted = {stage.terminal for stage in self._stages.values()}
        choices = ", ".join(sorted(filter(None, emitted)))
        if not wanted:
            raise RequestError(f"name a modality: {choices}", param="modalities")
        for modality in wanted:
            if modality not in emitted:
                raise RequestError(
                    f"this pipeline does not produce {modality}; ask for {choices}",
                    param="modalities",
                )

    def _stages_done(self, active: Active, ends: tuple[Done, ...]) -> None:
        for done in ends:
            if not active.needed.issuperset((done.stage, *done.opened)):
                error = ProtocolError(f"{done.stage!r} ended what is none of its requests")
                self._fail(active, error)
                return
            active.note(done, self._stages[done.stage].terminal)
        if active.visited <= active.done:
            self._end(active)
            active.events.put(active.finished())

    def _fail(self, active: Active, error: OmniError) -> None:
        if not active.ended:
            self._abort(active, error.code or type(error).__name__)
            active.events.put(error)
            self._end(active)

    def _end(self, active: Active) -> None:
        self._forget(active)
        self._fill()

    def _forget(self, active: Active) -> None:
        active.ended = True
        if active.deadline is not None:
            active.deadline.cancel()
        self._fleet.unpin(active.pins)
        self._admission.leave(active.request_id)
        del self._active[active.request_id]

    def _abort(self, active: Active, reason: str) -> None:
        """Reach every stage the request may have entered; one message for each process. It counts
        as ended from here on, whatever sending brings about."""
        active.ended = True
        living = set(self._fleet.living())
        owing = {stage: home for stage, home in active.pins.items() if home in living}
        for process in set(owing.values()):
            self._send(process, AbortRequest(request_id=active.request_id))
        self._aborts.sent(active.request_id, owing)
        self._observer.aborted(reason)


def _refusal(exc: Exception) -> OmniError:
    """What a request ends with that could not be sent to its entry."""
    if isinstance(exc, (TypeError, ValueError, OverflowError, RecursionError)):  # as encoders say
        return RequestError(f"the request cannot be encoded: {exc}")
    if not isinstance(exc, OmniError):
        log.error("a request cannot be started", exc_info=exc)
    return as_omni_error(exc)


def _names(replica: Replica) -> tuple[str, ...]:
    return tuple(stage.name for stage in replica.stages)
