"""The life of requests over all stages.

Knows topology: which stages a request can visit and which still owe it an end. Knows nothing of
models, sockets or processes; runs on the event loop of its owner and holds no lock.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, assert_never

import msgspec

from omni_core import graph
from omni_core.errors import NotReadyError, OmniError, RequestError, StageDiedError, from_info
from omni_core.messages import AbortRequest, DataReady, Done, Emit, Fail, ToStage
from omni_core.specs import StageConfig
from omni_core.types import Event, Finished, FinishReason, Modality, Request, StageSpan, Usage

StageState: TypeAlias = Literal["starting", "ready", "dead"]
Send: TypeAlias = Callable[[str, ToStage], None]
"""(process, message): queue a message for a stage process."""

CLIENT = "client"
"""The source of a request's first payload."""


@dataclass(slots=True, eq=False)
class Active:
    """One request in flight. It ends when every stage it visited has ended it."""

    request_id: str
    needed: frozenset[str]
    visited: set[str]
    events: asyncio.Queue[Event | OmniError] = field(default_factory=asyncio.Queue)
    submitted_s: float = field(default_factory=time.monotonic)
    done: set[str] = field(default_factory=set)
    usage: Usage = field(default_factory=Usage)
    finish_reason: FinishReason = "stop"
    spans: list[StageSpan] = field(default_factory=list)
    ended: bool = False

    async def take(self) -> tuple[list[Event], OmniError | None]:
        """What there is to tell the client now: events, and the error that ends them, if any. Waits
        until there is something."""
        events: list[Event] = []
        news = await self.events.get()
        while not isinstance(news, OmniError):
            events.append(news)
            if self.events.empty():
                return events, None
            news = self.events.get_nowait()
        return events, news


class Coordinator:
    """Routes requests into the graph and their events back out."""

    def __init__(self, stages: Sequence[StageConfig], entry: str, send: Send) -> None:
        self._stages = {stage.name: stage for stage in stages}
        self._home = {stage.name: stage.process or stage.name for stage in stages}
        self._entry = entry
        self._send = send
        self._active: dict[str, Active] = {}
        self._numbers = itertools.count()
        self._closed: OmniError | None = None
        self.states: dict[str, StageState] = dict.fromkeys(self._stages, "starting")

    def submit(self, request: Request) -> Active:
        """Start a request; its events appear on `Active.events`."""
        if self._closed is not None:
            raise self._closed
        self._check_modalities(request.params.modalities)
        needed = graph.needed(list(self._stages.values()), request.params.modalities)
        down = sorted(name for name in needed if self.states[name] != "ready")
        if down:
            raise NotReadyError(f"not ready: {', '.join(down)}; retry in a moment")
        name = request.request_id or uuid.uuid4().hex
        active = Active(f"{name}#{next(self._numbers)}", frozenset(needed), {self._entry})
        self._active[active.request_id] = active
        self._send(
            self._home[self._entry],
            DataReady(
                request_id=active.request_id,
                source=CLIENT,
                target=self._entry,
                params=request.params,
                payload={"messages": msgspec.msgpack.encode(request.messages)},
            ),
        )
        return active

    def release(self, active: Active) -> None:
        """The client is done with the request; if it has not ended, abort it everywhere."""
        if not active.ended:
            self._end(active)
            self._abort(active)

    def handle(self, message: Emit | Done | Fail) -> None:
        """Apply a message from a stage; requests that have ended are ignored."""
        active = self._active.get(message.request_id)
        if active is None:
            return
        match message:
            case Emit():
                active.events.put_nowait(message.event)
            case Done():
                self._stage_done(active, message)
            case Fail():
                self._fail(active, from_info(message.error))
            case _:
                assert_never(message)

    def process_ready(self, stage: str) -> None:
        """A stage takes requests now."""
        if stage in self.states:
            self.states[stage] = "ready"

    def process_died(self, process: str, detail: str) -> None:
        """Fail every request that could visit a stage of this process."""
        lost = {name for name, home in self._home.items() if home == process}
        for name in lost:
            self.states[name] = "dead"
        error = f"stage process {process!r} ended while it served this request: {detail}"
        for active in list(self._active.values()):
            if active.needed & lost:
                self._fail(active, StageDiedError(error))

    def fail_request(self, request_id: str, error: OmniError) -> None:
        """End one request with an error; ignored if it has ended."""
        if active := self._active.get(request_id):
            self._fail(active, error)

    def close(self, error: OmniError) -> None:
        """End every request with an error and refuse new ones with it."""
        self._closed = error
        for active in list(self._active.values()):
            self._fail(active, error)

    @property
    def in_flight(self) -> int:
        """Requests that have not ended."""
        return len(self._active)

    def _check_modalities(self, wanted: Sequence[Modality]) -> None:
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

    def _stage_done(self, active: Active, done: Done) -> None:
        active.done.add(done.stage)
        active.visited.update(done.opened)
        active.usage += done.usage
        if done.finish_reason is not None and self._stages[done.stage].terminal == "text":
            active.finish_reason = done.finish_reason
        first = done.first_output_s
        active.spans.append(
            StageSpan(
                stage=done.stage,
                start_s=done.start_s - active.submitted_s,
                first_output_s=None if first is None else first - active.submitted_s,
                end_s=done.end_s - active.submitted_s,
            )
        )
        if active.visited <= active.done:
            self._end(active)
            active.events.put_nowait(
                Finished(
                    finish_reason=active.finish_reason,
                    usage=active.usage,
                    timeline=tuple(sorted(active.spans, key=lambda span: span.start_s)),
                )
            )

    def _fail(self, active: Active, error: OmniError) -> None:
        self._end(active)
        self._abort(active)
        active.events.put_nowait(error)

    def _end(self, active: Active) -> None:
        active.ended = True
        del self._active[active.request_id]

    def _abort(self, active: Active) -> None:
        """Reach every stage the request may have entered; one message for each process."""
        for process in {self._home[name] for name in active.needed}:
            if any(
                self.states[name] != "dead" for name, home in self._home.items() if home == process
            ):
                self._send(process, AbortRequest(request_id=active.request_id))
