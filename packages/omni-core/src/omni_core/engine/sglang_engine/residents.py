"""Who waits and who is with upstream, in order of arrival.

Knows requests, and what upstream says of their rows. Knows nothing of steps or of drawing tokens.

A request is handed to upstream once fewer than `max_running` are there, so that what it holds on
the device is bounded; of KV memory upstream decides.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from omni_core.engine.base import EngineRequest, RequestFailedError
from omni_core.engine.common.active import ActiveSequence
from omni_core.engine.sglang_engine.model import SglangRunner
from omni_core.engine.sglang_engine.upstream import InProcessScheduler, Part, Req
from omni_core.errors import OmniError


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request before admission, with the chunks that came for it."""

    request: EngineRequest
    chunks: list[Any] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Resident:
    """An opened sequence and upstream's view of it."""

    active: ActiveSequence
    req: Req
    placed: bool = False
    """It has run at least once."""


class Residents:
    """The sequences of one engine."""

    def __init__(
        self,
        scheduler: InProcessScheduler,
        runner: SglangRunner,
        seat: Callable[[ActiveSequence], None],
        max_running: int,
    ) -> None:
        """`seat` prepares the sampling state of the row that a sequence has just got."""
        self._scheduler = scheduler
        self._runner = runner
        self._seat = seat
        self._max_running = max_running
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()
        self._residents: dict[str, Resident] = {}
        self._held: set[str] = set()
        """Those of them that were retracted and whose newest token has no row to follow it yet:
        upstream would ask for it at once."""
        self.prompt_tokens = self.prefix_hit_tokens = self.retractions = 0

    def __contains__(self, asked: str | ActiveSequence) -> bool:
        """Whether a request, or this very sequence of one, is here."""
        if isinstance(asked, str):
            return asked in self._waiting or asked in self._residents
        resident = self._residents.get(asked.seq.request_id)
        return resident is not None and resident.active is asked

    def __getitem__(self, request_id: str) -> Resident:
        return self._residents[request_id]

    @property
    def empty(self) -> bool:
        """Whether there is nobody."""
        return not self._waiting and not self._residents

    @property
    def running(self) -> int:
        """Sequences that have memory."""
        return sum(resident.active.seq.row >= 0 for resident in self._residents.values())

    @property
    def waiting(self) -> int:
        """Requests and retracted sequences that have none."""
        return len(self._waiting) + len(self._residents) - self.running

    def add(self, request: EngineRequest) -> None:
        """Queue a request."""
        self._waiting[request.request_id] = _Waiting(request)

    def feed(self, request_id: str, chunk: Any) -> None:
        """Hand a chunk on, or keep it for a request that waits; unknown ids are ignored."""
        if request_id in self._residents:
            self._runner.feed(self._residents[request_id].active.seq, chunk)
        elif request_id in self._waiting:
            self._waiting[request_id].chunks.append(chunk)

    def is_ready(self, request_id: str) -> bool:
        """Whether the sequence can go on."""
        return self._runner.ready(self._residents[request_id].active.seq)

    def admit(self) -> None:
        """Hand requests to upstream; RequestFailedError as `Engine.step`."""
        if self._held:
            self._release()
        while self._waiting and len(self._residents) < self._max_running:
            _, first = self._waiting.popitem(last=False)
            self._open(first)

    def place(self, resident: Resident, part: Part) -> None:
        """The sequence computes `part` next: give it its row, and what upstream has found of it."""
        active = resident.active
        seq = active.seq
        if seq.row != part.row:
            seq.row = part.row
            self._seat(active)
        if part.start > seq.computed:
            slots = self._scheduler.slots_of(part.row, seq.computed, part.start)
            self._runner.restore(seq, seq.computed, part.start, slots)
            seq.computed = part.start
        if not resident.placed:
            resident.placed = True
            active.cached_tokens = part.start
            self.prompt_tokens += seq.request.prompt_len
            self.prefix_hit_tokens += part.start

    def retract(self, reqs: Iterable[Req]) -> None:
        """Upstream took the memory of these; they wait again."""
        for req in reqs:
            resident = self._residents[req.rid]
            seq = resident.active.seq
            seq.row, seq.computed = -1, 0
            self.retractions += 1
            self._runner.resume(seq)
            if self._runner.feedback and not self.is_ready(req.rid):
                self._held.add(req.rid)
            else:
                self._scheduler.queue(req)

    def end(self, request_id: str) -> None:
        """The reply is complete; upstream frees its memory when the step is settled."""
        resident = self._residents.pop(request_id)
        self._scheduler.end(resident.req)
        self._runner.close(resident.active.seq)

    def drop(self, request_id: str) -> None:
        """Free everything of a request, between two steps; unknown ids are ignored."""
        self._waiting.pop(request_id, None)
        self._held.discard(request_id)
        resident = self._residents.pop(request_id, None)
        if resident is not None:
            self._scheduler.drop(resident.req)
            self._runner.close(resident.active.seq)

    def _release(self) -> None:
        for request_id, resident in self._residents.items():
            if request_id in self._held and self.is_ready(request_id):
                self._held.remove(request_id)
                self._scheduler.queue(resident.req)

    def _open(self, waiting: _Waiting) -> None:
        request = waiting.request
        active = ActiveSequence.of(
            request,
            eos_token_ids=self._runner.eos_token_ids,
            max_len=self._runner.kv.max_len,
            text=self._runner.text,
        )
        try:
            self._runner.open(active.seq)
        except OmniError as exc:
            raise RequestFailedError(request.request_id, exc) from exc
        req = self._scheduler.request(
            request.request_id, _ids(request), request.row_keys is not None
        )
        self._residents[request.request_id] = Resident(active, req)
        try:
            for chunk in waiting.chunks:
                self._runner.feed(active.seq, chunk)
        except OmniError as exc:
            self.drop(request.request_id)
            raise RequestFailedError(request.request_id, exc) from exc
        self._scheduler.queue(req)


def _ids(request: EngineRequest) -> array[int]:
    """What upstream takes for token ids: the keys of rows, which it looks up in its radix tree.

    It draws after all of them, which for an open prompt is before the last: what it takes for the
    first token is nobody's, and its row is the last of the prompt.
    """
    if request.row_keys is not None:
        return array("q", request.row_keys.tobytes())
    known = request.prompt_len - request.open_prompt
    return array("q", request.prompt_token_ids or (0,) * known)
