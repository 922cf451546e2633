"""The outbox of one stage: routing, projection and the books of what the stage still owes.

Knows the stage's edges and the requests it holds. Knows nothing of sockets: `Links` does.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np

from omni_core.errors import OmniError, StageError, as_omni_error
from omni_core.messages import (
    DataReady,
    Done,
    Emit,
    Fail,
    Released,
    StageDoc,
    StreamChunk,
    StreamDone,
)
from omni_core.specs import Ref
from omni_core.types import (
    AudioDelta,
    CodecDelta,
    Event,
    FinishReason,
    Modality,
    Payload,
    RequestParams,
    Usage,
)

_SERVER_ERROR: Final = 500
_NO_USAGE: Final = Usage()

log = logging.getLogger("omni.stage")


class Links(Protocol):
    """Ways out of a stage; callable from any thread. Messages of one edge keep their order.

    A thread that calls `flush` works in turns: what it hands over leaves at its next `flush`.
    """

    def deliver(self, message: DataReady | StreamChunk | StreamDone, process: str) -> None:
        """To the target stage, in this process or another: the one the request is pinned to."""

    def report(self, message: Emit | Done | Fail | Released) -> None:
        """To the coordinator."""

    def flush(self) -> None:
        """What this thread has handed over leaves now."""


@dataclass(slots=True)
class _Held:
    """A request inside the stage."""

    params: RequestParams
    pins: dict[str, str]
    ended: tuple[Done, ...]
    """See `DataReady.ended`."""
    start_s: float = field(default_factory=time.monotonic)
    first_output_s: float | None = None
    opened: list[str] = field(default_factory=list)

    def mark_output(self) -> None:
        """Something for the next stage or the client leaves now."""
        if self.first_output_s is None:
            self.first_output_s = time.monotonic()


class StageOutbox:
    """Implements `Outbox` for one stage; calls for requests it no longer holds do nothing.

    What a plugin's route, projection or payload raises fails its request and nobody else.
    """

    def __init__(self, doc: StageDoc, links: Links) -> None:
        self._doc = doc
        self._links = links
        self._route: Callable[[RequestParams, Payload], Collection[str]] | None = (
            Ref(doc.route_fn).resolve() if doc.route_fn else None
        )
        self._project: Mapping[str, Callable[[Payload], Payload]] = {
            target: Ref(fn).resolve() for target, fn in doc.project_payload.items()
        }
        self._lock = threading.Lock()
        self._held: dict[str, _Held] = {}

    def begin(self, message: DataReady) -> None:
        """The request entered the stage, or more of it came."""
        with self._lock:
            held = self._held.get(message.request_id)
            if held is None:
                self._held[message.request_id] = _Held(message.params, message.pins, message.ended)
            else:
                held.ended += message.ended

    def holds(self, request_id: str) -> bool:
        """Whether the stage still owes the request an end."""
        return request_id in self._held

    def discard(self, request_id: str) -> None:
        """The request was aborted: nothing more of it leaves the stage."""
        with self._lock:
            self._held.pop(request_id, None)

    def held(self) -> int:
        """Requests the stage holds, those still being gathered included."""
        return len(self._held)

    def send(self, request_id: str, payload: Payload, *, target: str | None = None) -> None:
        """See `Outbox.send`."""
        held = self._held.get(request_id)
        if held is None:
            return
        try:
            for name in self._targets(held.params, payload):
                if target is None or name == target:
                    self._hand_over(request_id, name, payload)
        except Exception as exc:  # noqa: BLE001 - request edge: a plugin's callables raise anything
            self.fail(request_id, as_omni_error(exc))

    def pass_on(self, request_id: str, payload: Payload) -> None:
        """See `Outbox.pass_on`."""
        held = self._held.get(request_id)
        if held is None:
            return
        try:
            names = self._targets(held.params, payload)
            if not names:
                self.done(request_id)
                return
            seen = [self._seen_by(name, payload) for name in names]
            with self._lock:
                if request_id not in self._held:  # aborted meanwhile
                    return
                for name in names:
                    self._open(held, name)
                del self._held[request_id]
        except Exception as exc:  # noqa: BLE001 - request edge: a plugin's callables raise anything
            self.fail(request_id, as_omni_error(exc))
            return
        ended = (*held.ended, self._end_of(request_id, held))
        try:
            for name, its_payload in zip(names, seen, strict=True):
                self._deliver(request_id, held, name, its_payload, ended)
                ended = ()
        except Exception as exc:  # noqa: BLE001 - request edge: a payload may be anything
            self._report_failure(request_id, as_omni_error(exc))

    def stream(self, request_id: str, data: Any, *, target: str | None = None) -> None:
        """See `Outbox.stream`."""
        held = self._touch(request_id)
        if held is None:
            return
        source = self._doc.name
        try:
            for name in self._streams(held):
                if target is None or name == target:
                    self._links.deliver(
                        StreamChunk(request_id=request_id, source=source, target=name, data=data),
                        held.pins[name],
                    )
        except Exception as exc:  # noqa: BLE001 - request edge: a chunk may be anything
            self.fail(request_id, as_omni_error(exc))

    def stream_done(self, request_id: str) -> None:
        """See `Outbox.stream_done`."""
        held = self._held.get(request_id)
        if held is None:
            return
        for name in self._streams(held):
            done = StreamDone(request_id=request_id, source=self._doc.name, target=name)
            self._links.deliver(done, held.pins[name])

    def emit(self, request_id: str, event: Event) -> None:
        """See `Outbox.emit`."""
        if self._touch(request_id) is None:
            return
        try:
            _check_arrays(event)
            self._links.report(Emit(request_id=request_id, stage=self._doc.name, event=event))
        except Exception as exc:  # noqa: BLE001 - request edge: an event may be anything
            self.fail(request_id, as_omni_error(exc))

    def done(
        self, request_id: str, usage: Usage | None = None, *, cut: Modality | None = None
    ) -> None:
        """See `Outbox.done`."""
        self._end(request_id, usage, cut=cut)

    def complete(
        self, request_id: str, *, finish_reason: FinishReason = "stop", usage: Usage | None = None
    ) -> None:
        """See `Outbox.complete`."""
        self._end(request_id, usage, reason=finish_reason)

    def fail(self, request_id: str, error: OmniError) -> None:
        """See `Outbox.fail`."""
        with self._lock:
            held = self._held.pop(request_id, None)
        if held is not None:
            self._report_failure(request_id, error)

    def released(self, request_id: str) -> None:
        """See `Outbox.released`."""
        self._links.report(Released(request_id=request_id, stage=self._doc.name))

    def _end(
        self,
        request_id: str,
        usage: Usage | None,
        *,
        reason: FinishReason | None = None,
        cut: Modality | None = None,
    ) -> None:
        with self._lock:
            held = self._held.pop(request_id, None)
        if held is None:
            return
        try:
            done = self._end_of(request_id, held, usage, reason=reason, cut=cut, before=held.ended)
            self._links.report(done)
        except (TypeError, OverflowError) as exc:  # a usage of something else than int
            self._report_failure(request_id, as_omni_error(exc))

    def _end_of(
        self,
        request_id: str,
        held: _Held,
        usage: Usage | None = None,
        *,
        reason: FinishReason | None = None,
        cut: Modality | None = None,
        before: tuple[Done, ...] = (),
    ) -> Done:
        return Done(
            request_id=request_id,
            stage=self._doc.name,
            opened=tuple(held.opened),
            usage=usage or _NO_USAGE,
            finish_reason=reason,
            cut=cut,
            start_s=held.start_s,
            first_output_s=held.first_output_s,
            end_s=time.monotonic(),
            before=before,
        )

    def _report_failure(self, request_id: str, error: OmniError) -> None:
        if error.status >= _SERVER_ERROR:
            log.error("request %s failed in %s", request_id, self._doc.name, exc_info=error)
        info = error.info(self._doc.name)
        self._links.report(Fail(request_id=request_id, stage=self._doc.name, error=info))

    def _targets(self, params: RequestParams, payload: Payload) -> list[str]:
        """Where this request goes: as routed, less what leads to no modality it asked for."""
        routed: Collection[str] = self._doc.next
        if self._route is not None:
            routed = self._route(params, payload)
            if unknown := set(routed) - set(self._doc.next):
                raise StageError(
                    f"route_fn of stage {self._doc.name!r} returned {', '.join(sorted(unknown))}; "
                    f"its next is {', '.join(self._doc.next)}"
                )
        serves = self._doc.serves
        return [name for name in routed if not _disjoint(params.modalities, serves[name])]

    def _hand_over(self, request_id: str, target: str, payload: Payload) -> None:
        seen = self._seen_by(target, payload)
        with self._lock:
            held = self._held.get(request_id)
            if held is None:  # aborted meanwhile
                return
            self._open(held, target)
        self._deliver(request_id, held, target, seen, ())

    def _seen_by(self, target: str, payload: Payload) -> Payload:
        project = self._project.get(target)
        return project(payload) if project else payload

    def _open(self, held: _Held, target: str) -> None:
        if target in held.opened:
            raise StageError(f"stage {self._doc.name!r} sent the request to {target!r} twice")
        held.opened.append(target)
        if target not in self._doc.stream_to:  # opening a stream is not its first chunk
            held.mark_output()

    def _deliver(
        self, request_id: str, held: _Held, target: str, payload: Payload, ended: tuple[Done, ...]
    ) -> None:
        message = DataReady(
            request_id=request_id,
            source=self._doc.name,
            target=target,
            params=held.params,
            payload=payload,
            pins=held.pins,
            ended=ended,
        )
        self._links.deliver(message, held.pins[target])

    def _touch(self, request_id: str) -> _Held | None:
        held = self._held.get(request_id)
        if held is not None:
            held.mark_output()
        return held

    def _streams(self, held: _Held) -> list[str]:
        return [name for name in self._doc.stream_to if name in held.opened]


def _disjoint(some: Collection[str], others: Collection[str]) -> bool:
    return not any(one in others for one in some)


def _check_arrays(event: Event) -> None:
    """Refuse here, where the mistake is, what the coordinator could not read."""
    if isinstance(event, AudioDelta) and not _is_array(event.samples, np.float32, 1):
        raise StageError("AudioDelta.samples must be a numpy float32 array (n,)")
    if isinstance(event, CodecDelta) and not _is_array(event.codes, np.int64, 2):
        raise StageError("CodecDelta.codes must be a numpy int64 array (groups, frames)")


def _is_array(value: object, dtype: type[np.generic], dimensions: int) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == dtype and value.ndim == dimensions
